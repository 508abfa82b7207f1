/* P attentions over disjoint keys -> the attention over all of them; one CTA a (token, head). The
 * weight of part p is exp(lse_p - lse); a part that saw no key has weight 0 and is not read. Parts
 * are added in order, so the bits never change. */
#include "attention/cuda/rows.cuh"
#include "attention/cuda/state.h"

namespace
{
using namespace lkvi;
constexpr int kThreads = 128;

__device__ __forceinline__ float part_lse(const lkvi_merge_params &p, uint64_t part, uint64_t token,
                                          uint32_t head)
{
    return p.lses[(int64_t)part * p.lse_part_stride + (int64_t)token * p.lse_token_stride + head];
}

__device__ float joint_lse(const lkvi_merge_params &p, uint64_t token, uint32_t head)
{
    float top = -INFINITY, sum = 0.0f;
    for (uint64_t i = 0; i < p.num_parts; i++)
        top = fmaxf(top, part_lse(p, i, token, head));
    if (top == -INFINITY)
        return top;
    for (uint64_t i = 0; i < p.num_parts; i++)
        sum += expf(part_lse(p, i, token, head) - top);
    return top + logf(sum);
}

__device__ float joint_entropy(const lkvi_merge_params &p, uint64_t token, uint32_t head, float lse)
{
    float entropy = 0.0f;
    for (uint64_t i = 0; i < p.num_parts; i++) {
        float part = part_lse(p, i, token, head), weight = expf(part - lse);
        int64_t at =
            (int64_t)i * p.entropy_part_stride + (int64_t)token * p.entropy_token_stride + head;
        if (weight > 0.0f)
            entropy += weight * (p.entropies[at] + lse - part);
    }
    return entropy;
}

__global__ void __launch_bounds__(kThreads)
    merge_kernel(const __grid_constant__ lkvi_merge_params p)
{
    const uint64_t token = blockIdx.x / p.num_heads;
    const uint32_t head = blockIdx.x % p.num_heads;
    const float lse = joint_lse(p, token, head);
    const bool any = lse != -INFINITY;
    for (uint32_t d = threadIdx.x; d < p.dim; d += kThreads) {
        float sum = 0.0f;
        for (uint64_t i = 0; any && i < p.num_parts; i++) {
            float weight = expf(part_lse(p, i, token, head) - lse);
            int64_t at = head_at(p.outs, token, head) + (int64_t)i * p.outs_part_stride + d;
            if (weight > 0.0f)
                sum += weight * get(p.outs.data, p.outs.dtype, at);
        }
        put(p.out.data, p.out.dtype, head_at(p.out, token, head) + d, sum);
    }
    if (threadIdx.x)
        return;
    if (p.lse)
        p.lse[(int64_t)token * p.out_lse_stride + head] = lse;
    if (p.entropy)
        p.entropy[(int64_t)token * p.out_entropy_stride + head] =
            any ? joint_entropy(p, token, head, lse) : 0.0f;
}
} // namespace

cudaError_t lkvi_cuda_merge(const struct lkvi_merge_params *p, cudaStream_t stream)
{
    uint64_t rows = p->num_tokens * p->num_heads;
    if (rows == 0)
        return cudaSuccess;
    merge_kernel<<<(uint32_t)rows, kThreads, 0, stream>>>(*p);
    return cudaGetLastError();
}

cudaError_t lkvi_cuda_merge_load(void)
{
    cudaFuncAttributes facts;
    return cudaFuncGetAttributes(&facts, merge_kernel);
}
