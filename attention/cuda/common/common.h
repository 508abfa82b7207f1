/* What the kernels of every architecture share: the split and the combination of its partials. */
#ifndef LKVI_ATTENTION_CUDA_COMMON_H
#define LKVI_ATTENTION_CUDA_COMMON_H

#include <cuda_runtime_api.h>
#include "attention/cuda/common/split.h"
#include "attention/params.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Enqueues the device's split of the batch into the workspace. */
cudaError_t lkvi_cuda_split(const struct lkvi_split_shape *shape,
                            const struct lkvi_batch_view *batch, uint32_t tokens_per_block,
                            void *workspace, cudaStream_t stream);
/* Enqueues the sum of the partials into out, lse and entropy; starts under the decode's tail. */
cudaError_t lkvi_cuda_combine(const struct lkvi_split_shape *shape,
                              const struct lkvi_attend_params *p, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
