/* One CTA: 16 or 32 (token, head) rows of one sequence against one run of its keys, 32 at a time.
 *
 *   cp.async records -> fp16 tile k[32][latent | rope] -> scores: each warp a slice of the dims
 *     -> sum over warps, softmax -> P -> output: each warp a slice of the dims
 *
 * The same tile is K and V. Scales stay out of it: a token's factor goes to its score and to P, an
 * INT8 zero point to one scalar a row. RoPE is bf16 with q split into a high and a low part.
 * Tokens past the end, and blocks that are not there, are zero-filled, so nothing stale is read. */
#ifndef LKVI_ATTENTION_CUDA_SM80_DECODE_CUH
#define LKVI_ATTENTION_CUDA_SM80_DECODE_CUH

#include "attention/cuda/sm80/steps.cuh"

namespace lkvi
{
namespace sm80
{
/* ---- q */

/* This warp's dims of q. One fp16 part under a power of two, or, for a BF16 cache, a high and a low
 * bf16 part: bf16 alone would cost a q of more precision its last bits. */
template <class C> struct Query {
    uint32_t latent[C::kQParts][C::kRowTiles][C::kSteps][4];
};

template <class C>
__device__ void stage_latent(const Args &a, Smem<C> &s, uint16_t *stage, int row, int64_t at,
                             bool inside)
{
    constexpr int kEach = C::kLatent / 32;
    const uint32_t lane = threadIdx.x % 32, n = a.store.record.latent_dim;
    float v[kEach], top = 0.0f, sum = 0.0f;
    load_lanes(a.q, inside ? at : 0, inside ? n : 0, v);
#pragma unroll
    for (int i = 0; i < kEach; i++)
        top = fmaxf(top, fabsf(v[i]));
    for (int d = 16; d > 0; d /= 2)
        top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
    const float scale = C::kBf16 ? 1.0f : power_of_two(top);
#pragma unroll
    for (int i = 0; i < kEach; i++) {
        uint16_t *to = stage + row * C::kQPitch + lane + 32 * i;
        if (C::kBf16) {
            __nv_bfloat16 high = __float2bfloat16_rn(v[i]);
            *(__nv_bfloat16 *)to = high;
            *(__nv_bfloat16 *)(to + C::kRows * C::kQPitch) =
                __float2bfloat16_rn(v[i] - __bfloat162float(high));
        } else {
            __half h = __float2half_rn(v[i] / scale);
            *(__half *)to = h;
            sum += __half2float(h);
        }
    }
    for (int d = 16; d > 0; d /= 2)
        sum += __shfl_xor_sync(~0u, sum, d);
    if (lane == 0) {
        s.rows[row].q_scale = scale;
        s.rows[row].q_sum = sum;
    }
}

template <class C>
__device__ void stage_rope(const Args &a, Smem<C> &s, int row, int64_t at, bool inside)
{
    float x[kRope / 32];
    load_lanes(a.q_rope, inside ? at : 0, inside ? a.store.record.rope_dim : 0, x);
#pragma unroll
    for (int i = 0; i < kRope / 32; i++) {
        int d = threadIdx.x % 32 + 32 * i;
        __nv_bfloat16 high = __float2bfloat16_rn(x[i]);
        __nv_bfloat16 low = __float2bfloat16_rn(x[i] - __bfloat162float(high));
        *(__nv_bfloat16 *)&s.q_rope[row][d] = high;
        *(__nv_bfloat16 *)&s.q_rope[row][kRope + d] = low;
    }
}

template <class C>
__device__ __forceinline__ void load_query(const Args &a, const Work &w, Smem<C> &s, Query<C> &q)
{
    uint16_t *stage = (uint16_t *)s.raw;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, heads = a.num_heads;
    for (int row = warp; row < C::kRows; row += C::kWarps) {
        int r = w.row_tile * C::kRows + row, j = r / heads, h = r - j * heads;
        bool inside = j < w.q_len;
        int64_t token = w.first_token + j;
        stage_latent<C>(a, s, stage, row, token * a.q.token_stride + h * a.q.head_stride, inside);
        stage_rope<C>(a, s, row, token * a.q_rope.token_stride + h * a.q_rope.head_stride, inside);
        if (lane == 0)
            s.rows[row].limit = inside && w.length ? w.length - w.q_len + j + 1 : 0;
    }
    __syncthreads();
#pragma unroll
    for (int part = 0; part < C::kQParts; part++)
#pragma unroll
        for (int m = 0; m < C::kRowTiles; m++)
#pragma unroll
            for (int k = 0; k < C::kSteps; k++) {
                int row = part * C::kRows + 16 * m + lane % 16;
                int dim = 16 * (warp * C::kSteps + k) + 8 * (lane / 16);
                load_matrices(q.latent[part][m][k], shared_at(stage + row * C::kQPitch + dim));
            }
    __syncthreads();
}

/* ---- records in */

/* Block of token `lane` of a tile; -1: none. Read a tile ahead, so that nobody waits for it. */
__device__ __forceinline__ int block_of(const Args &a, const Work &w, int tile)
{
    const int32_t *table = a.batch.block_table + w.seq * a.batch.block_table_stride;
    int token = tile * kTokens + threadIdx.x % 32;
    return token < w.length ? __ldg(table + (token >> a.block_shift)) : -1;
}

template <class C>
__device__ __forceinline__ void fetch(const Args &a, Smem<C> &s, int tile, int stage, int blocks)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t pieces = a.store.record.bytes / 16, pitch = raw_pitch(a.store.record.bytes);
#pragma unroll
    for (int i = 0; i < kTokens / C::kWarps; i++) {
        int slot = warp + i * C::kWarps, block = __shfl_sync(~0u, blocks, slot);
        bool present = block >= 0 && (uint64_t)block < a.store.num_blocks;
        uint32_t offset = (tile * kTokens + slot) & ((1u << a.block_shift) - 1);
        const uint8_t *from = a.store.base;
        if (present)
            from += (uint64_t)block * a.store.block_stride + offset * a.store.record.bytes;
        uint32_t to = shared_at(s.raw + (stage * kTokens + slot) * pitch);
        for (uint32_t c = lane; c < pieces; c += 32)
            copy16(to + 16 * c, from + (present ? 16 * c : 0), present);
        if (lane == 0)
            s.present[stage][slot] = present;
    }
    copies_commit();
}

template <class C> __device__ __forceinline__ void dequantise(const Args &a, Smem<C> &s, int stage)
{
    constexpr int kPieces = C::kLatent / 8, kRopeWords = kRope / 2, kBatch = 4;
    const lkvi_record &r = a.store.record;
    const uint32_t pitch = raw_pitch(r.bytes);
    const uint8_t *raw = s.raw + stage * kTokens * pitch;
    for (int first = threadIdx.x; first < kTokens * kPieces; first += kBatch * C::kThreads) {
        uint4 v[kBatch]; /* loads first: the compiler may not move them over the stores */
#pragma unroll
        for (int j = 0; j < kBatch; j++) {
            int i = first + j * C::kThreads;
            v[j] = tile_of<C::kFormat>(r, raw + i / kPieces * pitch, i % kPieces * 8);
        }
#pragma unroll
        for (int j = 0; j < kBatch; j++) {
            int i = first + j * C::kThreads;
            *(uint4 *)&s.k[i / kPieces][i % kPieces * 8] = v[j];
        }
    }
#pragma unroll
    for (int i = threadIdx.x; i < kTokens * kRopeWords; i += C::kThreads) {
        int token = i / kRopeWords;
        uint32_t d = i % kRopeWords * 2;
        const uint8_t *record = raw + token * pitch;
        uint32_t v = d < r.rope_dim ? *(const uint32_t *)(record + r.rope_offset + 2 * d) : 0;
        *(uint32_t *)&s.k[token][C::kLatent + d] = v;
    }
    if (threadIdx.x < kTokens) {
        float2 f = token_factor<C::kFormat>(r, raw + threadIdx.x * pitch);
        bool present = s.present[stage][threadIdx.x];
        s.factor[threadIdx.x] = present ? f.x : 0.0f;
        s.zero[threadIdx.x] = present ? f.y : 0.0f;
    }
}

template <class C>
__device__ __forceinline__ void fetch_bias(const Args &a, const Work &w, Smem<C> &s, int tile,
                                           int stage)
{
    if (threadIdx.x >= kTokens)
        return;
    float bias = 0.0f;
    if (!s.present[stage][threadIdx.x])
        bias = -INFINITY;
    else if (a.bias)
        bias = kLog2e * a.bias[w.seq * a.bias_stride + tile * kTokens + threadIdx.x];
    s.bias[threadIdx.x] = bias;
}

/* ---- scores of this warp's dims */

template <class C> __device__ __forceinline__ void score(Smem<C> &s, const Query<C> &q)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    float latent[C::kRowTiles][4][4] = {}, rope[C::kRowTiles][4][4] = {};
    const int row = lane % 8 + 8 * (lane / 16), half = 8 * (lane / 8 % 2);
#pragma unroll
    for (int k = 0; k < C::kSteps; k++)
#pragma unroll
        for (int n = 0; n < 2; n++) { /* 16 tokens: two MMA columns */
            uint32_t b[4];
            int dim = 16 * (warp * C::kSteps + k) + half;
            load_matrices(b, shared_at(&s.k[16 * n + row][dim]));
#pragma unroll
            for (int part = 0; part < C::kQParts; part++)
#pragma unroll
                for (int m = 0; m < C::kRowTiles; m++) {
                    mma<C::kBf16>(latent[m][2 * n], q.latent[part][m][k], b[0], b[1]);
                    mma<C::kBf16>(latent[m][2 * n + 1], q.latent[part][m][k], b[2], b[3]);
                }
        }
    if (warp < kRope / 16) {
#pragma unroll
        for (int n = 0; n < 2; n++) {
            uint32_t b[4];
            load_matrices(b, shared_at(&s.k[16 * n + row][C::kLatent + 16 * warp + half]));
#pragma unroll
            for (int m = 0; m < C::kRowTiles; m++)
#pragma unroll
                for (int part = 0; part < 2; part++) {
                    uint32_t x[4];
                    int dim = kRope * part + 16 * warp + 8 * (lane / 16);
                    load_matrices(x, shared_at(&s.q_rope[16 * m + lane % 16][dim]));
                    mma<true>(rope[m][2 * n], x, b[0], b[1]);
                    mma<true>(rope[m][2 * n + 1], x, b[2], b[3]);
                }
        }
    }
#pragma unroll
    for (int m = 0; m < C::kRowTiles; m++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int r = 16 * m + g + 8 * e;
            const float q_scale = s.rows[r].q_scale;
#pragma unroll
            for (int n = 0; n < 4; n++) {
                int t = 8 * n + 2 * c;
                float2 v = make_float2(
                    latent[m][n][2 * e] * (q_scale * s.factor[t]) + rope[m][n][2 * e],
                    latent[m][n][2 * e + 1] * (q_scale * s.factor[t + 1]) + rope[m][n][2 * e + 1]);
                *(float2 *)&s.scores[warp][r][t] = v;
            }
        }
}

/* ---- softmax: 16 or 8 threads a row, two or four tokens each */

struct Running {
    float top = -INFINITY, sum = 0.0f, slope = 0.0f, shift = 0.0f; /* sums: this thread's tokens */
    float unit = 0.0f; /* power of two that P is divided by; 0: none yet */
};

template <int N> __device__ __forceinline__ void add_scores(const float *from, float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i += 2) {
        float2 v = *(const float2 *)(from + i);
        x[i] += v.x;
        x[i + 1] += v.y;
    }
}

template <class C>
__device__ __forceinline__ void sum_scores(const Args &a, Smem<C> &s, int row, int t0, int tile,
                                           float (&x)[C::kRowTokens])
{
#pragma unroll
    for (int i = 0; i < C::kRowTokens; i++)
        x[i] = 0.0f;
#pragma unroll
    for (int w = 0; w < C::kWarps; w++)
        add_scores(&s.scores[w][row][t0], x);
    const RowState &r = s.rows[row];
#pragma unroll
    for (int i = 0; i < C::kRowTokens; i++) {
        int t = t0 + i;
        if (C::kFormat == LKV_FORMAT_INT8)
            x[i] -= r.q_scale * s.factor[t] * s.zero[t] * r.q_sum;
        x[i] = x[i] * a.scale_log2 + s.bias[t];
        if (tile * kTokens + t >= r.limit)
            x[i] = -INFINITY;
    }
}

/* Raises the power of two so that every factor of the tile is at most it. */
template <class C> __device__ __forceinline__ float raise_unit(const Smem<C> &s, float unit)
{
    float top = s.factor[threadIdx.x % 32];
    for (int d = 16; d > 0; d /= 2)
        top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
    return top > unit ? 2.0f * power_of_two(top) : unit;
}

/* fp16, or bf16 in a high and a low part: 8 bits of P would cost the output its accuracy. */
template <class C>
__device__ __forceinline__ void store_p(Smem<C> &s, int row, int t, float x, float y)
{
    if (!C::kBf16) {
        *(__half2 *)&s.p[0][row][t] = __floats2half2_rn(x, y);
        return;
    }
    __nv_bfloat162 high = __floats2bfloat162_rn(x, y);
    *(__nv_bfloat162 *)&s.p[0][row][t] = high;
    *(__nv_bfloat162 *)&s.p[C::kQParts - 1][row][t] =
        __floats2bfloat162_rn(x - __low2float(high), y - __high2float(high));
}

template <class C>
__device__ __forceinline__ void softmax(const Args &a, Smem<C> &s, int tile, Running &r)
{
    const int row = threadIdx.x / C::kRowThreads;
    const int t0 = threadIdx.x % C::kRowThreads * C::kRowTokens;
    float x[C::kRowTokens], p[C::kRowTokens];
    sum_scores<C>(a, s, row, t0, tile, x);
    float top = x[0];
#pragma unroll
    for (int i = 1; i < C::kRowTokens; i++)
        top = fmaxf(top, x[i]);
    for (int d = C::kRowThreads / 2; d > 0; d /= 2)
        top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
    top = fmaxf(top, r.top);
    const float base = top == -INFINITY ? 0.0f : top;
    const float keep = r.top == -INFINITY ? 0.0f : exp2f(r.top - base);
    const float unit = C::kBf16 ? 1.0f : raise_unit<C>(s, r.unit);
    const float rescale = keep * (unit > 0.0f ? r.unit / unit : 1.0f);
    if (r.top != -INFINITY)
        r.slope = keep * (r.slope + (r.top - base) * r.sum);
    r.sum *= keep;
    r.shift *= keep;
#pragma unroll
    for (int i = 0; i < C::kRowTokens; i++) {
        p[i] = exp2f(x[i] - base);
        r.sum += p[i];
        if (p[i] > 0.0f)
            r.slope += p[i] * (x[i] - base);
        float scaled = p[i] * s.factor[t0 + i];
        if (C::kFormat == LKV_FORMAT_INT8)
            r.shift += scaled * s.zero[t0 + i];
        p[i] = C::kBf16 ? p[i] : unit > 0.0f ? scaled / unit : 0.0f;
    }
    r.top = top;
    r.unit = unit;
#pragma unroll
    for (int i = 0; i < C::kRowTokens; i += 2)
        store_p<C>(s, row, t0 + i, p[i], p[i + 1]);
    if (t0 == 0)
        s.rows[row].rescale = rescale;
}

/* ---- output */

template <class C> struct Output {
    float x[C::kRowTiles][C::kColumns][4];
};

template <class C> __device__ __forceinline__ void accumulate(Smem<C> &s, Output<C> &o)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
#pragma unroll
    for (int m = 0; m < C::kRowTiles; m++) {
        const float low = s.rows[16 * m + g].rescale, high = s.rows[16 * m + g + 8].rescale;
#pragma unroll
        for (int n = 0; n < C::kColumns; n++) {
            o.x[m][n][0] *= low, o.x[m][n][1] *= low;
            o.x[m][n][2] *= high, o.x[m][n][3] *= high;
        }
    }
#pragma unroll
    for (int k = 0; k < kTokens / 16; k++) {
        uint32_t p[C::kQParts][C::kRowTiles][4];
#pragma unroll
        for (int part = 0; part < C::kQParts; part++)
#pragma unroll
            for (int m = 0; m < C::kRowTiles; m++)
                load_matrices(p[part][m],
                              shared_at(&s.p[part][16 * m + lane % 16][16 * k + 8 * (lane / 16)]));
#pragma unroll
        for (int n = 0; n < C::kColumns / 2; n++) {
            uint32_t v[4];
            int dim = warp * C::kDims + 16 * n + 8 * (lane / 16);
            load_matrices_turned(v, shared_at(&s.k[16 * k + lane % 16][dim]));
#pragma unroll
            for (int part = 0; part < C::kQParts; part++)
#pragma unroll
                for (int m = 0; m < C::kRowTiles; m++) {
                    mma<C::kBf16>(o.x[m][2 * n], p[part][m], v[0], v[1]);
                    mma<C::kBf16>(o.x[m][2 * n + 1], p[part][m], v[2], v[3]);
                }
        }
    }
}

template <class C> __device__ __forceinline__ float sum_of_row(float x)
{
    for (int d = C::kRowThreads / 2; d > 0; d /= 2)
        x += __shfl_xor_sync(~0u, x, d);
    return x;
}

template <class C>
__device__ __forceinline__ void finish_rows(const Args &a, const Work &w, Smem<C> &s, Running &r)
{
    const int row = threadIdx.x / C::kRowThreads;
    float sum = sum_of_row<C>(r.sum), slope = sum_of_row<C>(r.slope),
          shift = sum_of_row<C>(r.shift);
    if (threadIdx.x % C::kRowThreads)
        return;
    RowState &state = s.rows[row];
    state.top = r.top, state.sum = sum, state.slope = slope, state.shift = shift;
    state.rescale = r.unit;
    int n = w.row_tile * C::kRows + row, j = n / (int)a.num_heads, h = n - j * (int)a.num_heads;
    if (w.cut.splits > 1) {
        *(float4 *)(partial_of(a, w) + 4 * row) = make_float4(r.top, sum, slope, 0.0f);
        return;
    }
    if (j >= w.q_len)
        return;
    int64_t token = w.first_token + j;
    if (a.lse)
        a.lse[token * a.lse_stride + h] = sum > 0.0f ? (r.top + log2f(sum)) * kLn2 : -INFINITY;
    if (a.entropy)
        a.entropy[token * a.entropy_stride + h] =
            sum > 0.0f ? kLn2 * (log2f(sum) - slope / sum) : 0.0f;
}

/* Row `row` of this CTA, dims d and d + 1: to the partial, not normalised, or to out. */
template <class C>
__device__ __forceinline__ void store_out(const Args &a, const Work &w, const Smem<C> &s, int row,
                                          int d, float x, float y)
{
    const RowState &state = s.rows[row];
    const float unit = C::kBf16 ? 1.0f : state.rescale;
    x = x * unit - state.shift;
    y = y * unit - state.shift;
    if (w.cut.splits > 1) {
        float *to = partial_of(a, w) + 4 * C::kRows + row * C::kLatent + d;
        *(float2 *)to = make_float2(x, y);
        return;
    }
    int n = w.row_tile * C::kRows + row, j = n / (int)a.num_heads, h = n - j * (int)a.num_heads;
    if (j >= w.q_len || (uint32_t)d >= a.store.record.latent_dim)
        return;
    float inverse = state.sum > 0.0f ? 1.0f / state.sum : 0.0f;
    int64_t at = (int64_t)(w.first_token + j) * a.out.token_stride + h * a.out.head_stride + d;
    store_pair(a.out.data, a.out.dtype, at, x * inverse, y * inverse);
}

template <class C>
__device__ __forceinline__ void finish(const Args &a, const Work &w, Smem<C> &s, Running &r,
                                       const Output<C> &o)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    finish_rows<C>(a, w, s, r);
    __syncthreads();
#pragma unroll
    for (int m = 0; m < C::kRowTiles; m++)
#pragma unroll
        for (int n = 0; n < C::kColumns; n++) {
            int d = warp * C::kDims + 8 * n + 2 * c;
            store_out<C>(a, w, s, 16 * m + g, d, o.x[m][n][0], o.x[m][n][1]);
            store_out<C>(a, w, s, 16 * m + g + 8, d, o.x[m][n][2], o.x[m][n][3]);
        }
}

/* ---- faults: each counted once, by the CTA of the first rows */

__device__ __forceinline__ void note_faults(const Args &a, const Work &w, int first, int last)
{
    if (w.row_tile != 0)
        return;
    int64_t given = a.batch.seq_lens[w.seq];
    int64_t room = (int64_t)a.batch.table_width << a.block_shift;
    if (threadIdx.x == 0 && w.split == 0 && given != 0 && (given < w.q_len || given > room))
        note(a.store.faults, LKV_FAULT_LENGTH, w.q_len, w.first_token, w.seq);
    const int per_block = 1 << a.block_shift;
    const int32_t *table = a.batch.block_table + w.seq * a.batch.block_table_stride;
    int block = (first * kTokens + per_block - 1) >> a.block_shift;
    int end = (min(last * kTokens, w.length) + per_block - 1) >> a.block_shift;
    for (block += threadIdx.x; block < end; block += blockDim.x)
        if (table[block] >= 0 && (uint64_t)table[block] >= a.store.num_blocks)
            note(a.store.faults, LKV_FAULT_BLOCK, 1, w.first_token, table[block]);
}

/* ---- the kernel */

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kCtasPerSm)
    decode_kernel(const __grid_constant__ Args a)
{
    extern __shared__ __align__(16) uint8_t memory[];
    Smem<C> &s = *(Smem<C> *)memory;
    const Work w = find_sequence(a, blockIdx.x / a.shape.row_tiles, blockIdx.x % a.shape.row_tiles,
                                 blockIdx.y);
    if (w.split >= w.cut.splits || w.row_tile * C::kRows >= w.q_len * (int)a.num_heads)
        return;
    const int first = w.split * w.cut.tiles, last = first + w.cut.tiles;
    note_faults(a, w, first, last);
    Query<C> q;
    load_query<C>(a, w, s, q);
    int last_row = min((w.row_tile + 1) * C::kRows, w.q_len * (int)a.num_heads) - 1;
    int seen = w.length ? w.length - w.q_len + last_row / (int)a.num_heads + 1 : 0;
    const int end = min(last, (seen + kTokens - 1) / kTokens);
    Running r;
    Output<C> o;
#pragma unroll
    for (int m = 0; m < C::kRowTiles; m++)
#pragma unroll
        for (int n = 0; n < C::kColumns; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                o.x[m][n][e] = 0.0f;
    int blocks = block_of(a, w, first);
    if (first < end)
        fetch<C>(a, s, first, 0, blocks);
    blocks = block_of(a, w, first + 1);
    for (int tile = first; tile < end; tile++) {
        const int stage = (tile - first) & 1;
        if (tile + 1 < end) {
            fetch<C>(a, s, tile + 1, stage ^ 1, blocks);
            blocks = block_of(a, w, tile + 2);
            copies_wait<1>();
        } else {
            copies_wait<0>();
        }
        __syncthreads();
        dequantise<C>(a, s, stage);
        fetch_bias<C>(a, w, s, tile, stage);
        __syncthreads();
        score<C>(s, q);
        __syncthreads();
        softmax<C>(a, s, tile, r);
        __syncthreads();
        accumulate<C>(s, o);
    }
    __syncthreads();
    finish<C>(a, w, s, r, o);
}

/* ---- host */

inline Args args_of(const lkvi_attend_params *p, const lkvi_sm80_shape *shape)
{
    Args a = {};
    a.store = p->store;
    a.batch = p->batch;
    a.q = p->q;
    a.q_rope = p->q_rope;
    a.out = p->out;
    a.bias = p->bias;
    a.lse = p->lse;
    a.entropy = p->entropy;
    a.partials = (float *)p->workspace;
    a.bias_stride = p->bias_stride;
    a.lse_stride = p->lse_stride;
    a.entropy_stride = p->entropy_stride;
    a.shape = *shape;
    a.num_heads = p->plan.num_heads;
    a.block_shift = 31 - __builtin_clz(p->store.tokens_per_block);
    a.scale_log2 = (float)(p->scale * 1.4426950408889634);
    return a;
}

template <class C>
cudaError_t launch(const lkvi_attend_params *p, const lkvi_sm80_shape *shape, cudaStream_t stream)
{
    const dim3 grid(p->batch.num_seqs * shape->row_tiles, shape->splits_max);
    if (grid.x == 0)
        return cudaSuccess;
    uint32_t bytes = smem_bytes<C>(p->store.record.bytes);
    decode_kernel<C><<<grid, C::kThreads, bytes, stream>>>(args_of(p, shape));
    return cudaGetLastError();
}

/* 0 if the device refuses that much. */
template <class C> uint32_t prepare(uint32_t record_bytes)
{
    uint32_t bytes = smem_bytes<C>(record_bytes);
    cudaError_t error = cudaFuncSetAttribute(
        decode_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    (void)cudaGetLastError();
    return error == cudaSuccess ? bytes : 0;
}

template <uint32_t FORMAT>
cudaError_t launch_format(const lkvi_attend_params *p, const lkvi_sm80_shape *shape,
                          cudaStream_t stream)
{
    if (shape->latent == 256)
        return launch<Config<FORMAT, 256, 1>>(p, shape, stream);
    if (shape->rows == 16)
        return launch<Config<FORMAT, 512, 1>>(p, shape, stream);
    return launch<Config<FORMAT, 512, 2>>(p, shape, stream);
}

template <uint32_t FORMAT>
uint32_t prepare_format(const lkvi_sm80_shape *shape, uint32_t record_bytes)
{
    if (shape->latent == 256)
        return prepare<Config<FORMAT, 256, 1>>(record_bytes);
    if (shape->rows == 16)
        return prepare<Config<FORMAT, 512, 1>>(record_bytes);
    return prepare<Config<FORMAT, 512, 2>>(record_bytes);
}

} // namespace sm80
} // namespace lkvi
#endif
