/* POD parameters of the record operations: checked by api/, then trusted by every backend. Pointers
 * are device pointers. */
#ifndef LKVI_QUANT_PARAMS_H
#define LKVI_QUANT_PARAMS_H

#include "quant/record.h"

#ifdef __cplusplus
extern "C" {
#endif

struct lkvi_rows { /* a 2-D view: row r starts at data + r * stride elements */
    void *data;
    int64_t stride; /* elements */
    uint32_t dtype; /* LKV_DTYPE_* */
    uint32_t reserved;
};

struct lkvi_append_params {
    struct lkvi_store store;
    uint64_t num_tokens;      /* T */
    struct lkvi_rows latent;  /* [T, L] */
    struct lkvi_rows rope;    /* [T, R], data NULL if R is 0 */
    const int64_t *slots;     /* [T] */
    const float *norm_weight; /* [L], may be NULL */
    const float *rope_cos;    /* [num_positions, R / 2], may be NULL: no fused RoPE */
    const float *rope_sin;
    const int32_t *positions; /* [T], with rope_cos */
    uint64_t num_positions;
    float norm_eps;
    uint32_t rope_style; /* LKV_ROPE_* */
    uint32_t checked;    /* CPU: faults of this call are returned */
    uint32_t reserved;
};

struct lkvi_gather_params {
    struct lkvi_store store;
    uint64_t num_tokens;     /* T */
    const int64_t *slots;    /* [T] */
    struct lkvi_rows latent; /* out [T, L], data may be NULL */
    struct lkvi_rows rope;   /* out [T, R], data may be NULL */
    uint32_t unrotate;       /* rotated pool: give the original basis */
    uint32_t reserved;
};

struct lkvi_rotate_params {
    uint64_t num_rows;
    struct lkvi_rows in, out;
    uint32_t dim; /* power of two */
    uint32_t reserved;
};

struct lkvi_rope_params {
    uint64_t num_tokens;      /* T */
    uint32_t num_heads;       /* 1 for [T, R] */
    uint32_t dim;             /* R */
    struct lkvi_rows in, out; /* row stride between tokens */
    int64_t in_head_stride, out_head_stride;
    const float *cos, *sin; /* [num_positions, R / 2] */
    const int32_t *positions;
    uint64_t num_positions;
    uint32_t style;
    uint32_t reserved;
};

#ifdef __cplusplus
}
#endif
#endif
