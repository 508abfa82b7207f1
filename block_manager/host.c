/* In: device blocks that are given up or copied, host blocks that are hit. Out: identities on the
 * move between the two tiers, and host blocks for who needs them.
 * A copy is told from its original by one flag: it is set when the bytes have arrived, and only
 * then may the device block go and leave its identity behind. The order of idle host blocks is the
 * order in which they arrived or took an identity over, so leaves stand before their parents. */
#include "block_manager/state.h"

_Static_assert((int)LKVI_NUM_BLOCK_STATES == (int)LKVI_NUM_STATES, "counts of both tiers agree");

lkv_status lkvi_host_create(struct lkvi_manager *m, uint64_t num_blocks)
{
    struct lkvi_host_tier *host = &m->host;
    uint64_t n = (uint64_t)m->num_ids + 1;
    if (!num_blocks)
        return LKV_OK;
    host->free = lkvi_zalloc(m->arena, num_blocks, sizeof *host->free);
    host->copy_of = lkvi_zalloc(m->arena, n, sizeof *host->copy_of);
    host->first_child = lkvi_zalloc(m->arena, n, sizeof *host->first_child);
    host->window = lkvi_zalloc(m->arena, m->num_blocks, sizeof *host->window);
    uint32_t *slots =
        lkvi_zalloc(m->arena, lkvi_lru_num_slots((uint32_t)num_blocks), sizeof *slots);
    if (!host->free || !host->copy_of || !host->first_child || !host->window || !slots)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for the metadata of %llu host blocks",
                         (unsigned long long)num_blocks);
    lkvi_lru_open(&host->lru, slots, (uint32_t)num_blocks);
    host->num_blocks = (uint32_t)num_blocks;
    for (uint32_t b = m->num_ids; b > m->num_blocks; b--)
        lkvi_make_free(m, b);
    return LKV_OK;
}

uint64_t lkvi_host_room(const struct lkvi_manager *m)
{
    return m->host.state[LKVI_FREE] + m->host.state[LKVI_IDLE];
}

static int is_copy(const struct lkvi_manager *m, uint32_t h)
{
    return (m->blocks[h].flags & LKVI_HOST_COPY) != 0;
}

static void link_copy(struct lkvi_manager *m, uint32_t b, uint32_t h)
{
    m->host.copy_of[b] = h;
    m->host.copy_of[h] = b;
}

static void unlink_copy(struct lkvi_manager *m, uint32_t b, uint32_t h)
{
    m->host.copy_of[b] = m->host.copy_of[h] = 0;
    m->host.copies -= (uint64_t)is_copy(m, h);
    m->blocks[h].flags &= (uint8_t)~LKVI_HOST_COPY;
}

int lkvi_host_keep(struct lkvi_manager *m, uint32_t h)
{
    uint32_t b = m->host.copy_of[h];
    if (!b)
        return 0;
    if (!is_copy(m, h)) {
        m->blocks[h].flags |= LKVI_HOST_COPY;
        m->host.copies++;
        lkvi_events_copied(m, b);
    }
    return 1;
}

void lkvi_host_forget(struct lkvi_manager *m, uint32_t b)
{
    uint32_t h = m->host.copy_of[b];
    if (!h)
        return;
    if (is_copy(m, h))
        lkvi_events_copy_removed(m, b, 0);
    unlink_copy(m, b, h);
    if (m->blocks[h].state != LKVI_IDLE)
        return; /* on its way, or being read: free when that is over */
    lkvi_leave_idle(m, h);
    lkvi_make_free(m, h);
}

void lkvi_host_clear(struct lkvi_manager *m)
{
    struct lkvi_host_tier *host = &m->host;
    if (!host->num_blocks)
        return;
    for (uint32_t b = 0; b <= m->num_ids; b++) {
        host->copy_of[b] = host->first_child[b] = 0;
        m->blocks[b].flags &= (uint8_t)~LKVI_HOST_COPY;
    }
    host->cached = host->copies = 0;
}

/* ---- identities on the move */

void lkvi_host_evict(struct lkvi_manager *m, uint32_t b)
{
    uint32_t h = m->host.copy_of[b];
    if (!h) { /* else it has arrived: b came back from behind the same fence */
        lkvi_detach_below(m, b);
        lkvi_unpublish(m, b);
        return;
    }
    unlink_copy(m, b, h);
    lkvi_move_identity(m, b, h);
    if (m->blocks[h].state != LKVI_IDLE)
        return;
    lkvi_lru_remove(&m->host.lru, m->cold, h);
    lkvi_lru_push(&m->host.lru, m->cold, h);
}

void lkvi_host_promote(struct lkvi_manager *m, uint32_t h, uint32_t b)
{
    memcpy(lkvi_block_tokens(m, b), lkvi_block_tokens(m, h), m->block_tokens * sizeof(int32_t));
    lkvi_move_identity(m, h, b);
    link_copy(m, b, h);
    m->blocks[h].flags |= LKVI_HOST_COPY;
    m->host.copies++;
}

/* ---- host blocks for others */

/* An idle host block that has left its list gives up what it stands for. */
static void give_up(struct lkvi_manager *m, uint32_t h)
{
    uint32_t b = m->host.copy_of[h];
    m->host.state[LKVI_IDLE]--;
    if (b) {
        lkvi_events_copy_removed(m, b, 1);
        unlink_copy(m, b, h);
        return;
    }
    lkvi_detach_below(m, h);
    lkvi_unpublish(m, h);
}

uint32_t lkvi_host_take(struct lkvi_manager *m)
{
    if (m->host.state[LKVI_FREE])
        return m->host.free[--m->host.state[LKVI_FREE]];
    uint32_t h = lkvi_lru_pop(&m->host.lru);
    give_up(m, h);
    if (m->sides)
        lkvi_side_dropped(m, h);
    return h;
}

/* The same, but copies of the blocks that are about to be evicted stay; 0: there is none. */
static uint32_t take_beyond_window(struct lkvi_manager *m)
{
    struct lkvi_host_tier *host = &m->host;
    if (host->state[LKVI_FREE])
        return lkvi_host_take(m);
    for (uint32_t tries = host->lru.live; tries; tries--) {
        uint32_t h = lkvi_lru_pop(&host->lru), b = host->copy_of[h];
        if (!b || !(m->blocks[b].flags & LKVI_MARK)) {
            give_up(m, h);
            if (m->sides)
                lkvi_side_dropped(m, h);
            return h;
        }
        lkvi_lru_push(&host->lru, m->cold, h);
    }
    return 0;
}

/* ---- demotion */

/* The next n blocks to go, in this order. */
static uint64_t list_window(struct lkvi_manager *m, uint64_t n)
{
    uint32_t *window = m->host.window;
    uint64_t found = 0;
    for (uint64_t at = m->lru.head; at < m->lru.tail && found < n; at++)
        if (m->lru.slots[at & m->lru.mask])
            window[found++] = m->lru.slots[at & m->lru.mask];
    for (uint32_t p = 1; p <= LKVI_PRIORITY_MAX && found < n; p++)
        for (uint32_t b = m->order.classes[p].head; b && found < n; b = m->order.ranks[b].next)
            window[found++] = b;
    return found;
}

/* Host blocks for those of the window that have no copy yet, as far as there is room. */
static uint64_t assign(struct lkvi_manager *m, uint64_t num)
{
    const uint32_t *window = m->host.window;
    uint64_t room = lkvi_free_now(m), assigned = 0;
    uint32_t h;
    for (uint64_t i = 0; i < num; i++)
        m->blocks[window[i]].flags |= LKVI_MARK;
    for (uint64_t i = 0; i < num && assigned < room; i++) {
        if (m->host.copy_of[window[i]])
            continue;
        if (!(h = take_beyond_window(m)))
            break;
        link_copy(m, window[i], h);
        assigned++;
    }
    for (uint64_t i = 0; i < num; i++)
        m->blocks[window[i]].flags &= (uint8_t)~LKVI_MARK;
    return assigned;
}

/* Copied last first: they come back to the old end of the order one by one, the first one last. */
static void copy_out(struct lkvi_manager *m, uint64_t num)
{
    while (num-- > 0) {
        uint32_t b = m->host.window[num], h = m->host.copy_of[b];
        if (!h || is_copy(m, h))
            continue;
        memcpy(lkvi_block_tokens(m, h), lkvi_block_tokens(m, b), m->block_tokens * sizeof(int32_t));
        lkvi_hold(m, h, LKVI_PENDING);
        lkvi_claim(m, b);
        m->blocks[b].flags |= LKVI_BORROWED;
        lkvi_copies_add(m, b, h, LKVI_COPY_DEMOTE);
    }
}

static lkv_status demote_locked(struct lkvi_manager *m, uint64_t n, uint64_t *queued)
{
    if (!m->host.num_blocks)
        return lkvi_fail(LKV_E_NO_HOST_SPACE, "pool has no host tier; need host_blocks above 0");
    if (n > m->counts.state[LKVI_IDLE])
        n = m->counts.state[LKVI_IDLE];
    LKV_TRY(lkvi_copies_ensure(m, n));
    uint64_t num = list_window(m, n);
    *queued = assign(m, num);
    copy_out(m, num);
    return LKV_OK;
}

lkv_status lkvi_manager_demote(struct lkvi_manager *m, uint64_t n, uint64_t *queued)
{
    lkvi_lock(m);
    return lkvi_unlock(m, demote_locked(m, n, queued));
}
