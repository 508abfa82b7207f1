/* In: maxima over batches, then batches. Out: a plan whose workspace and kernel are fixed, then the
 * work of one batch split in that workspace. The one idea: what the host can see is checked here;
 * on the CPU that includes the arrays of lengths, on CUDA bad rows fault on the device. */
#include <string.h>
#include "api/batch.h"
#include "api/check.h"
#include "core/status.h"

enum { DEFAULT_ABSORB_THRESHOLD = 256, MAX_HEADS = 256, MAX_HEAD_DIM = 1024, MAX_WIDTH = 1 << 30 };

lkv_status lkvi_plan_live(const struct lkv_plan *plan)
{
    return lkvi_object_check((const struct lkvi_object *)plan, LKVI_KIND_PLAN);
}

static void plan_destroy(struct lkv_plan *plan)
{
    lkvi_pool_drop(plan->pool);
    lkvi_context_drop(plan->ctx);
    lkvi_object_recycle(&plan->object);
}

void lkv_plan_release(lkv_plan *plan)
{
    if (lkvi_object_withdraw((struct lkvi_object *)plan, LKVI_KIND_PLAN) &&
        lkvi_object_drop(&plan->object))
        plan_destroy(plan);
}

static lkv_status range_check(const char *name, uint64_t value, uint64_t low, uint64_t high)
{
    if (value < low || value > high)
        return lkvi_fail(LKV_E_INVALID, "%s is %llu; need %llu to %llu", name,
                         (unsigned long long)value, (unsigned long long)low,
                         (unsigned long long)high);
    return LKV_OK;
}

static lkv_status dtype_check(const char *name, uint32_t dtype)
{
    if (dtype > 31 || !(LKVI_FLOATS >> dtype & 1))
        return lkvi_fail(LKV_E_INVALID, "%s is %u; need F32, F16 or BF16", name, dtype);
    return LKV_OK;
}

static lkv_status forms_check(const lkv_plan_desc *d)
{
    LKV_TRY(dtype_check("q_dtype", d->q_dtype));
    LKV_TRY(dtype_check("out_dtype", d->out_dtype));
    LKV_TRY(range_check("q_form", d->q_form, LKV_Q_LATENT, LKV_Q_HEAD));
    LKV_TRY(range_check("out_form", d->out_form, LKV_OUT_LATENT, LKV_OUT_HEAD));
    if (d->q_form == LKV_Q_HEAD)
        LKV_TRY(range_check("nope_dim", d->nope_dim, 1, MAX_HEAD_DIM));
    if (d->out_form == LKV_OUT_HEAD)
        LKV_TRY(range_check("v_dim", d->v_dim, 1, MAX_HEAD_DIM));
    return lkvi_flags_check(d->flags, LKV_PLAN_BATCH_INVARIANT, "plan flags");
}

static lkv_status maxima_check(const lkv_plan_desc *d, uint32_t blocks)
{
    LKV_TRY(range_check("num_heads", d->num_heads, 1, MAX_HEADS));
    LKV_TRY(range_check("max_seqs", d->max_seqs, 1, 1 << 20));
    LKV_TRY(range_check("max_tokens", d->max_tokens, 1, 1 << 26));
    LKV_TRY(range_check("max_q_len", d->max_q_len, 1, d->max_tokens));
    LKV_TRY(range_check("max_seq_len", d->max_seq_len, 1, 1 << 30));
    if (d->max_blocks_per_seq)
        LKV_TRY(range_check("max_blocks_per_seq", d->max_blocks_per_seq, blocks, MAX_WIDTH));
    return LKV_OK;
}

static lkv_status params_of(const lkv_plan_desc *d, struct lkvi_plan_params *p)
{
    const struct lkv_pool *pool = d->pool;
    uint32_t per_block = pool->desc.tokens_per_block;
    uint32_t blocks = (uint32_t)(((uint64_t)d->max_seq_len + per_block - 1) / per_block);
    if (!pool->layers)
        return lkvi_fail(LKV_E_INVALID, "pool is LKV_POOL_METADATA_ONLY; a plan needs records");
    LKV_TRY(maxima_check(d, blocks));
    if (d->num_heads % pool->shape.record.kv_heads)
        return lkvi_fail(LKV_E_INVALID, "num_heads is %u; need a multiple of num_kv_heads, %u",
                         d->num_heads, pool->shape.record.kv_heads);
    LKV_TRY(forms_check(d));
    *p = (struct lkvi_plan_params){
        .record = pool->shape.record,
        .tokens_per_block = per_block,
        .num_heads = d->num_heads,
        .max_seqs = d->max_seqs,
        .max_tokens = d->max_tokens,
        .max_q_len = d->max_q_len,
        .max_seq_len = d->max_seq_len,
        .max_blocks_per_seq = d->max_blocks_per_seq ? d->max_blocks_per_seq : blocks,
        .q_dtype = d->q_dtype,
        .out_dtype = d->out_dtype,
        .q_form = d->q_form,
        .out_form = d->out_form,
        .absorb_threshold = d->absorb_threshold ? d->absorb_threshold : DEFAULT_ABSORB_THRESHOLD,
        .flags = d->flags,
        .nope_dim = d->nope_dim,
        .v_dim = d->v_dim};
    return LKV_OK;
}

lkv_status lkv_plan_create(lkv_context *ctx, const lkv_plan_desc *given, lkv_plan **out)
{
    lkv_plan_desc desc;
    struct lkvi_plan_params params;
    LKV_TRY(lkvi_context_check(ctx));
    LKV_TRY(lkvi_admit(&desc, sizeof desc, given, "lkv_plan_desc"));
    LKV_TRY(lkvi_array_check(out, 1, sizeof(void *), "out"));
    LKV_TRY(lkvi_pool_live(desc.pool));
    LKV_TRY(lkvi_same_context(ctx, desc.pool->ctx, "pool"));
    LKV_TRY(params_of(&desc, &params));
    LKV_TRY(ctx->backend->plan(ctx->backend_state, &params));
    struct lkv_plan *plan = lkvi_object_create(LKVI_KIND_PLAN, sizeof *plan);
    if (!plan)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for a plan of %zu bytes", sizeof *plan);
    lkvi_context_retain(ctx);
    plan->ctx = ctx;
    plan->pool = (struct lkv_pool *)desc.pool;
    lkvi_pool_retain(plan->pool);
    plan->params = params;
    lkvi_object_publish(&plan->object);
    *out = plan;
    return LKV_OK;
}

lkv_status lkv_plan_workspace(const lkv_plan *plan, size_t *bytes)
{
    LKV_TRY(lkvi_plan_live(plan));
    LKV_TRY(lkvi_array_check(bytes, 1, sizeof *bytes, "bytes"));
    *bytes = plan->params.workspace_bytes;
    return LKV_OK;
}

static lkv_status batch_check(const struct lkv_plan *plan, const lkv_batch *b)
{
    const struct lkvi_plan_params *p = &plan->params;
    LKV_TRY(range_check("num_seqs", b->num_seqs, 0, p->max_seqs));
    LKV_TRY(range_check("num_tokens", b->num_tokens, 0, p->max_tokens));
    LKV_TRY(range_check("batch.max_blocks_per_seq", b->max_blocks_per_seq, 0, MAX_WIDTH));
    if (b->block_table_stride)
        LKV_TRY(range_check("block_table_stride", b->block_table_stride, b->max_blocks_per_seq,
                            MAX_WIDTH));
    if (!b->q_indptr && b->num_tokens != b->num_seqs)
        return lkvi_fail(LKV_E_INVALID, "num_tokens is %llu without q_indptr; need num_seqs, %u",
                         (unsigned long long)b->num_tokens, b->num_seqs);
    uint64_t entries = (uint64_t)b->num_seqs * b->max_blocks_per_seq;
    LKV_TRY(lkvi_array_check(b->block_table, entries, 4, "block_table"));
    LKV_TRY(lkvi_array_check(b->seq_lens, b->num_seqs, 4, "seq_lens"));
    return lkvi_array_check(b->q_indptr, b->q_indptr ? 1 : 0, 4, "q_indptr");
}

/* One sequence of a batch whose arrays the host can read. */
static lkv_status lengths_check(const struct lkvi_plan_params *p, const struct lkvi_batch_view *b,
                                uint32_t i, int32_t begin, int32_t end, uint32_t checked)
{
    int32_t seq_len = b->seq_lens[i];
    uint64_t width_tokens = (uint64_t)b->table_width * p->tokens_per_block;
    if (end < begin || (uint32_t)(end - begin) > p->max_q_len)
        return lkvi_fail(LKV_E_INVALID, "q_indptr[%u] is %d after %d; need 0 to %u rows", i + 1,
                         end, begin, p->max_q_len);
    if (seq_len < 0 || (uint32_t)seq_len > p->max_seq_len || (uint64_t)seq_len > width_tokens)
        return lkvi_fail(LKV_E_INVALID, "seq_lens[%u] is %d; need 0 to %u (plan) and %llu (table)",
                         i, seq_len, p->max_seq_len, (unsigned long long)width_tokens);
    if (checked && seq_len && end - begin > seq_len)
        return lkvi_fail(LKV_E_INVALID, "seq_lens[%u] is %d with %d query rows; need at least that",
                         i, seq_len, end - begin);
    return LKV_OK;
}

lkv_status lkvi_batch_lengths(const struct lkv_plan *plan, const struct lkvi_batch_view *b,
                              uint32_t checked)
{
    if (plan->ctx->device != LKV_DEVICE_CPU)
        return LKV_OK;
    int32_t begin = 0;
    if (b->q_indptr && b->q_indptr[0])
        return lkvi_fail(LKV_E_INVALID, "q_indptr[0] is %d; need 0", b->q_indptr[0]);
    for (uint32_t i = 0; i < b->num_seqs; i++) {
        int32_t end = b->q_indptr ? b->q_indptr[i + 1] : begin + 1;
        LKV_TRY(lengths_check(&plan->params, b, i, begin, end, checked));
        begin = end;
    }
    if ((uint64_t)begin != b->num_tokens)
        return lkvi_fail(LKV_E_INVALID, "q_indptr[%u] is %d; need num_tokens, %llu", b->num_seqs,
                         begin, (unsigned long long)b->num_tokens);
    return LKV_OK;
}

/* Entries of a wider table than the plan's longest sequence has are never read. */
lkv_status lkvi_batch_view(const struct lkv_plan *plan, const lkv_batch *given,
                           struct lkvi_batch_view *out)
{
    lkv_batch b;
    uint32_t width = plan->params.max_blocks_per_seq;
    LKV_TRY(lkvi_admit(&b, sizeof b, given, "lkv_batch"));
    LKV_TRY(batch_check(plan, &b));
    *out = (struct lkvi_batch_view){
        .block_table = b.block_table,
        .seq_lens = b.seq_lens,
        .q_indptr = b.q_indptr,
        .block_table_stride = b.block_table_stride ? b.block_table_stride : b.max_blocks_per_seq,
        .num_tokens = b.num_tokens,
        .num_seqs = b.num_seqs,
        .table_width = b.max_blocks_per_seq < width ? b.max_blocks_per_seq : width};
    return LKV_OK;
}

lkv_status lkv_plan_update(lkv_plan *plan, const lkv_batch *given, void *workspace,
                           size_t workspace_bytes, void *stream)
{
    struct lkvi_batch_view view;
    LKV_TRY(lkvi_plan_live(plan));
    LKV_TRY(lkvi_stream_check(plan->ctx, stream));
    LKV_TRY(lkvi_batch_view(plan, given, &view));
    LKV_TRY(lkvi_workspace_check(workspace, workspace_bytes, plan->params.workspace_bytes));
    LKV_TRY(lkvi_batch_lengths(plan, &view, 0));
    LKV_TRY(plan->ctx->backend->plan_update(plan->ctx->backend_state, &plan->params, &view,
                                            workspace, stream));
    plan->batch = view;
    plan->workspace = workspace;
    plan->updated = 1;
    return LKV_OK;
}
