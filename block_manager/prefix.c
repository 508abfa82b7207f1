/* In: a parent block, the tokens of one block, its key set. Out: the cached block that is exactly
 * that, if there is one.
 * Each indexed block keeps its children as a list with the last one used first, and those on the
 * host alone as another. Following first children costs one comparison a block and no hash; the
 * hash table is asked only where a chain forks, and holds only the blocks there: a child enters it
 * when it gets its first sibling. Either way tokens and keys are compared, so no collision can hand
 * out another prompt. */
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

static int has_host_child(const struct lkvi_manager *m, uint32_t b)
{
    return m->host.num_blocks && m->host.first_child[b];
}

uint32_t lkvi_child(const struct lkvi_manager *m, uint32_t parent, const int32_t *tokens,
                    uint32_t keyset)
{
    uint32_t first = lkvi_any_child(m, parent);
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
    uint32_t best = 0, tried = 0, b = lkvi_any_child(m, parent);
    *shared = 0;
    if (keyset == LKVI_KEYSET_UNKNOWN)
        return 0;
    for (; b && tried < PARTIAL_CANDIDATES; tried++) {
        if (m->blocks[b].keyset == keyset) {
            uint32_t n = shared_tokens(lkvi_block_tokens(m, b), tokens, limit);
            if (n > *shared) {
                *shared = n;
                best = b;
            }
        }
        uint32_t next = m->blocks[b].next_sibling;
        b = !next && !lkvi_on_host(m, b) && has_host_child(m, parent) ? m->host.first_child[parent]
                                                                      : next;
    }
    return best;
}

/* The list of children in which b stands. */
static uint32_t *list_of(struct lkvi_manager *m, uint32_t b)
{
    uint32_t parent = m->blocks[b].parent;
    return lkvi_on_host(m, b) ? &m->host.first_child[parent] : &m->blocks[parent].first_child;
}

static void link_child(struct lkvi_manager *m, uint32_t b)
{
    uint32_t *first = list_of(m, b);
    m->blocks[b].previous_sibling = 0;
    m->blocks[b].next_sibling = *first;
    if (*first)
        m->blocks[*first].previous_sibling = b;
    *first = b;
}

static void unlink_child(struct lkvi_manager *m, uint32_t b)
{
    struct lkvi_block *block = &m->blocks[b];
    if (block->previous_sibling)
        m->blocks[block->previous_sibling].next_sibling = block->next_sibling;
    else
        *list_of(m, b) = block->next_sibling;
    if (block->next_sibling)
        m->blocks[block->next_sibling].previous_sibling = block->previous_sibling;
    block->next_sibling = block->previous_sibling = 0;
}

void lkvi_touch_child(struct lkvi_manager *m, uint32_t b)
{
    if (*list_of(m, b) == b)
        return;
    unlink_child(m, b);
    link_child(m, b);
}

/* Into the hash table, with the child of the same parent that was alone so far. */
static void enter_hash(struct lkvi_manager *m, uint32_t b)
{
    uint32_t first = lkvi_any_child(m, m->blocks[b].parent);
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
    if (lkvi_any_child(m, parent))
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

static uint64_t *cached_of(struct lkvi_manager *m, uint32_t b)
{
    return lkvi_on_host(m, b) ? &m->host.cached : &m->counts.cached;
}

/* A parent that was passed over as a victim because of its children: the last one has gone. */
static void wake_parent(struct lkvi_manager *m, uint32_t parent)
{
    if (!(m->blocks[parent].flags & LKVI_PARKED) || m->blocks[parent].first_child)
        return;
    lkvi_unpark(m, parent);
    lkvi_order_push_oldest(m, parent);
}

void lkvi_unpublish(struct lkvi_manager *m, uint32_t b)
{
    uint32_t parent = m->blocks[b].parent;
    lkvi_events_removed(m, b);
    if (m->blocks[b].flags & LKVI_HASHED)
        lkvi_index_remove(&m->index, m->cold[b].hash, b);
    unlink_child(m, b);
    clear_identity(m, b);
    --*cached_of(m, b);
    if (m->host.num_blocks && !lkvi_on_host(m, b))
        lkvi_host_forget(m, b);
    wake_parent(m, parent);
}

/* Children of `from`, all of them on the host, hang under `to`: another handle, another hash. */
static void move_children(struct lkvi_manager *m, uint32_t from, uint32_t to)
{
    uint32_t first = m->host.first_child[from];
    m->host.first_child[from] = 0;
    m->host.first_child[to] = first;
    for (uint32_t b = first; b; b = m->blocks[b].next_sibling) {
        m->blocks[b].parent = to;
        if (!(m->blocks[b].flags & LKVI_HASHED))
            continue;
        lkvi_index_remove(&m->index, m->cold[b].hash, b);
        m->cold[b].hash = lkvi_identity_hash(m, to, lkvi_block_tokens(m, b), m->blocks[b].keyset);
        lkvi_index_insert(&m->index, m->cold[b].hash, b);
    }
}

void lkvi_move_identity(struct lkvi_manager *m, uint32_t from, uint32_t to)
{
    struct lkvi_block *a = &m->blocks[from], *b = &m->blocks[to];
    uint32_t parent = a->parent;
    lkvi_events_moving(m, from, to);
    unlink_child(m, from);
    b->parent = parent;
    b->keyset = a->keyset;
    b->flags |= LKVI_INDEXED | (a->flags & LKVI_HASHED);
    if (a->flags & LKVI_HASHED) {
        lkvi_index_remove(&m->index, m->cold[from].hash, from);
        m->cold[to].hash = m->cold[from].hash;
        lkvi_index_insert(&m->index, m->cold[to].hash, to);
    }
    a->keyset = LKVI_KEYSET_NONE; /* its reference is b's now */
    clear_identity(m, from);
    link_child(m, to);
    move_children(m, from, to);
    --*cached_of(m, from);
    ++*cached_of(m, to);
    wake_parent(m, parent);
    if (m->sides)
        lkvi_side_moved(m, from, to);
}

void lkvi_forget_all(struct lkvi_manager *m)
{
    lkvi_index_clear(&m->index);
    lkvi_host_clear(m);
    m->blocks[0].first_child = 0;
    for (uint32_t b = 1; b <= m->num_ids; b++) {
        struct lkvi_block *block = &m->blocks[b];
        if (block->flags & LKVI_INDEXED)
            clear_identity(m, b);
        block->first_child = block->next_sibling = block->previous_sibling = 0;
        if (block->state != LKVI_IDLE)
            continue;
        lkvi_leave_idle(m, b);
        lkvi_make_free(m, b);
    }
    m->counts.cached = 0;
    lkvi_events_cleared(m);
}
