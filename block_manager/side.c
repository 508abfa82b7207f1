/* In: events of blocks, requests for single headroom blocks. Out: calls to whoever registered.
 * What a side borrows is one lease that grows and shrinks; its list of ids has its full size from
 * the start, so borrowing can fail for lack of headroom only. */
#include "block_manager/side.h"

#include "block_manager/state.h"

void lkvi_side_dropped(struct lkvi_manager *m, uint32_t b)
{
    for (struct lkvi_side *side = m->sides; side; side = side->next)
        side->dropped(side, b);
}

void lkvi_side_copied(struct lkvi_manager *m, uint32_t from, uint32_t to, uint64_t num_tokens)
{
    for (struct lkvi_side *side = m->sides; side; side = side->next)
        side->copied(side, from, to, (uint32_t)num_tokens);
}

void lkvi_side_moved(struct lkvi_manager *m, uint32_t from, uint32_t to)
{
    for (struct lkvi_side *side = m->sides; side; side = side->next)
        side->moved(side, from, to);
}

void lkvi_side_written(struct lkvi_manager *m, uint32_t b, uint64_t begin, uint64_t end)
{
    for (struct lkvi_side *side = m->sides; side; side = side->next)
        side->written(side, b, (uint32_t)begin, (uint32_t)end);
}

lkv_status lkvi_side_check(struct lkvi_manager *m)
{
    for (struct lkvi_side *side = m->sides; side; side = side->next)
        LKV_TRY(side->check(side));
    return LKV_OK;
}

static struct lkvi_lease *lease_of(const struct lkvi_manager *m, const struct lkvi_side *side)
{
    return &m->leases[side->lease - 1];
}

static lkv_status attach(struct lkvi_manager *m, struct lkvi_side *side, uint64_t max_blocks)
{
    struct lkvi_lease *lease;
    LKV_TRY(lkvi_lease_open(m, max_blocks, &lease));
    lease->lent = LKVI_LENT_TO_SIDE;
    side->lease = (uint32_t)(lease - m->leases) + 1;
    side->next = m->sides;
    m->sides = side;
    return LKV_OK;
}

lkv_status lkvi_side_attach(struct lkvi_manager *m, struct lkvi_side *side, uint64_t max_blocks)
{
    lkvi_lock(m);
    return lkvi_unlock(m, attach(m, side, max_blocks));
}

void lkvi_side_detach(struct lkvi_manager *m, struct lkvi_side *side)
{
    lkvi_lock(m);
    struct lkvi_side **link = &m->sides;
    while (*link != side)
        link = &(*link)->next;
    *link = side->next;
    lkvi_lease_close(m, side->lease, 0);
    lkvi_unlock(m, LKV_OK);
}

void lkvi_side_lock(struct lkvi_manager *m)
{
    lkvi_lock(m);
}

void lkvi_side_unlock(struct lkvi_manager *m)
{
    lkvi_unlock(m, LKV_OK);
}

uint32_t lkvi_side_num_ids(const struct lkvi_manager *m)
{
    return m->num_ids;
}

int lkvi_side_device(const struct lkvi_manager *m, uint32_t b)
{
    return !lkvi_on_host(m, b);
}

int lkvi_side_alive(const struct lkvi_manager *m, uint32_t b)
{
    if (!b || b > m->num_blocks)
        return 0;
    uint8_t state = m->blocks[b].state;
    return state == LKVI_IN_USE || state == LKVI_IDLE || state == LKVI_PENDING;
}

uint32_t lkvi_side_refs(const struct lkvi_manager *m, uint32_t b)
{
    return m->blocks[b].refs;
}

uint64_t lkvi_side_room(const struct lkvi_manager *m)
{
    return m->num_blocks - m->base_blocks - m->counts.state[LKVI_LENT];
}

uint32_t lkvi_side_lend(struct lkvi_manager *m, struct lkvi_side *side)
{
    struct lkvi_lease *lease = lease_of(m, side);
    uint32_t b;
    if (!lkvi_side_room(m))
        return 0;
    lkvi_take_blocks(m, &b, 1, LKVI_LENT); /* what it evicts may make the side return others */
    lease->blocks[lease->num_blocks++] = b;
    return b;
}

void lkvi_side_return(struct lkvi_manager *m, struct lkvi_side *side, uint32_t block)
{
    struct lkvi_lease *lease = lease_of(m, side);
    uint64_t i = 0;
    while (lease->blocks[i] != block)
        i++;
    lease->blocks[i] = lease->blocks[--lease->num_blocks];
    lkvi_return_lent(m, block, 0);
}
