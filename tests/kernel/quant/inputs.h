/* Rows that codecs are tried on, and the table of formats, options and dimensions. */
#ifndef LKVT_KERNEL_QUANT_INPUTS_H
#define LKVT_KERNEL_QUANT_INPUTS_H

#include <float.h>
#include "quant/codec.h"
#include "tests/reference/ref_quant.h"
#include "tests/support/rng.h"

enum row_kind {
    ROW_NORMAL,
    ROW_WIDE, /* every exponent */
    ROW_EXTREME,
    ROW_SUBNORMAL,
    ROW_CONSTANT,
    ROW_ALMOST_CONSTANT,
    ROW_ZERO,
    ROW_OUTLIER,
    ROW_NON_FINITE,
    ROW_ALL_NON_FINITE,
    ROW_ANY_BITS,
    ROW_TIES, /* multiples of a quarter: many exact halves */
    NUM_ROW_KINDS
};

static inline float one_value(struct rng *r, enum row_kind kind, float base)
{
    static const float broken[3] = {NAN, INFINITY, -INFINITY};
    float sign = rng_next(r) & 1 ? 1.0f : -1.0f;
    switch (kind) {
    case ROW_WIDE:
        return sign * ldexpf((float)(1.0 + rng_uniform(r)), (int)rng_below(r, 250) - 125);
    case ROW_EXTREME:
        return sign * (rng_below(r, 4) ? FLT_MAX : FLT_MAX * (float)rng_uniform(r));
    case ROW_SUBNORMAL:
        return sign * ldexpf((float)rng_uniform(r), -126 + (int)rng_below(r, 20) - 10);
    case ROW_CONSTANT:
        return base;
    case ROW_ALMOST_CONSTANT:
        return base + base * (float)rng_below(r, 4) * 0x1p-18f;
    case ROW_ZERO:
        return sign * 0.0f;
    case ROW_OUTLIER:
        return (float)rng_normal(r) * (rng_below(r, 64) ? 1.0f : 1000.0f);
    case ROW_NON_FINITE:
        return rng_below(r, 8) ? (float)rng_normal(r) : broken[rng_below(r, 3)];
    case ROW_ALL_NON_FINITE:
        return broken[rng_below(r, 3)];
    case ROW_ANY_BITS:
        return rng_any_float(r);
    case ROW_TIES:
        return (float)((int)rng_below(r, 65) - 32) * 0.25f;
    default:
        return (float)rng_normal(r);
    }
}

static inline void make_row(uint64_t seed, enum row_kind kind, float *x, uint32_t n)
{
    struct rng r = rng_seed(seed * 64 + kind);
    float base = (float)rng_normal(&r) * 3.0f;
    for (uint32_t i = 0; i < n; i++)
        x[i] = one_value(&r, kind, base);
}

struct dims {
    uint32_t latent, rope;
};
static const struct dims all_dims[] = {{512, 64}, {256, 32}, {16, 2},    {48, 6},
                                       {144, 0},  {400, 10}, {4096, 256}};
enum { NUM_DIMS = sizeof all_dims / sizeof *all_dims };

struct option {
    uint32_t format, flags;
};
static const struct option all_options[] = {
    {LKV_FORMAT_BF16, 0},
    {LKV_FORMAT_FP8, 0},
    {LKV_FORMAT_INT8, 0},
    {LKV_FORMAT_INT8, LKV_ENCODE_INT8_SYMMETRIC},
    {LKV_FORMAT_NVFP4, 0},
    {LKV_FORMAT_NVFP4, LKV_ENCODE_NVFP4_FIXED_OUTER},
    {LKV_FORMAT_NVFP4, LKV_ENCODE_NVFP4_FOUR_OVER_SIX},
    {LKV_FORMAT_NVFP4, LKV_ENCODE_NVFP4_FOUR_OVER_SIX | LKV_ENCODE_NVFP4_FIXED_OUTER},
};
enum { NUM_OPTIONS = sizeof all_options / sizeof *all_options };

#define FIXED_OUTER 0x1.8p-9f

static inline struct ref_format ref_of(struct option o, struct dims d)
{
    return (struct ref_format){.format = o.format,
                               .symmetric = (o.flags & LKV_ENCODE_INT8_SYMMETRIC) != 0,
                               .fixed_outer = (o.flags & LKV_ENCODE_NVFP4_FIXED_OUTER) != 0,
                               .four_over_six = (o.flags & LKV_ENCODE_NVFP4_FOUR_OVER_SIX) != 0,
                               .latent = d.latent,
                               .rope = d.rope,
                               .outer = FIXED_OUTER};
}

static inline lkv_status record_of(struct option o, struct dims d, struct lkvi_record *record)
{
    lkv_pool_desc desc = {.size = sizeof desc,
                          .format = o.format,
                          .encode_flags = o.flags,
                          .latent_dim = d.latent,
                          .rope_dim = d.rope};
    return lkvi_record_layout(&desc, record);
}

#endif
