/* In: nothing. Out: exit 0 if every allocation may fail, once each, without a trace in slots.
 * A script of calls on a pool with payload slots is run with the n-th allocation failing, for n =
 * 1, 2, ... until nothing fails any more. A call that fails must say NO_MEMORY, change no figure of
 * pool or slots, leave the invariants, and succeed when repeated. The slots' own calls may not fail
 * at all: everything they need is allocated at their creation. */
#include <stddef.h>
#include "core/alloc.h"
#include "tests/unit/moe_cache/slots_world.h"

enum { BLOCKS = 39, TOKENS = 40, QUIET_MAX = 5 };

static int64_t armed;
static int failed_calls, slot_calls;

struct world {
    lkv_context *ctx;
    lkv_pool *pool;
    lkv_slots *slots;
    int32_t tokens[TOKENS + 40];
    lkv_seq a, b, c;
    lkv_slot_key keys[6];
    lkv_slot places[6];
};

static lkv_status fill(void *user, const lkv_slot_key *key, void *address, uint64_t bytes)
{
    (void)user;
    memset(address, (int)key->index, bytes);
    return key->index == 9 ? LKV_E_IO : LKV_OK;
}

static lkv_status call_slots(struct world *w)
{
    const lkv_slots_desc d = {
        .size = sizeof d, .payload_bytes = SW_PAYLOAD, .max_blocks = 2, .fill = fill};
    return lkv_slots_create(w->pool, &d, &w->slots);
}

static lkv_status admit(struct world *w, uint64_t n, lkv_seq *out)
{
    const lkv_prompt p = {.size = sizeof p, .tokens = w->tokens, .num_tokens = n};
    return lkv_seq_admit(w->pool, &p, NULL, NULL, out);
}

static lkv_status call_admit(struct world *w)
{
    return admit(w, TOKENS, &w->a);
}

static lkv_status call_commit(struct world *w)
{
    return lkv_seq_commit(w->pool, w->a, TOKENS);
}

static lkv_status call_hit(struct world *w)
{
    return admit(w, TOKENS - 2, &w->b); /* its last block is copied */
}

static lkv_status call_fork(struct world *w)
{
    return lkv_seq_fork(w->pool, w->a, &w->c);
}

static lkv_status call_write(struct world *w)
{
    return lkv_seq_append(w->pool, w->c, w->tokens + TOKENS, 20, NULL);
}

static lkv_status call_copies(struct world *w)
{
    return lkv_pool_apply_copies(w->pool, 0, NULL);
}

static lkv_status call_truncate(struct world *w)
{
    return lkv_seq_truncate(w->pool, w->c, TOKENS + 1, 0);
}

static lkv_status call_swap_out(struct world *w)
{
    return lkv_seq_swap_out(w->pool, w->c, 0, NULL);
}

static lkv_status call_swap_in(struct world *w)
{
    return lkv_seq_swap_in(w->pool, w->c, NULL);
}

static lkv_status call_demote(struct world *w)
{
    uint64_t n;
    if (w->a) {
        SW_MUST(lkv_seq_free(w->pool, w->a, 0));
        w->a = 0;
    }
    return lkv_pool_demote(w->pool, 4, &n);
}

static lkv_status call_evict(struct world *w)
{
    uint64_t n;
    return lkv_pool_evict(w->pool, 8, &n);
}

/* ---- calls of the slots */

static lkv_status get(struct world *w, uint32_t flags)
{
    lkv_slots_args args = {
        .size = sizeof args, .keys = w->keys, .slots = w->places, .num_keys = 6, .flags = flags};
    return lkv_slots_get(w->slots, &args);
}

static lkv_status call_create(struct world *w)
{
    uint64_t handles[6];
    lkv_status status = get(w, LKV_SLOTS_CREATE | LKV_SLOTS_PIN);
    for (int i = 0; i < 6; i++)
        handles[i] = w->places[i].handle;
    status = status == LKV_OK ? lkv_slots_commit(w->slots, handles, 6, 1) : status;
    return status == LKV_OK ? lkv_slots_unpin(w->slots, handles, 6) : status;
}

static lkv_status call_get(struct world *w)
{
    return get(w, 0);
}

/* The fourth callback fails: that is its status, and no more than that. */
static lkv_status call_fill(struct world *w)
{
    for (uint32_t i = 0; i < 6; i++)
        w->keys[i] = sw_free(0, 6 + i);
    const lkv_status status = get(w, LKV_SLOTS_CREATE | LKV_SLOTS_FILL);
    return status == LKV_E_IO ? LKV_OK : status == LKV_OK ? LKV_E_INTERNAL : status;
}

static lkv_status call_evict_slots(struct world *w)
{
    lkv_status status = LKV_OK;
    for (uint32_t k = 0; k < 120 && status == LKV_OK; k++) {
        const lkv_slot_key key = sw_free(1, k);
        lkv_slot slot;
        lkv_slots_args args = {.size = sizeof args,
                               .keys = &key,
                               .slots = &slot,
                               .num_keys = 1,
                               .flags = LKV_SLOTS_CREATE};
        status = lkv_slots_get(w->slots, &args);
        if (status == LKV_OK && slot.state == LKV_SLOT_NEW)
            status = lkv_slots_commit(w->slots, &slot.handle, 1, 1);
    }
    return status;
}

static lkv_status call_erase(struct world *w)
{
    uint64_t erased;
    return lkv_slots_erase(w->slots, w->keys, 6, &erased);
}

/* ---- the script */

struct call {
    lkv_status (*run)(struct world *);
    int of_slots;
};

static const struct call calls[] = {
    {call_slots, 0},  {call_admit, 0},   {call_create, 1},   {call_commit, 0},
    {call_get, 1},    {call_hit, 0},     {call_fork, 0},     {call_write, 0},
    {call_copies, 0}, {call_fill, 1},    {call_truncate, 0}, {call_swap_out, 0},
    {call_copies, 0}, {call_swap_in, 0}, {call_copies, 0},   {call_evict_slots, 1},
    {call_demote, 0}, {call_copies, 0},  {call_get, 1},      {call_evict, 0},
    {call_erase, 1},  {call_admit, 0}};

struct figures {
    lkv_pool_stats pool;
    lkv_slots_stats slots;
};

static struct figures figures_of(const struct world *w)
{
    struct figures f = {{.size = sizeof f.pool}, {.size = sizeof f.slots}};
    SW_MUST(lkv_pool_query(w->pool, &f.pool));
    if (w->slots)
        SW_MUST(lkv_slots_query(w->slots, &f.slots));
    return f;
}

static int same(const struct figures *a, const struct figures *b)
{
    const size_t begin = offsetof(lkv_pool_stats, blocks_free);
    const size_t end = offsetof(lkv_pool_stats, metadata_allocated_bytes);
    return !memcmp((const char *)&a->pool + begin, (const char *)&b->pool + begin, end - begin) &&
           !memcmp(&a->slots, &b->slots, sizeof a->slots);
}

static int complain(int index, const char *what, lkv_status status)
{
    fprintf(stderr, "call %d, allocation %lld: %s (status %d: %s)\n", index, (long long)armed, what,
            status, lkv_last_error());
    return 1;
}

static int run_call(struct world *w, int index)
{
    const struct figures before = figures_of(w);
    const lkv_status status = calls[index].run(w);
    slot_calls += calls[index].of_slots;
    if (status == LKV_OK)
        return 0;
    lkvi_alloc_fail_after(0);
    failed_calls++;
    if (calls[index].of_slots)
        return complain(index, "a call of the slots failed", status);
    if (status != LKV_E_NO_MEMORY)
        return complain(index, "not NO_MEMORY", status);
    const struct figures after = figures_of(w);
    if (!same(&before, &after) || lkv_pool_check(w->pool) != LKV_OK)
        return complain(index, "figures differ", status);
    return calls[index].run(w) == LKV_OK ? 0 : complain(index, "fails when repeated", status);
}

static int run_script(void)
{
    struct world w = {.ctx = sw_context()};
    int wrong = 0;
    w.pool = sw_pool(w.ctx, BLOCKS, 12);
    for (int i = 0; i < TOKENS + 40; i++)
        w.tokens[i] = 3 * i + 1;
    lkvi_alloc_fail_after(armed);
    for (int i = 0; i < (int)(sizeof calls / sizeof *calls) && !wrong; i++) {
        for (uint32_t k = 0; calls[i].run == call_create && k < 6; k++)
            w.keys[k] = sw_token(w.pool, w.a, k % 2, 5 + 6 * k);
        wrong = run_call(&w, i);
    }
    lkvi_alloc_fail_after(0);
    wrong |= !wrong && lkv_pool_check(w.pool) != LKV_OK;
    lkv_slots_release(w.slots);
    wrong |= sw_pool_stats(w.pool).blocks_lent != 0;
    lkv_pool_release(w.pool);
    lkv_context_release(w.ctx);
    return wrong;
}

int main(void)
{
    for (int quiet = 0; quiet < QUIET_MAX;) {
        const int before = failed_calls;
        armed++;
        if (run_script())
            return 1;
        quiet = failed_calls == before ? quiet + 1 : 0;
    }
    printf("%d allocations failed once each; %d calls of slots beside them, none failed\n",
           failed_calls, slot_calls);
    return failed_calls < 10;
}
