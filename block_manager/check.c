/* In: a manager. Out: LKV_OK, or LKV_E_INTERNAL with the first broken invariant.
 * Everything is counted again from the tables, leases and copies up, and compared with what the
 * manager believes; the numbers I1-I7 are those of the scenarios' list. */
#include "block_manager/state.h"

struct tally {
    uint32_t *refs;     /* [M + 1] counted from tables, pins and copies */
    uint32_t *children; /* [M + 1] indexed blocks that name it as parent */
    uint8_t *seen;      /* [M + 1] times in the free stacks, orders, parked list, leases */
    uint64_t state[2][LKVI_NUM_STATES];
    uint64_t indexed[2], copies, hashed, reserved, tokens, room, seqs, swapped;
};

static lkv_status broken(const char *what, uint64_t found, uint64_t wanted, uint64_t where)
{
    return lkvi_fail(LKV_E_INTERNAL, "%s: found %llu, want %llu (at %llu)", what,
                     (unsigned long long)found, (unsigned long long)wanted,
                     (unsigned long long)where);
}

#define CHECK(what, found, wanted, where)                                                          \
    do {                                                                                           \
        if ((uint64_t)(found) != (uint64_t)(wanted))                                               \
            return broken(what, (uint64_t)(found), (uint64_t)(wanted), (uint64_t)(where));         \
    } while (0)

/* ---- lists: each id where its state says, once (I1, I3) */

static lkv_status see(const struct lkvi_manager *m, struct tally *t, uint32_t b, uint8_t state)
{
    CHECK("I3 a listed id is in the pool", b >= 1 && b <= m->num_ids, 1, b);
    CHECK("I3 a listed id has the list's state", m->blocks[b].state, state, b);
    CHECK("I3 an id is listed once", ++t->seen[b], 1, b);
    return LKV_OK;
}

/* One list of a priority; adds its blocks to *live and those that will expire to *timed. */
static lkv_status check_class(const struct lkvi_manager *m, struct tally *t, uint32_t p,
                              uint64_t *live, uint64_t *timed)
{
    const struct lkvi_order *order = &m->order;
    uint32_t previous = 0;
    CHECK("I3 a priority's bit", order->used[p / 64] >> p % 64 & 1, order->classes[p].head != 0, p);
    for (uint32_t b = order->classes[p].head; b; previous = b, b = order->ranks[b].next) {
        LKV_TRY(see(m, t, b, LKVI_IDLE));
        CHECK("I3 links of a priority", order->ranks[b].previous, previous, b);
        CHECK("I3 priority of its list", m->blocks[b].priority, p, b);
        CHECK("I3 not parked and in the order", m->blocks[b].flags & LKVI_PARKED, 0, b);
        CHECK("I3 not expired", order->ranks[b].until && order->ranks[b].until <= order->now, 0, b);
        *timed += order->ranks[b].until != 0;
        ++*live;
    }
    CHECK("I3 newest of a priority", order->classes[p].tail, previous, p);
    return LKV_OK;
}

static lkv_status check_classes(const struct lkvi_manager *m, struct tally *t, uint64_t *live)
{
    const struct lkvi_order *order = &m->order;
    uint64_t timed = 0, found = 0;
    CHECK("I3 no list of priority 0", order->classes[0].head, 0, 0);
    for (uint32_t p = 1; p <= LKVI_PRIORITY_MAX; p++)
        LKV_TRY(check_class(m, t, p, live, &timed));
    for (uint32_t i = 0; i < LKVI_WHEEL_LEVELS * LKVI_WHEEL_SLOTS; i++)
        for (uint32_t b = order->wheel[i]; b; b = order->ranks[b].timer_next, found++)
            CHECK("I3 slot of a block that will expire", i,
                  lkvi_order_slot(order, order->ranks[b].until), b);
    CHECK("I3 blocks that will expire", found, timed, 0);
    return LKV_OK;
}

static lkv_status check_order(const struct lkvi_manager *m, struct tally *t)
{
    uint64_t live = 0;
    for (uint64_t at = m->lru.head; at < m->lru.tail; at++) {
        uint32_t b = m->lru.slots[at & m->lru.mask];
        if (!b)
            continue;
        live++;
        LKV_TRY(see(m, t, b, LKVI_IDLE));
        CHECK("I3 place in the order", m->cold[b].place, at & m->lru.mask, b);
        CHECK("I3 not parked and in the order", m->blocks[b].flags & LKVI_PARKED, 0, b);
    }
    CHECK("I1 entries of the order", m->lru.live, live, 0);
    LKV_TRY(check_classes(m, t, &live));
    CHECK("I1 idle blocks", m->counts.state[LKVI_IDLE], live + m->num_parked, 0);
    return LKV_OK;
}

static lkv_status check_host_lists(const struct lkvi_manager *m, struct tally *t)
{
    const struct lkvi_lru *lru = &m->host.lru;
    uint64_t live = 0;
    for (uint64_t i = 0; i < m->host.state[LKVI_FREE]; i++)
        LKV_TRY(see(m, t, m->host.free[i], LKVI_FREE));
    for (uint64_t at = lru->head; at < lru->tail; at++) {
        uint32_t h = lru->slots[at & lru->mask];
        if (!h)
            continue;
        live++;
        LKV_TRY(see(m, t, h, LKVI_IDLE));
        CHECK("I3 place in the order of the host", m->cold[h].place, at & lru->mask, h);
        CHECK("I3 a host block in the host's order", lkvi_on_host(m, h), 1, h);
    }
    CHECK("I1 entries of the host's order", lru->live, live, 0);
    CHECK("I1 idle host blocks", m->host.state[LKVI_IDLE], live, 0);
    return LKV_OK;
}

static lkv_status check_lists(const struct lkvi_manager *m, struct tally *t)
{
    for (uint64_t i = 0; i < m->counts.state[LKVI_FREE]; i++)
        LKV_TRY(see(m, t, m->stack[i], LKVI_FREE));
    for (uint32_t i = 0; i < m->num_parked; i++) {
        uint32_t b = m->stack[m->num_blocks - 1 - i];
        LKV_TRY(see(m, t, b, LKVI_IDLE));
        CHECK("I3 place in the parked list", m->cold[b].place, i, b);
        CHECK("I3 parked", !!(m->blocks[b].flags & LKVI_PARKED), 1, b);
        CHECK("I3 a parked block has children", m->blocks[b].first_child != 0, 1, b);
    }
    LKV_TRY(check_host_lists(m, t));
    return check_order(m, t);
}

/* ---- fences (I8) */

static lkv_status check_buckets(const struct lkvi_manager *m)
{
    uint64_t queued = 0, flagged = 0;
    for (uint32_t i = 0; i < m->num_buckets; i++) {
        CHECK("I8 a bucket waits", m->buckets[i].fence > m->passed_fence, 1, i);
        CHECK("I8 buckets ascend", i == 0 || m->buckets[i].fence > m->buckets[i - 1].fence, 1, i);
        for (uint32_t b = m->buckets[i].head; b; b = m->cold[b].place) {
            CHECK("I8 queued", !!(m->blocks[b].flags & LKVI_QUEUED), 1, b);
            CHECK("I8 fence of a queued block", m->cold[b].fence >= m->buckets[i].fence, 1, b);
            CHECK("I8 queue length", queued++ < m->num_ids, 1, b);
        }
    }
    for (uint32_t b = 1; b <= m->num_ids; b++) {
        flagged += (m->blocks[b].flags & LKVI_QUEUED) != 0;
        if (m->blocks[b].state == LKVI_PENDING)
            CHECK("I8 a pending block waits for its fence or its copy",
                  (m->blocks[b].flags & LKVI_COPY_TARGET) ||
                      ((m->blocks[b].flags & LKVI_QUEUED) && m->cold[b].fence > m->passed_fence),
                  1, b);
        if (m->blocks[b].state == LKVI_FREE || m->blocks[b].state == LKVI_IDLE)
            CHECK("I8 a block at rest has no open fence", m->cold[b].fence <= m->passed_fence, 1,
                  b);
    }
    CHECK("I8 queued blocks", queued, flagged, 0);
    return LKV_OK;
}

/* ---- holders: sequences, leases, copies (I2, I7) */

static lkv_status check_seq(const struct lkvi_manager *m, const struct lkvi_seq *s, struct tally *t)
{
    uint64_t where = (uint64_t)(s - m->seqs);
    uint64_t room = (uint64_t)s->num_blocks << m->block_shift;
    CHECK("committed <= length", s->committed <= s->length, 1, where);
    CHECK("length <= room", s->length <= room, 1, where);
    CHECK("published <= committed", (uint64_t)s->published << m->block_shift <= s->committed, 1,
          where);
    for (uint32_t i = 0; i < s->num_blocks; i++) {
        CHECK("I7 table entry in the pool", s->table[i] >= 1 && (uint32_t)s->table[i] <= m->num_ids,
              1, where);
        CHECK("I7 table entry in the sequence's tier", lkvi_on_host(m, (uint32_t)s->table[i]),
              s->swapped, where);
        t->refs[s->table[i]]++;
    }
    t->reserved += s->reserved_blocks;
    t->tokens += s->length;
    t->room += room;
    t->seqs++;
    t->swapped += s->swapped;
    return LKV_OK;
}

static lkv_status check_copy(const struct lkvi_manager *m, const struct lkvi_copy *copy,
                             struct tally *t)
{
    t->refs[copy->from]++;
    CHECK("a waiting copy's target is marked", !!(m->blocks[copy->to].flags & LKVI_COPY_TARGET), 1,
          copy->to);
    return LKV_OK;
}

static lkv_status check_holders(const struct lkvi_manager *m, struct tally *t)
{
    for (uint32_t i = 0; i < m->max_seqs; i++)
        if (m->seqs[i].live)
            LKV_TRY(check_seq(m, &m->seqs[i], t));
    for (uint64_t i = 0; i < m->num_copies; i++)
        LKV_TRY(check_copy(m, &m->copies[i], t));
    for (uint64_t i = 0; i < m->host.num_held; i++) {
        LKV_TRY(check_copy(m, &m->host.held[i], t));
        CHECK("I8 a held copy waits", m->host.held[i].after > m->passed_fence, 1, i);
    }
    CHECK("room for the copies that wait", m->num_copies + m->host.num_held <= m->copies_capacity,
          1, 0);
    for (uint32_t i = 0; i < m->num_leases; i++) {
        const struct lkvi_lease *lease = &m->leases[i];
        for (uint64_t k = 0; lease->live && k < lease->num_blocks; k++) {
            if (lease->lent)
                LKV_TRY(see(m, t, lease->blocks[k], LKVI_LENT));
            else
                t->refs[lease->blocks[k]]++;
        }
    }
    CHECK("sequences", m->sums.seqs_live, t->seqs, 0);
    CHECK("swapped sequences", m->sums.seqs_swapped, t->swapped, 0);
    CHECK("tokens of sequences", m->sums.tokens_live, t->tokens, 0);
    CHECK("room of sequences", m->sums.room_live, t->room, 0);
    CHECK("reserved blocks", m->counts.reserved, t->reserved, 0);
    return LKV_OK;
}

/* ---- index: identity and structure (I4) */

static lkv_status check_indexed(const struct lkvi_manager *m, uint32_t b, struct tally *t)
{
    const struct lkvi_block *block = &m->blocks[b];
    const int32_t *tokens = lkvi_block_tokens(m, b);
    CHECK("I4 the parent is indexed",
          block->parent <= m->num_ids && (m->blocks[block->parent].flags & LKVI_INDEXED), 1, b);
    CHECK("I4 nothing of the device stands under a block of the host",
          lkvi_on_host(m, block->parent) && !lkvi_on_host(m, b), 0, b);
    if (block->flags & LKVI_HASHED)
        CHECK("I4 hash of an indexed block", m->cold[b].hash,
              lkvi_identity_hash(m, block->parent, tokens, block->keyset), b);
    else
        CHECK("I4 a child outside the hash table is alone",
              block->next_sibling || block->previous_sibling, 0, b);
    CHECK("I4 the index finds the block itself",
          lkvi_child(m, block->parent, tokens, block->keyset), b, b);
    if (block->previous_sibling)
        CHECK("I4 sibling links", m->blocks[block->previous_sibling].next_sibling, b, b);
    else
        CHECK("I4 first child",
              lkvi_on_host(m, b) ? m->host.first_child[block->parent]
                                 : m->blocks[block->parent].first_child,
              b, b);
    t->children[block->parent]++;
    t->indexed[lkvi_on_host(m, b)]++;
    t->hashed += (block->flags & LKVI_HASHED) != 0;
    return LKV_OK;
}

static lkv_status check_list(const struct lkvi_manager *m, uint32_t first, uint32_t parent,
                             uint64_t *listed)
{
    for (uint32_t c = first; c; c = m->blocks[c].next_sibling) {
        CHECK("I4 a listed child is indexed under its parent",
              (m->blocks[c].flags & LKVI_INDEXED) && m->blocks[c].parent == parent, 1, c);
        CHECK("I4 children are finite", (*listed)++ <= m->num_ids, 1, parent);
    }
    return LKV_OK;
}

static lkv_status check_children(const struct lkvi_manager *m, const struct tally *t)
{
    for (uint32_t b = 0; b <= m->num_ids; b++) {
        uint64_t listed = 0;
        LKV_TRY(check_list(m, m->blocks[b].first_child, b, &listed));
        if (m->host.num_blocks)
            LKV_TRY(check_list(m, m->host.first_child[b], b, &listed));
        CHECK("I4 children of a block", listed, t->children[b], b);
    }
    uint64_t entries = 0;
    for (uint32_t i = 0; i < m->index.capacity; i++) {
        uint32_t b = m->index.slots[i].block;
        if (!b)
            continue;
        entries++;
        CHECK("I4 an entry's block has an identity",
              (m->blocks[b].flags & LKVI_HASHED) && m->cold[b].hash == m->index.slots[i].hash, 1,
              b);
    }
    CHECK("I4 entries of the hash table", entries, t->hashed, 0);
    CHECK("I4 cached blocks", m->counts.cached, t->indexed[0], 0);
    CHECK("I4 cached blocks of the host", m->host.cached, t->indexed[1], 0);
    CHECK("I4 copies of cached blocks", m->host.copies, t->copies, 0);
    if (!m->events.capacity)
        return LKV_OK;
    CHECK("I6 keys that the events have left", m->events.stored[LKV_TIER_DEVICE], t->indexed[0], 0);
    CHECK("I6 keys that they have left on the host", m->events.stored[LKV_TIER_HOST],
          t->indexed[1] + t->copies, 0);
    return LKV_OK;
}

/* A copy and its original name each other, and say the same. */
static lkv_status check_host_block(const struct lkvi_manager *m, uint32_t h, struct tally *t)
{
    uint32_t b = m->host.copy_of[h];
    int is_copy = (m->blocks[h].flags & LKVI_HOST_COPY) != 0;
    CHECK("I4 a finished copy is a copy of something", is_copy && !b, 0, h);
    CHECK("I4 an idle host block is a copy or cached",
          m->blocks[h].state == LKVI_IDLE && !is_copy && !(m->blocks[h].flags & LKVI_INDEXED), 0,
          h);
    CHECK("I4 host blocks are not lent", m->blocks[h].state == LKVI_LENT, 0, h);
    CHECK("I4 no child on the device", m->blocks[h].first_child, 0, h);
    t->copies += (uint64_t)is_copy;
    if (!b)
        return LKV_OK;
    CHECK("I4 a copy has no identity of its own", m->blocks[h].flags & LKVI_INDEXED, 0, h);
    CHECK("I4 a copy and its original", m->host.copy_of[b], h, b);
    CHECK("I8 the copy of an idle block has arrived", m->blocks[b].state == LKVI_IDLE && !is_copy,
          0, b);
    CHECK("I4 the original is cached on the device",
          !lkvi_on_host(m, b) && (m->blocks[b].flags & LKVI_INDEXED), 1, b);
    CHECK(
        "I4 a copy has the tokens of its original",
        memcmp(lkvi_block_tokens(m, b), lkvi_block_tokens(m, h), m->block_tokens * sizeof(int32_t)),
        0, h);
    return LKV_OK;
}

static lkv_status check_blocks(const struct lkvi_manager *m, struct tally *t)
{
    for (uint32_t b = 1; b <= m->num_ids; b++) {
        const struct lkvi_block *block = &m->blocks[b];
        CHECK("I1 a known state", block->state > LKVI_RESERVED && block->state < LKVI_NUM_STATES, 1,
              b);
        t->state[lkvi_on_host(m, b)][block->state]++;
        CHECK("I2 references", block->refs, t->refs[b], b);
        CHECK("I2 in use if and only if referenced", block->state == LKVI_IN_USE, block->refs > 0,
              b);
        if (block->state == LKVI_FREE || block->state == LKVI_IDLE)
            CHECK("I3 a block at rest is listed", t->seen[b], 1, b);
        CHECK("no scratch mark between calls", block->flags & LKVI_MARK, 0, b);
        if (block->state == LKVI_FREE || block->state == LKVI_LENT)
            CHECK("I4 free and lent blocks have no identity", block->flags & LKVI_INDEXED, 0, b);
        if (lkvi_on_host(m, b))
            LKV_TRY(check_host_block(m, b, t));
        else if (block->state == LKVI_IDLE)
            CHECK("I4 idle blocks have an identity", !!(block->flags & LKVI_INDEXED), 1, b);
        if (block->flags & LKVI_INDEXED)
            LKV_TRY(check_indexed(m, b, t));
        else
            CHECK("I4 no identity, no children", lkvi_any_child(m, b), 0, b);
    }
    for (uint32_t state = LKVI_FREE; state < LKVI_NUM_STATES; state++) {
        CHECK("I1 blocks in a state", m->counts.state[state], t->state[0][state], state);
        CHECK("I1 host blocks in a state", m->host.state[state], t->state[1][state], state);
    }
    CHECK("I1 the root has no state", m->blocks[0].state, LKVI_RESERVED, 0);
    return check_children(m, t);
}

/* Forks share one struct of keys: it counts where its first holder stands. */
static int keys_seen_before(const struct lkvi_manager *m, uint32_t i)
{
    for (uint32_t k = 0; m->seqs[i].keys->refs > 1 && k < i; k++)
        if (m->seqs[k].keys == m->seqs[i].keys)
            return 1;
    return 0;
}

static lkv_status check_keysets(const struct lkvi_manager *m)
{
    uint64_t held = 0, counted = 0;
    for (uint32_t set = 1; set < m->keysets.num_used; set++)
        held += m->keysets.sets[set].data ? m->keysets.sets[set].refs : 0;
    for (uint32_t b = 1; b <= m->num_ids; b++) {
        counted += m->blocks[b].keyset != 0;
        CHECK("a key set only with an identity",
              m->blocks[b].keyset && !(m->blocks[b].flags & LKVI_INDEXED), 0, b);
    }
    for (uint32_t i = 0; i < m->max_seqs; i++)
        if (m->seqs[i].keys && m->seqs[i].keys->whole_set)
            counted += !keys_seen_before(m, i);
    counted += lkvi_events_keysets(m);
    CHECK("references to key sets", held, counted, 0);
    return LKV_OK;
}

static lkv_status check_all(struct lkvi_manager *m, struct tally *t)
{
    LKV_TRY(check_lists(m, t));
    LKV_TRY(check_buckets(m));
    LKV_TRY(check_holders(m, t));
    LKV_TRY(check_blocks(m, t));
    LKV_TRY(check_keysets(m));
    uint64_t kv = m->counts.state[LKVI_IN_USE] + m->counts.state[LKVI_PENDING] + m->counts.reserved;
    CHECK("KV within base", kv <= m->base_blocks, 1, kv);
    CHECK("lent within headroom", m->counts.state[LKVI_LENT] <= m->num_blocks - m->base_blocks, 1,
          0);
    return lkvi_side_check(m);
}

lkv_status lkvi_manager_check(struct lkvi_manager *m)
{
    struct tally t = {.refs = NULL};
    size_t n = (size_t)m->num_ids + 1;
    lkvi_lock(m);
    t.refs = lkvi_zalloc(m->arena, n, sizeof *t.refs);
    t.children = lkvi_zalloc(m->arena, n, sizeof *t.children);
    t.seen = lkvi_zalloc(m->arena, n, sizeof *t.seen);
    lkv_status status;
    if (t.refs && t.children && t.seen)
        status = check_all(m, &t);
    else
        status = lkvi_fail(LKV_E_NO_MEMORY, "no memory to check %zu blocks", n);
    lkvi_free(m->arena, t.refs);
    lkvi_free(m->arena, t.children);
    lkvi_free(m->arena, t.seen);
    return lkvi_unlock(m, status);
}
