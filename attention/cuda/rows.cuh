/* Any-dtype element access for the small row kernels. */
#ifndef LKVI_ATTENTION_CUDA_ROWS_CUH
#define LKVI_ATTENTION_CUDA_ROWS_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "attention/params.h"

namespace lkvi
{
__device__ __forceinline__ float get(const void *p, uint32_t dtype, int64_t at)
{
    if (dtype == LKV_DTYPE_F32)
        return ((const float *)p)[at];
    if (dtype == LKV_DTYPE_F16)
        return __half2float(((const __half *)p)[at]);
    return __bfloat162float(((const __nv_bfloat16 *)p)[at]);
}

__device__ __forceinline__ void put(void *p, uint32_t dtype, int64_t at, float x)
{
    if (dtype == LKV_DTYPE_F32)
        ((float *)p)[at] = x;
    else if (dtype == LKV_DTYPE_F16)
        ((__half *)p)[at] = __float2half_rn(x);
    else
        ((__nv_bfloat16 *)p)[at] = __float2bfloat16_rn(x);
}

__device__ __forceinline__ int64_t head_at(const struct lkvi_heads &v, uint64_t token,
                                           uint32_t head)
{
    return (int64_t)token * v.token_stride + (int64_t)head * v.head_stride;
}
} // namespace lkvi
#endif
