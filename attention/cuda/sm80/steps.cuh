/* The named steps of the sm80 kernel: instruction wrappers, records to fp16 (or bf16) tiles, where
 * a CTA's work lies. */
#ifndef LKVI_ATTENTION_CUDA_SM80_STEPS_CUH
#define LKVI_ATTENTION_CUDA_SM80_STEPS_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "attention/cuda/sm80/config.cuh"

namespace lkvi
{
namespace sm80
{
constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.69314718055994531f;

/* ---- instructions */

__device__ __forceinline__ uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void copy16(uint32_t to, const void *from, bool present)
{
    int bytes = present ? 16 : 0; /* the rest is zero-filled */
    asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void copies_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int left> __device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ void load_matrices_turned(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

template <bool bf16>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    if (bf16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,"
            "%9},{%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
            "{%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* ---- numbers */

__device__ __forceinline__ uint32_t half_bits(__half2 h)
{
    return *reinterpret_cast<uint32_t *>(&h);
}

__device__ __forceinline__ __half2 as_half2(uint32_t bits)
{
    return *reinterpret_cast<__half2 *>(&bits);
}

/* Largest power of two <= x (x > 0, normal); 1 for anything else. */
__device__ __forceinline__ float power_of_two(float x)
{
    uint32_t exponent = __float_as_uint(x) & 0x7F800000u;
    return exponent == 0 || exponent == 0x7F800000u ? 1.0f : __uint_as_float(exponent);
}

__device__ __forceinline__ float as_float(float x)
{
    return x;
}
__device__ __forceinline__ float as_float(__half x)
{
    return __half2float(x);
}
__device__ __forceinline__ float as_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

/* v[i] = p[lane + 32 i], 0 from count on. One branch on the dtype, then all loads at once. */
template <typename T, int N>
__device__ __forceinline__ void load_typed(const T *p, uint32_t count, float (&v)[N])
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < N; i++)
        v[i] = lane + 32 * i < count ? as_float(p[lane + 32 * i]) : 0.0f;
}

template <int N>
__device__ __forceinline__ void load_lanes(const lkvi_heads &x, int64_t at, uint32_t count,
                                           float (&v)[N])
{
    if (x.dtype == LKV_DTYPE_F32)
        load_typed((const float *)x.data + at, count, v);
    else if (x.dtype == LKV_DTYPE_F16)
        load_typed((const __half *)x.data + at, count, v);
    else
        load_typed((const __nv_bfloat16 *)x.data + at, count, v);
}

__device__ __forceinline__ void store_pair(void *p, uint32_t dtype, int64_t at, float x, float y)
{
    if (dtype == LKV_DTYPE_F32)
        *(float2 *)((float *)p + at) = make_float2(x, y);
    else if (dtype == LKV_DTYPE_F16)
        *(__half2 *)((__half *)p + at) = __floats2half2_rn(x, y);
    else
        *(__nv_bfloat162 *)((__nv_bfloat16 *)p + at) = __floats2bfloat162_rn(x, y);
}

/* ---- records to 8 values of the tile. Exact for INT8, NVFP4 and BF16; FP8 is rounded to fp16. */

/* e4m3 pair in the low half of `pair` -> fp16 pair, values times 2^-8. */
__device__ __forceinline__ __half2 e4m3_small(uint32_t pair)
{
    uint32_t spread = (pair & 0xFF) << 8 | (pair & 0xFF00) << 16; /* each byte on top of its half */
    return as_half2((spread & 0x80008000u) | (spread & 0x7F007F00u) >> 1);
}

__device__ __forceinline__ uint4 int8_tile(const uint8_t *from)
{
    uint2 w = *(const uint2 *)from;
    w.x ^= 0x80808080u;
    w.y ^= 0x80808080u;
    const __half2 bias = __half2half2(__ushort_as_half(0x6480)); /* 1024 + 128 */
    uint4 v;
    v.x = half_bits(__hsub2(as_half2(__byte_perm(w.x, 0x64646464u, 0x4140)), bias));
    v.y = half_bits(__hsub2(as_half2(__byte_perm(w.x, 0x64646464u, 0x4342)), bias));
    v.z = half_bits(__hsub2(as_half2(__byte_perm(w.y, 0x64646464u, 0x4140)), bias));
    v.w = half_bits(__hsub2(as_half2(__byte_perm(w.y, 0x64646464u, 0x4342)), bias));
    return v;
}

/* Two nibbles of a byte -> fp16 pair, values times 2^-14. */
__device__ __forceinline__ __half2 e2m1_small(uint32_t byte)
{
    uint32_t low = (byte & 8) << 12 | (byte & 7) << 9;
    uint32_t high = (byte & 0x80) << 24 | (byte & 0x70) << 21;
    return as_half2(low | high);
}

/* value = e2m1 * e4m3; the tile holds value * 2^-7: e2m1 * 2^-14 times e4m3 * 2^7. */
__device__ __forceinline__ uint4 nvfp4_tile(const uint8_t *codes, uint8_t scale)
{
    uint32_t w = *(const uint32_t *)codes;
    __half2 s = __hmul2(e4m3_small(scale | (uint32_t)scale << 8), __float2half2_rn(32768.0f));
    uint4 v;
    v.x = half_bits(__hmul2(e2m1_small(w & 0xFF), s));
    v.y = half_bits(__hmul2(e2m1_small(w >> 8 & 0xFF), s));
    v.z = half_bits(__hmul2(e2m1_small(w >> 16 & 0xFF), s));
    v.w = half_bits(__hmul2(e2m1_small(w >> 24), s));
    return v;
}

/* Group scales of a token (L <= 512: four at most) to the token's factor, a power of two above all
 * of them. */
__device__ __forceinline__ float fp8_factor(const uint8_t *scales)
{
    float4 s = *(const float4 *)scales;
    float top = fmaxf(fmaxf(s.x, s.y), fmaxf(s.z, s.w));
    return top > 0.0f ? 2.0f * power_of_two(top) : 0.0f;
}

/* 1 / factor for a power of two; 0 for 0. */
__device__ __forceinline__ float inverse_power(float factor)
{
    return factor > 0.0f ? __uint_as_float(0x7F000000u - __float_as_uint(factor)) : 0.0f;
}

/* ratio: the group's scale over the token's factor, times 2^8. */
__device__ __forceinline__ uint4 fp8_tile(const uint8_t *codes, float ratio)
{
    uint2 w = *(const uint2 *)codes;
    const uint32_t pair[4] = {w.x & 0xFFFF, w.x >> 16, w.y & 0xFFFF, w.y >> 16};
    uint32_t v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 x = __half22float2(e4m3_small(pair[i]));
        v[i] = half_bits(__floats2half2_rn(x.x * ratio, x.y * ratio));
    }
    return make_uint4(v[0], v[1], v[2], v[3]);
}

/* What multiplies a token's tile values: (factor, zero). */
template <uint32_t FORMAT>
__device__ __forceinline__ float2 token_factor(const lkvi_record &r, const uint8_t *record)
{
    const uint8_t *scales = record + r.scales_offset;
    if (FORMAT == LKV_FORMAT_INT8)
        return *(const float2 *)scales;
    if (FORMAT == LKV_FORMAT_NVFP4)
        return make_float2(*(const float *)(scales + r.scales_bytes - 12) * 128.0f, 0.0f);
    if (FORMAT == LKV_FORMAT_BF16)
        return make_float2(1.0f, 0.0f);
    return make_float2(fp8_factor(scales), 0.0f);
}

/* Values at .. at + 7 of the tile; zeros past the latent. */
template <uint32_t FORMAT>
__device__ __forceinline__ uint4 tile_of(const lkvi_record &r, const uint8_t *record, uint32_t at)
{
    const uint8_t *codes = record + r.codes_offset, *scales = record + r.scales_offset;
    if (at >= r.latent_dim)
        return make_uint4(0, 0, 0, 0);
    if (FORMAT == LKV_FORMAT_BF16)
        return *(const uint4 *)(codes + 2 * at);
    if (FORMAT == LKV_FORMAT_INT8)
        return int8_tile(codes + at);
    if (FORMAT == LKV_FORMAT_NVFP4)
        return nvfp4_tile(codes + at / 2, scales[at / 16]);
    float s = ((const float *)scales)[at / 128];
    return fp8_tile(codes + at, s * inverse_power(fp8_factor(scales)) * 256.0f);
}

/* ---- where a CTA's work lies */

struct Args {
    lkvi_store store;
    lkvi_batch_view batch;
    lkvi_heads q, q_rope, out;
    const float *bias;
    float *lse, *entropy, *partials;
    int64_t bias_stride, lse_stride, entropy_stride;
    lkvi_sm80_shape shape;
    uint32_t num_heads, block_shift;
    float scale_log2;
};

struct Work {
    int seq, row_tile, split;
    int first_token, q_len, length; /* length 0: the rows see nothing */
    lkvi_sm80_split cut;
};

__device__ __forceinline__ Work find_sequence(const Args &a, int seq, int row_tile, int split)
{
    Work w = {seq, row_tile, split, 0, 0, 0, {1, 1}};
    w.first_token = a.batch.q_indptr ? a.batch.q_indptr[seq] : seq;
    w.q_len = a.batch.q_indptr ? a.batch.q_indptr[seq + 1] - w.first_token : 1;
    int64_t room = (int64_t)a.batch.table_width << a.block_shift;
    int64_t length = a.batch.seq_lens[seq];
    length = length > room ? room : length;
    w.length = length < w.q_len || length < 0 ? 0 : (int)length;
    w.cut = lkvi_sm80_split_of(w.length, a.shape.splits_max);
    return w;
}

__device__ __forceinline__ float *partial_of(const Args &a, const Work &w)
{
    uint64_t index =
        ((uint64_t)w.seq * a.shape.row_tiles + w.row_tile) * a.shape.splits_max + w.split;
    return a.partials + index * lkvi_sm80_partial_floats(&a.shape);
}

__device__ __forceinline__ void note(lkvi_fault_record *record, uint32_t kind, uint64_t count,
                                     uint64_t token, int64_t index)
{
    if (!record)
        return;
    atomicAdd((unsigned long long *)&record->count, (unsigned long long)count);
    if (atomicCAS(&record->first_kind, (uint32_t)LKV_FAULT_NONE, kind) == LKV_FAULT_NONE) {
        record->first_token = token;
        record->first_index = index;
    }
}

} // namespace sm80
} // namespace lkvi
#endif
