/* In: a parent block, the tokens of one block, its key set. Out: the cached block that is exactly
 * that, if there is one.
 * Each indexed block keeps its children as a list with the last one used first. Following first
 * children costs one comparison a block and no hash; the hash table is asked only where a chain
 * forks, and holds only the blocks there: a child enters it when it gets its first sibling. Either
 * way tokens and keys are compared, so no collision can hand out another prompt. */
#include "block_manager/state.h"

enum { PARTIAL_CANDIDATES = 16 };

int lkvi_same(const struct lkvi_manager *m, uint32_t b, uint32_t parent, const int32_t *tokens,
              uint32_t keyset)
{
    const struct lkvi_block *block = &m->blocks[b];
    return block->parent == parent && block->keyset == keyset &&
           !memcmp(lkvi_block_tokens(m, b), tokens, m->block_tokens * sizeof *tokens);
}

uint32_t lkvi_identity_hash(const struct lkvi_manager *m, uint32_t parent, const int32_t *tokens,
                            uint32_t keyset)
{
    uint64_t handle = (uint64_t)m->blocks[parent].generation << 32 | parent;
    return lkvi_index_hash(&m->index, tokens, m->block_tokens * sizeof *tokens, handle, keyset);
}

static uint32_t index_lookup(const struct lkvi_manager *m, uint32_t parent, const int32_t *tokens,
                             uint32_t keyset)
{
    uint32_t hash = lkvi_identity_hash(m, parent, tokens, keyset);
    uint32_t slot = lkvi_index_home(&m->index, hash);
    for (;;) {
        struct lkvi_index_slot entry = m->index.slots[slot];
        if (!entry.block)
            return 0;
        if (entry.hash == hash && lkvi_same(m, entry.block, parent, tokens, keyset))
            return entry.block;
        slot = slot + 1 == m->index.capacity ? 0 : slot + 1;
    }
}

/* Blocks handed out together are neighbours: where this chain goes by a stride, fetch ahead. */
static void prefetch_ahead(const struct lkvi_manager *m, uint32_t b, uint32_t parent)
{
    uint64_t ahead = b + 4 * (uint64_t)((int64_t)b - (int64_t)parent);
    if (ahead > m->num_blocks)
        return;
    const char *tokens = (const char *)lkvi_block_tokens(m, (uint32_t)ahead);
    __builtin_prefetch(&m->blocks[ahead]);
    for (uint32_t i = 0; i < m->block_tokens * sizeof(int32_t); i += 64)
        __builtin_prefetch(tokens + i);
}

uint32_t lkvi_child(const struct lkvi_manager *m, uint32_t parent, const int32_t *tokens,
                    uint32_t keyset)
{
    uint32_t first = m->blocks[parent].first_child;
    if (!first || keyset == LKVI_KEYSET_UNKNOWN)
        return 0;
    prefetch_ahead(m, first, parent);
    if (lkvi_same(m, first, parent, tokens, keyset))
        return first;
    return m->blocks[first].flags & LKVI_HASHED ? index_lookup(m, parent, tokens, keyset) : 0;
}

static uint32_t shared_tokens(const int32_t *a, const int32_t *b, uint32_t limit)
{
    uint32_t n = 0;
    while (n < limit && a[n] == b[n])
        n++;
    return n;
}

uint32_t lkvi_partial_child(const struct lkvi_manager *m, uint32_t parent, const int32_t *tokens,
                            uint32_t limit, uint32_t keyset, uint32_t *shared)
{
    uint32_t best = 0, tried = 0;
    *shared = 0;
    if (keyset == LKVI_KEYSET_UNKNOWN)
        return 0;
    for (uint32_t b = m->blocks[parent].first_child; b && tried < PARTIAL_CANDIDATES; tried++) {
        if (m->blocks[b].keyset == keyset) {
            uint32_t n = shared_tokens(lkvi_block_tokens(m, b), tokens, limit);
            if (n > *shared) {
                *shared = n;
                best = b;
            }
        }
        b = m->blocks[b].next_sibling;
    }
    return best;
}

static void link_child(struct lkvi_manager *m, uint32_t b)
{
    struct lkvi_block *block = &m->blocks[b], *parent = &m->blocks[block->parent];
    block->previous_sibling = 0;
    block->next_sibling = parent->first_child;
    if (parent->first_child)
        m->blocks[parent->first_child].previous_sibling = b;
    parent->first_child = b;
}

static void unlink_child(struct lkvi_manager *m, uint32_t b)
{
    struct lkvi_block *block = &m->blocks[b];
    if (block->previous_sibling)
        m->blocks[block->previous_sibling].next_sibling = block->next_sibling;
    else
        m->blocks[block->parent].first_child = block->next_sibling;
    if (block->next_sibling)
        m->blocks[block->next_sibling].previous_sibling = block->previous_sibling;
    block->next_sibling = block->previous_sibling = 0;
}

void lkvi_touch_child(struct lkvi_manager *m, uint32_t b)
{
    if (m->blocks[m->blocks[b].parent].first_child == b)
        return;
    unlink_child(m, b);
    link_child(m, b);
}

/* Into the hash table, with the child of the same parent that was alone so far. */
static void enter_hash(struct lkvi_manager *m, uint32_t b)
{
    uint32_t first = m->blocks[m->blocks[b].parent].first_child;
    for (;; b = first) {
        struct lkvi_block *block = &m->blocks[b];
        m->cold[b].hash =
            lkvi_identity_hash(m, block->parent, lkvi_block_tokens(m, b), block->keyset);
        lkvi_index_insert(&m->index, m->cold[b].hash, b);
        block->flags |= LKVI_HASHED;
        if (m->blocks[first].flags & LKVI_HASHED)
            return;
    }
}

/* The key set's reference is the caller's to give. */
void lkvi_publish(struct lkvi_manager *m, uint32_t b, uint32_t parent, uint32_t keyset)
{
    struct lkvi_block *block = &m->blocks[b];
    block->parent = parent;
    block->keyset = keyset;
    block->flags |= LKVI_INDEXED;
    if (m->blocks[parent].first_child)
        enter_hash(m, b);
    link_child(m, b);
    m->counts.cached++;
    m->sums.published++;
    lkvi_events_stored(m, b);
}

static void clear_identity(struct lkvi_manager *m, uint32_t b)
{
    struct lkvi_block *block = &m->blocks[b];
    lkvi_keyset_release(&m->keysets, block->keyset);
    block->flags &= (uint8_t) ~(LKVI_INDEXED | LKVI_HASHED);
    block->generation++;
    block->parent = block->keyset = 0;
}

void lkvi_unpublish(struct lkvi_manager *m, uint32_t b)
{
    uint32_t parent = m->blocks[b].parent;
    lkvi_events_removed(m, b);
    if (m->blocks[b].flags & LKVI_HASHED)
        lkvi_index_remove(&m->index, m->cold[b].hash, b);
    unlink_child(m, b);
    clear_identity(m, b);
    m->counts.cached--;
    if ((m->blocks[parent].flags & LKVI_PARKED) && !m->blocks[parent].first_child) {
        lkvi_unpark(m, parent);
        lkvi_order_push_oldest(m, parent);
    }
}

void lkvi_forget_all(struct lkvi_manager *m)
{
    lkvi_index_clear(&m->index);
    m->blocks[0].first_child = 0;
    for (uint32_t b = 1; b <= m->num_blocks; b++) {
        struct lkvi_block *block = &m->blocks[b];
        if (!(block->flags & LKVI_INDEXED))
            continue;
        clear_identity(m, b);
        block->first_child = block->next_sibling = block->previous_sibling = 0;
        if (block->state != LKVI_IDLE)
            continue;
        if (block->flags & LKVI_PARKED)
            lkvi_unpark(m, b);
        else
            lkvi_order_remove(m, b);
        m->counts.state[LKVI_IDLE]--;
        lkvi_make_free(m, b);
    }
    m->counts.cached = 0;
    lkvi_events_cleared(m);
}
