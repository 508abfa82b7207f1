/* In: keys and values of a caller, or their latents, and slots of a LATENT_GQA pool. Out: checked
 * parameters to the backend's append_heads and gather_heads. */
#include "api/heads.h"
#include "api/check.h"
#include "core/status.h"

static lkv_status weights_fit(const lkv_pool *pool, const struct lkv_weights *w,
                              struct lkvi_weights_view *out)
{
    const struct lkvi_record *r = &pool->shape.record;
    uint32_t rotated = (r->encode_flags & LKV_ENCODE_ROTATE) != 0;
    if (!w)
        return LKV_OK;
    LKV_TRY(lkvi_weights_live(w));
    LKV_TRY(lkvi_same_context(pool->ctx, w->ctx, "weights"));
    if (!w->view.key_down)
        return lkvi_fail(LKV_E_INVALID,
                         "weights have no key_down and value_down; appending keys needs them");
    if (w->view.num_matrices != r->kv_heads || w->view.latent_dim != r->latent_dim ||
        w->view.value_latent != r->value_dim)
        return lkvi_fail(LKV_E_INVALID,
                         "weights have %u KV heads with latents of %u and %u; the pool has %u, %u, "
                         "%u",
                         w->view.num_matrices, w->view.latent_dim, w->view.value_latent,
                         r->kv_heads, r->latent_dim, r->value_dim);
    if ((w->rotated != 0) != rotated)
        return lkvi_fail(LKV_E_INVALID, "weights are %srotated; the pool's records are %srotated",
                         w->rotated ? "" : "not ", rotated ? "" : "not ");
    *out = w->view;
    return LKV_OK;
}

static lkv_status append_params(const lkv_pool *pool, const lkv_append_args *args,
                                struct lkvi_append_heads_params *p)
{
    const struct lkvi_record *r = &pool->shape.record;
    LKV_TRY(lkvi_flags_check(args->flags, LKV_APPEND_CHECKED, "append flags"));
    if (args->reserved)
        return lkvi_fail(LKV_E_INVALID, "reserved is %u; need 0", args->reserved);
    if (args->rope || args->norm_weight || args->rope_table || args->positions)
        return lkvi_fail(LKV_E_INVALID, "rope, norm_weight, rope_table or positions is given; a "
                                        "LKV_KIND_LATENT_GQA pool needs NULL");
    LKV_TRY(lkvi_pool_store(pool, args->layer, &p->store));
    LKV_TRY(weights_fit(pool, args->weights, &p->weights));
    struct lkvi_want key = {"latent",
                            LKVI_FLOATS,
                            3,
                            {-1, r->kv_heads, args->weights ? p->weights.nope_dim : r->latent_dim}};
    LKV_TRY(lkvi_tensor_check(pool->ctx, args->latent, &key));
    struct lkvi_want value = {
        "value",
        LKVI_FLOATS,
        3,
        {args->latent->shape[0], r->kv_heads, args->weights ? p->weights.v_dim : r->value_dim}};
    LKV_TRY(lkvi_tensor_check(pool->ctx, args->value, &value));
    p->num_tokens = (uint64_t)args->latent->shape[0];
    LKV_TRY(lkvi_array_check(args->slots, p->num_tokens, 8, "slots"));
    p->key = lkvi_heads_of(args->latent);
    p->value = lkvi_heads_of(args->value);
    p->slots = args->slots;
    p->checked = args->flags & LKV_APPEND_CHECKED;
    return LKV_OK;
}

lkv_status lkvi_append_heads(const lkv_pool *pool, const lkv_append_args *args, void *stream)
{
    struct lkvi_append_heads_params p = {0};
    LKV_TRY(append_params(pool, args, &p));
    if (!p.num_tokens)
        return LKV_OK;
    return pool->ctx->backend->append_heads(pool->ctx->backend_state, &p, stream);
}

/* A tensor that may be missing; *num_tokens is UINT64_MAX until one is there. */
static lkv_status gather_rows(const lkv_pool *pool, const lkv_tensor *t, const char *name,
                              uint32_t dim, uint64_t *num_tokens, struct lkvi_heads *out)
{
    int64_t rows = *num_tokens == UINT64_MAX ? -1 : (int64_t)*num_tokens;
    struct lkvi_want want = {name, LKVI_FLOATS, 3, {rows, pool->shape.record.kv_heads, dim}};
    if (!t)
        return LKV_OK;
    LKV_TRY(lkvi_tensor_check(pool->ctx, t, &want));
    *num_tokens = (uint64_t)t->shape[0];
    *out = lkvi_heads_of(t);
    return LKV_OK;
}

lkv_status lkvi_gather_heads(const lkv_pool *pool, const lkv_gather_args *args, void *stream)
{
    const struct lkvi_record *r = &pool->shape.record;
    struct lkvi_gather_heads_params p = {.num_tokens = UINT64_MAX};
    LKV_TRY(lkvi_flags_check(args->flags, LKV_GATHER_STORED_BASIS, "gather flags"));
    LKV_TRY(lkvi_pool_store(pool, args->layer, &p.store));
    if (args->rope)
        return lkvi_fail(LKV_E_INVALID, "rope is given; a LKV_KIND_LATENT_GQA pool needs NULL");
    if (!args->latent && !args->value)
        return lkvi_fail(LKV_E_INVALID, "latent and value are both NULL; need one");
    LKV_TRY(gather_rows(pool, args->latent, "latent", r->latent_dim, &p.num_tokens, &p.key));
    LKV_TRY(gather_rows(pool, args->value, "value", r->value_dim, &p.num_tokens, &p.value));
    LKV_TRY(lkvi_array_check(args->slots, p.num_tokens, 8, "slots"));
    p.slots = args->slots;
    p.unrotate = (r->encode_flags & LKV_ENCODE_ROTATE) && !(args->flags & LKV_GATHER_STORED_BASIS);
    if (!p.num_tokens)
        return LKV_OK;
    return pool->ctx->backend->gather_heads(pool->ctx->backend_state, &p, stream);
}
