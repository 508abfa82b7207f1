/* lkv bench frag: what many admissions and frees of real sizes leave behind. In: prompt lengths of
 * a trace. Out: waste inside blocks, how much of the headroom could be lent at every moment, runs
 * of free ids, and resident against allocated metadata: of the pool's arena, and of libc malloc
 * given the sequences' block tables. */
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/bench.h"
#include "tools/bench/manager.h"
#include "tools/common/clock.h"
#include "tools/common/options.h"
#include "tools/common/out.h"
#include "tools/common/progress.h"
#include "tools/common/rng.h"
#include "tools/replay/replay.h"

enum { LIVE = 64, SAMPLE_EVERY = 512, SYNTHETIC_REQUESTS = 4000 };
#define HEADROOM 0.30

struct options {
    const char *trace, *json;
    uint64_t cycles, seed;
};

static void parse(int argc, char **argv, struct options *o)
{
    const struct option_row rows[] = {{"cycles", "N", "admit and free so often; default 1000000",
                                       OPTION_U64, &o->cycles, 1, 0, NULL, 0},
                                      {"trace", "FILE",
                                       "whose prompt lengths are used; default synthetic chat",
                                       OPTION_TEXT, &o->trace, 0, 0, NULL, 0},
                                      OPTION_SEED(&o->seed),
                                      OPTION_JSON(&o->json)};
    options_parse(argc, argv,
                  "Admits and frees prompts of real lengths; reports what is wasted and lost.",
                  rows, sizeof rows / sizeof *rows, NULL, NULL);
}

struct frag {
    struct manager m;
    struct trace lengths;
    uint64_t state;
    lkv_seq live[LIVE];
    void *shadow[LIVE]; /* libc memory of a block table's size */
    int32_t *tokens;
    uint64_t headroom_blocks, lend_failures;
    double waste_tokens, longest_run, lent_share;
    uint64_t samples;
    struct series lend_us;
};

static void open_frag(struct frag *f, const struct options *o)
{
    *f = (struct frag){.state = mix64(o->seed)};
    if (o->trace)
        trace_read(&f->lengths, o->trace, 0, 10);
    else
        synthetic_make(&f->lengths, SYNTHETIC_CHAT, o->seed, SYNTHETIC_REQUESTS);
    const uint32_t longest = trace_longest(&f->lengths);
    uint64_t sum = 0;
    for (uint64_t i = 0; i < f->lengths.num_requests; i++)
        sum += f->lengths.requests[i].input_length;
    /* room for twice the mean load, so that idle blocks are there to be evicted */
    const uint64_t base = 2 * LIVE * (sum / f->lengths.num_requests / MANAGER_BLOCK + 1) +
                          longest / MANAGER_BLOCK + 1;
    f->m = manager_open((uint64_t)((double)base * (1 + HEADROOM)) + 1, LIVE + 1, HEADROOM);
    const lkv_pool_stats stats = manager_stats(&f->m);
    f->headroom_blocks = stats.blocks_total - stats.blocks_base;
    f->tokens = out_alloc(longest, sizeof *f->tokens);
}

static void end_one(struct frag *f, uint32_t i)
{
    if (f->live[i])
        manager_free(&f->m, f->live[i]);
    free(f->shadow[i]);
    f->live[i] = 0;
    f->shadow[i] = NULL;
}

static void cycle(struct frag *f, uint64_t n)
{
    const struct trace *t = &f->lengths;
    const uint32_t i = (uint32_t)rng_below(&f->state, LIVE);
    const uint64_t length = t->requests[rng_below(&f->state, t->num_requests)].input_length;
    const lkv_prompt prompt = {.size = sizeof prompt, .tokens = f->tokens, .num_tokens = length};
    const lkv_admit_args args = {.size = sizeof args};
    lkv_admission result = {.size = sizeof result};
    end_one(f, i);
    fill_tokens(f->tokens, length, n);
    const lkv_status status = lkv_seq_admit(f->m.pool, &prompt, &args, &result, &f->live[i]);
    if (status == LKV_E_NO_BLOCKS) { /* an unlucky draw of long prompts: this one goes without */
        f->live[i] = 0;
        return;
    }
    out_must(status, "admission");
    manager_commit(&f->m, f->live[i], length);
    f->shadow[i] = malloc(128 + 4 * result.num_blocks);
}

static void sample(struct frag *f)
{
    const lkv_pool_stats s = manager_stats(&f->m);
    int32_t *blocks = out_alloc(f->headroom_blocks, sizeof *blocks);
    lkv_lease lease;
    const uint64_t begin = clock_ns();
    const lkv_status status = lkv_lease_lend(f->m.pool, f->headroom_blocks, blocks, &lease);
    series_add(&f->lend_us, (double)(clock_ns() - begin) * 1e-3);
    if (status == LKV_OK)
        out_must(lkv_lease_release(f->m.pool, lease, 0), "the lease");
    else
        f->lend_failures++;
    free(blocks);
    f->lent_share += status == LKV_OK;
    f->waste_tokens += s.seqs_live ? (double)s.waste_tokens / (double)s.seqs_live : 0;
    f->longest_run += (double)s.longest_free_run;
    f->samples++;
}

static json_t *describe(struct frag *f, const struct options *o)
{
    const lkv_pool_stats s = manager_stats(&f->m);
    const struct mallinfo2 libc = mallinfo2();
    const double n = f->samples ? (double)f->samples : NAN;
    const double allocated = (double)s.metadata_allocated_bytes;
    return json_pack(
        "{s:I,s:I,s:I,s:o,s:o,s:I,s:o,s:o,s:I,s:I,s:I,s:o,s:o}", "cycles", (json_int_t)o->cycles,
        "blocks_total", (json_int_t)s.blocks_total, "blocks_base", (json_int_t)s.blocks_base,
        "internal_waste_tokens", out_number(f->waste_tokens / n), "headroom_lent_share",
        out_number(f->lent_share / n), "lend_failures", (json_int_t)f->lend_failures,
        "lend_all_us_p99", out_number(series_percentile(&f->lend_us, 0.99)), "longest_free_run",
        out_number(f->longest_run / n), "metadata_allocated_bytes",
        (json_int_t)s.metadata_allocated_bytes, "metadata_active_bytes",
        (json_int_t)s.metadata_active_bytes, "metadata_resident_bytes",
        (json_int_t)s.metadata_resident_bytes, "resident_over_allocated",
        out_number(allocated > 0 ? (double)s.metadata_resident_bytes / allocated : NAN),
        "libc_resident_over_allocated", out_number((double)libc.arena / (double)libc.uordblks));
}

static void print(const json_t *root)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)root, key, value)
        printf("  %-30s %.6g\n", key, json_is_number(value) ? json_number_value(value) : NAN);
}

int bench_frag(int argc, char **argv)
{
    struct options o = {.cycles = 1000000, .seed = 1};
    struct frag f;
    struct progress bar;
    parse(argc, argv, &o);
    open_frag(&f, &o);
    progress_start(&bar, "frag", o.cycles);
    for (uint64_t i = 0; i < o.cycles; i++) {
        cycle(&f, i);
        if (i % SAMPLE_EVERY == 0)
            sample(&f);
        progress_show(&bar, i);
    }
    progress_end(&bar);
    json_t *root = describe(&f, &o);
    if (!o.json || strcmp(o.json, "-") != 0)
        print(root);
    out_json(root, o.json);
    for (uint32_t i = 0; i < LIVE; i++)
        end_one(&f, i);
    manager_close(&f.m);
    free(f.tokens);
    series_free(&f.lend_us);
    trace_free(&f.lengths);
    return EXIT_DONE;
}
