/* core/threads under several callers: every index of every run is done once, by a worker id that no
 * other thread of the run has at that time. Under TSan it also says that the fields are guarded. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include "core/threads.h"

enum { CALLERS = 4, RUNS = 300, MAX_COUNT = 67, NUM_THREADS = 5 };

struct run {
    atomic_uint done[MAX_COUNT];
    atomic_uint busy[NUM_THREADS]; /* worker ids in use */
    atomic_uint errors;
};

struct caller {
    struct lkvi_threads *pool;
    unsigned seed;
    unsigned errors;
};

static void task(void *arg, uint64_t index, uint32_t worker)
{
    struct run *run = arg;
    if (worker >= NUM_THREADS || atomic_fetch_add(&run->busy[worker], 1))
        atomic_fetch_add(&run->errors, 1);
    atomic_fetch_add(&run->done[index], 1);
    if (worker < NUM_THREADS)
        atomic_fetch_sub(&run->busy[worker], 1);
}

static void *caller_main(void *arg)
{
    struct caller *c = arg;
    for (unsigned r = 0; r < RUNS; r++) {
        struct run run = {0};
        uint64_t count = (c->seed * 31 + r * 7) % (MAX_COUNT + 1);
        lkvi_threads_run(c->pool, count, task, &run);
        for (uint64_t i = 0; i < MAX_COUNT; i++)
            c->errors += run.done[i] != (i < count);
        c->errors += run.errors;
    }
    return NULL;
}

static unsigned storm(struct lkvi_threads *pool)
{
    pthread_t threads[CALLERS];
    struct caller callers[CALLERS];
    unsigned errors = 0;
    for (unsigned i = 0; i < CALLERS; i++) {
        callers[i] = (struct caller){pool, i + 1, 0};
        if (pthread_create(&threads[i], NULL, caller_main, &callers[i]))
            exit(2);
    }
    for (unsigned i = 0; i < CALLERS; i++) {
        pthread_join(threads[i], NULL);
        errors += callers[i].errors;
    }
    return errors;
}

int main(void)
{
    unsigned errors = 0;
    for (uint32_t n = 1; n <= NUM_THREADS; n += 2) {
        struct lkvi_threads *pool;
        if (lkvi_threads_create(n, &pool) != LKV_OK || lkvi_threads_count(pool) != n)
            return 2;
        errors += storm(pool);
        lkvi_threads_destroy(pool);
    }
    for (int i = 0; i < 50; i++) { /* ends while workers may still be starting */
        struct lkvi_threads *pool;
        if (lkvi_threads_create(NUM_THREADS, &pool) != LKV_OK)
            return 2;
        lkvi_threads_destroy(pool);
    }
    printf("%d callers, %d runs each, 1 to %d threads: %u errors\n", CALLERS, RUNS, NUM_THREADS,
           errors);
    return errors != 0;
}
