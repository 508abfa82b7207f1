/* The eviction order: block ids from the oldest to the newest in one ring of slots.
 *
 *     head                                   tail
 *      v                                      v
 *   .  7  .  3  9  .  .  4  .  .  12  5  8    (a dot is a hole left by a removal)
 *
 * Each block knows its slot (place), so removal is one store; popping reads memory in order, so
 * the next victims are known and can be prefetched, which a linked list forbids. Holes are swept
 * a few slots at a time by the pushes themselves: no call ever pays for a whole compaction. */
#ifndef LKVI_BLOCK_MANAGER_LRU_H
#define LKVI_BLOCK_MANAGER_LRU_H

#include <stdint.h>
#include "core/alloc.h"

struct lkvi_lru {
    uint32_t *slots; /* [mask + 1], 0 is a hole */
    uint32_t mask;
    uint32_t live;
    uint64_t head, tail; /* absolute; slot = position & mask */
    uint64_t from, to;   /* of the sweep that is on; from == 0: none */
};

/* A reader of the order that runs ahead of the pops, past the holes. */
struct lkvi_lru_ahead {
    uint64_t at;
    uint32_t lead; /* blocks that it has seen and that are not popped yet, about */
};

/* Told where a block has gone: place of block b is now slot. */
struct lkvi_cold;

/* A ring for num_blocks has so many slots; the caller's memory for them is zeroed. */
uint64_t lkvi_lru_num_slots(uint32_t num_blocks);
void lkvi_lru_open(struct lkvi_lru *lru, uint32_t *slots, uint32_t num_blocks);
void lkvi_lru_push(struct lkvi_lru *lru, struct lkvi_cold *cold, uint32_t b); /* newest */
void lkvi_lru_push_oldest(struct lkvi_lru *lru, struct lkvi_cold *cold, uint32_t b);
void lkvi_lru_remove(struct lkvi_lru *lru, struct lkvi_cold *cold, uint32_t b);
uint32_t lkvi_lru_pop(struct lkvi_lru *lru); /* the oldest, 0 if none */
/* The next block in the order, 0 past the end: for prefetching. */
static inline uint32_t lkvi_lru_look(const struct lkvi_lru *lru, struct lkvi_lru_ahead *ahead)
{
    if (ahead->at < lru->head || ahead->at > lru->tail) { /* overtaken, or swept away */
        ahead->at = lru->head;
        ahead->lead = 0;
    }
    while (ahead->at < lru->tail) {
        uint32_t b = lru->slots[ahead->at++ & lru->mask];
        if (!b)
            continue;
        ahead->lead++;
        return b;
    }
    return 0;
}

#endif
