/* In: nothing. Out: exit 0 if 8 threads on one manager leave it clean. Built for TSan.
 * Every thread admits, grows, commits, forks, matches, pins, lends, swaps and frees over the same
 * few prompts, so that they hit and evict one another's blocks, on both tiers; one of them also
 * demotes, runs copies while the others take theirs back, and passes fences. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include "block_manager/manager.h"

enum { THREADS = 8, ROUNDS = 2000, TOKENS = 200, BLOCKS = 220, BASE = 180, HOST = 60 };
enum { PAIRS = 64 };

static struct lkvi_manager *manager;
static atomic_int failures, came_back;
static atomic_uint_fast64_t fence;
static pthread_mutex_t copies = PTHREAD_MUTEX_INITIALIZER; /* from issue to settle */

static int fine(lkv_status status)
{
    return status == LKV_OK || status == LKV_E_NO_BLOCKS || status == LKV_E_WAIT_PENDING ||
           status == LKV_E_STALE_HIT || status == LKV_E_BUSY || status == LKV_E_NOT_FOUND ||
           status == LKV_E_NO_HOST_SPACE;
}

static void expect(lkv_status status, const char *what)
{
    if (fine(status))
        return;
    fprintf(stderr, "%s: status %d %s\n", what, status, lkv_last_error());
    atomic_fetch_add(&failures, 1);
}

/* What api/ does: a few copies at a time, the last of which may fail. */
static void run_copies(uint32_t round)
{
    int32_t pairs[PAIRS][2];
    uint64_t waiting, num;
    pthread_mutex_lock(&copies);
    expect(lkvi_manager_demote(manager, 16, &num), "demote");
    expect(lkvi_manager_issue_copies(manager, pairs[0], PAIRS, &waiting), "issue");
    num = waiting < PAIRS ? waiting : PAIRS;
    if (round % 7 == 0)
        sched_yield();
    num -= num && round % 3 == 0;
    if (lkvi_manager_settle_copies(manager, num, atomic_load(&fence) + 1) != LKV_OK) {
        fprintf(stderr, "settle: %s\n", lkv_last_error());
        atomic_fetch_add(&failures, 1);
    }
    pthread_mutex_unlock(&copies);
    lkvi_manager_pass_fence(manager, atomic_fetch_add(&fence, 1) + 1);
}

/* Out, and in again if that is soon enough; else it is freed while it is out. */
static void swap(lkv_seq seq, uint64_t after)
{
    lkv_status status = lkvi_seq_swap_out(manager, seq, after, NULL);
    expect(status, "swap out");
    if (status != LKV_OK)
        return;
    for (int tries = 0; tries < 100; tries++) {
        status = lkvi_seq_swap_in(manager, seq, NULL);
        expect(status, "swap in");
        if (status == LKV_OK) {
            atomic_fetch_add(&came_back, 1);
            return;
        }
        run_copies((uint32_t)tries);
    }
}

static void run_sequence(uint32_t kind, uint32_t round)
{
    int32_t tokens[TOKENS], table[64];
    uint64_t num;
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = (int32_t)(i < 96 ? kind % 3 : kind);
    lkv_prompt prompt = {.size = sizeof prompt, .tokens = tokens, .num_tokens = TOKENS};
    lkv_match match = {.size = sizeof match};
    lkv_admit_args args = {.size = sizeof args, .match = &match};
    lkv_seq seq, child;
    lkv_lease lease;
    expect(lkvi_seq_match(manager, &prompt, &match), "match");
    lkv_status status = lkvi_seq_admit(manager, &prompt, &args, NULL, &seq);
    expect(status, "admit");
    if (status != LKV_OK)
        return;
    expect(lkvi_seq_append(manager, seq, tokens, 17, NULL), "append");
    expect(lkvi_seq_commit(manager, seq, TOKENS), "commit");
    expect(lkvi_seq_table(manager, seq, table, 64, &num), "table");
    if (round % 3 == 0 && lkvi_lease_pin(manager, table, 4, &lease) == LKV_OK)
        expect(lkvi_lease_release(manager, lease, 0), "release");
    if (round % 4 == 0 && lkvi_seq_fork(manager, seq, &child) == LKV_OK) {
        expect(lkvi_seq_append(manager, child, tokens, 3, NULL), "append to a fork");
        expect(lkvi_seq_free(manager, child, 0), "free a fork");
    }
    if (round % 5 == 0)
        swap(seq, round % 10 ? atomic_load(&fence) + 1 : 0);
    expect(lkvi_seq_free(manager, seq, round % 2 ? atomic_load(&fence) + 1 : 0), "free");
}

static void *work(void *arg)
{
    uint32_t id = (uint32_t)(uintptr_t)arg;
    int32_t blocks[40];
    lkv_lease lease;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        run_sequence((id + round) % 11, round);
        if (round % 5 == id % 5 && lkvi_lease_lend(manager, 4, blocks, &lease) == LKV_OK)
            expect(lkvi_lease_release(manager, lease, 0), "release what was lent");
        if (id == 0 || round % 16 == 0)
            run_copies(round);
        if (round % 500 == 0)
            expect(lkvi_manager_check(manager), "check");
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    struct lkvi_manager_config config = {.num_blocks = BLOCKS,
                                         .base_blocks = BASE,
                                         .host_blocks = HOST,
                                         .tokens_per_block = 16,
                                         .max_seqs = 32};
    if (lkvi_manager_create(&config, &manager) != LKV_OK)
        return 1;
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    uint64_t waiting;
    lkvi_manager_pass_fence(manager, UINT64_MAX);
    lkvi_manager_peek_copies(manager, NULL, 0, &waiting);
    lkvi_manager_settle_copies(manager, waiting, 0);
    lkv_pool_stats stats;
    lkvi_manager_query(manager, &stats);
    if (lkvi_manager_check(manager) != LKV_OK || stats.blocks_in_use || stats.seqs_live ||
        stats.blocks_pending || stats.host_blocks_in_use || stats.host_blocks_pending) {
        fprintf(stderr, "at the end: %s; %llu in use, %llu pending\n", lkv_last_error(),
                (unsigned long long)stats.blocks_in_use, (unsigned long long)stats.blocks_pending);
        return 1;
    }
    lkvi_manager_destroy(manager);
    printf("%d threads, %d rounds each, %d failures; %d swaps came back, %llu demoted\n", THREADS,
           ROUNDS, atomic_load(&failures), atomic_load(&came_back),
           (unsigned long long)stats.demoted_blocks);
    return atomic_load(&failures) != 0 || !atomic_load(&came_back);
}
