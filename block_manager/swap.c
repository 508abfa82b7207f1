/* In: a sequence that must make room, or that comes back. Out: its blocks in the other tier, all of
 * them or none.
 * A sequence takes blocks of its own over there, whoever shares its blocks here, so nothing that
 * others do can keep it from coming back. The reference of its table passes to the copy, which
 * holds the source until its fence has passed. Room without a known token is not taken along. */
#include "block_manager/state.h"

/* ---- out */

/* The verdict on taking `needed` host blocks; the result counts host blocks. */
static lkv_status host_room(const struct lkvi_manager *m, uint64_t needed, lkv_admission *result)
{
    uint64_t now = lkvi_host_room(m), later = now + m->host.state[LKVI_PENDING];
    result->needed = needed;
    result->free_now = now;
    result->free_after_fence = later;
    if (needed <= now)
        return LKV_OK;
    return lkvi_fail(needed <= later ? LKV_E_WAIT_PENDING : LKV_E_NO_HOST_SPACE,
                     "need %llu host blocks; %llu now, %llu once fences pass, of %u",
                     (unsigned long long)needed, (unsigned long long)now, (unsigned long long)later,
                     m->host.num_blocks);
}

static void move_out(struct lkvi_manager *m, struct lkvi_seq *s, uint32_t i, uint64_t after)
{
    uint32_t b = (uint32_t)s->table[i], h = lkvi_host_take(m);
    memcpy(lkvi_block_tokens(m, h), lkvi_block_tokens(m, b), m->block_tokens * sizeof(int32_t));
    lkvi_hold(m, h, LKVI_IN_USE);
    s->table[i] = (int32_t)h;
    if (m->sides)
        lkvi_side_copied(m, b, h, m->block_tokens);
    if (after > m->passed_fence)
        lkvi_held_add(m, b, h, LKVI_COPY_SWAP_OUT, after);
    else
        lkvi_copies_add(m, b, h, LKVI_COPY_SWAP_OUT);
}

static lkv_status swap_out(struct lkvi_manager *m, lkv_seq seq, uint64_t fence,
                           lkv_admission *result)
{
    struct lkvi_seq *s;
    LKV_TRY(lkvi_seq_resident(m, seq, &s));
    uint32_t num = (uint32_t)lkvi_blocks_for(m, s->length);
    LKV_TRY(host_room(m, num, result));
    LKV_TRY(lkvi_held_ensure(m, num));
    LKV_TRY(lkvi_copies_ensure(m, num));
    lkvi_seq_cut(m, s, num, fence);
    for (uint32_t i = 0; i < num; i++)
        move_out(m, s, i, fence);
    m->counts.reserved -= s->reserved_blocks;
    s->reserved_blocks = 0;
    s->swapped = 1;
    s->dirty_from = 0;
    m->sums.seqs_swapped++;
    result->num_blocks = num;
    return LKV_OK;
}

lkv_status lkvi_seq_swap_out(struct lkvi_manager *m, lkv_seq seq, uint64_t fence,
                             lkv_admission *result)
{
    lkv_admission unwanted = {.size = sizeof unwanted};
    lkvi_lock(m);
    return lkvi_unlock(m, swap_out(m, seq, fence, result ? result : &unwanted));
}

/* ---- in */

/* Nothing is read on the host before it has arrived there. */
static lkv_status arrived(const struct lkvi_manager *m, const struct lkvi_seq *s)
{
    for (uint32_t i = 0; i < s->num_blocks; i++) {
        uint32_t h = (uint32_t)s->table[i];
        if (m->blocks[h].flags & LKVI_COPY_TARGET)
            return lkvi_fail(LKV_E_WAIT_PENDING, "block %u of %u still waits to be copied out", i,
                             s->num_blocks);
        if (m->cold[h].fence > m->passed_fence)
            return lkvi_fail(LKV_E_WAIT_PENDING,
                             "block %u of %u is copied out behind fence %llu; %llu has passed", i,
                             s->num_blocks, (unsigned long long)m->cold[h].fence,
                             (unsigned long long)m->passed_fence);
    }
    return LKV_OK;
}

static lkv_status swap_in(struct lkvi_manager *m, lkv_seq seq, lkv_admission *result)
{
    struct lkvi_seq *s;
    LKV_TRY(lkvi_seq_find(m, seq, &s));
    if (!s->swapped)
        return lkvi_fail(LKV_E_INVALID, "sequence %#llx is not swapped out",
                         (unsigned long long)seq);
    uint64_t promise = s->whole ? lkvi_blocks_for(m, s->max_tokens) - s->num_blocks : 0;
    lkvi_room(m, 0, 0, 0, result);
    result->needed = s->num_blocks;
    LKV_TRY(arrived(m, s));
    lkv_status room = lkvi_room(m, s->num_blocks + promise, 0, 0, result);
    result->needed = s->num_blocks;
    LKV_TRY(room);
    LKV_TRY(lkvi_copies_ensure(m, s->num_blocks));
    for (uint32_t i = 0; i < s->num_blocks; i++) {
        uint32_t h = (uint32_t)s->table[i], b;
        lkvi_take_blocks(m, &b, 1, LKVI_IN_USE);
        memcpy(lkvi_block_tokens(m, b), lkvi_block_tokens(m, h), m->block_tokens * sizeof(int32_t));
        s->table[i] = (int32_t)b;
        lkvi_copies_add(m, h, b, LKVI_COPY_SWAP_IN);
        if (m->sides)
            lkvi_side_copied(m, h, b, m->block_tokens);
    }
    m->counts.reserved += promise;
    s->reserved_blocks = (uint32_t)promise;
    s->swapped = 0;
    m->sums.seqs_swapped--;
    result->num_blocks = s->num_blocks;
    return LKV_OK;
}

lkv_status lkvi_seq_swap_in(struct lkvi_manager *m, lkv_seq seq, lkv_admission *result)
{
    lkv_admission unwanted = {.size = sizeof unwanted};
    lkvi_lock(m);
    return lkvi_unlock(m, swap_in(m, seq, result ? result : &unwanted));
}
