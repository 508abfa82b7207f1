/* In: pairs of blocks that partial reuse, copy on write and the host tier ask for. Out: the same
 * pairs, in order, to whoever moves the bytes.
 * A waiting copy holds a reference to its source, so nobody reuses it. A target that is dropped
 * before its copy ran takes the copy with it, or, if it has been published or the copy is being
 * run, waits for it; so no copy ever writes a block of somebody else. */
#include "block_manager/state.h"

/* Room for those that wait for a fence too: passing one cannot fail. */
lkv_status lkvi_copies_ensure(struct lkvi_manager *m, uint64_t more)
{
    uint64_t want = m->num_copies + m->host.num_held + more;
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

void lkvi_copies_add(struct lkvi_manager *m, uint32_t from, uint32_t to, uint32_t why)
{
    m->copies[m->num_copies++] = (struct lkvi_copy){from, to, why, 0, 0};
    m->blocks[to].flags |= LKVI_COPY_TARGET;
    m->sums.copied[why]++;
}

/* From the end: a sequence that goes takes its copies back last first. UINT64_MAX: none. */
static uint64_t find(const struct lkvi_copy *copies, uint64_t begin, uint64_t end, uint32_t to)
{
    while (end > begin)
        if (copies[--end].to == to)
            return end;
    return UINT64_MAX;
}

static struct lkvi_copy take_out(struct lkvi_copy *copies, uint64_t *num, uint64_t i)
{
    struct lkvi_copy copy = copies[i];
    memmove(&copies[i], &copies[i + 1], (--*num - i) * sizeof *copies);
    return copy;
}

uint32_t lkvi_copies_cancel(struct lkvi_manager *m, uint32_t to)
{
    struct lkvi_copy copy;
    uint64_t held = find(m->host.held, 0, m->host.num_held, to);
    uint64_t i = find(m->copies, m->num_issued, m->num_copies, to);
    if (held != UINT64_MAX)
        copy = take_out(m->host.held, &m->host.num_held, held);
    else if (i != UINT64_MAX)
        copy = take_out(m->copies, &m->num_copies, i);
    else
        return 0;
    m->blocks[to].flags &= (uint8_t)~LKVI_COPY_TARGET;
    m->sums.copied[copy.why]--;
    return copy.from;
}

/* The same pairs stay first until they are settled: nothing before num_issued is taken back. */
static uint64_t peek(const struct lkvi_manager *m, int32_t *pairs, uint64_t capacity)
{
    uint64_t n = m->num_copies < capacity ? m->num_copies : capacity;
    for (uint64_t i = 0; i < n; i++) {
        pairs[2 * i] = (int32_t)m->copies[i].from;
        pairs[2 * i + 1] = (int32_t)m->copies[i].to;
    }
    return n;
}

lkv_status lkvi_manager_peek_copies(struct lkvi_manager *m, int32_t *pairs, uint64_t capacity,
                                    uint64_t *num)
{
    lkvi_lock(m);
    peek(m, pairs, capacity);
    *num = m->num_copies;
    return lkvi_unlock(m, LKV_OK);
}

lkv_status lkvi_manager_issue_copies(struct lkvi_manager *m, int32_t *pairs, uint64_t capacity,
                                     uint64_t *num)
{
    lkvi_lock(m);
    m->num_issued = peek(m, pairs, capacity);
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
        lkvi_states(m, copy.to)[LKVI_PENDING]--;
        lkvi_settle_unused(m, copy.to);
    }
    lkvi_drop(m, copy.from, fence);
}

lkv_status lkvi_manager_settle_copies(struct lkvi_manager *m, uint64_t num, uint64_t fence)
{
    lkvi_lock(m);
    m->num_issued = 0;
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

/* ---- copies that wait for the fence of who still writes their source */

lkv_status lkvi_held_ensure(struct lkvi_manager *m, uint64_t more)
{
    struct lkvi_host_tier *host = &m->host;
    uint64_t want = host->num_held + more;
    if (want <= host->held_capacity)
        return LKV_OK;
    struct lkvi_copy *grown = lkvi_realloc(m->arena, host->held, (want * 2 + 16) * sizeof *grown);
    if (!grown)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for %llu copies behind a fence",
                         (unsigned long long)want);
    host->held = grown;
    host->held_capacity = want * 2 + 16;
    return LKV_OK;
}

void lkvi_held_add(struct lkvi_manager *m, uint32_t from, uint32_t to, uint32_t why, uint64_t after)
{
    m->host.held[m->host.num_held++] = (struct lkvi_copy){from, to, why, 0, after};
    m->blocks[to].flags |= LKVI_COPY_TARGET;
    m->sums.copied[why]++;
}

void lkvi_held_pass(struct lkvi_manager *m)
{
    struct lkvi_host_tier *host = &m->host;
    uint64_t kept = 0;
    for (uint64_t i = 0; i < host->num_held; i++) {
        if (host->held[i].after > m->passed_fence)
            host->held[kept++] = host->held[i];
        else
            m->copies[m->num_copies++] = host->held[i];
    }
    host->num_held = kept;
}
