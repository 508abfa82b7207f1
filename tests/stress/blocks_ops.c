/* In: numbers. Out: the first call after which library and twin disagree, or NULL.
 * Small pools, short prompts over few block contents and stale handles of all kinds; operations on
 * sequences are in blocks_ops_seqs.c, those on copies and tiers in blocks_ops_host.c, those on
 * fences, leases and the cache here. */
#include "tests/stress/blocks_ops_state.h"

struct ops *ops_create(ops_draw draw_fn, void *user, uint32_t hash_bits)
{
    struct ops *o = calloc(1, sizeof *o);
    o->draw = draw_fn;
    o->user = user;
    o->block_tokens = 16;
    uint32_t num_blocks = 8 + draw(o, 40), lent = draw(o, 2) ? 0 : draw(o, num_blocks / 2);
    struct lkvi_manager_config config = {.num_blocks = num_blocks,
                                         .base_blocks = num_blocks - lent,
                                         .host_blocks = draw(o, 4) ? 1 + draw(o, 40) : 0,
                                         .event_slots = draw(o, 4) ? 0 : 64,
                                         .tokens_per_block = o->block_tokens,
                                         .max_seqs = LIVE_SEQS,
                                         .hash_bits = hash_bits,
                                         .flags = draw(o, 4) ? 0 : LKV_POOL_NO_PARTIAL};
    if (lkvi_manager_create(&config, &o->m) != LKV_OK) {
        free(o);
        return NULL;
    }
    ref_create(&o->ref, &config);
    return o;
}

void ops_destroy(struct ops *o, struct ops_sums *sums)
{
    lkv_pool_stats s = {.size = sizeof s};
    if (sums) {
        lkvi_manager_query(o->m, &s);
        sums->published += s.published_blocks;
        sums->evicted += s.evicted_blocks;
        sums->expired += o->expired;
        sums->copied += s.copied_blocks;
        sums->demoted += s.demoted_blocks;
        sums->promoted += s.promoted_blocks;
        sums->swapped_out += s.swapped_out_blocks;
        sums->swapped_in += s.swapped_in_blocks;
    }
    lkvi_manager_destroy(o->m);
    free(o);
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
    for (uint32_t b = 1; b <= o->ref.num_ids; b++) {
        struct ref_block *mine = &o->ref.blocks[b];
        const struct lkvi_block *theirs = &o->m->blocks[b];
        int indexed = (theirs->flags & LKVI_INDEXED) != 0;
        if (!mine->indexed && indexed) /* what its original was is the host's now */
            memcpy(mine->keys, o->ref.blocks[mine->copy_of].keys, sizeof mine->keys);
        mine->indexed = indexed;
        mine->parent = (int)theirs->parent;
        if (mine->state == REF_IDLE && theirs->state == LKVI_FREE)
            mine->state = REF_FREE, mine->priority = mine->borrowed = 0;
        if (mine->parked && !(theirs->flags & LKVI_PARKED) && mine->until &&
            mine->until <= o->ref.now)
            mine->priority = 0; /* it ended while the block waited aside */
        mine->parked = (theirs->flags & LKVI_PARKED) != 0;
        mine->is_copy = (theirs->flags & LKVI_HOST_COPY) != 0;
    }
    for (uint32_t b = 1; b <= o->ref.num_ids; b++) {
        o->ref.blocks[b].copy_of = o->m->host.num_blocks ? (int)o->m->host.copy_of[b] : 0;
        if (!o->ref.blocks[b].indexed)
            o->ref.blocks[b].keys[0] = 0;
    }
    adopt_order(o, 0);
    o->ref.num_copies = (uint32_t)o->m->num_copies;
    for (uint32_t i = 0; i < o->ref.num_copies; i++)
        o->ref.copies[i] =
            (struct ref_copy){(int32_t)o->m->copies[i].from, (int32_t)o->m->copies[i].to, 0};
    return NULL;
}

static const char *op_tick(struct ops *o)
{
    o->name = "tick";
    o->tick += draw(o, 4) ? draw(o, 90) : (uint64_t)1 << draw(o, 16);
    lkvi_manager_tick(o->m, o->tick);
    ref_tick(&o->ref, o->tick);
    for (uint32_t b = 1; b <= o->ref.num_blocks; b++)
        o->expired += (uint64_t)o->ref.blocks[b].expired;
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
    uint64_t live =
        c.state[REF_IN_USE] + c.state[REF_PENDING] + c.host[REF_IN_USE] + c.host[REF_PENDING];
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

struct figure {
    const char *name;
    uint64_t found, wanted;
};

static const char *compare_figures(struct ops *o, const struct figure *figures, size_t num)
{
    for (size_t i = 0; i < num; i++)
        if (figures[i].found != figures[i].wanted)
            return FAIL("after %s: %s is %llu, want %llu", o->name, figures[i].name,
                        (unsigned long long)figures[i].found,
                        (unsigned long long)figures[i].wanted);
    return NULL;
}

static const char *compare_counts(struct ops *o)
{
    lkv_pool_stats s;
    struct ref_counts c;
    lkvi_manager_query(o->m, &s);
    ref_count(&o->ref, &c);
    const struct figure figures[] = {
        {"free", s.blocks_free, c.state[REF_FREE]},
        {"idle", s.blocks_idle, c.state[REF_IDLE]},
        {"in use", s.blocks_in_use, c.state[REF_IN_USE]},
        {"pending", s.blocks_pending, c.state[REF_PENDING]},
        {"lent", s.blocks_lent, c.state[REF_LENT]},
        {"reserved", s.blocks_reserved, c.reserved},
        {"cached", s.blocks_cached, c.cached},
        {"tokens", s.tokens_live, c.tokens},
        {"sequences", s.seqs_live, c.seqs},
        {"swapped sequences", s.seqs_swapped, c.swapped},
        {"free on the host", s.host_blocks_free, c.host[REF_FREE]},
        {"idle on the host", s.host_blocks_idle, c.host[REF_IDLE]},
        {"in use on the host", s.host_blocks_in_use, c.host[REF_IN_USE]},
        {"pending on the host", s.host_blocks_pending, c.host[REF_PENDING]},
        {"cached on the host", s.host_blocks_cached, c.host_cached},
        {"copies on the host", s.host_blocks_copies, c.host_copies},
    };
    return compare_figures(o, figures, sizeof figures / sizeof figures[0]);
}

static const char *compare_order(struct ops *o)
{
    for (uint32_t b = 1; b <= o->ref.num_ids; b++) {
        const struct ref_block *mine = &o->ref.blocks[b];
        const struct lkvi_block *theirs = &o->m->blocks[b];
        if (mine->indexed != (theirs->flags & LKVI_INDEXED) ||
            (mine->indexed && mine->parent != (int)theirs->parent))
            return FAIL("after %s: block %u is cached %d under %u, want %d under %d", o->name, b,
                        theirs->flags & LKVI_INDEXED, theirs->parent, mine->indexed, mine->parent);
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
        op_serve,   op_serve,   op_serve,   op_serve,    op_serve,    op_serve,    op_serve,
        op_serve,   op_serve,   op_serve,   op_match,    op_match,    op_admit,    op_admit,
        op_grow,    op_grow,    op_grow,    op_step,     op_step,     op_step,     op_commit,
        op_commit,  op_load,    op_free,    op_truncate, op_fork,     op_fork,     op_write,
        op_settle,  op_settle,  op_settle,  op_settle,   op_settle,   op_issue,    op_tick,
        op_tick,    op_tick,    op_pass,    op_pass,     op_pass,     op_pass,     op_pass,
        op_pin,     op_lend,    op_release, op_release,  op_evict,    op_reset,    op_drop,
        op_common,  op_demote,  op_demote,  op_demote,   op_swap_out, op_swap_out, op_swap_out,
        op_swap_in, op_swap_in, op_swap_in};
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
