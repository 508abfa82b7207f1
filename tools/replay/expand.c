/* In: a request's runs of ids. Out: its tokens. A block's tokens are a counter sequence keyed by
 * mix64(space, id), whose 64 bits also stand in tokens 0 to 2: a bijection, so no two ids give one
 * block. Private tokens (past the ids, generated ones) use spaces with the top bit set. */
#include "tools/replay/expand.h"

#include <stdlib.h>

#include "tools/common/out.h"
#include "tools/common/rng.h"

enum { TOKEN_MASK = 0x7fffffff };

static uint64_t block_key(const struct expander *e, uint32_t space, uint32_t id)
{
    return mix64((((uint64_t)space << 32) | id) ^ e->seed);
}

static void fill_block(int32_t *to, uint64_t key, uint32_t n)
{
    const uint32_t low = (uint32_t)key, high = (uint32_t)(key >> 32);
    for (uint32_t j = 0; j < n; j++)
        to[j] = (int32_t)(((low + j * 0x9e3779b1u) ^ high) & TOKEN_MASK);
    const int32_t head[3] = {(int32_t)(key & TOKEN_MASK), (int32_t)(key >> 31 & TOKEN_MASK),
                             (int32_t)(key >> 33)};
    for (uint32_t j = 0; j < 3 && j < n; j++)
        to[j] = head[j];
}

static uint32_t min_u32(uint32_t a, uint64_t b)
{
    return a < b ? a : (uint32_t)b;
}

/* Tokens of whole id blocks that both requests begin with. */
static uint64_t shared_tokens(const struct trace *t, const struct trace_request *a,
                              const struct trace_request *b)
{
    uint64_t ids = 0;
    if (!a || a->space != b->space)
        return 0;
    for (uint32_t i = 0; i < a->num_runs && i < b->num_runs; i++) {
        const struct trace_run x = t->runs[a->first_run + i], y = t->runs[b->first_run + i];
        if (x.first != y.first)
            break;
        ids += min_u32(x.count, y.count);
        if (x.count != y.count)
            break;
    }
    const uint64_t tokens = ids * t->block_tokens;
    const uint32_t whole = min_u32(a->input_length, b->input_length);
    return tokens <= whole ? tokens : whole / t->block_tokens * t->block_tokens;
}

static uint64_t fill_runs(struct expander *e, const struct trace_request *q, uint64_t from)
{
    const uint32_t block = e->trace->block_tokens;
    uint64_t at = 0;
    for (uint32_t i = 0; i < q->num_runs; i++) {
        const struct trace_run run = e->trace->runs[q->first_run + i];
        uint32_t j = 0;
        if (at < from)
            j = min_u32(run.count, (from - at) / block);
        at += (uint64_t)j * block;
        for (; j < run.count && at < q->input_length; j++, at += block)
            fill_block(e->tokens + at, block_key(e, q->space, run.first + j),
                       min_u32(block, q->input_length - at));
    }
    return at < q->input_length ? at : q->input_length;
}

const int32_t *expand_prompt(struct expander *e, uint64_t request)
{
    const struct trace_request *q = &e->trace->requests[request];
    if (q->input_length > e->capacity) {
        e->capacity = q->input_length + q->input_length / 2 + 4096;
        e->tokens = out_grow(e->tokens, e->capacity * sizeof *e->tokens);
    }
    const uint64_t at = fill_runs(e, q, shared_tokens(e->trace, e->last, q));
    fill_block(e->tokens + at, block_key(e, 0x80000000u, (uint32_t)request),
               q->input_length - (uint32_t)at);
    e->last = q;
    return e->tokens;
}

int32_t expand_output(const struct expander *e, uint64_t request, uint64_t j)
{
    const uint64_t key = block_key(e, 0x80000001u, (uint32_t)request);
    return (int32_t)(mix64(key + j) & TOKEN_MASK);
}

void expand_free(struct expander *e)
{
    free(e->tokens);
    *e = (struct expander){0};
}
