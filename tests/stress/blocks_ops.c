/* In: numbers. Out: the first call after which library and twin disagree, or NULL.
 * Small pools, short prompts over few block contents and stale handles of all kinds; operations on
 * sequences are in blocks_ops_seqs.c, those on copies, fences, leases and the cache here. */
#include "tests/stress/blocks_ops_state.h"

struct ops *ops_create(ops_draw draw_fn, void *user, uint32_t hash_bits)
{
    struct ops *o = calloc(1, sizeof *o);
    o->draw = draw_fn;
    o->user = user;
    o->block_tokens = 16;
    uint32_t num_blocks = 8 + draw(o, 40), lent = draw(o, num_blocks / 2);
    struct lkvi_manager_config config = {.num_blocks = num_blocks,
                                         .base_blocks = num_blocks - lent,
                                         .tokens_per_block = o->block_tokens,
                                         .max_seqs = LIVE_SEQS,
                                         .hash_bits = hash_bits,
                                         .flags = draw(o, 4) ? 0 : LKV_POOL_NO_PARTIAL};
    if (lkvi_manager_create(&config, &o->m) != LKV_OK) {
        free(o);
        return NULL;
    }
    ref_create(&o->ref, num_blocks, num_blocks - lent, o->block_tokens, config.flags);
    return o;
}

void ops_destroy(struct ops *o)
{
    lkvi_manager_destroy(o->m);
    free(o);
}

static const char *op_settle(struct ops *o)
{
    uint64_t num, fence = some_fence(o);
    o->name = "settle";
    lkvi_manager_peek_copies(o->m, o->copies, REF_BLOCKS, &num);
    if (num != o->ref.num_copies)
        return FAIL("settle: %llu copies wait, want %u", (unsigned long long)num,
                    o->ref.num_copies);
    for (uint64_t i = 0; i < num; i++)
        if (o->copies[2 * i] != o->ref.copies[i].from ||
            o->copies[2 * i + 1] != o->ref.copies[i].to)
            return FAIL("settle: copy %llu is %d -> %d, want %d -> %d", (unsigned long long)i,
                        o->copies[2 * i], o->copies[2 * i + 1], o->ref.copies[i].from,
                        o->ref.copies[i].to);
    uint32_t some = draw(o, 3) ? (uint32_t)num : draw(o, (uint32_t)num + 1);
    if (lkvi_manager_settle_copies(o->m, some, fence) != LKV_OK)
        return FAIL("settle: %s", lkv_last_error());
    return named(o, ref_settle(&o->ref, some, fence));
}

static const char *op_pass(struct ops *o)
{
    o->name = "pass";
    uint64_t fence = o->fence + draw(o, 5);
    lkvi_manager_pass_fence(o->m, fence);
    ref_pass(&o->ref, fence);
    o->fence = fence > o->fence ? fence : o->fence;
    return NULL;
}

static const char *op_pin(struct ops *o)
{
    int32_t blocks[6];
    uint32_t slot = draw(o, LIVE_LEASES), n = 1 + draw(o, 6);
    o->name = "pin";
    if (o->leases[slot])
        return NULL;
    for (uint32_t i = 0; i < n; i++)
        blocks[i] = 1 + (int32_t)draw(o, o->ref.num_blocks);
    lkv_status status = lkvi_lease_pin(o->m, blocks, n, &o->leases[slot]);
    return named(o, ref_pin(&o->ref, slot, blocks, n, status));
}

static const char *op_lend(struct ops *o)
{
    int32_t blocks[REF_BLOCKS];
    uint32_t slot = draw(o, LIVE_LEASES), n = 1 + draw(o, 8);
    o->name = "lend";
    if (o->leases[slot])
        return NULL;
    lkv_status status = lkvi_lease_lend(o->m, n, blocks, &o->leases[slot]);
    return named(o, ref_lend(&o->ref, slot, blocks, n, status));
}

static const char *op_release(struct ops *o)
{
    uint32_t slot = draw(o, LIVE_LEASES);
    uint64_t fence = some_fence(o);
    o->name = "release";
    if (o->dead_lease && lkvi_lease_release(o->m, o->dead_lease, fence) != LKV_E_NOT_FOUND)
        return FAIL("release: a dead lease was released again");
    if (!o->leases[slot])
        return NULL;
    if (lkvi_lease_release(o->m, o->leases[slot], fence) != LKV_OK)
        return FAIL("release: %s", lkv_last_error());
    o->dead_lease = o->leases[slot];
    o->leases[slot] = 0;
    ref_release(&o->ref, slot, fence);
    return NULL;
}

/* The library's order of idle blocks, from the next to go, becomes the twin's. */
static void adopt_order(struct ops *o, int only_expired)
{
    const struct lkvi_manager *m = o->m;
    for (uint64_t at = m->lru.head; at < m->lru.tail; at++) {
        struct ref_block *mine = &o->ref.blocks[m->lru.slots[at & m->lru.mask]];
        if (!only_expired || mine->expired)
            mine->rested = ++o->ref.clock, mine->parked = mine->expired = 0;
    }
    for (uint32_t p = 1; !only_expired && p <= LKVI_PRIORITY_MAX; p++)
        for (uint32_t b = m->order.classes[p].head; b; b = m->order.ranks[b].next)
            o->ref.blocks[b].rested = ++o->ref.clock, o->ref.blocks[b].parked = 0;
}

/* Where the rules leave the choice open, the twin takes over what the library did, if it is one
 * of the allowed choices: whatever left the cache was idle or stood under an evicted block. */
static const char *adopt(struct ops *o)
{
    for (uint32_t b = 1; b <= o->ref.num_blocks; b++) {
        struct ref_block *mine = &o->ref.blocks[b];
        const struct lkvi_block *theirs = &o->m->blocks[b];
        if (mine->indexed && !(theirs->flags & LKVI_INDEXED))
            mine->indexed = mine->parent = 0, mine->keys[0] = 0;
        if (mine->state == REF_IDLE && theirs->state == LKVI_FREE)
            mine->state = REF_FREE, mine->priority = 0;
        mine->parked = (theirs->flags & LKVI_PARKED) != 0;
    }
    adopt_order(o, 0);
    o->ref.num_copies = (uint32_t)o->m->num_copies;
    for (uint32_t i = 0; i < o->ref.num_copies; i++)
        o->ref.copies[i] =
            (struct ref_copy){(int32_t)o->m->copies[i].from, (int32_t)o->m->copies[i].to};
    return NULL;
}

static const char *op_tick(struct ops *o)
{
    o->name = "tick";
    o->tick += draw(o, 4) ? draw(o, 90) : (uint64_t)1 << draw(o, 16);
    lkvi_manager_tick(o->m, o->tick);
    ref_tick(&o->ref, o->tick);
    adopt_order(o, 1);
    for (uint32_t b = 1; b <= o->ref.num_blocks; b++)
        if (o->ref.blocks[b].expired)
            return FAIL("tick: block %u has not expired at %llu", b, (unsigned long long)o->tick);
    return NULL;
}

static const char *op_evict(struct ops *o)
{
    uint64_t n = draw(o, 6), done, want;
    struct ref_counts c;
    o->name = "evict";
    ref_count(&o->ref, &c);
    lkvi_manager_evict(o->m, n, &done);
    want = ref_evict(&o->ref, n);
    if (!o->ref.ambiguous)
        return done == want ? NULL
                            : FAIL("evicted %llu, want %llu", (unsigned long long)done,
                                   (unsigned long long)want);
    if (done < n && done < c.state[REF_IDLE])
        return FAIL("evicted %llu of %llu idle blocks", (unsigned long long)done,
                    (unsigned long long)c.state[REF_IDLE]);
    return adopt(o);
}

static const char *op_reset(struct ops *o)
{
    struct ref_counts c;
    o->name = "reset";
    if (draw(o, 20))
        return NULL;
    ref_count(&o->ref, &c);
    uint64_t live = c.state[REF_IN_USE] + c.state[REF_PENDING];
    int forced = (int)draw(o, 2);
    lkv_status status = lkvi_manager_reset(o->m, forced ? LKV_RESET_FORCE : 0);
    if (status != (live && !forced ? LKV_E_BUSY : LKV_OK))
        return FAIL("reset: status %d with %llu live blocks", status, (unsigned long long)live);
    if (status == LKV_OK)
        ref_reset(&o->ref);
    return NULL;
}

static const char *op_drop(struct ops *o)
{
    const char *name = draw(o, 2) ? "A" : "B";
    lkv_key key = {name, 0, UINT64_MAX, LKV_KEY_ADAPTER, 1};
    uint64_t dropped;
    struct ref_counts before, after;
    o->name = "drop";
    if (draw(o, 8))
        return NULL;
    ref_count(&o->ref, &before);
    lkvi_manager_drop(o->m, &key, &dropped);
    ref_drop_namespace(&o->ref, name);
    ref_count(&o->ref, &after);
    return dropped == before.cached - after.cached
               ? NULL
               : FAIL("drop: %llu blocks, want %llu", (unsigned long long)dropped,
                      (unsigned long long)(before.cached - after.cached));
}

/* ---- comparison */

static const char *compare_counts(struct ops *o)
{
    lkv_pool_stats s;
    struct ref_counts c;
    lkvi_manager_query(o->m, &s);
    ref_count(&o->ref, &c);
    const uint64_t got[9] = {s.blocks_free,    s.blocks_idle, s.blocks_in_use,
                             s.blocks_pending, s.blocks_lent, s.blocks_reserved,
                             s.blocks_cached,  s.tokens_live, s.seqs_live};
    const uint64_t want[9] = {c.state[REF_FREE],
                              c.state[REF_IDLE],
                              c.state[REF_IN_USE],
                              c.state[REF_PENDING],
                              c.state[REF_LENT],
                              c.reserved,
                              c.cached,
                              c.tokens,
                              c.seqs};
    static const char *const names[9] = {"free",     "idle",   "in use", "pending",  "lent",
                                         "reserved", "cached", "tokens", "sequences"};
    for (int i = 0; i < 9; i++)
        if (got[i] != want[i])
            return FAIL("after %s: %s is %llu, want %llu", o->name, names[i],
                        (unsigned long long)got[i], (unsigned long long)want[i]);
    return NULL;
}

static const char *compare_order(struct ops *o)
{
    for (uint32_t b = 1; b <= o->ref.num_blocks; b++) {
        const struct ref_block *mine = &o->ref.blocks[b];
        const struct lkvi_block *theirs = &o->m->blocks[b];
        if (mine->state == REF_IDLE &&
            (mine->parked != !!(theirs->flags & LKVI_PARKED) || mine->priority != theirs->priority))
            return FAIL("after %s: block %u has priority %u, parked %d, want %d, %d", o->name, b,
                        theirs->priority, !!(theirs->flags & LKVI_PARKED), mine->priority,
                        mine->parked);
    }
    return NULL;
}

static const char *compare_seqs(struct ops *o)
{
    for (uint32_t i = 0; i < LIVE_SEQS; i++) {
        const struct ref_seq *s = &o->ref.seqs[i];
        lkv_seq_info info;
        if (!o->seqs[i])
            continue;
        if (lkvi_seq_query(o->m, o->seqs[i], &info) != LKV_OK || info.length != s->length ||
            info.committed != s->committed || info.num_blocks != s->num_blocks)
            return FAIL("after %s: sequence %u has length %llu committed %llu, want %llu %llu",
                        o->name, i, (unsigned long long)info.length,
                        (unsigned long long)info.committed, (unsigned long long)s->length,
                        (unsigned long long)s->committed);
        for (uint64_t t = 0; t < s->length; t++) {
            int32_t b = s->table[t / o->block_tokens];
            if (lkvi_block_tokens(o->m, (uint32_t)b)[t % o->block_tokens] !=
                o->ref.blocks[b].tokens[t % o->block_tokens])
                return FAIL("after %s: token %llu of sequence %u differs", o->name,
                            (unsigned long long)t, i);
        }
    }
    return NULL;
}

const char *ops_step(struct ops *o)
{
    static const char *(*const table[])(struct ops *) = {
        op_match, op_match, op_admit,   op_admit,  op_admit,  op_admit,  op_grow,     op_grow,
        op_grow,  op_step,  op_step,    op_commit, op_commit, op_commit, op_truncate, op_fork,
        op_free,  op_free,  op_free,    op_settle, op_settle, op_tick,   op_pass,     op_pass,
        op_pin,   op_lend,  op_release, op_evict,  op_reset,  op_drop,   op_common};
    const char *wrong = table[draw(o, sizeof table / sizeof *table)](o);
    if (!wrong)
        wrong = compare_counts(o);
    if (!wrong)
        wrong = compare_seqs(o);
    if (!wrong)
        wrong = compare_order(o);
    if (!wrong && lkvi_manager_check(o->m) != LKV_OK)
        wrong = FAIL("after %s: %s", o->name, lkv_last_error());
    return wrong;
}
