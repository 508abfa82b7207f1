/* What every file of the CUDA backend shares: the device's facts, the cuBLAS handle, and how a CUDA
 * or cuBLAS status becomes a sentence. Every entry of the operation table runs between enter and
 * leave, so the caller's current device is as before and no error is left sticky. */
#ifndef LKVI_ATTENTION_CUDA_STATE_H
#define LKVI_ATTENTION_CUDA_STATE_H

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include "attention/cuda/kernel.h"
#include "core/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

struct lkvi_cuda_state {
    lkv_context *ctx;
    int32_t device;
    uint32_t compute_capability; /* 90 for Hopper */
    uint32_t num_sms, l2_bytes;
    uint64_t memory_bytes, smem_bytes_per_block;
    struct lkvi_cuda_launch launch;
    pthread_mutex_t blas_lock; /* stream and workspace are settings of the handle */
    cublasHandle_t blas;
    char name[128];
};

/* A plan flag of the tests (api/ refuses it): an architecture's own rows are passed over, so that
 * the generic family runs where it would not be chosen. */
#define LKVI_PLAN_GENERIC_ROWS 0x80000000u
/* And this row of the table alone: LKV_E_INVALID behind the table's end. */
#define LKVI_PLAN_ONLY_ROW(row) ((uint32_t)((row) + 1) << 24)
#define LKVI_PLAN_ROW_OF(flags) ((flags) >> 24 & 127u)

/* The core's way to speak, set once by lkvi_backend_open. */
extern const struct lkvi_host *lkvi_cuda_host;

/* Records the failed call with the driver's words, clears the last error, returns LKV_E_CUDA
 * (LKV_E_NO_MEMORY for an exhausted device). */
lkv_status lkvi_cuda_fail(cudaError_t error, const char *what);
lkv_status lkvi_cublas_fail(cublasStatus_t status, const char *what);

#define LKVI_CUDA(call)                                                                            \
    do {                                                                                           \
        cudaError_t e_ = (call);                                                                   \
        if (e_ != cudaSuccess)                                                                     \
            return lkvi_cuda_fail(e_, #call);                                                      \
    } while (0)
#define LKVI_CUBLAS(call)                                                                          \
    do {                                                                                           \
        cublasStatus_t e_ = (call);                                                                \
        if (e_ != CUBLAS_STATUS_SUCCESS)                                                           \
            return lkvi_cublas_fail(e_, #call);                                                    \
    } while (0)
#define LKVI_TRY(call)                                                                             \
    do {                                                                                           \
        lkv_status s_ = (call);                                                                    \
        if (s_ != LKV_OK)                                                                          \
            return s_;                                                                             \
    } while (0)

/* Projections (project.c). The scratch holds operands in another dtype than the weights', and
 * cuBLAS's own workspace. */
lkv_status lkvi_cuda_project_scratch(void *state, const struct lkvi_project_params *p,
                                     size_t *bytes);
lkv_status lkvi_cuda_project(void *state, const struct lkvi_project_params *p, void *scratch,
                             size_t bytes, void *stream);

/* Planning and attention (plan.c): the table of kernel rows, HEAD forms around it. */
lkv_status lkvi_cuda_plan(void *state, struct lkvi_plan_params *p);
lkv_status lkvi_cuda_plan_update(void *state, const struct lkvi_plan_params *plan,
                                 const struct lkvi_batch_view *batch, void *workspace,
                                 void *stream);
lkv_status lkvi_cuda_attend(void *state, const struct lkvi_attend_params *p, void *stream);

/* Launchers in .cu files: they return the launch's own error. */
cudaError_t lkvi_cuda_merge(const struct lkvi_merge_params *p, cudaStream_t stream);
cudaError_t lkvi_cuda_project_rows(const struct lkvi_project_params *p, cudaStream_t stream);
cudaError_t lkvi_cuda_convert(const struct lkvi_heads *in, const struct lkvi_heads *out,
                              uint64_t num_tokens, uint32_t num_heads, uint32_t dim,
                              cudaStream_t stream);
/* Loads the kernels into the context, so that no first launch falls into a graph capture. */
cudaError_t lkvi_cuda_attention_load(void);
cudaError_t lkvi_cuda_merge_load(void);

#ifdef __cplusplus
}
#endif
#endif
