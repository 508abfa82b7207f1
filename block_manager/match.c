/* In: a prompt. Out: its longest cached prefix, as a walk over the index or as a ticket.
 * A ticket names the last block with its generation: leaf-first eviction keeps every ancestor of an
 * indexed block indexed, so that one handle proves the whole chain. At most num_tokens - 1 tokens
 * hit, because the last one must run to give logits. */
#include "block_manager/state.h"

lkv_status lkvi_prompt_check(const lkv_prompt *prompt)
{
    if (prompt->num_tokens && !prompt->tokens)
        return lkvi_fail(LKV_E_INVALID, "tokens is NULL; need %llu token ids",
                         (unsigned long long)prompt->num_tokens);
    if (prompt->num_tokens > UINT64_MAX >> 2)
        return lkvi_fail(LKV_E_INVALID, "num_tokens is %llu; need at most 2^62 - 1",
                         (unsigned long long)prompt->num_tokens);
    return LKV_OK;
}

/* The tokens of the block after the whole hits that may be copied instead of computed. */
static lkv_status walk_partial(struct lkvi_manager *m, const lkv_prompt *prompt,
                               const struct lkvi_keys *keys, struct lkvi_hits *hits)
{
    uint64_t at = hits->blocks << m->block_shift, left = prompt->num_tokens - 1 - at;
    uint32_t limit = left < m->block_tokens ? (uint32_t)left : m->block_tokens, keyset;
    if (!limit || (m->flags & LKV_POOL_NO_PARTIAL) || (prompt->flags & LKV_PROMPT_NO_PARTIAL))
        return LKV_OK;
    LKV_TRY(lkvi_keyset_find(&m->keysets, keys, at, m->block_tokens, &keyset));
    hits->partial = lkvi_partial_child(m, hits->last, prompt->tokens + at, limit, keyset,
                                       &hits->partial_tokens);
    return LKV_OK;
}

lkv_status lkvi_walk(struct lkvi_manager *m, const lkv_prompt *prompt, const struct lkvi_keys *keys,
                     int32_t *table, struct lkvi_hits *hits)
{
    memset(hits, 0, sizeof *hits);
    if (!prompt->num_tokens || (prompt->flags & LKV_PROMPT_NO_MATCH))
        return LKV_OK;
    uint64_t usable = (prompt->num_tokens - 1) >> m->block_shift;
    while (hits->blocks < usable) {
        uint64_t at = hits->blocks << m->block_shift;
        uint32_t keyset;
        LKV_TRY(lkvi_keyset_find(&m->keysets, keys, at, m->block_tokens, &keyset));
        uint32_t b = lkvi_child(m, hits->last, prompt->tokens + at, keyset);
        if (!b)
            break;
        if (table)
            table[hits->blocks] = (int32_t)b;
        hits->last = b;
        hits->blocks++;
        hits->on_host += (uint64_t)lkvi_on_host(m, b);
    }
    return walk_partial(m, prompt, keys, hits);
}

static lkv_status match_locked(struct lkvi_manager *m, const lkv_prompt *prompt, lkv_match *out)
{
    struct lkvi_keys *keys;
    struct lkvi_hits hits;
    LKV_TRY(lkvi_prompt_check(prompt));
    LKV_TRY(lkvi_keys_parse(&m->keysets, prompt, &keys));
    LKV_TRY(lkvi_walk(m, prompt, keys, NULL, &hits));
    out->hit_blocks = hits.blocks;
    out->host_hit_blocks = hits.on_host;
    out->partial_hit_tokens = hits.partial_tokens;
    out->hit_tokens = (hits.blocks << m->block_shift) + hits.partial_tokens;
    out->ticket[0] = (uint64_t)m->blocks[hits.last].generation << 32 | hits.last;
    out->ticket[1] = (uint64_t)m->blocks[hits.partial].generation << 32 | hits.partial;
    out->ticket[2] = hits.blocks;
    out->ticket[3] = (uint64_t)m->epoch << 32 | hits.partial_tokens;
    return LKV_OK;
}

lkv_status lkvi_seq_match(struct lkvi_manager *m, const lkv_prompt *prompt, lkv_match *out)
{
    lkvi_lock(m);
    return lkvi_unlock(m, match_locked(m, prompt, out));
}

static lkv_status stale(void)
{
    return lkvi_fail(LKV_E_STALE_HIT,
                     "the ticket does not hold for this prompt any more; match it again");
}

static int ticket_in_range(const struct lkvi_manager *m, const lkv_prompt *prompt,
                           const lkv_match *match)
{
    uint64_t blocks = match->ticket[2], partial = (uint32_t)match->ticket[3];
    if (match->ticket[3] >> 32 != m->epoch || !prompt->num_tokens)
        return 0;
    if (blocks > (prompt->num_tokens - 1) >> m->block_shift || partial > m->block_tokens)
        return 0;
    if ((blocks << m->block_shift) + partial > prompt->num_tokens - 1)
        return 0;
    return lkvi_holds(m, (uint32_t)match->ticket[0], (uint32_t)(match->ticket[0] >> 32)) &&
           lkvi_holds(m, (uint32_t)match->ticket[1], (uint32_t)(match->ticket[1] >> 32)) &&
           !partial == !(uint32_t)match->ticket[1];
}

static lkv_status redeem_partial(struct lkvi_manager *m, const lkv_prompt *prompt,
                                 const struct lkvi_keys *keys, struct lkvi_hits *hits)
{
    uint64_t at = hits->blocks << m->block_shift;
    const struct lkvi_block *block = &m->blocks[hits->partial];
    uint32_t keyset;
    if (!hits->partial)
        return LKV_OK;
    LKV_TRY(lkvi_keyset_find(&m->keysets, keys, at, m->block_tokens, &keyset));
    if (block->parent != hits->last || block->keyset != keyset ||
        memcmp(lkvi_block_tokens(m, hits->partial), prompt->tokens + at,
               hits->partial_tokens * sizeof(int32_t)))
        return stale();
    return LKV_OK;
}

lkv_status lkvi_redeem(struct lkvi_manager *m, const lkv_prompt *prompt,
                       const struct lkvi_keys *keys, const lkv_match *match, int32_t *table,
                       struct lkvi_hits *hits)
{
    memset(hits, 0, sizeof *hits);
    if (!prompt->num_tokens && !match->ticket[2])
        return LKV_OK;
    if (!ticket_in_range(m, prompt, match))
        return stale();
    hits->blocks = match->ticket[2];
    hits->last = (uint32_t)match->ticket[0];
    hits->partial = (uint32_t)match->ticket[1];
    hits->partial_tokens = (uint32_t)match->ticket[3];
    uint32_t b = hits->last;
    for (uint64_t i = hits->blocks; i-- > 0; b = m->blocks[b].parent) {
        uint64_t at = i << m->block_shift;
        uint32_t keyset, parent = m->blocks[b].parent;
        __builtin_prefetch(lkvi_block_tokens(m, parent));
        __builtin_prefetch(&m->blocks[m->blocks[parent].parent]);
        LKV_TRY(lkvi_keyset_find(&m->keysets, keys, at, m->block_tokens, &keyset));
        if (!b || !lkvi_same(m, b, parent, prompt->tokens + at, keyset))
            return stale();
        table[i] = (int32_t)b;
        hits->on_host += (uint64_t)lkvi_on_host(m, b);
    }
    return b ? stale() : redeem_partial(m, prompt, keys, hits);
}
