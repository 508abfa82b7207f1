/* The size-first rule through every function that takes such a struct: a longer struct with a zero
 * tail is as good as ours, with data in its tail it is refused, a shorter result is kept to. */
#include <criterion/criterion.h>
#include <string.h>
#include "tests/unit/api/grown.h"
#include "tests/unit/api/world.h"

static lkv_status call(struct world *w, int which, uint8_t byte)
{
    struct outputs *o = &w->out;
    void *ws = w->workspace;
    size_t n = w->workspace_bytes;
    switch (which) {
    case 0:
        return lkv_context_create(grown(&w->ctx_desc, byte), (lkv_context **)&o->object);
    case 1:
        return lkv_block_query(grown(&w->pool_desc, byte), &o->block_info);
    case 2:
        return lkv_pool_create(w->ctx, grown(&w->pool_desc, byte), (lkv_pool **)&o->object);
    case 3:
        return lkv_weights_create(w->ctx, grown(&w->model, byte), &w->weights_desc,
                                  (lkv_weights **)&o->object);
    case 4:
        return lkv_weights_create(w->ctx, &w->model, grown(&w->weights_desc, byte),
                                  (lkv_weights **)&o->object);
    case 5:
        return lkv_rope_create(w->ctx, grown(&w->model, byte), 8, (lkv_rope **)&o->object);
    case 6:
        return lkv_plan_create(w->ctx, grown(&w->plan_desc, byte), (lkv_plan **)&o->object);
    case 7:
        return lkv_seq_match(w->pool, grown(&w->prompt, byte), &o->match);
    case 8:
        return lkv_seq_admit(w->pool, &w->prompt, grown(&w->admit, byte), NULL, &o->seq);
    case 9:
        return lkv_pool_step(w->pool, grown(&w->step, byte), NULL);
    case 10:
        return lkv_plan_update(w->plan, grown(&w->batch, byte), ws, n, NULL);
    case 11:
        return lkv_append(w->pool, grown(&w->append, byte), NULL);
    case 12:
        return lkv_attend(w->plan, w->pool, grown(&w->batch, byte), &w->attend, NULL);
    case 13:
        return lkv_attend(w->plan, w->pool, &w->batch, grown(&w->attend, byte), NULL);
    case 14:
        return lkv_gather(w->pool, grown(&w->gather, byte), NULL);
    default:
        return lkv_merge(w->ctx, grown(&w->merge, byte), NULL);
    }
}
enum { NUM_CALLS = 16 };

static void release(struct world *w, int which)
{
    if (which == 0)
        lkv_context_release(w->out.object);
    else if (which == 2)
        lkv_pool_release(w->out.object);
    else if (which == 3 || which == 4)
        lkv_weights_release(w->out.object);
    else if (which == 5)
        lkv_rope_release(w->out.object);
    else if (which == 6)
        lkv_plan_release(w->out.object);
}

Test(tail, of_arguments)
{
    struct world *w = world_create();
    for (int i = 0; i < NUM_CALLS; i++) {
        uint64_t before = world_fingerprint(w);
        cr_expect_eq(call(w, i, 1), LKV_E_VERSION, "call %d: %s", i, lkv_last_error());
        cr_expect_eq(world_fingerprint(w), before, "call %d changed something", i);
        cr_expect_eq(call(w, i, 0), LKV_OK, "call %d: %s", i, lkv_last_error());
        release(w, i);
    }
    world_destroy(w);
}

Test(tail, of_results)
{
    struct world *w = world_create();
    lkv_pool_stats full = {.size = sizeof full};
    union {
        lkv_pool_stats stats;
        uint64_t words[64];
    } given;
    cr_assert_eq(lkv_pool_query(w->pool, &full), LKV_OK);
    for (size_t size = 8; size <= sizeof given; size += 8) {
        memset(&given, 0xc3, sizeof given);
        given.stats.size = size;
        cr_assert_eq(lkv_pool_query(w->pool, &given.stats), LKV_OK);
        cr_expect_eq(given.stats.size, size);
        for (size_t i = 1; i < 64; i++) {
            uint64_t want = i * 8 >= size                 ? 0xc3c3c3c3c3c3c3c3u
                            : i * 8 >= sizeof given.stats ? 0
                                                          : ((uint64_t *)&full)[i];
            cr_expect_eq(given.words[i], want, "size %zu, word %zu", size, i);
        }
    }
    world_destroy(w);
}

/* The first fields of 0.1 are enough where the rest may be zero. */
Test(tail, of_an_older_caller)
{
    lkv_context *ctx = NULL;
    lkv_context_desc desc = {.size = 16, .device = LKV_DEVICE_CPU, .num_threads = 1, .isa = 77};
    cr_assert_eq(lkv_context_create(&desc, &ctx), LKV_OK, "%s", lkv_last_error());
    lkv_context_info info = {.size = sizeof info};
    cr_assert_eq(lkv_context_query(ctx, &info), LKV_OK);
    cr_assert(info.num_threads == 1 && info.device == LKV_DEVICE_CPU && info.name[0]);
    lkv_context_release(ctx);
}
