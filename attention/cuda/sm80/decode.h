/* The generic decode family: mma.sync and cp.async, sm_80 and later. Its split is a pure function
 * of a sequence's length and the plan, so every plan of it is batch invariant and nothing is
 * prepared in plan_update. Entered through the rows in sm80/rows.c. */
#ifndef LKVI_ATTENTION_CUDA_SM80_DECODE_H
#define LKVI_ATTENTION_CUDA_SM80_DECODE_H

#include <cuda_runtime_api.h>
#include "attention/params.h"

#ifdef __CUDACC__
#define LKVI_SM80_BOTH __host__ __device__ static inline
#else
#define LKVI_SM80_BOTH static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum {
    LKVI_SM80_TILE_TOKENS = 32,
    LKVI_SM80_MIN_TILES = 8, /* of a split: a shorter one costs more than it saves */
    LKVI_SM80_MAX_SPLITS = 64,
    LKVI_SM80_MAX_LATENT = 512,
    LKVI_SM80_MAX_ROPE = 64
};

/* What the host knows when it launches. */
struct lkvi_sm80_shape {
    uint32_t rows;       /* (token, head) rows of one CTA */
    uint32_t row_tiles;  /* CTAs that a sequence's rows need at most */
    uint32_t latent;     /* padded latent dims */
    uint32_t splits_max; /* of one sequence */
};

struct lkvi_sm80_split {
    int32_t splits, tiles; /* tiles of one split; the last may have fewer */
};

LKVI_SM80_BOTH struct lkvi_sm80_split lkvi_sm80_split_of(int32_t length, uint32_t splits_max)
{
    struct lkvi_sm80_split s;
    int32_t tiles = (length + LKVI_SM80_TILE_TOKENS - 1) / LKVI_SM80_TILE_TOKENS;
    int32_t want = (tiles + LKVI_SM80_MIN_TILES - 1) / LKVI_SM80_MIN_TILES;
    want = want > (int32_t)splits_max ? (int32_t)splits_max : want;
    want = want < 1 ? 1 : want;
    s.tiles = (tiles + want - 1) / want;
    s.tiles = s.tiles < 1 ? 1 : s.tiles;
    s.splits = (tiles + s.tiles - 1) / s.tiles;
    s.splits = s.splits < 1 ? 1 : s.splits;
    return s;
}

/* Floats of one partial: rows of {max, sum, slope, 0} and of the output. */
LKVI_SM80_BOTH uint64_t lkvi_sm80_partial_floats(const struct lkvi_sm80_shape *s)
{
    return (uint64_t)s->rows * (s->latent + 4);
}

/* One launcher a format; they pick the instance by shape. */
cudaError_t lkvi_sm80_decode_bf16(const struct lkvi_attend_params *p,
                                  const struct lkvi_sm80_shape *shape, cudaStream_t stream);
cudaError_t lkvi_sm80_decode_fp8(const struct lkvi_attend_params *p,
                                 const struct lkvi_sm80_shape *shape, cudaStream_t stream);
cudaError_t lkvi_sm80_decode_int8(const struct lkvi_attend_params *p,
                                  const struct lkvi_sm80_shape *shape, cudaStream_t stream);
cudaError_t lkvi_sm80_decode_nvfp4(const struct lkvi_attend_params *p,
                                   const struct lkvi_sm80_shape *shape, cudaStream_t stream);
/* Bytes of shared memory that the instance needs; also loads it into the context. */
uint32_t lkvi_sm80_smem_bf16(const struct lkvi_sm80_shape *shape, uint32_t record_bytes);
uint32_t lkvi_sm80_smem_fp8(const struct lkvi_sm80_shape *shape, uint32_t record_bytes);
uint32_t lkvi_sm80_smem_int8(const struct lkvi_sm80_shape *shape, uint32_t record_bytes);
uint32_t lkvi_sm80_smem_nvfp4(const struct lkvi_sm80_shape *shape, uint32_t record_bytes);
/* Sums the partials of sequences that were split. */
cudaError_t lkvi_sm80_combine(const struct lkvi_attend_params *p,
                              const struct lkvi_sm80_shape *shape, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
