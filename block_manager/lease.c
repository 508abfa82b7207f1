/* In: blocks that a reader outside the manager needs to stay (pin), or a number of blocks that
 * somebody else needs for himself (lend). Out: a lease with a generation.
 * Lent blocks come out of the headroom that KV never touches, so a lend up to it always succeeds,
 * by eviction of idle blocks at worst. They count as lent until their fence has passed. */
#include "block_manager/state.h"

lkv_status lkvi_lease_open(struct lkvi_manager *m, uint64_t num_blocks, struct lkvi_lease **out)
{
    if (!m->free_lease && m->num_leases == m->leases_capacity) {
        uint32_t capacity = m->leases_capacity * 2 + 16;
        struct lkvi_lease *grown = lkvi_realloc(m->arena, m->leases, capacity * sizeof *grown);
        if (!grown)
            return lkvi_fail(LKV_E_NO_MEMORY, "no memory for %u leases", capacity);
        m->leases = grown;
        m->leases_capacity = capacity;
    }
    uint32_t *blocks = lkvi_alloc(m->arena, num_blocks * sizeof *blocks);
    if (!blocks)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for a lease of %llu blocks",
                         (unsigned long long)num_blocks);
    uint32_t slot = m->free_lease;
    if (slot) {
        m->free_lease = m->leases[slot - 1].next_free;
    } else {
        slot = ++m->num_leases;
        memset(&m->leases[slot - 1], 0, sizeof *m->leases);
    }
    *out = &m->leases[slot - 1];
    (*out)->blocks = blocks;
    (*out)->num_blocks = 0;
    (*out)->live = 1;
    (*out)->lent = 0;
    return LKV_OK;
}

static lkv_lease lease_handle(const struct lkvi_manager *m, const struct lkvi_lease *lease)
{
    return (lkv_lease)lease->generation << 32 | (uint32_t)(lease - m->leases + 1);
}

/* Counts the distinct blocks that a pin would bring into use. */
static lkv_status pin_plan(struct lkvi_manager *m, const int32_t *blocks, uint64_t n,
                           uint64_t *idle, uint64_t *pending)
{
    lkv_status status = LKV_OK;
    uint64_t i = 0;
    for (; i < n && status == LKV_OK; i++) {
        if (!blocks[i])
            continue;
        if (blocks[i] < 0 || (uint32_t)blocks[i] > m->num_blocks ||
            m->blocks[blocks[i]].state == LKVI_FREE || m->blocks[blocks[i]].state == LKVI_LENT) {
            status =
                lkvi_fail(LKV_E_NOT_FOUND, "blocks[%llu] is %d; need a block of a table, 0..%u",
                          (unsigned long long)i, blocks[i], m->num_blocks);
            continue;
        }
        struct lkvi_block *block = &m->blocks[blocks[i]];
        *idle += block->state == LKVI_IDLE && !(block->flags & LKVI_MARK);
        *pending += block->state == LKVI_PENDING && !(block->flags & LKVI_MARK);
        block->flags |= LKVI_MARK;
    }
    while (i-- > 0)
        if (blocks[i] > 0 && (uint32_t)blocks[i] <= m->num_blocks)
            m->blocks[blocks[i]].flags &= (uint8_t)~LKVI_MARK;
    return status;
}

static lkv_status pin_locked(struct lkvi_manager *m, const int32_t *blocks, uint64_t n,
                             lkv_lease *out)
{
    struct lkvi_lease *lease;
    lkv_admission room;
    uint64_t idle = 0, pending = 0;
    LKV_TRY(pin_plan(m, blocks, n, &idle, &pending));
    LKV_TRY(lkvi_room(m, idle, 0, pending, &room));
    LKV_TRY(lkvi_lease_open(m, n, &lease));
    for (uint64_t i = 0; i < n; i++) {
        if (!blocks[i])
            continue;
        lkvi_claim(m, (uint32_t)blocks[i]);
        lease->blocks[lease->num_blocks++] = (uint32_t)blocks[i];
    }
    *out = lease_handle(m, lease);
    return LKV_OK;
}

lkv_status lkvi_lease_pin(struct lkvi_manager *m, const int32_t *blocks, uint64_t num_blocks,
                          lkv_lease *out)
{
    if (!blocks || !num_blocks)
        return lkvi_fail(LKV_E_INVALID, "%llu blocks at %p; need at least one at an address",
                         (unsigned long long)num_blocks, (const void *)blocks);
    lkvi_lock(m);
    return lkvi_unlock(m, pin_locked(m, blocks, num_blocks, out));
}

static lkv_status lend_locked(struct lkvi_manager *m, uint64_t n, int32_t *blocks, lkv_lease *out)
{
    struct lkvi_lease *lease;
    uint64_t headroom = m->num_blocks - m->base_blocks, lent = m->counts.state[LKVI_LENT];
    if (n > headroom - lent)
        return lkvi_fail(LKV_E_NO_BLOCKS, "%llu blocks to lend; %llu of %llu are left of headroom",
                         (unsigned long long)n, (unsigned long long)(headroom - lent),
                         (unsigned long long)headroom);
    LKV_TRY(lkvi_lease_open(m, n, &lease));
    lease->lent = 1;
    lease->num_blocks = n;
    lkvi_take_blocks(m, lease->blocks, n, LKVI_LENT);
    memcpy(blocks, lease->blocks, n * sizeof *blocks);
    *out = lease_handle(m, lease);
    return LKV_OK;
}

lkv_status lkvi_lease_lend(struct lkvi_manager *m, uint64_t num_blocks, int32_t *blocks,
                           lkv_lease *out)
{
    if (!blocks || !num_blocks)
        return lkvi_fail(LKV_E_INVALID, "%llu blocks into %p; need at least one into an address",
                         (unsigned long long)num_blocks, (void *)blocks);
    lkvi_lock(m);
    return lkvi_unlock(m, lend_locked(m, num_blocks, blocks, out));
}

void lkvi_lease_close(struct lkvi_manager *m, uint32_t slot, uint64_t fence)
{
    struct lkvi_lease *lease = &m->leases[slot - 1];
    for (uint64_t i = lease->num_blocks; i-- > 0;) {
        if (lease->lent)
            lkvi_return_lent(m, lease->blocks[i], fence);
        else
            lkvi_drop(m, lease->blocks[i], fence);
    }
    lkvi_free(m->arena, lease->blocks);
    lease->blocks = NULL;
    lease->num_blocks = 0;
    lease->live = 0;
    lease->generation++;
    lease->next_free = m->free_lease;
    m->free_lease = slot;
}

static lkv_status release_locked(struct lkvi_manager *m, lkv_lease handle, uint64_t fence)
{
    uint32_t slot = (uint32_t)handle;
    struct lkvi_lease *lease = slot && slot <= m->num_leases ? &m->leases[slot - 1] : NULL;
    if (!lease || !lease->live || lease->lent == LKVI_LENT_TO_SIDE ||
        lease->generation != (uint32_t)(handle >> 32))
        return lkvi_fail(LKV_E_NOT_FOUND, "lease %#llx is not alive; each is released once",
                         (unsigned long long)handle);
    lkvi_lease_close(m, slot, fence);
    return LKV_OK;
}

lkv_status lkvi_lease_release(struct lkvi_manager *m, lkv_lease lease, uint64_t fence)
{
    lkvi_lock(m);
    return lkvi_unlock(m, release_locked(m, lease, fence));
}
