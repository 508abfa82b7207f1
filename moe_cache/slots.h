/* Payload slots inside headroom blocks: keys in, places out. Entered with checked arguments; every
 * function takes the block manager's lock, which guards this too.
 *
 *   entry (key) --> slot (payload) --> slab (a borrowed block, cut into equal slots)
 *
 * Several entries may share a slot: a copied KV block's tokens keep their payloads without a copy.
 */
#ifndef LKVI_MOE_CACHE_SLOTS_H
#define LKVI_MOE_CACHE_SLOTS_H

#include <stdint.h>
#include "block_manager/side.h"
#include "latentkv/moe_cache.h"

struct lkvi_slots;

struct lkvi_slots_config {
    uint32_t policy;       /* LKV_SLOTS_* */
    uint32_t num_layers;   /* of keys */
    uint32_t block_tokens; /* of keys */
    uint32_t chunks_per_block, slots_per_chunk;
    uint64_t max_blocks;
};

enum { LKVI_MAX_SLOTS = 1 << 26 };

lkv_status lkvi_slots_create(struct lkvi_manager *m, const struct lkvi_slots_config *config,
                             struct lkvi_slots **out);
void lkvi_slots_destroy(struct lkvi_slots *s);

/* Looks every key up and, with LKV_SLOTS_CREATE, reserves what is missing. Fills state, handle,
 * block, layer (the chunk) and offset_bytes (the number of the slot in its chunk). */
void lkvi_slots_get(struct lkvi_slots *s, lkv_slots_args *args);
/* All handles or none. ready 0: given up. */
lkv_status lkvi_slots_commit(struct lkvi_slots *s, const uint64_t *handles, uint64_t n,
                             uint32_t ready);
lkv_status lkvi_slots_unpin(struct lkvi_slots *s, const uint64_t *handles, uint64_t n);
uint64_t lkvi_slots_erase(struct lkvi_slots *s, const lkv_slot_key *keys, uint64_t n);
/* Counts and sums; byte fields are api/'s. */
void lkvi_slots_query(struct lkvi_slots *s, lkv_slots_stats *stats);

#endif
