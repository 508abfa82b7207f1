/* The timed operations of `lkv bench blocks`. Each returns a median; what prepares an operation is
 * outside its clock. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "tools/bench/manager.h"
#include "tools/common/clock.h"
#include "tools/common/out.h"
#include "tools/common/rng.h"
#include "tools/common/stats.h"

enum { LONG_PROMPT = 50000, STEP_SEQS = 1000, STEP_CONTEXT = 2000 };
enum { SHORT_PROMPT = 16 * MANAGER_BLOCK, EVICT_RUNS = 401, EVICT_BATCH = 50 };
enum { THREAD_SEQS = 64, THREAD_CONTEXT = 512, THREAD_MOST = 32768, THREAD_ROUNDS = 9 };

static double median_and_free(struct series *s)
{
    const double median = series_percentile(s, 0.5);
    series_free(s);
    return median;
}

/* Match, then admission by the ticket, of a prompt whose 781 whole blocks are cached. */
double measure_match_admit(uint32_t repeats)
{
    struct manager m = manager_open(4000, 8, 0);
    struct series us = {0};
    int32_t *tokens = out_alloc(LONG_PROMPT, sizeof *tokens);
    fill_tokens(tokens, LONG_PROMPT, 1);
    manager_cache(&m, tokens, LONG_PROMPT);
    const lkv_prompt prompt = {.size = sizeof prompt, .tokens = tokens, .num_tokens = LONG_PROMPT};
    for (uint32_t i = 0; i < repeats; i++) {
        lkv_match match = {.size = sizeof match};
        lkv_admission result = {.size = sizeof result};
        const lkv_admit_args args = {.size = sizeof args, .match = &match};
        lkv_seq seq;
        const uint64_t begin = clock_ns();
        out_must(lkv_seq_match(m.pool, &prompt, &match), "match");
        out_must(lkv_seq_admit(m.pool, &prompt, &args, &result, &seq), "admission");
        series_add(&us, (double)(clock_ns() - begin) * 1e-3);
        if (result.hit_tokens != LONG_PROMPT / MANAGER_BLOCK * MANAGER_BLOCK)
            out_die("the cached prompt hit %llu tokens", (unsigned long long)result.hit_tokens);
        manager_free(&m, seq);
    }
    free(tokens);
    manager_close(&m);
    return median_and_free(&us);
}

/* ---- decode steps */

struct step_arrays {
    lkv_step step;
    lkv_seq *seqs;
};

static struct step_arrays open_step(struct manager *m, uint32_t num_seqs, uint32_t context,
                                    uint32_t most, uint64_t seed)
{
    struct step_arrays a = {.seqs = out_alloc(num_seqs, sizeof *a.seqs)};
    int32_t *tokens = out_alloc(context + num_seqs, sizeof *tokens);
    uint32_t *ones = out_alloc(num_seqs, sizeof *ones);
    lkv_admission result = {.size = sizeof result};
    const uint32_t width = most / MANAGER_BLOCK + 1;
    for (uint32_t i = 0; i < num_seqs; i++) {
        const uint32_t length =
            context - i % MANAGER_BLOCK; /* block ends fall in different steps */
        fill_tokens(tokens, length, seed + i);
        a.seqs[i] = manager_admit(m, tokens, length, &result);
        manager_commit(m, a.seqs[i], length);
        ones[i] = 1;
    }
    a.step = (lkv_step){.size = sizeof a.step,
                        .num_seqs = num_seqs,
                        .seqs = a.seqs,
                        .num_new = ones,
                        .tokens = tokens,
                        .block_table = out_alloc((size_t)num_seqs * width, sizeof(int32_t)),
                        .seq_lens = out_alloc(num_seqs, sizeof(int32_t)),
                        .q_indptr = out_alloc(num_seqs + 1, sizeof(int32_t)),
                        .slots = out_alloc(num_seqs, sizeof(int64_t)),
                        .slots_capacity = num_seqs,
                        .table_width = width};
    return a;
}

static void close_step(struct step_arrays *a)
{
    free(a->seqs);
    free((void *)a->step.num_new);
    free((void *)a->step.tokens);
    free(a->step.block_table);
    free(a->step.seq_lens);
    free(a->step.q_indptr);
    free(a->step.slots);
}

double measure_step(uint32_t repeats, int whole_tables)
{
    const uint32_t most = STEP_CONTEXT + repeats + 2;
    struct manager m = manager_open((uint64_t)STEP_SEQS * (most / MANAGER_BLOCK + 1), STEP_SEQS, 0);
    struct step_arrays a = open_step(&m, STEP_SEQS, STEP_CONTEXT, most, 7);
    struct series us = {0};
    lkv_admission result = {.size = sizeof result};
    out_must(lkv_pool_step(m.pool, &a.step, &result), "step"); /* fills whole tables once */
    a.step.flags = whole_tables ? 0 : LKV_STEP_TABLE_TAIL;
    for (uint32_t i = 0; i < repeats; i++) {
        const uint64_t begin = clock_ns();
        out_must(lkv_pool_step(m.pool, &a.step, &result), "step");
        series_add(&us, (double)(clock_ns() - begin) * 1e-3);
    }
    close_step(&a);
    manager_close(&m);
    return median_and_free(&us);
}

/* ---- cold prompts and eviction */

double measure_cold_prompt(uint32_t repeats)
{
    struct manager m = manager_open(20000, 8, 0);
    struct series us = {0};
    int32_t *tokens = out_alloc(LONG_PROMPT, sizeof *tokens);
    lkv_admission result = {.size = sizeof result};
    for (uint32_t i = 0; i < repeats + 30; i++) {
        fill_tokens(tokens, LONG_PROMPT, 100 + i);
        const uint64_t begin = clock_ns();
        const lkv_seq seq = manager_admit(&m, tokens, LONG_PROMPT, &result);
        manager_commit(&m, seq, LONG_PROMPT);
        manager_free(&m, seq);
        if (i >= 30) /* the first ones fill the pool with cached blocks */
            series_add(&us, (double)(clock_ns() - begin) * 1e-3);
    }
    free(tokens);
    manager_close(&m);
    return median_and_free(&us);
}

/* A pool full of cached prompts of 16 blocks, touched in random order. */
static void fill_and_shuffle(struct manager *m, uint64_t prompts)
{
    int32_t tokens[SHORT_PROMPT];
    uint64_t state = 5;
    for (uint64_t i = 0; i < prompts; i++) {
        fill_tokens(tokens, SHORT_PROMPT, 1000000 + i);
        manager_cache(m, tokens, SHORT_PROMPT);
    }
    for (uint64_t i = 0; i < prompts; i++) {
        fill_tokens(tokens, SHORT_PROMPT, 1000000 + rng_below(&state, prompts));
        manager_cache(m, tokens, SHORT_PROMPT);
    }
}

struct evictor {
    struct manager m;
    struct series us;
    uint64_t evicted; /* before the first run */
};

static void open_evictor(struct evictor *e, uint64_t num_blocks, int32_t *tokens)
{
    *e = (struct evictor){.m = manager_open(num_blocks, 8, 0)};
    fill_and_shuffle(&e->m, num_blocks / 16);
    fill_tokens(tokens, EVICT_BATCH * MANAGER_BLOCK, 2999999);
    manager_cache(&e->m, tokens, EVICT_BATCH * MANAGER_BLOCK); /* takes what is still free */
    e->evicted = manager_stats(&e->m).evicted_blocks;
}

static void evict_batch(struct evictor *e, int32_t *tokens, uint64_t seed)
{
    lkv_admission result = {.size = sizeof result};
    fill_tokens(tokens, EVICT_BATCH * MANAGER_BLOCK, seed);
    const uint64_t begin = clock_ns();
    const lkv_seq seq = manager_admit(&e->m, tokens, EVICT_BATCH * MANAGER_BLOCK, &result);
    series_add(&e->us, (double)(clock_ns() - begin) * 1e-3 / EVICT_BATCH);
    manager_free(&e->m, seq); /* not committed: its blocks are free, and are filled again */
    manager_cache(&e->m, tokens, EVICT_BATCH * MANAGER_BLOCK);
}

static double close_evictor(struct evictor *e)
{
    const uint64_t evicted = manager_stats(&e->m).evicted_blocks - e->evicted;
    if (evicted != EVICT_RUNS * EVICT_BATCH)
        out_die("%llu of %d blocks evicted", (unsigned long long)evicted, EVICT_RUNS * EVICT_BATCH);
    manager_close(&e->m);
    return median_and_free(&e->us);
}

/* What a scheduler pays for a block when every block is cached: a cold prompt is admitted and takes
 * the oldest blocks of the pool. Its hash and table are part of the cost, in both sizes of pool.
 * The pools take turns, so that a machine that slows down slows both. */
struct evict_cost measure_evict(uint64_t small_blocks, uint64_t large_blocks)
{
    struct evictor small, large;
    struct evict_cost cost;
    int32_t tokens[EVICT_BATCH * MANAGER_BLOCK];
    open_evictor(&small, small_blocks, tokens);
    open_evictor(&large, large_blocks, tokens);
    cost.metadata_bytes =
        (double)manager_stats(&large.m).metadata_allocated_bytes / (double)large_blocks;
    for (uint32_t i = 0; i < EVICT_RUNS; i++) { /* no query between: it walks a pool's metadata */
        evict_batch(&small, tokens, 3000000 + i);
        evict_batch(&large, tokens, 3000000 + i);
    }
    cost.small_us = close_evictor(&small);
    cost.large_us = close_evictor(&large);
    return cost;
}

/* ---- threads on one pool */

struct worker {
    struct manager *m;
    struct step_arrays arrays;
    atomic_int *stop;
    uint64_t calls;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    lkv_admission result = {.size = sizeof result};
    while (!atomic_load(w->stop) && w->calls < THREAD_MOST - THREAD_CONTEXT - 2) {
        out_must(lkv_pool_step(w->m->pool, &w->arrays.step, &result), "step");
        w->arrays.step.flags = LKV_STEP_TABLE_TAIL;
        w->calls++;
    }
    atomic_store(w->stop, 1); /* full: it ends for all, nobody idles in the time */
    return NULL;
}

/* Lets the workers run for `seconds`, or until one has filled its sequences. */
static void join_workers(pthread_t *threads, uint32_t n, double seconds, atomic_int *stop)
{
    const uint64_t deadline = clock_ns() + (uint64_t)(seconds * 1e9);
    while (!atomic_load(stop) && clock_ns() < deadline)
        usleep(200);
    atomic_store(stop, 1);
    for (uint32_t i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
}

/* Calls a second of n threads together, on one pool or on one each. */
static double threads_rate(uint32_t n, uint32_t pools, double seconds)
{
    const uint32_t seqs = n / pools * THREAD_SEQS;
    struct manager *managers = out_alloc(pools, sizeof *managers);
    struct worker *workers = out_alloc(n, sizeof *workers);
    pthread_t *threads = out_alloc(n, sizeof *threads);
    atomic_int stop = 0;
    uint64_t calls = 0;
    for (uint32_t i = 0; i < pools; i++)
        managers[i] = manager_open((uint64_t)seqs * (THREAD_MOST / MANAGER_BLOCK + 1), seqs, 0);
    for (uint32_t i = 0; i < n; i++) {
        struct manager *m = &managers[i % pools];
        workers[i] = (struct worker){
            m, open_step(m, THREAD_SEQS, THREAD_CONTEXT, THREAD_MOST, 1000 * i + 17), &stop, 0};
    }
    const uint64_t begin = clock_ns();
    for (uint32_t i = 0; i < n; i++)
        if (pthread_create(&threads[i], NULL, work, &workers[i]))
            out_die("could not start %u threads", n);
    join_workers(threads, n, seconds, &stop);
    const double elapsed = (double)(clock_ns() - begin) * 1e-9;
    for (uint32_t i = 0; i < n; i++) {
        calls += workers[i].calls;
        close_step(&workers[i].arrays);
    }
    for (uint32_t i = 0; i < pools; i++)
        manager_close(&managers[i]);
    free(managers);
    free(workers);
    free(threads);
    return (double)calls / elapsed;
}

/* They take turns, so that a slow moment of the machine slows all. */
struct threads_ratio measure_threads_ratio(void)
{
    struct series shared = {0}, apart = {0};
    for (int i = 0; i < THREAD_ROUNDS; i++) {
        const double one = threads_rate(1, 1, 0.5);
        series_add(&shared, threads_rate(8, 1, 0.5) / one);
        series_add(&apart, threads_rate(8, 8, 0.5) / one);
    }
    return (struct threads_ratio){median_and_free(&shared), median_and_free(&apart)};
}
