/* FP8, up to 16 rows (tokens x heads) a CTA, 512 + 64 dims. In: q, records of 656 bytes, the split.
 * Out: partials. The one idea: both products take the records from registers, so raw records lie in
 * shared memory as they lie in the cache and come by plain bulk copies, which touch each sector
 * once; 656 bytes are 41 chunks of 16, an odd number, so rows fall on different banks unswizzled.
 *   scores  [tokens x dims]: a 16-byte load brings four k-positions of four steps; cvt makes fp16;
 *           a group of 128 dims has accumulators of its own, scaled afterwards in fp32
 *   P V     [dims x tokens]: as for INT8, the bytes of two tokens interleaved, cvt, times the
 *           token's scale in the warp's group of 128 dims, relative to a power of two in P
 *
 * One warpgroup, two CTAs an SM, two stages of four pieces of 16 tokens. A tile:
 *   warp w  wait for piece w; scores of its tokens; softmax; P and relative scales to shared memory
 *   all     barrier, which also tells whether the slow path must run
 *   warp w  P V of dims 128 w ..; with piece w read by all warps: fetch that of tile t + 2 */
#include <stddef.h>
#include "attention/cuda/sm90/fp8.cuh"
#include "attention/cuda/sm90/launch.h"

using namespace lkvi;

namespace
{
struct alignas(1024) fp8_smem {
    uint8_t q[8][kRows * kBox]; /* fp16, 64 k-positions a box */
    uint8_t q_rope[kRows * kBox];
    uint8_t p[2][kRows * kBox];
    uint8_t records[2][kTile * kRecord];
    __half relative[2][4][kRelativeRow]; /* scale of a token's group over the power of two in P */
    row_state rows;
    uint64_t full[2][kPieces], empty[2][kPieces];
};
static_assert(sizeof(fp8_smem) <= kSmemPerSm / kCtasPerSm - kSmemReserved, "two CTAs an SM");

/* Warp w fetches piece w of tile f.tile, the n-th of this CTA. Bit n % 2 of `absent`: there is no
 * such block, nothing was copied. */
__device__ __forceinline__ void fetch(const decode_args &a, const fp8_pool &pool, fp8_smem &sm,
                                      feed &f, uint32_t &absent, int n, int warp, int lane)
{
    if (f.tile >= f.end)
        return;
    const int stage = n & 1;
    const bool missing = feed_block(a, f) < 0;
    absent = (absent & ~(1u << stage)) | (missing ? 1u << stage : 0u);
    if (lane == 0) {
        if (n >= 2)
            mbarrier_wait(shared_address(&sm.empty[stage][warp]), ((n >> 1) - 1) & 1);
        fetch_piece(a, pool, f, shared_address(sm.records[stage] + warp * kPieceBytes),
                    shared_address(&sm.full[stage][warp]));
    }
    __syncwarp();
    feed_next(a, f, warp);
}

/* Four rows of q a warp as fp16 of |.| <= 1, in the order that fp8.cuh states. */
__device__ __forceinline__ void store_q(const decode_args &a, fp8_smem &sm, const q_rows &q,
                                        int warp, int lane)
{
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const int r = 4 * warp + n;
        float4 v[4];
        float most = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[i] = as_float4(q.x[n][i], a.q.dtype);
            most = fmaxf(most, fmaxf(fmaxf(fabsf(v[i].x), fabsf(v[i].y)),
                                     fmaxf(fabsf(v[i].z), fabsf(v[i].w))));
        }
        most = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(most)));
        const float inverse = most > 0 ? 1.f / most : 0;
#pragma unroll
        for (int b = 0; b < 4; b++) { /* four dims: one step, hi 0 and 1 */
            const float4 x = v[b];
            const int chunk = lane >> 2, i = lane & 3, m = chunk & 1, c = chunk >> 1;
#pragma unroll
            for (int hi = 0; hi < 2; hi++)
                *(uint32_t *)(sm.q[2 * b + m] + r * kBox + (((2 * i + hi) ^ (r & 7)) << 4) +
                              4 * c) = hi ? pack_half2(x.z * inverse, x.w * inverse)
                                          : pack_half2(x.x * inverse, x.y * inverse);
        }
        if (lane < 16) {
            const float4 x = as_float4(q.rope[n], a.q_rope.dtype);
            const int chunk = lane >> 1, m = chunk & 1, c = chunk >> 1, step = 2 * m + (lane & 1);
            __nv_bfloat162 two[2] = {__floats2bfloat162_rn(x.x, x.y),
                                     __floats2bfloat162_rn(x.z, x.w)};
#pragma unroll
            for (int hi = 0; hi < 2; hi++)
                *(__nv_bfloat162 *)(sm.q_rope + r * kBox + (((2 * step + hi) ^ (r & 7)) << 4) +
                                    4 * c) = two[hi];
        }
        if (lane == 0)
            sm.rows.scale[r] = most * a.scale_log2;
    }
    fence_async_shared();
}

/* Products of the warp's 16 tokens with q: d[group] of 128 latent dims, rope. row: the record of
 * the thread's first token. */
__device__ __forceinline__ void scores(const uint8_t *row, float (&d)[4][8], float (&rope)[8],
                                       int c)
{
    constexpr uint32_t q = wgmma_descriptor(kSmemBase + offsetof(fp8_smem, q)),
                       q_rope = wgmma_descriptor(kSmemBase + offsetof(fp8_smem, q_rope));
    uint32_t k[4][4], a[2][8][4];
    wgmma_wait<0>(); /* P V of the last tile; ptxas cannot mix the two products' registers */
    load_rope(row, k, c);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma_bf16_n16(rope, k[i], q_rope + 2 * i, i);
    wgmma_commit();
#pragma unroll
    for (int b = 0; b < 4; b++) {
        if (b >= 2)
            wgmma_wait<1>();
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int m = 0; m < 2; m++) {
                uint4 v = *(const uint4 *)(row + 8 * half * kRecord + 128 * b + 16 * (2 * c + m));
                const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    a[b & 1][4 * m + i][half] = widen_low(word[i]);
                    a[b & 1][4 * m + i][2 + half] = widen_high(word[i]);
                }
            }
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 8; i++)
            wgmma_f16_n16(d[b], a[b & 1][i],
                          q + ((2 * b + (i >> 2)) * kRows * kBox + (i & 3) * 32) / 16, i);
        wgmma_commit();
    }
}

/* o[.., row] += V P of 64 tokens. Thread (g, c) brings dims 16 g .. 16 g + 15 of its warp's group
 * and tokens 2c, 2c+1, 2c+8, 2c+9 of each 16: dim 16 g + j sits on operand row g, dim 16 g + 8 + j
 * on row g + 8 of product j. */
__device__ __forceinline__ void accumulate(fp8_smem &sm, float (&o)[8][8], int n, int warp,
                                           int lane)
{
    const int stage = n & 1, g = lane / 4, c = lane % 4;
    constexpr uint32_t p_at = wgmma_descriptor(kSmemBase + offsetof(fp8_smem, p));
    const uint32_t b = uniform(p_at + stage * (kRows * kBox / 16));
    const uint8_t *records = sm.records[stage] + 2 * c * kRecord + 128 * warp + 16 * g;
    const __half *relative = sm.relative[stage][warp] + 2 * c;
    uint32_t a[2][8][4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if (k >= 2)
            wgmma_wait<1>();
        /* Piece k has arrived: its warp waited for it before the barrier. */
        const uint8_t *row = records + 16 * k * kRecord;
        uint4 v[4] = {*(const uint4 *)row, *(const uint4 *)(row + kRecord),
                      *(const uint4 *)(row + 8 * kRecord), *(const uint4 *)(row + 9 * kRecord)};
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            const uint4 x = v[2 * pair], y = v[2 * pair + 1];
            const uint32_t s = *(const uint32_t *)(relative + 16 * k + 8 * pair);
            uint32_t(&f)[8][4] = a[k & 1];
            widen(x.x, y.x, s, f[0][2 * pair], f[1][2 * pair], f[2][2 * pair], f[3][2 * pair]);
            widen(x.y, y.y, s, f[4][2 * pair], f[5][2 * pair], f[6][2 * pair], f[7][2 * pair]);
            widen(x.z, y.z, s, f[0][2 * pair + 1], f[1][2 * pair + 1], f[2][2 * pair + 1],
                  f[3][2 * pair + 1]);
            widen(x.w, y.w, s, f[4][2 * pair + 1], f[5][2 * pair + 1], f[6][2 * pair + 1],
                  f[7][2 * pair + 1]);
        }
        __syncwarp();
        if (lane == 0)
            mbarrier_arrive(shared_address(&sm.empty[stage][k]));
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < 8; j++)
            wgmma_f16_n16(o[j], a[k & 1][j], b + 2 * k, 1);
        wgmma_commit();
    }
}

__device__ __forceinline__ void store_partial(const decode_args &a, fp8_smem &sm, softmax_state &x,
                                              float (&o)[8][8], int range, int seq, int warp, int g,
                                              int c)
{
    int64_t slot = ((int64_t)(range + seq) * a.row_tiles + blockIdx.x % a.row_tiles) * kRows;
    finish_sums(sm.rows, x, a.split.partial_stats + 4 * slot, warp, g, c);
    const int lane = 4 * g + c;
    const float back = x.reference == 0 ? 0.f : 1.f / x.reference;
    float4 *own = (float4 *)sm.q[2 * warp]; /* 8 rows x 128 dims; all scores are made */
    float *to = a.split.partial_out + slot * kLatent + 128 * warp + 4 * lane;
#pragma unroll
    for (int k = 0; k < 2; k++) { /* rows 8 k .. 8 k + 7 */
        __syncwarp();
#pragma unroll
        for (int odd = 0; odd < 2; odd++) {
            const int e = 4 * k + odd;
#pragma unroll
            for (int part = 0; part < 4; part++) { /* dims 16 g + 4 part .. */
                const int j = 4 * (part & 1), h = e + 2 * (part >> 1);
                own[(2 * c + odd) * 32 + ((4 * g + part) ^ c)] = make_float4(
                    o[j][h] * back, o[j + 1][h] * back, o[j + 2][h] * back, o[j + 3][h] * back);
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

/* Tile n of the CTA. absent: the warp's piece has no block. */
__device__ __forceinline__ void decode_tile(const decode_args &a, fp8_smem &sm, const sequence &s,
                                            softmax_state &x, float (&o)[8][8],
                                            const float (&scale)[4], int n, int token, int least,
                                            bool absent, int warp, int lane)
{
    const int stage = n & 1, g = lane / 4, c = lane % 4, row = kPiece * warp + g;
    uint8_t *piece = sm.records[stage] + warp * kPieceBytes;
    mbarrier_wait(shared_address(&sm.full[stage][warp]), (n >> 1) & 1);
    if (absent || token + kTile > s.length)
        clear_tokens(piece, absent ? 0 : min(s.length - token - kPiece * warp, kPiece), lane);
    const uint8_t *record = piece + g * kRecord;
    float d[4][8], rope[8], v[8], p[8];
    uint32_t p16[4];
    scores(record, d, rope, c);
    const float4 read0 = *(const float4 *)(record + kScaleOffset);
    const float4 read1 = *(const float4 *)(record + 8 * kRecord + kScaleOffset);
    float2 z0 = make_float2(split_scale(read0, &sm.relative[stage][c][row], c), 0);
    float2 z1 = make_float2(split_scale(read1, &sm.relative[stage][c][row + 8], c), 0);
    wgmma_wait<0>();
    wgmma_settle(rope);
#pragma unroll
    for (int b = 0; b < 4; b++)
        wgmma_settle(d[b]);
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const float4 z = e & 2 ? read1 : read0;
        float dot = fmaf(z.w, d[3][e], fmaf(z.z, d[2][e], fmaf(z.y, d[1][e], z.x * d[0][e])));
        v[e] = fmaf(scale[2 * (e >> 2) + (e & 1)], dot, rope[e] * a.scale_log2);
    }
    if (token + kTile > least || absent || a.bias)
        mask_scores(a, sm.rows.limit, v, z0, z1, s.index, s.length, token + row, row,
                    absent ? 15 : 0, c);
    const uint32_t p_at = shared_address(sm.p[stage]);
    bool mine = outgrown(v, z0.x, z1.x, x);
    store_p(p_at, v, z0.x, z1.x, x, p, p16, warp, lane);
    if (barrier_any<kThreads>(mine)) {
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
    accumulate(sm, o, n, warp, lane);
}

__device__ __forceinline__ void decode_range(const decode_args &a, const fp8_pool &pool,
                                             fp8_smem &sm, int range, bool last, int &count)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    feed f;
    feed_start(a, f, range, warp);
    int tile = uniform(f.tile);
    const int end = uniform(f.end), turn = uniform(count - tile);
    uint32_t absent = 0;
    sequence s = f.seq;
    for (bool first = true; tile < end; first = false) {
        q_rows q;
        read_q(a, s, warp, lane, q);
        if (first) /* q is on its way before the block id is looked at */
            for (int i = 0; i < 2; i++)
                fetch(a, pool, sm, f, absent, count + i, warp, lane);
        const int seq_end = min(end, uniform(s.tile_end));
        barrier_sync<1, kThreads>();
        const int least = row_limits(a, s, sm.rows);
        store_q(a, sm, q, warp, lane);
        barrier_sync<1, kThreads>();
        float o[8][8], scale[4];
        softmax_state x;
        start_row(o, x);
#pragma unroll
        for (int i = 0; i < 4; i++)
            scale[i] = sm.rows.scale[element_row(4 * (i >> 1) + (i & 1), c)];
        for (; tile < seq_end; tile++) {
            const int n = tile + turn;
            decode_tile(a, sm, s, x, o, scale, n, (tile - s.tile_start) * kTile, least,
                        absent >> (n & 1) & 1, warp, lane);
            fetch(a, pool, sm, f, absent, n + 2, warp, lane);
        }
        wgmma_wait<0>();
        if (last && tile == end)
            dependents_may_start();
        store_partial(a, sm, x, o, range, s.index, warp, g, c);
        if (tile < end)
            s = sequence_of(a, s.index + 1, tile);
    }
    count = end + turn;
}

__global__ void __launch_bounds__(kThreads, kCtasPerSm)
    decode_fp8_h16_sm90_kernel(const __grid_constant__ decode_args a,
                               const __grid_constant__ fp8_pool pool)
{
    extern __shared__ __align__(1024) uint8_t raw[];
    fp8_smem &sm = *(fp8_smem *)raw;
    check_smem_base(raw);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2 * kPieces; i++) {
            mbarrier_init(shared_address(&sm.full[0][i]), 1);
            mbarrier_init(shared_address(&sm.empty[0][i]), kThreads / 32);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    int count = 0;
    const int step = gridDim.x / a.row_tiles;
    for (int range = blockIdx.x / a.row_tiles; range < a.num_ranges; range += step)
        decode_range(a, pool, sm, range, range + step >= a.num_ranges, count);
}
} // namespace

extern "C" lkv_status lkvi_decode_fp8_h16_sm90(const struct lkvi_attend_params *p,
                                               const struct lkvi_cuda_launch *launch,
                                               cudaStream_t stream)
{
    decode_args a;
    struct lkvi_sm90_job job;
    const fp8_pool pool = {(const uint8_t *)p->store.base, p->store.block_stride};
    lkvi_sm90_job_make(&job, p, launch, kRows);
    lkvi_sm90_args(&a, &job, p);
    a.piece = kPiece;
    return lkvi_sm90_run(&job, p, launch, stream, decode_fp8_h16_sm90_kernel, sizeof(fp8_smem),
                         kThreads, a, pool);
}
