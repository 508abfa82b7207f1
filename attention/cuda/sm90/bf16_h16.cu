/* BF16, up to 16 rows (tokens x heads) a CTA, 512 + 64 dims. In: q, records of 1152 bytes, the
 * split. Out: partials. The one idea: a record is an operand as it lies: boxes of 64 dims land in
 * the 128-byte swizzle, the scores read them K-major and P V reads the same bytes M-major, so
 * nothing is widened or moved. q and P are split into a high and a low bf16 each: one bf16 of q
 * alone would cost the output 4e-3, and the tensor cores have time.
 *
 * One warpgroup and a warp that fetches, two CTAs an SM, one tile in shared memory: while one CTA
 * computes the other's tile is on its way. A tile comes and goes in five groups:
 *   group 0     rope; free after the scores
 *   group 1..4  128 dims each; free, one by one, as P V gets past them */
#include <stddef.h>
#include "attention/cuda/sm90/launch.h"
#include "attention/cuda/sm90/frame.cuh"
#include "attention/cuda/sm90/wgmma_wide.cuh"

using namespace lkvi;

namespace
{
constexpr int kRopeOffset = 1024, kBoxes = 8, kGroups = 5;
constexpr int kAllThreads = kThreads + 32;
constexpr int kOutRow = kLatent + 4; /* of the output in shared memory: rows on different banks */

struct bf16_maps {
    CUtensorMap wide; /* boxes of 128 swizzled bytes */
};

struct alignas(1024) bf16_smem {
    uint8_t latent[kBoxes][kBoxBytes]; /* 64 dims a box */
    uint8_t rope[kBoxBytes];
    uint8_t q[kBoxes + 1]
             [2 * kRows * kBox]; /* 64 dims: rows 0-15 high, 16-31 low parts; rope last */
    uint8_t p[2][kRows * kBox];  /* high, low parts; the low ones' place also has the reductions */
    int limit[kRows];
    uint32_t hidden[2];
    uint64_t full[kGroups], empty[kGroups];
};
static_assert(sizeof(row_state) <= kRows * kBox, "it takes the place of the low parts of P");
static_assert(sizeof(bf16_smem) <= kSmemPerSm / kCtasPerSm - kSmemReserved, "two CTAs an SM");

/* ---- the fetching warp */

__device__ __forceinline__ void fetch_group(const decode_args &a, const bf16_maps &maps,
                                            bf16_smem &sm, const feed &f, int block, int group,
                                            int lane)
{
    const uint32_t bar = shared_address(&sm.full[group]);
    const int at = lane * a.piece;
    if (lane == 0)
        mbarrier_arrive_expect(bar, group ? 2 * kBoxBytes : kBoxBytes);
    __syncwarp();
    if (at >= kTile)
        return;
    if (group == 0) {
        copy_box(shared_address(&sm.rope[at * kBox]), &maps.wide, kRopeOffset, f.row, block, bar);
        return;
    }
    for (int box = 2 * group - 2; box < 2 * group; box++)
        copy_box(shared_address(&sm.latent[box][at * kBox]), &maps.wide, kBox * box, f.row, block,
                 bar);
}

/* `count` tiles were fetched before this range. */
__device__ __forceinline__ void feed_range(const decode_args &a, const bf16_maps &maps,
                                           bf16_smem &sm, int range, int &count, int lane)
{
    feed f;
    feed_start(a, f, range, lane);
    for (; f.tile < f.end; count++) {
        const int block = feed_block(a, f);
        const uint32_t hidden = feed_hidden(a, block < 0, lane);
        if (block < 0 && lane * a.piece < kTile)
            feed_fault(a, f);
        for (int group = 0; group < kGroups; group++) {
            if (count > 0)
                mbarrier_wait(shared_address(&sm.empty[group]), (count - 1) & 1);
            if (group == 0 && lane == 0)
                sm.hidden[count & 1] = hidden;
            fetch_group(a, maps, sm, f, block, group, lane);
        }
        feed_next(a, f, lane);
    }
}

/* ---- the warpgroup */

__device__ __forceinline__ row_state &reductions(bf16_smem &sm)
{
    return *(row_state *)sm.p[1];
}

/* As the frame's row_limits, for rows that lie elsewhere. */
__device__ __forceinline__ int limits(const decode_args &a, const sequence &s, int (&limit)[kRows])
{
    const int lane = threadIdx.x % 32;
    int token, head;
    const bool live = row_query(a, s, lane % kRows, &token, &head);
    const int here = live ? s.length - s.q_len + (token - s.first_row) + 1 : 0;
    if (threadIdx.x < kRows)
        limit[lane] = here;
    return __reduce_min_sync(~0u, live ? here : s.length);
}

/* Four values of row r from dim d on, as high and low bf16, swizzled. */
__device__ __forceinline__ void store4(bf16_smem &sm, int r, int d, float4 x)
{
    const float v[4] = {x.x, x.y, x.z, x.w};
    __nv_bfloat162 high[2], low[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        high[i] = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
        low[i] = __floats2bfloat162_rn(v[2 * i] - __low2float(high[i]),
                                       v[2 * i + 1] - __high2float(high[i]));
    }
    const int byte = 2 * (d % 64);
    uint8_t *to = sm.q[d / 64] + r * kBox + (((byte >> 4) ^ (r & 7)) << 4) + (byte & 15);
    *(uint2 *)to = *(uint2 *)high;
    *(uint2 *)(to + kRows * kBox) = *(uint2 *)low;
}

/* Four rows of q a warp. */
__device__ __forceinline__ void store_q(const decode_args &a, bf16_smem &sm, const q_rows &q,
                                        int warp, int lane)
{
#pragma unroll
    for (int n = 0; n < 4; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            store4(sm, 4 * warp + n, 128 * i + 4 * lane, as_float4(q.x[n][i], a.q.dtype));
        if (lane < 16)
            store4(sm, 4 * warp + n, kLatent + 4 * lane, as_float4(q.rope[n], a.q_rope.dtype));
    }
    fence_async_shared();
}

/* Tokens from `keep` on are no keys: their bytes may be anything, and 0 x NaN is NaN. */
__device__ __forceinline__ void clear_tail(bf16_smem &sm, int keep, uint32_t phase)
{
    for (int group = 1; group < kGroups; group++)
        mbarrier_wait(shared_address(&sm.full[group]), phase);
    for (int i = keep * kBox / 16 + threadIdx.x; i < kBoxBytes / 16; i += kThreads)
#pragma unroll
        for (int box = 0; box < kBoxes; box++)
            *(uint4 *)(sm.latent[box] + 16 * i) = make_uint4(0, 0, 0, 0);
    fence_async_shared();
    barrier_sync<1, kThreads>();
}

/* d[0..7]: products with the high parts of q, d[8..15]: with the low ones. */
__device__ __forceinline__ void scores(bf16_smem &sm, float (&d)[16], uint32_t phase)
{
    constexpr uint32_t q = wgmma_descriptor(kSmemBase + offsetof(bf16_smem, q)),
                       latent = wgmma_descriptor(kSmemBase + offsetof(bf16_smem, latent)),
                       rope = wgmma_descriptor(kSmemBase + offsetof(bf16_smem, rope));
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma_bf16_n32(d, rope + 2 * i, q + (kBoxes * 2 * kRows * kBox + i * 32) / 16, i);
#pragma unroll
    for (int group = 1; group < kGroups; group++) {
        mbarrier_wait(shared_address(&sm.full[group]), phase);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int box = 2 * group - 2 + i / 4;
            wgmma_bf16_n32(d, latent + (box * kBoxBytes + (i % 4) * 32) / 16,
                           q + (box * 2 * kRows * kBox + (i % 4) * 32) / 16, 1);
        }
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_settle(d);
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high)
{
    __nv_bfloat162 x = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&x);
}

/* P of the tile to shared memory as [row][token], in two bf16 as its other operand is bf16. */
__device__ __forceinline__ void store_weights(uint32_t to, const float (&s)[8],
                                              const softmax_state &x, float (&p)[8], int warp,
                                              int lane)
{
    uint32_t high[4], low[4];
#pragma unroll
    for (int i = 0; i < 8; i++)
        p[i] = exp2_fast(s[i] - x.top[2 * (i >> 2) + (i & 1)]);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        high[i] = pack_bf16(p[2 * i], p[2 * i + 1]);
        low[i] = pack_bf16(p[2 * i] - __uint_as_float(high[i] << 16),
                           p[2 * i + 1] - __uint_as_float(high[i] & 0xFFFF0000u));
    }
    const int row = (lane & 7) + 8 * (lane >> 4), chunk = 2 * warp + ((lane >> 3) & 1);
    to += row * kBox + ((chunk ^ (row & 7)) << 4);
    store_transposed(to, high);
    store_transposed(to + kRows * kBox, low);
    fence_async_shared();
}

/* A group of dims is free as soon as all four warps' products have read it. */
__device__ __forceinline__ void release(bf16_smem &sm, int group, int lane)
{
    __syncwarp();
    if (lane == 0)
        mbarrier_arrive(shared_address(&sm.empty[group]));
}

__device__ __forceinline__ void accumulate(float (&o)[8][8])
{
    constexpr uint32_t v = wgmma_descriptor(kSmemBase + offsetof(bf16_smem, latent)),
                       p = wgmma_descriptor(kSmemBase + offsetof(bf16_smem, p));
    wgmma_fence();
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int part = 0; part < 2; part++)
#pragma unroll
                for (int j = 2 * pair; j < 2 * pair + 2; j++)
                    wgmma_bf16_n16_mmajor(o[j], v + (j * kBoxBytes + k * 16 * kBox) / 16,
                                          p + part * (kRows * kBox / 16) + 2 * k);
        wgmma_commit();
    }
}

__device__ __forceinline__ void store_partial(const decode_args &a, bf16_smem &sm, softmax_state &x,
                                              float (&o)[8][8], int range, int seq, int warp, int g,
                                              int c)
{
    int64_t slot = ((int64_t)(range + seq) * a.row_tiles + blockIdx.x % a.row_tiles) * kRows;
    finish_sums(reductions(sm), x, a.split.partial_stats + 4 * slot, warp, g, c);
    float *out = (float *)sm.q; /* 16 rows of 512 dims, padded; all scores are made */
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int e = 4 * (i >> 1) + (i & 1);
        float *to = out + element_row(e, c) * kOutRow + 16 * warp + g;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            to[64 * j] = o[j][e];
            to[64 * j + 8] = o[j][e + 2];
        }
    }
    barrier_sync<1, kThreads>();
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = 4 * warp + n, dim = 128 * i + 4 * (4 * g + c);
            *(float4 *)(a.split.partial_out + (slot + r) * kLatent + dim) =
                *(const float4 *)(out + r * kOutRow + dim);
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
    x.reference = 1;
}

/* The warpgroup's work on tile n of the CTA. */
__device__ __forceinline__ void decode_tile(const decode_args &a, bf16_smem &sm, const sequence &s,
                                            softmax_state &x, float (&o)[8][8], int n, int token,
                                            int least, int warp, int lane)
{
    const int g = lane / 4, c = lane % 4, row = 16 * warp + g;
    mbarrier_wait(shared_address(&sm.full[0]), n & 1);
    const uint32_t hidden = sm.hidden[n & 1];
    if (token + kTile > s.length)
        clear_tail(sm, s.length - token, n & 1);
    float d[16], v[8], p[8];
    scores(sm, d, n & 1);
    release(sm, 0, lane);
#pragma unroll
    for (int e = 0; e < 8; e++)
        v[e] = (d[e] + d[8 + e]) * a.scale_log2;
    float2 none0 = make_float2(1, 0), none1 = none0; /* records without a scale */
    if (token + kTile > least || hidden || a.bias)
        mask_scores(a, sm.limit, v, none0, none1, s.index, s.length, token + row, row, hidden, c);
    bool mine = false;
#pragma unroll
    for (int e = 0; e < 8; e++)
        mine |= v[e] > x.top[2 * (e >> 2) + (e & 1)] + kSlack;
    const uint32_t p_at = shared_address(sm.p);
    store_weights(p_at, v, x, p, warp, lane);
    if (barrier_any<kThreads>(mine)) {
        float by[4];
        raise(reductions(sm), v, 1.f, 1.f, x, by, warp, g, c);
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int e = 0; e < 8; e++)
                o[j][e] *= by[2 * (e >> 2) + (e & 1)];
        barrier_sync<1, kThreads>(); /* the reductions are read */
        store_weights(p_at, v, x, p, warp, lane);
        barrier_sync<1, kThreads>();
    }
    accumulate(o);
    add_sums(x, v, p);
    wgmma_wait<3>();
    release(sm, 1, lane);
    wgmma_wait<2>();
    release(sm, 2, lane);
    wgmma_wait<1>();
    release(sm, 3, lane);
    wgmma_wait<0>();
    release(sm, 4, lane);
}

__device__ __forceinline__ void decode_range(const decode_args &a, bf16_smem &sm, int range,
                                             bool last, int &count)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    feed f; /* only to find the range's place */
    feed_start(a, f, range, lane);
    int tile = uniform(f.tile);
    const int end = uniform(f.end), turn = uniform(count - tile);
    sequence s = f.seq;
    while (tile < end) {
        const int seq_end = min(end, uniform(s.tile_end));
        q_rows q;
        read_q(a, s, warp, lane, q);
        barrier_sync<1, kThreads>();
        const int least = limits(a, s, sm.limit);
        store_q(a, sm, q, warp, lane);
        barrier_sync<1, kThreads>();
        float o[8][8];
        softmax_state x;
        start_row(o, x);
        for (; tile < seq_end; tile++)
            decode_tile(a, sm, s, x, o, tile + turn, (tile - s.tile_start) * kTile, least, warp,
                        lane);
        if (last && tile == end)
            dependents_may_start();
        store_partial(a, sm, x, o, range, s.index, warp, g, c);
        if (tile < end)
            s = sequence_of(a, s.index + 1, tile);
    }
    count = end + turn;
}

__global__ void __launch_bounds__(kAllThreads, kCtasPerSm)
    decode_bf16_h16_sm90_kernel(const __grid_constant__ decode_args a,
                                const __grid_constant__ bf16_maps maps)
{
    extern __shared__ __align__(1024) uint8_t raw[];
    bf16_smem &sm = *(bf16_smem *)raw;
    check_smem_base(raw);
    if (threadIdx.x == 0) {
        prefetch_map(&maps.wide);
        for (int i = 0; i < kGroups; i++) {
            mbarrier_init(shared_address(&sm.full[i]), 1);
            mbarrier_init(shared_address(&sm.empty[i]), kThreads / 32);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    int count = 0;
    const int step = gridDim.x / a.row_tiles;
    for (int range = blockIdx.x / a.row_tiles; range < a.num_ranges; range += step) {
        if (threadIdx.x >= kThreads)
            feed_range(a, maps, sm, range, count, threadIdx.x % 32);
        else
            decode_range(a, sm, range, range + step >= a.num_ranges, count);
    }
}
} // namespace

extern "C" lkv_status lkvi_decode_bf16_h16_sm90(const struct lkvi_attend_params *p,
                                                const struct lkvi_cuda_launch *launch,
                                                cudaStream_t stream)
{
    decode_args a;
    bf16_maps maps;
    struct lkvi_sm90_job job;
    lkvi_sm90_job_make(&job, p, launch, kRows);
    lkvi_sm90_args(&a, &job, p);
    LKV_TRY(lkvi_sm90_map(&maps.wide, p, launch, kBox, kTile, 1));
    return lkvi_sm90_run(&job, p, launch, stream, decode_bf16_h16_sm90_kernel, sizeof(bf16_smem),
                         kAllThreads, a, maps);
}
