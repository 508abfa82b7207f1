/* The host tier: blocks of pinned memory behind the device's. A host block is
 *
 *   free | a copy of a cached device block | cached itself, on the host alone | of a swapped
 * sequence
 *
 * An evicted device block that has a copy passes its identity to it: the tree of the cache goes on
 * on the host, and everything under a block of the host is on the host. A hit takes a device block
 * again, gives it the identity back, and keeps the copy. */
#ifndef LKVI_BLOCK_MANAGER_HOST_H
#define LKVI_BLOCK_MANAGER_HOST_H

#include <stdint.h>
#include "block_manager/lru.h"
#include "latentkv/latentkv.h"

struct lkvi_copy;
struct lkvi_manager;

enum { LKVI_NUM_BLOCK_STATES = 6 };

struct lkvi_host_tier {
    uint32_t num_blocks;   /* ids N + 1 .. N + num_blocks; 0: no host tier, all else is 0 */
    uint32_t *free;        /* [num_blocks] a stack of free ids */
    uint32_t *copy_of;     /* [M + 1] a device block and its host copy name each other; 0 none */
    uint32_t *first_child; /* [M + 1] children that are on the host alone, the one used last */
    uint32_t *window;      /* [N] scratch of one demotion */
    struct lkvi_lru lru;   /* idle host blocks from the oldest */
    uint64_t state[LKVI_NUM_BLOCK_STATES];
    uint64_t cached;        /* on the host alone */
    uint64_t copies;        /* finished copies of device blocks */
    struct lkvi_copy *held; /* copies that wait for the fence of who writes their source */
    uint64_t num_held, held_capacity;
};

lkv_status lkvi_host_create(struct lkvi_manager *m, uint64_t num_blocks);
/* Host blocks that can be had now: free ones and idle ones. */
uint64_t lkvi_host_room(const struct lkvi_manager *m);
/* A host block without state or identity; the oldest idle one leaves for it. There must be room. */
uint32_t lkvi_host_take(struct lkvi_manager *m);

/* An idle device block, out of its list, is given up: its identity passes to its copy, or is lost
 * with everything under it. */
void lkvi_host_evict(struct lkvi_manager *m, uint32_t b);
/* The identity of host block h passes to device block b, whose copy h is from now on. */
void lkvi_host_promote(struct lkvi_manager *m, uint32_t h, uint32_t b);
/* A device block loses its identity: its copy, if it has one, is a copy no more. */
void lkvi_host_forget(struct lkvi_manager *m, uint32_t b);
/* Host block h, in no state, has arrived where nobody uses it: is it worth keeping? */
int lkvi_host_keep(struct lkvi_manager *m, uint32_t h);
void lkvi_host_clear(struct lkvi_manager *m); /* of all copies and children, for a reset */

#endif
