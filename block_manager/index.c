/* In: the bytes of an identity. Out: a place in the table.
 * The secret is drawn per manager, so nobody outside can aim at one slot; and a hit is decided by
 * comparison, so a collision costs time, never a wrong block. */
#include "block_manager/index.h"

#include <string.h>
#include <sys/random.h>
#include "core/status.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

/* Where the kernel has no entropy to give, the addresses of this process must do: the secret
 * protects speed, not truth. */
static void draw_secret(uint8_t *secret, size_t bytes)
{
    uint64_t seed[4] = {0};
    ssize_t got = getrandom(seed, sizeof seed, GRND_NONBLOCK);
    if (got != (ssize_t)sizeof seed)
        seed[0] = (uint64_t)(uintptr_t)secret * XXH_PRIME64_1;
    for (size_t i = 0; i < bytes; i += 16) {
        XXH128_hash_t h = XXH3_128bits_withSeed(seed, sizeof seed, seed[i / 16 % 4] + i);
        memcpy(secret + i, &h, 16);
    }
}

uint64_t lkvi_index_num_slots(uint64_t num_blocks)
{
    uint64_t slots = num_blocks * 2 + 16;
    return slots > UINT32_MAX ? UINT32_MAX : slots;
}

void lkvi_index_open(struct lkvi_index *index, struct lkvi_index_slot *slots, uint64_t num_blocks,
                     uint32_t hash_bits)
{
    index->slots = slots;
    index->capacity = (uint32_t)lkvi_index_num_slots(num_blocks);
    index->hash_mask = hash_bits && hash_bits < 32 ? ~(UINT32_MAX >> hash_bits) : UINT32_MAX;
    draw_secret(index->secret, sizeof index->secret);
}

uint32_t lkvi_index_hash(const struct lkvi_index *index, const void *tokens, size_t bytes,
                         uint64_t parent, uint64_t keyset)
{
    XXH128_hash_t h = XXH3_128bits_withSecret(tokens, bytes, index->secret, sizeof index->secret);
    uint64_t secret[2];
    memcpy(secret, index->secret, sizeof secret);
    uint64_t place = XXH3_mul128_fold64(h.low64 ^ parent ^ secret[0],
                                        h.high64 ^ keyset * XXH_PRIME64_1 ^ secret[1]);
    return (uint32_t)(place >> 32) & index->hash_mask;
}

static uint32_t after(const struct lkvi_index *index, uint32_t slot)
{
    return slot + 1 == index->capacity ? 0 : slot + 1;
}

void lkvi_index_insert(struct lkvi_index *index, uint32_t hash, uint32_t block)
{
    uint32_t slot = lkvi_index_home(index, hash);
    while (index->slots[slot].block)
        slot = after(index, slot);
    index->slots[slot].block = block;
    index->slots[slot].hash = hash;
}

/* Could the entry of `home` still be found if it stood in `hole` instead of `at`? */
static int may_move(uint32_t home, uint32_t hole, uint32_t at)
{
    return hole <= at ? home <= hole || home > at : home <= hole && home > at;
}

/* Closes the gap by moving later entries of the run back, so no tombstone is ever needed. */
void lkvi_index_remove(struct lkvi_index *index, uint32_t hash, uint32_t block)
{
    uint32_t hole = lkvi_index_home(index, hash);
    while (index->slots[hole].block != block)
        hole = after(index, hole);
    for (uint32_t at = after(index, hole); index->slots[at].block; at = after(index, at)) {
        if (!may_move(lkvi_index_home(index, index->slots[at].hash), hole, at))
            continue;
        index->slots[hole] = index->slots[at];
        hole = at;
    }
    index->slots[hole].block = 0;
}

void lkvi_index_clear(struct lkvi_index *index)
{
    memset(index->slots, 0, index->capacity * sizeof *index->slots);
}
