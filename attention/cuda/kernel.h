/* The seam between the CUDA backend's operation table and its attention kernels. In: checked
 * parameters and what the device is. Out: one selection table of rows; the backend takes the first
 * row that fits the device, the format and the plan, and asks it the three questions: supported?,
 * how much scratch?, run. A launcher only enqueues: no allocation, no synchronisation. */
#ifndef LKVI_ATTENTION_CUDA_KERNEL_H
#define LKVI_ATTENTION_CUDA_KERNEL_H

#include <cuda_runtime_api.h>
#include "attention/params.h"
#include "core/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a launcher knows of the device; filled once by the backend's open(). */
struct lkvi_cuda_launch {
    const struct lkvi_host *host; /* its fail() and log() */
    void *encode_tiled;           /* cuTensorMapEncodeTiled, NULL if the driver lacks it */
    int32_t device;
    uint32_t arch; /* 90 for Hopper */
    uint32_t num_sms;
    uint32_t smem_bytes_per_block; /* opt-in limit */
};

/* q of the attend parameters is latent form here and out is latent form: the backend projects
 * before and after. A row refuses in supported() what it cannot do; the generic rows come last. */
struct lkvi_cuda_kernel {
    const char *name;
    uint32_t arch_min, arch_max;   /* inclusive */
    uint32_t format;               /* LKV_FORMAT_* */
    uint32_t heads_min, heads_max; /* inclusive */
    /* 1 if the row can run every batch within the plan's maxima */
    int (*supported)(const struct lkvi_plan_params *plan, const struct lkvi_cuda_launch *launch);
    /* fills plan->num_splits_max; returns the workspace bytes the row needs from its base */
    uint64_t (*scratch)(struct lkvi_plan_params *plan, const struct lkvi_cuda_launch *launch);
    /* splits the batch from its device-resident lengths into the front of the workspace */
    lkv_status (*update)(const struct lkvi_plan_params *plan, const struct lkvi_batch_view *batch,
                         void *workspace, const struct lkvi_cuda_launch *launch,
                         cudaStream_t stream);
    /* decode and combine; the workspace is the one update() filled */
    lkv_status (*attend)(const struct lkvi_attend_params *p, const struct lkvi_cuda_launch *launch,
                         cudaStream_t stream);
};

/* The Hopper rows, best first, and their number. */
extern const struct lkvi_cuda_kernel lkvi_sm90_kernels[];
extern const uint32_t lkvi_sm90_num_kernels;

lkv_status lkvi_decode_int8_h16_sm90(const struct lkvi_attend_params *p,
                                     const struct lkvi_cuda_launch *launch, cudaStream_t stream);
lkv_status lkvi_decode_int8_h64_sm90(const struct lkvi_attend_params *p,
                                     const struct lkvi_cuda_launch *launch, cudaStream_t stream);
lkv_status lkvi_decode_nvfp4_h64_sm90(const struct lkvi_attend_params *p,
                                      const struct lkvi_cuda_launch *launch, cudaStream_t stream);
lkv_status lkvi_decode_nvfp4_h16_sm90(const struct lkvi_attend_params *p,
                                      const struct lkvi_cuda_launch *launch, cudaStream_t stream);
lkv_status lkvi_decode_bf16_h16_sm90(const struct lkvi_attend_params *p,
                                     const struct lkvi_cuda_launch *launch, cudaStream_t stream);
lkv_status lkvi_decode_bf16_h64_sm90(const struct lkvi_attend_params *p,
                                     const struct lkvi_cuda_launch *launch, cudaStream_t stream);
lkv_status lkvi_decode_fp8_h16_sm90(const struct lkvi_attend_params *p,
                                    const struct lkvi_cuda_launch *launch, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
