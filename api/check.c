/* In: tensors, arrays, streams and workspaces of a caller. Out: LKV_OK, or a code and a sentence
 * with the value found and the value wanted. The one idea: after these checks no index computed
 * from a shape can leave the memory that the caller described. */
#include "api/check.h"

#include <math.h>
#include "core/status.h"

enum { CUDA_ALIGNMENT = 16, WORKSPACE_ALIGNMENT = 256 };
#define EXTENT_MAX ((int64_t)1 << 31) /* rows are counted in int32 everywhere */
#define RANGE_MAX ((uint64_t)1 << 62) /* bytes from a tensor's first to its last element */

uint32_t lkvi_dtype_bytes(uint32_t dtype)
{
    switch (dtype) {
    case LKV_DTYPE_F32:
        return 4;
    case LKV_DTYPE_F16:
    case LKV_DTYPE_BF16:
        return 2;
    case LKV_DTYPE_F8E4M3:
        return 1;
    default:
        return 0;
    }
}

const char *lkvi_dtype_name(uint32_t dtype)
{
    static const char *const names[] = {"unknown", "F32", "F16", "BF16", "F8E4M3"};
    return names[dtype < sizeof names / sizeof names[0] ? dtype : 0];
}

static const char *dtype_wanted(uint32_t dtypes)
{
    switch (dtypes & LKVI_WEIGHT_TYPES) {
    case LKVI_WEIGHT_TYPES:
        return "F32, F16, BF16 or F8E4M3";
    case LKVI_FLOATS:
        return "F32, F16 or BF16";
    case 1 << LKV_DTYPE_F16:
        return "F16";
    case 1 << LKV_DTYPE_BF16:
        return "BF16";
    default:
        return "F32";
    }
}

uint32_t lkvi_tensor_ndim(const lkv_tensor *t)
{
    return t && (uintptr_t)t % _Alignof(lkv_tensor) == 0 ? t->ndim : 0;
}

static lkv_status head_check(const lkv_tensor *t, const struct lkvi_want *want)
{
    if (!t)
        return lkvi_fail(LKV_E_INVALID, "%s is NULL; need a tensor", want->name);
    if ((uintptr_t)t % _Alignof(lkv_tensor))
        return lkvi_fail(LKV_E_INVALID, "%s is a tensor at %p; need alignment %zu", want->name,
                         (const void *)t, _Alignof(lkv_tensor));
    if (t->dtype > LKV_DTYPE_F8E4M3 || !(want->dtypes >> t->dtype & 1))
        return lkvi_fail(LKV_E_INVALID, "%s has dtype %u (%s); need %s", want->name, t->dtype,
                         lkvi_dtype_name(t->dtype), dtype_wanted(want->dtypes));
    if (t->ndim != want->ndim)
        return lkvi_fail(LKV_E_INVALID, "%s has %u dimensions; need %u", want->name, t->ndim,
                         want->ndim);
    return LKV_OK;
}

static lkv_status shape_check(const lkv_tensor *t, const struct lkvi_want *want)
{
    for (uint32_t i = 0; i < 4; i++) {
        int64_t n = t->shape[i];
        if (i >= t->ndim) {
            if (n || t->stride[i])
                return lkvi_fail(LKV_E_INVALID,
                                 "%s has shape[%u] %lld beyond its dimensions; need 0", want->name,
                                 i, (long long)n);
        } else if (want->shape[i] >= 0 ? n != want->shape[i] : n < 0 || n >= EXTENT_MAX) {
            return lkvi_fail(LKV_E_INVALID, "%s has shape[%u] %lld; need %lld", want->name, i,
                             (long long)n, (long long)want->shape[i]);
        }
    }
    return LKV_OK;
}

/* Outer dimensions of more than one index, by rising stride; their number. */
static uint32_t sort_strides(const lkv_tensor *t, uint32_t order[4])
{
    uint32_t n = 0;
    for (uint32_t i = 0; i + 1 < t->ndim; i++) {
        if (t->shape[i] <= 1)
            continue;
        uint32_t at = n++;
        for (; at > 0 && t->stride[order[at - 1]] > t->stride[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    return n;
}

/* Elements may lie apart and dimensions may be permuted, but no two indices share an element. */
static lkv_status stride_check(const lkv_tensor *t, const struct lkvi_want *want,
                               uint32_t alignment)
{
    uint32_t bytes = lkvi_dtype_bytes(t->dtype), order[4], last = t->ndim - 1;
    if (t->stride[last] != 1)
        return lkvi_fail(LKV_E_INVALID, "%s has stride[%u] %lld; need 1", want->name, last,
                         (long long)t->stride[last]);
    uint64_t span = t->shape[last] ? (uint64_t)t->shape[last] : 1; /* elements, first to last */
    uint32_t n = sort_strides(t, order);
    for (uint32_t i = 0; i < n; i++) {
        int64_t stride = t->stride[order[i]], extent = t->shape[order[i]];
        if (stride < 0 || (uint64_t)stride < span)
            return lkvi_fail(LKV_E_INVALID, "%s has stride[%u] %lld; need at least %llu",
                             want->name, order[i], (long long)stride, (unsigned long long)span);
        uint64_t reach;
        if (__builtin_mul_overflow((uint64_t)stride, (uint64_t)extent - 1, &reach) ||
            reach > RANGE_MAX / bytes - span)
            return lkvi_fail(LKV_E_INVALID, "%s has stride[%u] %lld; need less than 2^62 bytes",
                             want->name, order[i], (long long)stride);
        span += reach;
        if ((uint64_t)stride * bytes % alignment)
            return lkvi_fail(LKV_E_INVALID, "%s has stride[%u] %lld; need a multiple of %u bytes",
                             want->name, order[i], (long long)stride, alignment);
    }
    return LKV_OK;
}

lkv_status lkvi_tensor_check(const struct lkv_context *ctx, const lkv_tensor *t,
                             const struct lkvi_want *want)
{
    LKV_TRY(head_check(t, want));
    LKV_TRY(shape_check(t, want));
    uint32_t bytes = lkvi_dtype_bytes(t->dtype);
    uint32_t alignment =
        ctx->device == LKV_DEVICE_CPU || (want->dtypes & LKVI_LOOSE) ? bytes : CUDA_ALIGNMENT;
    LKV_TRY(stride_check(t, want, alignment));
    for (uint32_t i = 0; i < t->ndim; i++)
        if (!t->shape[i])
            return LKV_OK; /* no element: data is never used */
    if (!t->data)
        return lkvi_fail(LKV_E_INVALID, "%s has data NULL; need memory", want->name);
    if ((uintptr_t)t->data % alignment)
        return lkvi_fail(LKV_E_INVALID, "%s has data at %p; need alignment %u", want->name, t->data,
                         alignment);
    return LKV_OK;
}

lkv_status lkvi_array_check(const void *p, uint64_t count, uint32_t bytes, const char *name)
{
    if (!count)
        return LKV_OK;
    if (!p)
        return lkvi_fail(LKV_E_INVALID, "%s is NULL; need %llu entries", name,
                         (unsigned long long)count);
    if ((uintptr_t)p % bytes)
        return lkvi_fail(LKV_E_INVALID, "%s is at %p; need alignment %u", name, p, bytes);
    return LKV_OK;
}

lkv_status lkvi_stream_check(const struct lkv_context *ctx, const void *stream)
{
    if (ctx->device == LKV_DEVICE_CPU && stream)
        return lkvi_fail(LKV_E_INVALID, "stream is %p; a CPU context needs NULL", stream);
    return LKV_OK;
}

lkv_status lkvi_workspace_check(const void *p, size_t bytes, uint64_t need)
{
    if (bytes < need || (need && !p))
        return lkvi_fail(LKV_E_WORKSPACE, "workspace is %zu bytes at %p; need %llu", bytes, p,
                         (unsigned long long)need);
    if ((uintptr_t)p % WORKSPACE_ALIGNMENT)
        return lkvi_fail(LKV_E_INVALID, "workspace is at %p; need alignment %d", p,
                         WORKSPACE_ALIGNMENT);
    return LKV_OK;
}

lkv_status lkvi_flags_check(uint32_t flags, uint32_t known, const char *name)
{
    if (flags & ~known)
        return lkvi_fail(LKV_E_INVALID, "%s is 0x%x; need bits of 0x%x", name, flags, known);
    return LKV_OK;
}

lkv_status lkvi_same_context(const struct lkv_context *a, const struct lkv_context *b,
                             const char *what)
{
    if (a != b)
        return lkvi_fail(LKV_E_INVALID, "%s is of another context (device %d); need device %d's",
                         what, b->device, a->device);
    return LKV_OK;
}

static lkv_status range_check(const char *name, uint32_t value, uint32_t low, uint32_t high)
{
    if (value < low || value > high)
        return lkvi_fail(LKV_E_INVALID, "%s is %u; need %u to %u", name, value, low, high);
    return LKV_OK;
}

static lkv_status yarn_check(const lkv_model_desc *m)
{
    const double values[] = {m->yarn_factor, m->yarn_beta_fast, m->yarn_beta_slow, m->yarn_mscale,
                             m->yarn_mscale_all_dim};
    for (uint32_t i = 0; i < sizeof values / sizeof values[0]; i++)
        if (!isfinite(values[i]) || values[i] < 0)
            return lkvi_fail(LKV_E_INVALID, "yarn field %u is %g; need a finite value from 0", i,
                             values[i]);
    if (m->yarn_factor > 0 && !m->yarn_original_positions)
        return lkvi_fail(LKV_E_INVALID,
                         "yarn_original_positions is 0 with yarn_factor %g; need both",
                         m->yarn_factor);
    if (m->yarn_factor > 0 && !(m->yarn_beta_fast > 0 && m->yarn_beta_slow > 0))
        return lkvi_fail(LKV_E_INVALID,
                         "yarn_beta_fast is %g, yarn_beta_slow %g; need both above 0",
                         m->yarn_beta_fast, m->yarn_beta_slow);
    return LKV_OK;
}

lkv_status lkvi_model_check(const lkv_model_desc *m)
{
    LKV_TRY(range_check("num_layers", m->num_layers, 1, 4096));
    LKV_TRY(range_check("num_heads", m->num_heads, 1, 256));
    LKV_TRY(range_check("latent_dim", m->latent_dim, 16, 4096));
    LKV_TRY(range_check("rope_dim", m->rope_dim, 0, 256));
    LKV_TRY(range_check("nope_dim", m->nope_dim, 1, 1024));
    LKV_TRY(range_check("v_dim", m->v_dim, 1, 1024));
    LKV_TRY(range_check("rope_style", m->rope_style, LKV_ROPE_NONE, LKV_ROPE_HALF));
    if (m->latent_dim % 16)
        return lkvi_fail(LKV_E_INVALID, "latent_dim is %u; need a multiple of 16", m->latent_dim);
    if (m->rope_dim % 2)
        return lkvi_fail(LKV_E_INVALID, "rope_dim is %u; need an even number", m->rope_dim);
    return yarn_check(m);
}

struct lkvi_rows lkvi_rows_of(const lkv_tensor *t)
{
    struct lkvi_rows rows = {0};
    if (t) {
        rows.data = t->data;
        rows.stride = t->stride[0];
        rows.dtype = t->dtype;
    }
    return rows;
}

struct lkvi_heads lkvi_heads_of(const lkv_tensor *t)
{
    struct lkvi_heads heads = {0};
    if (t) {
        heads.data = t->data;
        heads.token_stride = t->stride[0];
        heads.head_stride = t->stride[1];
        heads.dtype = t->dtype;
    }
    return heads;
}
