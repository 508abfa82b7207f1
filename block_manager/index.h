/* The hash table under the prefix index: 32-bit hash -> block id, linear probing without
 * tombstones. It never decides that two blocks are equal: the caller compares identities. */
#ifndef LKVI_BLOCK_MANAGER_INDEX_H
#define LKVI_BLOCK_MANAGER_INDEX_H

#include <stdint.h>
#include "core/alloc.h"

struct lkvi_index_slot {
    uint32_t block; /* 0: empty */
    uint32_t hash;
};

struct lkvi_index {
    struct lkvi_index_slot *slots; /* 2 a block: probes end soon */
    uint32_t capacity;
    uint32_t hash_mask; /* tests cut the hash: everything collides, nothing may be confused */
    uint8_t secret[192];
};

/* A table for num_blocks has so many slots; the caller's memory for them is zeroed. */
uint64_t lkvi_index_num_slots(uint64_t num_blocks);
void lkvi_index_open(struct lkvi_index *index, struct lkvi_index_slot *slots, uint64_t num_blocks,
                     uint32_t hash_bits);
/* XXH3-128 of the tokens under the secret, multiplied with parent and key set, cut to 32 bits. */
uint32_t lkvi_index_hash(const struct lkvi_index *index, const void *tokens, size_t bytes,
                         uint64_t parent, uint64_t keyset);

static inline uint32_t lkvi_index_home(const struct lkvi_index *index, uint32_t hash)
{
    return (uint32_t)((uint64_t)hash * index->capacity >> 32);
}

/* A probe reads on from its home, seldom more than three slots (eight are a cache line). */
static inline void lkvi_index_prefetch(const struct lkvi_index *index, uint32_t hash)
{
    uint32_t home = lkvi_index_home(index, hash);
    __builtin_prefetch(&index->slots[home], 1);
    if ((home & 7) > 4)
        __builtin_prefetch(&index->slots[home] + 8, 1);
}

void lkvi_index_insert(struct lkvi_index *index, uint32_t hash, uint32_t block);
void lkvi_index_remove(struct lkvi_index *index, uint32_t hash, uint32_t block);
void lkvi_index_clear(struct lkvi_index *index);

#endif
