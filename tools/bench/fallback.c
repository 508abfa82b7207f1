/* lkv bench fallback: the guarantee of the headroom. Running sequences hold all that KV may use,
 * idle cache holds the rest; then fallback slots are lent, in pieces and at once, until the
 * headroom is gone. Out: whether each lend succeeded, its time, and that no sequence lost a block.
 */
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

enum { SEQ_BLOCKS = 25, SEQ_TOKENS = SEQ_BLOCKS * MANAGER_BLOCK, PIECE_MOST = 64 };

struct options {
    const char *json;
    uint64_t blocks, seed;
    uint32_t rounds;
    double headroom;
};

static void parse(int argc, char **argv, struct options *o)
{
    const struct option_row rows[] = {{"blocks", "N", "of the pool; default 13000", OPTION_U64,
                                       &o->blocks, 100, 1 << 24, NULL, 0},
                                      {"headroom", "H",
                                       "fallback slots, as a share of what KV may use; default 0.3",
                                       OPTION_REAL, &o->headroom, 0.01, 10, NULL, 0},
                                      {"rounds", "N", "times the headroom is lent; default 200",
                                       OPTION_U32, &o->rounds, 1, 1000000, NULL, 0},
                                      OPTION_SEED(&o->seed),
                                      OPTION_JSON(&o->json)};
    options_parse(argc, argv,
                  "Lends fallback slots while running sequences hold all that KV may use.", rows,
                  sizeof rows / sizeof *rows, NULL, NULL);
}

struct timing {
    struct series us, cpu_us;
};

struct fallback {
    struct manager m;
    uint64_t total, base, state, prompts;
    uint32_t num_seqs, next;
    lkv_seq *seqs;
    uint64_t *lengths;
    lkv_lease *leases;
    int32_t *blocks;
    lkv_step step;
    struct timing piece, all;
    uint64_t lends, failures, beyond, beyond_lent, lost, checks;
    double idle_share, kv_share_least;
};

/* ---- a pool whose KV is at its limit */

static lkv_seq new_seq(struct fallback *f, uint64_t length)
{
    int32_t tokens[SEQ_TOKENS];
    lkv_admission result = {.size = sizeof result};
    fill_tokens(tokens, length, ++f->prompts);
    const lkv_seq seq = manager_admit(&f->m, tokens, length, &result);
    manager_commit(&f->m, seq, length);
    return seq;
}

/* Prompts that come and go, and nobody asks for fallback slots. */
static void fill_cache(struct fallback *f)
{
    for (uint64_t done = 0; done < 2 * f->total; done += SEQ_BLOCKS)
        manager_free(&f->m, new_seq(f, SEQ_TOKENS));
    f->idle_share = (double)manager_stats(&f->m).blocks_idle / (double)f->total;
}

static void fill_kv(struct fallback *f)
{
    f->num_seqs = (uint32_t)((f->base + SEQ_BLOCKS - 1) / SEQ_BLOCKS);
    f->seqs = out_alloc(f->num_seqs, sizeof *f->seqs);
    f->lengths = out_alloc(f->num_seqs, sizeof *f->lengths);
    for (uint32_t i = 0; i < f->num_seqs; i++) {
        const uint64_t left = f->base - (uint64_t)i * SEQ_BLOCKS;
        f->lengths[i] = MANAGER_BLOCK * (left < SEQ_BLOCKS ? left : SEQ_BLOCKS);
        f->seqs[i] = new_seq(f, f->lengths[i]);
    }
}

/* No new token and no row: only tables and lengths are filled, of sequences that must be there. */
static void open_step(struct fallback *f)
{
    const uint32_t n = f->num_seqs;
    f->step = (lkv_step){.size = sizeof f->step,
                         .num_seqs = n,
                         .seqs = f->seqs,
                         .num_new = out_alloc(n, sizeof(uint32_t)),
                         .tokens = out_alloc(n, sizeof(int32_t)),
                         .row_begin = f->lengths,
                         .num_rows = out_alloc(n, sizeof(uint32_t)),
                         .block_table = out_alloc((size_t)n * SEQ_BLOCKS, sizeof(int32_t)),
                         .seq_lens = out_alloc(n, sizeof(int32_t)),
                         .q_indptr = out_alloc(n + 1, sizeof(int32_t)),
                         .slots = out_alloc(n, sizeof(int64_t)),
                         .slots_capacity = n,
                         .table_width = SEQ_BLOCKS};
}

static void open_fallback(struct fallback *f, const struct options *o)
{
    *f = (struct fallback){.state = mix64(o->seed), .prompts = o->seed << 32, .kv_share_least = 1};
    f->m = manager_open(o->blocks, (uint32_t)(o->blocks / SEQ_BLOCKS) + 8, o->headroom);
    const lkv_pool_stats stats = manager_stats(&f->m);
    f->total = stats.blocks_total;
    f->base = stats.blocks_base;
    f->leases = out_alloc(f->total - f->base + 1, sizeof *f->leases);
    f->blocks = out_alloc(f->total - f->base + 1, sizeof *f->blocks);
    fill_cache(f);
    fill_kv(f);
    open_step(f);
}

static void close_fallback(struct fallback *f)
{
    for (uint32_t i = 0; i < f->num_seqs; i++)
        manager_free(&f->m, f->seqs[i]);
    manager_close(&f->m);
    free(f->seqs);
    free(f->lengths);
    free(f->leases);
    free(f->blocks);
    free((void *)f->step.num_new);
    free((void *)f->step.tokens);
    free((void *)f->step.num_rows);
    free(f->step.block_table);
    free(f->step.seq_lens);
    free(f->step.q_indptr);
    free(f->step.slots);
    series_free(&f->piece.us);
    series_free(&f->piece.cpu_us);
    series_free(&f->all.us);
    series_free(&f->all.cpu_us);
}

/* ---- rounds */

/* Sequences end and others begin until idle cache fills the headroom again. */
static void recycle(struct fallback *f)
{
    for (uint64_t done = 0; done < f->total - f->base + SEQ_BLOCKS; done += SEQ_BLOCKS) {
        const uint32_t i = f->next++ % f->num_seqs;
        manager_free(&f->m, f->seqs[i]);
        f->seqs[i] = new_seq(f, f->lengths[i]);
    }
}

static int lend(struct fallback *f, uint64_t n, struct timing *t, lkv_lease *lease)
{
    const uint64_t begin_cpu = clock_cpu_ns(), begin = clock_ns();
    const lkv_status status = lkv_lease_lend(f->m.pool, n, f->blocks, lease);
    const uint64_t end = clock_ns(), end_cpu = clock_cpu_ns();
    series_add(&t->us, (double)(end - begin) * 1e-3);
    series_add(&t->cpu_us, (double)(end_cpu - begin_cpu) * 1e-3);
    f->lends++;
    f->failures += status != LKV_OK;
    return status == LKV_OK;
}

/* Every sequence still has its blocks, and a step over all of them works. */
static void look_at_sequences(struct fallback *f)
{
    lkv_admission result = {.size = sizeof result};
    const lkv_pool_stats s = manager_stats(&f->m);
    const double kv_share = (double)s.blocks_in_use / (double)f->base;
    f->lost += s.seqs_live < f->num_seqs ? f->num_seqs - s.seqs_live : 0;
    f->kv_share_least = kv_share < f->kv_share_least ? kv_share : f->kv_share_least;
    out_must(lkv_pool_step(f->m.pool, &f->step, &result), "a step with the headroom lent");
}

/* The headroom is gone: one more block is refused at once, and nobody is preempted for it. */
static void lend_beyond(struct fallback *f)
{
    lkv_lease lease;
    const lkv_status status = lkv_lease_lend(f->m.pool, 1, f->blocks, &lease);
    f->beyond++;
    if (status == LKV_OK) {
        f->beyond_lent++;
        out_must(lkv_lease_release(f->m.pool, lease, 0), "the lease");
    } else if (status != LKV_E_NO_BLOCKS) {
        out_must(status, "a lend beyond the headroom");
    }
}

static void release(struct fallback *f, uint64_t num_leases)
{
    for (uint64_t i = 0; i < num_leases; i++)
        out_must(lkv_lease_release(f->m.pool, f->leases[i], 0), "the lease");
}

static void lend_pieces(struct fallback *f)
{
    uint64_t left = f->total - f->base, leases = 0;
    while (left) {
        uint64_t n = 1 + rng_below(&f->state, PIECE_MOST);
        n = n < left ? n : left;
        leases += (uint64_t)lend(f, n, &f->piece, &f->leases[leases]);
        left -= n;
    }
    look_at_sequences(f);
    lend_beyond(f);
    release(f, leases);
}

static void one_round(struct fallback *f)
{
    recycle(f);
    lend_pieces(f);
    recycle(f);
    const int lent = lend(f, f->total - f->base, &f->all, &f->leases[0]);
    look_at_sequences(f);
    lend_beyond(f);
    release(f, (uint64_t)lent);
    out_must(lkv_pool_check(f->m.pool), "the pool's invariants");
    f->checks++;
}

/* ---- results */

static json_t *describe(struct fallback *f, const struct options *o)
{
    return json_pack(
        "{s:s,s:I,s:I,s:I,s:o,s:I,s:I,s:I,s:o,s:o,s:o,s:o,s:I,s:I,s:I,s:o,s:I}", "device", "cpu",
        "blocks_total", (json_int_t)f->total, "blocks_base", (json_int_t)f->base, "headroom_blocks",
        (json_int_t)(f->total - f->base), "idle_share_without_fallback", out_number(f->idle_share),
        "rounds", (json_int_t)o->rounds, "lends", (json_int_t)f->lends, "lend_failures",
        (json_int_t)f->failures, "lend_us", series_p50_p99(&f->piece.us), "lend_cpu_us",
        series_p50_p99(&f->piece.cpu_us), "lend_all_us", series_p50_p99(&f->all.us),
        "lend_all_cpu_us", series_p50_p99(&f->all.cpu_us), "beyond_refused",
        (json_int_t)(f->beyond - f->beyond_lent), "beyond_lent", (json_int_t)f->beyond_lent,
        "sequences_lost", (json_int_t)f->lost, "kv_share_least", out_number(f->kv_share_least),
        "checks", (json_int_t)f->checks);
}

static void print_pair(const char *key, const json_t *pair)
{
    printf("  %-30s p50 %.3f, p99 %.3f\n", key, json_number_value(json_object_get(pair, "p50")),
           json_number_value(json_object_get(pair, "p99")));
}

static void print(json_t *root)
{
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value)
    {
        if (json_is_object(value))
            print_pair(key, value);
        else if (json_is_number(value))
            printf("  %-30s %.6g\n", key, json_number_value(value));
    }
}

int bench_fallback(int argc, char **argv)
{
    struct options o = {.blocks = 13000, .seed = 1, .rounds = 200, .headroom = 0.3};
    struct fallback f;
    struct progress bar;
    parse(argc, argv, &o);
    open_fallback(&f, &o);
    progress_start(&bar, "fallback", o.rounds);
    for (uint32_t i = 0; i < o.rounds; i++) {
        one_round(&f);
        progress_show(&bar, i + 1);
    }
    progress_end(&bar);
    const int broken = f.failures || f.beyond_lent || f.lost || f.kv_share_least < 1;
    json_t *root = describe(&f, &o);
    if (!o.json || strcmp(o.json, "-") != 0)
        print(root);
    out_json(root, o.json);
    close_fallback(&f);
    return broken ? EXIT_FAILED : EXIT_DONE;
}
