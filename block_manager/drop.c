/* In: a key. Out: a prefix cache without the blocks whose prefix carries it: an adapter that was
 * loaded again under its old name, a tenant that left.
 * Where a block carries the key, everything below it goes too. Blocks in use lose their identity
 * and keep their data, and their sequences publish nothing more: what they hold belongs to the
 * past. */
#include "block_manager/state.h"

static void silence_sequences(struct lkvi_manager *m, const lkv_key *key)
{
    for (uint32_t i = 0; i < m->max_seqs; i++)
        if (m->seqs[i].live && lkvi_keys_have(m->seqs[i].keys, key))
            m->seqs[i].no_publish = 1;
}

/* Neighbours tend to share their key set: the last answer is kept. */
static uint64_t drop_blocks(struct lkvi_manager *m, const lkv_key *key)
{
    uint64_t before = m->counts.cached;
    uint32_t last = LKVI_KEYSET_NONE;
    int carries = 0;
    for (uint32_t b = 1; b <= m->num_ids; b++) {
        uint32_t set = m->blocks[b].keyset;
        if (!set)
            continue;
        if (set != last)
            carries = lkvi_keyset_has(&m->keysets, set, key);
        last = carries ? LKVI_KEYSET_NONE : set; /* a set may die with its last block */
        if (carries)
            lkvi_detach_tree(m, b);
    }
    return before - m->counts.cached;
}

lkv_status lkvi_manager_drop(struct lkvi_manager *m, const lkv_key *key, uint64_t *dropped)
{
    lkvi_lock(m);
    silence_sequences(m, key);
    m->events.reason = LKV_REMOVED_DROPPED;
    *dropped = drop_blocks(m, key);
    m->events.reason = 0;
    return lkvi_unlock(m, LKV_OK);
}
