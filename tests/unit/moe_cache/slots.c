/* Slots by hand: where payloads live and when they go, policies against a list that is searched,
 * failing callbacks and allocations. Random lifetimes are in tests/stress/slots_model.c. */
#include <criterion/criterion.h>
#include "core/alloc.h"
#include "tests/support/rng.h"
#include "tests/unit/moe_cache/slots_world.h"

enum { BLOCKS = 39, HEADROOM = 9 }; /* base floor(39 / 1.3) = 30 */

struct world {
    lkv_context *ctx;
    lkv_pool *pool;
    lkv_slots *slots;
    int32_t tokens[BLOCKS * SW_BLOCK];
};

static void open_world(struct world *w, uint64_t max_blocks, uint32_t policy, uint64_t payload)
{
    w->ctx = sw_context();
    w->pool = sw_pool(w->ctx, BLOCKS, 20);
    w->slots = sw_slots(w->pool, max_blocks, policy, payload);
    for (int i = 0; i < BLOCKS * SW_BLOCK; i++)
        w->tokens[i] = 7 * i + 1;
}

static void close_world(struct world *w)
{
    SW_MUST(lkv_pool_check(w->pool));
    lkv_slots_release(w->slots);
    SW_MUST(lkv_pool_check(w->pool));
    cr_expect_eq(sw_pool_stats(w->pool).blocks_lent, 0);
    lkv_pool_release(w->pool);
    lkv_context_release(w->ctx);
}

/* Block bytes are 16 records of 64 + 16 + 64 bytes; a payload takes a multiple of 16. */
Test(moe_slots, cutting)
{
    static const uint64_t payloads[] = {1, 16, 17, 200, 1152, 1153, 2304};
    static const uint64_t per_chunk[] = {144, 144, 72, 11, 2, 1, 1};
    for (int i = 0; i < 7; i++) {
        struct world w;
        open_world(&w, 2, LKV_SLOTS_LRU, payloads[i]);
        uint64_t n = 2 * SW_LAYERS * per_chunk[i];
        uint8_t *first = NULL;
        cr_expect_eq(sw_stats(w.slots).slots_total, n);
        for (uint32_t k = 0; k < n; k++) {
            lkv_slot slot = sw_get(w.slots, sw_free(0, k), LKV_SLOTS_CREATE | LKV_SLOTS_PIN, 0);
            cr_assert_eq(slot.state, LKV_SLOT_NEW, "payload %d slot %u", i, k);
            cr_expect_eq((uintptr_t)slot.address % 16, 0);
            memset(slot.address, (int)k, payloads[i]);
            first = k ? first : slot.address;
            SW_MUST(lkv_slots_commit(w.slots, &slot.handle, 1, 1));
        }
        cr_expect_eq(*first, 0, "no slot overlaps another");
        for (uint32_t k = 0; k < n; k++) {
            uint8_t *p = sw_get(w.slots, sw_free(0, k), 0, 0).address;
            cr_assert(p[0] == (uint8_t)k && p[payloads[i] - 1] == (uint8_t)k, "slot %u", k);
        }
        cr_expect_eq(sw_get(w.slots, sw_free(0, 9999), LKV_SLOTS_CREATE, 0).state, LKV_SLOT_REFUSED,
                     "all are pinned");
        cr_expect_eq(sw_stats(w.slots).blocks_held, 2);
        close_world(&w);
    }
}

/* The first chain's payloads serve whoever has the same prefix, and go when its blocks do. */
Test(moe_slots, shared_by_prefix_and_gone_with_the_block)
{
    struct world w;
    open_world(&w, 0, LKV_SLOTS_LRU, SW_PAYLOAD);
    lkv_seq a = sw_admit(w.pool, w.tokens, 40);
    lkv_slot_key key = sw_token(w.pool, a, 1, 5), tail = sw_token(w.pool, a, 1, 35);
    SW_MUST(lkv_seq_commit(w.pool, a, 40));
    cr_assert(sw_put(w.slots, key, 11, 0) && sw_put(w.slots, tail, 12, 0));
    lkv_seq b = sw_admit(w.pool, w.tokens, 40);
    cr_expect_eq(sw_look(w.slots, sw_token(w.pool, b, 1, 5)), 11);
    cr_expect_eq(sw_look(w.slots, sw_token(w.pool, b, 1, 35)), -1, "its tail is its own");
    cr_expect_eq(sw_stats(w.slots).token_users, 3);
    cr_expect_eq(sw_stats(w.slots).token_idle, 0);
    SW_MUST(lkv_seq_free(w.pool, a, 5));
    cr_expect_eq(sw_look(w.slots, tail), 12, "its fence has not passed");
    SW_MUST(lkv_pool_pass_fence(w.pool, 5));
    cr_expect_eq(sw_look(w.slots, tail), -1);
    SW_MUST(lkv_seq_free(w.pool, b, 0));
    cr_expect_eq(sw_look(w.slots, key), 11, "cached");
    cr_expect_eq(sw_stats(w.slots).token_idle, 1);
    cr_expect_eq(sw_stats(w.slots).token_users, 1);
    uint64_t evicted;
    SW_MUST(lkv_pool_evict(w.pool, BLOCKS, &evicted));
    cr_expect_eq(sw_look(w.slots, key), -1);
    cr_expect_eq(sw_stats(w.slots).blocks_held, 0, "an empty block goes back");
    cr_expect_eq(sw_get(w.slots, key, LKV_SLOTS_CREATE, 0).state, LKV_SLOT_REFUSED, "dead block");
    close_world(&w);
}

/* Forks, partial hits and truncation: a payload follows its token, not its place. */
Test(moe_slots, copied_on_write)
{
    struct world w;
    open_world(&w, 0, LKV_SLOTS_LRU, SW_PAYLOAD);
    int32_t other = 99999;
    lkv_seq a = sw_admit(w.pool, w.tokens, 20), b;
    SW_MUST(lkv_seq_fork(w.pool, a, &b));
    cr_assert(sw_put(w.slots, sw_token(w.pool, a, 0, 17), 17, 0));
    SW_MUST(lkv_seq_append(w.pool, b, &other, 1, NULL));
    cr_assert(sw_put(w.slots, sw_token(w.pool, b, 0, 20), 20, 0));
    cr_expect_eq(sw_look(w.slots, sw_token(w.pool, b, 0, 17)), 17, "the copy has it too");
    cr_expect_eq(sw_stats(w.slots).slots_ready, 2, "and no second payload");
    SW_MUST(lkv_seq_append(w.pool, a, w.tokens + 20, 12, NULL));
    cr_expect_eq(sw_look(w.slots, sw_token(w.pool, a, 0, 20)), -1, "another token");
    SW_MUST(lkv_seq_free(w.pool, b, 0));
    cr_expect_eq(sw_look(w.slots, sw_token(w.pool, a, 0, 17)), 17);
    cr_assert(sw_put(w.slots, sw_token(w.pool, a, 0, 30), 30, 0));
    SW_MUST(lkv_seq_commit(w.pool, a, 32));
    w.tokens[30] = other; /* equal up to 29 */
    lkv_seq c = sw_admit(w.pool, w.tokens, 32);
    cr_expect_eq(sw_look(w.slots, sw_token(w.pool, c, 0, 17)), 17, "partial hit");
    cr_expect_eq(sw_look(w.slots, sw_token(w.pool, c, 0, 30)), -1);
    cr_assert(sw_put(w.slots, sw_token(w.pool, c, 0, 31), 31, 0));
    SW_MUST(lkv_seq_truncate(w.pool, c, 31, 0));
    cr_expect_eq(sw_look(w.slots, sw_token(w.pool, c, 0, 31)), -1);
    SW_MUST(lkv_pool_apply_copies(w.pool, 0, NULL));
    close_world(&w);
}

Test(moe_slots, swapped_and_demoted)
{
    struct world w;
    open_world(&w, 0, LKV_SLOTS_LRU, SW_PAYLOAD);
    lkv_seq a = sw_admit(w.pool, w.tokens, 24);
    cr_assert(sw_put(w.slots, sw_token(w.pool, a, 0, 3), 3, 0));
    cr_assert(sw_put(w.slots, sw_token(w.pool, a, 0, 20), 20, 0));
    SW_MUST(lkv_seq_commit(w.pool, a, 24));
    SW_MUST(lkv_seq_swap_out(w.pool, a, 0, NULL));
    SW_MUST(lkv_pool_apply_copies(w.pool, 0, NULL));
    SW_MUST(lkv_pool_check(w.pool));
    SW_MUST(lkv_seq_swap_in(w.pool, a, NULL));
    SW_MUST(lkv_pool_apply_copies(w.pool, 0, NULL));
    cr_expect_eq(sw_look(w.slots, sw_token(w.pool, a, 0, 3)), 3);
    cr_expect_eq(sw_look(w.slots, sw_token(w.pool, a, 0, 20)), 20);
    SW_MUST(lkv_seq_free(w.pool, a, 0));
    uint64_t n;
    SW_MUST(lkv_pool_demote(w.pool, 8, &n));
    SW_MUST(lkv_pool_apply_copies(w.pool, 0, NULL));
    SW_MUST(lkv_pool_evict(w.pool, BLOCKS, &n));
    SW_MUST(lkv_pool_check(w.pool));
    cr_expect_eq(sw_stats(w.slots).slots_ready, 1, "the cached block is on the host");
    a = sw_admit(w.pool, w.tokens, 24);
    cr_expect_eq(sw_look(w.slots, sw_token(w.pool, a, 0, 3)), 3);
    SW_MUST(lkv_pool_apply_copies(w.pool, 0, NULL));
    close_world(&w);
}

/* KV holds all it may; the headroom still serves, by evicting idle blocks, up to the budget. */
Test(moe_slots, full_kv_and_one_budget)
{
    struct world w;
    open_world(&w, 5, LKV_SLOTS_LRU, SW_PAYLOAD);
    lkv_seq kv = sw_admit(w.pool, w.tokens, 30 * SW_BLOCK);
    for (uint32_t k = 0; k < 1000; k++) {
        cr_assert(sw_put(w.slots, sw_free(k % 2, k), (int)k, k), "%u", k);
        cr_assert(sw_stats(w.slots).blocks_held <= 5);
    }
    lkv_slots_stats s = sw_stats(w.slots);
    cr_expect(s.blocks_held == 5 && s.slots_ready == 110 && s.evicted == 890);
    cr_expect(s.held_bytes == s.budget_bytes && s.used_bytes <= s.held_bytes);
    lkv_seq_info info = {.size = sizeof info};
    SW_MUST(lkv_seq_query(w.pool, kv, &info));
    cr_expect_eq(info.num_blocks, 30);
    int32_t ids[HEADROOM];
    lkv_lease lease;
    SW_MUST(lkv_lease_lend(w.pool, 4, ids, &lease));
    cr_expect_eq(lkv_lease_lend(w.pool, 1, ids, &lease), LKV_E_NO_BLOCKS, "one headroom for all");
    for (uint32_t k = 0; k < 64; k++) /* handles of the slots' own lease are nobody's */
        cr_expect_neq(lkv_lease_release(w.pool, (lkv_lease)k << 32 | 1, 0), LKV_OK);
    SW_MUST(lkv_lease_release(w.pool, lease, 0));
    close_world(&w);
}

/* ---- policies */

struct twin {
    uint32_t layer, index, uses;
    uint64_t step, last;
};

/* 1: a goes before b. */
static int before(const struct twin *a, const struct twin *b, uint32_t policy, uint32_t now_layer,
                  uint64_t now_step)
{
    uint32_t ua = a->uses < 63 ? a->uses : 63, ub = b->uses < 63 ? b->uses : 63;
    if (policy == LKV_SLOTS_LFU && ua != ub)
        return ua < ub;
    if (policy == LKV_SLOTS_LEAST_STALE) {
        int sa = a->step < now_step, sb = b->step < now_step;
        uint32_t da = (a->layer + SW_LAYERS - now_layer) % SW_LAYERS;
        uint32_t db = (b->layer + SW_LAYERS - now_layer) % SW_LAYERS;
        if (sa != sb)
            return sa;
        if (da != db)
            return da > db;
    }
    return a->last < b->last;
}

Test(moe_slots, policies_are_those_of_a_searched_list)
{
    for (uint32_t policy = 0; policy <= LKV_SLOTS_LEAST_STALE; policy++) {
        struct world w;
        struct twin list[22];
        uint32_t num = 0;
        struct rng r = rng_seed(policy + 100);
        open_world(&w, 1, policy, SW_PAYLOAD);
        for (uint64_t i = 1; i <= 20000; i++) {
            uint64_t step = i / 40, r1 = rng_below(&r, 30), r2 = rng_below(&r, 30);
            uint32_t layer = (uint32_t)(i / 20 % SW_LAYERS), index = (uint32_t)(r1 < r2 ? r1 : r2);
            uint32_t at = 0;
            while (at < num && (list[at].layer != layer || list[at].index != index))
                at++;
            int want = at < num, found = sw_look(w.slots, sw_free(layer, index)) >= 0;
            cr_assert_eq(found, want, "policy %u call %llu: hit %d, want %d", policy,
                         (unsigned long long)i, found, want);
            if (want) {
                sw_get(w.slots, sw_free(layer, index), 0, step);
                list[at].uses += 2;
                list[at].step = step;
                list[at].last = i;
                continue;
            }
            cr_assert(sw_put(w.slots, sw_free(layer, index), 1, step));
            for (uint32_t k = at = num < 22 ? num++ : 0; num == 22 && k < num; k++)
                if (k != at && before(&list[k], &list[at], policy, layer, step))
                    at = k;
            list[at] = (struct twin){layer, index, 0, step, i};
        }
        cr_expect(sw_stats(w.slots).evicted > 1000);
        close_world(&w);
    }
}

/* ---- pins, filling, handles */

Test(moe_slots, filling_and_pins)
{
    struct world w;
    open_world(&w, 1, LKV_SLOTS_LRU, SW_PAYLOAD);
    lkv_slot a = sw_get(w.slots, sw_free(0, 1), LKV_SLOTS_CREATE | LKV_SLOTS_PIN, 0);
    cr_expect_eq(sw_get(w.slots, sw_free(0, 1), LKV_SLOTS_CREATE, 0).state, LKV_SLOT_FILLING);
    cr_expect_eq(lkv_slots_unpin(w.slots, &a.handle, 1), LKV_E_NOT_FOUND, "not ready");
    uint64_t twice[2] = {a.handle, a.handle};
    cr_expect_eq(lkv_slots_commit(w.slots, twice, 2, 1), LKV_E_NOT_FOUND);
    SW_MUST(lkv_slots_commit(w.slots, &a.handle, 1, 1));
    cr_expect_eq(lkv_slots_commit(w.slots, &a.handle, 1, 1), LKV_E_NOT_FOUND);
    memset(a.address, 77, SW_PAYLOAD);
    for (uint32_t k = 2; k < 60; k++)
        cr_assert(sw_put(w.slots, sw_free(0, k), 5, 0));
    cr_expect_eq(sw_look(w.slots, sw_free(0, 1)), 77, "pinned");
    cr_expect_eq(lkv_slots_unpin(w.slots, twice, 2), LKV_E_NOT_FOUND, "pinned once");
    uint64_t erased;
    lkv_slot_key key = sw_free(0, 1);
    SW_MUST(lkv_slots_erase(w.slots, &key, 1, &erased));
    cr_expect_eq(erased, 1);
    cr_expect_eq(*(uint8_t *)a.address, 77);
    for (uint32_t k = 60; k < 100; k++)
        cr_assert(sw_put(w.slots, sw_free(0, k), 5, 0));
    cr_expect_eq(*(uint8_t *)a.address, 77, "erased, and still pinned");
    SW_MUST(lkv_slots_unpin(w.slots, &a.handle, 1));
    cr_expect_eq(lkv_slots_unpin(w.slots, &a.handle, 1), LKV_E_NOT_FOUND);
    lkv_slot b = sw_get(w.slots, sw_free(1, 7), LKV_SLOTS_CREATE, 0);
    SW_MUST(lkv_slots_commit(w.slots, &b.handle, 1, 0));
    cr_expect_eq(sw_look(w.slots, sw_free(1, 7)), -1, "given up");
    close_world(&w);
}

/* A KV block that ends while a payload of it is written: the payload goes nowhere. */
Test(moe_slots, block_ends_while_filling)
{
    for (uint32_t pin = 0; pin < 2; pin++) {
        struct world w;
        open_world(&w, 1, LKV_SLOTS_LRU, SW_PAYLOAD);
        lkv_seq a = sw_admit(w.pool, w.tokens, 4);
        lkv_slot_key key = sw_token(w.pool, a, 0, 2);
        lkv_slot slot = sw_get(w.slots, key, LKV_SLOTS_CREATE | pin, 0);
        SW_MUST(lkv_seq_free(w.pool, a, 0));
        SW_MUST(lkv_pool_check(w.pool));
        SW_MUST(lkv_slots_commit(w.slots, &slot.handle, 1, 1));
        cr_expect_eq(sw_look(w.slots, key), -1);
        cr_expect_eq(sw_stats(w.slots).slots_pinned, pin);
        if (pin)
            SW_MUST(lkv_slots_unpin(w.slots, &slot.handle, 1));
        cr_expect_eq(sw_stats(w.slots).blocks_held, 0);
        close_world(&w);
    }
}

struct filler {
    int calls, fail_at;
};

static lkv_status fill(void *user, const lkv_slot_key *key, void *address, uint64_t bytes)
{
    struct filler *f = user;
    memset(address, (int)key->index, bytes);
    return f->calls++ == f->fail_at ? LKV_E_IO : LKV_OK;
}

/* The n-th callback fails, for every n: the ones before stay, it and the rest are not there. */
Test(moe_slots, callback_fails_in_turn)
{
    for (int n = 0; n <= 6; n++) {
        struct world w;
        struct filler f = {0, n};
        open_world(&w, 1, LKV_SLOTS_LRU, SW_PAYLOAD);
        lkv_slots_desc d = {.size = sizeof d,
                            .payload_bytes = SW_PAYLOAD,
                            .max_blocks = 1,
                            .fill = fill,
                            .fill_user = &f};
        lkv_slots_release(w.slots);
        SW_MUST(lkv_slots_create(w.pool, &d, &w.slots));
        lkv_slot_key keys[6];
        lkv_slot slots[6];
        lkv_slots_args a = {.size = sizeof a,
                            .keys = keys,
                            .slots = slots,
                            .num_keys = 6,
                            .flags = LKV_SLOTS_CREATE | LKV_SLOTS_FILL};
        for (uint32_t k = 0; k < 6; k++)
            keys[k] = sw_free(0, k);
        cr_expect_eq(lkv_slots_get(w.slots, &a), n < 6 ? LKV_E_IO : LKV_OK);
        cr_expect(n == 6 || strstr(lkv_last_error(), "keys["), "%s", lkv_last_error());
        cr_expect_eq(a.num_ready, (uint64_t)n);
        for (int k = 0; k < 6; k++)
            cr_expect_eq(sw_look(w.slots, keys[k]), k < n ? k : -1, "fail %d key %d", n, k);
        cr_expect_eq(sw_stats(w.slots).slots_filling, 0);
        close_world(&w);
    }
}

/* Creation fails at its n-th allocation, for every n: nothing is lent, nothing is left. */
Test(moe_slots, allocations_fail_in_turn)
{
    struct world w;
    open_world(&w, 1, LKV_SLOTS_LFU, SW_PAYLOAD);
    int failed = 0;
    for (int n = 1; n < 40; n++) {
        lkv_slots *other = NULL;
        lkv_slots_desc d = {.size = sizeof d, .payload_bytes = 64};
        lkvi_alloc_fail_after(n);
        lkv_status status = lkv_slots_create(w.pool, &d, &other);
        lkvi_alloc_fail_after(0);
        cr_assert(status == LKV_OK || status == LKV_E_NO_MEMORY, "%s", lkv_status_name(status));
        cr_expect_eq(status == LKV_OK, other != NULL);
        failed += status != LKV_OK;
        lkv_slots_release(other);
        SW_MUST(lkv_pool_check(w.pool));
    }
    cr_expect(failed >= 8, "%d", failed);
    close_world(&w);
}
