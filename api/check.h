/* Checks of what callers hand in, each with the sentence "x has value, need wanted". Nothing here
 * reads device memory. */
#ifndef LKVI_API_CHECK_H
#define LKVI_API_CHECK_H

#include <stdint.h>
#include "attention/params.h"
#include "core/context.h"
#include "latentkv/latentkv.h"

enum {
    LKVI_F32 = 1 << LKV_DTYPE_F32,
    LKVI_FLOATS = 1 << LKV_DTYPE_F32 | 1 << LKV_DTYPE_F16 | 1 << LKV_DTYPE_BF16,
    LKVI_WEIGHT_TYPES = LKVI_FLOATS | 1 << LKV_DTYPE_F8E4M3,
    LKVI_LOOSE = 1 << 16, /* read element by element: CUDA too needs no 16-byte alignment */
    LKVI_F32_LOOSE = LKVI_F32 | LKVI_LOOSE
};

/* What a tensor must be: shape[i] < 0 takes any extent from 0 up. */
struct lkvi_want {
    const char *name;
    uint32_t dtypes; /* bits 1 << LKV_DTYPE_*, LKVI_LOOSE */
    uint32_t ndim;
    int64_t shape[4];
};

/* Bytes of an element; 0 for an unknown dtype. */
uint32_t lkvi_dtype_bytes(uint32_t dtype);
const char *lkvi_dtype_name(uint32_t dtype);

/* Everything of a tensor: pointer, dtype, extents, strides (innermost 1, no element shared by two
 * indices), byte range, alignment (an element on the CPU, 16 bytes on CUDA). */
lkv_status lkvi_tensor_check(const struct lkv_context *ctx, const lkv_tensor *t,
                             const struct lkvi_want *want);
/* Dimensions of an unchecked tensor; 0 for one that cannot be read. */
uint32_t lkvi_tensor_ndim(const lkv_tensor *t);
/* A plain array of count elements of `bytes` each. NULL is refused unless count is 0. */
lkv_status lkvi_array_check(const void *p, uint64_t count, uint32_t bytes, const char *name);
lkv_status lkvi_stream_check(const struct lkv_context *ctx, const void *stream);
/* LKV_E_WORKSPACE unless p is 256-byte aligned and holds `need` bytes. */
lkv_status lkvi_workspace_check(const void *p, size_t bytes, uint64_t need);
lkv_status lkvi_flags_check(uint32_t flags, uint32_t known, const char *name);
/* Tag and bytes of a key; its range is the caller's to check. */
lkv_status lkvi_key_check(const lkv_key *key, uint32_t i);
/* An object made on another context cannot be mixed in. */
lkv_status lkvi_same_context(const struct lkv_context *a, const struct lkv_context *b,
                             const char *what);
lkv_status lkvi_model_check(const lkv_model_desc *model);

/* Checked tensors as the backend takes them; t NULL gives data NULL. */
struct lkvi_rows lkvi_rows_of(const lkv_tensor *t);
struct lkvi_heads lkvi_heads_of(const lkv_tensor *t);

#endif
