/* In: a walk. Out: one operation on its sequences, in the library and in the twin: aborts,
 * duplicates, failures, partial commits, forks, stale tickets. */
#include "tests/stress/blocks_ops_state.h"

static const char *const adapters[3] = {"", "A", "B"};

/* Few different blocks, so that prompts share; sometimes one token differs. */
uint64_t ops_tokens(struct ops *o, int32_t *tokens, uint64_t max)
{
    uint64_t n = draw(o, (uint32_t)max + 1);
    for (uint64_t at = 0; at < n; at += o->block_tokens) {
        int32_t kind = (int32_t)draw(o, at ? 4 : 6);
        uint32_t odd = draw(o, 5) ? UINT32_MAX : draw(o, o->block_tokens);
        for (uint64_t t = at; t < n && t < at + o->block_tokens; t++)
            tokens[t] = kind + (t - at == odd ? 7 : 0);
    }
    return n;
}

void ops_prompt(lkv_prompt *prompt, lkv_key *key, const int32_t *tokens, uint64_t n,
                uint32_t adapter)
{
    *key = (lkv_key){adapters[adapter], 0, UINT64_MAX, LKV_KEY_ADAPTER, 1};
    *prompt = (lkv_prompt){.size = sizeof *prompt, .tokens = tokens, .num_tokens = n};
    if (adapter) {
        prompt->keys = key;
        prompt->num_keys = 1;
    }
}

void ops_look(struct ops *o, lkv_seq seq, struct ref_seen *seen)
{
    const uint32_t slot = (uint32_t)seq; /* a swapped sequence does not show its table */
    const struct lkvi_seq *s = slot ? &o->m->seqs[slot - 1] : NULL;
    seen->num_blocks = s ? s->num_blocks : 0;
    if (seen->num_blocks)
        memcpy(o->table, s->table, seen->num_blocks * sizeof *o->table);
    lkvi_manager_peek_copies(o->m, o->copies, REF_BLOCKS, &seen->num_copies);
    seen->table = o->table;
    seen->copies = o->copies;
}

const char *op_match(struct ops *o)
{
    struct ticket *t = &o->tickets[draw(o, NUM_TICKETS)];
    lkv_prompt prompt;
    lkv_key key;
    o->name = "match";
    t->n = ops_tokens(o, t->tokens, MAX_PROMPT);
    t->adapter = draw(o, 3);
    ops_prompt(&prompt, &key, t->tokens, t->n, t->adapter);
    lkv_status status = lkvi_seq_match(o->m, &prompt, &t->match);
    t->match.size = sizeof t->match;
    if (status != LKV_OK)
        return FAIL("match: status %d %s", status, lkv_last_error());
    return named(o, ref_match(&o->ref, t->tokens, t->n, adapters[t->adapter], &t->match));
}

/* A ticket must hold if the twin still finds at least as much; else it may only be stale. */
static int ticket_may_be_stale(struct ops *o, const struct ticket *t)
{
    return ref_hits(&o->ref, t->tokens, t->n, adapters[t->adapter], NULL) < t->match.hit_blocks ||
           t->match.partial_hit_tokens || t->match.ticket[3] >> 32 != (uint64_t)o->ref.epoch ||
           t->match.hit_blocks; /* an equal chain may have been evicted and published again */
}

static const char *admit_at(struct ops *o, uint32_t slot)
{
    static const struct ticket none;
    struct ticket fresh = none;
    struct ticket *t = &o->tickets[draw(o, NUM_TICKETS)];
    lkv_prompt prompt;
    lkv_key key;
    lkv_admission result = {.size = sizeof result};
    lkv_admit_args args = {.size = sizeof args};
    struct ref_seen seen = {.result = &result};
    lkv_seq seq = 0;
    o->name = "admit";
    if (o->seqs[slot])
        return NULL;
    int ticketed = t->match.size && draw(o, 2);
    if (!ticketed) {
        t = &fresh;
        t->n = ops_tokens(o, t->tokens, MAX_PROMPT);
        t->adapter = draw(o, 3);
    }
    ops_prompt(&prompt, &key, t->tokens, t->n, t->adapter);
    prompt.flags = draw(o, 8) ? 0 : LKV_PROMPT_NO_PUBLISH;
    args.match = ticketed ? &t->match : NULL;
    args.room_tokens = draw(o, 4) ? 0 : t->n + draw(o, 40);
    uint64_t room = args.room_tokens > t->n ? args.room_tokens : t->n;
    args.max_tokens = draw(o, 2) ? 0 : room + draw(o, 60) + 1;
    args.priority = draw(o, 2) ? 1 + draw(o, 3) : 0;
    args.priority_until = draw(o, 4) ? o->tick + 1 + draw(o, 40) * (draw(o, 2) ? 1 : 9) : 0;
    args.watermark_blocks = draw(o, 3) ? 0 : draw(o, 12);
    args.flags = args.max_tokens && draw(o, 2) ? LKV_ADMIT_WHOLE : 0;
    seen.status = lkvi_seq_admit(o->m, &prompt, &args, &result, &seq);
    if (seen.status == LKV_E_STALE_HIT)
        return ticketed && ticket_may_be_stale(o, t) ? NULL : FAIL("admit: stale without reason");
    ops_look(o, seq, &seen);
    if (seen.status == LKV_OK)
        o->seqs[slot] = seq;
    return named(o, ref_admit(&o->ref, slot, &prompt, adapters[t->adapter], &args, &seen));
}

const char *op_admit(struct ops *o)
{
    return admit_at(o, some_slot(o, 0));
}

const char *op_grow(struct ops *o)
{
    int32_t tokens[64];
    uint32_t slot = some_slot(o, 1);
    lkv_admission result = {.size = sizeof result};
    struct ref_seen seen = {.result = &result};
    o->name = "grow";
    if (!o->seqs[slot])
        return NULL;
    uint64_t n = ops_tokens(o, tokens, draw(o, 4) ? 3 : 64);
    int known = draw(o, 4) != 0;
    if (known)
        seen.status = lkvi_seq_append(o->m, o->seqs[slot], tokens, n, &result);
    else
        seen.status = lkvi_seq_reserve(o->m, o->seqs[slot], n, &result);
    ops_look(o, o->seqs[slot], &seen);
    return named(o, ref_grow(&o->ref, slot, known ? tokens : NULL, n, &seen));
}

/* Several sequences in one step: the twin grows them one by one, so it is asked only if the step
 * went well; a step that failed must have changed nothing, which the comparison shows. */
const char *op_step(struct ops *o)
{
    lkv_seq seqs[LIVE_SEQS];
    uint32_t num_new[LIVE_SEQS], slots_of[LIVE_SEQS], n = 0;
    int32_t tokens[LIVE_SEQS * 8], table[LIVE_SEQS * 32], lens[LIVE_SEQS];
    int64_t slots[LIVE_SEQS * 8];
    uint32_t total = 0;
    int copies[LIVE_SEQS];
    lkv_admission result = {.size = sizeof result};
    o->name = "step";
    for (uint32_t i = 0; i < LIVE_SEQS; i++) {
        if (!o->seqs[i] || o->ref.seqs[i].swapped || !draw(o, 2))
            continue;
        slots_of[n] = i;
        seqs[n] = o->seqs[i];
        copies[n] = ref_shared_tail(&o->ref, i);
        num_new[n] = 1 + draw(o, 3);
        for (uint32_t k = 0; k < num_new[n]; k++)
            tokens[total++] = (int32_t)draw(o, 3);
        n++;
    }
    lkv_step step = {.size = sizeof step,
                     .num_seqs = n,
                     .seqs = seqs,
                     .num_new = num_new,
                     .tokens = tokens,
                     .block_table = table,
                     .seq_lens = lens,
                     .slots = slots,
                     .slots_capacity = total,
                     .table_width = 32};
    if (lkvi_manager_step(o->m, &step, &result) != LKV_OK)
        return NULL;
    const int32_t *next = tokens;
    struct ref_seen seen = {.result = &result, .planned = 1};
    uint64_t all_copies, row = 0;
    lkvi_manager_peek_copies(o->m, o->copies, REF_BLOCKS, &all_copies);
    seen.copies = o->copies;
    for (uint32_t i = 0; i < n; i++) {
        struct ref_seq *s = &o->ref.seqs[slots_of[i]];
        uint64_t before = s->length;
        lkvi_seq_table(o->m, seqs[i], o->table, REF_TABLE, &seen.num_blocks);
        seen.table = o->table;
        seen.copy = copies[i];
        seen.num_copies = o->ref.num_copies +
                          (o->ref.num_copies < all_copies && before % o->block_tokens &&
                           o->copies[2 * o->ref.num_copies] == s->table[before / o->block_tokens]);
        const char *wrong = ref_grow(&o->ref, slots_of[i], next, num_new[i], &seen);
        if (wrong)
            return named(o, wrong);
        if (memcmp(table + i * 32, o->table, seen.num_blocks * sizeof *table) ||
            lens[i] != (int32_t)s->length)
            return FAIL("step: row %u of the table or its length %d is wrong", i, lens[i]);
        for (uint64_t p = before; p < s->length; p++, row++)
            if (slots[row] != (int64_t)s->table[p / o->block_tokens] * o->block_tokens +
                                  (int64_t)(p % o->block_tokens))
                return FAIL("step: slot %llu is %lld", (unsigned long long)row,
                            (long long)slots[row]);
        next += num_new[i];
    }
    return NULL;
}

/* Any sequences, one of them maybe twice. */
const char *op_common(struct ops *o)
{
    lkv_seq seqs[4];
    uint32_t slots[4], n = 0;
    uint64_t found = 0, want = UINT64_MAX;
    o->name = "common";
    for (uint32_t tries = 1 + draw(o, 4); tries; tries--) {
        slots[n] = draw(o, LIVE_SEQS);
        seqs[n] = o->seqs[slots[n]];
        n += seqs[n] != 0 && !o->ref.seqs[slots[n]].swapped;
    }
    if (!n)
        return NULL;
    for (uint32_t i = 0; i < n; i++) {
        const struct ref_seq *a = &o->ref.seqs[slots[0]], *b = &o->ref.seqs[slots[i]];
        uint64_t same = 0;
        while (same < b->length / o->block_tokens && same < want &&
               a->table[same] == b->table[same])
            same++;
        want = same;
    }
    if (lkvi_seq_common(o->m, seqs, n, &found) != LKV_OK || found != want)
        return FAIL("common: %llu blocks, want %llu", (unsigned long long)found,
                    (unsigned long long)want);
    return NULL;
}

static const char *commit_at(struct ops *o, uint32_t slot, uint64_t upto)
{
    struct ref_seq *s = &o->ref.seqs[slot];
    lkv_status status = lkvi_seq_commit(o->m, o->seqs[slot], upto);
    if (status != (upto > s->length ? LKV_E_INVALID : LKV_OK))
        return FAIL("commit %llu of %llu: status %d", (unsigned long long)upto,
                    (unsigned long long)s->length, status);
    if (status == LKV_OK)
        ref_commit(&o->ref, slot, upto);
    return NULL;
}

const char *op_commit(struct ops *o)
{
    uint32_t slot = some_slot(o, 1);
    struct ref_seq *s = &o->ref.seqs[slot];
    o->name = "commit";
    if (!o->seqs[slot])
        return NULL;
    return commit_at(o, slot, draw(o, 4) ? s->length : draw(o, (uint32_t)s->length + 2));
}

const char *op_truncate(struct ops *o)
{
    uint32_t slot = some_slot(o, 1);
    struct ref_seq *s = &o->ref.seqs[slot];
    o->name = "truncate";
    if (!o->seqs[slot])
        return NULL;
    uint64_t length = draw(o, (uint32_t)s->length + 2), fence = some_fence(o);
    lkv_status status = lkvi_seq_truncate(o->m, o->seqs[slot], length, fence);
    if (status != (length > s->length || s->swapped ? LKV_E_INVALID : LKV_OK))
        return FAIL("truncate: status %d", status);
    if (status == LKV_OK)
        ref_truncate(&o->ref, slot, length, fence);
    return NULL;
}

const char *op_fork(struct ops *o)
{
    uint32_t slot = some_slot(o, 1), child = some_slot(o, 0);
    o->name = "fork";
    if (!o->seqs[slot] || o->seqs[child])
        return NULL;
    lkv_status status = lkvi_seq_fork(o->m, o->seqs[slot], &o->seqs[child]);
    if (o->ref.seqs[slot].swapped && status == LKV_E_INVALID)
        return NULL;
    if (status != LKV_OK)
        return FAIL("fork: status %d", status);
    ref_fork(&o->ref, slot, child);
    return NULL;
}

static const char *free_at(struct ops *o, uint32_t slot, uint64_t fence)
{
    if (lkvi_seq_free(o->m, o->seqs[slot], fence) != LKV_OK)
        return FAIL("free: %s", lkv_last_error());
    o->dead_seq = o->seqs[slot];
    o->seqs[slot] = 0;
    ref_free(&o->ref, slot, fence);
    return NULL;
}

const char *op_free(struct ops *o)
{
    uint32_t slot = some_slot(o, 1);
    uint64_t fence = some_fence(o);
    o->name = "free";
    if (o->dead_seq && lkvi_seq_free(o->m, o->dead_seq, fence) != LKV_E_NOT_FOUND)
        return FAIL("free: a dead sequence was freed again");
    return o->seqs[slot] ? free_at(o, slot, fence) : NULL;
}

/* A whole request, as most of them are: where no room is left another one ends first. */
const char *op_serve(struct ops *o)
{
    const char *wrong = NULL;
    uint32_t slot = some_slot(o, 0), victim = some_slot(o, 1);
    if (o->seqs[slot] || (o->seqs[victim] && !draw(o, 4)))
        wrong = free_at(o, victim, some_fence(o));
    slot = some_slot(o, 0);
    if (!wrong)
        wrong = admit_at(o, slot);
    if (!wrong && !o->seqs[slot] && o->seqs[victim]) {
        wrong = free_at(o, victim, 0);
        if (!wrong)
            wrong = admit_at(o, slot);
    }
    if (wrong || !o->seqs[slot])
        return wrong;
    o->name = "serve";
    wrong = commit_at(o, slot, o->ref.seqs[slot].length);
    return wrong || !draw(o, 2) ? wrong : free_at(o, slot, some_fence(o));
}

/* Loads from another store that come in parts, and those that fail: the sequence is freed under the
 * fence of the last write. */
const char *op_load(struct ops *o)
{
    uint32_t slot = some_slot(o, 1);
    struct ref_seq *s = &o->ref.seqs[slot];
    o->name = "load";
    if (!o->seqs[slot] || s->committed == s->length)
        return NULL;
    uint64_t upto = s->committed + 1 + draw(o, (uint32_t)(s->length - s->committed));
    const char *wrong = commit_at(o, slot, upto);
    return wrong || draw(o, 4) ? wrong : free_at(o, slot, o->fence + 1);
}

/* A step that would write committed rows: allowed only where nobody else can read them. */
const char *op_write(struct ops *o)
{
    uint32_t slot = some_slot(o, 1), rows;
    const struct ref_seq *s = &o->ref.seqs[slot];
    o->name = "write";
    if (!o->seqs[slot] || s->swapped || !s->length)
        return NULL;
    uint64_t begin = draw(o, (uint32_t)s->length);
    rows = 1 + draw(o, (uint32_t)(s->length - begin));
    lkv_step step = {.size = sizeof step,
                     .num_seqs = 1,
                     .seqs = &o->seqs[slot],
                     .row_begin = &begin,
                     .num_rows = &rows};
    lkv_status status = lkvi_manager_step(o->m, &step, NULL);
    if (status != (ref_may_write(&o->ref, slot, begin, begin + rows) ? LKV_OK : LKV_E_INVALID))
        return FAIL("write of rows [%llu, +%u), committed %llu: status %d",
                    (unsigned long long)begin, rows, (unsigned long long)s->committed, status);
    return NULL;
}
