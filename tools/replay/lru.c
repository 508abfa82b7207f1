/* In: requests as runs of ids, and what a scheduler does with them. Out: hits of a cache of whole
 * blocks. A block's name is a hash of all ids up to its end, made from the trace and not from
 * tokens. Blocks of a freed sequence go to the recent end, the last block first, so that a prefix
 * outlives what hangs on it; an admission takes unnamed blocks first and then the oldest ones. */
#include "tools/replay/lru.h"

#include <stdlib.h>

#include "tools/common/out.h"
#include "tools/common/rng.h"

enum { NONE = UINT32_MAX };

struct entry {
    uint64_t name;
    uint32_t older, newer; /* in the list of recency, while nobody uses it */
    uint32_t next;         /* in its bucket, or in the list of unnamed blocks */
    uint32_t users;
    int named;
};

struct lru {
    struct entry *entries;
    uint32_t *buckets;
    uint64_t num_entries, capacity, mask, num_unnamed, lent;
    uint32_t block_tokens, oldest, newest, unnamed;
};

struct lru_seq {
    const struct trace *trace;
    uint64_t request, chain, run, in_run; /* where the naming of its blocks stands */
    uint64_t num_named, num_blocks, capacity;
    uint32_t *blocks;
};

struct lru *lru_new(uint64_t num_blocks, uint32_t block_tokens)
{
    struct lru *l = out_alloc(1, sizeof *l);
    uint64_t buckets = 64;
    while (buckets < 2 * num_blocks)
        buckets *= 2;
    *l = (struct lru){.entries = out_alloc(num_blocks, sizeof *l->entries),
                      .buckets = out_alloc(buckets, sizeof *l->buckets),
                      .num_entries = num_blocks,
                      .capacity = num_blocks,
                      .num_unnamed = num_blocks,
                      .mask = buckets - 1,
                      .block_tokens = block_tokens,
                      .oldest = NONE,
                      .newest = NONE,
                      .unnamed = NONE};
    for (uint64_t i = 0; i < buckets; i++)
        l->buckets[i] = NONE;
    for (uint32_t i = (uint32_t)num_blocks; i-- > 0;) {
        l->entries[i].next = l->unnamed;
        l->unnamed = i;
    }
    return l;
}

void lru_free(struct lru *l)
{
    if (!l)
        return;
    free(l->entries);
    free(l->buckets);
    free(l);
}

/* ---- names */

/* The smallest piece that an id and a block have in common: both are powers of two. */
static uint32_t piece_tokens(const struct lru *l, const struct trace *t)
{
    return l->block_tokens < t->block_tokens ? l->block_tokens : t->block_tokens;
}

/* Tokens beyond the ids, or generated after them, are nobody else's. */
static uint64_t piece_name(struct lru_seq *s, uint64_t piece, uint32_t tokens)
{
    const struct trace *t = s->trace;
    const struct trace_request *q = &t->requests[s->request];
    const uint64_t parts = t->block_tokens / tokens;
    while (s->run < q->num_runs && s->in_run == t->runs[q->first_run + s->run].count * parts) {
        s->run++;
        s->in_run = 0;
    }
    if (s->run == q->num_runs || (piece + 1) * tokens > q->input_length)
        return mix64(~s->request) + piece;
    const uint64_t id = t->runs[q->first_run + s->run].first + s->in_run / parts;
    return id * parts + s->in_run++ % parts;
}

/* The name of the sequence's next block, and the place after it. */
static uint64_t next_name(const struct lru *l, struct lru_seq *s)
{
    const uint32_t piece = piece_tokens(l, s->trace);
    const uint64_t pieces = l->block_tokens / piece;
    for (uint64_t i = 0; i < pieces; i++)
        s->chain = mix64(s->chain ^ mix64(piece_name(s, s->num_named * pieces + i, piece)));
    s->num_named++;
    return s->chain;
}

/* ---- blocks */

static uint32_t find(const struct lru *l, uint64_t name)
{
    uint32_t i = l->buckets[name & l->mask];
    while (i != NONE && l->entries[i].name != name)
        i = l->entries[i].next;
    return i;
}

static void unlink_recency(struct lru *l, uint32_t i)
{
    const struct entry *e = &l->entries[i];
    *(e->older == NONE ? &l->oldest : &l->entries[e->older].newer) = e->newer;
    *(e->newer == NONE ? &l->newest : &l->entries[e->newer].older) = e->older;
}

static void append_recency(struct lru *l, uint32_t i)
{
    l->entries[i].older = l->newest;
    l->entries[i].newer = NONE;
    *(l->newest == NONE ? &l->oldest : &l->entries[l->newest].newer) = i;
    l->newest = i;
}

static void give_back(struct lru *l, uint32_t i)
{
    l->entries[i].next = l->unnamed;
    l->unnamed = i;
    l->num_unnamed++;
}

static void evict_oldest(struct lru *l)
{
    const uint32_t i = l->oldest;
    uint32_t *link = &l->buckets[l->entries[i].name & l->mask];
    unlink_recency(l, i);
    while (*link != i)
        link = &l->entries[*link].next;
    *link = l->entries[i].next;
    l->entries[i].named = 0;
    give_back(l, i);
}

static void make_more(struct lru *l)
{
    if (l->num_entries == l->capacity) {
        l->capacity += l->capacity / 8 + 64;
        l->entries = out_grow(l->entries, l->capacity * sizeof *l->entries);
    }
    l->entries[l->num_entries] = (struct entry){0};
    give_back(l, (uint32_t)l->num_entries++);
}

static uint32_t take(struct lru *l)
{
    if (l->num_unnamed <= l->lent && l->oldest != NONE)
        evict_oldest(l);
    if (!l->num_unnamed)
        make_more(l);
    const uint32_t i = l->unnamed;
    l->unnamed = l->entries[i].next;
    l->num_unnamed--;
    l->entries[i].users = 1;
    return i;
}

/* ---- what a scheduler does */

static uint32_t *place_for(struct lru_seq *s)
{
    if (s->num_blocks == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 64;
        s->blocks = out_grow(s->blocks, s->capacity * sizeof *s->blocks);
    }
    return &s->blocks[s->num_blocks++];
}

struct lru_seq *lru_admit(struct lru *l, const struct trace *t, uint64_t request,
                          uint64_t num_tokens, uint64_t *hit_tokens)
{
    struct lru_seq *s = out_alloc(1, sizeof *s);
    *s = (struct lru_seq){
        .trace = t, .request = request, .chain = mix64(t->requests[request].space + 1)};
    const uint64_t usable = (num_tokens - 1) / l->block_tokens; /* the last token runs anew */
    while (s->num_named < usable) {
        const struct lru_seq before = *s;
        const uint32_t i = find(l, next_name(l, s));
        if (i == NONE) {
            *s = before;
            break;
        }
        if (!l->entries[i].users++)
            unlink_recency(l, i);
        *place_for(s) = i;
    }
    *hit_tokens = s->num_named * l->block_tokens;
    lru_grow(l, s, num_tokens);
    return s;
}

void lru_grow(struct lru *l, struct lru_seq *s, uint64_t num_tokens)
{
    while (s->num_blocks * l->block_tokens < num_tokens)
        *place_for(s) = take(l);
}

void lru_commit(struct lru *l, struct lru_seq *s, uint64_t num_tokens)
{
    while ((s->num_named + 1) * l->block_tokens <= num_tokens) {
        const uint32_t i = s->blocks[s->num_named];
        const uint64_t name = next_name(l, s);
        if (find(l, name) != NONE) /* another sequence was first: this one's stays unnamed */
            continue;
        uint32_t *bucket = &l->buckets[name & l->mask];
        l->entries[i].name = name;
        l->entries[i].named = 1;
        l->entries[i].next = *bucket;
        *bucket = i;
    }
}

void lru_drop(struct lru *l, struct lru_seq *s)
{
    for (uint64_t k = s->num_blocks; k-- > 0;) {
        const uint32_t i = s->blocks[k];
        if (--l->entries[i].users)
            continue;
        if (l->entries[i].named)
            append_recency(l, i);
        else
            give_back(l, i);
    }
    free(s->blocks);
    free(s);
}

void lru_lend(struct lru *l, uint64_t num_blocks)
{
    l->lent += num_blocks;
    while (l->num_unnamed < l->lent && l->oldest != NONE)
        evict_oldest(l);
}

void lru_return(struct lru *l, uint64_t num_blocks)
{
    l->lent -= num_blocks;
}

uint64_t lru_request(struct lru *l, const struct trace *t, uint64_t request)
{
    const uint64_t length = t->requests[request].input_length;
    uint64_t hits;
    if ((length + l->block_tokens - 1) / l->block_tokens > l->num_entries)
        return UINT64_MAX;
    struct lru_seq *s = lru_admit(l, t, request, length, &hits);
    lru_commit(l, s, length);
    lru_drop(l, s);
    return hits;
}
