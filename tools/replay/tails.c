/* In: requests with ids of whole blocks, and tokens past them. Out: these tokens as the beginning
 * of a block of a later request. Where a conversation goes on, its next prompt repeats what the
 * last one ended with; the trace keeps whole blocks alone, and who follows whom shows in the ids.
 */
#include <stdlib.h>

#include "tools/common/out.h"
#include "tools/replay/trace.h"

struct tail {
    uint64_t key; /* space and last whole id of some request */
    uint32_t next;
    int known;
};

struct tails {
    struct tail *items;
    uint64_t count;
};

static uint64_t key_of(uint32_t space, uint32_t id)
{
    return (uint64_t)space << 32 | id;
}

static int by_key(const void *a, const void *b)
{
    const uint64_t x = ((const struct tail *)a)->key, y = ((const struct tail *)b)->key;
    return (x > y) - (x < y);
}

/* The first item whose key is not below. */
static uint64_t find(const struct tails *t, uint64_t key)
{
    uint64_t low = 0, high = t->count;
    while (low < high) {
        const uint64_t middle = (low + high) / 2;
        if (t->items[middle].key < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int last_id(const struct trace *t, const struct trace_request *q, uint64_t *key)
{
    if (!q->num_runs)
        return 0;
    const struct trace_run run = t->runs[q->first_run + q->num_runs - 1];
    *key = key_of(q->space, run.first + run.count - 1);
    return 1;
}

/* Has the request tokens that no id names? */
static int has_tail(const struct trace *t, const struct trace_request *q)
{
    uint64_t ids = 0;
    for (uint32_t i = 0; i < q->num_runs; i++)
        ids += t->runs[q->first_run + i].count;
    return ids * t->block_tokens < q->input_length;
}

static struct tails collect(const struct trace *t)
{
    struct tails all = {.items = out_alloc(t->num_requests + 1, sizeof *all.items)};
    for (uint64_t i = 0; i < t->num_requests; i++)
        all.count += (uint64_t)last_id(t, &t->requests[i], &all.items[all.count].key);
    qsort(all.items, all.count, sizeof *all.items, by_key);
    return all;
}

/* What follows each last id in this request. */
static void learn(struct tails *tails, const struct trace *t, const struct trace_request *q)
{
    for (uint32_t i = 0; i < q->num_runs; i++) {
        const struct trace_run run = t->runs[q->first_run + i];
        const uint64_t end = key_of(q->space, run.first + run.count - 1);
        uint64_t k = find(tails, key_of(q->space, run.first));
        for (; k < tails->count && tails->items[k].key <= end; k++) {
            if (tails->items[k].key == end && i + 1 == q->num_runs)
                continue;
            tails->items[k].known = 1;
            tails->items[k].next = tails->items[k].key == end ? t->runs[q->first_run + i + 1].first
                                                              : (uint32_t)tails->items[k].key + 1;
        }
    }
}

/* The trace again, each request with its tail's id where there is one. */
static struct trace with_tails(const struct trace *t, const struct trace_run *tail_of)
{
    struct trace longer = {.block_tokens = t->block_tokens, .num_spaces = t->num_spaces};
    for (uint64_t i = 0; i < t->num_requests; i++) {
        const struct trace_request *q = &t->requests[i];
        struct trace_request *copy = trace_add_request(&longer);
        const uint64_t first_run = copy->first_run;
        *copy = *q;
        copy->first_run = first_run;
        copy->num_runs = 0;
        for (uint32_t j = 0; j < q->num_runs; j++) {
            const struct trace_run run = t->runs[q->first_run + j];
            trace_add_ids(&longer, run.first, run.count);
        }
        if (tail_of[i].count)
            trace_add_ids(&longer, tail_of[i].first, 1);
    }
    return longer;
}

void trace_continue_tails(struct trace *t)
{
    struct tails tails = collect(t);
    struct trace_run *tail_of = out_alloc(t->num_requests, sizeof *tail_of);
    for (uint64_t i = t->num_requests; i-- > 0;) { /* from the end: the nearest later one counts */
        const struct trace_request *q = &t->requests[i];
        uint64_t key;
        if (last_id(t, q, &key) && has_tail(t, q)) {
            const struct tail *found = &tails.items[find(&tails, key)];
            tail_of[i] = (struct trace_run){found->next, (uint32_t)found->known};
        }
        learn(&tails, t, q);
    }
    const struct trace longer = with_tails(t, tail_of);
    free(tails.items);
    free(tail_of);
    trace_free(t);
    *t = longer;
}
