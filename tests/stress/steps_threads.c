/* In: nothing. Out: exit 0 if steps of 8 threads run beside one another and none is lost or
 * doubled. Built for TSan. Every thread steps sequences of its own and one that two others step
 * too, while one thread admits, evicts, lends and checks. Each token is a function of its sequence
 * and position, so at the end the whole sequence must be found again by its tokens; a position of a
 * common sequence that is handed out twice, or never, shows in a map of positions. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include "block_manager/manager.h"

enum { THREADS = 8, STEPS = 6000, ROUNDS = 4, OWN = 5, ROWS = OWN + 1, COMMON = 3, PROMPT = 21 };
enum { BLOCK = 16, WIDTH = 1024, MOST = WIDTH * BLOCK, BLOCKS = 22000, BASE = 20000 };

struct common { /* stepped by several threads: each position once */
    lkv_seq seq;
    atomic_uchar given[MOST];
};

struct worker {
    uint32_t id;
    lkv_seq own[OWN];
    uint64_t length[OWN];
};

static struct lkvi_manager *manager;
static struct common commons[COMMON];
static atomic_int failures, finished;

static void fail(const char *what)
{
    if (atomic_fetch_add(&failures, 1) < 20)
        fprintf(stderr, "%s: %s\n", what, lkv_last_error());
}

static int32_t token_of(uint32_t sequence, uint64_t position)
{
    return (int32_t)((sequence * 2654435761u + position * 40503u) & 0x7FFFFFFF);
}

static lkv_seq admit(uint32_t sequence)
{
    int32_t tokens[PROMPT];
    lkv_seq seq = 0;
    for (uint32_t i = 0; i < PROMPT; i++)
        tokens[i] = token_of(sequence, i);
    const lkv_prompt prompt = {.size = sizeof prompt, .tokens = tokens, .num_tokens = PROMPT};
    if (lkvi_seq_admit(manager, &prompt, NULL, NULL, &seq) != LKV_OK)
        fail("admit");
    return seq;
}

/* A row's outputs against the sequence's own table. */
static void check_row(const lkv_step *step, uint32_t i, uint64_t length)
{
    const int32_t *table = step->block_table + (uint64_t)i * WIDTH;
    const uint64_t at = length - 1;
    if (step->seq_lens[i] != (int32_t)length || step->positions[i] != (int32_t)at ||
        step->q_indptr[i + 1] != (int32_t)i + 1 ||
        step->slots[i] != (int64_t)table[at / BLOCK] * BLOCK + (int64_t)(at % BLOCK))
        fail("outputs of a row");
}

/* The table that was written is the sequence's. */
static void check_table(const lkv_step *step, uint32_t i, uint64_t length)
{
    const int32_t *table = step->block_table + (uint64_t)i * WIDTH;
    const uint64_t at = length - 1;
    int32_t now[WIDTH];
    uint64_t num;
    if (lkvi_seq_table(manager, step->seqs[i], now, WIDTH, &num) != LKV_OK ||
        num != at / BLOCK + 1 || now[at / BLOCK] != table[at / BLOCK])
        fail("table of a row");
}

static void step_once(struct worker *w, lkv_step *step, int32_t *tokens, struct common *c)
{
    lkv_admission result = {.size = sizeof result};
    for (uint32_t i = 0; i < OWN; i++)
        tokens[i] = token_of(100 * w->id + i, w->length[i]);
    tokens[OWN] = 1;
    const lkv_status status = lkvi_manager_step(manager, step, &result);
    if (status != LKV_OK) {
        fail("step");
        return;
    }
    for (uint32_t i = 0; i < OWN; i++)
        check_row(step, i, ++w->length[i]);
    if (w->length[0] % 64 == 0)
        check_table(step, w->length[0] / 64 % OWN, w->length[w->length[0] / 64 % OWN]);
    const int32_t length = step->seq_lens[OWN];
    if (length <= PROMPT || atomic_exchange(&c->given[length - 1], 1))
        fail("a position was given twice");
}

static void *work(void *arg)
{
    struct worker *w = arg;
    struct common *c = &commons[w->id % COMMON];
    int32_t tokens[ROWS], *table = calloc(ROWS * WIDTH, sizeof *table);
    int32_t seq_lens[ROWS], q_indptr[ROWS + 1], positions[ROWS];
    int64_t slots[ROWS];
    lkv_seq seqs[ROWS];
    uint32_t ones[ROWS];
    for (uint32_t i = 0; i < ROWS; i++) {
        seqs[i] = i < OWN ? w->own[i] : c->seq;
        ones[i] = 1;
    }
    lkv_step step = {.size = sizeof step,
                     .num_seqs = ROWS,
                     .seqs = seqs,
                     .num_new = ones,
                     .tokens = tokens,
                     .block_table = table,
                     .seq_lens = seq_lens,
                     .q_indptr = q_indptr,
                     .slots = slots,
                     .positions = positions,
                     .slots_capacity = ROWS,
                     .table_width = WIDTH};
    for (uint32_t n = 0; n < STEPS; n++) {
        step.num_seqs = n % 4 ? ROWS : OWN; /* alone, then also what others step */
        if (step.num_seqs == ROWS) {
            step_once(w, &step, tokens, c);
            continue;
        }
        for (uint32_t i = 0; i < OWN; i++)
            tokens[i] = token_of(100 * w->id + i, w->length[i]);
        if (lkvi_manager_step(manager, &step, NULL) != LKV_OK)
            fail("step of own sequences");
        for (uint32_t i = 0; i < OWN; i++)
            check_row(&step, i, ++w->length[i]);
    }
    free(table);
    atomic_fetch_add(&finished, 1);
    return NULL;
}

static void cache_prompt(uint32_t sequence)
{
    const lkv_seq seq = admit(sequence);
    if (lkvi_seq_commit(manager, seq, PROMPT) != LKV_OK || lkvi_seq_free(manager, seq, 0) != LKV_OK)
        fail("commit and free");
}

/* Admits, so that there is always something cached to evict; lends; checks the whole pool. */
static void *disturb(void *arg)
{
    int32_t blocks[40];
    lkv_lease lease;
    (void)arg;
    for (uint32_t n = 0; atomic_load(&finished) < THREADS; n++) {
        cache_prompt(200000 + n);
        if (n % 8 == 0 && (lkvi_lease_lend(manager, 40, blocks, &lease) != LKV_OK ||
                           lkvi_lease_release(manager, lease, 0) != LKV_OK))
            fail("lend");
        if (n % 2048 == 0 && lkvi_manager_check(manager) != LKV_OK)
            fail("check");
    }
    return NULL;
}

/* All its tokens are found again: they are those that were given, in their places. */
static void check_sequence(const struct worker *w, uint32_t i)
{
    const uint64_t length = w->length[i];
    int32_t *tokens = malloc((length + 1) * sizeof *tokens);
    lkv_match match = {.size = sizeof match};
    for (uint64_t p = 0; p <= length; p++)
        tokens[p] = token_of(100 * w->id + i, p);
    const lkv_prompt prompt = {.size = sizeof prompt, .tokens = tokens, .num_tokens = length + 1};
    if (lkvi_seq_commit(manager, w->own[i], length) != LKV_OK ||
        lkvi_seq_match(manager, &prompt, &match) != LKV_OK ||
        match.hit_tokens < length / BLOCK * BLOCK)
        fail("tokens of a sequence");
    if (lkvi_seq_free(manager, w->own[i], 0) != LKV_OK)
        fail("free");
    free(tokens);
}

static void check_common(struct common *c)
{
    lkv_seq_info info = {.size = sizeof info};
    uint64_t given = 0;
    for (uint32_t p = 0; p < MOST; p++)
        given += atomic_load(&c->given[p]);
    if (lkvi_seq_query(manager, c->seq, &info) != LKV_OK || info.length != PROMPT + given) {
        fprintf(stderr, "%llu positions were given, %llu tokens are there\n",
                (unsigned long long)given, (unsigned long long)info.length - PROMPT);
        fail("a common sequence");
    }
    if (lkvi_seq_free(manager, c->seq, 0) != LKV_OK)
        fail("free");
}

static void run_round(void)
{
    static struct worker workers[THREADS];
    pthread_t threads[THREADS + 1];
    atomic_store(&finished, 0);
    for (uint32_t i = 0; i < COMMON; i++) {
        commons[i].seq = admit(50000 + i);
        for (uint32_t p = 0; p < MOST; p++)
            atomic_store(&commons[i].given[p], 0);
    }
    for (uint32_t t = 0; t < THREADS; t++) {
        workers[t].id = t;
        for (uint32_t i = 0; i < OWN; i++) {
            workers[t].own[i] = admit(100 * t + i);
            workers[t].length[i] = PROMPT;
        }
    }
    pthread_create(&threads[THREADS], NULL, disturb, NULL);
    for (uint32_t t = 0; t < THREADS; t++)
        pthread_create(&threads[t], NULL, work, &workers[t]);
    for (uint32_t t = 0; t <= THREADS; t++)
        pthread_join(threads[t], NULL);
    for (uint32_t t = 0; t < THREADS; t++)
        for (uint32_t i = 0; i < OWN; i++)
            check_sequence(&workers[t], i);
    for (uint32_t i = 0; i < COMMON; i++)
        check_common(&commons[i]);
}

int main(void)
{
    lkv_pool_stats stats;
    const struct lkvi_manager_config config = {
        .num_blocks = BLOCKS, .base_blocks = BASE, .tokens_per_block = BLOCK, .max_seqs = 64};
    if (lkvi_manager_create(&config, &manager) != LKV_OK)
        return 1;
    for (uint32_t n = 0; n < BLOCKS; n++) /* full of cached prompts: steps evict from the start */
        cache_prompt(100000 + n);
    for (int i = 0; i < ROUNDS; i++)
        run_round();
    lkvi_manager_query(manager, &stats);
    if (lkvi_manager_check(manager) != LKV_OK || stats.blocks_in_use || stats.seqs_live)
        fail("at the end");
    lkvi_manager_destroy(manager);
    printf("%d threads, %d rounds of %d steps each, %llu blocks evicted, %d failures\n", THREADS,
           ROUNDS, STEPS, (unsigned long long)stats.evicted_blocks, atomic_load(&failures));
    return atomic_load(&failures) != 0 || !stats.evicted_blocks;
}
