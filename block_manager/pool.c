/* In: requests for blocks and the end of their use. Out: ids, each in exactly one state.
 *
 *   FREE --take--> IN_USE --last drop--> [fence not passed: PENDING] --> IDLE (indexed) or FREE
 *     ^              ^                                                    |
 *     |              +------------------- claim (a hit) ------------------+
 *     +---------------------------------- evict --------------------------+
 *
 * Unhashed blocks are taken first, then the oldest idle leaf of the lowest priority. in use +
 * pending + reserved never exceeds base, so whatever is not lent can always be had without touching
 * a sequence. */
#include "block_manager/state.h"

enum { FETCH_FAR = 24, FETCH_NEAR = 12 };

static void set_state(struct lkvi_manager *m, uint32_t b, uint8_t state)
{
    m->blocks[b].state = state;
    lkvi_states(m, b)[state]++;
}

void lkvi_hold(struct lkvi_manager *m, uint32_t b, uint8_t state)
{
    m->blocks[b].refs = state == LKVI_IN_USE;
    set_state(m, b, state);
}

void lkvi_make_free(struct lkvi_manager *m, uint32_t b)
{
    if (lkvi_on_host(m, b))
        m->host.free[m->host.state[LKVI_FREE]] = b;
    else
        m->stack[m->counts.state[LKVI_FREE]] = b;
    m->blocks[b].priority = 0;
    m->blocks[b].flags &= (uint8_t)~LKVI_BORROWED;
    set_state(m, b, LKVI_FREE);
    if (m->sides)
        lkvi_side_dropped(m, b);
}

static void park(struct lkvi_manager *m, uint32_t b)
{
    m->blocks[b].flags |= LKVI_PARKED;
    m->cold[b].place = m->num_parked;
    m->stack[m->num_blocks - ++m->num_parked] = b;
}

void lkvi_unpark(struct lkvi_manager *m, uint32_t b)
{
    uint32_t place = m->cold[b].place, last = m->stack[m->num_blocks - m->num_parked--];
    m->stack[m->num_blocks - 1 - place] = last;
    m->cold[last].place = place;
    m->blocks[b].flags &= (uint8_t)~LKVI_PARKED;
}

void lkvi_rest_idle(struct lkvi_manager *m, uint32_t b)
{
    if (lkvi_on_host(m, b))
        lkvi_lru_push(&m->host.lru, m->cold, b);
    else if (m->blocks[b].flags & LKVI_BORROWED)
        lkvi_order_push_oldest(m, b);
    else
        lkvi_order_push(m, b);
    m->blocks[b].flags &= (uint8_t)~LKVI_BORROWED;
    set_state(m, b, LKVI_IDLE);
}

void lkvi_leave_idle(struct lkvi_manager *m, uint32_t b)
{
    if (lkvi_on_host(m, b))
        lkvi_lru_remove(&m->host.lru, m->cold, b);
    else if (m->blocks[b].flags & LKVI_PARKED)
        lkvi_unpark(m, b);
    else
        lkvi_order_remove(m, b);
    lkvi_states(m, b)[LKVI_IDLE]--;
}

/* ---- eviction */

/* Two distances: first the victims' own lines, then, once these have come, what they name. */
static void prefetch_victims(struct lkvi_manager *m)
{
    uint32_t b;
    m->far.lead -= m->far.lead != 0;
    m->near.lead -= m->near.lead != 0;
    while (m->far.lead < FETCH_FAR && (b = lkvi_lru_look(&m->lru, &m->far))) {
        __builtin_prefetch(&m->blocks[b], 1);
        __builtin_prefetch(&m->cold[b], 1);
    }
    while (m->near.lead < FETCH_NEAR && (b = lkvi_lru_look(&m->lru, &m->near))) {
        __builtin_prefetch(&m->blocks[m->blocks[b].parent], 1);
        if (!(m->blocks[b].flags & LKVI_HASHED))
            continue;
        lkvi_index_prefetch(&m->index, m->cold[b].hash);
        __builtin_prefetch(&m->blocks[m->blocks[b].next_sibling], 1);
        __builtin_prefetch(&m->blocks[m->blocks[b].previous_sibling], 1);
    }
}

/* A leaf leaves the cache: an idle one is free then, any other keeps its data. */
static void detach(struct lkvi_manager *m, uint32_t b)
{
    if (m->blocks[b].state != LKVI_IDLE) {
        lkvi_unpublish(m, b);
        return;
    }
    lkvi_leave_idle(m, b);
    lkvi_unpublish(m, b);
    lkvi_make_free(m, b);
    m->sums.evicted += !lkvi_on_host(m, b);
}

void lkvi_detach_below(struct lkvi_manager *m, uint32_t top)
{
    uint32_t b = top;
    for (;;) {
        for (uint32_t child; (child = lkvi_any_child(m, b));)
            b = child;
        if (b == top)
            return;
        uint32_t parent = m->blocks[b].parent;
        detach(m, b);
        b = parent;
    }
}

void lkvi_detach_tree(struct lkvi_manager *m, uint32_t top)
{
    lkvi_detach_below(m, top);
    detach(m, top);
}

/* An idle block outside its list: what is known of it moves to the host, if a copy is there. */
static void give_up(struct lkvi_manager *m, uint32_t b)
{
    if (m->host.num_blocks)
        lkvi_host_evict(m, b);
    else
        lkvi_unpublish(m, b);
}

/* Only parked blocks are left: all have users among their descendants (which hold another copy of
 * the same tokens). The descendants lose their place in the index, not their data. */
static uint32_t evict_parked(struct lkvi_manager *m)
{
    uint32_t top = m->stack[m->num_blocks - m->num_parked];
    lkvi_detach_below(m, top);
    lkvi_leave_idle(m, top);
    give_up(m, top);
    return top;
}

/* A block with no state and no identity; there must be an idle one. */
static uint32_t evict_one(struct lkvi_manager *m)
{
    uint32_t b;
    prefetch_victims(m);
    while ((b = lkvi_order_pop(m)) && m->blocks[b].first_child)
        park(m, b);
    m->sums.evicted++;
    if (b) {
        m->counts.state[LKVI_IDLE]--;
        give_up(m, b);
    } else {
        b = evict_parked(m);
    }
    return b;
}

uint64_t lkvi_evict_idle(struct lkvi_manager *m, uint64_t n)
{
    uint64_t before = m->counts.state[LKVI_IDLE];
    while (m->counts.state[LKVI_IDLE] && before - m->counts.state[LKVI_IDLE] < n)
        lkvi_make_free(m, evict_one(m));
    return before - m->counts.state[LKVI_IDLE];
}

/* Whoever takes a block for a sequence writes its tokens next. */
static void prefetch_tokens(const struct lkvi_manager *m, uint32_t b)
{
    const char *tokens = (const char *)lkvi_block_tokens(m, b);
    for (uint32_t i = 0; i < m->block_tokens * sizeof(int32_t); i += 64)
        __builtin_prefetch(tokens + i, 1);
}

void lkvi_take_blocks(struct lkvi_manager *m, uint32_t *out, uint64_t n, uint8_t state)
{
    for (uint64_t i = 0; i < n; i++) {
        uint32_t b;
        if (m->counts.state[LKVI_FREE])
            b = m->stack[--m->counts.state[LKVI_FREE]];
        else
            b = evict_one(m);
        if (m->sides)
            lkvi_side_dropped(m, b);
        m->blocks[b].refs = state == LKVI_IN_USE;
        m->blocks[b].priority = 0;
        set_state(m, b, state);
        if (state == LKVI_IN_USE)
            prefetch_tokens(m, b);
        out[i] = b;
    }
}

/* ---- fences */

/* The last bucket takes what finds no bucket of its own: its fence is then the least of many, and
 * blocks that it releases too early are sorted in again. */
static struct lkvi_bucket *bucket_for(struct lkvi_manager *m, uint64_t fence)
{
    uint32_t i = m->num_buckets;
    while (i && m->buckets[i - 1].fence > fence)
        i--;
    if (i && m->buckets[i - 1].fence == fence)
        return &m->buckets[i - 1];
    if (m->num_buckets == LKVI_NUM_BUCKETS) {
        if (i)
            return &m->buckets[i - 1];
        m->buckets[0].fence = fence;
        return &m->buckets[0];
    }
    memmove(&m->buckets[i + 1], &m->buckets[i], (m->num_buckets++ - i) * sizeof m->buckets[0]);
    m->buckets[i] = (struct lkvi_bucket){fence, 0, 0};
    return &m->buckets[i];
}

static void enqueue(struct lkvi_manager *m, uint32_t b)
{
    if (m->blocks[b].flags & LKVI_QUEUED)
        return;
    struct lkvi_bucket *bucket = bucket_for(m, m->cold[b].fence);
    m->blocks[b].flags |= LKVI_QUEUED;
    m->cold[b].place = 0;
    if (bucket->tail)
        m->cold[bucket->tail].place = b;
    else
        bucket->head = b;
    bucket->tail = b;
}

/* A block that nobody uses and no fence holds goes where its identity says. */
static void rest(struct lkvi_manager *m, uint32_t b)
{
    if ((m->blocks[b].flags & LKVI_INDEXED) || (lkvi_on_host(m, b) && lkvi_host_keep(m, b)))
        lkvi_rest_idle(m, b);
    else
        lkvi_make_free(m, b);
}

static void release_queued(struct lkvi_manager *m, uint32_t b)
{
    struct lkvi_block *block = &m->blocks[b];
    block->flags &= (uint8_t)~LKVI_QUEUED;
    if (block->state == LKVI_IN_USE || (block->flags & LKVI_COPY_TARGET))
        return; /* claimed again since: its last drop decides; or the copy into it does */
    if (m->cold[b].fence > m->passed_fence) {
        enqueue(m, b);
        return;
    }
    lkvi_states(m, b)[block->state]--;
    rest(m, b);
}

void lkvi_pass(struct lkvi_manager *m, uint64_t fence)
{
    if (fence <= m->passed_fence)
        return;
    m->passed_fence = fence;
    if (m->host.num_held)
        lkvi_held_pass(m);
    while (m->num_buckets && m->buckets[0].fence <= fence) {
        uint32_t b = m->buckets[0].head;
        memmove(&m->buckets[0], &m->buckets[1], --m->num_buckets * sizeof m->buckets[0]);
        while (b) {
            uint32_t next = m->cold[b].place;
            release_queued(m, b);
            b = next;
        }
    }
}

/* ---- references */

void lkvi_claim(struct lkvi_manager *m, uint32_t b)
{
    struct lkvi_block *block = &m->blocks[b];
    block->flags &= (uint8_t)~LKVI_BORROWED;
    if (block->refs++)
        return;
    if (block->state == LKVI_IDLE)
        lkvi_leave_idle(m, b);
    else
        lkvi_states(m, b)[LKVI_PENDING]--;
    set_state(m, b, LKVI_IN_USE);
}

/* Nobody refers to b. A published block into which a copy still waits is pending until that copy
 * has been settled: its content is wanted, but it is not there yet. */
void lkvi_settle_unused(struct lkvi_manager *m, uint32_t b)
{
    if (!(m->blocks[b].flags & LKVI_COPY_TARGET) && m->cold[b].fence <= m->passed_fence) {
        rest(m, b);
        return;
    }
    set_state(m, b, LKVI_PENDING);
    if (!(m->blocks[b].flags & LKVI_COPY_TARGET))
        enqueue(m, b);
}

/* One reference less; the source of a cancelled copy, whose reference goes too, or 0. */
static uint32_t drop_one(struct lkvi_manager *m, uint32_t b, uint64_t fence)
{
    struct lkvi_block *block = &m->blocks[b];
    uint32_t source = 0;
    if (fence > m->cold[b].fence)
        m->cold[b].fence = fence;
    if (--block->refs)
        return 0;
    if ((block->flags & (LKVI_COPY_TARGET | LKVI_INDEXED)) == LKVI_COPY_TARGET)
        source = lkvi_copies_cancel(m, b);
    lkvi_states(m, b)[LKVI_IN_USE]--;
    lkvi_settle_unused(m, b);
    return source;
}

void lkvi_drop(struct lkvi_manager *m, uint32_t b, uint64_t fence)
{
    for (b = drop_one(m, b, fence); b; b = drop_one(m, b, 0))
        continue;
}

void lkvi_return_lent(struct lkvi_manager *m, uint32_t b, uint64_t fence)
{
    m->cold[b].fence = fence;
    if (fence > m->passed_fence) {
        enqueue(m, b);
        return;
    }
    m->counts.state[LKVI_LENT]--;
    lkvi_make_free(m, b);
}

/* ---- room */

static uint64_t used(const struct lkvi_manager *m)
{
    return m->counts.state[LKVI_IN_USE] + m->counts.state[LKVI_PENDING] + m->counts.reserved;
}

uint64_t lkvi_free_now(const struct lkvi_manager *m)
{
    return m->base_blocks - used(m);
}

lkv_status lkvi_room(const struct lkvi_manager *m, uint64_t needed, uint64_t own_reserve,
                     uint64_t claimed, lkv_admission *result)
{
    uint64_t now = lkvi_free_now(m) + own_reserve;
    uint64_t later = now + m->counts.state[LKVI_PENDING] - claimed;
    result->needed = needed;
    result->free_now = now;
    result->free_after_fence = later;
    if (needed <= now)
        return LKV_OK;
    if (needed <= later)
        return lkvi_fail(LKV_E_WAIT_PENDING, "need %llu blocks; %llu now, %llu once fences pass",
                         (unsigned long long)needed, (unsigned long long)now,
                         (unsigned long long)later);
    return lkvi_fail(LKV_E_NO_BLOCKS, "need %llu blocks; %llu now, %llu once fences pass",
                     (unsigned long long)needed, (unsigned long long)now,
                     (unsigned long long)later);
}
