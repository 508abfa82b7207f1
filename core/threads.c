/* In: a task and a count. Out: task(arg, 0..count-1), each once, over the workers and the caller.
 *
 *   caller: open job -> wake -> take indices -> close job -> wait until no worker is inside
 *   worker: sleep until an open job that it has not seen -> join -> take indices -> leave
 *
 * A worker that wakes late finds the job closed and sleeps on: the caller never waits for threads
 * that had nothing to do. All job fields are read and written under the mutex; only the index
 * counter is atomic. */
#define _GNU_SOURCE
#include "core/threads.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>
#include "core/alloc.h"
#include "core/status.h"

enum { THREADS_MAX = 256 };

struct worker {
    struct lkvi_threads *pool;
    pthread_t thread;
    uint32_t index; /* 1..; 0 is the caller */
};

struct lkvi_threads {
    pthread_mutex_t serial; /* held through a run: callers queue here */
    pthread_mutex_t mutex;  /* the fields below */
    pthread_cond_t wake, left;
    uint64_t generation; /* of the last job */
    uint32_t open;       /* the job may be joined */
    uint32_t inside;     /* workers in the job */
    uint32_t stop;
    uint32_t num_threads;
    uint32_t num_started; /* workers that exist; num_threads - 1 once created */
    lkvi_task_fn task;
    void *arg;
    uint64_t count;
    atomic_uint_fast64_t next;
    struct worker workers[];
};

static void take_indices(struct lkvi_threads *pool, lkvi_task_fn task, void *arg, uint64_t count,
                         uint32_t worker)
{
    for (;;) {
        uint64_t i = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (i >= count)
            return;
        task(arg, i, worker);
    }
}

static void *worker_main(void *arg)
{
    struct worker *self = arg;
    struct lkvi_threads *pool = self->pool;
    uint64_t seen = 0;
    pthread_mutex_lock(&pool->mutex);
    for (;;) {
        while (!pool->stop && (!pool->open || pool->generation == seen))
            pthread_cond_wait(&pool->wake, &pool->mutex);
        if (pool->stop)
            break;
        seen = pool->generation;
        pool->inside++;
        lkvi_task_fn task = pool->task;
        void *task_arg = pool->arg;
        uint64_t count = pool->count;
        pthread_mutex_unlock(&pool->mutex);
        take_indices(pool, task, task_arg, count, self->index);
        pthread_mutex_lock(&pool->mutex);
        if (--pool->inside == 0)
            pthread_cond_signal(&pool->left);
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

/* Workers take no signals: the host's handlers run on the host's threads. */
static int start_worker(struct lkvi_threads *pool, uint32_t index)
{
    struct worker *worker = &pool->workers[index - 1];
    sigset_t all, before;
    worker->pool = pool;
    worker->index = index;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&worker->thread, NULL, worker_main, worker);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error)
        pthread_setname_np(worker->thread, "latentkv");
    return error;
}

static uint32_t online_cores(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    if (n < 1)
        return 1;
    return n > THREADS_MAX ? THREADS_MAX : (uint32_t)n;
}

lkv_status lkvi_threads_create(uint32_t num_threads, struct lkvi_threads **out)
{
    if (num_threads > THREADS_MAX)
        return lkvi_fail(LKV_E_INVALID, "num_threads is %u; need at most %u", num_threads,
                         (unsigned)THREADS_MAX);
    if (!num_threads)
        num_threads = online_cores();
    size_t bytes = sizeof(struct lkvi_threads) + (num_threads - 1) * sizeof(struct worker);
    struct lkvi_threads *pool = lkvi_zalloc(NULL, 1, bytes);
    if (!pool)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for %u threads", num_threads);
    pool->num_threads = num_threads;
    pthread_mutex_init(&pool->serial, NULL);
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->left, NULL);
    while (pool->num_started + 1 < num_threads) {
        int error = start_worker(pool, pool->num_started + 1);
        if (error) {
            lkvi_fail(LKV_E_NO_MEMORY, "thread %u of %u cannot start: %s", pool->num_started + 1,
                      num_threads, strerror(error));
            lkvi_threads_destroy(pool);
            return LKV_E_NO_MEMORY;
        }
        pool->num_started++;
    }
    *out = pool;
    return LKV_OK;
}

void lkvi_threads_destroy(struct lkvi_threads *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->mutex);
    pool->stop = 1;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
    for (uint32_t i = 0; i < pool->num_started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->left);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->mutex);
    pthread_mutex_destroy(&pool->serial);
    lkvi_free(NULL, pool);
}

uint32_t lkvi_threads_count(const struct lkvi_threads *pool)
{
    return pool->num_threads;
}

static void open_job(struct lkvi_threads *pool, uint64_t count, lkvi_task_fn task, void *arg)
{
    pthread_mutex_lock(&pool->mutex);
    pool->task = task;
    pool->arg = arg;
    pool->count = count;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    pool->generation++;
    pool->open = 1;
    if (count > pool->num_started)
        pthread_cond_broadcast(&pool->wake);
    else
        for (uint64_t i = 1; i < count; i++)
            pthread_cond_signal(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
}

static void close_job(struct lkvi_threads *pool)
{
    pthread_mutex_lock(&pool->mutex);
    pool->open = 0;
    while (pool->inside)
        pthread_cond_wait(&pool->left, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
}

/* Inline runs hold the lock too: worker 0's scratch has one user at a time. */
void lkvi_threads_run(struct lkvi_threads *pool, uint64_t count, lkvi_task_fn task, void *arg)
{
    if (!count)
        return;
    pthread_mutex_lock(&pool->serial);
    if (count == 1 || pool->num_threads == 1) {
        for (uint64_t i = 0; i < count; i++)
            task(arg, i, 0);
    } else {
        open_job(pool, count, task, arg);
        take_indices(pool, task, arg, count, 0);
        close_job(pool);
    }
    pthread_mutex_unlock(&pool->serial);
}
