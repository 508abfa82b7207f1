/* In: numbers. Out: the first call after which library and twin disagree, or NULL.
 * Small pools, short prompts over few block contents and stale handles of all kinds: aborts,
 * duplicates, failures, partial commits, forks, fences out of order, copies settled late. */
#include "tests/stress/blocks_ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "block_manager/state.h"
#include "tests/reference/ref_manager.h"

enum { MAX_PROMPT = 128, NUM_TICKETS = 8, LIVE_SEQS = 12, LIVE_LEASES = 6 };

struct ticket {
    lkv_match match;
    int32_t tokens[MAX_PROMPT];
    uint64_t n;
    uint32_t adapter;
};

struct ops {
    ops_draw draw;
    void *user;
    struct lkvi_manager *m;
    struct ref_manager ref;
    lkv_seq seqs[LIVE_SEQS];
    lkv_lease leases[LIVE_LEASES];
    lkv_seq dead_seq;
    lkv_lease dead_lease;
    struct ticket tickets[NUM_TICKETS];
    uint64_t fence;
    uint32_t block_tokens;
    int32_t table[REF_TABLE], copies[2 * REF_BLOCKS];
    char text[400];
    const char *name;
};

static const char *const adapters[3] = {"", "A", "B"};

#define FAIL(...) (snprintf(o->text, sizeof o->text, __VA_ARGS__), o->text)

static uint32_t draw(struct ops *o, uint32_t n)
{
    return o->draw(o->user, n);
}

static const char *named(struct ops *o, const char *wrong)
{
    return wrong ? FAIL("%s: %s", o->name, wrong) : NULL;
}

struct ops *ops_create(ops_draw draw_fn, void *user, uint32_t hash_bits)
{
    struct ops *o = calloc(1, sizeof *o);
    o->draw = draw_fn;
    o->user = user;
    o->block_tokens = 16;
    uint32_t num_blocks = 8 + draw(o, 40), lent = draw(o, num_blocks / 2);
    struct lkvi_manager_config config = {.num_blocks = num_blocks,
                                         .base_blocks = num_blocks - lent,
                                         .tokens_per_block = o->block_tokens,
                                         .max_seqs = LIVE_SEQS,
                                         .hash_bits = hash_bits,
                                         .flags = draw(o, 4) ? 0 : LKV_POOL_NO_PARTIAL};
    if (lkvi_manager_create(&config, &o->m) != LKV_OK) {
        free(o);
        return NULL;
    }
    ref_create(&o->ref, num_blocks, num_blocks - lent, o->block_tokens, config.flags);
    return o;
}

void ops_destroy(struct ops *o)
{
    lkvi_manager_destroy(o->m);
    free(o);
}

/* Few different blocks, so that prompts share; sometimes one token differs. */
static uint64_t make_tokens(struct ops *o, int32_t *tokens, uint64_t max)
{
    uint64_t n = draw(o, (uint32_t)max + 1);
    for (uint64_t at = 0; at < n; at += o->block_tokens) {
        int32_t kind = (int32_t)draw(o, 3);
        uint32_t odd = draw(o, 4) ? UINT32_MAX : draw(o, o->block_tokens);
        for (uint64_t t = at; t < n && t < at + o->block_tokens; t++)
            tokens[t] = kind + (t - at == odd ? 7 : 0);
    }
    return n;
}

static void prompt_of(lkv_prompt *prompt, lkv_key *key, const int32_t *tokens, uint64_t n,
                      uint32_t adapter)
{
    *key = (lkv_key){adapters[adapter], 0, UINT64_MAX, LKV_KEY_ADAPTER, 1};
    *prompt = (lkv_prompt){.size = sizeof *prompt, .tokens = tokens, .num_tokens = n};
    if (adapter) {
        prompt->keys = key;
        prompt->num_keys = 1;
    }
}

static void look(struct ops *o, lkv_seq seq, struct ref_seen *seen)
{
    if (lkvi_seq_table(o->m, seq, o->table, REF_TABLE, &seen->num_blocks) != LKV_OK)
        seen->num_blocks = 0;
    lkvi_manager_peek_copies(o->m, o->copies, REF_BLOCKS, &seen->num_copies);
    seen->table = o->table;
    seen->copies = o->copies;
}

/* ---- operations */

static const char *op_match(struct ops *o)
{
    struct ticket *t = &o->tickets[draw(o, NUM_TICKETS)];
    lkv_prompt prompt;
    lkv_key key;
    o->name = "match";
    t->n = make_tokens(o, t->tokens, MAX_PROMPT);
    t->adapter = draw(o, 3);
    prompt_of(&prompt, &key, t->tokens, t->n, t->adapter);
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

static const char *op_admit(struct ops *o)
{
    static const struct ticket none;
    struct ticket fresh = none;
    uint32_t slot = draw(o, LIVE_SEQS);
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
        t->n = make_tokens(o, t->tokens, MAX_PROMPT);
        t->adapter = draw(o, 3);
    }
    prompt_of(&prompt, &key, t->tokens, t->n, t->adapter);
    prompt.flags = draw(o, 8) ? 0 : LKV_PROMPT_NO_PUBLISH;
    args.match = ticketed ? &t->match : NULL;
    args.room_tokens = draw(o, 4) ? 0 : t->n + draw(o, 40);
    uint64_t room = args.room_tokens > t->n ? args.room_tokens : t->n;
    args.max_tokens = draw(o, 2) ? 0 : room + draw(o, 60) + 1;
    args.flags = args.max_tokens && draw(o, 2) ? LKV_ADMIT_WHOLE : 0;
    seen.status = lkvi_seq_admit(o->m, &prompt, &args, &result, &seq);
    if (seen.status == LKV_E_STALE_HIT)
        return ticketed && ticket_may_be_stale(o, t) ? NULL : FAIL("admit: stale without reason");
    look(o, seq, &seen);
    if (seen.status == LKV_OK)
        o->seqs[slot] = seq;
    return named(o, ref_admit(&o->ref, slot, &prompt, adapters[t->adapter], &args, &seen));
}

static const char *op_grow(struct ops *o)
{
    int32_t tokens[64];
    uint32_t slot = draw(o, LIVE_SEQS);
    lkv_admission result = {.size = sizeof result};
    struct ref_seen seen = {.result = &result};
    o->name = "grow";
    if (!o->seqs[slot])
        return NULL;
    uint64_t n = make_tokens(o, tokens, draw(o, 4) ? 3 : 64);
    int known = draw(o, 4) != 0;
    if (known)
        seen.status = lkvi_seq_append(o->m, o->seqs[slot], tokens, n, &result);
    else
        seen.status = lkvi_seq_reserve(o->m, o->seqs[slot], n, &result);
    look(o, o->seqs[slot], &seen);
    return named(o, ref_grow(&o->ref, slot, known ? tokens : NULL, n, &seen));
}

/* Several sequences in one step: the twin grows them one by one, so it is asked only if the step
 * went well; a step that failed must have changed nothing, which the comparison shows. */
static const char *op_step(struct ops *o)
{
    lkv_seq seqs[LIVE_SEQS];
    uint32_t num_new[LIVE_SEQS], slots_of[LIVE_SEQS], n = 0;
    int32_t tokens[LIVE_SEQS * 8], table[LIVE_SEQS * 32], lens[LIVE_SEQS];
    int64_t slots[LIVE_SEQS * 8];
    uint32_t total = 0;
    lkv_admission result = {.size = sizeof result};
    o->name = "step";
    for (uint32_t i = 0; i < LIVE_SEQS; i++) {
        if (!o->seqs[i] || !draw(o, 2))
            continue;
        slots_of[n] = i;
        seqs[n] = o->seqs[i];
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
    struct ref_seen seen = {.result = &result};
    uint64_t all_copies, row = 0;
    lkvi_manager_peek_copies(o->m, o->copies, REF_BLOCKS, &all_copies);
    seen.copies = o->copies;
    for (uint32_t i = 0; i < n; i++) {
        struct ref_seq *s = &o->ref.seqs[slots_of[i]];
        uint64_t before = s->length;
        lkvi_seq_table(o->m, seqs[i], o->table, REF_TABLE, &seen.num_blocks);
        seen.table = o->table;
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

static const char *op_commit(struct ops *o)
{
    uint32_t slot = draw(o, LIVE_SEQS);
    struct ref_seq *s = &o->ref.seqs[slot];
    o->name = "commit";
    if (!o->seqs[slot])
        return NULL;
    uint64_t upto = draw(o, 2) ? s->length : draw(o, (uint32_t)s->length + 2);
    lkv_status status = lkvi_seq_commit(o->m, o->seqs[slot], upto);
    if (status != (upto > s->length ? LKV_E_INVALID : LKV_OK))
        return FAIL("commit %llu of %llu: status %d", (unsigned long long)upto,
                    (unsigned long long)s->length, status);
    if (status == LKV_OK)
        ref_commit(&o->ref, slot, upto);
    return NULL;
}

static uint64_t some_fence(struct ops *o)
{
    return draw(o, 2) ? 0 : o->fence + 1 + draw(o, 6);
}

static const char *op_truncate(struct ops *o)
{
    uint32_t slot = draw(o, LIVE_SEQS);
    struct ref_seq *s = &o->ref.seqs[slot];
    o->name = "truncate";
    if (!o->seqs[slot])
        return NULL;
    uint64_t length = draw(o, (uint32_t)s->length + 2), fence = some_fence(o);
    lkv_status status = lkvi_seq_truncate(o->m, o->seqs[slot], length, fence);
    if (status != (length > s->length ? LKV_E_INVALID : LKV_OK))
        return FAIL("truncate: status %d", status);
    if (status == LKV_OK)
        ref_truncate(&o->ref, slot, length, fence);
    return NULL;
}

static const char *op_fork(struct ops *o)
{
    uint32_t slot = draw(o, LIVE_SEQS), child = draw(o, LIVE_SEQS);
    o->name = "fork";
    if (!o->seqs[slot] || o->seqs[child])
        return NULL;
    lkv_status status = lkvi_seq_fork(o->m, o->seqs[slot], &o->seqs[child]);
    if (status != LKV_OK)
        return FAIL("fork: status %d", status);
    ref_fork(&o->ref, slot, child);
    return NULL;
}

static const char *op_free(struct ops *o)
{
    uint32_t slot = draw(o, LIVE_SEQS);
    uint64_t fence = some_fence(o);
    o->name = "free";
    if (o->dead_seq && lkvi_seq_free(o->m, o->dead_seq, fence) != LKV_E_NOT_FOUND)
        return FAIL("free: a dead sequence was freed again");
    if (!o->seqs[slot])
        return NULL;
    if (lkvi_seq_free(o->m, o->seqs[slot], fence) != LKV_OK)
        return FAIL("free: %s", lkv_last_error());
    o->dead_seq = o->seqs[slot];
    o->seqs[slot] = 0;
    ref_free(&o->ref, slot, fence);
    return NULL;
}

static const char *op_settle(struct ops *o)
{
    uint64_t num, fence = some_fence(o);
    o->name = "settle";
    lkvi_manager_peek_copies(o->m, o->copies, REF_BLOCKS, &num);
    if (num != o->ref.num_copies)
        return FAIL("settle: %llu copies wait, want %u", (unsigned long long)num,
                    o->ref.num_copies);
    for (uint64_t i = 0; i < num; i++)
        if (o->copies[2 * i] != o->ref.copies[i].from ||
            o->copies[2 * i + 1] != o->ref.copies[i].to)
            return FAIL("settle: copy %llu is %d -> %d, want %d -> %d", (unsigned long long)i,
                        o->copies[2 * i], o->copies[2 * i + 1], o->ref.copies[i].from,
                        o->ref.copies[i].to);
    uint32_t some = draw(o, 3) ? (uint32_t)num : draw(o, (uint32_t)num + 1);
    if (lkvi_manager_settle_copies(o->m, some, fence) != LKV_OK)
        return FAIL("settle: %s", lkv_last_error());
    return named(o, ref_settle(&o->ref, some, fence));
}

static const char *op_pass(struct ops *o)
{
    o->name = "pass";
    uint64_t fence = o->fence + draw(o, 5);
    lkvi_manager_pass_fence(o->m, fence);
    ref_pass(&o->ref, fence);
    o->fence = fence > o->fence ? fence : o->fence;
    return NULL;
}

static const char *op_pin(struct ops *o)
{
    int32_t blocks[6];
    uint32_t slot = draw(o, LIVE_LEASES), n = 1 + draw(o, 6);
    o->name = "pin";
    if (o->leases[slot])
        return NULL;
    for (uint32_t i = 0; i < n; i++)
        blocks[i] = 1 + (int32_t)draw(o, o->ref.num_blocks);
    lkv_status status = lkvi_lease_pin(o->m, blocks, n, &o->leases[slot]);
    return named(o, ref_pin(&o->ref, slot, blocks, n, status));
}

static const char *op_lend(struct ops *o)
{
    int32_t blocks[REF_BLOCKS];
    uint32_t slot = draw(o, LIVE_LEASES), n = 1 + draw(o, 8);
    o->name = "lend";
    if (o->leases[slot])
        return NULL;
    lkv_status status = lkvi_lease_lend(o->m, n, blocks, &o->leases[slot]);
    return named(o, ref_lend(&o->ref, slot, blocks, n, status));
}

static const char *op_release(struct ops *o)
{
    uint32_t slot = draw(o, LIVE_LEASES);
    uint64_t fence = some_fence(o);
    o->name = "release";
    if (o->dead_lease && lkvi_lease_release(o->m, o->dead_lease, fence) != LKV_E_NOT_FOUND)
        return FAIL("release: a dead lease was released again");
    if (!o->leases[slot])
        return NULL;
    if (lkvi_lease_release(o->m, o->leases[slot], fence) != LKV_OK)
        return FAIL("release: %s", lkv_last_error());
    o->dead_lease = o->leases[slot];
    o->leases[slot] = 0;
    ref_release(&o->ref, slot, fence);
    return NULL;
}

/* Where the rules leave the choice open, the twin takes over what the library did, if it is one
 * of the allowed choices: whatever left the cache was idle or stood under an evicted block. */
static const char *adopt(struct ops *o)
{
    for (uint32_t b = 1; b <= o->ref.num_blocks; b++) {
        struct ref_block *mine = &o->ref.blocks[b];
        const struct lkvi_block *theirs = &o->m->blocks[b];
        if (mine->indexed && !(theirs->flags & LKVI_INDEXED))
            mine->indexed = mine->parent = 0, mine->keys[0] = 0;
        if (mine->state == REF_IDLE && theirs->state == LKVI_FREE)
            mine->state = REF_FREE;
    }
    o->ref.num_copies = (uint32_t)o->m->num_copies;
    for (uint32_t i = 0; i < o->ref.num_copies; i++)
        o->ref.copies[i] =
            (struct ref_copy){(int32_t)o->m->copies[i].from, (int32_t)o->m->copies[i].to};
    return NULL;
}

static const char *op_evict(struct ops *o)
{
    uint64_t n = draw(o, 6), done, want;
    struct ref_counts c;
    o->name = "evict";
    ref_count(&o->ref, &c);
    lkvi_manager_evict(o->m, n, &done);
    want = ref_evict(&o->ref, n);
    if (!o->ref.ambiguous)
        return done == want ? NULL
                            : FAIL("evicted %llu, want %llu", (unsigned long long)done,
                                   (unsigned long long)want);
    if (done < n && done < c.state[REF_IDLE])
        return FAIL("evicted %llu of %llu idle blocks", (unsigned long long)done,
                    (unsigned long long)c.state[REF_IDLE]);
    return adopt(o);
}

static const char *op_reset(struct ops *o)
{
    struct ref_counts c;
    o->name = "reset";
    if (draw(o, 20))
        return NULL;
    ref_count(&o->ref, &c);
    uint64_t live = c.state[REF_IN_USE] + c.state[REF_PENDING];
    int forced = (int)draw(o, 2);
    lkv_status status = lkvi_manager_reset(o->m, forced ? LKV_RESET_FORCE : 0);
    if (status != (live && !forced ? LKV_E_BUSY : LKV_OK))
        return FAIL("reset: status %d with %llu live blocks", status, (unsigned long long)live);
    if (status == LKV_OK)
        ref_reset(&o->ref);
    return NULL;
}

/* ---- comparison */

static const char *compare_counts(struct ops *o)
{
    lkv_pool_stats s;
    struct ref_counts c;
    lkvi_manager_query(o->m, &s);
    ref_count(&o->ref, &c);
    const uint64_t got[9] = {s.blocks_free,    s.blocks_idle, s.blocks_in_use,
                             s.blocks_pending, s.blocks_lent, s.blocks_reserved,
                             s.blocks_cached,  s.tokens_live, s.seqs_live};
    const uint64_t want[9] = {c.state[REF_FREE],
                              c.state[REF_IDLE],
                              c.state[REF_IN_USE],
                              c.state[REF_PENDING],
                              c.state[REF_LENT],
                              c.reserved,
                              c.cached,
                              c.tokens,
                              c.seqs};
    static const char *const names[9] = {"free",     "idle",   "in use", "pending",  "lent",
                                         "reserved", "cached", "tokens", "sequences"};
    for (int i = 0; i < 9; i++)
        if (got[i] != want[i])
            return FAIL("after %s: %s is %llu, want %llu", o->name, names[i],
                        (unsigned long long)got[i], (unsigned long long)want[i]);
    return NULL;
}

static const char *compare_seqs(struct ops *o)
{
    for (uint32_t i = 0; i < LIVE_SEQS; i++) {
        const struct ref_seq *s = &o->ref.seqs[i];
        lkv_seq_info info;
        if (!o->seqs[i])
            continue;
        if (lkvi_seq_query(o->m, o->seqs[i], &info) != LKV_OK || info.length != s->length ||
            info.committed != s->committed || info.num_blocks != s->num_blocks)
            return FAIL("after %s: sequence %u has length %llu committed %llu, want %llu %llu",
                        o->name, i, (unsigned long long)info.length,
                        (unsigned long long)info.committed, (unsigned long long)s->length,
                        (unsigned long long)s->committed);
        for (uint64_t t = 0; t < s->length; t++) {
            int32_t b = s->table[t / o->block_tokens];
            if (lkvi_block_tokens(o->m, (uint32_t)b)[t % o->block_tokens] !=
                o->ref.blocks[b].tokens[t % o->block_tokens])
                return FAIL("after %s: token %llu of sequence %u differs", o->name,
                            (unsigned long long)t, i);
        }
    }
    return NULL;
}

const char *ops_step(struct ops *o)
{
    static const char *(*const table[])(struct ops *) = {
        op_match,    op_match, op_admit, op_admit, op_admit,   op_admit,  op_grow,
        op_grow,     op_grow,  op_step,  op_step,  op_commit,  op_commit, op_commit,
        op_truncate, op_fork,  op_free,  op_free,  op_free,    op_settle, op_settle,
        op_pass,     op_pass,  op_pin,   op_lend,  op_release, op_evict,  op_reset};
    const char *wrong = table[draw(o, sizeof table / sizeof *table)](o);
    if (!wrong)
        wrong = compare_counts(o);
    if (!wrong)
        wrong = compare_seqs(o);
    if (!wrong && lkvi_manager_check(o->m) != LKV_OK)
        wrong = FAIL("after %s: %s", o->name, lkv_last_error());
    return wrong;
}
