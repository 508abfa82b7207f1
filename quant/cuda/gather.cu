/* Records -> dense rows (gather), and dense rows -> rotated or RoPE-turned rows. One warp a row,
 * the arithmetic of row.cuh, so the fp32 bits are the CPU's. Negative slots give rows of zeros;
 * slots out of range too, and are counted. In may be out: a warp has read its row before it writes.
 */
#include <cuda_runtime.h>
#include "quant/cuda/cuda.h"
#include "quant/cuda/encode.cuh"

namespace lkvi
{

template <int K>
__device__ __forceinline__ void gather_latent(const struct lkvi_gather_params &p, uint64_t token,
                                              const uint8_t *bytes)
{
    const uint32_t n = p.store.record.latent_dim;
    Row<K> row;
    if (bytes) {
        decode_row(p.store.record, bytes, row);
        if (p.unrotate)
            hadamard(row, n);
    } else {
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int e = 0; e < (int)kLaneWidth; e++)
                row.x[k][e] = 0.0f;
    }
    store_row(row, row_of(p.latent, token), p.latent.dtype, n);
}

template <int K>
__global__ void __launch_bounds__(32 * kWarps)
    gather_kernel(const __grid_constant__ struct lkvi_gather_params p)
{
    const uint64_t token = (uint64_t)blockIdx.x * kWarps + threadIdx.x / 32;
    if (token >= p.num_tokens)
        return;
    const uint8_t *bytes = record_of(p.store, p.slots[token], token);
    if (p.latent.data)
        gather_latent<K>(p, token, bytes);
    if (!p.rope.data)
        return;
    const uint16_t *rope = (const uint16_t *)(bytes + p.store.record.rope_offset);
    for (uint32_t i = lane_id(); i < p.store.record.rope_dim; i += 32)
        store1(bytes ? lkvi_f32_from_bf16(rope[i]) : 0.0f, row_of(p.rope, token), p.rope.dtype, i);
}

template <int K>
__global__ void __launch_bounds__(32 * kWarps)
    rotate_kernel(const __grid_constant__ struct lkvi_rotate_params p)
{
    const uint64_t r = (uint64_t)blockIdx.x * kWarps + threadIdx.x / 32;
    if (r >= p.num_rows)
        return;
    Row<K> row;
    load_row(row, row_of(p.in, r), p.in.dtype, p.dim);
    hadamard(row, p.dim);
    store_row(row, row_of(p.out, r), p.out.dtype, p.dim);
}

/* One warp a (token, head); rows whose position is outside the table stay untouched. */
__global__ void __launch_bounds__(32 * kWarps)
    rope_kernel(const __grid_constant__ struct lkvi_rope_params p)
{
    const uint64_t row = (uint64_t)blockIdx.x * kWarps + threadIdx.x / 32;
    if (row >= p.num_tokens * p.num_heads)
        return;
    const uint64_t token = row / p.num_heads, head = row - token * p.num_heads;
    const int32_t position = p.positions[token];
    if (position < 0 || (uint64_t)position >= p.num_positions)
        return;
    const int64_t in = (int64_t)token * p.in.stride + (int64_t)head * p.in_head_stride;
    const int64_t out = (int64_t)token * p.out.stride + (int64_t)head * p.out_head_stride;
    for (uint32_t i = lane_id(); i < p.dim / 2; i += 32) {
        uint2 at = pair_of(i, p.dim, p.style);
        float a = load1(p.in.data, p.in.dtype, in + at.x);
        float b = load1(p.in.data, p.in.dtype, in + at.y);
        float2 v = make_float2(a, b);
        if (p.style != LKV_ROPE_NONE) {
            uint64_t t = (uint64_t)position * (p.dim / 2) + i;
            v = turn_pair(a, b, p.cos[t], p.sin[t]);
        }
        store1(v.x, p.out.data, p.out.dtype, out + at.x);
        store1(v.y, p.out.data, p.out.dtype, out + at.y);
    }
}

inline uint32_t grid_for(uint64_t rows)
{
    return (uint32_t)((rows + kWarps - 1) / kWarps);
}

template <int K> cudaError_t load_rows()
{
    cudaFuncAttributes facts;
    cudaError_t error = cudaFuncGetAttributes(&facts, gather_kernel<K>);
    return error == cudaSuccess ? cudaFuncGetAttributes(&facts, rotate_kernel<K>) : error;
}

} // namespace lkvi

using namespace lkvi;

cudaError_t lkvi_cuda_gather(const struct lkvi_gather_params *p, cudaStream_t stream)
{
    if (p->num_tokens == 0)
        return cudaSuccess;
    return with_segments(p->store.record.latent_dim, [&](auto k) {
        gather_kernel<decltype(k)::value><<<grid_for(p->num_tokens), 32 * kWarps, 0, stream>>>(*p);
        return cudaGetLastError();
    });
}

cudaError_t lkvi_cuda_rotate(const struct lkvi_rotate_params *p, cudaStream_t stream)
{
    if (p->num_rows == 0)
        return cudaSuccess;
    return with_segments(p->dim, [&](auto k) {
        rotate_kernel<decltype(k)::value><<<grid_for(p->num_rows), 32 * kWarps, 0, stream>>>(*p);
        return cudaGetLastError();
    });
}

cudaError_t lkvi_cuda_rope(const struct lkvi_rope_params *p, cudaStream_t stream)
{
    if (p->num_tokens == 0)
        return cudaSuccess;
    rope_kernel<<<grid_for(p->num_tokens * p->num_heads), 32 * kWarps, 0, stream>>>(*p);
    return cudaGetLastError();
}

cudaError_t lkvi_cuda_gather_load(void)
{
    for (uint32_t n = kSegment; n <= 4 * kSegment; n *= 2) {
        cudaError_t error = with_segments(n, [](auto k) { return load_rows<k.value>(); });
        if (error != cudaSuccess)
            return error;
    }
    cudaFuncAttributes facts;
    return cudaFuncGetAttributes(&facts, rope_kernel);
}
