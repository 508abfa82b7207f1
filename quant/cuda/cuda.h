/* The record operations of the CUDA backend: launchers that enqueue and return the launch's own
 * error. Bytes and fp32 bits are those of the scalar codec (docs/formats.md). */
#ifndef LKVI_QUANT_CUDA_CUDA_H
#define LKVI_QUANT_CUDA_CUDA_H

#include <cuda_runtime_api.h>
#include "quant/params.h"

/* Rows live in a warp's registers: longer ones are refused before any launch. */
enum { LKVI_CUDA_MAX_LATENT = 1024 };

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t lkvi_cuda_append(const struct lkvi_append_params *p, cudaStream_t stream);
cudaError_t lkvi_cuda_gather(const struct lkvi_gather_params *p, cudaStream_t stream);
cudaError_t lkvi_cuda_rotate(const struct lkvi_rotate_params *p, cudaStream_t stream);
cudaError_t lkvi_cuda_rope(const struct lkvi_rope_params *p, cudaStream_t stream);
/* Loads the kernels into the context, so that no first launch falls into a graph capture. */
cudaError_t lkvi_cuda_quant_load(void);
cudaError_t lkvi_cuda_gather_load(void);

#ifdef __cplusplus
}
#endif
#endif
