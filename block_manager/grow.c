/* In: a sequence and a number of tokens. Out: room for them at its end, in blocks that nobody else
 * reads.
 * The tail block is written only if it is private: neither shared (a fork, a pin, a copy that
 * still reads it) nor in the index. Otherwise a fresh block takes its place and a copy is queued;
 * the sequence's reference to the old one passes to the copy, which holds it until it has run. */
#include "block_manager/state.h"

static int tail_is_shared(const struct lkvi_manager *m, const struct lkvi_seq *s)
{
    if (!(s->length & (m->block_tokens - 1)))
        return 0;
    const struct lkvi_block *tail = &m->blocks[s->table[s->length >> m->block_shift]];
    return tail->refs > 1 || (tail->flags & LKVI_INDEXED);
}

static lkv_status limits(const struct lkvi_manager *m, const struct lkvi_seq *s, uint64_t n)
{
    uint64_t limit = s->max_tokens ? s->max_tokens : UINT64_MAX >> 1;
    if (n > limit || s->length > limit - n)
        return lkvi_fail(LKV_E_INVALID, "length %llu + %llu tokens is beyond max_tokens %llu",
                         (unsigned long long)s->length, (unsigned long long)n,
                         (unsigned long long)limit);
    if (lkvi_blocks_for(m, s->length + n) > m->base_blocks)
        return lkvi_fail(LKV_E_NEVER_FITS, "%llu tokens need %llu blocks; the pool has %u for KV",
                         (unsigned long long)(s->length + n),
                         (unsigned long long)lkvi_blocks_for(m, s->length + n), m->base_blocks);
    return LKV_OK;
}

lkv_status lkvi_grow_plan(struct lkvi_manager *m, struct lkvi_seq *s, uint64_t n,
                          struct lkvi_growth *total, lkv_admission *result)
{
    LKV_TRY(limits(m, s, n));
    uint64_t want = lkvi_blocks_for(m, s->length + n);
    s->plan_fresh = want > s->num_blocks ? (uint32_t)(want - s->num_blocks) : 0;
    s->plan_copy = n && tail_is_shared(m, s);
    total->fresh += s->plan_fresh;
    total->copies += s->plan_copy;
    total->from_reserve += s->plan_fresh < s->reserved_blocks ? s->plan_fresh : s->reserved_blocks;
    if (s->plan_fresh || s->plan_copy)
        LKV_TRY(lkvi_room(m, total->fresh + total->copies, total->from_reserve, 0, result));
    return s->plan_fresh ? lkvi_seq_ensure(m, s, want) : LKV_OK;
}

static void copy_tail(struct lkvi_manager *m, struct lkvi_seq *s)
{
    uint32_t i = (uint32_t)(s->length >> m->block_shift), from = (uint32_t)s->table[i], to;
    lkvi_take_blocks(m, &to, 1, LKVI_IN_USE);
    memcpy(lkvi_block_tokens(m, to), lkvi_block_tokens(m, from),
           (s->length & (m->block_tokens - 1)) * sizeof(int32_t));
    s->table[i] = (int32_t)to;
    lkvi_copies_add(m, from, to, LKVI_COPY_BLOCK);
    if (m->sides)
        lkvi_side_copied(m, from, to, s->length & (m->block_tokens - 1));
    if (i < s->dirty_from)
        s->dirty_from = i;
}

static void take_fresh(struct lkvi_manager *m, struct lkvi_seq *s)
{
    uint32_t from_reserve = s->plan_fresh < s->reserved_blocks ? s->plan_fresh : s->reserved_blocks;
    s->reserved_blocks -= from_reserve;
    m->counts.reserved -= from_reserve;
    lkvi_take_blocks(m, (uint32_t *)s->table + s->num_blocks, s->plan_fresh, LKVI_IN_USE);
    s->num_blocks += s->plan_fresh;
    m->sums.room_live += (uint64_t)s->plan_fresh << m->block_shift;
}

static void write_tokens(struct lkvi_manager *m, struct lkvi_seq *s, const int32_t *tokens,
                         uint64_t n)
{
    while (n) {
        uint32_t at = (uint32_t)(s->length & (m->block_tokens - 1)), room = m->block_tokens - at;
        uint32_t now = n < room ? (uint32_t)n : room;
        uint32_t b = (uint32_t)s->table[s->length >> m->block_shift];
        memcpy(lkvi_block_tokens(m, b) + at, tokens, now * sizeof *tokens);
        if (m->sides)
            lkvi_side_written(m, b, at, at + now);
        s->length += now;
        m->sums.tokens_live += now;
        tokens += now;
        n -= now;
    }
}

void lkvi_grow(struct lkvi_manager *m, struct lkvi_seq *s, const int32_t *tokens, uint64_t n)
{
    if (s->plan_copy)
        copy_tail(m, s);
    if (s->plan_fresh)
        take_fresh(m, s);
    if (tokens)
        write_tokens(m, s, tokens, n);
}

static lkv_status grow_call(struct lkvi_manager *m, lkv_seq seq, const int32_t *tokens, uint64_t n,
                            lkv_admission *result)
{
    struct lkvi_seq *s;
    struct lkvi_growth total = {0, 0, 0};
    LKV_TRY(lkvi_seq_resident(m, seq, &s));
    lkvi_room(m, 0, 0, 0, result);
    LKV_TRY(lkvi_grow_plan(m, s, n, &total, result));
    LKV_TRY(lkvi_copies_ensure(m, total.copies));
    lkvi_grow(m, s, tokens, n);
    result->num_blocks = s->num_blocks;
    return LKV_OK;
}

/* Callers may leave the result out. */
static lkv_status grow_locked(struct lkvi_manager *m, lkv_seq seq, const int32_t *tokens,
                              uint64_t n, lkv_admission *result)
{
    lkv_admission unwanted = {.size = sizeof unwanted};
    lkvi_lock(m);
    return lkvi_unlock(m, grow_call(m, seq, tokens, n, result ? result : &unwanted));
}

lkv_status lkvi_seq_append(struct lkvi_manager *m, lkv_seq seq, const int32_t *tokens, uint64_t n,
                           lkv_admission *result)
{
    if (n && !tokens)
        return lkvi_fail(LKV_E_INVALID, "tokens is NULL; need %llu token ids",
                         (unsigned long long)n);
    return grow_locked(m, seq, tokens, n, result);
}

lkv_status lkvi_seq_reserve(struct lkvi_manager *m, lkv_seq seq, uint64_t n, lkv_admission *result)
{
    return grow_locked(m, seq, NULL, n, result);
}
