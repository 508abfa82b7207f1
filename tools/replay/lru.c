/* In: requests as runs of ids, one after the other. Out: hits of a cache of whole blocks. A block's
 * name is a hash of all ids up to its end, made from the trace and not from tokens. Blocks of a
 * freed prompt go to the recent end, the last block first, so that a prefix outlives what hangs on
 * it; an admission takes unnamed blocks first and then the oldest ones. */
#include "tools/replay/lru.h"

#include <stdlib.h>

#include "tools/common/out.h"
#include "tools/common/rng.h"

enum { NONE = UINT32_MAX };

struct entry {
    uint64_t name;
    uint32_t older, newer; /* in the list of recency; unused while an admission holds the block */
    uint32_t next;         /* in its bucket, or in the list of unnamed blocks */
};

struct lru {
    struct entry *entries;
    uint32_t *buckets;
    uint64_t num_blocks, mask, names_capacity;
    uint32_t block_tokens, oldest, newest, unnamed;
    uint64_t *names;
};

struct lru *lru_new(uint64_t num_blocks, uint32_t block_tokens)
{
    struct lru *l = out_alloc(1, sizeof *l);
    uint64_t buckets = 64;
    while (buckets < 2 * num_blocks)
        buckets *= 2;
    *l = (struct lru){.entries = out_alloc(num_blocks, sizeof *l->entries),
                      .buckets = out_alloc(buckets, sizeof *l->buckets),
                      .num_blocks = num_blocks,
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
    free(l->entries);
    free(l->buckets);
    free(l->names);
    free(l);
}

/* ---- names */

/* The smallest piece that an id and a block have in common: both are powers of two. */
static uint32_t piece_tokens(const struct lru *l, const struct trace *t)
{
    return l->block_tokens < t->block_tokens ? l->block_tokens : t->block_tokens;
}

static void name_room(struct lru *l, uint64_t n)
{
    if (n <= l->names_capacity)
        return;
    l->names_capacity = n + n / 2;
    l->names = out_grow(l->names, l->names_capacity * sizeof *l->names);
}

/* Names of the whole blocks of a prompt. */
static uint64_t make_names(struct lru *l, const struct trace *t, uint64_t request)
{
    const struct trace_request *q = &t->requests[request];
    const uint32_t piece = piece_tokens(l, t), pieces = l->block_tokens / piece;
    const uint64_t blocks = q->input_length / l->block_tokens, parts = t->block_tokens / piece;
    uint64_t chain = mix64(q->space + 1), run = 0, in_run = 0;
    name_room(l, blocks + 1);
    for (uint64_t i = 0; i < blocks * pieces; i++) {
        uint64_t what = mix64(~request) + i; /* past the ids: nobody else's */
        while (run < q->num_runs && in_run == t->runs[q->first_run + run].count * parts) {
            run++;
            in_run = 0;
        }
        if (run < q->num_runs) {
            const uint64_t id = t->runs[q->first_run + run].first + in_run / parts;
            what = id * parts + in_run++ % parts;
        }
        chain = mix64(chain ^ mix64(what));
        if (i % pieces == pieces - 1)
            l->names[i / pieces] = chain;
    }
    return blocks;
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

static void forget(struct lru *l, uint32_t i)
{
    uint32_t *link = &l->buckets[l->entries[i].name & l->mask];
    while (*link != i)
        link = &l->entries[*link].next;
    *link = l->entries[i].next;
}

static uint32_t take(struct lru *l)
{
    uint32_t i = l->unnamed;
    if (i != NONE) {
        l->unnamed = l->entries[i].next;
        return i;
    }
    i = l->oldest;
    unlink_recency(l, i);
    forget(l, i);
    return i;
}

static void give_back(struct lru *l, uint32_t i)
{
    l->entries[i].next = l->unnamed;
    l->unnamed = i;
}

static uint32_t name_block(struct lru *l, uint64_t name)
{
    const uint32_t i = take(l);
    uint32_t *bucket = &l->buckets[name & l->mask];
    l->entries[i].name = name;
    l->entries[i].next = *bucket;
    *bucket = i;
    return i;
}

uint64_t lru_request(struct lru *l, const struct trace *t, uint64_t request)
{
    const uint64_t length = t->requests[request].input_length;
    const uint64_t blocks = (length + l->block_tokens - 1) / l->block_tokens;
    if (blocks > l->num_blocks)
        return UINT64_MAX;
    const uint64_t whole = make_names(l, t, request);
    const uint64_t usable = (length - 1) / l->block_tokens; /* the last token is computed anew */
    uint64_t hits = 0;
    while (hits < usable && find(l, l->names[hits]) != NONE)
        hits++;
    for (uint64_t i = 0; i < whole; i++) { /* held, so that none is evicted by the ones after it */
        const uint32_t block = find(l, l->names[i]);
        if (block != NONE)
            unlink_recency(l, block);
        l->names[i] = block != NONE ? block : name_block(l, l->names[i]);
    }
    if (blocks > whole) /* the tail that is not full displaces a block for as long as it lives */
        give_back(l, take(l));
    for (uint64_t i = whole; i-- > 0;)
        append_recency(l, (uint32_t)l->names[i]);
    return hits * l->block_tokens;
}
