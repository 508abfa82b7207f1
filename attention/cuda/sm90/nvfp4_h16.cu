/* NVFP4, up to 16 rows (tokens x heads) a CTA, 512 + 64 dims. In: q, records of 432 bytes, the
 * split. Out: partials. The one idea: each value is widened once, into the register operand of the
 * scores (tokens x dims); the same registers are stored as an fp16 tile that P V reads M-major.
 * Neither product cares which dim a position is as long as both of its sides agree, so positions
 * are chosen to make every access free of bank conflicts: lane c takes 16-byte chunk 2 c + (m & 1).
 *
 * One warpgroup, two CTAs an SM. A warp owns the raw bytes of its 16 tokens and fetches the next
 * tile's as soon as it has read them: beside the 64 KB tile there is room for one stage only.
 *   warp w wait for its 16 tokens; widen, store, scores; fetch those of tile t + 1
 *   all    softmax, P to shared memory; barrier, which also tells whether the slow path must run
 *   all    P V; barrier: the tile is used up */
#include "attention/cuda/sm90/launch.h"
#include "attention/cuda/sm90/frame.cuh"

using namespace lkvi;

namespace
{
constexpr int kScaleOffset = 256, kRopeOffset = 304, kOuterAt = 36, kPiece = 16;
constexpr uint32_t kRopeBytes = kPiece * kBox;
/* A widened value is e2m1 * group scale * 2^-7. */
constexpr float kLift = 128.f;

struct nvfp4_maps {
    CUtensorMap wide, narrow; /* boxes of 128 swizzled bytes; of the 48 bytes of scales */
};

__device__ __forceinline__ void fetch_raw(const decode_args &a, const nvfp4_maps &maps,
                                          nvfp4_smem &sm, const feed &f, int warp, int lane)
{
    __syncwarp(); /* every lane is past its last read */
    if (f.tile >= f.end || lane != 0)
        return;
    const int block = feed_block(a, f), at = warp * kPiece;
    const uint32_t bar = shared_address(&sm.full[warp]);
    mbarrier_arrive_expect(bar, kPiece * (2 * kBox + kScaleRow));
#pragma unroll
    for (int i = 0; i < 2; i++)
        copy_box(shared_address(&sm.latent[i][at * kBox]), &maps.wide, kBox * i, f.row, block, bar);
    copy_box(shared_address(&sm.scales[at * kScaleRow]), &maps.narrow, kScaleOffset, f.row, block,
             bar);
    if (block < 0)
        feed_fault(a, f);
}

__device__ __forceinline__ void fetch_rope(const decode_args &a, const nvfp4_maps &maps,
                                           nvfp4_smem &sm, feed &f, int warp, int lane)
{
    if (f.tile >= f.end)
        return;
    if (lane == 0) {
        const uint32_t bar = shared_address(&sm.rows.full[0]);
        mbarrier_arrive_expect(bar, kRopeBytes);
        copy_box(shared_address(&sm.rope[warp * kPiece * kBox]), &maps.wide, kRopeOffset, f.row,
                 feed_block(a, f), bar);
    }
    __syncwarp();
    feed_next(a, f, warp);
}

/* Four rows of q a warp as fp16 of |.| <= 1. Dim d = 256 (m / 2) + 64 c + 32 (m % 2) + 8 i + 4 hi +
 * 2 e + odd is position 8 hi + 2 c + e of step 8 m + 2 i + odd: what the widening below makes. */
__device__ __forceinline__ void store_q(const decode_args &a, nvfp4_smem &sm, q_rows &q, int warp,
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
        const float inverse = most > 0 ? __fdividef(1.f, most) : 0;
#pragma unroll
        for (int b = 0; b < 4; b++) {
            const float4 x = v[b];
            int d = 128 * b + 4 * lane, chunk = d >> 5, i = (d >> 3) & 3, hi = (d >> 2) & 1;
            int m = 2 * (chunk >> 3) + (chunk & 1), c = (chunk >> 1) & 3;
#pragma unroll
            for (int odd = 0; odd < 2; odd++) {
                int step = 8 * m + 2 * i + odd, byte = (step % 4) * 32 + (8 * hi + 2 * c) * 2;
                uint8_t *to = sm.q[step / 4] + r * kBox + (((byte >> 4) ^ (r & 7)) << 4);
                *(uint32_t *)(to + (byte & 15)) = odd ? pack_half2(x.y * inverse, x.w * inverse)
                                                      : pack_half2(x.x * inverse, x.z * inverse);
            }
        }
        if (lane == 0)
            sm.rows.scale[r] = most * a.scale_log2;
    }
    store_q_ropes(sm.q_rope, a, q, warp, lane);
    fence_async_shared();
}

/* Two e4m3 scales times 2^7 as fp16. */
__device__ __forceinline__ uint32_t widen_scales(uint32_t two)
{
    uint32_t d;
    asm("{\n.reg .b16 x;\nmov.b32 {x,_},%1;\ncvt.rn.f16x2.e4m3x2 %0,x;\n}" : "=r"(d) : "r"(two));
    return half2_mul(d, 0x58005800u);
}

/* Eight e2m1, low nibble first: sign and three value bits go to the high byte of an fp16, which is
 * value * 2^-14 for normals and subnormals. Out: (0, 2) (4, 6) (1, 3) (5, 7). */
__device__ __forceinline__ uint4 widen(uint32_t x, uint32_t scale)
{
    uint32_t odd = (x & 0x80808080u) | ((x >> 3) & 0x0E0E0E0Eu);
    uint32_t even = ((x << 4) & 0x80808080u) | ((x << 1) & 0x0E0E0E0Eu);
    return make_uint4(
        half2_mul(prmt(even, 0, 0x1404), scale), half2_mul(prmt(even, 0, 0x3424), scale),
        half2_mul(prmt(odd, 0, 0x1404), scale), half2_mul(prmt(odd, 0, 0x3424), scale));
}

struct token_scales {     /* of the thread's two tokens */
    uint32_t group[2][2]; /* [token][half of the dims]: four groups, 0 where there is no record */
    float outer[2];
};

__device__ __forceinline__ token_scales read_scales(const nvfp4_smem &sm, int row, bool gone0,
                                                    bool gone1, int c)
{
    token_scales s;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint8_t *at = sm.scales + (row + 8 * half) * kScaleRow;
#pragma unroll
        for (int box = 0; box < 2; box++) {
            uint32_t x = *(const uint32_t *)(at + 16 * box + 4 * c);
            s.group[half][box] = (half ? gone1 : gone0) ? 0u : x;
        }
        s.outer[half] = *(const float *)(at + kOuterAt) * kLift;
    }
    return s;
}

/* Widens a quarter of the dims of the warp's 16 tokens into the operand of eight steps. */
__device__ __forceinline__ void widen_quarter(const nvfp4_smem &sm, const token_scales &s,
                                              uint32_t (&a)[8][4], int m, int row, int c)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int t = row + 8 * half;
        uint4 v =
            *(const uint4 *)(sm.latent[m >> 1] + t * kBox + (((2 * c + (m & 1)) ^ (t & 7)) << 4));
        uint32_t two = widen_scales(s.group[half][m >> 1] >> (16 * (m & 1)));
        uint32_t low = prmt(two, 0, 0x1010), high = prmt(two, 0, 0x3232);
        const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint4 w = widen(word[i], i < 2 ? low : high);
            a[2 * i][half] = w.x;
            a[2 * i][2 + half] = w.y;
            a[2 * i + 1][half] = w.z;
            a[2 * i + 1][2 + half] = w.w;
        }
    }
}

/* Stores the quarter into the tile and multiplies it with q. The fragment of a step, as it lies in
 * registers, is four 8 x 8 matrices of [token][position]; to: their places in a box. */
__device__ __forceinline__ void quarter_scores(const uint32_t (&to)[4], const uint32_t (&a)[8][4],
                                               float (&s)[8], int m)
{
    constexpr uint32_t q = wgmma_descriptor(kSmemBase + offsetof(nvfp4_smem, q));
#pragma unroll
    for (int k = 0; k < 8; k++)
        store_matrices(to[k & 3] + (2 * m + (k >> 2)) * kBoxBytes, a[k]);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 8; k++)
        wgmma_f16_n16(s, a[k], q + ((2 * m + (k >> 2)) * kRows * kBox + (k & 3) * 32) / 16, m | k);
    wgmma_commit();
}

__device__ __forceinline__ void rope_scores(float (&s)[8])
{
    constexpr uint32_t k = wgmma_descriptor(kSmemBase + offsetof(nvfp4_smem, rope)),
                       q = wgmma_descriptor(kSmemBase + offsetof(nvfp4_smem, q_rope));
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma_bf16_n16(s, k + 2 * i, q + 2 * i, i);
    wgmma_commit();
}

__device__ __forceinline__ void accumulate(float (&o)[8][8])
{
    constexpr uint32_t v_at = wgmma_descriptor(kSmemBase + offsetof(nvfp4_smem, tile)),
                       p = wgmma_descriptor(kSmemBase + offsetof(nvfp4_smem, p));
    const uint32_t v = uniform(v_at);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            wgmma_f16_n16_mmajor(o[j], v + (j * kBoxBytes + k * 16 * kBox) / 16, p + 2 * k);
    wgmma_commit();
}

/* Dim at position p of tile box b: the order store_q and the widening use. */
__device__ __forceinline__ int tile_dim(int b, int p)
{
    int step = 4 * b + (p >> 4), m = step >> 3, i = (step >> 1) & 3, c = (p >> 1) & 3;
    return 256 * (m >> 1) + 64 * c + 32 * (m & 1) + 8 * i + 4 * ((p >> 3) & 1) + 2 * (p & 1) +
           (step & 1);
}

/* Where a dim lies in a row of the output's stage: the paddings spread its writes over the banks.
 */
constexpr int kOutRow = 548;
__device__ __forceinline__ int out_at(int dim)
{
    return dim + 4 * (dim >> 6);
}

__device__ __forceinline__ void store_partial(const decode_args &a, nvfp4_smem &sm,
                                              softmax_state &x, float (&o)[8][8], int range,
                                              int seq, int warp, int g, int c)
{
    int64_t slot = ((int64_t)(range + seq) * a.row_tiles + row_tile(a)) * kRows;
    finish_sums(sm.rows, x, a.split.partial_stats + 4 * slot, warp, g, c, false);
    const float back = x.reference == 0 ? 0.f : 1.f / x.reference;
    float *out =
        (float *)sm.tile; /* 16 rows of 512 dims, padded; all products have read the tile */
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int e = 4 * (i >> 1) + (i & 1);
        float *to = out + element_row(e, c) * kOutRow;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            to[out_at(tile_dim(j, 16 * warp + g))] = o[j][e] * back;
            to[out_at(tile_dim(j, 16 * warp + g + 8))] = o[j][e + 2] * back;
        }
    }
    barrier_sync<1, kThreads>();
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = 4 * warp + n, dim = 128 * i + 4 * (4 * g + c);
            *(float4 *)(a.split.partial_out + (slot + r) * kLatent + dim) =
                *(const float4 *)(out + r * kOutRow + out_at(dim));
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

__device__ __forceinline__ void decode_range(const decode_args &a, const nvfp4_maps &maps,
                                             nvfp4_smem &sm, const range_record &record, int range,
                                             bool last, uint32_t &phase)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    const int row = 16 * warp + g, at = 16 * warp + lane % 16;
    uint32_t to[4];
#pragma unroll
    for (int k = 0; k < 4; k++)
        to[k] = shared_address(sm.tile) + at * kBox + (((2 * k + lane / 16) ^ (at & 7)) << 4);
    feed f;
    feed_start(a, f, record, warp);
    int tile = uniform(f.tile);
    const int end = uniform(f.end);
    bool hidden = false;
    sequence s = f.seq;
    for (bool first = true; tile < end; first = false) {
        q_rows q;
        read_q(a, s, warp, lane, q);
        if (first) {
            hidden = feed_block(a, f) < 0;
            fetch_raw(a, maps, sm, f, warp, lane);
            fetch_rope(a, maps, sm, f, warp, lane);
        }
        const int seq_end = min(end, uniform(s.tile_end));
        barrier_sync<1, kThreads>();
        const int least = row_limits(a, s, sm.rows);
        store_q(a, sm, q, warp, lane);
        barrier_sync<1, kThreads>();
        float o[8][8];
        softmax_state x;
        start_row(o, x);
        float scale[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            scale[i] = sm.rows.scale[element_row(4 * (i >> 1) + (i & 1), c)];
        for (; tile < seq_end; tile++) {
            const int token = (tile - s.tile_start) * kTile;
            float dot[8], rope[8];
            uint32_t w[2][8][4];
            mbarrier_wait(shared_address(&sm.full[warp]), phase);
            const token_scales ts = read_scales(sm, row, hidden || token + row >= s.length,
                                                hidden || token + row + 8 >= s.length, c);
            float2 z0 = make_float2(ts.outer[0], 0), z1 = make_float2(ts.outer[1], 0);
            const uint32_t was_hidden = hidden ? 15 : 0;
            hidden = feed_block(a, f) < 0;
            widen_quarter(sm, ts, w[0], 0, row, c);
            quarter_scores(to, w[0], dot, 0);
            widen_quarter(sm, ts, w[1], 1, row, c);
            quarter_scores(to, w[1], dot, 1);
            wgmma_wait<1>();
            widen_quarter(sm, ts, w[0], 2, row, c);
            quarter_scores(to, w[0], dot, 2);
            wgmma_wait<1>();
            widen_quarter(sm, ts, w[1], 3, row, c);
            quarter_scores(to, w[1], dot, 3);
            fetch_raw(a, maps, sm, f, warp, lane);
            mbarrier_wait(shared_address(&sm.rows.full[0]), phase);
            rope_scores(rope);
            wgmma_wait<0>();
            float v[8], p[8];
            uint32_t p16[4];
#pragma unroll
            for (int e = 0; e < 8; e++)
                v[e] = fmaf((e & 2 ? z1.x : z0.x) * scale[2 * (e >> 2) + (e & 1)], dot[e],
                            rope[e] * a.scale_log2);
            if (token + kTile > least || was_hidden || a.bias)
                mask_scores(a, sm.rows.limit, v, z0, z1, s.index, s.length, token + row, row,
                            was_hidden, c);
            const uint32_t p_at = shared_address(sm.p);
            bool mine = outgrown(v, z0.x, z1.x, x);
            store_p(p_at, v, z0.x, z1.x, x, p, p16, warp, lane);
            bool slow = barrier_any<kThreads>(mine);
            fetch_rope(a, maps, sm, f, warp, lane);
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
            accumulate(o);
            add_sums(x, v, p);
            wgmma_wait<0>();
            barrier_sync<1, kThreads>();
            phase ^= 1;
        }
        wgmma_wait<0>();
        if (last && tile == end)
            dependents_may_start();
        store_partial(a, sm, x, o, range, s.index, warp, g, c);
        if (tile < end)
            s = sequence_of(a, s.index + 1, tile);
        barrier_sync<1, kThreads>();
    }
}

__global__ void __launch_bounds__(kThreads, kCtasPerSm)
    decode_nvfp4_h16_sm90_kernel(const __grid_constant__ decode_args a,
                                 const __grid_constant__ nvfp4_maps maps)
{
    extern __shared__ __align__(1024) uint8_t raw[];
    nvfp4_smem &sm = *(nvfp4_smem *)raw;
    check_smem_base(raw);
    const int step = gridDim.x / a.row_tiles;
    int range = first_range(a);
    range_record record = read_range(a, range); /* under way while the barriers are made */
    if (threadIdx.x == 0) {
        prefetch_map(&maps.wide);
        prefetch_map(&maps.narrow);
        for (int i = 0; i < 4; i++)
            mbarrier_init(shared_address(&sm.full[i]), 1);
        mbarrier_init(shared_address(&sm.rows.full[0]), 4);
        mbarrier_init_fence();
    }
    __syncthreads();
    uint32_t phase = 0;
    for (; range < a.num_ranges; range += step) {
        if (range >= step)
            record = read_range(a, range);
        decode_range(a, maps, sm, record, range, range + step >= a.num_ranges, phase);
    }
}
} // namespace

extern "C" lkv_status lkvi_decode_nvfp4_h16_sm90(const struct lkvi_attend_params *p,
                                                 const struct lkvi_cuda_launch *launch,
                                                 cudaStream_t stream)
{
    decode_args a;
    nvfp4_maps maps;
    struct lkvi_sm90_job job;
    lkvi_sm90_job_make(&job, p, launch, kRows);
    lkvi_sm90_args(&a, &job, p);
    a.piece = kPiece;
    LKV_TRY(lkvi_sm90_map(&maps.wide, p, launch, kBox, kPiece, 1));
    LKV_TRY(lkvi_sm90_map(&maps.narrow, p, launch, kScaleRow, kPiece, 0));
    return lkvi_sm90_run(&job, p, launch, stream, decode_nvfp4_h16_sm90_kernel, sizeof(nvfp4_smem),
                         kThreads, a, maps);
}
