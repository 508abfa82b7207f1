/* In: a trace by arrival and the never-evicting run over it. Out: at each share of the working set,
 * the hits of the manager and of plain block LRU with as many blocks. lru: the same prompts in the
 * same order, one at a time: what is compared is which blocks a cache keeps. memory: the whole
 * scheduler, LRU driven through the same admissions, commits, frees and lends. */
#include "tools/replay/compare.h"

#include <stdio.h>

#include "tools/common/out.h"
#include "tools/replay/heaps.h"
#include "tools/replay/lru.h"

enum { NUM_SHARES = 4 };
static const double shares[NUM_SHARES] = {0.10, 0.25, 0.50, 1.00};

static json_t *share_of(uint64_t part, uint64_t whole)
{
    return out_number(whole ? (double)part / (double)whole : 0);
}

static uint64_t lru_hits(const struct replay *r, uint64_t num_blocks)
{
    struct lru *l = lru_new(num_blocks, r->options.block_tokens);
    uint64_t hits = 0;
    for (uint64_t i = 0; i < r->trace.num_requests; i++) {
        const uint64_t found = lru_request(l, &r->trace, i);
        hits += found == UINT64_MAX ? 0 : found;
    }
    lru_free(l);
    return hits;
}

/* prompt: what ratios are of; r: the never-evicting run */
static json_t *row_json(const struct replay *r, const struct replay_result *x, double share,
                        uint64_t prompt)
{
    return json_pack("{s:o,s:I,s:o,s:o,s:o,s:o,s:o,s:I,s:I,s:o}", "share", out_number(share),
                     "blocks", (json_int_t)x->stats.blocks_total, "hit_ratio",
                     share_of(x->hit_tokens, prompt), "whole_block_hit_ratio",
                     share_of(x->hit_tokens - x->partial_hit_tokens, prompt), "partial_gain",
                     share_of(x->partial_hit_tokens, prompt), "lru_hit_ratio",
                     share_of(x->lru_hit_tokens, prompt), "infinite_hit_ratio",
                     share_of(r->result.hit_tokens, r->result.prompt_tokens), "never_fits",
                     (json_int_t)x->never_fits, "evicted", (json_int_t)x->stats.evicted_blocks,
                     "manager_cpu_s", out_number(x->manager_cpu_s));
}

static void add_schedule(json_t *row, struct replay_result *x)
{
    json_t *more = json_pack(
        "{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:o,s:I,s:I}", "requests", (json_int_t)x->requests,
        "partial_hit_tokens", (json_int_t)x->partial_hit_tokens, "output_tokens",
        (json_int_t)x->output_tokens, "steps", (json_int_t)x->steps, "preempted",
        (json_int_t)x->preempted, "preempted_for_lends", (json_int_t)x->lend.preempted_for, "lends",
        (json_int_t)x->lend.lends, "lend_failures", (json_int_t)x->lend.failures, "lend_us",
        series_p50_p99(&x->lend.us), "lent_peak_blocks", (json_int_t)x->lend.peak_blocks,
        "blocks_base", (json_int_t)x->stats.blocks_base);
    json_object_update(row, more);
    json_decref(more);
    json_object_set_new(row, "checks", json_integer((json_int_t)x->checks));
    json_object_set_new(row, "check_failures", json_integer((json_int_t)x->check_failures));
}

static void add_failures(struct replay *r, const struct replay_result *x)
{
    r->result.checks += x->checks;
    r->result.check_failures += x->check_failures;
    r->result.lend.failures += x->lend.failures;
    r->result.lend.preempted_for += x->lend.preempted_for;
}

static void run_share(struct replay *r, double share)
{
    struct replay sub = {.options = r->options, .trace = r->trace};
    const int schedule = r->options.compare == COMPARE_MEMORY;
    sub.options.blocks = (uint64_t)(share * (double)r->result.working_set_blocks) + 1;
    sub.options.memory = (struct replay_amount){0, 0};
    replay_open(&sub);
    if (schedule) {
        struct lru *lru = lru_new(sub.options.blocks, sub.options.block_tokens);
        replay_schedule_beside(&sub, lru);
        lru_free(lru);
    } else {
        replay_infinite(&sub);
        sub.result.lru_hit_tokens = lru_hits(r, sub.options.blocks);
    }
    replay_check(&sub);
    sub.result.stats.size = sizeof sub.result.stats;
    out_must(lkv_pool_query(sub.pool.pool, &sub.result.stats), "pool statistics");
    const uint64_t prompt = schedule ? sub.result.prompt_tokens : r->result.prompt_tokens;
    json_t *row = row_json(r, &sub.result, share, prompt);
    if (schedule)
        add_schedule(row, &sub.result);
    json_array_append_new(r->result.compare, row);
    add_failures(r, &sub.result);
    sub.trace = (struct trace){0}; /* it is r's */
    replay_close(&sub);
}

void compare_shares(struct replay *r)
{
    r->result.compare = json_array();
    for (int i = 0; i < NUM_SHARES; i++)
        run_share(r, shares[i]);
}

static void print_shares(const struct replay *r)
{
    static const struct {
        const char *head, *key;
        double factor;
    } columns[] = {{"pool %", "share", 100},
                   {"blocks", "blocks", 1},
                   {"hits %", "hit_ratio", 100},
                   {"whole blocks %", "whole_block_hit_ratio", 100},
                   {"plain LRU %", "lru_hit_ratio", 100},
                   {"never evicting %", "infinite_hit_ratio", 100},
                   {"never fit", "never_fits", 1},
                   {"evicted", "evicted", 1},
                   {"preempted", "preempted", 1},
                   {"for lends", "preempted_for_lends", 1},
                   {"lends", "lends", 1}};
    const size_t num = r->options.compare == COMPARE_MEMORY ? 11 : 8;
    const char *heads[11];
    for (size_t i = 0; i < num; i++)
        heads[i] = columns[i].head;
    struct out_table *t = out_table_new(num, heads);
    size_t i;
    json_t *row;
    json_array_foreach(r->result.compare, i, row)
    {
        for (size_t c = 0; c < num; c++) {
            const json_t *value = json_object_get(row, columns[c].key);
            out_cell(t, json_is_integer(value) ? "%.0f" : "%.2f",
                     columns[c].factor * json_number_value(value));
        }
    }
    out_table_print(t, stdout);
}

json_t *compare_json(const struct replay *r, const json_t *own)
{
    switch (r->options.compare) {
    case COMPARE_LRU:
        return json_pack("{s:s,s:O}", "with", "lru", "rows", r->result.compare);
    case COMPARE_MEMORY:
        return json_pack("{s:s,s:O}", "with", "memory", "rows", r->result.compare);
    case COMPARE_MALLOC:
        return heaps_json(r, own);
    default:
        return json_null();
    }
}

void compare_print(struct replay *r)
{
    if (r->result.compare)
        print_shares(r);
    if (r->options.compare != COMPARE_MALLOC)
        return;
    json_t *all = replay_json(r);
    heaps_print(json_object_get(all, "compare"));
    json_decref(all);
}
