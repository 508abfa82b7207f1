/* A small pthread pool per context. run() splits [0, count) over the workers and the calling thread
 * and returns when all is done. Which thread runs an index never changes the result: indices own
 * their outputs. */
#ifndef LKVI_CORE_THREADS_H
#define LKVI_CORE_THREADS_H

#include <stdint.h>
#include "latentkv/latentkv.h"

struct lkvi_threads;
/* worker is 0..num_threads-1, for per-worker scratch. Must not fail and must not call run() on the
 * same pool. */
typedef void (*lkvi_task_fn)(void *arg, uint64_t index, uint32_t worker);

lkv_status lkvi_threads_create(uint32_t num_threads, struct lkvi_threads **out);
void lkvi_threads_destroy(struct lkvi_threads *pool);
uint32_t lkvi_threads_count(const struct lkvi_threads *pool);
/* Callers on several threads are served one after the other. count 0 or 1, or one thread: runs
 * inline. */
void lkvi_threads_run(struct lkvi_threads *pool, uint64_t count, lkvi_task_fn task, void *arg);

#endif
