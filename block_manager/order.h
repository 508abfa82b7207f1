/* The order in which idle blocks go: by priority, within one priority from the oldest. Priority 0
 * is the ring of lru.h; the others are linked lists, which cost memory once the first is asked for.
 *
 *   evicted first   | priority 0: ring | 1: list | 2 | ... | 100 |   evicted last
 *                            ^--------- expired, on a tick -----
 *
 * A timing wheel finds what expires: a block enters and leaves it in O(1), and moves down at most
 * ten levels while it waits. */
#ifndef LKVI_BLOCK_MANAGER_ORDER_H
#define LKVI_BLOCK_MANAGER_ORDER_H

#include <stdint.h>
#include "core/alloc.h"

struct lkvi_manager;

enum { LKVI_PRIORITY_MAX = 100, LKVI_WHEEL_LEVELS = 11, LKVI_WHEEL_SLOTS = 64 };

struct lkvi_rank {  /* of a block whose priority is not 0 */
    uint64_t until; /* the tick from which its priority is 0; 0: never */
    uint32_t next, previous;
    uint32_t timer_next, timer_previous; /* while it is in a list and until is not 0 */
};

struct lkvi_class {
    uint32_t head, tail; /* oldest, newest */
};

struct lkvi_order {
    struct lkvi_rank *ranks; /* [N + 1], NULL until an admission has a priority */
    struct lkvi_class classes[LKVI_PRIORITY_MAX + 1];
    uint64_t used[2];                                     /* bit p: class p is not empty */
    uint64_t now;                                         /* the caller's clock */
    uint32_t wheel[LKVI_WHEEL_LEVELS * LKVI_WHEEL_SLOTS]; /* first block of each slot, or 0 */
};

lkv_status lkvi_order_ensure(struct lkvi_manager *m);     /* before the first priority */
void lkvi_order_push(struct lkvi_manager *m, uint32_t b); /* newest of its priority */
void lkvi_order_push_oldest(struct lkvi_manager *m, uint32_t b);
void lkvi_order_remove(struct lkvi_manager *m, uint32_t b);
uint32_t lkvi_order_pop(struct lkvi_manager *m); /* the next to go, 0 if none */
/* A block that is in no list gets this priority if it is higher than its own now. */
void lkvi_order_raise(struct lkvi_manager *m, uint32_t b, uint8_t priority, uint64_t until);
void lkvi_order_tick(struct lkvi_manager *m, uint64_t now);
/* The wheel's slot of a block that expires at `until`, which is above now. */
uint32_t lkvi_order_slot(const struct lkvi_order *order, uint64_t until);

#endif
