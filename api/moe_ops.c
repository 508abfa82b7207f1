/* In: primaries, rows of experts' outputs, rows to be measured. Out: checked parameters to
 * moe_cache/fallback.c and combine.c. */
#include <math.h>
#include "api/check.h"
#include "api/moe_objects.h"
#include "core/status.h"
#include "moe_cache/combine.h"
#include "moe_cache/fallback.h"

enum { MAX_EXPERT_INDEX = 65534 }; /* 0xFFFF means none in a routing trace */

/* ---- fallback */

static lkv_status buddies_check(const lkv_fallback_args *a)
{
    LKV_TRY(lkvi_array_check(a->buddy, a->num_experts, sizeof *a->buddy, "buddy"));
    for (uint32_t e = 0; e < a->num_experts; e++)
        if (a->buddy[e] < -1 || a->buddy[e] >= (int32_t)a->num_experts)
            return lkvi_fail(LKV_E_INVALID, "buddy[%u] is %d; need -1 to %u", e, a->buddy[e],
                             a->num_experts - 1);
    return LKV_OK;
}

static lkv_status primaries_check(const lkv_fallback_args *a)
{
    uint64_t n = a->num_tokens;
    LKV_TRY(lkvi_array_check(a->primary, n, sizeof *a->primary, "primary"));
    LKV_TRY(lkvi_array_check(a->fallback, n, sizeof *a->fallback, "fallback"));
    for (uint64_t t = 0; t < n; t++)
        if (a->primary[t] < -1 || a->primary[t] >= (int32_t)a->num_experts)
            return lkvi_fail(LKV_E_INVALID, "primary[%llu] is %d; need -1 to %u",
                             (unsigned long long)t, a->primary[t], a->num_experts - 1);
    return LKV_OK;
}

static lkv_status policy_check(const lkv_fallback_args *a)
{
    if (a->policy > LKV_FALLBACK_SHARED)
        return lkvi_fail(LKV_E_INVALID, "policy is %u; need LKV_FALLBACK_NONE to SHARED",
                         a->policy);
    if (!a->num_experts || a->num_experts > MAX_EXPERT_INDEX + 1)
        return lkvi_fail(LKV_E_INVALID, "num_experts is %u; need 1 to %d", a->num_experts,
                         MAX_EXPERT_INDEX + 1);
    if (a->policy == LKV_FALLBACK_SHARED &&
        (a->shared_expert < 0 || a->shared_expert > MAX_EXPERT_INDEX))
        return lkvi_fail(LKV_E_INVALID, "shared_expert is %d; need 0 to %d", a->shared_expert,
                         MAX_EXPERT_INDEX);
    LKV_TRY(lkvi_flags_check(a->flags, 0, "fallback flags"));
    return a->policy == LKV_FALLBACK_BUDDY ? buddies_check(a) : LKV_OK;
}

lkv_status lkv_fallback_choose(lkv_fallback_args *given)
{
    lkv_fallback_args args;
    LKV_TRY(lkvi_admit(&args, sizeof args, given, "lkv_fallback_args"));
    LKV_TRY(policy_check(&args));
    LKV_TRY(primaries_check(&args));
    lkvi_fallback_choose(&args);
    lkvi_give(given, &args, sizeof args);
    return LKV_OK;
}

/* ---- combine */

static struct lkvi_moe_rows rows_of(const lkv_tensor *t)
{
    struct lkvi_moe_rows rows = {NULL, 0};
    if (t) {
        rows.data = t->data;
        rows.stride_bytes = (uint64_t)t->stride[0] * lkvi_dtype_bytes(t->dtype);
    }
    return rows;
}

static lkv_status combine_tensors(const lkv_context *ctx, const lkv_combine_args *a)
{
    struct lkvi_want want = {"primary", LKVI_F32 | 1 << LKV_DTYPE_BF16, 2, {-1, -1}};
    LKV_TRY(lkvi_tensor_check(ctx, a->primary, &want));
    want.dtypes = 1u << a->primary->dtype;
    want.shape[0] = a->primary->shape[0];
    want.shape[1] = a->primary->shape[1];
    want.name = "out";
    LKV_TRY(lkvi_tensor_check(ctx, a->out, &want));
    want.name = "fallback";
    if (a->mode != LKV_COMBINE_STAT_ONLY)
        return lkvi_tensor_check(ctx, a->fallback, &want);
    if (a->fallback)
        return lkvi_fail(LKV_E_INVALID, "fallback is given in mode STAT_ONLY; need NULL");
    return LKV_OK;
}

lkv_status lkv_combine(lkv_context *ctx, lkv_combine_args *given, void *stream)
{
    lkv_combine_args a;
    LKV_TRY(lkvi_moe_context(ctx, "lkv_combine"));
    LKV_TRY(lkvi_stream_check(ctx, stream));
    LKV_TRY(lkvi_admit(&a, sizeof a, given, "lkv_combine_args"));
    LKV_TRY(lkvi_flags_check(a.flags, 0, "combine flags"));
    if (a.mode < LKV_COMBINE_ADD || a.mode > LKV_COMBINE_STAT_ONLY)
        return lkvi_fail(LKV_E_INVALID, "mode is %u; need LKV_COMBINE_ADD to STAT_ONLY", a.mode);
    LKV_TRY(combine_tensors(ctx, &a));
    uint64_t rows = (uint64_t)a.primary->shape[0];
    LKV_TRY(lkvi_array_check(a.chosen, rows, sizeof *a.chosen, "chosen"));
    LKV_TRY(lkvi_array_check(a.weight, a.weight ? rows : 0, sizeof *a.weight, "weight"));
    struct lkvi_combine c = {.primary = rows_of(a.primary),
                             .fallback = rows_of(a.fallback),
                             .out = rows_of(a.out),
                             .chosen = a.chosen,
                             .weight = a.weight,
                             .num_rows = rows,
                             .dim = (uint32_t)a.primary->shape[1],
                             .is_bf16 = a.primary->dtype == LKV_DTYPE_BF16,
                             .mode = a.mode};
    lkvi_combine(&c, ctx->threads);
    a.num_combined = 0;
    for (uint64_t t = 0; t < rows; t++)
        a.num_combined += a.chosen[t] >= 0;
    lkvi_give(given, &a, sizeof a);
    return LKV_OK;
}

/* ---- token-aware normalisation */

static lkv_status scale_numbers(const lkv_token_scale_args *a)
{
    if (!(a->low >= 0 && a->low <= a->high && a->high <= 1e30))
        return lkvi_fail(LKV_E_INVALID, "low is %g, high %g; need 0 <= low <= high <= 1e30", a->low,
                         a->high);
    if (!(a->decay >= 0 && a->decay <= 1))
        return lkvi_fail(LKV_E_INVALID, "decay is %g; need 0 to 1", a->decay);
    if (!isfinite(a->mean) || a->mean < 0 || a->count > UINT64_MAX / 2)
        return lkvi_fail(LKV_E_INVALID, "mean is %g of %llu; need a finite value from 0", a->mean,
                         (unsigned long long)a->count);
    return LKV_OK;
}

lkv_status lkv_token_scale(lkv_context *ctx, lkv_token_scale_args *given, void *stream)
{
    lkv_token_scale_args a;
    struct lkvi_want want = {"x", LKVI_F32 | 1 << LKV_DTYPE_BF16, 2, {-1, -1}};
    LKV_TRY(lkvi_moe_context(ctx, "lkv_token_scale"));
    LKV_TRY(lkvi_stream_check(ctx, stream));
    LKV_TRY(lkvi_admit(&a, sizeof a, given, "lkv_token_scale_args"));
    LKV_TRY(scale_numbers(&a));
    LKV_TRY(lkvi_tensor_check(ctx, a.x, &want));
    LKV_TRY(lkvi_array_check(a.scale, (uint64_t)a.x->shape[0], sizeof *a.scale, "scale"));
    struct lkvi_token_scale s = {.x = rows_of(a.x),
                                 .num_rows = (uint64_t)a.x->shape[0],
                                 .dim = (uint32_t)a.x->shape[1],
                                 .is_bf16 = a.x->dtype == LKV_DTYPE_BF16,
                                 .scale = a.scale,
                                 .low = a.low,
                                 .high = a.high,
                                 .decay = a.decay,
                                 .mean = a.mean,
                                 .count = a.count};
    lkvi_token_scale(&s, ctx->threads);
    a.mean = s.mean;
    a.count = s.count;
    lkvi_give(given, &a, sizeof a);
    return LKV_OK;
}
