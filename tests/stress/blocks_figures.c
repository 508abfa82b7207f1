/* In: nothing. Out: the block manager's figures as lines "name value", medians, one thread.
 * A quick look while working on block_manager/; `lkv bench blocks` is the stated measurement. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "block_manager/manager.h"
#include "block_manager/state.h"

enum { BLOCK = 64, PROMPT = 50000, ROUNDS = 101 };

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

static void must(lkv_status status, int line)
{
    if (status == LKV_OK)
        return;
    fprintf(stderr, "line %d: %d %s\n", line, status, lkv_last_error());
    exit(1);
}
#define MUST(call) must(call, __LINE__)

static struct lkvi_manager *make(uint64_t num_blocks, uint32_t max_seqs)
{
    struct lkvi_manager *m = NULL;
    struct lkvi_manager_config config = {.num_blocks = num_blocks,
                                         .base_blocks = num_blocks,
                                         .tokens_per_block = BLOCK,
                                         .max_seqs = max_seqs};
    MUST(lkvi_manager_create(&config, &m));
    return m;
}

static uint64_t rng_state = 88172645463325252u;
static uint32_t rng(void)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)(rng_state >> 16);
}

static void random_prompt(int32_t *tokens, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(rng() % 100000);
}

static void run_prompt(struct lkvi_manager *m, const int32_t *tokens, uint64_t n)
{
    lkv_prompt prompt = {.size = sizeof prompt, .tokens = tokens, .num_tokens = n};
    lkv_seq seq;
    MUST(lkvi_seq_admit(m, &prompt, NULL, NULL, &seq));
    MUST(lkvi_seq_commit(m, seq, n));
    MUST(lkvi_seq_free(m, seq, 0));
}

/* Fills the pool with cached prompts of 2,000 tokens, freed in random order: a shuffled order. */
static void fill(struct lkvi_manager *m, uint64_t num_blocks)
{
    enum { N = 2000 };
    int32_t tokens[N];
    uint64_t num = num_blocks / (N / BLOCK + 1);
    lkv_seq *seqs = malloc((num + 1) * sizeof *seqs);
    for (uint64_t i = 0; i < num; i++) {
        lkv_prompt prompt = {.size = sizeof prompt, .tokens = tokens, .num_tokens = N};
        random_prompt(tokens, N);
        MUST(lkvi_seq_admit(m, &prompt, NULL, NULL, &seqs[i]));
        MUST(lkvi_seq_commit(m, seqs[i], N));
    }
    for (uint64_t i = num; i > 1; i--) {
        uint64_t j = rng() % i;
        lkv_seq t = seqs[i - 1];
        seqs[i - 1] = seqs[j];
        seqs[j] = t;
    }
    for (uint64_t i = 0; i < num; i++)
        MUST(lkvi_seq_free(m, seqs[i], 0));
    free(seqs);
}

static void hot_admission(void)
{
    static int32_t tokens[PROMPT];
    double both[ROUNDS], once[ROUNDS];
    struct lkvi_manager *m = make(10000, 1024);
    random_prompt(tokens, PROMPT);
    run_prompt(m, tokens, PROMPT);
    fill(m, 9000);
    for (int i = 0; i < ROUNDS; i++) {
        lkv_prompt prompt = {.size = sizeof prompt, .tokens = tokens, .num_tokens = PROMPT};
        lkv_match match = {.size = sizeof match};
        lkv_admit_args args = {.size = sizeof args, .match = &match};
        lkv_seq seq;
        double t0 = now_us();
        MUST(lkvi_seq_match(m, &prompt, &match));
        MUST(lkvi_seq_admit(m, &prompt, &args, NULL, &seq));
        both[i] = now_us() - t0;
        MUST(lkvi_seq_free(m, seq, 0));
        t0 = now_us();
        MUST(lkvi_seq_admit(m, &prompt, NULL, NULL, &seq));
        once[i] = now_us() - t0;
        MUST(lkvi_seq_free(m, seq, 0));
    }
    printf("match_admit_50k_us %.1f (admit alone %.1f)\n", median(both, ROUNDS),
           median(once, ROUNDS));
    lkvi_manager_destroy(m);
}

static void cold_admission(void)
{
    static int32_t tokens[PROMPT];
    double us[ROUNDS];
    struct lkvi_manager *m = make(10000, 1024);
    fill(m, 10000);
    for (int i = 0; i < ROUNDS; i++) {
        random_prompt(tokens, PROMPT);
        double t0 = now_us();
        run_prompt(m, tokens, PROMPT);
        us[i] = now_us() - t0;
    }
    printf("admit_free_cold_50k_us %.1f\n", median(us, ROUNDS));
    lkv_pool_stats stats;
    MUST(lkvi_manager_query(m, &stats));
    printf("metadata_bytes_per_block %.1f\n", (double)stats.metadata_allocated_bytes / 10000);
    MUST(lkvi_manager_check(m));
    lkvi_manager_destroy(m);
}

static void decode_step(void)
{
    enum { SEQS = 1000, LENGTH = 2000, WIDTH = 40, STEPS = 301 };
    static int32_t tokens[LENGTH], table[SEQS * WIDTH], lens[SEQS], indptr[SEQS + 1], ids[SEQS];
    static int64_t slots[SEQS];
    static uint32_t ones[SEQS];
    static lkv_seq seqs[SEQS];
    double full[STEPS], tail[STEPS];
    struct lkvi_manager *m = make(50000, SEQS);
    for (int i = 0; i < SEQS; i++) {
        lkv_prompt prompt = {.size = sizeof prompt, .tokens = tokens};
        random_prompt(tokens, LENGTH);
        prompt.num_tokens = LENGTH - 500 + rng() % 64;
        ones[i] = 1;
        MUST(lkvi_seq_admit(m, &prompt, NULL, NULL, &seqs[i]));
    }
    lkv_step step = {.size = sizeof step,
                     .num_seqs = SEQS,
                     .seqs = seqs,
                     .num_new = ones,
                     .tokens = ids,
                     .block_table = table,
                     .seq_lens = lens,
                     .q_indptr = indptr,
                     .slots = slots,
                     .slots_capacity = SEQS,
                     .table_width = WIDTH};
    for (int i = 0; i < STEPS; i++) {
        double t0 = now_us();
        step.flags = 0;
        MUST(lkvi_manager_step(m, &step, NULL));
        full[i] = now_us() - t0;
        t0 = now_us();
        step.flags = LKV_STEP_TABLE_TAIL;
        MUST(lkvi_manager_step(m, &step, NULL));
        tail[i] = now_us() - t0;
    }
    printf("step_1000_us %.1f (tail only %.1f)\n", median(full, STEPS), median(tail, STEPS));
    MUST(lkvi_manager_check(m));
    lkvi_manager_destroy(m);
}

static double evict_ns(uint64_t num_blocks)
{
    double ns[21];
    struct lkvi_manager *m = make(num_blocks, 65536);
    fill(m, num_blocks);
    uint64_t idle = m->counts.state[LKVI_IDLE], part = idle / 42, done;
    for (int i = 0; i < 21; i++) {
        double t0 = now_us();
        MUST(lkvi_manager_evict(m, part, &done));
        ns[i] = (now_us() - t0) * 1e3 / (double)done;
    }
    lkvi_manager_destroy(m);
    return median(ns, 21);
}

int main(void)
{
    hot_admission();
    cold_admission();
    decode_step();
    double small = evict_ns(10000), large = evict_ns(1000000);
    printf("evict_ns 10k %.1f, 1M %.1f, evict_cost_ratio_1m_10k %.2f\n", small, large,
           large / small);
    return 0;
}
