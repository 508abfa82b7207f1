/* Host side of the Hopper launches: the split's shape, the tensor maps, decode and combine. */
#ifndef LKVI_ATTENTION_CUDA_SM90_LAUNCH_H
#define LKVI_ATTENTION_CUDA_SM90_LAUNCH_H

#include <cuda.h>
#include "attention/cuda/common/common.h"
#include "attention/cuda/kernel.h"
#include "core/status.h"

struct lkvi_sm90_job {
    struct lkvi_split_shape shape;
    struct lkvi_split split;
    uint32_t grid;
};

/* The split's shape is a function of the plan's maxima alone, so that update and attend agree. */
void lkvi_sm90_shape(struct lkvi_split_shape *shape, const struct lkvi_plan_params *plan,
                     const struct lkvi_cuda_launch *launch, uint32_t rows);
void lkvi_sm90_job_make(struct lkvi_sm90_job *job, const struct lkvi_attend_params *p,
                        const struct lkvi_cuda_launch *launch, uint32_t rows);
/* Boxes of `width` bytes x min(tokens, block) tokens over [block][token][record byte]. */
lkv_status lkvi_sm90_map(CUtensorMap *map, const struct lkvi_attend_params *p,
                         const struct lkvi_cuda_launch *launch, uint32_t width, uint32_t tokens,
                         int swizzled);
lkv_status lkvi_sm90_error(const struct lkvi_cuda_launch *launch, cudaError_t error,
                           const char *what);

#ifdef __CUDACC__
#include "attention/cuda/sm90/frame.cuh"

static inline void lkvi_sm90_args(lkvi::decode_args *a, const struct lkvi_sm90_job *job,
                                  const struct lkvi_attend_params *p)
{
    a->split = job->split;
    a->batch = p->batch;
    a->q = p->q;
    a->q_rope = p->q_rope;
    a->bias = p->bias;
    a->faults = p->store.faults;
    a->bias_stride = p->bias_stride;
    a->num_blocks = p->store.num_blocks;
    a->num_heads = p->plan.num_heads;
    a->block_shift = __builtin_ctz(p->store.tokens_per_block);
    a->piece = p->store.tokens_per_block < 64 ? (int)p->store.tokens_per_block : 64;
    a->row_tiles = job->shape.row_tiles;
    a->scale_log2 = (float)(p->scale * 1.4426950408889634);
    a->num_ranges = (int)job->shape.num_ranges;
}

template <typename Maps>
static lkv_status lkvi_sm90_run(const struct lkvi_sm90_job *job, const struct lkvi_attend_params *p,
                                const struct lkvi_cuda_launch *launch, cudaStream_t stream,
                                void (*kernel)(const lkvi::decode_args, const Maps),
                                size_t smem_bytes, int threads, const lkvi::decode_args &a,
                                const Maps &maps)
{
    cudaError_t error = cudaFuncSetAttribute(
        (const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem_bytes);
    if (error == cudaSuccess) {
        kernel<<<job->grid, threads, smem_bytes, stream>>>(a, maps);
        error = cudaGetLastError();
    }
    if (error == cudaSuccess)
        error = lkvi_cuda_combine(&job->shape, p, stream);
    return error == cudaSuccess ? LKV_OK : lkvi_sm90_error(launch, error, "decode");
}
#endif
#endif
