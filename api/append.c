/* In: dense latents and slots of a caller, or slots and room for dense latents. Out: checked
 * parameters to the backend's append and gather; LATENT_GQA pools go to heads.c. */
#include <math.h>
#include "api/check.h"
#include "api/heads.h"
#include "api/objects.h"
#include "core/status.h"

static lkv_status rope_table_set(const lkv_pool *pool, const lkv_append_args *args,
                                 struct lkvi_append_params *p)
{
    const struct lkv_rope *table = args->rope_table;
    LKV_TRY(lkvi_rope_live(table));
    LKV_TRY(lkvi_same_context(pool->ctx, table->ctx, "rope_table"));
    if (table->dim != pool->desc.rope_dim || table->style != pool->desc.rope_style)
        return lkvi_fail(LKV_E_INVALID,
                         "rope_table has rope_dim %u and style %u; the pool has %u and %u",
                         table->dim, table->style, pool->desc.rope_dim, pool->desc.rope_style);
    LKV_TRY(lkvi_array_check(args->positions, p->num_tokens, 4, "positions"));
    p->rope_cos = table->memory;
    p->rope_sin = table->memory + table->num_positions * (table->dim / 2);
    p->positions = args->positions;
    p->num_positions = table->num_positions;
    p->rope_style = table->style;
    return LKV_OK;
}

/* The rope tensor [T, R], or none where R is 0. */
static lkv_status rope_rows(const lkv_pool *pool, const lkv_tensor *rope, uint64_t num_tokens,
                            struct lkvi_rows *out)
{
    uint32_t dim = pool->desc.rope_dim;
    if (!dim && rope)
        return lkvi_fail(LKV_E_INVALID, "rope is given; a pool with rope_dim 0 needs NULL");
    if (!dim)
        return LKV_OK;
    struct lkvi_want want = {"rope", LKVI_FLOATS, 2, {(int64_t)num_tokens, dim}};
    LKV_TRY(lkvi_tensor_check(pool->ctx, rope, &want));
    *out = lkvi_rows_of(rope);
    return LKV_OK;
}

static lkv_status append_params(const lkv_pool *pool, const lkv_append_args *args,
                                struct lkvi_append_params *p)
{
    struct lkvi_want want = {"latent", LKVI_FLOATS, 2, {-1, pool->desc.latent_dim}};
    LKV_TRY(lkvi_flags_check(args->flags, LKV_APPEND_CHECKED, "append flags"));
    if (args->value || args->weights)
        return lkvi_fail(LKV_E_INVALID,
                         "value or weights is given; a LKV_KIND_MLA pool needs NULL");
    if (args->reserved)
        return lkvi_fail(LKV_E_INVALID, "reserved is %u; need 0", args->reserved);
    LKV_TRY(lkvi_pool_store(pool, args->layer, &p->store));
    LKV_TRY(lkvi_tensor_check(pool->ctx, args->latent, &want));
    p->latent = lkvi_rows_of(args->latent);
    p->num_tokens = (uint64_t)args->latent->shape[0];
    LKV_TRY(rope_rows(pool, args->rope, p->num_tokens, &p->rope));
    LKV_TRY(lkvi_array_check(args->slots, p->num_tokens, 8, "slots"));
    p->slots = args->slots;
    LKV_TRY(lkvi_array_check(args->norm_weight, args->norm_weight ? 1 : 0, 4, "norm_weight"));
    if (args->norm_weight && !(isfinite(args->norm_eps) && args->norm_eps >= 0))
        return lkvi_fail(LKV_E_INVALID, "norm_eps is %g; need a finite value from 0",
                         (double)args->norm_eps);
    p->norm_weight = args->norm_weight;
    p->norm_eps = args->norm_eps;
    p->checked = args->flags & LKV_APPEND_CHECKED;
    if (args->rope_table)
        return rope_table_set(pool, args, p);
    if (args->positions)
        return lkvi_fail(LKV_E_INVALID, "positions is given without rope_table; need both");
    return LKV_OK;
}

lkv_status lkv_append(lkv_pool *pool, const lkv_append_args *given, void *stream)
{
    lkv_append_args args;
    struct lkvi_append_params p = {0};
    LKV_TRY(lkvi_pool_live(pool));
    LKV_TRY(lkvi_admit(&args, sizeof args, given, "lkv_append_args"));
    LKV_TRY(lkvi_stream_check(pool->ctx, stream));
    if (pool->desc.kind == LKV_KIND_LATENT_GQA)
        return lkvi_append_heads(pool, &args, stream);
    LKV_TRY(append_params(pool, &args, &p));
    if (!p.num_tokens)
        return LKV_OK;
    return pool->ctx->backend->append(pool->ctx->backend_state, &p, stream);
}

static lkv_status gather_rows(const lkv_pool *pool, const lkv_tensor *t, const char *name,
                              uint32_t dim, struct lkvi_gather_params *p, struct lkvi_rows *out)
{
    if (!t)
        return LKV_OK;
    struct lkvi_want want = {name, LKVI_FLOATS, 2, {-1, dim}};
    LKV_TRY(lkvi_tensor_check(pool->ctx, t, &want));
    if (p->num_tokens != UINT64_MAX && p->num_tokens != (uint64_t)t->shape[0])
        return lkvi_fail(LKV_E_INVALID, "%s has shape[0] %lld; need %llu as latent", name,
                         (long long)t->shape[0], (unsigned long long)p->num_tokens);
    p->num_tokens = (uint64_t)t->shape[0];
    *out = lkvi_rows_of(t);
    return LKV_OK;
}

lkv_status lkv_gather(const lkv_pool *pool, const lkv_gather_args *given, void *stream)
{
    lkv_gather_args args;
    struct lkvi_gather_params p = {.num_tokens = UINT64_MAX};
    LKV_TRY(lkvi_pool_live(pool));
    LKV_TRY(lkvi_admit(&args, sizeof args, given, "lkv_gather_args"));
    LKV_TRY(lkvi_stream_check(pool->ctx, stream));
    if (pool->desc.kind == LKV_KIND_LATENT_GQA)
        return lkvi_gather_heads(pool, &args, stream);
    LKV_TRY(lkvi_flags_check(args.flags, LKV_GATHER_STORED_BASIS, "gather flags"));
    LKV_TRY(lkvi_pool_store(pool, args.layer, &p.store));
    if (args.value)
        return lkvi_fail(LKV_E_INVALID, "value is given; a LKV_KIND_MLA pool needs NULL");
    if (!args.latent && !args.rope)
        return lkvi_fail(LKV_E_INVALID, "latent and rope are both NULL; need one");
    if (args.rope && !pool->desc.rope_dim)
        return lkvi_fail(LKV_E_INVALID, "rope is given; a pool with rope_dim 0 needs NULL");
    LKV_TRY(gather_rows(pool, args.latent, "latent", pool->desc.latent_dim, &p, &p.latent));
    LKV_TRY(gather_rows(pool, args.rope, "rope", pool->desc.rope_dim, &p, &p.rope));
    LKV_TRY(lkvi_array_check(args.slots, p.num_tokens, 8, "slots"));
    p.slots = args.slots;
    p.unrotate =
        (pool->desc.encode_flags & LKV_ENCODE_ROTATE) && !(args.flags & LKV_GATHER_STORED_BASIS);
    if (!p.num_tokens)
        return LKV_OK;
    return pool->ctx->backend->gather(pool->ctx->backend_state, &p, stream);
}
