/* In: a live pool or plan. Out: the descriptor it was made from, with what 0 stood for filled in.
 * The one idea: whoever is handed an object can make a second one like it, or check that it fits.
 */
#include "api/check.h"
#include "api/objects.h"
#include "core/status.h"

lkv_status lkv_pool_describe(const lkv_pool *pool, lkv_pool_desc *given)
{
    LKV_TRY(lkvi_pool_live(pool));
    LKV_TRY(lkvi_admit_out(given, "lkv_pool_desc"));
    lkv_pool_desc desc = pool->desc;
    desc.size = sizeof desc;
    desc.block_stride_bytes = pool->shape.block_stride;
    desc.layer_stride_bytes = pool->shape.layer_stride;
    if (desc.kind == LKV_KIND_LATENT_GQA)
        desc.value_latent_dim = pool->shape.record.value_dim;
    lkvi_give(given, &desc, sizeof desc);
    return LKV_OK;
}

lkv_status lkv_plan_describe(const lkv_plan *plan, lkv_plan_desc *given)
{
    LKV_TRY(lkvi_plan_live(plan));
    LKV_TRY(lkvi_admit_out(given, "lkv_plan_desc"));
    const struct lkvi_plan_params *p = &plan->params;
    lkv_plan_desc desc = {.size = sizeof desc,
                          .pool = plan->pool,
                          .num_heads = p->num_heads,
                          .max_seqs = p->max_seqs,
                          .max_tokens = p->max_tokens,
                          .max_q_len = p->max_q_len,
                          .max_seq_len = p->max_seq_len,
                          .max_blocks_per_seq = p->max_blocks_per_seq,
                          .q_dtype = p->q_dtype,
                          .out_dtype = p->out_dtype,
                          .q_form = p->q_form,
                          .out_form = p->out_form,
                          .absorb_threshold = p->absorb_threshold,
                          .flags = p->flags,
                          .nope_dim = p->nope_dim,
                          .v_dim = p->v_dim};
    lkvi_give(given, &desc, sizeof desc);
    return LKV_OK;
}
