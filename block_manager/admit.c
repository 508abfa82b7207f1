/* In: a prompt and limits. Out: a sequence with its hits and blocks for the rest, or a reason.
 * Everything that can fail comes first: the walk, the verdict on room (which counts idle hits as
 * blocks to be taken, so none is both a hit and a victim), memory. Then the hits are claimed
 * before the first block is evicted. A hit on the host needs a block here, and a copy into it. */
#include "block_manager/state.h"

struct plan {
    struct lkvi_hits hits;
    uint64_t want;    /* blocks of the table */
    uint64_t promise; /* blocks that LKV_ADMIT_WHOLE sets aside */
    uint64_t spare;   /* blocks that the watermark leaves */
    uint64_t idle, pending;
};

static lkv_status plan_limits(const struct lkvi_manager *m, const lkv_prompt *prompt,
                              const lkv_admit_args *args, struct plan *plan)
{
    uint64_t room = prompt->num_tokens;
    if (args->flags & ~(uint32_t)LKV_ADMIT_WHOLE)
        return lkvi_fail(LKV_E_INVALID, "admit flags are %#x; known are %#x", args->flags,
                         LKV_ADMIT_WHOLE);
    if (args->priority > LKVI_PRIORITY_MAX)
        return lkvi_fail(LKV_E_INVALID, "priority is %u; need at most %d", args->priority,
                         LKVI_PRIORITY_MAX);
    if (args->room_tokens > room)
        room = args->room_tokens;
    if (args->max_tokens && room > args->max_tokens)
        return lkvi_fail(LKV_E_INVALID, "%llu tokens of room are beyond max_tokens %llu",
                         (unsigned long long)room, (unsigned long long)args->max_tokens);
    if ((args->flags & LKV_ADMIT_WHOLE) && !args->max_tokens)
        return lkvi_fail(LKV_E_INVALID, "LKV_ADMIT_WHOLE without max_tokens; need a final length");
    uint64_t most = args->max_tokens ? args->max_tokens : room;
    if (lkvi_blocks_for(m, most) > m->base_blocks)
        return lkvi_fail(LKV_E_NEVER_FITS, "%llu tokens need %llu blocks; the pool has %u for KV",
                         (unsigned long long)most, (unsigned long long)lkvi_blocks_for(m, most),
                         m->base_blocks);
    plan->want = lkvi_blocks_for(m, room);
    if (m->sums.seqs_live) /* what no pool of this size can leave: one block too many */
        plan->spare =
            args->watermark_blocks > m->num_blocks ? m->num_blocks + 1 : args->watermark_blocks;
    if (args->flags & LKV_ADMIT_WHOLE)
        plan->promise = lkvi_blocks_for(m, most) - plan->want;
    return LKV_OK;
}

static void count_hit(const struct lkvi_manager *m, uint32_t b, struct plan *plan)
{
    if (lkvi_on_host(m, b))
        return;
    plan->idle += m->blocks[b].state == LKVI_IDLE;
    plan->pending += m->blocks[b].state == LKVI_PENDING;
}

static lkv_status plan_room(const struct lkvi_manager *m, const int32_t *table, struct plan *plan,
                            lkv_admission *result)
{
    plan->idle = plan->pending = 0;
    for (uint64_t i = 0; i < plan->hits.blocks; i++)
        count_hit(m, (uint32_t)table[i], plan);
    if (plan->hits.partial)
        count_hit(m, plan->hits.partial, plan);
    uint64_t needed = plan->want - (plan->hits.blocks - plan->hits.on_host) + plan->idle;
    lkv_status status =
        lkvi_room(m, needed + plan->promise + plan->spare, 0, plan->pending, result);
    result->needed = needed + plan->promise;
    return status;
}

/* Holding a partial hit's source may be the one block too many: then do without it. */
static lkv_status plan_hits(struct lkvi_manager *m, const struct lkvi_seq *s, struct plan *plan,
                            lkv_admission *result)
{
    lkv_status status = plan_room(m, s->table, plan, result);
    if (status == LKV_OK || !plan->hits.partial)
        return status;
    plan->hits.partial = plan->hits.partial_tokens = 0;
    return plan_room(m, s->table, plan, result);
}

static void take_hits(struct lkvi_manager *m, const struct lkvi_seq *s, const lkv_admit_args *args,
                      const struct plan *plan)
{
    uint64_t here = plan->hits.blocks - plan->hits.on_host;
    for (uint64_t i = 0; i < here; i++) {
        if (i + 4 < here)
            __builtin_prefetch(&m->cold[s->table[i + 4]], 1);
        uint32_t b = (uint32_t)s->table[i];
        lkvi_claim(m, b);
        if (m->blocks[m->blocks[b].parent].first_child != b)
            lkvi_touch_child(m, b);
        if (args->priority)
            lkvi_order_raise(m, b, (uint8_t)args->priority, args->priority_until);
    }
    for (uint64_t i = here; i < plan->hits.blocks; i++)
        lkvi_claim(m, (uint32_t)s->table[i]); /* the copies' references */
    if (plan->hits.partial)
        lkvi_claim(m, plan->hits.partial); /* likewise */
}

/* The first of the chain first: what is on the host alone hangs under what is here. */
static void promote_hits(struct lkvi_manager *m, struct lkvi_seq *s, const lkv_admit_args *args,
                         struct plan *plan)
{
    for (uint64_t i = plan->hits.blocks - plan->hits.on_host; i < plan->hits.blocks; i++) {
        uint32_t h = (uint32_t)s->table[i], b;
        lkvi_take_blocks(m, &b, 1, LKVI_IN_USE);
        lkvi_host_promote(m, h, b);
        lkvi_copies_add(m, h, b, LKVI_COPY_PROMOTE);
        lkvi_order_raise(m, b, (uint8_t)args->priority, args->priority_until);
        s->table[i] = (int32_t)b;
        plan->hits.last = b;
    }
}

static void fill_rest(struct lkvi_manager *m, struct lkvi_seq *s, const lkv_prompt *prompt,
                      uint64_t begin)
{
    uint64_t at = begin << m->block_shift;
    for (uint64_t i = begin; at < prompt->num_tokens; i++, at += m->block_tokens) {
        uint64_t left = prompt->num_tokens - at;
        memcpy(lkvi_block_tokens(m, (uint32_t)s->table[i]), prompt->tokens + at,
               (left < m->block_tokens ? left : m->block_tokens) * sizeof(int32_t));
    }
}

static void describe(struct lkvi_manager *m, struct lkvi_seq *s, const lkv_prompt *prompt,
                     const lkv_admit_args *args, const struct plan *plan)
{
    s->num_blocks = (uint32_t)plan->want;
    s->length = prompt->num_tokens;
    s->hit_tokens = (plan->hits.blocks << m->block_shift) + plan->hits.partial_tokens;
    s->committed = s->hit_tokens;
    s->max_tokens = args->max_tokens;
    s->whole = (args->flags & LKV_ADMIT_WHOLE) != 0;
    s->reserved_blocks = (uint32_t)plan->promise;
    s->no_publish = (prompt->flags & LKV_PROMPT_NO_PUBLISH) != 0;
    s->priority = (uint8_t)args->priority;
    s->priority_until = args->priority_until;
    s->published = (uint32_t)plan->hits.blocks;
    s->anchor = plan->hits.last;
    s->anchor_generation = m->blocks[plan->hits.last].generation;
}

static void execute(struct lkvi_manager *m, struct lkvi_seq *s, const lkv_prompt *prompt,
                    const lkv_admit_args *args, struct plan *plan)
{
    uint64_t hits = plan->hits.blocks;
    take_hits(m, s, args, plan);
    promote_hits(m, s, args, plan);
    if (plan->want > hits) /* an empty prompt has no table yet */
        lkvi_take_blocks(m, (uint32_t *)s->table + hits, plan->want - hits, LKVI_IN_USE);
    fill_rest(m, s, prompt, hits);
    if (plan->hits.partial)
        lkvi_copies_add(m, plan->hits.partial, (uint32_t)s->table[hits], LKVI_COPY_BLOCK);
    if (plan->hits.partial && m->sides)
        lkvi_side_copied(m, plan->hits.partial, (uint32_t)s->table[hits],
                         plan->hits.partial_tokens);
    describe(m, s, prompt, args, plan);
    m->counts.reserved += plan->promise;
    m->sums.hit_tokens += s->hit_tokens;
    m->sums.partial_hit_tokens += plan->hits.partial_tokens;
    m->sums.prompt_tokens += prompt->num_tokens;
}

static lkv_status admit_locked(struct lkvi_manager *m, const lkv_prompt *prompt,
                               const lkv_admit_args *args, lkv_admission *result, lkv_seq *out)
{
    struct plan plan = {.want = 0};
    struct lkvi_seq *s;
    struct lkvi_keys *keys, *kept;
    LKV_TRY(lkvi_prompt_check(prompt));
    lkvi_room(m, 0, 0, 0, result);
    LKV_TRY(plan_limits(m, prompt, args, &plan));
    LKV_TRY(lkvi_keys_parse(&m->keysets, prompt, &keys));
    LKV_TRY(lkvi_seq_open(m, &s));
    LKV_TRY(lkvi_seq_ensure(m, s, plan.want));
    if (args->match && !(prompt->flags & LKV_PROMPT_NO_MATCH))
        LKV_TRY(lkvi_redeem(m, prompt, keys, args->match, s->table, &plan.hits));
    else
        LKV_TRY(lkvi_walk(m, prompt, keys, s->table, &plan.hits));
    LKV_TRY(plan_hits(m, s, &plan, result));
    if (args->priority)
        LKV_TRY(lkvi_order_ensure(m));
    LKV_TRY(lkvi_copies_ensure(m, plan.hits.on_host + 1));
    LKV_TRY(lkvi_keys_keep(&m->keysets, keys, &kept));
    execute(m, s, prompt, args, &plan);
    s->keys = kept;
    *out = lkvi_seq_start(m, s);
    result->needed -= plan.promise;
    result->hit_tokens = s->hit_tokens;
    result->partial_hit_tokens = plan.hits.partial_tokens;
    result->host_hit_blocks = plan.hits.on_host;
    result->num_blocks = s->num_blocks;
    return LKV_OK;
}

lkv_status lkvi_seq_admit(struct lkvi_manager *m, const lkv_prompt *prompt,
                          const lkv_admit_args *args, lkv_admission *result, lkv_seq *out)
{
    static const lkv_admit_args plain = {.size = sizeof plain};
    lkv_admission unwanted = {.size = sizeof unwanted};
    lkvi_lock(m);
    return lkvi_unlock(
        m, admit_locked(m, prompt, args ? args : &plain, result ? result : &unwanted, out));
}
