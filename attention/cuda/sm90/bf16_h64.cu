/* BF16, up to 64 rows (tokens x heads) a CTA, 512 + 64 dims, for q in bf16. In: q, records of 1152
 * bytes, the split. Out: partials. Softmax and P are the frame's (tile64.cuh). The one idea: as in
 * the 16-row kernel records are operands as they lie: boxes of 64 dims in the 128-byte swizzle are
 * K-major for the scores and N-major for P V, so the maker widens nothing.
 *
 *   maker    scores (n) box by box as they arrive, softmax, P
 *   adders   256 dims each: P V (n); then the first warp fetches the same boxes of tile n + 2 */
#include "attention/cuda/sm90/launch.h"
#include "attention/cuda/sm90/tile64.cuh"

using namespace lkvi;

namespace
{
constexpr int kRopeOffset = 1024, kGroups = 5; /* rope; four times 128 dims */
/* Registers a thread: 152 + 2 x 176 is what three warpgroups have at a launch of 168. */
constexpr int kMakerRegisters = 152, kAdderRegisters = 176;

struct bf16_maps {
    CUtensorMap wide; /* boxes of 128 swizzled bytes */
};

struct alignas(1024) bf16_wide_smem : tile64_smem {
    uint8_t rope[2][kBoxBytes];
    tile64_state state;
    uint32_t hidden[2];
    uint64_t full[2][kGroups], added[2];
};
static_assert(sizeof(bf16_wide_smem) <= 227 * 1024, "one CTA an SM");

__device__ __forceinline__ uint32_t pack_bf16(float low, float high)
{
    __nv_bfloat162 x = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&x);
}

struct bf16_type;

struct bf16_layout { /* dims are in their order */
    static __device__ __forceinline__ void store_rope(uint8_t *row, int turn, int d, float4 x,
                                                      float by)
    {
        uint8_t *to = row + (((d >> 3) ^ turn) << 4) + 2 * (d & 7);
        *(uint2 *)to = make_uint2(pack_bf16(x.x * by, x.y * by), pack_bf16(x.z * by, x.w * by));
    }
    static __device__ __forceinline__ void store_latent(uint8_t *row, int turn, int d, float4 x,
                                                        float by)
    {
        store_rope(row + (d >> 6) * (kWideRows * kBox), turn, d & 63, x, by);
    }
    static __device__ __forceinline__ void store_out(float *to, int p, int c, const float *o,
                                                     float by)
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            *(float2 *)(to + p + 8 * i + 2 * c) = make_float2(o[4 * i] * by, o[4 * i + 1] * by);
    }
};

} // namespace

/* As the frame's, but the sums are those of the rounded P: the output stays an average of values,
 * which takes its worst error for few keys from 3.4e-3 to 2.2e-3. */
template <>
__device__ __forceinline__ void lkvi::tile64_store_p<bf16_type>(tile64_smem &sm,
                                                                const float (&y)[32], float, float,
                                                                tile64_sums &x, int warp, int lane)
{
    const uint32_t by = prmt(__float_as_uint(x.reference), 0, 0x3232); /* a power of two */
    const int row = (lane & 7) + 8 * (lane >> 4), chunk = 2 * warp + ((lane >> 3) & 1);
    const uint32_t to = shared_address(sm.p) + row * kBox + ((chunk ^ (row & 7)) << 4);
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        uint32_t p16[4];
#pragma unroll
        for (int i = 0; i < 4; i++) { /* 8-row group, half */
            const int j = 2 * pair + (i >> 1), at = 4 * j + 2 * (i & 1);
            const uint32_t two = pack_bf16(exp2_fast(y[at]), exp2_fast(y[at + 1]));
            const float p0 = __uint_as_float(two << 16), p1 = __uint_as_float(two & 0xFFFF0000u);
            x.sum[2 * j] += p0;
            x.sum[2 * j + 1] += p1;
            x.slope[2 * j] = fmaf(p0, y[at], x.slope[2 * j]);
            x.slope[2 * j + 1] = fmaf(p1, y[at + 1], x.slope[2 * j + 1]);
            p16[i] = bf16x2_mul(two, by);
        }
        store_transposed(to + 16 * pair * kBox, p16);
    }
}

namespace
{
/* ---- maker */

/* Tokens from `keep` on are no keys: their bytes may be anything, and 0 x NaN is NaN. */
__device__ __forceinline__ void clear_tail(bf16_wide_smem &sm, int stage, int keep, uint32_t phase)
{
    for (int group = 1; group < kGroups; group++)
        mbarrier_wait(shared_address(&sm.full[stage][group]), phase);
    for (int i = keep * kBox / 16 + thread_now(); i < kBoxBytes / 16; i += kMakers)
#pragma unroll
        for (int box = 0; box < 8; box++)
            *(uint4 *)(sm.tile[stage][box] + 16 * i) = make_uint4(0, 0, 0, 0);
    fence_async_shared();
    barrier_sync<1, kMakers>();
}

__device__ __forceinline__ void scores(bf16_wide_smem &sm, float (&dot)[32], int stage,
                                       uint32_t phase)
{
    uint32_t q = tile64_descriptor(offsetof(tile64_smem, q_rope));
    uint32_t k = tile64_descriptor(sizeof(tile64_smem) + stage * kBoxBytes);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma_bf16_n64(dot, k + 2 * i, q + 2 * i, i);
    q = tile64_descriptor(offsetof(tile64_smem, q));
    k = tile64_descriptor(stage * 8 * kBoxBytes);
#pragma unroll
    for (int group = 1; group < kGroups; group++) {
        mbarrier_wait(shared_address(&sm.full[stage][group]), phase);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int box = 2 * group - 2 + i / 4;
            wgmma_bf16_n64(dot, k + (box * kBoxBytes + (i % 4) * 32) / 16,
                           q + (box * kWideRows * kBox + (i % 4) * 32) / 16, 1);
        }
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_settle(dot);
}

/* All the maker's work on tile n, whose first token is `first`. */
__device__ __forceinline__ void make_tile(const decode_args &a, bf16_wide_smem &sm,
                                          const sequence &s, tile64_sums &sums, int n, int first,
                                          int least)
{
    const int warp = thread_now() / 32, lane = thread_now() % 32, stage = n & 1;
    const int row = 16 * warp + lane / 4, token = first + row;
    const uint32_t phase = (n >> 1) & 1;
    mbarrier_wait(shared_address(&sm.full[stage][0]), phase);
    const bool hidden = sm.hidden[stage] >> warp & 1;
    if (first + kTile > s.length)
        clear_tail(sm, stage, s.length - first, phase);
    float dot[32];
    const float no_rope[32] = {}; /* it is in the sums */
    scores(sm, dot, stage, phase);
    const bool gone0 = hidden || token >= s.length, gone1 = hidden || token + 8 >= s.length;
    tile64_softmax<bf16_type>(a, sm, sm.state, s, sums, dot, no_rope, 1.f, 1.f, gone0, gone1, token,
                              first + kTile > least || hidden || a.bias, n, warp, lane);
}

__device__ __forceinline__ void make_range(const decode_args &a, bf16_wide_smem &sm, int range,
                                           int &count)
{
    const int4 r = *(const int4 *)(a.split.ranges + range);
    int tile = uniform(r.x), next_seq = r.z;
    const int end = uniform(r.y);
    while (tile < end) {
        const sequence s = sequence_of(a, next_seq, tile);
        const int seq_end = min(end, uniform(s.tile_end)), least = tile64_least(a, s);
        next_seq = s.index + 1;
        barrier_sync<1, kMakers>();
        tile64_load_q<bf16_layout>(a, sm, sm.state, s);
        barrier_sync<1, kMakers>();
        tile64_sums sums;
        tile64_start(sums);
#pragma unroll 1
        for (; tile < seq_end; tile++, count++)
            make_tile(a, sm, s, sums, count, (tile - s.tile_start) * kTile, least);
        tile64_finish(a, sm, sm.state, sums, range, s.index, count - 1);
    }
}

/* ---- adders */

__device__ __forceinline__ void fetch_group(const decode_args &a, const bf16_maps &maps,
                                            bf16_wide_smem &sm, const feed &f, int block, int group,
                                            int stage, int lane)
{
    const uint32_t bar = shared_address(&sm.full[stage][group]);
    const int at = lane * a.piece;
    if (lane == 0)
        mbarrier_arrive_expect(bar, group ? 2 * kBoxBytes : kBoxBytes);
    __syncwarp();
    if (at >= kTile)
        return;
    if (group == 0) {
        copy_box(shared_address(&sm.rope[stage][at * kBox]), &maps.wide, kRopeOffset, f.row, block,
                 bar);
        return;
    }
    for (int box = 2 * group - 2; box < 2 * group; box++)
        copy_box(shared_address(&sm.tile[stage][box][at * kBox]), &maps.wide, kBox * box, f.row,
                 block, bar);
}

/* First warp of adder `half`: its 256 dims of the feed's tile; the first adder's also RoPE. */
__device__ __forceinline__ void fetch(const decode_args &a, const bf16_maps &maps,
                                      bf16_wide_smem &sm, feed &f, int half, int stage, int lane)
{
    if (f.tile >= f.end)
        return;
    const int block = feed_block(a, f);
    const uint32_t hidden = feed_hidden(a, block < 0, lane);
    if (half == 0) {
        if (lane == 0)
            sm.hidden[stage] = hidden;
        fetch_group(a, maps, sm, f, block, 0, stage, lane);
        if (block < 0 && lane * a.piece < kTile)
            feed_fault(a, f);
    }
#pragma unroll 1
    for (int group = 2 * half + 1; group < 2 * half + 3; group++)
        fetch_group(a, maps, sm, f, block, group, stage, lane);
    feed_next(a, f, lane);
}

__device__ __forceinline__ void add_tile(bf16_wide_smem &sm, float (&o)[128], float &back, int n,
                                         int half)
{
    const int stage = n & 1, lane = thread_now() % 32;
    mbarrier_wait(shared_address(&sm.state.p_full), n & 1);
    if (sm.state.rescale) {
        const int row = 16 * (thread_now() / 32 % 4) + lane / 4;
        const float by0 = sm.state.by[row], by1 = sm.state.by[row + 8];
#pragma unroll
        for (int i = 0; i < 128; i++)
            o[i] *= i & 2 ? by1 : by0;
        back = sm.state.back;
    }
    const uint32_t p = tile64_descriptor(offsetof(tile64_smem, p));
    const uint32_t v =
        wgmma_descriptor_wide(kSmemStart + (stage * 8 + 4 * half) * kBoxBytes, kBoxBytes);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma_bf16_n256(o, p + 2 * i, v + i * (16 * kBox / 16), 1);
    wgmma_commit();
    wgmma_wait<0>();
    mbarrier_arrive(shared_address(&sm.state.p_free));
    __syncwarp();
    if (lane == 0)
        mbarrier_arrive(shared_address(&sm.added[half]));
}

__device__ __forceinline__ void add_range(const decode_args &a, const bf16_maps &maps,
                                          bf16_wide_smem &sm, int range, int &count)
{
    const int half = uniform(threadIdx.x / 128) - 1;
    const bool first = threadIdx.x / 32 % 4 == 0;
    const int4 r = *(const int4 *)(a.split.ranges + range);
    int tile = uniform(r.x), next_seq = r.z;
    const int end = uniform(r.y);
    feed f;
    if (first) {
        feed_start(a, f, range, thread_now() % 32);
        for (int i = 0; i < 2; i++)
            fetch(a, maps, sm, f, half, (count + i) & 1, thread_now() % 32);
    }
    while (tile < end) {
        const sequence s = sequence_of(a, next_seq, tile);
        const int seq_end = min(end, uniform(s.tile_end));
        next_seq = s.index + 1;
        float o[128], back = 0;
#pragma unroll
        for (int i = 0; i < 128; i++)
            o[i] = 0;
#pragma unroll 1
        for (; tile < seq_end; tile++, count++) {
            add_tile(sm, o, back, count, half);
            if (first) {
                mbarrier_wait(shared_address(&sm.added[half]), count & 1);
                fetch(a, maps, sm, f, half, count & 1, thread_now() % 32);
            }
        }
        tile64_store<bf16_layout>(a, o, back, range, s.index, half);
    }
}

__global__ void __launch_bounds__(kTileThreads, 1)
    decode_bf16_h64_sm90_kernel(const __grid_constant__ decode_args a,
                                const __grid_constant__ bf16_maps maps)
{
    extern __shared__ __align__(1024) uint8_t raw[];
    bf16_wide_smem &sm = *(bf16_wide_smem *)raw;
    tile64_place(raw);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2 * kGroups; i++)
            mbarrier_init(shared_address(&sm.full[0][i]), 1);
        for (int i = 0; i < 2; i++)
            mbarrier_init(shared_address(&sm.added[i]), 4);
        tile64_barriers(sm.state, 0, 0);
    }
    __syncthreads();
    int count = 0;
    const int step = gridDim.x / a.row_tiles;
    if (threadIdx.x < kMakers) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kMakerRegisters));
        for (int range = blockIdx.x / a.row_tiles; range < a.num_ranges; range += step)
            make_range(a, sm, range, count);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kAdderRegisters));
        for (int range = blockIdx.x / a.row_tiles; range < a.num_ranges; range += step)
            add_range(a, maps, sm, range, count);
    }
    dependents_may_start();
}
} // namespace

extern "C" lkv_status lkvi_decode_bf16_h64_sm90(const struct lkvi_attend_params *p,
                                                const struct lkvi_cuda_launch *launch,
                                                cudaStream_t stream)
{
    decode_args a;
    bf16_maps maps;
    struct lkvi_sm90_job job;
    lkvi_sm90_job_make(&job, p, launch, kWideRows);
    lkvi_sm90_args(&a, &job, p);
    LKV_TRY(lkvi_sm90_map(&maps.wide, p, launch, kBox, kTile, 1));
    return lkvi_sm90_run(&job, p, launch, stream, decode_bf16_h64_sm90_kernel,
                         sizeof(bf16_wide_smem), kTileThreads, a, maps);
}
