/* In: the partials of split sequences. Out: out, lse, entropy of their rows. One CTA a row; its
 * threads own four dims each and walk the splits in order, so the bits never change. */
#include "attention/cuda/sm80/steps.cuh"

namespace lkvi
{
namespace sm80
{
__device__ __forceinline__ void store_row(const Args &a, const float *partial, const float *scale,
                                          int splits, int row, int64_t to)
{
    const uint64_t pitch = lkvi_sm80_partial_floats(&a.shape);
    const int d = threadIdx.x * 4;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const float *from = partial + 4 * a.shape.rows + (uint64_t)row * a.shape.latent + d;
#pragma unroll 4
    for (int s = 0; s < splits; s++) {
        float4 v = *(const float4 *)(from + s * pitch);
        sum.x += scale[s] * v.x;
        sum.y += scale[s] * v.y;
        sum.z += scale[s] * v.z;
        sum.w += scale[s] * v.w;
    }
    if ((uint32_t)d >= a.store.record.latent_dim)
        return;
    store_pair(a.out.data, a.out.dtype, to + d, sum.x, sum.y);
    store_pair(a.out.data, a.out.dtype, to + d + 2, sum.z, sum.w);
}

__global__ void combine_kernel(const __grid_constant__ Args a)
{
    __shared__ float scale[LKVI_SM80_MAX_SPLITS];
    const uint32_t rows = a.shape.rows * a.shape.row_tiles;
    const uint32_t seq = blockIdx.x / rows, n = blockIdx.x % rows;
    Work w = find_sequence(a, seq, n / a.shape.rows, 0);
    const int row = n % a.shape.rows, j = n / a.num_heads, h = n % a.num_heads;
    if (w.cut.splits < 2 || j >= w.q_len)
        return;
    const float *partial = partial_of(a, w);
    const uint64_t pitch = lkvi_sm80_partial_floats(&a.shape);
    float top = -INFINITY, sum = 0.0f, slope = 0.0f;
    for (int s = 0; s < w.cut.splits; s++)
        top = fmaxf(top, partial[s * pitch + 4 * row]);
    for (int s = 0; s < w.cut.splits; s++) {
        float4 v = *(const float4 *)(partial + s * pitch + 4 * row);
        float weight = v.y > 0.0f ? exp2f(v.x - top) : 0.0f;
        sum += weight * v.y;
        slope += v.y > 0.0f ? weight * (v.z + v.y * (v.x - top)) : 0.0f;
    }
    for (int s = threadIdx.x; s < w.cut.splits; s += blockDim.x) {
        float4 v = *(const float4 *)(partial + s * pitch + 4 * row);
        scale[s] = v.y > 0.0f && sum > 0.0f ? exp2f(v.x - top) / sum : 0.0f;
    }
    __syncthreads();
    const int64_t token = w.first_token + j;
    store_row(a, partial, scale, w.cut.splits, row,
              token * a.out.token_stride + (int64_t)h * a.out.head_stride);
    if (threadIdx.x)
        return;
    if (a.lse)
        a.lse[token * a.lse_stride + h] = sum > 0.0f ? (top + log2f(sum)) * kLn2 : -INFINITY;
    if (a.entropy)
        a.entropy[token * a.entropy_stride + h] =
            sum > 0.0f ? kLn2 * (log2f(sum) - slope / sum) : 0.0f;
}

} // namespace sm80
} // namespace lkvi

cudaError_t lkvi_sm80_combine(const struct lkvi_attend_params *p,
                              const struct lkvi_sm80_shape *shape, cudaStream_t stream)
{
    using namespace lkvi::sm80;
    if (shape->splits_max < 2 || p->batch.num_seqs == 0)
        return cudaSuccess;
    Args a = {};
    a.store = p->store;
    a.batch = p->batch;
    a.out = p->out;
    a.lse = p->lse;
    a.entropy = p->entropy;
    a.partials = (float *)p->workspace;
    a.lse_stride = p->lse_stride;
    a.entropy_stride = p->entropy_stride;
    a.shape = *shape;
    a.num_heads = p->plan.num_heads;
    a.block_shift = 31 - __builtin_clz(p->store.tokens_per_block);
    const uint32_t grid = p->batch.num_seqs * shape->rows * shape->row_tiles;
    combine_kernel<<<grid, shape->latent / 4, 0, stream>>>(a);
    return cudaGetLastError();
}
