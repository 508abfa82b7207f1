/* In: pairs of blocks that partial reuse and copy on write ask for. Out: the same pairs, in order,
 * to whoever moves the bytes.
 * A waiting copy holds a reference to its source, so nobody reuses it. A target that is dropped
 * before its copy ran takes the copy with it, or, if it has been published, waits for it; so no
 * copy ever writes a block of somebody else. */
#include "block_manager/state.h"

lkv_status lkvi_copies_ensure(struct lkvi_manager *m, uint64_t more)
{
    uint64_t want = m->num_copies + more;
    if (want <= m->copies_capacity)
        return LKV_OK;
    struct lkvi_copy *grown = lkvi_realloc(m->arena, m->copies, (want * 2 + 16) * sizeof *grown);
    if (!grown)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for %llu waiting copies",
                         (unsigned long long)want);
    m->copies = grown;
    m->copies_capacity = want * 2 + 16;
    return LKV_OK;
}

void lkvi_copies_add(struct lkvi_manager *m, uint32_t from, uint32_t to)
{
    m->copies[m->num_copies++] = (struct lkvi_copy){from, to};
    m->blocks[to].flags |= LKVI_COPY_TARGET;
    m->sums.copied++;
}

uint32_t lkvi_copies_cancel(struct lkvi_manager *m, uint32_t to)
{
    uint64_t i = 0;
    while (m->copies[i].to != to)
        i++;
    uint32_t from = m->copies[i].from;
    memmove(&m->copies[i], &m->copies[i + 1], (--m->num_copies - i) * sizeof *m->copies);
    m->blocks[to].flags &= (uint8_t)~LKVI_COPY_TARGET;
    m->sums.copied--;
    return from;
}

lkv_status lkvi_manager_peek_copies(struct lkvi_manager *m, int32_t *pairs, uint64_t capacity,
                                    uint64_t *num)
{
    lkvi_lock(m);
    uint64_t n = m->num_copies < capacity ? m->num_copies : capacity;
    for (uint64_t i = 0; i < n; i++) {
        pairs[2 * i] = (int32_t)m->copies[i].from;
        pairs[2 * i + 1] = (int32_t)m->copies[i].to;
    }
    *num = m->num_copies;
    return lkvi_unlock(m, LKV_OK);
}

/* Source and target are both touched on the device until the fence. */
static void settle(struct lkvi_manager *m, struct lkvi_copy copy, uint64_t fence)
{
    struct lkvi_block *to = &m->blocks[copy.to];
    to->flags &= (uint8_t)~LKVI_COPY_TARGET;
    if (fence > m->cold[copy.to].fence)
        m->cold[copy.to].fence = fence;
    if (to->state == LKVI_PENDING && !(to->flags & LKVI_QUEUED)) {
        m->counts.state[LKVI_PENDING]--;
        lkvi_settle_unused(m, copy.to);
    }
    lkvi_drop(m, copy.from, fence);
}

lkv_status lkvi_manager_settle_copies(struct lkvi_manager *m, uint64_t num, uint64_t fence)
{
    lkvi_lock(m);
    if (num > m->num_copies)
        return lkvi_unlock(m,
                           lkvi_fail(LKV_E_INVALID, "%llu copies to settle; %llu wait",
                                     (unsigned long long)num, (unsigned long long)m->num_copies));
    uint64_t before = m->num_copies;
    for (uint64_t i = 0; i < num; i++)
        settle(m, m->copies[i], fence);
    m->num_copies = before - num;
    if (num)
        memmove(m->copies, m->copies + num, m->num_copies * sizeof *m->copies);
    return lkvi_unlock(m, LKV_OK);
}
