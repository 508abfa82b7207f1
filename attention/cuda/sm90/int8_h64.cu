/* INT8, up to 64 rows (tokens x heads) a CTA, 512 + 64 dims. In: q, records of 656 bytes, the
 * split. Out: partials. The one idea: scores are int8 products straight from the raw records, as in
 * the 16-row kernel, while a third warpgroup widens the same records into one fp16 tile that P V
 * reads N-major; so each token is widened once for 64 rows, under the scores and the softmax.
 *
 * Three warpgroups, one CTA an SM, two raw stages, one fp16 tile. Tile n:
 *   0, 1  scores of 64 tokens x 32 rows each; softmax; P to shared memory; barrier of both, which
 *         also tells whether the slow path must run; P V of all 64 rows x 256 dims each
 *   2     once P V (n - 1) has read the tile: widen n; then, with the raw stage read by all, its
 *         first warp fetches n + 2
 */
#include "attention/cuda/sm90/launch.h"
#include "attention/cuda/sm90/frame.cuh"
#include "attention/cuda/sm90/wgmma_wide.cuh"

using namespace lkvi;

namespace
{
constexpr int kHalfRows = kWideRows / 2; /* of a consumer warpgroup */
constexpr int kConsumers = 256, kAllThreads = 384;
constexpr int kScaleOffset = 512, kRopeOffset = 528;
constexpr uint32_t kStageBytes = 5 * kBoxBytes + kTile * 16;
/* Registers a thread: 2 x 224 + 56 is what three warpgroups have at a launch of 168. */
#define LKVI_CONSUMER_REGISTERS "224"
#define LKVI_WIDENER_REGISTERS "56"

struct int8_maps {
    CUtensorMap wide, narrow; /* boxes of 128 swizzled bytes; of 16 bytes */
};

struct alignas(1024) wide_smem {
    uint8_t latent[2][4][kBoxBytes]; /* raw int8, 128 dims a box */
    uint8_t rope[2][kBoxBytes];
    uint8_t q[2][4][kWideRows * kBox]; /* of a warpgroup: 32 rows of high, 32 of low bytes */
    uint8_t q_rope[kWideRows * kBox];
    uint8_t tile[8][kBoxBytes];  /* fp16, 64 dims a box: [token][dim] */
    uint8_t p[kWideRows * kBox]; /* [row][token]; between products: struct scratch */
    float4 scale_zero[2][kTile];
    float scale[kWideRows], q_sum[kWideRows];
    int limit[kWideRows];
    uint32_t hidden[2];
    uint64_t full[2], empty[2], tile_full, tile_free;
};
static_assert(sizeof(wide_smem) <= 227 * 1024, "one CTA an SM");

struct scratch { /* of the slow path and of the end of a sequence */
    float most[4][kWideRows];
    float scale[2][4];
    float by[kWideRows], top[kWideRows], zero[kWideRows];
    float sum[4][kWideRows], slope[4][kWideRows], zeros[4][kWideRows];
};
static_assert(sizeof(scratch) <= kWideRows * kBox, "it takes the place of P");

__device__ __forceinline__ bool wide_query(const decode_args &a, const sequence &s, int r,
                                           int *token, int *head)
{
    int row = (int)(blockIdx.x % a.row_tiles) * kWideRows + r;
    int j = row / (int)a.num_heads;
    *head = row - j * (int)a.num_heads;
    *token = s.first_row + j;
    return j < s.q_len;
}

/* ---- third warpgroup */

__device__ __forceinline__ void fetch(const decode_args &a, const int8_maps &maps, wide_smem &sm,
                                      feed &f, int n, int lane)
{
    if (f.tile >= f.end)
        return;
    const int stage = n & 1, block = feed_block(a, f), at = lane * a.piece;
    const uint32_t bar = shared_address(&sm.full[stage]);
    if (n >= 2)
        mbarrier_wait(shared_address(&sm.empty[stage]), ((n >> 1) - 1) & 1);
    uint32_t hidden = feed_hidden(a, block < 0, lane);
    if (lane == 0) {
        sm.hidden[stage] = hidden;
        mbarrier_arrive_expect(bar, kStageBytes);
    }
    __syncwarp();
    if (at < kTile) {
#pragma unroll 1
        for (int box = 0; box < 4; box++)
            copy_box(shared_address(&sm.latent[stage][box][at * kBox]), &maps.wide, kBox * box,
                     f.row, block, bar);
        copy_box(shared_address(&sm.rope[stage][at * kBox]), &maps.wide, kRopeOffset, f.row, block,
                 bar);
        copy_box(shared_address(&sm.scale_zero[stage][at]), &maps.narrow, kScaleOffset, f.row,
                 block, bar);
        if (block < 0)
            feed_fault(a, f);
    }
    feed_next(a, f, lane);
}

/* Four dims to two fp16 pairs: a byte, sign turned, is the low mantissa byte of 1152 + it. */
__device__ __forceinline__ void widen4(uint32_t x, uint32_t &d0, uint32_t &d1)
{
    constexpr uint32_t lift = 0x64806480u, top = 0x64646464u;
    x ^= 0x80808080u;
    d0 = half2_sub(prmt(x, top, 0x4140), lift);
    d1 = half2_sub(prmt(x, top, 0x4342), lift);
}

/* A thread widens half of a token. Raw boxes and fp16 boxes have the same rows of 128 swizzled
 * bytes; eight lanes have eight tokens, so no access conflicts. */
__device__ __forceinline__ void widen_tile(wide_smem &sm, int stage, int thread)
{
    const int token = thread & 63, half = thread >> 6;
    const uint8_t *raw = sm.latent[stage][2 * half];
    uint8_t *to = sm.tile[4 * half];
    const int at = token * kBox + ((token & 7) << 4);
#pragma unroll
    for (int box = 0; box < 2; box++)
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            uint4 v[2];
#pragma unroll
            for (int i = 0; i < 2; i++)
                v[i] = *(const uint4 *)(raw + box * kBoxBytes + (at ^ ((j + i) << 4)));
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint4 x, y;
                uint8_t *out = to + (2 * box + (j >> 2)) * kBoxBytes;
                widen4(v[i].x, x.x, x.y);
                widen4(v[i].y, x.z, x.w);
                widen4(v[i].z, y.x, y.y);
                widen4(v[i].w, y.z, y.w);
                *(uint4 *)(out + (at ^ ((2 * ((j + i) & 3)) << 4))) = x;
                *(uint4 *)(out + (at ^ ((2 * ((j + i) & 3) + 1) << 4))) = y;
            }
        }
    fence_async_shared();
}

__device__ __forceinline__ void feed_range(const decode_args &a, const int8_maps &maps,
                                           wide_smem &sm, int range, int &count)
{
    const int thread = threadIdx.x - kConsumers, warp = thread / 32, lane = thread % 32;
    const int4 r = *(const int4 *)(a.split.ranges + range);
    const int end = count + uniform(r.y - r.x);
    feed f;
    if (warp == 0)
        feed_start(a, f, range, lane);
#pragma unroll 1
    for (int n = count - 2; n < end; n++) { /* the first two turns only fetch */
        if (n >= count) {
            if (n > 0)
                mbarrier_wait(shared_address(&sm.tile_free), (n - 1) & 1);
            mbarrier_wait(shared_address(&sm.full[n & 1]), (n >> 1) & 1);
            widen_tile(sm, n & 1, thread);
            __syncwarp();
            if (lane == 0) {
                mbarrier_arrive(shared_address(&sm.tile_full));
                mbarrier_arrive(shared_address(&sm.empty[n & 1]));
            }
        }
        if (warp == 0)
            fetch(a, maps, sm, f, n + 2, lane);
    }
    count = end;
}

/* ---- consumers */

/* One row of q a warp: q = scale * (256 high + low), both int8, swizzled. */
__device__ __forceinline__ void store_q(wide_smem &sm, const decode_args &a, const float4 (&x)[4],
                                        int r, int lane)
{
    float most = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        most = fmaxf(fmaxf(most, fmaxf(fabsf(x[i].x), fabsf(x[i].y))),
                     fmaxf(fabsf(x[i].z), fabsf(x[i].w)));
#pragma unroll
    for (int d = 1; d < 32; d *= 2)
        most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
    const float inverse = most > 0 ? 32639.f / most : 0;
    const int row = r % kHalfRows;
    const int at = row * kBox + (((lane / 4) ^ (row & 7)) << 4) + (lane % 4) * 4;
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float v[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
        uint32_t high = 0, low = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int n = __float2int_rn(v[j] * inverse), h = (n + 128) >> 8, l = n - 256 * h;
            sum += n;
            high |= (uint32_t)(h & 255) << (8 * j);
            low |= (uint32_t)(l & 255) << (8 * j);
        }
        uint8_t *to = sm.q[r / kHalfRows][i] + at;
        *(uint32_t *)to = high;
        *(uint32_t *)(to + kHalfRows * kBox) = low;
    }
    sum = __reduce_add_sync(~0u, sum);
    if (lane == 0) {
        sm.scale[r] = most / 32639.f * a.scale_log2;
        sm.q_sum[r] = (float)sum;
    }
}

/* Eight rows a warp, read four at a time. */
__device__ __forceinline__ void load_q(const decode_args &a, wide_smem &sm, const sequence &s,
                                       int lane)
{
    const int first = (threadIdx.x / 32) * 8;
#pragma unroll 1
    for (int base = first; base < first + 8; base += 4) {
        float4 read[4][4];
#pragma unroll
        for (int n = 0; n < 4; n++) {
            int token, head;
            bool live = wide_query(a, s, base + n, &token, &head);
#pragma unroll
            for (int i = 0; i < 4; i++)
                read[n][i] = live ? load4(a.q, token * a.q.token_stride + head * a.q.head_stride +
                                                   128 * i + 4 * lane)
                                  : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (int n = 0; n < 4; n++) {
            int token, head;
            bool live = wide_query(a, s, base + n, &token, &head);
            store_q(sm, a, read[n], base + n, lane);
            store_q_rope(sm.q_rope, a, base + n, live, token, head, lane);
        }
    }
    if (threadIdx.x < kWideRows) {
        int token, head;
        bool live = wide_query(a, s, threadIdx.x, &token, &head);
        sm.limit[threadIdx.x] = live ? s.length - s.q_len + (token - s.first_row) + 1 : 0;
    }
    fence_async_shared();
}

/* The least limit of the CTA's live rows: tiles below it need no mask. */
__device__ __forceinline__ int least_limit(const decode_args &a, const sequence &s)
{
    int token, head;
    bool live = wide_query(a, s, 0, &token, &head);
    return live ? s.length - s.q_len + (token - s.first_row) + 1 : s.length;
}

/* d[0..15]: high bytes of q, 32 rows; d[16..31]: low bytes. */
__device__ __forceinline__ void wide_scores(wide_smem &sm, int stage, int group, int (&latent)[32],
                                            float (&rope)[16])
{
    uint32_t k = wgmma_descriptor(shared_address(sm.latent[stage]));
    uint32_t q = wgmma_descriptor(shared_address(sm.q[group]));
#pragma unroll
    for (int box = 0; box < 4; box++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            wgmma_s8_n64(latent, k + (box * kBoxBytes + i * 32) / 16,
                         q + (box * kWideRows * kBox + i * 32) / 16, box | i);
    k = wgmma_descriptor(shared_address(sm.rope[stage]));
    q = wgmma_descriptor(shared_address(&sm.q_rope[group * kHalfRows * kBox]));
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma_bf16_n32(rope, k + 2 * i, q + 2 * i, i);
}

__device__ __forceinline__ void wide_accumulate(wide_smem &sm, int group, float (&o)[128])
{
    uint32_t p = wgmma_descriptor(shared_address(sm.p));
    uint32_t v = wgmma_descriptor_wide(shared_address(sm.tile[4 * group]), kBoxBytes);
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma_f16_n256(o, p + 2 * i, v + i * (16 * kBox / 16), 1);
}

/* Scores of 16 rows in log2 units. */
__device__ __forceinline__ void real_scores(const decode_args &a, const wide_smem &sm, int row,
                                            const int *high, const int *low, const float *rope,
                                            float2 z0, float2 z1, float (&v)[8], int c)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float2 scale = *(const float2 *)&sm.scale[row + 8 * i + 2 * c];
        const float2 q_sum = *(const float2 *)&sm.q_sum[row + 8 * i + 2 * c];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int e = 4 * i + j;
            float2 z = j & 2 ? z1 : z0;
            float dot = (float)(256 * high[e] + low[e]);
            v[e] = fmaf(z.x * (j & 1 ? scale.y : scale.x),
                        fmaf(-z.y, j & 1 ? q_sum.y : q_sum.x, dot), rope[e] * a.scale_log2);
        }
    }
}

/* The slow path, once for the whole CTA: new maxima and reference; the rows' factors in scratch. */
__device__ __forceinline__ void raise_wide(scratch &t, const float (&s)[2][8], float z,
                                           softmax_state (&x)[2], int group, int warp, int g, int c)
{
#pragma unroll
    for (int d = 4; d < 32; d *= 2)
        z = fmaxf(z, __shfl_xor_sync(~0u, z, d));
    if (g == 0 && c == 0)
        t.scale[group][warp] = z;
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int e = 4 * (i >> 1) + (i & 1);
            float m = fmaxf(s[k][e], s[k][e + 2]);
#pragma unroll
            for (int d = 4; d < 32; d *= 2)
                m = fmaxf(m, __shfl_xor_sync(~0u, m, d));
            if (g == 0)
                t.most[warp][group * kHalfRows + 16 * k + element_row(e, c)] = m;
        }
    barrier_sync<1, kConsumers>();
    z = fmaxf(fmaxf(t.scale[group][0], t.scale[group][1]),
              fmaxf(t.scale[group][2], t.scale[group][3]));
    const float before = x[0].reference;
    float reference = before;
    if (reference == 0 || z * reference > kScaleLimit) {
        int exponent = z > 0 ? min(max(kScaleExponent - ilogbf(z) - 1, -126), 126) : 0;
        float wanted = __uint_as_float((uint32_t)(127 + exponent) << 23);
        reference = reference == 0 ? wanted : fminf(reference, wanted);
    }
    const float change = before == 0 ? 0.f : reference / before;
    x[0].reference = x[1].reference = z > 0 || before != 0 ? reference : 0.f;
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int r = group * kHalfRows + 16 * k + element_row(4 * (i >> 1) + (i & 1), c);
            float m = fmaxf(fmaxf(t.most[0][r], t.most[1][r]), fmaxf(t.most[2][r], t.most[3][r]));
            m = fmaxf(m, x[k].top[i]);
            float down = exp2_fast(x[k].top[i] - m);
            x[k].slope[i] = down * (x[k].slope[i] + x[k].sum[i] * (x[k].top[i] - m));
            x[k].sum[i] *= down;
            x[k].top[i] = m;
            x[k].zero[i] *= down * change;
            if (warp == 0 && g == 0)
                t.by[r] = down * change;
        }
    barrier_sync<1, kConsumers>();
}

/* Adds up the threads' sums; leaves each row's zero part in scratch and its statistics outside. */
__device__ __forceinline__ void finish_wide(scratch &t, softmax_state (&x)[2], float *stats,
                                            int group, int warp, int g, int c)
{
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int r = group * kHalfRows + 16 * k + element_row(4 * (i >> 1) + (i & 1), c);
            float sum = x[k].sum[i], slope = x[k].slope[i], zero = x[k].zero[i];
#pragma unroll
            for (int d = 4; d < 32; d *= 2) {
                sum += __shfl_xor_sync(~0u, sum, d);
                slope += __shfl_xor_sync(~0u, slope, d);
                zero += __shfl_xor_sync(~0u, zero, d);
            }
            if (g == 0) {
                t.sum[warp][r] = sum;
                t.slope[warp][r] = slope;
                t.zeros[warp][r] = zero;
                if (warp == 0)
                    t.top[r] = x[k].top[i];
            }
        }
    barrier_sync<1, kConsumers>();
    const int r = threadIdx.x;
    if (r < kWideRows) {
        float sum = (t.sum[0][r] + t.sum[1][r]) + (t.sum[2][r] + t.sum[3][r]);
        float slope = (t.slope[0][r] + t.slope[1][r]) + (t.slope[2][r] + t.slope[3][r]);
        t.zero[r] = (t.zeros[0][r] + t.zeros[1][r]) + (t.zeros[2][r] + t.zeros[3][r]);
        *(float4 *)(stats + 4 * r) = make_float4(t.top[r], sum, slope, 0);
    }
    barrier_sync<1, kConsumers>();
}

__device__ __forceinline__ void store_wide(const decode_args &a, wide_smem &sm,
                                           softmax_state (&x)[2], float (&o)[128], int range,
                                           int seq, int group, int warp, int g, int c)
{
    scratch &t = *(scratch *)sm.p;
    int64_t slot = ((int64_t)(range + seq) * a.row_tiles + blockIdx.x % a.row_tiles) * kWideRows;
    barrier_sync<1, kConsumers>(); /* both warpgroups' products have read P */
    finish_wide(t, x, a.split.partial_stats + 4 * slot, group, warp, g, c);
    const float back = x[0].reference == 0 ? 0.f : 1.f / x[0].reference;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = 16 * warp + g + 8 * half;
        const float zero = t.zero[row];
        float *to = a.split.partial_out + (slot + row) * kLatent + 256 * group + 2 * c;
#pragma unroll
        for (int i = 0; i < 32; i++)
            *(float2 *)(to + 8 * i) = make_float2((o[4 * i + 2 * half] - zero) * back,
                                                  (o[4 * i + 2 * half + 1] - zero) * back);
    }
}

/* All the consumers' work on tile n. */
__device__ __forceinline__ void wide_tile(const decode_args &a, wide_smem &sm, const sequence &s,
                                          softmax_state (&x)[2], float (&o)[128], int n, int token,
                                          int least, int group, int warp, int lane)
{
    asm volatile("" : "+r"(lane), "+r"(warp)); /* addresses made anew: kept, they spill */
    const int stage = n & 1, g = lane / 4, c = lane % 4, row = 16 * warp + g;
    mbarrier_wait(shared_address(&sm.full[stage]), (n >> 1) & 1);
    int latent[32];
    float rope[16];
    wgmma_fence();
    wide_scores(sm, stage, group, latent, rope);
    wgmma_commit();
    float4 read0 = sm.scale_zero[stage][row], read1 = sm.scale_zero[stage][row + 8];
    float2 z0 = make_float2(read0.x, read0.y), z1 = make_float2(read1.x, read1.y);
    const uint32_t hidden = sm.hidden[stage];
    wgmma_wait<0>();
    __syncwarp();
    if (lane == 0)
        mbarrier_arrive(shared_address(&sm.empty[stage]));
    float v[2][8], p[2][8];
    uint32_t p16[2][4];
    bool mine = false;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const int rows = group * kHalfRows + 16 * k;
        real_scores(a, sm, rows, latent + 8 * k, latent + 16 + 8 * k, rope + 8 * k,
                    make_float2(read0.x, read0.y), make_float2(read1.x, read1.y), v[k], c);
        if (token + kTile > least || hidden || a.bias)
            mask_scores(a, sm.limit + rows, v[k], z0, z1, s.index, s.length, token + row, row,
                        hidden, c);
        mine |= outgrown(v[k], z0.x, z1.x, x[k]);
    }
    if (n > 0)
        mbarrier_wait(shared_address(&sm.tile_free), (n - 1) & 1); /* the other's P V, too */
    const uint32_t p_at = shared_address(sm.p) + group * kHalfRows * kBox;
#pragma unroll
    for (int k = 0; k < 2; k++)
        store_p(p_at + 16 * k * kBox, v[k], z0.x, z1.x, x[k], p[k], p16[k], warp, lane);
    if (barrier_any<kConsumers>(mine)) {
        scratch &t = *(scratch *)sm.p;
        raise_wide(t, v, fmaxf(z0.x, z1.x), x, group, warp, g, c);
        const float by0 = t.by[row], by1 = t.by[row + 8];
#pragma unroll
        for (int i = 0; i < 128; i++)
            o[i] *= i & 2 ? by1 : by0;
        barrier_sync<1, kConsumers>();
#pragma unroll
        for (int k = 0; k < 2; k++)
            store_p(p_at + 16 * k * kBox, v[k], z0.x, z1.x, x[k], p[k], p16[k], warp, lane);
        barrier_sync<1, kConsumers>();
    }
    mbarrier_wait(shared_address(&sm.tile_full), n & 1);
    wgmma_fence();
    wide_accumulate(sm, group, o);
    wgmma_commit();
#pragma unroll
    for (int k = 0; k < 2; k++) {
#pragma unroll
        for (int e = 0; e < 8; e++) /* made again: kept over the barrier they would spill */
            p[k][e] = exp2_fast(v[k][e] - x[k].top[2 * (e >> 2) + (e & 1)]);
        add_sums(x[k], v[k], p[k]);
        add_zeros(x[k], p16[k], z0.y, z1.y);
    }
    wgmma_wait<0>();
    __syncwarp();
    if (lane == 0)
        mbarrier_arrive(shared_address(&sm.tile_free));
}

__device__ __forceinline__ void consume_range(const decode_args &a, wide_smem &sm, int range,
                                              int &count)
{
    const int group = uniform(threadIdx.x / 128), warp = threadIdx.x / 32 % 4,
              lane = threadIdx.x % 32;
    const int4 r = *(const int4 *)(a.split.ranges + range);
    int tile = uniform(r.x), next_seq = r.z;
    const int end = uniform(r.y), turn = uniform(count - tile);
    while (tile < end) {
        const sequence s = sequence_of(a, next_seq, tile);
        const int seq_end = min(end, uniform(s.tile_end));
        const int least = least_limit(a, s);
        next_seq = s.index + 1;
        barrier_sync<1, kConsumers>();
        load_q(a, sm, s, lane);
        barrier_sync<1, kConsumers>();
        float o[128];
#pragma unroll
        for (int i = 0; i < 128; i++)
            o[i] = 0;
        softmax_state x[2];
        softmax_start(x[0]);
        softmax_start(x[1]);
        for (; tile < seq_end; tile++)
            wide_tile(a, sm, s, x, o, tile + turn, (tile - s.tile_start) * kTile, least, group,
                      warp, lane);
        store_wide(a, sm, x, o, range, s.index, group, warp, lane / 4, lane % 4);
    }
    count = end + turn;
}

__global__ void __launch_bounds__(kAllThreads, 1)
    decode_int8_h64_sm90_kernel(const __grid_constant__ decode_args a,
                                const __grid_constant__ int8_maps maps)
{
    extern __shared__ __align__(1024) uint8_t raw[];
    wide_smem &sm = *(wide_smem *)raw;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            mbarrier_init(shared_address(&sm.full[i]), 1);
            mbarrier_init(shared_address(&sm.empty[i]), kAllThreads / 32);
        }
        mbarrier_init(shared_address(&sm.tile_full), (kAllThreads - kConsumers) / 32);
        mbarrier_init(shared_address(&sm.tile_free), kConsumers / 32);
        mbarrier_init_fence();
    }
    __syncthreads();
    int count = 0;
    const int step = gridDim.x / a.row_tiles;
    if (threadIdx.x >= kConsumers) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 " LKVI_WIDENER_REGISTERS ";");
        for (int range = blockIdx.x / a.row_tiles; range < a.num_ranges; range += step)
            feed_range(a, maps, sm, range, count);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 " LKVI_CONSUMER_REGISTERS ";");
        for (int range = blockIdx.x / a.row_tiles; range < a.num_ranges; range += step)
            consume_range(a, sm, range, count);
    }
    dependents_may_start();
}
} // namespace

extern "C" lkv_status lkvi_decode_int8_h64_sm90(const struct lkvi_attend_params *p,
                                                const struct lkvi_cuda_launch *launch,
                                                cudaStream_t stream)
{
    decode_args a;
    int8_maps maps;
    struct lkvi_sm90_job job;
    lkvi_sm90_job_make(&job, p, launch, kWideRows);
    lkvi_sm90_args(&a, &job, p);
    LKV_TRY(lkvi_sm90_map(&maps.wide, p, launch, kBox, kTile, 1));
    LKV_TRY(lkvi_sm90_map(&maps.narrow, p, launch, 16, kTile, 0));
    return lkvi_sm90_run(&job, p, launch, stream, decode_int8_h64_sm90_kernel, sizeof(wide_smem),
                         kAllThreads, a, maps);
}
