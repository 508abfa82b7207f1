/* Rows of wrong calls for moe_cache.h: slots, routing traces, signals. Slots are asked for their
 * statistics before and after. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include "latentkv/moe_cache.h"
#include "tests/unit/api/badinput.h"

enum { E = 8 };

struct bad_slots {
    lkv_pool *pool, *flat; /* with headroom, without */
    lkv_slots *slots, *dead;
    lkv_slots_desc desc;
    lkv_slots_args args;
    lkv_slot_key key;
    lkv_slot slot;
    lkv_slots_stats stats, before;
    uint64_t handle, erased;
};

static void make_slots(struct world *w, struct bad_slots *s)
{
    lkv_pool_desc d = w->pool_desc;
    d.fallback_headroom = 0.3;
    cr_assert_eq(lkv_pool_create(w->ctx, &d, &s->pool), LKV_OK, "%s", lkv_last_error());
    d.fallback_headroom = 0;
    cr_assert_eq(lkv_pool_create(w->ctx, &d, &s->flat), LKV_OK, "%s", lkv_last_error());
    s->desc = (lkv_slots_desc){.size = sizeof s->desc, .payload_bytes = 100};
    cr_assert_eq(lkv_slots_create(s->pool, &s->desc, &s->slots), LKV_OK, "%s", lkv_last_error());
    cr_assert_eq(lkv_slots_create(s->pool, &s->desc, &s->dead), LKV_OK);
    lkv_slots_release(s->dead);
    s->key = (lkv_slot_key){.kind = LKV_SLOT_KEY_TOKEN, .block = 1};
    s->args =
        (lkv_slots_args){.size = sizeof s->args, .keys = &s->key, .slots = &s->slot, .num_keys = 1};
    s->stats.size = s->before.size = sizeof s->stats;
    cr_assert_eq(lkv_slots_query(s->slots, &s->before), LKV_OK);
}

#define BAD_STORE(word, change)                                                                    \
    WITH(lkv_slots_desc, d, s->desc, change,                                                       \
         BAD(lkv_slots_create, word, INVALID, s->pool, &d, MARK(w)))
#define BAD_GET(word, change)                                                                      \
    WITH(lkv_slots_args, a, s->args, change, BAD(lkv_slots_get, word, INVALID, s->slots, &a))
#define BAD_KEY(word, change) WITH(lkv_slot_key, k, s->key, change, BAD_GET(word, a.keys = &k))

static void bad_stores(struct world *w, struct bad_slots *s)
{
    BAD(lkv_slots_create, "NULL", INVALID, NULL, &s->desc, MARK(w));
    BAD(lkv_slots_create, "released", INVALID, w->dead_pool, &s->desc, MARK(w));
    BAD(lkv_slots_create, "ENGINE", INVALID, w->engine, &s->desc, MARK(w));
    BAD(lkv_slots_create, "0 headroom blocks", INVALID, s->flat, &s->desc, MARK(w));
    BAD(lkv_slots_create, "NULL", INVALID, s->pool, NULL, MARK(w));
    BAD(lkv_slots_create, "out", INVALID, s->pool, &s->desc, NULL);
    BAD_STORE("size is 0", d.size = 0);
    BAD_STORE("payload_bytes is 0", d.payload_bytes = 0);
    BAD_STORE("payload_bytes", d.payload_bytes = UINT64_MAX);
    BAD_STORE("max_blocks", d.max_blocks = UINT64_MAX);
    BAD_STORE("policy is 3", d.policy = 3);
    BAD_STORE("num_layers", d.num_layers = UINT32_MAX);
}

static void bad_gets(struct world *w, struct bad_slots *s)
{
    BAD(lkv_slots_get, "NULL", INVALID, NULL, &s->args);
    BAD(lkv_slots_get, "released", INVALID, s->dead, &s->args);
    BAD(lkv_slots_get, "NULL", INVALID, s->slots, NULL);
    BAD_GET("flags", a.flags = 8);
    BAD_GET("CREATE", a.flags = LKV_SLOTS_FILL);
    BAD_GET("callback", a.flags = LKV_SLOTS_FILL | LKV_SLOTS_CREATE);
    BAD_GET("reserved", a.reserved = 1);
    BAD_GET("keys is NULL", a.keys = NULL);
    BAD_GET("slots is NULL", a.slots = NULL);
    BAD_GET("alignment", a.slots = OFF(a.slots));
    BAD_KEY("kind is 3", k.kind = 3);
    BAD_KEY("layer", k.layer = W_LAYERS);
    BAD_KEY("block is 0", k.block = 0);
    BAD_KEY("block", k.block = W_BLOCKS + 1);
    BAD_KEY("index", k.index = W_BLOCK);
}

static void bad_handles(struct world *w, struct bad_slots *s)
{
    uint64_t *h = &s->handle;
    BAD(lkv_slots_commit, "NULL", INVALID, NULL, h, 1, 1);
    BAD(lkv_slots_commit, "released", INVALID, s->dead, h, 1, 1);
    BAD(lkv_slots_commit, "handles is NULL", INVALID, s->slots, NULL, 1, 1);
    BAD(lkv_slots_commit, "ready", INVALID, s->slots, h, 1, 2);
    BAD(lkv_slots_commit, "handles[0]", LKV_E_NOT_FOUND, s->slots, h, 1, 1);
    BAD(lkv_slots_unpin, "NULL", INVALID, NULL, h, 1);
    BAD(lkv_slots_unpin, "released", INVALID, s->dead, h, 1);
    BAD(lkv_slots_unpin, "handles is NULL", INVALID, s->slots, NULL, 1);
    *h = UINT64_MAX;
    BAD(lkv_slots_unpin, "handles[0]", LKV_E_NOT_FOUND, s->slots, h, 1);
    BAD(lkv_slots_erase, "NULL", INVALID, NULL, &s->key, 1, &s->erased);
    BAD(lkv_slots_erase, "released", INVALID, s->dead, &s->key, 1, &s->erased);
    BAD(lkv_slots_erase, "keys is NULL", INVALID, s->slots, NULL, 1, &s->erased);
    BAD(lkv_slots_erase, "erased is NULL", INVALID, s->slots, &s->key, 1, NULL);
    BAD(lkv_slots_query, "NULL", INVALID, NULL, &s->stats);
    BAD(lkv_slots_query, "released", INVALID, s->dead, &s->stats);
    BAD(lkv_slots_query, "NULL", INVALID, s->slots, NULL);
    BAD(lkv_slots_query, "alignment", INVALID, s->slots, OFF(&s->stats));
}

#define BAD_TRACE(word, change)                                                                    \
    WITH(lkv_trace_args, a, base, change, BAD(lkv_trace_write, word, INVALID, pool, &a));          \
    WITH(lkv_trace_args, a, base, change, BAD(lkv_trace_read, word, INVALID, pool, &a))

static void bad_traces(struct world *w)
{
    lkv_pool *pool = NULL;
    int64_t slots[2] = {W_BLOCK, 2 * W_BLOCK};
    int64_t wrong[4] = {W_BLOCK, 1, W_BLOCK, (int64_t)(W_BLOCKS + 1) * W_BLOCK};
    int32_t experts[2] = {1, 65535};
    lkv_plane_desc planes[3] = {{W_BLOCK * 2, LKV_PLANE_HOST, 1},
                                {W_BLOCK * 2 + 1, LKV_PLANE_HOST, 1},
                                {W_BLOCK * 2, LKV_PLANE_HOST, 9}};
    lkv_pool_desc d = w->pool_desc;
    d.planes = planes;
    d.num_planes = 3;
    cr_assert_eq(lkv_pool_create(w->ctx, &d, &pool), LKV_OK, "%s", lkv_last_error());
    lkv_trace_args base = {.size = sizeof base,
                           .slots = slots,
                           .experts = experts,
                           .num_tokens = 2,
                           .num_layers = 1,
                           .top_k = 1};
    BAD(lkv_trace_write, "NULL", INVALID, NULL, &base);
    BAD(lkv_trace_read, "NULL", INVALID, NULL, &base);
    BAD(lkv_trace_write, "ENGINE", INVALID, w->engine, &base);
    BAD(lkv_trace_read, "released", INVALID, w->dead_pool, &base);
    BAD(lkv_trace_write, "NULL", INVALID, pool, NULL);
    BAD(lkv_trace_read, "alignment", INVALID, pool, OFF(&base));
    BAD(lkv_trace_write, "experts[1] is 65535", INVALID, pool, &base);
    BAD_TRACE("num_layers", a.num_layers = 0);
    BAD_TRACE("need 64", a.num_layers = 2);
    BAD_TRACE("layer", a.layer = 1);
    BAD_TRACE("top_k", a.top_k = UINT32_MAX);
    BAD_TRACE("plane is 3", a.plane = 3);
    BAD_TRACE("even", a.plane = 1);
    BAD_TRACE("tag 9", a.plane = 2);
    BAD_TRACE("slots is NULL", a.slots = NULL);
    BAD_TRACE("experts is NULL", a.experts = NULL);
    BAD_TRACE("slots[1] is 1", a.slots = wrong);
    BAD_TRACE("slots[1]", a.slots = wrong + 2);
    lkv_pool_release(pool);
}

#define BAD_MOE(word, change)                                                                      \
    WITH(lkv_moe_args, a, base, change, BAD(lkv_moe_measure, word, INVALID, &a, &stats));          \
    WITH(lkv_moe_args, a, base, change,                                                            \
         BAD(lkv_moe_metrics_text, word, INVALID, &a, NULL, NULL, 0, &needed))

static void bad_signals(struct world *w)
{
    uint64_t load[E] = {1, 2, 3};
    size_t needed = 0;
    lkv_moe_stats stats = {.size = sizeof stats};
    lkv_moe_args base = {.size = sizeof base, .load = load, .num_experts = E};
    BAD(lkv_moe_measure, "NULL", INVALID, NULL, &stats);
    BAD(lkv_moe_measure, "NULL", INVALID, &base, NULL);
    BAD(lkv_moe_measure, "alignment", INVALID, &base, OFF(&stats));
    BAD(lkv_moe_metrics_text, "NULL", INVALID, NULL, NULL, NULL, 0, &needed);
    BAD(lkv_moe_metrics_text, "needed", INVALID, &base, NULL, NULL, 0, NULL);
    BAD(lkv_moe_metrics_text, "buffer", INVALID, &base, NULL, NULL, 9, &needed);
    BAD(lkv_moe_metrics_text, "capacity", INVALID, &base, NULL, (char *)w->out.rows, 9, &needed);
    BAD(lkv_moe_metrics_text, "labels", INVALID, &base, "a=b", NULL, 0, &needed);
    BAD_MOE("num_experts is 0", a.num_experts = 0);
    BAD_MOE("num_experts", a.num_experts = UINT32_MAX);
    BAD_MOE("load", a.load = OFF(load));
    BAD_MOE("flags", a.flags = 1);
    BAD_MOE("overload_factor", a.overload_factor = NAN);
    BAD_MOE("utilisation_low", a.utilisation_low = 1);
    BAD_MOE("trigger_low", a.trigger_high = INFINITY);
    BAD_MOE("another kind", a.gate = (lkv_gate *)w->pool);
    BAD_MOE("another kind", a.slots = (lkv_slots *)w->pool);
    BAD_MOE("released", a.pool = w->dead_pool);
    cr_expect(needed == 0 && stats.experts == 0);
}

void bad_slots(struct world *w)
{
    struct bad_slots *s = &(struct bad_slots){0};
    make_slots(w, s);
    bad_stores(w, s);
    bad_gets(w, s);
    bad_handles(w, s);
    cr_assert_eq(lkv_slots_query(s->slots, &s->stats), LKV_OK);
    cr_expect_eq(memcmp(&s->stats, &s->before, sizeof s->stats), 0, "a refused call changed slots");
    cr_assert_eq(lkv_pool_check(s->pool), LKV_OK, "%s", lkv_last_error());
    lkv_slots_release(NULL);
    lkv_slots_release(s->dead);
    lkv_slots_release(s->slots);
    lkv_pool_release(s->pool);
    lkv_pool_release(s->flat);
    called("lkv_slots_release");
    bad_traces(w);
    bad_signals(w);
}
