/* In: the calls made to the library on sequences and its answers. Out: whether the rules allow
 * them. Nothing is shared with block_manager/. */
#include "tests/reference/ref_state.h"

#include <stdio.h>
#include <string.h>

void ref_create(struct ref_manager *r, const struct lkvi_manager_config *config)
{
    memset(r, 0, sizeof *r);
    r->num_blocks = (uint32_t)config->num_blocks;
    r->num_ids = (uint32_t)(config->num_blocks + config->host_blocks);
    r->base = (uint32_t)config->base_blocks;
    r->block_tokens = config->tokens_per_block;
    r->flags = config->flags;
    r->clock = r->front = (uint64_t)1 << 62;
    for (uint32_t b = 1; b <= r->num_ids; b++)
        r->blocks[b].state = REF_FREE;
}

void ref_count(const struct ref_manager *r, struct ref_counts *counts)
{
    memset(counts, 0, sizeof *counts);
    for (uint32_t b = 1; b <= r->num_blocks; b++) {
        counts->state[r->blocks[b].state]++;
        counts->cached += (uint64_t)r->blocks[b].indexed;
    }
    for (uint32_t b = r->num_blocks + 1; b <= r->num_ids; b++) {
        counts->host[r->blocks[b].state]++;
        counts->host_cached += (uint64_t)r->blocks[b].indexed;
        counts->host_copies += (uint64_t)r->blocks[b].is_copy;
    }
    for (uint32_t i = 0; i < REF_SEQS; i++) {
        if (!r->seqs[i].live)
            continue;
        counts->seqs++;
        counts->swapped += (uint64_t)r->seqs[i].swapped;
        counts->tokens += r->seqs[i].length;
        counts->reserved += r->seqs[i].reserved;
    }
}

/* ---- match and admit */

uint32_t ref_hits(const struct ref_manager *r, const int32_t *tokens, uint64_t n, const char *keys,
                  int32_t *table)
{
    uint32_t hits = 0;
    int parent = 0;
    while (n && (uint64_t)(hits + 1) * r->block_tokens <= n - 1) {
        parent = ref_find_child(r, parent, tokens + hits * r->block_tokens, keys);
        if (!parent)
            break;
        if (table)
            table[hits] = parent;
        hits++;
    }
    return hits;
}

static uint32_t common(const int32_t *a, const int32_t *b, uint64_t limit)
{
    uint32_t n = 0;
    while (n < limit && a[n] == b[n])
        n++;
    return n;
}

/* Most tokens that a child of the last hit shares with the prompt's next block. */
static uint32_t best_partial(const struct ref_manager *r, const int32_t *tokens, uint64_t n,
                             const char *keys, uint32_t hits, int last)
{
    uint32_t best = 0;
    uint64_t at = (uint64_t)hits * r->block_tokens, left = n ? n - 1 - at : 0;
    uint64_t limit = left < r->block_tokens ? left : r->block_tokens;
    for (uint32_t c = 1; c <= r->num_ids; c++) {
        const struct ref_block *block = &r->blocks[c];
        if (!block->indexed || block->parent != last || strcmp(block->keys, keys))
            continue;
        uint32_t shared = common(block->tokens, tokens + at, limit);
        best = shared > best ? shared : best;
    }
    return r->flags & LKV_POOL_NO_PARTIAL ? 0 : best;
}

const char *ref_match(struct ref_manager *r, const int32_t *tokens, uint64_t n, const char *keys,
                      const lkv_match *match)
{
    int32_t table[REF_TABLE];
    uint32_t hits = ref_hits(r, tokens, n, keys, table);
    uint32_t best = best_partial(r, tokens, n, keys, hits, hits ? table[hits - 1] : 0);
    if (match->hit_blocks != hits)
        return FAIL("match found %llu whole blocks, want %u", (unsigned long long)match->hit_blocks,
                    hits);
    if (match->partial_hit_tokens > best)
        return FAIL("match found %llu partial tokens, want at most %u",
                    (unsigned long long)match->partial_hit_tokens, best);
    if (match->hit_tokens != (uint64_t)hits * r->block_tokens + match->partial_hit_tokens)
        return FAIL("hit_tokens is %llu", (unsigned long long)match->hit_tokens);
    return NULL;
}

/* Blocks of the device that stop being idle or pending when these are claimed. */
static void count_claims(const struct ref_manager *r, const int32_t *table, uint32_t hits,
                         int32_t source, uint64_t *idle, uint64_t *pending)
{
    *idle = *pending = 0;
    for (uint32_t i = 0; i <= hits; i++) {
        int32_t b = i < hits ? table[i] : source;
        if (!b || on_host(r, b))
            continue;
        *idle += r->blocks[b].state == REF_IDLE;
        *pending += r->blocks[b].state == REF_PENDING;
    }
}

/* Hits on the host alone: the last ones. */
static uint32_t hits_on_host(const struct ref_manager *r, const int32_t *table, uint32_t hits)
{
    uint32_t n = 0;
    while (n < hits && on_host(r, table[hits - 1 - n]))
        n++;
    return n;
}

static const char *check_hits(struct ref_manager *r, const struct ref_seen *seen, uint32_t hits,
                              const int32_t *table, const lkv_prompt *prompt)
{
    uint32_t far = hits_on_host(r, table, hits), copy = r->num_copies + far;
    for (uint32_t i = 0; i < hits; i++)
        if (!on_host(r, table[i]) && seen->table[i] != table[i])
            return FAIL("hit %u is block %d, want %d", i, seen->table[i], table[i]);
    uint64_t partial = seen->result->partial_hit_tokens;
    if (seen->num_copies != copy + (partial != 0))
        return FAIL("%u hits on the host, %llu partial tokens: %llu copies wait, of them before %u",
                    far, (unsigned long long)partial, (unsigned long long)seen->num_copies,
                    r->num_copies);
    if (seen->result->host_hit_blocks != far)
        return FAIL("%llu hits on the host, want %u",
                    (unsigned long long)seen->result->host_hit_blocks, far);
    if (!partial)
        return NULL;
    int32_t from = seen->copies[2 * copy], to = seen->copies[2 * copy + 1];
    const struct ref_block *source = &r->blocks[from];
    if (to != seen->table[hits] || !source->indexed ||
        source->parent != (hits ? table[hits - 1] : 0))
        return FAIL("partial copy %d -> %d is no child of the last hit", from, to);
    if (common(source->tokens, prompt->tokens + hits * r->block_tokens, partial) != partial)
        return FAIL("partial copy from block %d, which differs before token %llu", from,
                    (unsigned long long)partial);
    return NULL;
}

/* A hit on the host is copied into a block of the device, which takes its identity. */
static const char *promote(struct ref_manager *r, struct ref_seq *s, int32_t h, int32_t b,
                           const struct ref_seen *seen)
{
    const char *wrong = ref_take(r, b, REF_IN_USE);
    if (wrong)
        return wrong;
    if (seen->copies[2 * r->num_copies] != h || seen->copies[2 * r->num_copies + 1] != b)
        return FAIL("the hit on host block %d is not copied to %d", h, b);
    ref_move_identity(r, h, b);
    ref_link_copy(r, b, h);
    r->blocks[h].is_copy = 1;
    r->copies[r->num_copies++] = (struct ref_copy){h, b, 0};
    ref_raise(r, b, s);
    return NULL;
}

static const char *take_hits(struct ref_manager *r, struct ref_seq *s, const int32_t *table,
                             uint32_t hits, const struct ref_seen *seen)
{
    uint32_t here = hits - hits_on_host(r, table, hits);
    uint64_t partial = seen->result->partial_hit_tokens;
    for (uint32_t i = 0; i < hits; i++) {
        ref_claim(r, table[i]);
        if (i < here)
            ref_raise(r, table[i], s);
    }
    if (partial)
        ref_claim(r, seen->copies[2 * (seen->num_copies - 1)]);
    for (uint32_t i = here; i < hits; i++) {
        const char *wrong = promote(r, s, table[i], seen->table[i], seen);
        if (wrong)
            return wrong;
    }
    return NULL;
}

static const char *admit_seq(struct ref_manager *r, struct ref_seq *s, const lkv_prompt *prompt,
                             const struct ref_seen *seen, uint32_t hits)
{
    uint64_t partial = seen->result->partial_hit_tokens;
    int32_t from = partial ? seen->copies[2 * r->num_copies] : 0;
    for (uint32_t i = hits; i < seen->num_blocks; i++) {
        const char *wrong = ref_take(r, seen->table[i], REF_IN_USE);
        if (wrong)
            return wrong;
    }
    for (uint64_t t = (uint64_t)hits * r->block_tokens; t < prompt->num_tokens; t++)
        r->blocks[seen->table[t / r->block_tokens]].tokens[t % r->block_tokens] = prompt->tokens[t];
    if (from)
        r->copies[r->num_copies++] = (struct ref_copy){from, seen->table[hits], 0};
    memcpy(s->table, seen->table, seen->num_blocks * sizeof s->table[0]);
    s->num_blocks = (uint32_t)seen->num_blocks;
    s->length = prompt->num_tokens;
    s->committed = (uint64_t)hits * r->block_tokens + partial;
    s->published = hits;
    s->no_publish = (prompt->flags & LKV_PROMPT_NO_PUBLISH) != 0;
    s->epoch = r->epoch;
    s->live = 1;
    return NULL;
}

const char *ref_admit(struct ref_manager *r, uint32_t seq, const lkv_prompt *prompt,
                      const char *keys, const lkv_admit_args *args, const struct ref_seen *seen)
{
    struct ref_seq *s = &r->seqs[seq];
    int32_t table[REF_TABLE];
    uint64_t room = prompt->num_tokens > args->room_tokens ? prompt->num_tokens : args->room_tokens;
    uint64_t most = args->max_tokens ? args->max_tokens : room, idle, pending;
    int whole = (args->flags & LKV_ADMIT_WHOLE) != 0;
    uint64_t promise = whole ? blocks_for(r, most) - blocks_for(r, room) : 0;
    if (blocks_for(r, most) > r->base)
        return seen->status == LKV_E_NEVER_FITS ? NULL
                                                : FAIL("status %d, want NEVER_FITS", seen->status);
    uint32_t hits = ref_hits(r, prompt->tokens, prompt->num_tokens, keys, table);
    if (args->match && args->match->hit_blocks < hits)
        hits = (uint32_t)args->match->hit_blocks;
    uint64_t fresh = blocks_for(r, room) - hits + hits_on_host(r, table, hits);
    count_claims(r, table, hits, 0, &idle, &pending);
    struct ref_counts c;
    ref_count(r, &c);
    uint64_t spare = c.seqs ? args->watermark_blocks : 0;
    lkv_status want = ref_verdict(r, fresh + idle + promise + spare, 0, pending);
    if (seen->status != want)
        return FAIL("admit gave %d, want %d: %llu fresh, %llu idle hits, %llu free", seen->status,
                    want, (unsigned long long)fresh, (unsigned long long)idle,
                    (unsigned long long)ref_free_now(r));
    if (want != LKV_OK)
        return NULL;
    const char *wrong = check_hits(r, seen, hits, table, prompt);
    if (wrong)
        return wrong;
    int32_t from = seen->result->partial_hit_tokens ? seen->copies[2 * (seen->num_copies - 1)] : 0;
    count_claims(r, table, hits, from, &idle, &pending);
    uint64_t before = ref_free_now(r);
    *s = (struct ref_seq){.priority = (int)args->priority, .until = args->priority_until};
    if ((wrong = take_hits(r, s, table, hits, seen)) ||
        (wrong = admit_seq(r, s, prompt, seen, hits)))
        return wrong;
    if (seen->result->needed != fresh + idle || before - ref_free_now(r) != fresh + idle)
        return FAIL(
            "I9: needed %llu, taken %llu, want %llu", (unsigned long long)seen->result->needed,
            (unsigned long long)(before - ref_free_now(r)), (unsigned long long)(fresh + idle));
    s->whole = whole;
    s->max_tokens = args->max_tokens;
    s->reserved = (uint32_t)promise;
    snprintf(s->keys, sizeof s->keys, "%s", keys);
    return NULL;
}

/* ---- growth, copy on write */

static int shared_tail(const struct ref_manager *r, const struct ref_seq *s)
{
    if (s->length % r->block_tokens == 0)
        return 0;
    const struct ref_block *tail = &r->blocks[s->table[s->length / r->block_tokens]];
    return tail->refs > 1 || tail->indexed;
}

int ref_shared_tail(const struct ref_manager *r, uint32_t seq)
{
    return shared_tail(r, &r->seqs[seq]);
}

static const char *copy_tail(struct ref_manager *r, struct ref_seq *s, const struct ref_seen *seen)
{
    uint64_t i = s->length / r->block_tokens;
    int32_t from = s->table[i], to = seen->table[i];
    const char *wrong = ref_take(r, to, REF_IN_USE);
    if (wrong)
        return wrong;
    if (seen->num_copies != r->num_copies + 1 || seen->copies[2 * r->num_copies] != from ||
        seen->copies[2 * r->num_copies + 1] != to)
        return FAIL("copy on write %d -> %d is not queued", from, to);
    memcpy(r->blocks[to].tokens, r->blocks[from].tokens, sizeof r->blocks[to].tokens);
    r->copies[r->num_copies++] = (struct ref_copy){from, to, 0};
    s->table[i] = to;
    return NULL;
}

const char *ref_grow(struct ref_manager *r, uint32_t seq, const int32_t *tokens, uint64_t n,
                     const struct ref_seen *seen)
{
    struct ref_seq *s = &r->seqs[seq];
    const char *wrong;
    uint64_t want = blocks_for(r, s->length + n);
    uint64_t fresh = want > s->num_blocks ? want - s->num_blocks : 0;
    uint64_t own = fresh < s->reserved ? fresh : s->reserved;
    int copy = n && (seen->planned ? seen->copy : shared_tail(r, s));
    lkv_status status = ref_verdict(r, fresh + (uint64_t)copy, own, 0);
    if (s->max_tokens && s->length + n > s->max_tokens)
        status = LKV_E_INVALID;
    else if (want > r->base)
        status = LKV_E_NEVER_FITS;
    if (s->swapped)
        status = LKV_E_INVALID;
    if (seen->status != status)
        return FAIL("growth gave %d, want %d", seen->status, status);
    if (status != LKV_OK || s->swapped)
        return NULL;
    if (copy && (wrong = copy_tail(r, s, seen)))
        return wrong;
    for (uint32_t i = s->num_blocks; i < want; i++) {
        if ((wrong = ref_take(r, seen->table[i], REF_IN_USE)))
            return wrong;
        s->table[i] = seen->table[i];
    }
    s->reserved -= (uint32_t)own;
    s->num_blocks += (uint32_t)fresh;
    for (uint64_t t = 0; tokens && t < n; t++, s->length++)
        r->blocks[s->table[s->length / r->block_tokens]].tokens[s->length % r->block_tokens] =
            tokens[t];
    if (seen->num_blocks != s->num_blocks ||
        memcmp(seen->table, s->table, s->num_blocks * sizeof s->table[0]))
        return FAIL("the table has %llu blocks or other ids, want %u",
                    (unsigned long long)seen->num_blocks, s->num_blocks);
    return NULL;
}

void ref_commit(struct ref_manager *r, uint32_t seq, uint64_t upto)
{
    struct ref_seq *s = &r->seqs[seq];
    if (upto <= s->committed)
        return;
    s->committed = upto;
    uint64_t end = upto / r->block_tokens;
    if (s->no_publish || s->swapped || s->epoch != r->epoch || (r->flags & LKV_POOL_NO_CACHE) ||
        end <= s->published)
        return;
    s->published = end;
    int parent = 0;
    for (uint64_t k = 0; k < end; k++) {
        struct ref_block *block = &r->blocks[s->table[k]];
        int twin = block->indexed ? s->table[k] : ref_find_child(r, parent, block->tokens, s->keys);
        if (!twin) {
            block->indexed = 1;
            block->parent = parent;
            ref_raise(r, s->table[k], s);
            memcpy(block->keys, s->keys, sizeof block->keys);
            twin = s->table[k];
        } else if (on_host(r, twin)) { /* computed again: the identity comes back */
            ref_move_identity(r, twin, s->table[k]);
            ref_link_copy(r, s->table[k], twin);
            r->blocks[twin].is_copy = 1;
            ref_raise(r, s->table[k], s);
            twin = s->table[k];
        }
        parent = twin;
    }
}

static void drop_from(struct ref_manager *r, struct ref_seq *s, uint32_t from, uint64_t fence)
{
    while (s->num_blocks > from)
        ref_drop(r, s->table[--s->num_blocks], fence);
}

void ref_truncate(struct ref_manager *r, uint32_t seq, uint64_t length, uint64_t fence)
{
    struct ref_seq *s = &r->seqs[seq];
    s->length = length;
    if (s->committed > length)
        s->committed = length;
    drop_from(r, s, (uint32_t)blocks_for(r, length), fence);
    uint64_t left = s->committed / r->block_tokens;
    if (left < s->published)
        s->published = left && r->blocks[s->table[left - 1]].indexed ? left : 0;
    if (!s->whole)
        return;
    uint64_t want = blocks_for(r, s->max_tokens) - s->num_blocks - s->reserved;
    uint64_t have = ref_free_now(r);
    s->reserved += (uint32_t)(want < have ? want : have);
}

void ref_fork(struct ref_manager *r, uint32_t seq, uint32_t child)
{
    struct ref_seq *c = &r->seqs[child];
    *c = r->seqs[seq];
    c->whole = 0;
    c->reserved = 0;
    c->num_blocks = (uint32_t)blocks_for(r, c->length);
    for (uint32_t i = 0; i < c->num_blocks; i++)
        ref_claim(r, c->table[i]);
}

void ref_free(struct ref_manager *r, uint32_t seq, uint64_t fence)
{
    drop_from(r, &r->seqs[seq], 0, fence);
    memset(&r->seqs[seq], 0, sizeof r->seqs[seq]);
}

const char *ref_settle(struct ref_manager *r, uint32_t num, uint64_t fence)
{
    if (num > r->num_copies)
        return FAIL("%u copies settled of %u", num, r->num_copies);
    r->num_issued = 0;
    for (uint32_t i = 0; i < num; i++) {
        struct ref_copy copy = r->copies[0];
        memmove(&r->copies[0], &r->copies[1], --r->num_copies * sizeof r->copies[0]);
        if (fence > r->blocks[copy.to].fence)
            r->blocks[copy.to].fence = fence;
        if (r->blocks[copy.to].state == REF_PENDING && !r->blocks[copy.to].queued)
            ref_settle_unused(r, copy.to);
        ref_drop(r, copy.from, fence);
    }
    return NULL;
}
