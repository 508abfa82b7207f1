/* Rows for LATENT_GQA pools and projectors: a pool of two KV heads, latents of 16 and 32. */
#include "tests/unit/api/badinput.h"

#include <criterion/criterion.h>
#include <stdlib.h>

enum { G = 2, KEY = 24, VALUE = 40, L = 16, LV = 32, T = 4 };

/* Valid arguments; each row bends one thing. */
struct heads {
    lkv_pool_desc pool_desc;
    lkv_model_desc model;
    lkv_weights_desc weights_desc;
    lkv_append_args append;
    lkv_gather_args gather;
    lkv_pool *pool;
    lkv_weights *weights, *up_only, *rotated;
    lkv_tensor key_up, value_up, key_down, value_down, key, value, out_key, out_value;
    int64_t slots[T];
};

static lkv_tensor cube(float *data, int64_t a, int64_t b, int64_t c)
{
    return (lkv_tensor){.data = data,
                        .dtype = LKV_DTYPE_F32,
                        .ndim = 3,
                        .shape = {a, b, c},
                        .stride = {b * c, c, 1}};
}

static void must(lkv_status status)
{
    cr_assert_eq(status, LKV_OK, "%s", lkv_last_error());
}

static void make_pool(struct world *w, struct heads *h)
{
    h->pool_desc = w->pool_desc;
    h->pool_desc.kind = LKV_KIND_LATENT_GQA;
    h->pool_desc.num_kv_heads = G;
    h->pool_desc.latent_dim = L;
    h->pool_desc.value_latent_dim = LV;
    h->pool_desc.rope_dim = 0;
    must(lkv_pool_create(w->ctx, &h->pool_desc, &h->pool));
}

static void make_weights(struct world *w, struct heads *h)
{
    h->model = w->model;
    h->model.num_heads = 2 * G;
    h->model.nope_dim = KEY;
    h->model.v_dim = VALUE;
    h->model.latent_dim = L;
    h->model.rope_dim = 0;
    h->key_up = h->key_down = cube(w->data, G, KEY, L);
    h->value_up = h->value_down = cube(w->data, G, VALUE, LV);
    h->weights_desc = (lkv_weights_desc){
        .size = sizeof h->weights_desc, .key_up = &h->key_up, .value_up = &h->value_up};
    must(lkv_weights_create(w->ctx, &h->model, &h->weights_desc, &h->up_only));
    h->weights_desc.key_down = &h->key_down;
    h->weights_desc.value_down = &h->value_down;
    must(lkv_weights_create(w->ctx, &h->model, &h->weights_desc, &h->weights));
    h->weights_desc.flags = LKV_WEIGHTS_ROTATE;
    must(lkv_weights_create(w->ctx, &h->model, &h->weights_desc, &h->rotated));
    h->weights_desc.flags = 0;
}

static void make_args(struct world *w, struct heads *h)
{
    for (int64_t i = 0; i < T; i++)
        h->slots[i] = W_BLOCK + i;
    h->key = cube(w->data, T, G, KEY);
    h->value = cube(w->data, T, G, VALUE);
    h->out_key = cube(w->out.rows, T, G, L);
    h->out_value = cube(w->out.rows + T * G * L, T, G, LV);
    h->append = (lkv_append_args){.size = sizeof h->append,
                                  .latent = &h->key,
                                  .value = &h->value,
                                  .weights = h->weights,
                                  .slots = h->slots};
    h->gather = (lkv_gather_args){
        .size = sizeof h->gather, .slots = h->slots, .latent = &h->out_key, .value = &h->out_value};
}

static void bad_pools(struct world *w, struct heads *h)
{
    lkv_pool **out = MARK(w);
#define POOL(change, word)                                                                         \
    WITH(lkv_pool_desc, d, h->pool_desc, change,                                                   \
         BAD(lkv_pool_create, word, INVALID, w->ctx, &d, out);                                     \
         BAD(lkv_block_query, word, INVALID, &d, &w->out.block_info))
    POOL(d.num_kv_heads = 0, "num_kv_heads is 0");
    POOL(d.num_kv_heads = 257, "num_kv_heads is 257");
    POOL(d.rope_dim = 2, "rope_dim is 2");
    POOL(d.latent_dim = 0, "latent_dim is 0");
    POOL(d.latent_dim = 24, "latent_dim is 24");
    POOL(d.latent_dim = 1040, "latent_dim is 1040");
    POOL(d.value_latent_dim = 8, "value_latent_dim is 8");
    POOL(d.value_latent_dim = UINT32_MAX, "value_latent_dim");
    POOL((d.value_latent_dim = 48, d.encode_flags = LKV_ENCODE_ROTATE), "power of two");
    POOL((d.latent_dim = 48, d.encode_flags = LKV_ENCODE_ROTATE), "power of two");
#undef POOL
}

static void bad_projectors(struct world *w, struct heads *h)
{
    lkv_weights **out = MARK(w);
    lkv_tensor three = cube(w->data, 3, KEY, L), odd = cube(w->data, G, VALUE, 24);
    lkv_tensor wide = cube(w->data, G, VALUE, 48), other = cube(w->data, G, KEY, LV);
    lkv_tensor none = cube(w->data, 0, KEY, L);
#define WEIGHTS(change, word)                                                                      \
    WITH(lkv_weights_desc, d, h->weights_desc, change,                                             \
         BAD(lkv_weights_create, word, INVALID, w->ctx, &h->model, &d, out))
#define MODEL(change, word)                                                                        \
    WITH(lkv_model_desc, m, h->model, change,                                                      \
         BAD(lkv_weights_create, word, INVALID, w->ctx, &m, &h->weights_desc, out))
    WEIGHTS(d.kv_b_proj = &w->t.kv_b_proj, "need one kind");
    WEIGHTS(d.key_up = NULL, "key_up is NULL");
    WEIGHTS(d.value_up = NULL, "value_up is NULL");
    WEIGHTS(d.key_down = NULL, "key_down is NULL");
    WEIGHTS(d.value_down = NULL, "value_down is NULL");
    WEIGHTS(d.key_up = &three, "key_up has 3 KV heads");
    WEIGHTS(d.key_up = &none, "key_up has 0 KV heads");
    WEIGHTS(d.key_up = &other, "key_up has shape[2]");
    WEIGHTS(d.key_down = &other, "key_down has shape[2]");
    WEIGHTS(d.value_up = &odd, "value_up has shape[2] 24");
    WEIGHTS(d.value_up = &wide, "value_down has shape[2]");
    WEIGHTS((d.value_up = d.value_down = &wide, d.flags = LKV_WEIGHTS_ROTATE), "powers of two");
    WEIGHTS(d.flags = 2, "flags");
    MODEL(m.rope_dim = 2, "rope_dim is 2");
    MODEL(m.latent_dim = 1040, "latent_dim is 1040");
    MODEL(m.num_heads = 3, "num_heads, 3");
    MODEL(m.nope_dim = 23, "key_up has shape[1]");
    MODEL(m.v_dim = 23, "value_up has shape[1]");
#undef WEIGHTS
#undef MODEL
}

static void bad_rows(struct world *w, struct heads *h)
{
#define APPEND(change, word)                                                                       \
    WITH(lkv_append_args, a, h->append, change, BAD(lkv_append, word, INVALID, h->pool, &a, NULL))
#define GATHER(change, word)                                                                       \
    WITH(lkv_gather_args, g, h->gather, change, BAD(lkv_gather, word, INVALID, h->pool, &g, NULL))
    lkv_tensor short_value = cube(w->data, T - 1, G, VALUE), flat = w->t.latent;
    lkv_tensor few = cube(w->out.rows, T - 1, G, LV);
    APPEND(a.latent = NULL, "latent is NULL");
    APPEND(a.value = NULL, "value is NULL");
    APPEND(a.value = &short_value, "value has shape[0] 3");
    APPEND(a.latent = &flat, "latent has 2 dimensions");
    APPEND(a.weights = NULL, "latent has shape[2] 24");
    APPEND(a.weights = h->up_only, "no key_down");
    APPEND(a.weights = h->rotated, "rotated");
    APPEND(a.weights = w->weights, "no key_down");
    APPEND(a.weights = w->dead_weights, "released");
    APPEND(a.weights = w->other_weights, "another context");
    APPEND(a.slots = NULL, "slots is NULL");
    APPEND(a.flags = 2, "flags");
    APPEND(a.reserved = 1, "reserved");
    APPEND(a.layer = W_LAYERS, "layer is 2");
    APPEND(a.rope = &w->t.rope, "needs NULL");
    APPEND(a.norm_weight = w->data, "needs NULL");
    APPEND((a.rope_table = w->rope, a.positions = w->positions), "needs NULL");
    GATHER((g.latent = NULL, g.value = NULL), "both NULL");
    GATHER(g.rope = &w->t.gather_rope, "rope is given");
    GATHER(g.value = &few, "value has shape[0] 3");
    GATHER(g.latent = &w->t.gather_latent, "latent has 2 dimensions");
    GATHER(g.slots = NULL, "slots is NULL");
    GATHER(g.flags = 2, "flags");
#undef APPEND
#undef GATHER
    WITH(lkv_append_args, a, w->append, a.value = &h->value,
         BAD(lkv_append, "LKV_KIND_MLA", INVALID, w->pool, &a, NULL));
    WITH(lkv_append_args, a, w->append, a.weights = h->weights,
         BAD(lkv_append, "LKV_KIND_MLA", INVALID, w->pool, &a, NULL));
    WITH(lkv_gather_args, g, w->gather, g.value = &h->out_value,
         BAD(lkv_gather, "LKV_KIND_MLA", INVALID, w->pool, &g, NULL));
}

/* Plans and pools of one kind do not serve the other. */
static void bad_attends(struct world *w, struct heads *h)
{
    lkv_plan_desc desc = w->plan_desc;
    lkv_plan *plan;
    size_t bytes;
    desc.pool = h->pool;
    WITH(lkv_plan_desc, d, desc, d.num_heads = 3,
         BAD(lkv_plan_create, "multiple of num_kv_heads", INVALID, w->ctx, &d, MARK(w)));
    desc.num_heads = W_HEADS;
    must(lkv_plan_create(w->ctx, &desc, &plan));
    must(lkv_plan_workspace(plan, &bytes));
    void *workspace = aligned_alloc(256, (bytes + 255) / 256 * 256);
    must(lkv_plan_update(plan, &w->batch, workspace, bytes, NULL));
    lkv_attend_args args = w->attend;
    args.workspace = workspace;
    args.workspace_bytes = bytes;
    args.q_rope = NULL;
    BAD(lkv_attend, "kind 0", INVALID, plan, w->pool, &w->batch, &args, NULL);
    BAD(lkv_attend, "kind 1", INVALID, w->plan, h->pool, &w->batch, &w->attend, NULL);
    BAD(lkv_attend, "of latent 64", INVALID, plan, h->pool, &w->batch, &args, NULL);
    args.weights = h->weights; /* of four query heads */
    BAD(lkv_attend, "4 heads", INVALID, plan, h->pool, &w->batch, &args, NULL);
    free(workspace);
    lkv_plan_release(plan);
}

void bad_heads(struct world *w)
{
    struct heads h = {0};
    make_pool(w, &h);
    make_weights(w, &h);
    make_args(w, &h);
    bad_pools(w, &h);
    bad_projectors(w, &h);
    bad_rows(w, &h);
    bad_attends(w, &h);
    lkv_weights_release(h.weights);
    lkv_weights_release(h.up_only);
    lkv_weights_release(h.rotated);
    lkv_pool_release(h.pool);
}
