/* The generic rows, one a format; they come after an architecture's own. */
#ifndef LKVI_ATTENTION_CUDA_SM80_ROWS_H
#define LKVI_ATTENTION_CUDA_SM80_ROWS_H

#include "attention/cuda/kernel.h"

extern const struct lkvi_cuda_kernel lkvi_sm80_kernels[];
extern const uint32_t lkvi_sm80_num_kernels;

#endif
