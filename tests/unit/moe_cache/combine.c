/* Combination and token-aware normalisation, by hand and against double. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include "latentkv/moe_cache.h"
#include "tests/support/compare.h"
#include "tests/support/rng.h"

enum { ROWS = 19, DIM = 45 };

static lkv_context *context(uint32_t threads)
{
    lkv_context *ctx = NULL;
    lkv_context_desc d = {.size = sizeof d, .device = LKV_DEVICE_CPU, .num_threads = threads};
    cr_assert_eq(lkv_context_create(&d, &ctx), LKV_OK, "%s", lkv_last_error());
    return ctx;
}

static lkv_tensor rows(void *data, uint32_t dtype)
{
    return (lkv_tensor){data, dtype, 2, {ROWS, DIM}, {DIM, 1}};
}

static float bf16_value(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* fp32: p + w f, two roundings; bf16: one more. A row that is not chosen keeps its bits, and its
 * fallback, NaN here, is not read. */
static void check_mode(lkv_context *ctx, uint32_t mode, int bf16, int weighted)
{
    float p[ROWS * DIM], f[ROWS * DIM], out[ROWS * DIM], weight[ROWS];
    uint16_t p16[ROWS * DIM], f16[ROWS * DIM], out16[ROWS * DIM];
    int32_t chosen[ROWS];
    struct rng r = rng_seed(mode * 8 + (uint64_t)bf16);
    uint64_t num = 0;
    for (int i = 0; i < ROWS * DIM; i++) {
        chosen[i / DIM] = i / DIM % 3 - 1;
        weight[i / DIM] = (float)rng_uniform(&r);
        p16[i] = (uint16_t)(float_bits((float)rng_normal(&r)) >> 16);
        f16[i] = chosen[i / DIM] < 0 ? 0x7FC0 : (uint16_t)(float_bits((float)rng_normal(&r)) >> 16);
        p[i] = bf16_value(p16[i]);
        f[i] = bf16_value(f16[i]);
    }
    lkv_tensor tp = rows(bf16 ? (void *)p16 : p, bf16 ? LKV_DTYPE_BF16 : LKV_DTYPE_F32);
    lkv_tensor tf = rows(bf16 ? (void *)f16 : f, tp.dtype);
    lkv_tensor to = rows(bf16 ? (void *)out16 : out, tp.dtype);
    lkv_combine_args a = {.size = sizeof a,
                          .primary = &tp,
                          .fallback = mode == LKV_COMBINE_STAT_ONLY ? NULL : &tf,
                          .out = &to,
                          .chosen = chosen,
                          .weight = weighted ? weight : NULL,
                          .mode = mode};
    cr_assert_eq(lkv_combine(ctx, &a, NULL), LKV_OK, "%s", lkv_last_error());
    for (int i = 0; i < ROWS * DIM; i++) {
        int t = i / DIM, joined = chosen[t] >= 0 && mode != LKV_COMBINE_STAT_ONLY;
        double w = weighted ? weight[t] : 1;
        double base = mode == LKV_COMBINE_SUBSTITUTE ? 0 : p[i];
        double want = joined ? base + w * f[i] : p[i];
        double found = bf16 ? bf16_value(out16[i]) : out[i];
        double bound = joined ? (fabs(want) * (bf16 ? 0x1p-8 : 0x1p-24)) + 3e-7 : 0;
        cr_assert(fabs(found - want) <= bound,
                  "mode %u bf16 %d weighted %d row %d element %d: %.9g, want %.9g", mode, bf16,
                  weighted, t, i % DIM, found, want);
        num += i % DIM == 0 && chosen[t] >= 0;
    }
    cr_expect_eq(a.num_combined, num);
}

Test(moe_combine, every_mode)
{
    lkv_context *ctx = context(3);
    for (uint32_t mode = LKV_COMBINE_ADD; mode <= LKV_COMBINE_STAT_ONLY; mode++)
        for (int variant = 0; variant < 4; variant++)
            check_mode(ctx, mode, variant & 1, variant >> 1);
    lkv_context_release(ctx);
}

/* In place: out is primary's memory. */
Test(moe_combine, in_place)
{
    lkv_context *ctx = context(1);
    float p[ROWS * DIM], f[ROWS * DIM];
    int32_t chosen[ROWS];
    for (int i = 0; i < ROWS * DIM; i++) {
        p[i] = (float)i;
        f[i] = 0.5f;
        chosen[i / DIM] = i / DIM % 2 ? 7 : -1;
    }
    lkv_tensor tp = rows(p, LKV_DTYPE_F32), tf = rows(f, LKV_DTYPE_F32);
    lkv_combine_args a = {.size = sizeof a,
                          .primary = &tp,
                          .fallback = &tf,
                          .out = &tp,
                          .chosen = chosen,
                          .mode = LKV_COMBINE_ADD};
    cr_assert_eq(lkv_combine(ctx, &a, NULL), LKV_OK, "%s", lkv_last_error());
    for (int i = 0; i < ROWS * DIM; i++)
        cr_assert_eq(p[i], (float)i + (chosen[i / DIM] < 0 ? 0 : 0.5f), "element %d", i);
    lkv_context_release(ctx);
}

/* Rows of norm 3 and 9 among zeros. First call: its own mean, 6 over two rows; second: 6. */
Test(moe_combine, token_scale_by_hand)
{
    lkv_context *ctx = context(2);
    float x[4 * 16] = {0}, scale[4];
    lkv_tensor t = {x, LKV_DTYPE_F32, 2, {2, 16}, {16, 1}};
    lkv_token_scale_args a = {.size = sizeof a, .x = &t, .scale = scale, .low = 0.75, .high = 1.25};
    x[3] = 3;
    x[16] = 9;
    cr_assert_eq(lkv_token_scale(ctx, &a, NULL), LKV_OK, "%s", lkv_last_error());
    cr_expect(scale[0] == 0.75f && scale[1] == 1.25f, "%g %g", (double)scale[0], (double)scale[1]);
    cr_expect(a.mean == 6 && a.count == 2);
    t.shape[0] = 4;
    a.low = 0;
    a.high = 100;
    x[32] = INFINITY;
    x[48] = 12;
    cr_assert_eq(lkv_token_scale(ctx, &a, NULL), LKV_OK);
    cr_expect(scale[0] == 0.5f && scale[1] == 1.5f && scale[2] == 1 && scale[3] == 2, "%g %g %g %g",
              (double)scale[0], (double)scale[1], (double)scale[2], (double)scale[3]);
    cr_expect(a.count == 5 && fabs(a.mean - 36.0 / 5) < 1e-12, "%g", a.mean);
    a.decay = 0.5;
    t.shape[0] = 1;
    cr_assert_eq(lkv_token_scale(ctx, &a, NULL), LKV_OK);
    cr_expect(fabs(a.mean - (7.2 + 3) / 2) < 1e-12, "%g", a.mean);
    lkv_context_release(ctx);
}
