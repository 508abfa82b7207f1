/* What lives beside KV blocks and must follow them: slots of moe_cache/ register here and are told,
 * under the manager's lock, when a block's content ends, is copied, moves to another id, or gets
 * other tokens. They borrow headroom blocks one at a time, under the same lock, so one mutex guards
 * both and there is no order of locks to keep. Callbacks cannot fail and do not call back, but for
 * lkvi_side_return. */
#ifndef LKVI_BLOCK_MANAGER_SIDE_H
#define LKVI_BLOCK_MANAGER_SIDE_H

#include <stdint.h>
#include "block_manager/manager.h"

struct lkvi_side {
    /* Its content is gone: the block is free, or somebody else's next. */
    void (*dropped)(struct lkvi_side *side, uint32_t block);
    /* The first num_tokens of `to` are those of `from`. */
    void (*copied)(struct lkvi_side *side, uint32_t from, uint32_t to, uint32_t num_tokens);
    /* What `from` stood for is `to` now (a cached block that goes to the host, or comes back). */
    void (*moved)(struct lkvi_side *side, uint32_t from, uint32_t to);
    /* Tokens [begin, end) of a block are, or will be, others. */
    void (*written)(struct lkvi_side *side, uint32_t block, uint32_t begin, uint32_t end);
    /* Its own invariants, for lkvi_manager_check. */
    lkv_status (*check)(struct lkvi_side *side);
    struct lkvi_side *next; /* the manager's from attach to detach */
    uint32_t lease;
};

/* Registers; room for the ids of max_blocks borrowed blocks is taken now. */
lkv_status lkvi_side_attach(struct lkvi_manager *m, struct lkvi_side *side, uint64_t max_blocks);
/* Gives back what is borrowed. */
void lkvi_side_detach(struct lkvi_manager *m, struct lkvi_side *side);

void lkvi_side_lock(struct lkvi_manager *m);
void lkvi_side_unlock(struct lkvi_manager *m);

/* With the lock held: */

/* Ids of blocks of both tiers are 1..; device blocks come first. */
uint32_t lkvi_side_num_ids(const struct lkvi_manager *m);
int lkvi_side_device(const struct lkvi_manager *m, uint32_t block);
/* 1 if block is of the device and holds, or may hold, tokens that somebody can still reach. */
int lkvi_side_alive(const struct lkvi_manager *m, uint32_t block);
/* Tables, pins and copies that refer to it. */
uint32_t lkvi_side_refs(const struct lkvi_manager *m, uint32_t block);
/* Headroom blocks that could be lent now. */
uint64_t lkvi_side_room(const struct lkvi_manager *m);
/* A headroom block; 0: the headroom is lent. Never more than max_blocks at a time. */
uint32_t lkvi_side_lend(struct lkvi_manager *m, struct lkvi_side *side);
void lkvi_side_return(struct lkvi_manager *m, struct lkvi_side *side, uint32_t block);

#endif
