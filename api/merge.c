/* In: P attentions over disjoint keys. Out: checked parameters to the backend's merge. */
#include "api/check.h"
#include "core/status.h"

enum { MAX_PARTS = 4096, MAX_HEADS = 256, MAX_DIM = 4096 };

static lkv_status outs_check(const lkv_context *ctx, const lkv_merge_args *args)
{
    struct lkvi_want want = {"outs", LKVI_FLOATS, 4, {-1, -1, -1, -1}};
    LKV_TRY(lkvi_tensor_check(ctx, args->outs, &want));
    const int64_t *n = args->outs->shape;
    if (n[0] < 1 || n[0] > MAX_PARTS || n[2] < 1 || n[2] > MAX_HEADS || n[3] < 1 || n[3] > MAX_DIM)
        return lkvi_fail(
            LKV_E_INVALID, "outs has %lld parts, %lld heads, %lld dims; need 1 to %d, %d, %d",
            (long long)n[0], (long long)n[2], (long long)n[3], MAX_PARTS, MAX_HEADS, MAX_DIM);
    struct lkvi_want out = {"out", LKVI_FLOATS, 3, {n[1], n[2], n[3]}};
    return lkvi_tensor_check(ctx, args->out, &out);
}

static lkv_status rows_check(const lkv_context *ctx, const lkv_merge_args *args)
{
    const int64_t *n = args->outs->shape;
    struct lkvi_want parts = {"lses", LKVI_F32_LOOSE, 3, {n[0], n[1], n[2]}};
    struct lkvi_want rows = {"lse", LKVI_F32_LOOSE, 2, {n[1], n[2]}};
    LKV_TRY(lkvi_tensor_check(ctx, args->lses, &parts));
    parts.name = "entropies";
    if (args->entropies)
        LKV_TRY(lkvi_tensor_check(ctx, args->entropies, &parts));
    if (args->lse)
        LKV_TRY(lkvi_tensor_check(ctx, args->lse, &rows));
    rows.name = "entropy";
    if (args->entropy)
        LKV_TRY(lkvi_tensor_check(ctx, args->entropy, &rows));
    if (args->entropy && !args->entropies)
        return lkvi_fail(LKV_E_INVALID, "entropies is NULL; entropy needs them");
    return LKV_OK;
}

static void params_of(const lkv_merge_args *a, struct lkvi_merge_params *p)
{
    const lkv_tensor *outs = a->outs;
    *p = (struct lkvi_merge_params){.num_parts = (uint64_t)outs->shape[0],
                                    .num_tokens = (uint64_t)outs->shape[1],
                                    .num_heads = (uint32_t)outs->shape[2],
                                    .dim = (uint32_t)outs->shape[3],
                                    .outs = {.data = outs->data,
                                             .token_stride = outs->stride[1],
                                             .head_stride = outs->stride[2],
                                             .dtype = outs->dtype},
                                    .outs_part_stride = outs->stride[0],
                                    .lses = a->lses->data,
                                    .lse_part_stride = a->lses->stride[0],
                                    .lse_token_stride = a->lses->stride[1],
                                    .out = lkvi_heads_of(a->out)};
    if (a->entropies) {
        p->entropies = a->entropies->data;
        p->entropy_part_stride = a->entropies->stride[0];
        p->entropy_token_stride = a->entropies->stride[1];
    }
    if (a->lse) {
        p->lse = a->lse->data;
        p->out_lse_stride = a->lse->stride[0];
    }
    if (a->entropy) {
        p->entropy = a->entropy->data;
        p->out_entropy_stride = a->entropy->stride[0];
    }
}

lkv_status lkv_merge(lkv_context *ctx, const lkv_merge_args *given, void *stream)
{
    lkv_merge_args args;
    struct lkvi_merge_params p;
    LKV_TRY(lkvi_context_check(ctx));
    LKV_TRY(lkvi_admit(&args, sizeof args, given, "lkv_merge_args"));
    LKV_TRY(lkvi_stream_check(ctx, stream));
    LKV_TRY(outs_check(ctx, &args));
    LKV_TRY(rows_check(ctx, &args));
    params_of(&args, &p);
    if (!p.num_tokens)
        return LKV_OK;
    return ctx->backend->merge(ctx->backend_state, &p, stream);
}
