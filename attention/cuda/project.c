/* q absorb and output projection by one strided batched GEMM over the heads. In: [T, H, D] views of
 * any dtype, weights as kv_b_proj was split. Out: fp32 sums, rounded once. The one idea: cuBLAS is
 * column-major, so rows of tokens are its columns and no transpose is made; operands of another
 * dtype than the weights' are converted in the caller's scratch, which also holds cuBLAS's
 * workspace, so nothing is allocated and a capture stays legal. */
#include "attention/cuda/state.h"

enum { BLAS_WORKSPACE_BYTES = 16 << 20 };

struct dims {
    uint32_t in, out;
};

static struct dims dims_of(const struct lkvi_project_params *p)
{
    const struct lkvi_weights_view *w = &p->weights;
    if (p->to_value)
        return (struct dims){w->latent_dim, w->v_dim};
    return (struct dims){w->nope_dim, w->latent_dim};
}

static uint64_t dtype_bytes(uint32_t dtype)
{
    return dtype == LKV_DTYPE_F32 ? 4 : 2;
}

static uint64_t rounded(uint64_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static uint64_t rows_bytes(const struct lkvi_project_params *p, uint32_t dim, uint32_t dtype)
{
    return rounded(p->num_tokens * p->weights.num_heads * dim * dtype_bytes(dtype));
}

/* cuBLAS writes the operands' dtype or fp32. */
static int writes_direct(const struct lkvi_project_params *p)
{
    return p->out.dtype == LKV_DTYPE_F32 || p->out.dtype == p->weights.dtype;
}

lkv_status lkvi_cuda_project_scratch(void *state, const struct lkvi_project_params *p,
                                     size_t *bytes)
{
    struct dims d = dims_of(p);
    (void)state;
    /* views may differ from call to call: both conversions are always paid for */
    *bytes = BLAS_WORKSPACE_BYTES + rows_bytes(p, d.in, p->weights.dtype) +
             rows_bytes(p, d.out, LKV_DTYPE_F32);
    return LKV_OK;
}

static struct lkvi_heads dense(void *data, uint32_t num_heads, uint32_t dim, uint32_t dtype)
{
    return (struct lkvi_heads){
        .data = data, .token_stride = (int64_t)num_heads * dim, .head_stride = dim, .dtype = dtype};
}

static cudaDataType cuda_type(uint32_t dtype)
{
    return dtype == LKV_DTYPE_F32 ? CUDA_R_32F : dtype == LKV_DTYPE_F16 ? CUDA_R_16F : CUDA_R_16BF;
}

static int leading(int64_t stride, uint32_t dim)
{
    return (int)(stride > dim ? stride : dim); /* one token: its stride may be anything */
}

static lkv_status gemm(struct lkvi_cuda_state *state, const struct lkvi_project_params *p,
                       const struct lkvi_heads *in, const struct lkvi_heads *out)
{
    const struct lkvi_weights_view *w = &p->weights;
    const float one = 1.0f, zero = 0.0f;
    struct dims d = dims_of(p);
    LKVI_CUBLAS(cublasGemmStridedBatchedEx(
        state->blas, p->to_value ? CUBLAS_OP_T : CUBLAS_OP_N, CUBLAS_OP_N, (int)d.out,
        (int)p->num_tokens, (int)d.in, &one, p->to_value ? w->w_uv : w->w_uk, cuda_type(w->dtype),
        (int)w->latent_dim, (long long)d.in * d.out, in->data, cuda_type(in->dtype),
        leading(in->token_stride, d.in), in->head_stride, &zero, out->data, cuda_type(out->dtype),
        leading(out->token_stride, d.out), out->head_stride, (int)w->num_heads, CUBLAS_COMPUTE_32F,
        CUBLAS_GEMM_DEFAULT));
    return LKV_OK;
}

/* Stream and workspace are the handle's settings, and setting the stream resets the workspace. */
static lkv_status locked_gemm(struct lkvi_cuda_state *state, const struct lkvi_project_params *p,
                              const struct lkvi_heads *in, const struct lkvi_heads *out,
                              void *workspace, cudaStream_t stream)
{
    pthread_mutex_lock(&state->blas_lock);
    cublasStatus_t error = cublasSetStream(state->blas, stream);
    if (error == CUBLAS_STATUS_SUCCESS)
        error = cublasSetWorkspace(state->blas, workspace, BLAS_WORKSPACE_BYTES);
    lkv_status status = error == CUBLAS_STATUS_SUCCESS
                            ? gemm(state, p, in, out)
                            : lkvi_cublas_fail(error, "cublasSetStream or cublasSetWorkspace");
    pthread_mutex_unlock(&state->blas_lock);
    return status;
}

lkv_status lkvi_cuda_project(void *opaque, const struct lkvi_project_params *p, void *scratch,
                             size_t bytes, void *stream)
{
    const struct lkvi_weights_view *w = &p->weights;
    struct dims d = dims_of(p);
    uint8_t *at = (uint8_t *)scratch + BLAS_WORKSPACE_BYTES;
    struct lkvi_heads in = p->in, out = p->out;
    (void)bytes;
    if (p->num_tokens == 0)
        return LKV_OK;
    if (in.dtype != w->dtype) {
        in = dense(at, w->num_heads, d.in, w->dtype);
        at += rows_bytes(p, d.in, w->dtype);
        LKVI_CUDA(lkvi_cuda_convert(&p->in, &in, p->num_tokens, w->num_heads, d.in, stream));
    }
    if (!writes_direct(p))
        out = dense(at, w->num_heads, d.out, LKV_DTYPE_F32);
    LKVI_TRY(locked_gemm(opaque, p, &in, &out, scratch, stream));
    if (!writes_direct(p))
        LKVI_CUDA(lkvi_cuda_convert(&out, &p->out, p->num_tokens, w->num_heads, d.out, stream));
    return LKV_OK;
}
