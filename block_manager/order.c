/* In: blocks that become or stop being idle, with priorities; the caller's clock. Out: the next to
 * be evicted.
 * A block in a list always has the priority of its list: what expires while it rests is moved by
 * the tick, and what expires while it is used is seen when it rests. */
#include "block_manager/order.h"

#include "block_manager/state.h"

enum { SLOT_BITS = 6 };

lkv_status lkvi_order_ensure(struct lkvi_manager *m)
{
    uint64_t n = (uint64_t)m->num_blocks + 1;
    if (m->order.ranks)
        return LKV_OK;
    m->order.ranks = lkvi_zalloc(m->arena, n, sizeof *m->order.ranks);
    if (!m->order.ranks)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for the priorities of %u blocks",
                         m->num_blocks);
    return LKV_OK;
}

static int expired(const struct lkvi_manager *m, uint32_t b)
{
    uint64_t until = m->order.ranks[b].until;
    return until && until <= m->order.now;
}

/* ---- the wheel: a block is on the level of the highest digit in which until and now differ */

static uint32_t level_of(uint64_t until, uint64_t now)
{
    return (63 - (uint32_t)__builtin_clzll(until ^ now)) / SLOT_BITS;
}

static uint32_t digit_of(uint64_t tick, uint32_t level)
{
    return (uint32_t)(tick >> (level * SLOT_BITS)) & (LKVI_WHEEL_SLOTS - 1);
}

uint32_t lkvi_order_slot(const struct lkvi_order *order, uint64_t until)
{
    uint32_t level = level_of(until, order->now);
    return level * LKVI_WHEEL_SLOTS + digit_of(until, level);
}

static uint32_t *slot_of(struct lkvi_manager *m, uint64_t until)
{
    return &m->order.wheel[lkvi_order_slot(&m->order, until)];
}

static void timer_start(struct lkvi_manager *m, uint32_t b)
{
    struct lkvi_rank *rank = &m->order.ranks[b];
    if (!rank->until)
        return;
    uint32_t *slot = slot_of(m, rank->until);
    rank->timer_previous = 0;
    rank->timer_next = *slot;
    if (*slot)
        m->order.ranks[*slot].timer_previous = b;
    *slot = b;
}

static void timer_stop(struct lkvi_manager *m, uint32_t b)
{
    struct lkvi_rank *rank = &m->order.ranks[b];
    if (!rank->until)
        return;
    if (rank->timer_previous)
        m->order.ranks[rank->timer_previous].timer_next = rank->timer_next;
    else
        *slot_of(m, rank->until) = rank->timer_next;
    if (rank->timer_next)
        m->order.ranks[rank->timer_next].timer_previous = rank->timer_previous;
    rank->timer_next = rank->timer_previous = 0;
}

/* ---- the lists */

static void class_unlink(struct lkvi_manager *m, uint32_t b)
{
    uint8_t p = m->blocks[b].priority;
    struct lkvi_rank *rank = &m->order.ranks[b];
    struct lkvi_class *class = &m->order.classes[p];
    if (rank->previous)
        m->order.ranks[rank->previous].next = rank->next;
    else
        class->head = rank->next;
    if (rank->next)
        m->order.ranks[rank->next].previous = rank->previous;
    else
        class->tail = rank->previous;
    rank->next = rank->previous = 0;
    if (!class->head)
        m->order.used[p / 64] &= ~((uint64_t)1 << p % 64);
}

static void class_link(struct lkvi_manager *m, uint32_t b, int oldest)
{
    uint8_t p = m->blocks[b].priority;
    struct lkvi_rank *rank = &m->order.ranks[b];
    struct lkvi_class *class = &m->order.classes[p];
    rank->previous = oldest ? 0 : class->tail;
    rank->next = oldest ? class->head : 0;
    if (rank->previous)
        m->order.ranks[rank->previous].next = b;
    else
        class->head = b;
    if (rank->next)
        m->order.ranks[rank->next].previous = b;
    else
        class->tail = b;
    m->order.used[p / 64] |= (uint64_t)1 << p % 64;
}

/* 1: b is in a list now; 0: it has no priority (any more) and belongs into the ring. */
static int class_push(struct lkvi_manager *m, uint32_t b, int oldest)
{
    if (!m->blocks[b].priority)
        return 0;
    if (expired(m, b)) {
        m->blocks[b].priority = 0;
        return 0;
    }
    class_link(m, b, oldest);
    timer_start(m, b);
    return 1;
}

void lkvi_order_push(struct lkvi_manager *m, uint32_t b)
{
    if (!class_push(m, b, 0))
        lkvi_lru_push(&m->lru, m->cold, b);
}

void lkvi_order_push_oldest(struct lkvi_manager *m, uint32_t b)
{
    if (!class_push(m, b, 1))
        lkvi_lru_push_oldest(&m->lru, m->cold, b);
}

void lkvi_order_remove(struct lkvi_manager *m, uint32_t b)
{
    if (!m->blocks[b].priority) {
        lkvi_lru_remove(&m->lru, m->cold, b);
        return;
    }
    timer_stop(m, b);
    class_unlink(m, b);
}

uint32_t lkvi_order_pop(struct lkvi_manager *m)
{
    uint32_t b = lkvi_lru_pop(&m->lru);
    const uint64_t *used = m->order.used;
    if (b || !(used[0] | used[1]))
        return b;
    int p = used[0] ? __builtin_ctzll(used[0]) : 64 + __builtin_ctzll(used[1]);
    b = m->order.classes[p].head;
    lkvi_order_remove(m, b);
    return b;
}

void lkvi_order_raise(struct lkvi_manager *m, uint32_t b, uint8_t priority, uint64_t until)
{
    struct lkvi_block *block = &m->blocks[b];
    if (!priority || (until && until <= m->order.now))
        return;
    struct lkvi_rank *rank = &m->order.ranks[b];
    if (!block->priority || expired(m, b) || priority > block->priority)
        rank->until = until;
    else if (priority == block->priority && rank->until && (!until || until > rank->until))
        rank->until = until;
    else
        return;
    block->priority = priority;
}

/* ---- the clock */

/* Everything in one slot expires, or goes down to the level that now is its own. */
static void drain(struct lkvi_manager *m, uint32_t *slot)
{
    uint32_t b = *slot;
    *slot = 0;
    while (b) {
        uint32_t next = m->order.ranks[b].timer_next;
        if (expired(m, b)) {
            m->order.ranks[b].timer_next = m->order.ranks[b].timer_previous = 0;
            class_unlink(m, b);
            m->blocks[b].priority = 0;
            lkvi_lru_push(&m->lru, m->cold, b);
        } else {
            timer_start(m, b);
        }
        b = next;
    }
}

/* Below the highest digit that changes every slot has passed; on its level those up to the new
 * digit have. */
void lkvi_order_tick(struct lkvi_manager *m, uint64_t now)
{
    uint64_t before = m->order.now;
    if (now <= before)
        return;
    m->order.now = now;
    if (!m->order.ranks)
        return;
    uint32_t top = level_of(now, before);
    for (uint32_t slot = 0; slot < top * LKVI_WHEEL_SLOTS; slot++)
        drain(m, &m->order.wheel[slot]);
    for (uint32_t digit = digit_of(before, top) + 1; digit <= digit_of(now, top); digit++)
        drain(m, &m->order.wheel[top * LKVI_WHEEL_SLOTS + digit]);
}
