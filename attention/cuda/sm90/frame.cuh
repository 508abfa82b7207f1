/* What the 16-row decode kernels share whatever the format: walking a range of tiles, naming the
 * blocks of a tile, loading q, the mask, the online softmax, and the partial output.
 *
 * Fragment layout of the scores of one tile: warp w holds tokens 16 w .. 16 w + 15; thread (g, c) =
 * (lane / 4, lane % 4) holds tokens 16 w + g (elements 0, 1) and + 8 (elements 2, 3), rows 2 c and
 * 2 c + 1 (elements 0-3) and 8 more (elements 4-7). */
#ifndef LKVI_ATTENTION_CUDA_SM90_FRAME_CUH
#define LKVI_ATTENTION_CUDA_SM90_FRAME_CUH

#include "attention/cuda/common/fault.cuh"
#include "attention/cuda/common/ptx.cuh"
#include "attention/cuda/sm90/config.cuh"
#include "attention/cuda/sm90/wgmma.cuh"

namespace lkvi
{

struct decode_args {
    lkvi_split split;
    lkvi_batch_view batch;
    lkvi_heads q, q_rope;
    const float *bias;
    lkvi_fault_record *faults;
    int64_t bias_stride;
    uint64_t num_blocks;
    uint32_t num_heads, row_tiles;
    int block_shift, piece; /* log2 of tokens per block; min(64, tokens per block) */
    float scale_log2;
    int num_ranges;
};

/* Stops the kernel where shared memory does not start at the constant that descriptors stand on. */
__device__ __forceinline__ void check_smem_base(const uint8_t *raw)
{
    if ((shared_address(raw) & 0x3FFFF) != kSmemBase)
        __trap();
}

/* This CTA's tile of rows, and its first range. One tile, which is the rule, takes no division. */
__device__ __forceinline__ int row_tile(const decode_args &a)
{
    return a.row_tiles == 1 ? 0 : (int)(blockIdx.x % a.row_tiles);
}
__device__ __forceinline__ int first_range(const decode_args &a)
{
    return (int)(a.row_tiles == 1 ? blockIdx.x : blockIdx.x / a.row_tiles);
}

/* Thread's element i of the score fragment: its row. */
__device__ __forceinline__ int element_row(int i, int c)
{
    return 8 * (i >> 2) + 2 * c + (i & 1);
}

struct sequence { /* where a sequence lies and what it looks like */
    int index, first_row, q_len, length, tile_start, tile_end;
};

/* The sequence that holds flat tile `tile`, from `index` on: those without tiles are passed. */
__device__ __forceinline__ sequence sequence_of(const decode_args &a, int index, int tile)
{
    sequence s;
    for (;; index++) {
        int4 x = *(const int4 *)(a.split.seqs + index);
        s = {index, x.x, x.y, x.z, x.w, x.w + (x.z + kTile - 1) / kTile};
        if (s.tile_end > tile)
            return s;
    }
}

/* Walks the tiles of a range ahead of the products and names their blocks: lane i of each warp
 * knows the block of the tile's i-th piece of min(64, block) tokens. */
struct feed {
    int tile, end; /* flat */
    sequence seq;
    int id, row;  /* this lane's piece: block id as read, first token inside the block */
    bool missing; /* past the sequence: no id was read */
};

/* Only starts the load of the id: looking at it here would wait for memory once a tile. */
__device__ __forceinline__ void feed_name(const decode_args &a, feed &f, int lane)
{
    int token = (f.tile - f.seq.tile_start) * kTile + lane * a.piece;
    f.missing = f.tile >= f.end || lane * a.piece >= kTile || token >= f.seq.length;
    f.row = token & ((1 << a.block_shift) - 1);
    if (!f.missing)
        f.id = a.batch.block_table[(uint64_t)f.seq.index * a.batch.block_table_stride +
                                   (token >> a.block_shift)];
}

/* The block to copy; -1, which the copy answers with zeros, if there is none. */
__device__ __forceinline__ int feed_block(const decode_args &a, const feed &f)
{
    bool there = !f.missing && f.id >= 0 && (uint64_t)f.id < a.num_blocks;
    return there ? f.id : -1;
}

/* Any id but -1 that names no block is a fault; one warp of one of the row tiles says so. */
__device__ __forceinline__ void feed_fault(const decode_args &a, const feed &f)
{
    if (!f.missing && f.id != -1 && f.row == 0 && row_tile(a) == 0)
        note_fault(a.faults, LKV_FAULT_BLOCK, f.seq.first_row, f.id);
}

/* A range's record as it lies in the split. */
struct range_record {
    int4 interval, first;
};

__device__ __forceinline__ range_record read_range(const decode_args &a, int range)
{
    const int4 *at = (const int4 *)(a.split.ranges + range);
    return {at[0], at[1]};
}

__device__ __forceinline__ void feed_start(const decode_args &a, feed &f, const range_record &r,
                                           int lane)
{
    f.tile = r.interval.x;
    f.end = r.interval.y;
    f.id = -1;
    f.seq = {r.interval.z, r.first.x, r.first.y,
             r.first.z,    r.first.w, r.first.w + (r.first.z + kTile - 1) / kTile};
    feed_name(a, f, lane);
}

__device__ __forceinline__ void feed_start(const decode_args &a, feed &f, int range, int lane)
{
    feed_start(a, f, read_range(a, range), lane);
}

__device__ __forceinline__ void feed_next(const decode_args &a, feed &f, int lane)
{
    f.tile++;
    if (f.tile < f.end && f.tile >= f.seq.tile_end)
        f.seq = sequence_of(a, f.seq.index + 1, f.tile);
    feed_name(a, f, lane);
}

/* Bit i: the i-th 16 tokens of the tile have no block. One warp, all lanes. */
__device__ __forceinline__ uint32_t feed_hidden(const decode_args &a, bool missing, int lane)
{
    uint32_t lanes = __ballot_sync(~0u, missing && lane * a.piece < kTile);
    if (a.piece == 16 || lanes == 0)
        return lanes;
    return a.piece == 32 ? (lanes & 1) * 3 | (lanes & 2) * 6 : 15;
}

/* What read4 read, as fp32. */
__device__ __forceinline__ float4 as_float4(uint4 raw, uint32_t dtype)
{
    if (dtype == LKV_DTYPE_F32)
        return make_float4(__uint_as_float(raw.x), __uint_as_float(raw.y), __uint_as_float(raw.z),
                           __uint_as_float(raw.w));
    float2 a, b;
    if (dtype == LKV_DTYPE_F16) {
        a = unpack_half2(raw.x);
        b = unpack_half2(raw.y);
    } else {
        a = make_float2(__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xFFFF0000u));
        b = make_float2(__uint_as_float(raw.y << 16), __uint_as_float(raw.y & 0xFFFF0000u));
    }
    return make_float4(a.x, a.y, b.x, b.y);
}

/* Four neighbouring values as they are: wide ones are fp32. */
template <bool wide> __device__ __forceinline__ uint4 read4(const lkvi_heads &from, int64_t at)
{
    if (wide)
        return *(const uint4 *)((const float *)from.data + at);
    uint2 raw = *(const uint2 *)((const uint16_t *)from.data + at);
    return make_uint4(raw.x, raw.y, 0, 0);
}

__device__ __forceinline__ float4 load4(const lkvi_heads &q, int64_t at)
{
    return as_float4(q.dtype == LKV_DTYPE_F32 ? read4<true>(q, at) : read4<false>(q, at), q.dtype);
}

/* Where row r of this CTA reads q; false: no such row. */
__device__ __forceinline__ bool row_query(const decode_args &a, const sequence &s, int r,
                                          int *token, int *head)
{
    int row = row_tile(a) * kRows + r;
    int j = row / (int)a.num_heads;
    *head = row - j * (int)a.num_heads;
    *token = s.first_row + j;
    return j < s.q_len;
}

/* RoPE part of row r as bf16 into its swizzled operand; a warp. */
__device__ __forceinline__ void store_q_rope(uint8_t *to, const decode_args &a, int r, bool live,
                                             int token, int head, int lane)
{
    if (lane >= 16)
        return;
    float4 x = make_float4(0, 0, 0, 0);
    if (live)
        x = load4(a.q_rope, token * a.q_rope.token_stride + head * a.q_rope.head_stride + 4 * lane);
    __nv_bfloat162 two[2] = {__floats2bfloat162_rn(x.x, x.y), __floats2bfloat162_rn(x.z, x.w)};
    *(uint2 *)(to + r * kBox + (((lane / 2) ^ (r & 7)) << 4) + (lane % 2) * 8) = *(uint2 *)two;
}

/* Keys each row sees, and the least of the live ones: tiles below it need no mask. */
__device__ __forceinline__ int row_limits(const decode_args &a, const sequence &s, row_state &rows)
{
    const int lane = threadIdx.x % 32;
    int token, head;
    bool live = row_query(a, s, lane % kRows, &token, &head);
    int limit = live ? s.length - s.q_len + (token - s.first_row) + 1 : 0;
    if (threadIdx.x < kRows)
        rows.limit[lane] = limit;
    return __reduce_min_sync(~0u, live ? limit : s.length);
}

/* Four rows of q of a warp, read before anything waits: their trip to memory is the block id's. */
struct q_rows {
    uint4 x[4][4], rope[4];
};

template <bool wide>
__device__ __forceinline__ void read_rows(const decode_args &a, const sequence &s, int warp,
                                          int lane, q_rows &q)
{
    int token, head;
    row_query(a, s, 4 * warp, &token, &head);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const bool live = token < s.first_row + s.q_len;
        const int64_t at = token * a.q.token_stride + head * a.q.head_stride + 4 * lane;
#pragma unroll
        for (int i = 0; i < 4; i++)
            q.x[n][i] = live ? read4<wide>(a.q, at + 128 * i) : make_uint4(0, 0, 0, 0);
        q.rope[n] = make_uint4(0, 0, 0, 0);
        if (live && lane < 16) {
            const int64_t from =
                token * a.q_rope.token_stride + head * a.q_rope.head_stride + 4 * lane;
            q.rope[n] = a.q_rope.dtype == LKV_DTYPE_F32 ? read4<true>(a.q_rope, from)
                                                        : read4<false>(a.q_rope, from);
        }
        if (++head == (int)a.num_heads) {
            head = 0;
            token++;
        }
    }
}

__device__ __forceinline__ void read_q(const decode_args &a, const sequence &s, int warp, int lane,
                                       q_rows &q)
{
    if (a.q.dtype == LKV_DTYPE_F32)
        read_rows<true>(a, s, warp, lane, q);
    else
        read_rows<false>(a, s, warp, lane, q);
}

template <uint32_t dtype> __device__ __forceinline__ void widen_rows(q_rows &q)
{
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float4 x = as_float4(q.x[n][i], dtype);
            q.x[n][i] = make_uint4(__float_as_uint(x.x), __float_as_uint(x.y), __float_as_uint(x.z),
                                   __float_as_uint(x.w));
        }
}

/* What read_q read becomes fp32: one branch for all, so that the rows' work can interleave. */
__device__ __forceinline__ void widen_q(const decode_args &a, q_rows &q)
{
    if (a.q.dtype == LKV_DTYPE_BF16)
        widen_rows<LKV_DTYPE_BF16>(q);
    else if (a.q.dtype == LKV_DTYPE_F16)
        widen_rows<LKV_DTYPE_F16>(q);
}

/* RoPE parts of the warp's rows as bf16 into their swizzled operand. */
template <uint32_t dtype>
__device__ __forceinline__ void store_rope(uint8_t *to, const q_rows &q, int warp, int lane)
{
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const int r = 4 * warp + n;
        const float4 x = as_float4(q.rope[n], dtype);
        __nv_bfloat162 two[2] = {__floats2bfloat162_rn(x.x, x.y), __floats2bfloat162_rn(x.z, x.w)};
        if (lane < 16)
            *(uint2 *)(to + r * kBox + (((lane / 2) ^ (r & 7)) << 4) + (lane % 2) * 8) =
                *(uint2 *)two;
    }
}

__device__ __forceinline__ void store_q_ropes(uint8_t *to, const decode_args &a, const q_rows &q,
                                              int warp, int lane)
{
    if (a.q_rope.dtype == LKV_DTYPE_F32)
        store_rope<LKV_DTYPE_F32>(to, q, warp, lane);
    else if (a.q_rope.dtype == LKV_DTYPE_F16)
        store_rope<LKV_DTYPE_F16>(to, q, warp, lane);
    else
        store_rope<LKV_DTYPE_BF16>(to, q, warp, lane);
}

/* Online softmax of the thread's four rows: element e of the arrays is row element_row(2 (e & 2) +
 * (e & 1)), i.e. rows 2c, 2c+1, 2c+8, 2c+9. Sums are the thread's own until the end. */
struct softmax_state {
    float top[4], sum[4], slope[4], zero[4];
    float reference; /* power of two in P beside the token's scale */
};

__device__ __forceinline__ void softmax_start(softmax_state &x)
{
    for (int i = 0; i < 4; i++) {
        x.top[i] = kMaxStart;
        x.sum[i] = x.slope[i] = x.zero[i] = 0;
    }
    x.reference = 0;
}

/* Scores of keys that a row does not see become kHidden; a token without a record gets scale 0, so
 * that whatever its bytes are nothing of it reaches the sums. Adds the bias. */
__device__ __forceinline__ void mask_scores(const decode_args &a, const int *limit, float (&s)[8],
                                            float2 &z0, float2 &z1, int seq, int length, int token,
                                            int token_in_tile, uint32_t hidden, int c)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int at = token + 8 * half;
        bool gone = at >= length || ((hidden >> ((token_in_tile + 8 * half) / 16)) & 1);
        float bias = 0;
        if (gone) {
            if (half)
                z1 = make_float2(0, 0);
            else
                z0 = make_float2(0, 0);
        } else if (a.bias) {
            bias = a.bias[seq * a.bias_stride + at] * kLog2e;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int e = 4 * (i >> 1) + 2 * half + (i & 1);
            bool seen = !gone && at < limit[element_row(e, c)];
            s[e] = seen ? fmaxf(s[e] + bias, kHidden) : kHidden;
        }
    }
}

/* P of the tile, times the token's scale and the reference, to shared memory as [row][token]. */
__device__ __forceinline__ void store_p(uint32_t to, const float (&s)[8], float z0, float z1,
                                        const softmax_state &x, float (&p)[8], uint32_t (&p16)[4],
                                        int warp, int lane)
{
    float k0 = z0 * x.reference, k1 = z1 * x.reference;
#pragma unroll
    for (int i = 0; i < 8; i++)
        p[i] = exp2_fast(s[i] - x.top[2 * (i >> 2) + (i & 1)]);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float k = i & 1 ? k1 : k0;
        p16[i] = pack_half2(p[2 * i] * k, p[2 * i + 1] * k);
    }
    int row = (lane & 7) + 8 * (lane >> 4), chunk = 2 * warp + ((lane >> 3) & 1);
    store_transposed(to + row * kBox + ((chunk ^ (row & 7)) << 4), p16);
    fence_async_shared();
}

/* True if a score or a scale of this thread outgrows what P can hold. */
__device__ __forceinline__ bool outgrown(const float (&s)[8], float z0, float z1,
                                         const softmax_state &x)
{
    bool yes = fmaxf(z0, z1) * x.reference > kScaleLimit || x.reference == 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        yes |= s[i] > x.top[2 * (i >> 2) + (i & 1)] + kSlack;
    return yes;
}

/* The slow path: takes the tile into the running maxima and the reference; returns in `by` what the
 * accumulators of the thread's rows must be multiplied with. Two barriers' worth of data. */
__device__ __forceinline__ void raise(row_state &rows, const float (&s)[8], float z0, float z1,
                                      softmax_state &x, float (&by)[4], int warp, int g, int c)
{
    float z = fmaxf(z0, z1);
#pragma unroll
    for (int d = 4; d < 32; d *= 2)
        z = fmaxf(z, __shfl_xor_sync(~0u, z, d));
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int e = 4 * (i >> 1) + (i & 1);
        float m = fmaxf(s[e], s[e + 2]);
#pragma unroll
        for (int d = 4; d < 32; d *= 2)
            m = fmaxf(m, __shfl_xor_sync(~0u, m, d));
        if (g == 0)
            rows.reduce[0][warp][element_row(e, c)] = m;
    }
    if (g == 0 && c == 0)
        rows.reduce_scale[warp] = z;
    barrier_sync<1, kThreads>();
    z = fmaxf(fmaxf(rows.reduce_scale[0], rows.reduce_scale[1]),
              fmaxf(rows.reduce_scale[2], rows.reduce_scale[3]));
    float reference = x.reference;
    if (reference == 0 || z * reference > kScaleLimit) {
        int exponent = z > 0 ? min(max(kScaleExponent - ilogbf(z) - 1, -126), 126) : 0;
        float wanted = __uint_as_float((uint32_t)(127 + exponent) << 23);
        reference = reference == 0 ? wanted : fminf(reference, wanted);
    }
    float change = x.reference == 0 ? 0.f : reference / x.reference;
    x.reference = z > 0 || x.reference != 0 ? reference : 0.f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int r = element_row(4 * (i >> 1) + (i & 1), c);
        float m = fmaxf(fmaxf(rows.reduce[0][0][r], rows.reduce[0][1][r]),
                        fmaxf(rows.reduce[0][2][r], rows.reduce[0][3][r]));
        m = fmaxf(m, x.top[i]);
        float down = exp2_fast(x.top[i] - m);
        x.slope[i] = down * (x.slope[i] + x.sum[i] * (x.top[i] - m));
        x.sum[i] *= down;
        x.top[i] = m;
        by[i] = down * change;
        x.zero[i] *= by[i];
    }
}

/* Adds the tile's P to the thread's sums. */
__device__ __forceinline__ void add_sums(softmax_state &x, const float (&s)[8], const float (&p)[8])
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int r = 2 * (i >> 2) + (i & 1);
        x.sum[r] += p[i];
        x.slope[r] = fmaf(p[i], s[i] - x.top[r], x.slope[r]);
    }
}

/* And the P that the products see times the token's zero point: what the output must lose. */
__device__ __forceinline__ void add_zeros(softmax_state &x, const uint32_t (&p16)[4], float zero0,
                                          float zero1)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 two = unpack_half2(p16[i]);
        float zero = i & 1 ? zero1 : zero0;
        x.zero[2 * (i >> 1)] = fmaf(two.x, zero, x.zero[2 * (i >> 1)]);
        x.zero[2 * (i >> 1) + 1] = fmaf(two.y, zero, x.zero[2 * (i >> 1) + 1]);
    }
}

__device__ __forceinline__ float sum4(float4 x)
{
    return (x.x + x.y) + (x.z + x.w);
}

/* Zero parts of the whole CTA in every thread; row maxima, sums and slopes to the partial. */
__device__ __forceinline__ void finish_sums(row_state &rows, softmax_state &x, float *stats,
                                            int warp, int g, int c, bool zeros = true)
{
#pragma unroll
    for (int d = 4; d < 32; d *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x.sum[i] += __shfl_xor_sync(~0u, x.sum[i], d);
            x.slope[i] += __shfl_xor_sync(~0u, x.slope[i], d);
            if (zeros)
                x.zero[i] += __shfl_xor_sync(~0u, x.zero[i], d);
        }
    barrier_sync<1, kThreads>();
    float4 *reduce = (float4 *)rows.reduce; /* [what][row], a warp each element */
    if (g == 0)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = element_row(4 * (i >> 1) + (i & 1), c);
            ((float *)&reduce[r])[warp] = x.sum[i];
            ((float *)&reduce[kRows + r])[warp] = x.slope[i];
            if (zeros)
                ((float *)&reduce[2 * kRows + r])[warp] = x.zero[i];
        }
    barrier_sync<1, kThreads>();
    if (zeros)
#pragma unroll
        for (int i = 0; i < 4; i++)
            x.zero[i] = sum4(reduce[2 * kRows + element_row(4 * (i >> 1) + (i & 1), c)]);
    if (warp == 0 && g == 0)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = element_row(4 * (i >> 1) + (i & 1), c);
            *(float4 *)(stats + 4 * r) =
                make_float4(x.top[i], sum4(reduce[r]), sum4(reduce[kRows + r]), 0);
        }
}

} // namespace lkvi
#endif
