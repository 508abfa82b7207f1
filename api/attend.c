/* In: a plan, a pool, a batch and tensors. Out: checked parameters to the backend's attend, and the
 * same for merge. Nothing the caller says is trusted: handles, contexts, shapes against the plan,
 * the batch against the last update, workspace, lengths where the host sees them. */
#include <math.h>
#include <string.h>
#include "api/batch.h"
#include "api/check.h"
#include "core/status.h"

static uint32_t other_dim(const struct lkvi_record *r)
{
    return r->kind == LKV_KIND_MLA ? r->rope_dim : r->value_dim;
}

/* A plan serves every pool that stores the same records in blocks of the same size. */
static lkv_status pool_fits(const struct lkv_plan *plan, const struct lkv_pool *pool)
{
    const struct lkvi_record *want = &plan->params.record, *have = &pool->shape.record;
    LKV_TRY(lkvi_same_context(plan->ctx, pool->ctx, "pool"));
    if (memcmp(want, have, sizeof *want) ||
        pool->desc.tokens_per_block != plan->params.tokens_per_block)
        return lkvi_fail(
            LKV_E_INVALID,
            "pool has kind %u, format %u, flags 0x%x, %u heads of %u + %u, %u tokens a block; the "
            "plan is for kind %u, format %u, flags 0x%x, %u heads of %u + %u, %u tokens",
            have->kind, have->format, have->encode_flags, have->kv_heads, have->latent_dim,
            other_dim(have), pool->desc.tokens_per_block, want->kind, want->format,
            want->encode_flags, want->kv_heads, want->latent_dim, other_dim(want),
            plan->params.tokens_per_block);
    return LKV_OK;
}

/* The caller's batch, or without one that of the last update. */
static lkv_status batch_view(const struct lkv_plan *plan, const lkv_batch *given,
                             struct lkvi_batch_view *out)
{
    if (!plan->updated)
        return lkvi_fail(LKV_E_INVALID, "the plan has no batch; need lkv_plan_update first");
    if (given)
        return lkvi_batch_view(plan, given, out);
    *out = plan->batch;
    return LKV_OK;
}

static lkv_status batch_fits(const struct lkv_plan *plan, const struct lkvi_batch_view *b,
                             const lkv_attend_args *args)
{
    const struct lkvi_batch_view *u = &plan->batch;
    if (b->num_seqs != u->num_seqs || b->num_tokens != u->num_tokens ||
        b->seq_lens != u->seq_lens || b->q_indptr != u->q_indptr)
        return lkvi_fail(LKV_E_INVALID,
                         "batch has %u sequences and %llu tokens at %p; lkv_plan_update saw %u and "
                         "%llu at %p",
                         b->num_seqs, (unsigned long long)b->num_tokens, (const void *)b->seq_lens,
                         u->num_seqs, (unsigned long long)u->num_tokens, (const void *)u->seq_lens);
    LKV_TRY(
        lkvi_workspace_check(args->workspace, args->workspace_bytes, plan->params.workspace_bytes));
    if (args->workspace != plan->workspace)
        return lkvi_fail(LKV_E_INVALID, "workspace is at %p; lkv_plan_update had it at %p",
                         args->workspace, plan->workspace);
    return LKV_OK;
}

static lkv_status weights_fit(const struct lkv_plan *plan, const struct lkv_weights *w,
                              struct lkvi_weights_view *out)
{
    const struct lkvi_plan_params *p = &plan->params;
    int q_head = p->q_form == LKV_Q_HEAD, out_head = p->out_form == LKV_OUT_HEAD;
    uint32_t rotated = (p->record.encode_flags & LKV_ENCODE_ROTATE) != 0;
    if (!q_head && !out_head)
        return LKV_OK;
    LKV_TRY(lkvi_weights_live(w));
    LKV_TRY(lkvi_same_context(plan->ctx, w->ctx, "weights"));
    uint32_t matrices = p->record.kind == LKV_KIND_MLA ? p->num_heads : p->record.kv_heads;
    if (w->view.num_matrices != matrices || w->view.value_latent != p->record.value_dim)
        return lkvi_fail(LKV_E_INVALID,
                         "weights have %u matrices, of latent %u for values; the plan has %u, %u",
                         w->view.num_matrices, w->view.value_latent, matrices, p->record.value_dim);
    if (w->view.num_heads != p->num_heads || w->view.latent_dim != p->record.latent_dim ||
        (q_head && w->view.nope_dim != p->nope_dim) || (out_head && w->view.v_dim != p->v_dim))
        return lkvi_fail(
            LKV_E_INVALID,
            "weights have %u heads, latent %u, nope %u, v %u; the plan has %u, %u, %u, "
            "%u",
            w->view.num_heads, w->view.latent_dim, w->view.nope_dim, w->view.v_dim, p->num_heads,
            p->record.latent_dim, p->nope_dim, p->v_dim);
    if ((w->rotated != 0) != rotated)
        return lkvi_fail(LKV_E_INVALID, "weights are %srotated; the pool's records are %srotated",
                         w->rotated ? "" : "not ", rotated ? "" : "not ");
    *out = w->view;
    return LKV_OK;
}

static lkv_status head_tensor(const struct lkv_plan *plan, const lkv_tensor *t, const char *name,
                              uint32_t dtype, uint32_t dim, struct lkvi_heads *out)
{
    struct lkvi_want want = {
        name, 1u << dtype, 3, {(int64_t)plan->batch.num_tokens, plan->params.num_heads, dim}};
    LKV_TRY(lkvi_tensor_check(plan->ctx, t, &want));
    *out = lkvi_heads_of(t);
    return LKV_OK;
}

/* lse and entropy: fp32 [T, H], or not asked for. */
static lkv_status row_tensor(const struct lkv_plan *plan, const lkv_tensor *t, const char *name,
                             float **data, int64_t *stride)
{
    struct lkvi_want want = {
        name, LKVI_F32_LOOSE, 2, {(int64_t)plan->batch.num_tokens, plan->params.num_heads}};
    if (!t)
        return LKV_OK;
    LKV_TRY(lkvi_tensor_check(plan->ctx, t, &want));
    *data = t->data;
    *stride = t->stride[0];
    return LKV_OK;
}

/* On CUDA the longest length is unknown here, so the plan's maximum must fit. */
static lkv_status bias_tensor(const struct lkv_plan *plan, const lkv_tensor *t,
                              struct lkvi_attend_params *p)
{
    struct lkvi_want want = {"bias", LKVI_F32_LOOSE, 2, {plan->batch.num_seqs, -1}};
    if (!t)
        return LKV_OK;
    LKV_TRY(lkvi_tensor_check(plan->ctx, t, &want));
    int64_t need = plan->params.max_seq_len;
    if (plan->ctx->device == LKV_DEVICE_CPU) {
        need = 0;
        for (uint32_t i = 0; i < plan->batch.num_seqs; i++)
            need = plan->batch.seq_lens[i] > need ? plan->batch.seq_lens[i] : need;
    }
    if (t->shape[1] < need)
        return lkvi_fail(LKV_E_INVALID, "bias has shape[1] %lld; need at least %lld",
                         (long long)t->shape[1], (long long)need);
    p->bias = t->data;
    p->bias_stride = t->stride[0];
    return LKV_OK;
}

static lkv_status tensors_fit(const struct lkv_plan *plan, const lkv_attend_args *args,
                              struct lkvi_attend_params *p)
{
    const struct lkvi_plan_params *pp = &plan->params;
    uint32_t latent = pp->record.latent_dim, rope = pp->record.rope_dim;
    uint32_t out = pp->out_form == LKV_OUT_HEAD ? pp->v_dim : pp->record.value_dim;
    LKV_TRY(head_tensor(plan, args->q, "q", pp->q_dtype,
                        pp->q_form == LKV_Q_HEAD ? pp->nope_dim : latent, &p->q));
    if (rope)
        LKV_TRY(head_tensor(plan, args->q_rope, "q_rope", pp->q_dtype, rope, &p->q_rope));
    else if (args->q_rope)
        return lkvi_fail(LKV_E_INVALID, "q_rope is given; a pool with rope_dim 0 needs NULL");
    LKV_TRY(head_tensor(plan, args->out, "out", pp->out_dtype, out, &p->out));
    LKV_TRY(row_tensor(plan, args->lse, "lse", &p->lse, &p->lse_stride));
    LKV_TRY(row_tensor(plan, args->entropy, "entropy", &p->entropy, &p->entropy_stride));
    return bias_tensor(plan, args->bias, p);
}

static lkv_status attend_params(const struct lkv_plan *plan, const struct lkv_pool *pool,
                                const lkv_attend_args *args, struct lkvi_attend_params *p)
{
    LKV_TRY(lkvi_flags_check(args->flags, LKV_ATTEND_CHECKED, "attend flags"));
    if (!isfinite(args->scale) || args->scale <= 0)
        return lkvi_fail(LKV_E_INVALID, "scale is %g; need a finite value above 0", args->scale);
    LKV_TRY(lkvi_pool_store(pool, args->layer, &p->store));
    LKV_TRY(weights_fit(plan, args->weights, &p->weights));
    LKV_TRY(tensors_fit(plan, args, p));
    p->plan = plan->params;
    p->batch = plan->batch;
    p->workspace = args->workspace;
    p->workspace_bytes = args->workspace_bytes;
    p->scale = args->scale;
    p->checked = args->flags & LKV_ATTEND_CHECKED;
    return LKV_OK;
}

lkv_status lkv_attend(lkv_plan *plan, const lkv_pool *pool, const lkv_batch *given_batch,
                      const lkv_attend_args *given, void *stream)
{
    lkv_attend_args args;
    struct lkvi_batch_view view;
    struct lkvi_attend_params p = {0};
    LKV_TRY(lkvi_plan_live(plan));
    LKV_TRY(lkvi_pool_live(pool));
    LKV_TRY(pool_fits(plan, pool));
    LKV_TRY(lkvi_stream_check(plan->ctx, stream));
    LKV_TRY(lkvi_admit(&args, sizeof args, given, "lkv_attend_args"));
    LKV_TRY(batch_view(plan, given_batch, &view));
    LKV_TRY(batch_fits(plan, &view, &args));
    LKV_TRY(lkvi_batch_lengths(plan, &view, args.flags & LKV_ATTEND_CHECKED));
    LKV_TRY(attend_params(plan, pool, &args, &p));
    p.batch = view;
    if (!view.num_tokens)
        return LKV_OK;
    return plan->ctx->backend->attend(plan->ctx->backend_state, &p, stream);
}
