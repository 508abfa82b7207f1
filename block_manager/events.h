/* What happened to the prefix index, for a router outside: a bounded ring of numbered events.
 *
 *   seq   oldest                              next - 1
 *          |  Stored  Stored  Removed  Cleared  ...  |     older ones are overwritten and counted
 *
 * Replaying all of them gives exactly the index. Off (capacity 0) it costs one branch. */
#ifndef LKVI_BLOCK_MANAGER_EVENTS_H
#define LKVI_BLOCK_MANAGER_EVENTS_H

#include <stdint.h>
#include "block_manager/digest.h"
#include "core/alloc.h"

struct lkvi_manager;

struct lkvi_event {
    uint32_t kind, reason; /* LKV_EVENT_*, LKV_REMOVED_* */
    uint32_t keyset;       /* Stored: holds a reference */
    uint16_t tier, remaining;
    uint8_t parent[LKVI_DIGEST_BYTES], digest[LKVI_DIGEST_BYTES];
};

struct lkvi_events {
    struct lkvi_event *ring; /* [capacity], of event seq at seq % capacity */
    int32_t *tokens;         /* [capacity][block_tokens] of Stored */
    uint8_t *digests;        /* [M + 1][32] of indexed blocks; of block 0 the pool's identity */
    uint64_t next;           /* seq of the next event; the first is 1 */
    uint64_t stored[2];      /* keys that a replay would hold now, of each tier */
    uint32_t capacity;       /* 0: off */
    uint32_t reason;         /* set around a removal whose reason the block's state does not tell */
};

lkv_status lkvi_events_create(struct lkvi_manager *m, uint32_t capacity);

/* Told by prefix.c under the lock; none can fail. */
void lkvi_events_stored(struct lkvi_manager *m, uint32_t b);
void lkvi_events_removed(struct lkvi_manager *m, uint32_t b); /* before it leaves the index */
/* Before an identity moves to the other tier; the host keeps, or has, a copy. */
void lkvi_events_moving(struct lkvi_manager *m, uint32_t from, uint32_t to);
/* Of device block b a host copy has arrived, or goes; remaining: copies elsewhere. */
void lkvi_events_copied(struct lkvi_manager *m, uint32_t b);
void lkvi_events_copy_removed(struct lkvi_manager *m, uint32_t b, uint32_t remaining);
void lkvi_events_cleared(struct lkvi_manager *m);

/* References to key sets that the ring holds; for the check. */
uint64_t lkvi_events_keysets(const struct lkvi_manager *m);

#endif
