/* Everything that the slots keep, and what their files offer one another. All of it is allocated at
 * creation: later calls cannot run out of memory, only of room. Index 0 is nobody in every array.
 */
#ifndef LKVI_MOE_CACHE_SLOTS_STATE_H
#define LKVI_MOE_CACHE_SLOTS_STATE_H

#include "core/alloc.h"
#include "core/status.h"
#include "moe_cache/slots.h"

enum { LKVI_SLOT_FREE = 0, LKVI_SLOT_FILLING, LKVI_SLOT_READY };
enum { LKVI_LFU_CLASSES = 64 };

struct lkvi_slot {
    uint32_t entries;        /* the first of those that name it */
    uint32_t pins;           /* its filler's one included */
    uint32_t generation;     /* grows when it is freed: old handles stop holding */
    uint32_t previous, next; /* in its class, or the slab's free list (next) */
    uint32_t uses, layer;    /* of the class */
    uint8_t state, keep_pin, listed, marked;
    uint64_t step; /* of the last use */
};

struct lkvi_entry {
    lkv_slot_key key;
    uint32_t slot;
    uint32_t hash_next;                  /* or the free list */
    uint32_t block_previous, block_next; /* TOKEN: of the same KV block */
    uint32_t slot_next;
};

struct lkvi_head { /* statistics multiply num by the block's users: they walk blocks, not entries */
    uint32_t first, num;
};

struct lkvi_slab {  /* one borrowed block */
    uint32_t block; /* 0: not borrowed */
    uint32_t used;
    uint32_t free;           /* its first free slot */
    uint32_t previous, next; /* slabs with free slots; next of unborrowed ones */
};

struct lkvi_class { /* slots that may be evicted, oldest first */
    uint32_t oldest, newest;
};

struct lkvi_slots {
    struct lkvi_side side; /* first: callbacks get its address */
    struct lkvi_manager *m;
    struct lkvi_slots_config config;
    uint32_t per_block, num_slots, num_entries, num_classes, num_ids;
    struct lkvi_slot *slots;    /* [num_slots + 1] */
    struct lkvi_entry *entries; /* [num_entries + 1] */
    struct lkvi_slab *slabs;    /* [max_blocks + 1] */
    struct lkvi_class *classes; /* [num_classes] */
    uint32_t *buckets;          /* [bucket_mask + 1] */
    struct lkvi_head *heads;    /* [num_ids + 1] entries of a KV block */
    uint32_t bucket_mask, free_entry, free_slab, partial;
    uint32_t now_layer;
    uint64_t now_step, held;
    uint64_t num_ready, num_filling, num_pinned, live_entries, token_entries;
    uint64_t hits, misses, created, refused, evicted, dropped, copied, copies_lost;
};

/* ---- slots_table.c: entries */
/* Brings the memory that a lookup of a batch will touch: far, its bucket; nearer, what that names.
 */
void lkvi_entry_prefetch(const struct lkvi_slots *s, const lkv_slot_key *keys, uint64_t i,
                         uint64_t n);
uint32_t lkvi_entry_find(const struct lkvi_slots *s, const lkv_slot_key *key);
/* 0: no entry is free. */
uint32_t lkvi_entry_add(struct lkvi_slots *s, const lkv_slot_key *key, uint32_t slot);
/* Takes it out; its slot is left as it is. */
void lkvi_entry_remove(struct lkvi_slots *s, uint32_t e);
/* The same payload under another block's name. */
void lkvi_entry_rename(struct lkvi_slots *s, uint32_t e, uint32_t block);

/* ---- slots_store.c: slots and slabs */
/* A slot in state FILLING with one pin; 0: no room. May evict. */
uint32_t lkvi_slot_take(struct lkvi_slots *s, uint32_t layer);
void lkvi_slot_use(struct lkvi_slots *s, uint32_t slot); /* a hit */
void lkvi_slot_pin(struct lkvi_slots *s, uint32_t slot);
/* Its last pin has gone, or its last entry, or it is ready: free, listed or neither. */
void lkvi_slot_settle(struct lkvi_slots *s, uint32_t slot);
void lkvi_slot_leave_class(struct lkvi_slots *s, uint32_t slot);
uint32_t lkvi_slot_slab(const struct lkvi_slots *s, uint32_t slot);

/* ---- slots_check.c */
lkv_status lkvi_slots_check(struct lkvi_side *side);

#endif
