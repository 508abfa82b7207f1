/* INT8, up to 64 rows (tokens x heads) a CTA, 512 + 64 dims. In: q, records of 656 bytes, the
 * split. Out: partials. The one idea: both products take the raw bytes. Scores are int8 products
 * q . tokens with q as two int8, straight from the tensor copies; for P V a thread turns the bytes
 * it loads into the register operand (dims x tokens). No widened tile is ever written, because
 * shared memory, not the tensor cores, is what 64 rows fill first.
 *
 * Four warpgroups, one CTA an SM, three stages. Tile n:
 *   scorer   scores, softmax, P to shared memory; the products of n + 1 run under the softmax of n
 *   adders   two, of 256 dims each and all 64 rows: widen and P V; they lag the scorer by a tile
 *   feeders  two warps fetch the halves of the dims that one adder reads; a third one clears tokens
 *            that have no record and lays scales and zero points out for the scorer's threads */
#include "attention/cuda/sm90/launch.h"
#include "attention/cuda/sm90/int8_h64.cuh"

using namespace lkvi;

namespace
{
/* ---- scorer. Warp w has rows 16 w ..; thread (g, c) rows g (elements 4 j, 4 j + 1) and g + 8
 * (4 j + 2, 4 j + 3), tokens 8 j + 2 c and one more. */

struct row_softmax { /* of the thread's two rows; sums of the thread's own tokens */
    float top[2], sum[2], slope[2];
    float scale[2], q_sum[2]; /* log2 units of a step of q; sum of q in steps */
    float reference;          /* power of two in P beside the token's scale */
};

/* After a wait: what the compiler knows of d is renewed, so that no read moves in front of it. */
__device__ __forceinline__ void renew(int (&d)[32])
{
#pragma unroll
    for (int i = 0; i < 32; i++)
        asm volatile("" : "+r"(d[i])::"memory");
}
__device__ __forceinline__ void renew(float (&d)[32])
{
#pragma unroll
    for (int i = 0; i < 32; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* 128 dims of one half of q. A warp waits where the tensor cores still have work, so other
 * instructions stand between these. */
__device__ __forceinline__ void products(int (&dot)[32], int stage, int half, int box)
{
    const uint32_t k = descriptor_at(LKVI_AT(latent)) + stage * (4 * kBoxBytes / 16);
    const uint32_t q = descriptor_at(LKVI_AT(q)) + half * (4 * kBoxBytes / 16);
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma_s8_n64(dot, q + (box * kBoxBytes + i * 32) / 16, k + (box * kBoxBytes + i * 32) / 16,
                     half | box | i);
}

/* The high sums times 256: the low ones come on top. */
__device__ __forceinline__ void lift_products(int (&dot)[32])
{
    wgmma_commit();
    wgmma_wait<0>();
    renew(dot);
#pragma unroll
    for (int i = 0; i < 32; i++)
        dot[i] *= 256;
    renew(dot);
    wgmma_fence();
}

/* RoPE on top of the scores. */
__device__ __forceinline__ void rope_products(float (&v)[32], int stage)
{
    const uint32_t k = descriptor_at(LKVI_AT(rope)) + stage * (kBoxBytes / 16);
    const uint32_t q = descriptor_at(LKVI_AT(q_rope));
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma_rope(v, q + 2 * i, k + 2 * i, 1);
    wgmma_commit();
}

/* Scores in steps of q, without RoPE. */
__device__ __forceinline__ void real_scores(const float4 (&scales)[4], const float4 (&zeros)[4],
                                            const int (&dot)[32], float (&v)[32],
                                            const float (&q_sum)[2])
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float4 z = scales[j], zero = zeros[j];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int r = (i >> 1) & 1;
            const float z1 = i & 4 ? (i & 1 ? z.w : z.z) : (i & 1 ? z.y : z.x),
                        n1 = i & 4 ? (i & 1 ? zero.w : zero.z) : (i & 1 ? zero.y : zero.x);
            v[8 * j + i] = z1 * fmaf(-n1, q_sum[r], (float)dot[8 * j + i]);
        }
    }
}

/* Scores of keys that a row does not see become kHidden. Adds the bias. */
__device__ __forceinline__ void mask_wide(const decode_args &a, const wide_smem &sm, float (&v)[32],
                                          int token, uint32_t hidden, int row, int c)
{
    const int limit[2] = {sm.limit[row], sm.limit[row + 8]}, length = sm.length;
    const float back[2] = {1.f / sm.scale[row], 1.f / sm.scale[row + 8]};
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int at = token + 8 * j + 2 * c + i;
            const bool gone = at >= length || ((hidden >> (j / 2)) & 1);
            const float bias = a.bias && !gone ? a.bias[sm.seq * a.bias_stride + at] * kLog2e : 0.f;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float &x = v[4 * j + 2 * r + i];
                x = !gone && at < limit[r] ? fmaxf(fmaf(bias, back[r], x), kHidden * back[r])
                                           : kHidden * back[r];
            }
        }
}

/* The slow path of a warp: new maxima and reference; its rows' factors for the adders. */
__device__ __forceinline__ void raise_wide(wide_smem &sm, const float (&v)[32], row_softmax &x,
                                           float z, int stage, int row, int lane)
{
    const float before = x.reference;
    if (before == 0 || z * before > kScaleLimit) {
        int exponent = z > 0 ? min(max(kScaleExponent - ilogbf(z) - 1, -126), 126) : 0;
        float wanted = __uint_as_float((uint32_t)(127 + exponent) << 23);
        x.reference = before == 0 ? (z > 0 ? wanted : 0.f) : fminf(before, wanted);
    }
    const float change = before == 0 ? 0.f : x.reference / before;
    float m[2] = {v[0], v[2]};
#pragma unroll
    for (int j = 0; j < 32; j++)
        m[(j >> 1) & 1] = fmaxf(m[(j >> 1) & 1], v[j]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        for (int d = 1; d < 4; d *= 2)
            m[r] = fmaxf(m[r], __shfl_xor_sync(~0u, m[r], d));
        const float top = fmaxf(m[r] * x.scale[r], x.top[r]), down = exp2_fast(x.top[r] - top);
        x.slope[r] = down * (x.slope[r] + x.sum[r] * (x.top[r] - top));
        x.sum[r] *= down;
        x.top[r] = top;
        if (lane % 4 == 0)
            sm.by[stage][row + 8 * r] = down * change;
    }
}

/* P of 16 tokens, times the token's scale and the reference, to shared memory; their sums. */
__device__ __forceinline__ void weigh(wide_smem &sm, int stage, int j, const float (&v)[32],
                                      const float4 &z, const row_softmax &x, float (&sum)[2],
                                      float (&slope)[2], int warp, int lane)
{
    const int row = 16 * warp + (lane & 15), odd = lane >> 4;
    const uint32_t to = shared_address(sm.p[stage]) + row * kBox;
    uint32_t p16[4];
#pragma unroll
    for (int i = 0; i < 4; i++) { /* matrix: rows 8 (i & 1), tokens 8 (i >> 1) */
        const int r = i & 1;
        const float d0 = fmaf(v[8 * j + 4 * (i >> 1) + 2 * r], x.scale[r], -x.top[r]),
                    d1 = fmaf(v[8 * j + 4 * (i >> 1) + 2 * r + 1], x.scale[r], -x.top[r]);
        const float e0 = exp2_fast(d0), e1 = exp2_fast(d1);
        const float k0 = (i >> 1 ? z.z : z.x) * x.reference,
                    k1 = (i >> 1 ? z.w : z.y) * x.reference;
        p16[i] = pack_half2(e0 * k0, e1 * k1);
        sum[r] += e0;
        sum[r] += e1;
        slope[r] = fmaf(e0, d0, slope[r]);
        slope[r] = fmaf(e1, d1, slope[r]);
    }
    store_matrices(to + (((2 * j + odd) ^ (row & 7)) << 4), p16);
}

/* A thread's sum of 16 P tells that any of them is above 2^kSlack, at the price of a few slow paths
 * more. */
constexpr float kSumLimit = 256.f;

/* Softmax of a tile, the products of the next one between its quarters. */
__device__ __forceinline__ void softmax_of(wide_smem &sm, turn t, int next, float (&v)[32],
                                           int (&dot)[32], row_softmax &x, int warp, int lane)
{
    const int stage = t.stage, row = 16 * warp + lane / 4;
    float sum[2] = {0, 0}, slope[2] = {0, 0};
    const float4 *scales = &sm.scales[stage][0][lane % 4];
    mbarrier_wait(shared_address(&sm.added[stage]), t.phase ^ 1);
    float4 z = scales[0];
    products(dot, next, 0, 1);
    weigh(sm, stage, 0, v, z, x, sum, slope, warp, lane);
    z = scales[4];
    products(dot, next, 0, 2);
    products(dot, next, 0, 3);
    weigh(sm, stage, 1, v, z, x, sum, slope, warp, lane);
    z = scales[8];
    lift_products(dot);
    products(dot, next, 1, 0);
    products(dot, next, 1, 1);
    weigh(sm, stage, 2, v, z, x, sum, slope, warp, lane);
    z = scales[12];
    products(dot, next, 1, 2);
    products(dot, next, 1, 3);
    wgmma_commit();
    const float most_scale = sm.most_scale[stage];
    weigh(sm, stage, 3, v, z, x, sum, slope, warp, lane);
    const bool mine = !(sum[0] <= kSumLimit) || !(sum[1] <= kSumLimit) ||
                      most_scale * x.reference > kScaleLimit || x.reference == 0;
    const bool raise = __any_sync(~0u, mine);
    if (raise) {
        raise_wide(sm, v, x, most_scale, stage, row, lane);
        sum[0] = sum[1] = slope[0] = slope[1] = 0;
#pragma unroll
        for (int j = 0; j < 4; j++)
            weigh(sm, stage, j, v, scales[4 * j], x, sum, slope, warp, lane);
    }
    if (lane == 0)
        ((uint8_t *)&sm.raised[stage])[warp] = raise;
    fence_async_shared();
    __syncwarp();
    if (lane == 0)
        mbarrier_arrive(shared_address(&sm.weighed[stage]));
#pragma unroll
    for (int r = 0; r < 2; r++) {
        x.sum[r] += sum[r];
        x.slope[r] += slope[r];
    }
}

/* The thread's index as the compiler cannot know it: addresses made of it are made anew. Kept over
 * the loop they take the accumulators' registers. */
__device__ __forceinline__ int thread_anew()
{
    int x;
    asm volatile("mov.u32 %0,%%tid.x;" : "=r"(x));
    return x;
}

/* Statistics of the rows to the partial, and what the adders need to finish their output. */
__device__ __forceinline__ void finish_rows(wide_smem &sm, row_softmax &x, float *stats)
{
    const int thread = thread_anew(), lane = thread % 32, warp = thread / 32 % 4;
    const float back = /* of a power of two, without a division's registers */
        x.reference == 0 ? 0.f : __uint_as_float(0x7F000000u - __float_as_uint(x.reference));
#pragma unroll
    for (int r = 0; r < 2; r++) {
#pragma unroll
        for (int d = 1; d < 4; d *= 2) {
            x.sum[r] += __shfl_xor_sync(~0u, x.sum[r], d);
            x.slope[r] += __shfl_xor_sync(~0u, x.slope[r], d);
        }
        const int row = 16 * warp + lane / 4 + 8 * r;
        if (lane % 4 == 0) {
            sm.back[row] = back;
            *(float4 *)(stats + 4 * row) = make_float4(x.top[r], x.sum[r], x.slope[r], 0);
        }
    }
}

/* The tiles of a sequence. The last turn makes products of a tile that is not there: nobody looks
 * at them. */
__device__ __forceinline__ void score_tiles(const decode_args &a, wide_smem &sm, row_softmax &x,
                                            turn &t)
{
    int dot[32];
    float v[32];
    mbarrier_wait(shared_address(&sm.full[t.stage]), t.phase);
    wgmma_fence();
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int box = 0; box < 4; box++)
            products(dot, t.stage, half, box);
        if (half == 0)
            lift_products(dot);
    }
    wgmma_commit();
    int stage = t.stage, tick = t.phase; /* bit 0 the phase, above it the tile: one register */
#pragma unroll 1
    while (tick >> 1 < *(volatile int *)&sm.tiles) {
        const turn now = {stage, tick & 1};
        turn next = now;
        turn_on(next);
        const int i = tick >> 1;
        const int thread = thread_anew(), lane = thread % 32, warp = thread / 32 % 4;
        const int c = lane % 4, plain = sm.plain;
        const bool last = i + 1 == sm.tiles;
        float4 scales[4], zeros[4];
        mbarrier_wait(shared_address(&sm.ready[stage]), now.phase);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            scales[j] = sm.scales[stage][j][c];
            zeros[j] = sm.zeros[stage][j][c];
        }
        const uint32_t hidden = sm.hidden[stage];
        wgmma_wait<0>();
        renew(dot);
        real_scores(scales, zeros, dot, v, x.q_sum);
        renew(v);
        if (!last)
            mbarrier_wait(shared_address(&sm.full[next.stage]), next.phase);
        wgmma_fence();
        rope_products(v, stage);
        if (i >= plain || hidden) {
            wgmma_wait<0>();
            renew(v);
            mask_wide(a, sm, v, sm.token + i * kTile, hidden, 16 * warp + lane / 4, c);
        }
        products(dot, next.stage, 0, 0);
        wgmma_commit();
        wgmma_wait<1>();
        renew(v);
        softmax_of(sm, now, next.stage, v, dot, x, warp, lane);
        tick = (tick ^ (next.stage == 0)) + 2;
        stage = next.stage;
    }
    t = {stage, tick & 1};
    wgmma_wait<0>();
    renew(dot);
}

/* ---- adders */

/* Bytes, sign turned, of two tokens, two of four dims -> (token, token + 1) pairs of fp16: such a
 * byte is the low mantissa byte of 1152 + its value. */
__device__ __forceinline__ void widen(int half, uint32_t x, uint32_t y, uint32_t &d0, uint32_t &d1)
{
    constexpr uint32_t lift = 0x64806480u, top = 0x64646464u;
    const uint32_t u = prmt(x, y, half ? 0x7362 : 0x5140);
    d0 = half2_sub(prmt(u, top, 0x4140), lift);
    d1 = half2_sub(prmt(u, top, 0x4342), lift);
}

/* The thread's eight dims of four tokens. */
__device__ __forceinline__ void load_raw(const uint8_t *even, const uint8_t *odd, int k,
                                         uint2 (&v)[4])
{
    v[0] = *(const uint2 *)(even + 16 * k * kBox);
    v[1] = *(const uint2 *)(odd + 16 * k * kBox);
    v[2] = *(const uint2 *)(even + (16 * k + 8) * kBox);
    v[3] = *(const uint2 *)(odd + (16 * k + 8) * kBox);
}
__device__ __forceinline__ void turn_signs(uint2 (&v)[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[i].x ^= 0x80808080u;
        v[i].y ^= 0x80808080u;
        asm volatile("" : "+r"(v[i].x), "+r"(v[i].y)::"memory"); /* it has been read now */
    }
}

/* The rows whose maximum or reference was raised. */
__device__ __forceinline__ void lower(const wide_smem &sm, int stage, uint32_t raised,
                                      float (&o)[4][32], int c)
{
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const bool mine = (raised >> (8 * (j / 2))) & 1;
        float2 by = *(const float2 *)&sm.by[stage][8 * j + 2 * c];
        by.x = mine ? by.x : 1.f;
        by.y = mine ? by.y : 1.f;
#pragma unroll
        for (int b = 0; b < 4; b++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                o[b][4 * j + e] *= e & 1 ? by.y : by.x;
    }
}

/* What the zero points take from a row: the thread's 16 tokens of it. */
__device__ __forceinline__ float zero_part(const wide_smem &sm, int stage, int row, int c)
{
    const uint8_t *p = sm.p[stage] + row * kBox;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint4 x = *(const uint4 *)(p + (((2 * c + i) ^ (row & 7)) << 4));
        const float4 n0 = *(const float4 *)&sm.zero_line[stage][16 * c + 8 * i],
                     n1 = *(const float4 *)&sm.zero_line[stage][16 * c + 8 * i + 4];
        const float2 a = unpack_half2(x.x), b = unpack_half2(x.y), d = unpack_half2(x.z),
                     e = unpack_half2(x.w);
        sum = fmaf(a.x, n0.x, fmaf(a.y, n0.y, fmaf(b.x, n0.z, fmaf(b.y, n0.w, sum))));
        sum = fmaf(d.x, n1.x, fmaf(d.y, n1.y, fmaf(e.x, n1.z, fmaf(e.y, n1.w, sum))));
    }
    return sum;
}

/* o[dims of this warpgroup, rows] += V P. Thread (g, c) brings dims 8 g .. 8 g + 7 of its warp's 64
 * and tokens 2c, 2c+1, 2c+8, 2c+9 of each 16: dim 8 g + b sits on operand row g of product b, dim
 * 8 g + 4 + b on row g + 8. Two products at a time: while they run the operands of the two others
 * are made. */
__device__ __forceinline__ void add_tile(wide_smem &sm, turn t, float (&o)[4][32], float &zero,
                                         int group, int warp, int lane)
{
    asm volatile("" : "+r"(lane), "+r"(warp)); /* addresses made anew: kept, they spill */
    const int g = lane / 4, c = lane % 4, stage = t.stage;
    const int chunk = 4 * (warp & 1) + (g >> 1);
    const uint8_t *row = sm.latent[stage][2 * group + (warp >> 1)] + 2 * c * kBox + 8 * (g & 1);
    const uint8_t *even = row + ((chunk ^ (2 * c)) << 4);
    const uint8_t *odd = row + kBox + ((chunk ^ (2 * c + 1)) << 4);
    const uint32_t p = descriptor_at(LKVI_AT(p)) + stage * (kBoxBytes / 16);
    uint32_t f[2][2][4];
    uint2 v[2][4];
    mbarrier_wait(shared_address(&sm.full[stage]), t.phase);
    load_raw(even, odd, 0, v[0]);
    load_raw(even, odd, 1, v[1]);
    mbarrier_wait(shared_address(&sm.weighed[stage]), t.phase);
    const uint32_t raised = *(volatile uint32_t *)&sm.raised[stage];
    const int mine = 32 * group + 8 * warp + g;
    if (raised) {
        lower(sm, stage, raised, o, c);
        zero *= (raised >> (8 * (mine / 16))) & 1 ? sm.by[stage][mine] : 1.f;
    }
#pragma unroll
    for (int b = 0; b < 4; b++)
        renew(o[b]);
    turn_signs(v[0]);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint2(&x)[4] = v[k & 1];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (k > 0)
                wgmma_wait<1>(); /* the products that read f[h] */
            widen(h, x[0].x, x[1].x, f[h][0][0], f[h][1][0]);
            widen(h, x[0].y, x[1].y, f[h][0][1], f[h][1][1]);
            widen(h, x[2].x, x[3].x, f[h][0][2], f[h][1][2]);
            widen(h, x[2].y, x[3].y, f[h][0][3], f[h][1][3]);
#pragma unroll
            for (int i = 0; i < 8; i++)
                asm volatile("" : "+r"(f[h][i / 4][i % 4])::"memory");
            if (h == 1 && k < 2)
                load_raw(even, odd, k + 2, x);
            wgmma_fence();
            wgmma_values(o[2 * h], f[h][0], p + 2 * k);
            wgmma_values(o[2 * h + 1], f[h][1], p + 2 * k);
            wgmma_commit();
        }
        if (k < 3)
            turn_signs(v[(k + 1) & 1]);
        if (k == 2) { /* all is read */
            __syncwarp();
            if (lane == 0)
                mbarrier_arrive(shared_address(&sm.empty[group][stage]));
        }
    }
    zero += zero_part(sm, stage, mine, c);
    wgmma_wait<0>();
    __syncwarp();
    if (lane == 0)
        mbarrier_arrive(shared_address(&sm.added[stage]));
}

__device__ __forceinline__ void store_wide(const wide_smem &sm, float (&o)[4][32], float *out,
                                           int group, int warp, int lane)
{
    const int c = lane % 4;
    float *to = out + 2 * c * kLatent + 256 * group + 64 * warp + 8 * (lane / 4);
#pragma unroll
    for (int b = 0; b < 4; b++)
        renew(o[b]);
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int row = 8 * j + 2 * c + (e & 1);
            const float zero = sm.zero[row], back = sm.back[row];
            *(float4 *)(to + (8 * j + (e & 1)) * kLatent + 4 * (e >> 1)) =
                make_float4((o[0][4 * j + e] - zero) * back, (o[1][4 * j + e] - zero) * back,
                            (o[2][4 * j + e] - zero) * back, (o[3][4 * j + e] - zero) * back);
        }
}

/* ---- a range, by each role. Barrier 1: q is there; barrier 2: the rows' sums are. */

__device__ __forceinline__ int64_t slot_of(const decode_args &a, int range, int seq)
{
    return ((int64_t)(range + seq) * a.row_tiles + blockIdx.x % a.row_tiles) * kWideRows;
}

/* The scorer follows the adders: they say which tiles come next, and that none do. */
__device__ __forceinline__ void score_all(const decode_args &a, wide_smem &sm)
{
    turn t = {0, 0};
    for (;;) {
        barrier_sync<1, kAdders + kScorers>();
        if (sm.tiles == 0)
            return;
        const int thread = thread_anew(), row = 16 * (thread / 32 % 4) + thread % 32 / 4;
        row_softmax x;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            x.top[i] = kMaxStart;
            x.sum[i] = x.slope[i] = 0;
            x.scale[i] = sm.scale[row + 8 * i];
            x.q_sum[i] = sm.q_sum[row + 8 * i];
        }
        x.reference = 0;
        score_tiles(a, sm, x, t);
        finish_rows(sm, x, a.split.partial_stats + 4 * slot_of(a, sm.range, sm.seq));
        barrier_sync<2, kAdders + kScorers>();
    }
}

__device__ __forceinline__ void add_range(const decode_args &a, wide_smem &sm, int range, turn &t)
{
    const int group = uniform(threadIdx.x / 128), warp = threadIdx.x / 32 % 4,
              lane = threadIdx.x % 32;
    const int4 r = *(const int4 *)(a.split.ranges + range);
    int tile = uniform(r.x), next_seq = r.z;
    const int end = uniform(r.y);
    while (tile < end) {
        const sequence s = sequence_of(a, next_seq, tile);
        const int seq_end = min(end, uniform(s.tile_end));
        next_seq = s.index + 1;
        load_q(a, sm, s, (tile - s.tile_start) * kTile, range, seq_end - tile, lane);
        barrier_sync<1, kAdders + kScorers>();
        float o[4][32], zero = 0;
#pragma unroll
        for (int b = 0; b < 4; b++)
#pragma unroll
            for (int i = 0; i < 32; i++)
                o[b][i] = 0;
#pragma unroll 1
        for (; tile < seq_end; tile++) {
            add_tile(sm, t, o, zero, group, warp, lane);
            turn_on(t);
        }
        zero += __shfl_xor_sync(~0u, zero, 1);
        zero += __shfl_xor_sync(~0u, zero, 2);
        if (lane % 4 == 0)
            sm.zero[32 * group + 8 * warp + lane / 4] = zero;
        barrier_sync<2, kAdders + kScorers>();
        store_wide(sm, o, a.split.partial_out + slot_of(a, range, s.index) * kLatent, group, warp,
                   lane);
    }
}

/* Made by each role when it needs them: kept, they take registers that the roles do not have. */
__device__ __forceinline__ int range_step(const decode_args &a)
{
    uint32_t n = a.row_tiles;
    asm volatile("" : "+r"(n));
    return (int)(gridDim.x / n);
}

__global__ void __launch_bounds__(kAllThreads, 1)
    decode_int8_h64_sm90_kernel(const __grid_constant__ decode_args a,
                                const __grid_constant__ int8_maps maps)
{
    extern __shared__ __align__(1024) uint8_t raw[];
    wide_smem &sm = *(wide_smem *)raw;
    if (threadIdx.x == 0) {
        for (int i = 0; i < kStages; i++) {
            mbarrier_init(shared_address(&sm.full[i]), 2);
            mbarrier_init(shared_address(&sm.ready[i]), 1);
            mbarrier_init(shared_address(&sm.weighed[i]), kScorers / 32);
            mbarrier_init(shared_address(&sm.added[i]), kAdders / 32);
            mbarrier_init(shared_address(&sm.empty[0][i]), kAdders / 64);
            mbarrier_init(shared_address(&sm.empty[1][i]), kAdders / 64);
        }
        mbarrier_init_fence();
    }
    if (shared_address(raw) % (1u << 18) != kSmemStart)
        __trap();
    __syncthreads();
    turn t = {0, 0};
    if (threadIdx.x >= kAdders + kScorers) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kFeederRegisters));
        const int part = uniform((threadIdx.x - kAdders - kScorers) / 32), lane = threadIdx.x % 32;
        for (int range = first_range(a); range < a.num_ranges; range += range_step(a))
            if (part < 2)
                feed_range(a, maps, sm, range, t, part, lane);
            else if (part == 2)
                prepare_range(a, sm, range, t, lane);
    } else if (threadIdx.x >= kAdders) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kScorerRegisters));
        score_all(a, sm);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kAdderRegisters));
        for (int range = first_range(a); range < a.num_ranges; range += range_step(a))
            add_range(a, sm, range, t);
        if (threadIdx.x == 0)
            sm.tiles = 0;
        barrier_sync<1, kAdders + kScorers>();
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
