/* In: a trace by arrival and the never-evicting run over it. Out: at each share of the working set,
 * the hits of the manager and of plain block LRU with as many blocks, over the same prompts in the
 * same order. Prompts live one at a time: what is compared is which blocks a cache keeps. */
#include "tools/replay/compare.h"

#include <stdio.h>

#include "tools/common/out.h"
#include "tools/replay/heaps.h"
#include "tools/replay/lru.h"

static const double shares[NUM_SHARES] = {0.10, 0.25, 0.50, 1.00};

static double share_of(uint64_t part, uint64_t whole)
{
    return whole ? (double)part / (double)whole : 0;
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

static void run_share(struct replay *r, struct compare_row *row)
{
    struct replay sub = {.options = r->options, .trace = r->trace};
    sub.options.blocks = (uint64_t)(row->share * (double)r->result.working_set_blocks) + 1;
    replay_open(&sub);
    replay_infinite(&sub);
    replay_check(&sub);
    lkv_pool_stats stats = {.size = sizeof stats};
    out_must(lkv_pool_query(sub.pool.pool, &stats), "pool statistics");
    row->blocks = stats.blocks_base;
    row->evicted = stats.evicted_blocks;
    row->hit_tokens = sub.result.hit_tokens;
    row->partial_hit_tokens = sub.result.partial_hit_tokens;
    row->never_fits = sub.result.never_fits;
    row->manager_cpu_s = sub.result.manager_cpu_s;
    r->result.checks += sub.result.checks;
    r->result.check_failures += sub.result.check_failures;
    sub.trace = (struct trace){0}; /* it is r's */
    replay_close(&sub);
    row->lru_hit_tokens = lru_hits(r, row->blocks);
}

void compare_lru(struct replay *r)
{
    for (int i = 0; i < NUM_SHARES; i++) {
        r->result.compare[i].share = shares[i];
        run_share(r, &r->result.compare[i]);
    }
}

static void print_shares(const struct replay *r)
{
    static const char *const heads[] = {"pool",           "blocks",      "hits %",
                                        "whole blocks %", "plain LRU %", "never evicting %",
                                        "never fit",      "evicted"};
    const struct replay_result *x = &r->result;
    struct out_table *t = out_table_new(sizeof heads / sizeof *heads, heads);
    for (int i = 0; i < NUM_SHARES; i++) {
        const struct compare_row *c = &x->compare[i];
        out_cell(t, "%.0f %%", 100 * c->share);
        out_cell(t, "%llu", (unsigned long long)c->blocks);
        out_cell(t, "%.2f", 100 * share_of(c->hit_tokens, x->prompt_tokens));
        out_cell(t, "%.2f",
                 100 * share_of(c->hit_tokens - c->partial_hit_tokens, x->prompt_tokens));
        out_cell(t, "%.2f", 100 * share_of(c->lru_hit_tokens, x->prompt_tokens));
        out_cell(t, "%.2f", 100 * share_of(x->hit_tokens, x->prompt_tokens));
        out_cell(t, "%llu", (unsigned long long)c->never_fits);
        out_cell(t, "%llu", (unsigned long long)c->evicted);
    }
    out_table_print(t, stdout);
}

static json_t *row_json(const struct replay *r, const struct compare_row *c)
{
    const uint64_t prompt = r->result.prompt_tokens;
    const uint64_t whole = c->hit_tokens - c->partial_hit_tokens;
    return json_pack(
        "{s:o,s:I,s:o,s:o,s:o,s:o,s:o,s:I,s:I,s:o}", "share", out_number(c->share), "blocks",
        (json_int_t)c->blocks, "hit_ratio", out_number(share_of(c->hit_tokens, prompt)),
        "whole_block_hit_ratio", out_number(share_of(whole, prompt)), "partial_gain",
        out_number(share_of(c->partial_hit_tokens, prompt)), "lru_hit_ratio",
        out_number(share_of(c->lru_hit_tokens, prompt)), "infinite_hit_ratio",
        out_number(share_of(r->result.hit_tokens, prompt)), "never_fits", (json_int_t)c->never_fits,
        "evicted", (json_int_t)c->evicted, "manager_cpu_s", out_number(c->manager_cpu_s));
}

static json_t *shares_json(const struct replay *r)
{
    json_t *rows = json_array();
    for (int i = 0; i < NUM_SHARES; i++)
        json_array_append_new(rows, row_json(r, &r->result.compare[i]));
    return json_pack("{s:s,s:o}", "with", "lru", "rows", rows);
}

json_t *compare_json(const struct replay *r, const json_t *own)
{
    switch (r->options.compare) {
    case COMPARE_LRU:
        return shares_json(r);
    case COMPARE_MALLOC:
        return heaps_json(r, own);
    default:
        return json_null();
    }
}

void compare_print(struct replay *r)
{
    if (r->options.compare == COMPARE_LRU)
        print_shares(r);
    if (r->options.compare != COMPARE_MALLOC)
        return;
    json_t *all = replay_json(r);
    heaps_print(json_object_get(all, "compare"));
    json_decref(all);
}
