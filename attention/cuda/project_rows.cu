/* Two helpers of project.c. convert: [T, H, D] from one dtype to another. project_rows: the
 * projection one (token, head) at a time in fp32, for batch-invariant plans: cuBLAS chooses its
 * kernel by the number of rows, this one never looks at it. */
#include "attention/cuda/rows.cuh"
#include "attention/cuda/state.h"

namespace
{
using namespace lkvi;
constexpr int kThreads = 256;

struct Convert {
    lkvi_heads in, out;
    uint32_t num_heads, dim;
};

__global__ void __launch_bounds__(kThreads) convert_kernel(const __grid_constant__ Convert c)
{
    const uint64_t token = blockIdx.x / c.num_heads;
    const uint32_t head = blockIdx.x % c.num_heads;
    const int64_t from = head_at(c.in, token, head), to = head_at(c.out, token, head);
    for (uint32_t d = threadIdx.x; d < c.dim; d += kThreads)
        put(c.out.data, c.out.dtype, to + d, get(c.in.data, c.in.dtype, from + d));
}

/* out[c] = sum over n of in[n] * W[n][c]: threads own columns. */
__device__ void absorb_row(const lkvi_project_params &p, const float *in, uint32_t head, int64_t to)
{
    const uint32_t rows = p.weights.nope_dim, columns = p.weights.latent_dim;
    const int64_t base = (int64_t)head * rows * columns;
    for (uint32_t c = threadIdx.x; c < columns; c += kThreads) {
        float sum = 0.0f;
        for (uint32_t n = 0; n < rows; n++)
            sum += in[n] * get(p.weights.w_uk, p.weights.dtype, base + (int64_t)n * columns + c);
        put(p.out.data, p.out.dtype, to + c, sum);
    }
}

/* out[v] = sum over l of W[v][l] * in[l]: warps own rows. */
__device__ void value_row(const lkvi_project_params &p, const float *in, uint32_t head, int64_t to)
{
    const uint32_t rows = p.weights.v_dim, columns = p.weights.latent_dim;
    const int64_t base = (int64_t)head * rows * columns;
    for (uint32_t v = threadIdx.x / 32; v < rows; v += kThreads / 32) {
        float sum = 0.0f;
        for (uint32_t l = threadIdx.x % 32; l < columns; l += 32)
            sum += in[l] * get(p.weights.w_uv, p.weights.dtype, base + (int64_t)v * columns + l);
        for (int d = 16; d > 0; d /= 2)
            sum += __shfl_xor_sync(~0u, sum, d);
        if (threadIdx.x % 32 == 0)
            put(p.out.data, p.out.dtype, to + v, sum);
    }
}

__global__ void __launch_bounds__(kThreads)
    project_rows_kernel(const __grid_constant__ lkvi_project_params p)
{
    extern __shared__ float in[];
    const uint32_t heads = p.weights.num_heads;
    const uint64_t token = blockIdx.x / heads;
    const uint32_t head = blockIdx.x % heads;
    const uint32_t dim = p.to_value ? p.weights.latent_dim : p.weights.nope_dim;
    for (uint32_t d = threadIdx.x; d < dim; d += kThreads)
        in[d] = get(p.in.data, p.in.dtype, head_at(p.in, token, head) + d);
    __syncthreads();
    if (p.to_value)
        value_row(p, in, head, head_at(p.out, token, head));
    else
        absorb_row(p, in, head, head_at(p.out, token, head));
}
} // namespace

cudaError_t lkvi_cuda_convert(const struct lkvi_heads *in, const struct lkvi_heads *out,
                              uint64_t num_tokens, uint32_t num_heads, uint32_t dim,
                              cudaStream_t stream)
{
    Convert c = {*in, *out, num_heads, dim};
    convert_kernel<<<(uint32_t)(num_tokens * num_heads), kThreads, 0, stream>>>(c);
    return cudaGetLastError();
}

cudaError_t lkvi_cuda_project_rows(const struct lkvi_project_params *p, cudaStream_t stream)
{
    if (p->num_tokens == 0)
        return cudaSuccess;
    const uint32_t dim = p->to_value ? p->weights.latent_dim : p->weights.nope_dim;
    project_rows_kernel<<<(uint32_t)(p->num_tokens * p->weights.num_heads), kThreads, 4 * dim,
                          stream>>>(*p);
    return cudaGetLastError();
}

cudaError_t lkvi_cuda_attention_load(void)
{
    cudaFuncAttributes facts;
    cudaError_t error = cudaFuncGetAttributes(&facts, convert_kernel);
    if (error == cudaSuccess)
        error = cudaFuncGetAttributes(&facts, project_rows_kernel);
    return error == cudaSuccess ? lkvi_cuda_merge_load() : error;
}
