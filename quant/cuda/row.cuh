/* One warp holds one fp32 row in registers: the shape that docs/formats.md states its sums in.
 *
 *   value 256 k + 8 lane + e   lives in   x[k][e] of `lane`,   k < K, e < 8
 *
 * so a lane's 8 values are neighbours (16 bytes of bf16), and sums run over e, then over lanes.
 * In: rows of any dtype. Out: the same fp32 bits as quant/row_ops.c. Compiled without contraction.
 */
#ifndef LKVI_QUANT_CUDA_ROW_CUH
#define LKVI_QUANT_CUDA_ROW_CUH

#include <cfloat>
#include <cstdint>
#include <cstring>
#include "quant/params.h"

/* The conversions are the scalar codec's own: the same text, compiled for the device too. */
#define inline inline __host__ __device__
#include "quant/float_bits.h"
#undef inline

namespace lkvi
{

constexpr uint32_t kAllLanes = 0xFFFFFFFFu;
constexpr uint32_t kLaneWidth = 8;
constexpr uint32_t kSegment = 32 * kLaneWidth; /* values of one k */
constexpr uint32_t kWarps = 4;                 /* rows a CTA works on at a time */

template <int K> struct Row {
    float x[K][kLaneWidth];
};

__device__ __forceinline__ uint32_t lane_id()
{
    return threadIdx.x & 31;
}

/* First value that this lane holds of segment k. */
__device__ __forceinline__ uint32_t first_of(int k)
{
    return k * kSegment + lane_id() * kLaneWidth;
}

__device__ __forceinline__ void unpack(uint4 v, uint32_t dtype, float x[kLaneWidth])
{
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint16_t low = (uint16_t)word[i], high = (uint16_t)(word[i] >> 16);
        x[2 * i] = dtype == LKV_DTYPE_BF16 ? lkvi_f32_from_bf16(low) : lkvi_f32_from_f16(low);
        x[2 * i + 1] = dtype == LKV_DTYPE_BF16 ? lkvi_f32_from_bf16(high) : lkvi_f32_from_f16(high);
    }
}

__device__ __forceinline__ void load8(const void *row, uint32_t dtype, uint32_t at,
                                      float x[kLaneWidth])
{
    if (dtype == LKV_DTYPE_F32) {
        float4 a = *(const float4 *)((const float *)row + at);
        float4 b = *(const float4 *)((const float *)row + at + 4);
        x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
        x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
    } else {
        unpack(*(const uint4 *)((const uint16_t *)row + at), dtype, x);
    }
}

__device__ __forceinline__ uint32_t pack2(float a, float b, uint32_t dtype)
{
    if (dtype == LKV_DTYPE_BF16)
        return lkvi_bf16_from_f32(a) | (uint32_t)lkvi_bf16_from_f32(b) << 16;
    return lkvi_f16_from_f32(a) | (uint32_t)lkvi_f16_from_f32(b) << 16;
}

__device__ __forceinline__ void store8(const float x[kLaneWidth], uint32_t dtype, uint32_t at,
                                       void *row)
{
    if (dtype == LKV_DTYPE_F32) {
        *(float4 *)((float *)row + at) = make_float4(x[0], x[1], x[2], x[3]);
        *(float4 *)((float *)row + at + 4) = make_float4(x[4], x[5], x[6], x[7]);
    } else {
        *(uint4 *)((uint16_t *)row + at) =
            make_uint4(pack2(x[0], x[1], dtype), pack2(x[2], x[3], dtype), pack2(x[4], x[5], dtype),
                       pack2(x[6], x[7], dtype));
    }
}

/* Values past n are 0. n is a multiple of 8. */
template <int K>
__device__ __forceinline__ void load_row(Row<K> &row, const void *from, uint32_t dtype, uint32_t n)
{
#pragma unroll
    for (int k = 0; k < K; k++) {
        if (first_of(k) < n) {
            load8(from, dtype, first_of(k), row.x[k]);
        } else {
#pragma unroll
            for (int e = 0; e < (int)kLaneWidth; e++)
                row.x[k][e] = 0.0f;
        }
    }
}

template <int K>
__device__ __forceinline__ void store_row(const Row<K> &row, void *to, uint32_t dtype, uint32_t n)
{
#pragma unroll
    for (int k = 0; k < K; k++)
        if (first_of(k) < n)
            store8(row.x[k], dtype, first_of(k), to);
}

__device__ __forceinline__ float load1(const void *row, uint32_t dtype, uint64_t at)
{
    if (dtype == LKV_DTYPE_F32)
        return ((const float *)row)[at];
    uint16_t h = ((const uint16_t *)row)[at];
    return dtype == LKV_DTYPE_BF16 ? lkvi_f32_from_bf16(h) : lkvi_f32_from_f16(h);
}

__device__ __forceinline__ void store1(float x, void *row, uint32_t dtype, uint64_t at)
{
    if (dtype == LKV_DTYPE_F32)
        ((float *)row)[at] = x;
    else
        ((uint16_t *)row)[at] =
            dtype == LKV_DTYPE_BF16 ? lkvi_bf16_from_f32(x) : lkvi_f16_from_f32(x);
}

/* Element size of a dtype, for addressing rows. */
__device__ __forceinline__ uint64_t bytes_of(uint32_t dtype)
{
    return dtype == LKV_DTYPE_F32 ? 4 : 2;
}

__device__ __forceinline__ char *row_of(const struct lkvi_rows &rows, uint64_t r)
{
    return (char *)rows.data + (int64_t)r * rows.stride * (int64_t)bytes_of(rows.dtype);
}

/* The stated sum: 256 running sums, each lane's 8 by neighbours, the lanes by halves. Adding by
 * exchange gives every lane the bits that halving gives lane 0, since a + b is b + a. */
template <int K> __device__ __forceinline__ float sum_of_squares(const Row<K> &row)
{
    float sum[kLaneWidth];
#pragma unroll
    for (int e = 0; e < (int)kLaneWidth; e++)
        sum[e] = 0.0f;
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int e = 0; e < (int)kLaneWidth; e++)
            sum[e] = __fadd_rn(sum[e], __fmul_rn(row.x[k][e], row.x[k][e]));
    float s = __fadd_rn(__fadd_rn(__fadd_rn(sum[0], sum[1]), __fadd_rn(sum[2], sum[3])),
                        __fadd_rn(__fadd_rn(sum[4], sum[5]), __fadd_rn(sum[6], sum[7])));
#pragma unroll
    for (int half = 16; half >= 1; half /= 2)
        s = __fadd_rn(s, __shfl_xor_sync(kAllLanes, s, half));
    return s;
}

template <int K>
__device__ __forceinline__ void rms_norm(Row<K> &row, uint32_t n, const float *weight, float eps)
{
    float mean = __fdiv_rn(sum_of_squares(row), (float)n);
    float inverse = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
#pragma unroll
    for (int k = 0; k < K; k++) {
        if (first_of(k) >= n)
            continue;
#pragma unroll
        for (int e = 0; e < (int)kLaneWidth; e++)
            row.x[k][e] = __fmul_rn(__fmul_rn(row.x[k][e], inverse), weight[first_of(k) + e]);
    }
}

/* 1 / sqrt(n) for n = 2^k, rounded to fp32. */
__device__ __forceinline__ float hadamard_scale(uint32_t n)
{
    uint32_t k = 31 - __clz(n);
    return __fmul_rn(k % 2 ? 0x1.6a09e6p-1f : 1.0f, lkvi_float((127 - k / 2) << 23));
}

template <int K> __device__ __forceinline__ void hadamard_in_lane(float x[K][kLaneWidth])
{
#pragma unroll
    for (int h = 1; h < (int)kLaneWidth; h *= 2)
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int e = 0; e < (int)kLaneWidth; e++)
                if (!(e & h)) {
                    float a = x[k][e], b = x[k][e + h];
                    x[k][e] = __fadd_rn(a, b);
                    x[k][e + h] = __fsub_rn(a, b);
                }
}

template <int K>
__device__ __forceinline__ void hadamard_over_lanes(float x[K][kLaneWidth], uint32_t n)
{
    for (uint32_t h = kLaneWidth; h < n && h < kSegment; h *= 2) {
        const int step = h / kLaneWidth;
        const bool upper = lane_id() & step;
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int e = 0; e < (int)kLaneWidth; e++) {
                float other = __shfl_xor_sync(kAllLanes, x[k][e], step);
                x[k][e] = upper ? __fsub_rn(other, x[k][e]) : __fadd_rn(x[k][e], other);
            }
    }
}

template <int K> __device__ __forceinline__ void hadamard_over_segments(float x[K][kLaneWidth])
{
#pragma unroll
    for (int h = 1; h < K; h *= 2)
#pragma unroll
        for (int k = 0; k < K; k++)
            if (!(k & h))
#pragma unroll
                for (int e = 0; e < (int)kLaneWidth; e++) {
                    float a = x[k][e], b = x[k + h][e];
                    x[k][e] = __fadd_rn(a, b);
                    x[k + h][e] = __fsub_rn(a, b);
                }
}

/* Orthonormal Hadamard rotation; n a power of two >= 16, and 256 K where K > 1. */
template <int K> __device__ __forceinline__ void hadamard(Row<K> &row, uint32_t n)
{
    hadamard_in_lane<K>(row.x);
    hadamard_over_lanes<K>(row.x, n);
    hadamard_over_segments<K>(row.x);
    const float scale = hadamard_scale(n);
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int e = 0; e < (int)kLaneWidth; e++)
            row.x[k][e] = __fmul_rn(row.x[k][e], scale);
}

/* One pair turned by one position's cos and sin, as lkvi_rope_turn does. */
__device__ __forceinline__ float2 turn_pair(float a, float b, float cos, float sin)
{
    return make_float2(__fsub_rn(__fmul_rn(a, cos), __fmul_rn(b, sin)),
                       __fadd_rn(__fmul_rn(b, cos), __fmul_rn(a, sin)));
}

/* Indices of pair i in a row of n: neighbours, or halves. */
__device__ __forceinline__ uint2 pair_of(uint32_t i, uint32_t n, uint32_t style)
{
    return style == LKV_ROPE_HALF ? make_uint2(i, i + n / 2) : make_uint2(2 * i, 2 * i + 1);
}

/* ---- slots and faults */

__device__ __forceinline__ void fault(struct lkvi_fault_record *f, uint32_t kind, uint64_t count,
                                      uint64_t token, int64_t index)
{
    if (!f)
        return;
    atomicAdd((unsigned long long *)&f->count, (unsigned long long)count);
    if (atomicCAS(&f->first_kind, 0u, kind) == 0u) {
        f->first_token = token;
        f->first_index = index;
    }
}

/* The record of a slot, or NULL: negative slots are skipped, others out of range are also counted
 * (by lane 0). */
__device__ __forceinline__ uint8_t *record_of(const struct lkvi_store &store, int64_t slot,
                                              uint64_t token)
{
    if (slot < 0)
        return nullptr;
    uint64_t block = (uint64_t)slot / store.tokens_per_block;
    if (block >= store.num_blocks || block < store.first_block) {
        if (lane_id() == 0)
            fault(store.faults, LKV_FAULT_SLOT, 1, token, slot);
        return nullptr;
    }
    uint32_t offset = (uint32_t)((uint64_t)slot - block * store.tokens_per_block);
    return store.base + block * store.block_stride + (uint64_t)offset * store.record.bytes;
}

/* Picks the instance for a row of n values: f gets a Segments<K>. */
template <int K> struct Segments {
    static constexpr int value = K;
};
template <class F> cudaError_t with_segments(uint32_t n, F f)
{
    if (n <= kSegment)
        return f(Segments<1>{});
    if (n <= 2 * kSegment)
        return f(Segments<2>{});
    return f(Segments<4>{});
}

} // namespace lkvi
#endif
