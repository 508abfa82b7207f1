/* In: handles. Out: sequences, their tables, their end.
 * A handle is a slot number and the slot's generation, which grows when the sequence ends, so a
 * second free or a late result of a dead sequence is refused. A table names a block once; its
 * tokens lie in the blocks, so a fork copies only numbers. */
#include "block_manager/state.h"

enum { PAGE_ENTRIES = 1024 };

lkv_status lkvi_seq_find(struct lkvi_manager *m, lkv_seq handle, struct lkvi_seq **out)
{
    uint32_t slot = (uint32_t)handle, generation = (uint32_t)(handle >> 32);
    if (slot && slot <= m->max_seqs) {
        struct lkvi_seq *s = &m->seqs[slot - 1];
        if (s->live && s->generation == generation) {
            *out = s;
            return LKV_OK;
        }
    }
    return lkvi_fail(LKV_E_NOT_FOUND, "sequence %#llx is not alive; need a handle of lkv_seq_admit",
                     (unsigned long long)handle);
}

lkv_status lkvi_seq_resident(struct lkvi_manager *m, lkv_seq handle, struct lkvi_seq **out)
{
    LKV_TRY(lkvi_seq_find(m, handle, out));
    if ((*out)->swapped)
        return lkvi_fail(LKV_E_INVALID, "sequence %#llx is swapped out; need lkv_seq_swap_in first",
                         (unsigned long long)handle);
    return LKV_OK;
}

lkv_status lkvi_seq_open(struct lkvi_manager *m, struct lkvi_seq **out)
{
    if (!m->free_seq)
        return lkvi_fail(LKV_E_BUSY,
                         "all %u sequences (max_seqs) are alive; it cannot grow after creation",
                         m->max_seqs);
    *out = &m->seqs[m->free_seq - 1];
    return LKV_OK;
}

lkv_seq lkvi_seq_start(struct lkvi_manager *m, struct lkvi_seq *s)
{
    uint32_t slot = m->free_seq;
    m->free_seq = s->next_free;
    s->live = 1;
    s->epoch = m->epoch;
    s->dirty_from = s->emitted = 0;
    m->sums.seqs_live++;
    m->sums.tokens_live += s->length;
    m->sums.room_live += (uint64_t)s->num_blocks << m->block_shift;
    return (lkv_seq)s->generation << 32 | slot;
}

/* Clears the slot for its next sequence; the generation stays and grows. */
void lkvi_seq_close(struct lkvi_manager *m, struct lkvi_seq *s)
{
    uint32_t generation = s->generation + 1;
    lkvi_free(m->arena, s->table);
    lkvi_keys_release(&m->keysets, s->keys);
    memset(s, 0, sizeof *s);
    s->generation = generation;
    s->next_free = m->free_seq;
    m->free_seq = (uint32_t)(s - m->seqs) + 1;
}

/* Powers of two up to a page, then whole pages: tables come and go in all lengths, and each size
 * class of the heap that they use keeps a slab of its own. */
static uint64_t table_capacity(uint64_t num_blocks)
{
    uint64_t capacity = 16;
    while (capacity < num_blocks && capacity < PAGE_ENTRIES)
        capacity *= 2;
    return num_blocks <= capacity ? capacity
                                  : (num_blocks + PAGE_ENTRIES - 1) / PAGE_ENTRIES * PAGE_ENTRIES;
}

lkv_status lkvi_seq_ensure(struct lkvi_manager *m, struct lkvi_seq *s, uint64_t num_blocks)
{
    if (num_blocks <= s->capacity)
        return LKV_OK;
    uint64_t capacity = table_capacity(s->capacity ? num_blocks + num_blocks / 8 : num_blocks);
    int32_t *table = lkvi_realloc(m->arena, s->table, capacity * sizeof *table);
    if (!table)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for a table of %llu blocks",
                         (unsigned long long)capacity);
    s->table = table;
    s->capacity = (uint32_t)capacity;
    return LKV_OK;
}

/* The last first: so that a chain's leaf is its oldest. */
void lkvi_seq_cut(struct lkvi_manager *m, struct lkvi_seq *s, uint32_t from, uint64_t fence)
{
    for (uint32_t i = s->num_blocks; i-- > from;) {
        if (i >= from + 8)
            __builtin_prefetch(&m->cold[s->table[i - 8]], 1);
        lkvi_drop(m, (uint32_t)s->table[i], fence);
    }
    m->sums.room_live -= (uint64_t)(s->num_blocks - from) << m->block_shift;
    s->num_blocks = from;
}

lkv_status lkvi_seq_free(struct lkvi_manager *m, lkv_seq seq, uint64_t fence)
{
    struct lkvi_seq *s = NULL;
    lkvi_lock(m);
    lkv_status status = lkvi_seq_find(m, seq, &s);
    if (status != LKV_OK)
        return lkvi_unlock(m, status);
    m->sums.seqs_live--;
    m->sums.tokens_live -= s->length;
    m->counts.reserved -= s->reserved_blocks;
    m->sums.seqs_swapped -= s->swapped;
    lkvi_seq_cut(m, s, 0, fence);
    lkvi_seq_close(m, s);
    return lkvi_unlock(m, LKV_OK);
}

/* After blocks were dropped a whole admission gets its promise back, as far as there is room: a
 * block that waits for its fence or that a fork keeps cannot be promised twice. */
static void restore_promise(struct lkvi_manager *m, struct lkvi_seq *s)
{
    uint64_t want = lkvi_blocks_for(m, s->max_tokens) - s->num_blocks - s->reserved_blocks;
    uint64_t have = lkvi_free_now(m);
    uint32_t more = (uint32_t)(want < have ? want : have);
    s->reserved_blocks += more;
    m->counts.reserved += more;
}

/* The anchor of the last block that stays published; unknown (a copy of this block was published
 * by another sequence): commit starts again from the first block. */
static void lower_anchor(struct lkvi_manager *m, struct lkvi_seq *s)
{
    uint32_t whole = (uint32_t)(s->committed >> m->block_shift);
    if (whole >= s->published)
        return;
    s->published = 0;
    if (!whole)
        return;
    uint32_t b = (uint32_t)s->table[whole - 1];
    if (!(m->blocks[b].flags & LKVI_INDEXED))
        return;
    s->published = whole;
    s->anchor = b;
    s->anchor_generation = m->blocks[b].generation;
}

/* Tokens beyond the length will be others, unless somebody else has them too. */
static void forget_tail(struct lkvi_manager *m, const struct lkvi_seq *s)
{
    uint64_t at = s->length & (m->block_tokens - 1);
    if (!at)
        return;
    uint32_t b = (uint32_t)s->table[s->length >> m->block_shift];
    if (m->blocks[b].refs == 1 && !(m->blocks[b].flags & LKVI_INDEXED))
        lkvi_side_written(m, b, at, m->block_tokens);
}

lkv_status lkvi_seq_truncate(struct lkvi_manager *m, lkv_seq seq, uint64_t length, uint64_t fence)
{
    struct lkvi_seq *s = NULL;
    lkvi_lock(m);
    lkv_status status = lkvi_seq_resident(m, seq, &s);
    if (status == LKV_OK && length > s->length)
        status = lkvi_fail(LKV_E_INVALID, "length is %llu; need at most the sequence's %llu",
                           (unsigned long long)length, (unsigned long long)s->length);
    if (status != LKV_OK)
        return lkvi_unlock(m, status);
    m->sums.tokens_live -= s->length - length;
    s->length = length;
    if (s->committed > length)
        s->committed = length;
    lkvi_seq_cut(m, s, (uint32_t)lkvi_blocks_for(m, length), fence);
    if (m->sides)
        forget_tail(m, s);
    if (s->dirty_from > s->num_blocks)
        s->dirty_from = s->num_blocks;
    lower_anchor(m, s);
    if (s->whole)
        restore_promise(m, s);
    return lkvi_unlock(m, LKV_OK);
}

static lkv_status fork_locked(struct lkvi_manager *m, struct lkvi_seq *s, lkv_seq *child)
{
    struct lkvi_seq *c = NULL;
    uint32_t num = (uint32_t)lkvi_blocks_for(m, s->length);
    LKV_TRY(lkvi_seq_open(m, &c));
    LKV_TRY(lkvi_seq_ensure(m, c, num));
    for (uint32_t i = 0; i < num; i++) {
        c->table[i] = s->table[i];
        lkvi_claim(m, (uint32_t)s->table[i]);
    }
    c->keys = s->keys;
    if (c->keys)
        c->keys->refs++;
    c->num_blocks = num;
    c->length = s->length;
    c->committed = s->committed;
    c->max_tokens = s->max_tokens;
    c->hit_tokens = s->hit_tokens;
    c->published = s->published;
    c->anchor = s->anchor;
    c->anchor_generation = s->anchor_generation;
    c->no_publish = s->no_publish;
    c->priority = s->priority;
    c->priority_until = s->priority_until;
    *child = lkvi_seq_start(m, c);
    c->epoch = s->epoch;
    return LKV_OK;
}

lkv_status lkvi_seq_fork(struct lkvi_manager *m, lkv_seq seq, lkv_seq *child)
{
    struct lkvi_seq *s = NULL;
    lkvi_lock(m);
    lkv_status status = lkvi_seq_resident(m, seq, &s);
    return lkvi_unlock(m, status == LKV_OK ? fork_locked(m, s, child) : status);
}

lkv_status lkvi_seq_query(struct lkvi_manager *m, lkv_seq seq, lkv_seq_info *info)
{
    struct lkvi_seq *s = NULL;
    lkvi_lock(m);
    lkv_status status = lkvi_seq_find(m, seq, &s);
    if (status != LKV_OK)
        return lkvi_unlock(m, status);
    info->length = s->length;
    info->committed = s->committed;
    info->room = (uint64_t)s->num_blocks << m->block_shift;
    info->num_blocks = s->num_blocks;
    info->hit_tokens = s->hit_tokens;
    info->max_tokens = s->max_tokens;
    info->host_blocks = s->swapped ? s->num_blocks : 0;
    return lkvi_unlock(m, LKV_OK);
}

lkv_status lkvi_seq_table(struct lkvi_manager *m, lkv_seq seq, int32_t *blocks, uint64_t capacity,
                          uint64_t *num_blocks)
{
    struct lkvi_seq *s = NULL;
    lkvi_lock(m);
    lkv_status status = lkvi_seq_resident(m, seq, &s);
    if (status != LKV_OK)
        return lkvi_unlock(m, status);
    uint64_t n = s->num_blocks < capacity ? s->num_blocks : capacity;
    if (n)
        memcpy(blocks, s->table, n * sizeof *blocks);
    *num_blocks = s->num_blocks;
    return lkvi_unlock(m, LKV_OK);
}

/* Leading blocks that a and b name both, at most `most`. */
static uint64_t shared_blocks(const struct lkvi_seq *a, const struct lkvi_seq *b, uint64_t most)
{
    uint64_t n = 0;
    while (n < most && a->table[n] == b->table[n])
        n++;
    return n;
}

static lkv_status common_locked(struct lkvi_manager *m, const lkv_seq *seqs, uint64_t num_seqs,
                                uint64_t *num_blocks)
{
    struct lkvi_seq *first = NULL, *s = NULL;
    uint64_t common = UINT64_MAX;
    for (uint64_t i = 0; i < num_seqs; i++) {
        LKV_TRY(lkvi_seq_resident(m, seqs[i], &s));
        uint64_t whole = s->length >> m->block_shift;
        first = i ? first : s;
        common = shared_blocks(first, s, whole < common ? whole : common);
    }
    *num_blocks = common;
    return LKV_OK;
}

lkv_status lkvi_seq_common(struct lkvi_manager *m, const lkv_seq *seqs, uint64_t num_seqs,
                           uint64_t *num_blocks)
{
    if (!num_seqs || !seqs)
        return lkvi_fail(LKV_E_INVALID, "%llu sequences at %p; need at least one at an address",
                         (unsigned long long)num_seqs, (const void *)seqs);
    lkvi_lock(m);
    return lkvi_unlock(m, common_locked(m, seqs, num_seqs, num_blocks));
}
