/* Host metadata memory. One arena per owner (jemalloc built privately, or libc): destroying the
 * arena returns all of it. A test hook makes the n-th allocation fail. Never used for record
 * memory, which comes from the backend. */
#ifndef LKVI_CORE_ALLOC_H
#define LKVI_CORE_ALLOC_H

#include <stddef.h>
#include <stdint.h>
#include "latentkv/latentkv.h"

struct lkvi_arena;
struct lkvi_arena_stats {
    uint64_t allocated_bytes, active_bytes,
        resident_bytes; /* 0 where libc is used and cannot tell */
};

lkv_status lkvi_arena_create(struct lkvi_arena **out);
void lkvi_arena_destroy(struct lkvi_arena *arena); /* frees everything still allocated in it */
void lkvi_arena_query(struct lkvi_arena *arena, struct lkvi_arena_stats *stats);

/* NULL on failure (the caller turns it into LKV_E_NO_MEMORY with a sentence). arena NULL: the
 * process-wide one. */
void *lkvi_alloc(struct lkvi_arena *arena, size_t bytes); /* 16-byte aligned, not zeroed */
void *lkvi_zalloc(struct lkvi_arena *arena, size_t count,
                  size_t bytes); /* overflow-checked, zeroed, 64-byte aligned */
void *lkvi_realloc(struct lkvi_arena *arena, void *p, size_t bytes); /* p stays valid on failure */
void lkvi_free(struct lkvi_arena *arena, void *p);                   /* NULL is a no-op */
/* What an allocation of so many zeroed bytes takes from an arena: heaps round sizes up. */
uint64_t lkvi_alloc_size(uint64_t bytes);

/* Tests only: the n-th allocation from now fails (1 is the next), once; 0 turns it off. Process
 * wide. */
void lkvi_alloc_fail_after(int64_t n);

#endif
