/* In: "the data of tokens [0, upto) is written". Out: whole blocks in the prefix index.
 * Nothing is published before its data is declared written, so nobody can hit a block that an
 * abort leaves empty. Where another sequence has published the same block already, this one keeps
 * its own copy out of the index and hangs its next blocks under the published one (the anchor). */
#include "block_manager/state.h"

static int may_publish(const struct lkvi_manager *m, const struct lkvi_seq *s)
{
    return !(m->flags & LKV_POOL_NO_CACHE) && !s->no_publish && !s->swapped && s->epoch == m->epoch;
}

static int has_spans(const struct lkvi_seq *s)
{
    return s->keys && s->keys->num_spans > s->keys->num_whole;
}

static uint32_t *own_keyset(struct lkvi_manager *m, const struct lkvi_seq *s, uint32_t k)
{
    struct lkvi_block *block = &m->blocks[s->table[k]];
    return block->flags & LKVI_INDEXED ? NULL : &block->keyset;
}

/* Key sets of the blocks to come are made before anything is published: this may fail. */
static lkv_status make_keysets(struct lkvi_manager *m, struct lkvi_seq *s, uint32_t end)
{
    lkv_status status = LKV_OK;
    uint32_t k = s->published;
    for (; k < end && status == LKV_OK; k++) {
        uint32_t *set = own_keyset(m, s, k);
        if (set)
            status = lkvi_keyset_intern(&m->keysets, s->keys, (uint64_t)k << m->block_shift,
                                        m->block_tokens, set);
    }
    if (status == LKV_OK)
        return LKV_OK;
    *own_keyset(m, s, --k) = LKVI_KEYSET_NONE;
    while (k-- > s->published) {
        uint32_t *set = own_keyset(m, s, k);
        if (!set)
            continue;
        lkvi_keyset_release(&m->keysets, *set);
        *set = LKVI_KEYSET_NONE;
    }
    return status;
}

/* The indexed block that stands for block k of the sequence: itself, its twin, or itself from now
 * on. */
static uint32_t publish_one(struct lkvi_manager *m, struct lkvi_seq *s, uint32_t k, uint32_t parent)
{
    uint32_t b = (uint32_t)s->table[k];
    struct lkvi_block *block = &m->blocks[b];
    if (block->flags & LKVI_INDEXED)
        return b;
    if (!has_spans(s) && s->keys) {
        block->keyset = s->keys->whole_set;
        lkvi_keyset_retain(&m->keysets, block->keyset);
    }
    uint32_t twin = lkvi_child(m, parent, lkvi_block_tokens(m, b), block->keyset);
    if (!twin) {
        lkvi_order_raise(m, b, s->priority, s->priority_until);
        lkvi_publish(m, b, parent, block->keyset);
        return b;
    }
    lkvi_keyset_release(&m->keysets, block->keyset);
    block->keyset = LKVI_KEYSET_NONE;
    if (!lkvi_on_host(m, twin))
        return twin;
    lkvi_order_raise(m, b, s->priority, s->priority_until);
    lkvi_host_promote(m, twin, b); /* computed again: no copy is needed */
    return b;
}

static lkv_status publish(struct lkvi_manager *m, struct lkvi_seq *s, uint32_t end)
{
    if (s->published && !lkvi_holds(m, s->anchor, s->anchor_generation))
        s->published = 0;
    if (has_spans(s))
        LKV_TRY(make_keysets(m, s, end));
    uint32_t parent = s->published ? s->anchor : 0;
    for (uint32_t k = s->published; k < end; k++)
        parent = publish_one(m, s, k, parent);
    s->published = end;
    s->anchor = parent;
    s->anchor_generation = m->blocks[parent].generation;
    return LKV_OK;
}

static lkv_status commit_locked(struct lkvi_manager *m, lkv_seq seq, uint64_t upto)
{
    struct lkvi_seq *s;
    LKV_TRY(lkvi_seq_find(m, seq, &s));
    if (upto > s->length)
        return lkvi_fail(LKV_E_INVALID, "upto is %llu; need at most the sequence's length %llu",
                         (unsigned long long)upto, (unsigned long long)s->length);
    if (upto <= s->committed)
        return LKV_OK;
    uint32_t end = (uint32_t)(upto >> m->block_shift);
    if (end > s->published && may_publish(m, s))
        LKV_TRY(publish(m, s, end));
    s->committed = upto;
    return LKV_OK;
}

lkv_status lkvi_seq_commit(struct lkvi_manager *m, lkv_seq seq, uint64_t upto)
{
    lkvi_lock(m);
    return lkvi_unlock(m, commit_locked(m, seq, upto));
}
