/* INT8, up to 16 rows (tokens x heads) a CTA, 512 + 64 dims. In: q, records of 656 bytes, the
 * split. Out: partials. The one idea: raw bytes land as a legal K-major operand, so the scores are
 * int8 products with q split into two int8 (16-bit q) and nothing is dequantised for them; for P V
 * each thread turns the bytes it loads into the register operand (dims x tokens) without a
 * transpose.
 *
 * One warpgroup, two CTAs an SM, two stages. A tile:
 *   all    wait for the stage; scores(t) queue behind P V(t-1), which nobody waits for
 *   all    softmax, P to shared memory; barrier, which also tells whether the slow path must run
 *   warp 0 the stage's rope and scales are used up: fetch those of tile t + 2
 *   warp w P V of dims 128 w ..; its box is used up then: fetch that of tile t + 2
 * So a stage is refilled piece by piece as soon as its last reader is past it; waiting for one
 * whole free stage costs half the bytes in flight. */
#include "attention/cuda/sm90/launch.h"
#include "attention/cuda/sm90/frame.cuh"

using namespace lkvi;

namespace
{
constexpr int kScaleOffset = 512, kRopeOffset = 528;
constexpr uint32_t kHeadBytes = kBoxBytes + kTile * 16; /* rope and scales of a stage */

struct int8_maps {
    CUtensorMap wide, narrow; /* boxes of 128 swizzled bytes; of 16 bytes */
};

__device__ __forceinline__ void fetch_head(const decode_args &a, const int8_maps &maps,
                                           int8_smem &sm, const feed &f, int stage, int lane)
{
    if (f.tile >= f.end)
        return;
    const int block = feed_block(a, f), at = lane * a.piece;
    uint32_t hidden = feed_hidden(a, block < 0, lane), bar = shared_address(&sm.rows.full[stage]);
    if (lane == 0) {
        sm.rows.hidden[stage] = hidden;
        mbarrier_arrive_expect(bar, kHeadBytes);
    }
    __syncwarp();
    if (at >= kTile)
        return;
    copy_box(shared_address(&sm.rope[stage][at * kBox]), &maps.wide, kRopeOffset, f.row, block,
             bar);
    copy_box(shared_address(&sm.scale_zero[stage][at]), &maps.narrow, kScaleOffset, f.row, block,
             bar);
    if (block < 0)
        feed_fault(a, f);
}

__device__ __forceinline__ void fetch_latent(const decode_args &a, const int8_maps &maps,
                                             int8_smem &sm, feed &f, int stage, int warp, int lane)
{
    if (f.tile >= f.end)
        return;
    uint32_t bar = shared_address(&sm.rows.full[stage]);
    const int at = lane * a.piece;
    __syncwarp(); /* every lane is past its last read of the box */
    if (lane == 0)
        mbarrier_arrive_expect(bar, kBoxBytes);
    __syncwarp();
    if (at < kTile)
        copy_box(shared_address(&sm.latent[stage][warp][at * kBox]), &maps.wide, kBox * warp, f.row,
                 feed_block(a, f), bar);
    feed_next(a, f, lane);
}

/* Four rows of q a warp: q = scale * (256 high + low), both int8, swizzled. */
__device__ __forceinline__ void store_q(const decode_args &a, int8_smem &sm, q_rows &q, int warp,
                                        int lane)
{
    widen_q(a, q);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const int r = 4 * warp + n;
        float4 v[4];
        float most = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[i] = as_float4(q.x[n][i], LKV_DTYPE_F32);
            most = fmaxf(most, fmaxf(fmaxf(fabsf(v[i].x), fabsf(v[i].y)),
                                     fmaxf(fabsf(v[i].z), fabsf(v[i].w))));
        }
        most = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(most)));
        const float inverse = most > 0 ? __fdividef(32639.f, most) : 0;
        uint32_t sum = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            /* Low half of the word: y = x + 128. Its high byte is x / 256 rounded, its low byte
             * with the sign bit turned what is left. */
            constexpr float kMagic = 12582912.f + 128.f;
            const uint32_t y[4] = {__float_as_uint(fmaf(v[i].x, inverse, kMagic)),
                                   __float_as_uint(fmaf(v[i].y, inverse, kMagic)),
                                   __float_as_uint(fmaf(v[i].z, inverse, kMagic)),
                                   __float_as_uint(fmaf(v[i].w, inverse, kMagic))};
            const uint32_t two = prmt(y[0], y[1], 0x5140), more = prmt(y[2], y[3], 0x5140);
            const int at = r * kBox + (((lane / 4) ^ (r & 7)) << 4) + (lane % 4) * 4;
            sum += y[0] + y[1] + (y[2] + y[3]);
            *(uint32_t *)(sm.q[i] + at) = prmt(two, more, 0x7632);
            *(uint32_t *)(sm.q[i] + kRows * kBox + at) = prmt(two, more, 0x5410) ^ 0x80808080u;
        }
        sum = __reduce_add_sync(~0u, sum - 16 * 0x4B400080u);
        if (lane == 0) {
            sm.rows.scale[r] = most * (1 / 32639.f) * a.scale_log2;
            sm.rows.q_sum[r] = (float)(int)sum;
        }
    }
    store_q_ropes(sm.q_rope, a, q, warp, lane);
    fence_async_shared();
}

__device__ __forceinline__ void scores(int stage, int (&latent)[16], float (&rope)[8])
{
    constexpr uint32_t latent_at = wgmma_descriptor(kSmemBase + offsetof(int8_smem, latent)),
                       rope_at = wgmma_descriptor(kSmemBase + offsetof(int8_smem, rope)),
                       q_at = wgmma_descriptor(kSmemBase + offsetof(int8_smem, q)),
                       q_rope_at = wgmma_descriptor(kSmemBase + offsetof(int8_smem, q_rope));
    stage = uniform(stage);
    uint32_t k = latent_at + stage * (4 * kBoxBytes / 16), q = q_at;
#pragma unroll
    for (int box = 0; box < 4; box++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            wgmma_s8_n32(latent, k + (box * kBoxBytes + i * 32) / 16,
                         q + (box * 32 * kBox + i * 32) / 16, box | i);
    k = rope_at + stage * (kBoxBytes / 16);
    q = q_rope_at;
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma_bf16_n16(rope, k + 2 * i, q + 2 * i, i);
}

/* Words x, y: four dims of token t and of t + 1. Out: for each dim the fp16 pair (t, t + 1). A byte
 * with its sign bit turned is the low mantissa byte of 1024 + 128 + value. */
__device__ __forceinline__ void widen(uint32_t x, uint32_t y, uint32_t &d0, uint32_t &d1,
                                      uint32_t &d2, uint32_t &d3)
{
    constexpr uint32_t lift = 0x64806480u, top = 0x64646464u;
    x ^= 0x80808080u;
    y ^= 0x80808080u;
    uint32_t low = prmt(x, y, 0x5140), high = prmt(x, y, 0x7362);
    d0 = half2_sub(prmt(low, top, 0x4140), lift);
    d1 = half2_sub(prmt(low, top, 0x4342), lift);
    d2 = half2_sub(prmt(high, top, 0x4140), lift);
    d3 = half2_sub(prmt(high, top, 0x4342), lift);
}

/* o[64 j + .., row] += V P of 64 tokens. Thread (g, c) brings dims 16 g .. 16 g + 15 of its warp's
 * box and tokens 2c, 2c+1, 2c+8, 2c+9 of each 16: dim 16 g + 4 (q % 2) ... sits on operand row g
 * (words 0, 1) or g + 8 (words 2, 3) of product j = 4 (word % 2) + byte. */
__device__ __forceinline__ void accumulate(const uint8_t *box, int stage, float (&o)[8][8], int g,
                                           int c)
{
    constexpr uint32_t p_at = wgmma_descriptor(kSmemBase + offsetof(int8_smem, p));
    const uint32_t b = uniform(p_at + stage * (kRows * kBox / 16));
    uint32_t a[2][8][4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if (k >= 2)
            wgmma_wait<1>();
        const uint8_t *row = box + (16 * k + 2 * c) * kBox;
        int even = (g ^ (2 * c)) << 4, odd = (g ^ (2 * c + 1)) << 4;
        uint4 v[4] = {*(const uint4 *)(row + even), *(const uint4 *)(row + kBox + odd),
                      *(const uint4 *)(row + 8 * kBox + even),
                      *(const uint4 *)(row + 9 * kBox + odd)};
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            const uint4 x = v[2 * pair], y = v[2 * pair + 1];
            uint32_t(&f)[8][4] = a[k & 1];
            widen(x.x, y.x, f[0][2 * pair], f[1][2 * pair], f[2][2 * pair], f[3][2 * pair]);
            widen(x.y, y.y, f[4][2 * pair], f[5][2 * pair], f[6][2 * pair], f[7][2 * pair]);
            widen(x.z, y.z, f[0][2 * pair + 1], f[1][2 * pair + 1], f[2][2 * pair + 1],
                  f[3][2 * pair + 1]);
            widen(x.w, y.w, f[4][2 * pair + 1], f[5][2 * pair + 1], f[6][2 * pair + 1],
                  f[7][2 * pair + 1]);
        }
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < 8; j++)
            wgmma_f16_n16(o[j], a[k & 1][j], b + 2 * k, 1);
        wgmma_commit();
    }
}

__device__ __forceinline__ void store_partial(const decode_args &a, int8_smem &sm, softmax_state &x,
                                              float (&o)[8][8], int range, int seq, int warp, int g,
                                              int c)
{
    int64_t slot = ((int64_t)(range + seq) * a.row_tiles + row_tile(a)) * kRows;
    const int lane = 4 * g + c;
    finish_sums(sm.rows, x, a.split.partial_stats + 4 * slot, warp, g, c);
    const float back = x.reference == 0 ? 0.f : 1.f / x.reference;
    float4 *own = (float4 *)sm.q[warp]; /* 8 rows x 128 dims; all scores are made */
    float *to = a.split.partial_out + slot * kLatent + 128 * warp + 4 * lane;
#pragma unroll
    for (int k = 0; k < 2; k++) { /* rows 8 k .. 8 k + 7 */
        __syncwarp();
#pragma unroll
        for (int odd = 0; odd < 2; odd++) {
            const int e = 4 * k + odd, i = 2 * k + odd;
#pragma unroll
            for (int part = 0; part < 4; part++) { /* dims 16 g + 4 part .. */
                const int j = 4 * (part & 1), h = 2 * (part >> 1);
                own[(2 * c + odd) * 32 + ((4 * g + part) ^ c)] = make_float4(
                    (o[j][e + h] - x.zero[i]) * back, (o[j + 1][e + h] - x.zero[i]) * back,
                    (o[j + 2][e + h] - x.zero[i]) * back, (o[j + 3][e + h] - x.zero[i]) * back);
            }
        }
        __syncwarp();
#pragma unroll
        for (int r = 0; r < 8; r++)
            *(float4 *)(to + (8 * k + r) * kLatent) = own[r * 32 + (lane ^ (r >> 1))];
    }
}

__device__ __forceinline__ void start_row(float (&o)[8][8], softmax_state &x)
{
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int e = 0; e < 8; e++)
            o[j][e] = 0;
    softmax_start(x);
}

__device__ __forceinline__ void decode_range(const decode_args &a, const int8_maps &maps,
                                             int8_smem &sm, const range_record &record, int range,
                                             bool last, int &count)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    feed f;
    feed_start(a, f, record, lane);
    int tile = uniform(f.tile);
    /* tile + turn counts this CTA's tiles: its last bit is the stage, the next one the phase. */
    const int turn = uniform(count - f.tile);
    const int end = uniform(f.end);
    sequence s = f.seq;
    for (bool first = true; tile < end; first = false) {
        q_rows q;
        read_q(a, s, warp, lane, q);
        if (first) {
            if (warp == 0)
                fetch_head(a, maps, sm, f, count & 1, lane);
            fetch_latent(a, maps, sm, f, count & 1, warp, lane);
        }
        const int seq_end = min(end, uniform(s.tile_end));
        barrier_sync<1, kThreads>();
        const int least = row_limits(a, s, sm.rows);
        store_q(a, sm, q, warp, lane);
        barrier_sync<1, kThreads>();
        /* The copies' queue is long at the start: q is made while the first ones run. */
        if (first) {
            if (warp == 0)
                fetch_head(a, maps, sm, f, (count + 1) & 1, lane);
            fetch_latent(a, maps, sm, f, (count + 1) & 1, warp, lane);
        }
        float o[8][8];
        softmax_state x;
        start_row(o, x);
        float scale[4], q_sum[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int r = element_row(4 * (i >> 1) + (i & 1), c);
            scale[i] = sm.rows.scale[r];
            q_sum[i] = sm.rows.q_sum[r];
        }
        for (; tile < seq_end; tile++) {
            const int stage = (tile + turn) & 1;
            mbarrier_wait(shared_address(&sm.rows.full[stage]), ((tile + turn) >> 1) & 1);
            int latent[16];
            float rope[8];
            wgmma_fence();
            scores(stage, latent, rope);
            wgmma_commit();
            const int row = 16 * warp + g, token = (tile - s.tile_start) * kTile;
            float4 read0 = sm.scale_zero[stage][row], read1 = sm.scale_zero[stage][row + 8];
            float2 z0 = make_float2(read0.x, read0.y), z1 = make_float2(read1.x, read1.y);
            uint32_t hidden = sm.rows.hidden[stage];
            wgmma_wait<0>();
            float v[8], p[8];
            uint32_t p16[4];
#pragma unroll
            for (int e = 0; e < 8; e++) {
                int i = 2 * (e >> 2) + (e & 1);
                float2 z = e & 2 ? z1 : z0;
                float dot = (float)(256 * latent[e] + latent[8 + e]);
                v[e] = fmaf(z.x * scale[i], fmaf(-z.y, q_sum[i], dot), rope[e] * a.scale_log2);
            }
            if (token + kTile > least || hidden || a.bias)
                mask_scores(a, sm.rows.limit, v, z0, z1, s.index, s.length, token + row, row,
                            hidden, c);
            const uint32_t p_at = shared_address(sm.p[stage]);
            bool mine = outgrown(v, z0.x, z1.x, x);
            if (x.reference != 0) /* else the slow path makes P */
                store_p(p_at, v, z0.x, z1.x, x, p, p16, warp, lane);
            bool slow = barrier_any<kThreads>(mine);
            if (warp == 0)
                fetch_head(a, maps, sm, f, stage, lane);
            if (slow) {
                float by[4];
                raise(sm.rows, v, z0.x, z1.x, x, by, warp, g, c);
#pragma unroll
                for (int j = 0; j < 8; j++)
#pragma unroll
                    for (int e = 0; e < 8; e++)
                        o[j][e] *= by[2 * (e >> 2) + (e & 1)];
                store_p(p_at, v, z0.x, z1.x, x, p, p16, warp, lane);
                barrier_sync<1, kThreads>();
            }
            add_sums(x, v, p);
            add_zeros(x, p16, z0.y, z1.y);
            accumulate(sm.latent[stage][warp], stage, o, g, c);
            fetch_latent(a, maps, sm, f, stage, warp, lane);
        }
        wgmma_wait<0>();
        if (last && tile == end)
            dependents_may_start();
        store_partial(a, sm, x, o, range, s.index, warp, g, c);
        if (tile < end)
            s = sequence_of(a, s.index + 1, tile);
        barrier_sync<1, kThreads>();
    }
    count = end + turn;
}

__global__ void __launch_bounds__(kThreads, kCtasPerSm)
    decode_int8_h16_sm90_kernel(const __grid_constant__ decode_args a,
                                const __grid_constant__ int8_maps maps)
{
    extern __shared__ __align__(1024) uint8_t raw[];
    int8_smem &sm = *(int8_smem *)raw;
    check_smem_base(raw);
    const int step = gridDim.x / a.row_tiles;
    int range = first_range(a);
    range_record record = read_range(a, range); /* under way while the barriers are made */
    if (threadIdx.x == 0) {
        prefetch_map(&maps.wide);
        prefetch_map(&maps.narrow);
        for (int i = 0; i < 2; i++)
            mbarrier_init(shared_address(&sm.rows.full[i]), 5); /* four boxes, one head */
        mbarrier_init_fence();
    }
    __syncthreads();
    int count = 0;
    for (; range < a.num_ranges; range += step) {
        if (range >= step)
            record = read_range(a, range);
        decode_range(a, maps, sm, record, range, range + step >= a.num_ranges, count);
    }
}
} // namespace

extern "C" lkv_status lkvi_decode_int8_h16_sm90(const struct lkvi_attend_params *p,
                                                const struct lkvi_cuda_launch *launch,
                                                cudaStream_t stream)
{
    decode_args a;
    int8_maps maps;
    struct lkvi_sm90_job job;
    lkvi_sm90_job_make(&job, p, launch, kRows);
    lkvi_sm90_args(&a, &job, p);
    LKV_TRY(lkvi_sm90_map(&maps.wide, p, launch, kBox, kTile, 1));
    LKV_TRY(lkvi_sm90_map(&maps.narrow, p, launch, 16, kTile, 0));
    return lkvi_sm90_run(&job, p, launch, stream, decode_int8_h16_sm90_kernel, sizeof(int8_smem),
                         kThreads, a, maps);
}
