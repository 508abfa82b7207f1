/* FP8, up to 64 rows (tokens x heads) a CTA, 512 + 64 dims. In: q, records of 656 bytes, the split.
 * Out: partials. Scores and softmax are the frame's (tile64.cuh). The one idea: no fp16 tile is
 * stored; as in the 16-row kernel either product widens raw records into its own register operand,
 * so that all of the frame's tile space holds raw records, three stages of 64 tokens.
 *
 *   maker    waits for its 16 tokens; widens them [tokens x dims], scores, softmax, P; then, with
 *            P V (n - 1) done, fetches tile n + 2 into that one's stage
 *   adders   256 dims each, 64 a warp: widen [dims x tokens], P V
 *
 * A value is widened times its group's scale relative to a power of two near the token's largest
 * scale; that power goes into the score and into P. */
#include "attention/cuda/sm90/fp8.cuh"
#include "attention/cuda/sm90/launch.h"
#include "attention/cuda/sm90/tile64.cuh"

using namespace lkvi;

namespace
{
constexpr int kStages = 3, kStageBytes = kTile * kRecord;
/* Registers a thread: 152 + 2 x 176 is what three warpgroups have at a launch of 168. */
constexpr int kMakerRegisters = 152, kAdderRegisters = 176;

struct fp8_wide_smem : tile64_smem {
    tile64_state state;
    uint64_t full[kStages][kPieces];
    __half relative[kStages][4][kRelativeRow];
};
static_assert(sizeof(fp8_wide_smem) <= 227 * 1024, "one CTA an SM");
static_assert(kStages * kStageBytes <= sizeof(tile64_smem::tile), "raw records, not fp16 tiles");

struct fp8_layout {
    static __device__ __forceinline__ void store_latent(uint8_t *row, int turn, int d, float4 x,
                                                        float by)
    {
        const int chunk = (d >> 4) & 7, i = (d >> 2) & 3;
        uint8_t *to = row + (2 * (d >> 7) + (chunk & 1)) * (kWideRows * kBox) + 4 * (chunk >> 1);
#pragma unroll
        for (int hi = 0; hi < 2; hi++)
            *(uint32_t *)(to + (((2 * i + hi) ^ turn) << 4)) =
                hi ? pack_half2(x.z * by, x.w * by) : pack_half2(x.x * by, x.y * by);
    }
    static __device__ __forceinline__ void store_rope(uint8_t *row, int turn, int d, float4 x,
                                                      float by)
    {
        const int chunk = d >> 3, step = 2 * (chunk & 1) + ((d >> 2) & 1);
        const __nv_bfloat162 two[2] = {__floats2bfloat162_rn(x.x * by, x.y * by),
                                       __floats2bfloat162_rn(x.z * by, x.w * by)};
#pragma unroll
        for (int hi = 0; hi < 2; hi++)
            *(__nv_bfloat162 *)(row + (((2 * step + hi) ^ turn) << 4) + 4 * (chunk >> 1)) = two[hi];
    }
};

__device__ __forceinline__ uint8_t *stage_records(fp8_wide_smem &sm, int stage)
{
    return sm.tile[0][0] + stage * kStageBytes;
}

/* ---- maker */

/* Warp w fetches piece w of the feed's tile. Bit `stage` of `absent`: there is no such block. */
__device__ __forceinline__ void fetch(const decode_args &a, const fp8_pool &pool, fp8_wide_smem &sm,
                                      feed &f, uint32_t &absent, int stage)
{
    const int warp = thread_now() / 32, lane = thread_now() % 32;
    if (f.tile >= f.end)
        return;
    const bool missing = feed_block(a, f) < 0;
    absent = (absent & ~(1u << stage)) | (missing ? 1u << stage : 0u);
    if (lane == 0)
        fetch_piece(a, pool, f, shared_address(stage_records(sm, stage) + warp * kPieceBytes),
                    shared_address(&sm.full[stage][warp]));
    __syncwarp();
    feed_next(a, f, warp);
}

/* RoPE joins the sums of the latent: its keys over the token's power of two, exact in bf16. */
__device__ __forceinline__ void rope_scores(const uint8_t *row, float (&dot)[32],
                                            const float (&inverse)[2], int c)
{
    const uint32_t q = tile64_descriptor(offsetof(tile64_smem, q_rope));
    uint32_t k[4][4];
    load_rope(row, k, c);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t by = prmt(__float_as_uint(inverse[half]), 0, 0x3232);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = half; j < 4; j += 2)
                k[i][j] = bf16x2_mul(k[i][j], by);
    }
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma_bf16_n64(dot, k[i], q + 2 * i, i);
    wgmma_commit();
}

/* row: the record of the thread's first token; by: relative scales of its two tokens, [half], two
 * groups of 128 dims each. */
__device__ __forceinline__ void latent_scores(const uint8_t *row, float (&dot)[32],
                                              const uint32_t (&by)[2][2], int c)
{
    const uint32_t q = tile64_descriptor(offsetof(tile64_smem, q));
    uint32_t part[2][4][4];
#pragma unroll
    for (int m = 0; m < 8; m++) {
        uint32_t(&k)[4][4] = part[m & 1];
        wgmma_wait<1>();
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint4 v = *(const uint4 *)(row + 8 * half * kRecord + 128 * (m >> 1) +
                                             16 * (2 * c + (m & 1)));
            const uint32_t word[4] = {v.x, v.y, v.z, v.w};
            const uint32_t scale = prmt(by[half][m >> 2], 0, m & 2 ? 0x3232 : 0x1010);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                k[i][half] = half2_mul(widen_low(word[i]), scale);
                k[i][2 + half] = half2_mul(widen_high(word[i]), scale);
            }
        }
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++)
            wgmma_f16_n64(dot, k[i], q + (m * kWideRows * kBox + i * 32) / 16, 1);
        wgmma_commit();
    }
}

/* All the maker's work on tile n, whose first token is `first`. */
__device__ __forceinline__ void make_tile(const decode_args &a, fp8_wide_smem &sm,
                                          const sequence &s, tile64_sums &sums, int n, int stage,
                                          uint32_t phase, bool absent, int first, int least)
{
    const int warp = thread_now() / 32, lane = thread_now() % 32;
    const int c = lane % 4, row = kPiece * warp + lane / 4, token = first + row;
    uint8_t *piece = stage_records(sm, stage) + warp * kPieceBytes;
    mbarrier_wait(shared_address(&sm.full[stage][warp]), phase);
    if (absent || first + kTile > s.length)
        clear_tokens(piece, absent ? 0 : min(s.length - first - kPiece * warp, kPiece), lane);
    const uint8_t *record = piece + (lane / 4) * kRecord;
    float dot[32], z[2], inverse[2];
    uint32_t by[2][2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float4 scale = *(const float4 *)(record + 8 * half * kRecord + kScaleOffset);
        z[half] = split_scale(scale, &sm.relative[stage][c][row + 8 * half], c);
        inverse[half] = inverse_power(z[half]);
        by[half][0] = pack_half2(scale.x * inverse[half], scale.y * inverse[half]);
        by[half][1] = pack_half2(scale.z * inverse[half], scale.w * inverse[half]);
    }
    rope_scores(record, dot, inverse, c);
    latent_scores(record, dot, by, c);
    wgmma_wait<0>();
    wgmma_settle(dot);
    const float no_rope[32] = {};
    const bool gone0 = absent || token >= s.length, gone1 = absent || token + 8 >= s.length;
    tile64_softmax(a, sm, sm.state, s, sums, dot, no_rope, z[0], z[1], gone0, gone1, token,
                   first + kTile > least || absent || a.bias, n, warp, lane);
}

struct turn { /* which stage, and how often it was used before */
    int stage;
    uint32_t phase;
};

__device__ __forceinline__ void turn_next(turn &t)
{
    t.stage++;
    if (t.stage == kStages) {
        t.stage = 0;
        t.phase ^= 1;
    }
}

__device__ __forceinline__ void make_range(const decode_args &a, const fp8_pool &pool,
                                           fp8_wide_smem &sm, int range, int &count, turn &now)
{
    feed f;
    feed_start(a, f, range, threadIdx.x / 32);
    int tile = uniform(f.tile), next_seq = f.seq.index;
    const int end = uniform(f.end);
    uint32_t absent = 0;
    turn ahead = now;
    for (int i = 0; i < kStages - 1; i++, turn_next(ahead))
        fetch(a, pool, sm, f, absent, ahead.stage);
    while (tile < end) {
        const sequence s = sequence_of(a, next_seq, tile);
        const int seq_end = min(end, uniform(s.tile_end)), least = tile64_least(a, s);
        next_seq = s.index + 1;
        barrier_sync<1, kMakers>();
        tile64_load_q<fp8_layout>(a, sm, sm.state, s);
        barrier_sync<1, kMakers>();
        tile64_sums sums;
        tile64_start(sums);
#pragma unroll 1
        for (; tile < seq_end; tile++, count++, turn_next(now), turn_next(ahead)) {
            make_tile(a, sm, s, sums, count, now.stage, now.phase, absent >> now.stage & 1,
                      (tile - s.tile_start) * kTile, least);
            fetch(a, pool, sm, f, absent, ahead.stage); /* P V (n - 1) has been waited for */
        }
        tile64_finish(a, sm, sm.state, sums, range, s.index, count - 1);
    }
}

/* ---- adders */

__device__ __forceinline__ void rescale(const tile64_state &st, float (&o)[4][32], int c)
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float2 by = *(const float2 *)&st.by[8 * i + 2 * c];
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                o[j][4 * i + e] *= e & 1 ? by.y : by.x;
    }
}

/* o[.., row] += V P of 64 tokens. Thread (g, c) brings dims 8 g .. 8 g + 7 of its warp's 64 and
 * tokens 2c, 2c+1, 2c+8, 2c+9 of each 16: dim 8 g + j sits on operand row g, dim 8 g + 4 + j on row
 * g + 8 of product j. */
__device__ __forceinline__ void accumulate(const uint8_t *records, const __half *relative,
                                           float (&o)[4][32])
{
    const uint32_t p = tile64_descriptor(offsetof(tile64_smem, p));
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t v[4][4];
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            const uint8_t *row = records + (16 * k + 8 * pair) * kRecord;
            const uint2 x = *(const uint2 *)row, y = *(const uint2 *)(row + kRecord);
            const uint32_t s = *(const uint32_t *)(relative + 16 * k + 8 * pair);
            if (k > 0 && pair == 0)
                wgmma_wait<0>();
            widen(x.x, y.x, s, v[0][2 * pair], v[1][2 * pair], v[2][2 * pair], v[3][2 * pair]);
            widen(x.y, y.y, s, v[0][2 * pair + 1], v[1][2 * pair + 1], v[2][2 * pair + 1],
                  v[3][2 * pair + 1]);
        }
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < 4; j++)
            wgmma_f16_n64(o[j], v[j], p + 2 * k, 1);
        wgmma_commit();
    }
    wgmma_wait<0>();
}

__device__ __forceinline__ void add_tile(fp8_wide_smem &sm, float (&o)[4][32], float &back, int n,
                                         int stage)
{
    const int thread = thread_now() - kMakers, warp = thread / 32, lane = thread % 32;
    const int c = lane % 4;
    mbarrier_wait(shared_address(&sm.state.p_full), n & 1);
    if (sm.state.rescale) {
        rescale(sm.state, o, c);
        back = sm.state.back;
    }
    accumulate(stage_records(sm, stage) + 2 * c * kRecord + 64 * warp + 8 * (lane / 4),
               sm.relative[stage][warp / 2] + 2 * c, o);
    mbarrier_arrive(shared_address(&sm.state.p_free));
}

__device__ __forceinline__ void store_out(const decode_args &a, const float (&o)[4][32], float back,
                                          int range, int seq)
{
    const int thread = thread_now() - kMakers, lane = thread % 32, c = lane % 4;
    const int64_t slot = (int64_t)(range + seq) * a.row_tiles + blockIdx.x % a.row_tiles;
    float *to =
        a.split.partial_out + slot * kWideRows * kLatent + 64 * (thread / 32) + 8 * (lane / 4);
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            *(float4 *)(to + (8 * i + 2 * c + (e & 1)) * kLatent + 2 * (e & 2)) =
                make_float4(o[0][4 * i + e] * back, o[1][4 * i + e] * back, o[2][4 * i + e] * back,
                            o[3][4 * i + e] * back);
}

__device__ __forceinline__ void add_range(const decode_args &a, fp8_wide_smem &sm, int range,
                                          int &count, turn &now)
{
    const int4 r = *(const int4 *)(a.split.ranges + range);
    int tile = uniform(r.x), next_seq = r.z;
    const int end = uniform(r.y);
    while (tile < end) {
        const sequence s = sequence_of(a, next_seq, tile);
        const int seq_end = min(end, uniform(s.tile_end));
        next_seq = s.index + 1;
        float o[4][32], back = 0;
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int i = 0; i < 32; i++)
                o[j][i] = 0;
#pragma unroll 1
        for (; tile < seq_end; tile++, count++, turn_next(now))
            add_tile(sm, o, back, count, now.stage);
        store_out(a, o, back, range, s.index);
    }
}

__global__ void __launch_bounds__(kTileThreads, 1)
    decode_fp8_h64_sm90_kernel(const __grid_constant__ decode_args a,
                               const __grid_constant__ fp8_pool pool)
{
    extern __shared__ __align__(1024) uint8_t raw[];
    fp8_wide_smem &sm = *(fp8_wide_smem *)raw;
    tile64_place(raw);
    if (threadIdx.x == 0) {
        for (int i = 0; i < kStages * kPieces; i++)
            mbarrier_init(shared_address(&sm.full[0][i]), 1);
        tile64_barriers(sm.state, 0, 0);
    }
    __syncthreads();
    int count = 0;
    turn now = {0, 0};
    const int step = gridDim.x / a.row_tiles;
    if (threadIdx.x < kMakers) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kMakerRegisters));
        for (int range = blockIdx.x / a.row_tiles; range < a.num_ranges; range += step)
            make_range(a, pool, sm, range, count, now);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kAdderRegisters));
        for (int range = blockIdx.x / a.row_tiles; range < a.num_ranges; range += step)
            add_range(a, sm, range, count, now);
    }
    dependents_may_start();
}
} // namespace

extern "C" lkv_status lkvi_decode_fp8_h64_sm90(const struct lkvi_attend_params *p,
                                               const struct lkvi_cuda_launch *launch,
                                               cudaStream_t stream)
{
    decode_args a;
    struct lkvi_sm90_job job;
    const fp8_pool pool = {(const uint8_t *)p->store.base, p->store.block_stride};
    lkvi_sm90_job_make(&job, p, launch, kWideRows);
    lkvi_sm90_args(&a, &job, p);
    a.piece = kPiece;
    return lkvi_sm90_run(&job, p, launch, stream, decode_fp8_h64_sm90_kernel, sizeof(fp8_wide_smem),
                         kTileThreads, a, pool);
}
