/* In: keys. Out: entries. A chained hash table over a fixed array; entries of one KV block are
 * linked too, so that the end of a block finds them without a search. */
#include "moe_cache/slots_state.h"

static uint32_t bucket_of(const struct lkvi_slots *s, const lkv_slot_key *k)
{
    uint64_t x = (uint64_t)k->block << 32 | k->index;
    uint64_t y = (uint64_t)k->kind << 32 | k->layer;
    x = (x ^ y * 0x9E3779B97F4A7C15u) * 0xBF58476D1CE4E5B9u;
    return (uint32_t)(x >> 32 ^ x >> 54) & s->bucket_mask;
}

static int equal(const lkv_slot_key *a, const lkv_slot_key *b)
{
    return a->kind == b->kind && a->layer == b->layer && a->block == b->block &&
           a->index == b->index;
}

uint32_t lkvi_entry_find(const struct lkvi_slots *s, const lkv_slot_key *key)
{
    uint32_t e = s->buckets[bucket_of(s, key)];
    while (e && !equal(&s->entries[e].key, key))
        e = s->entries[e].hash_next;
    return e;
}

enum { FAR = 12, ENTRY = 9, SLOT = 6, NEIGHBOURS = 3 };

void lkvi_entry_prefetch(const struct lkvi_slots *s, const lkv_slot_key *keys, uint64_t i,
                         uint64_t n)
{
    if (i + FAR < n)
        __builtin_prefetch(&s->buckets[bucket_of(s, &keys[i + FAR])]);
    if (i + ENTRY < n)
        __builtin_prefetch(&s->entries[s->buckets[bucket_of(s, &keys[i + ENTRY])]]);
    if (i + SLOT < n)
        __builtin_prefetch(&s->slots[s->entries[s->buckets[bucket_of(s, &keys[i + SLOT])]].slot],
                           1);
    if (i + NEIGHBOURS < n) {
        const struct lkvi_slot *slot =
            &s->slots[s->entries[s->buckets[bucket_of(s, &keys[i + NEIGHBOURS])]].slot];
        __builtin_prefetch(&s->slots[slot->previous], 1);
        __builtin_prefetch(&s->slots[slot->next], 1);
    }
}

static void link_hash(struct lkvi_slots *s, uint32_t e)
{
    uint32_t *bucket = &s->buckets[bucket_of(s, &s->entries[e].key)];
    s->entries[e].hash_next = *bucket;
    *bucket = e;
}

static void unlink_hash(struct lkvi_slots *s, uint32_t e)
{
    uint32_t *link = &s->buckets[bucket_of(s, &s->entries[e].key)];
    while (*link != e)
        link = &s->entries[*link].hash_next;
    *link = s->entries[e].hash_next;
}

static void link_block(struct lkvi_slots *s, uint32_t e)
{
    struct lkvi_entry *entry = &s->entries[e];
    if (entry->key.kind != LKV_SLOT_KEY_TOKEN)
        return;
    struct lkvi_head *head = &s->heads[entry->key.block];
    entry->block_previous = 0;
    entry->block_next = head->first;
    if (head->first)
        s->entries[head->first].block_previous = e;
    head->first = e;
    head->num++;
    s->token_entries++;
}

static void unlink_block(struct lkvi_slots *s, uint32_t e)
{
    struct lkvi_entry *entry = &s->entries[e];
    if (entry->key.kind != LKV_SLOT_KEY_TOKEN)
        return;
    if (entry->block_previous)
        s->entries[entry->block_previous].block_next = entry->block_next;
    else
        s->heads[entry->key.block].first = entry->block_next;
    if (entry->block_next)
        s->entries[entry->block_next].block_previous = entry->block_previous;
    s->heads[entry->key.block].num--;
    s->token_entries--;
}

uint32_t lkvi_entry_add(struct lkvi_slots *s, const lkv_slot_key *key, uint32_t slot)
{
    uint32_t e = s->free_entry;
    if (!e)
        return 0;
    s->free_entry = s->entries[e].hash_next;
    s->entries[e].key = *key;
    s->entries[e].slot = slot;
    s->entries[e].slot_next = s->slots[slot].entries;
    s->slots[slot].entries = e;
    link_hash(s, e);
    link_block(s, e);
    s->live_entries++;
    return e;
}

void lkvi_entry_remove(struct lkvi_slots *s, uint32_t e)
{
    uint32_t *link = &s->slots[s->entries[e].slot].entries;
    while (*link != e)
        link = &s->entries[*link].slot_next;
    *link = s->entries[e].slot_next;
    unlink_hash(s, e);
    unlink_block(s, e);
    s->entries[e].slot = 0;
    s->entries[e].hash_next = s->free_entry;
    s->free_entry = e;
    s->live_entries--;
}

void lkvi_entry_rename(struct lkvi_slots *s, uint32_t e, uint32_t block)
{
    unlink_hash(s, e);
    unlink_block(s, e);
    s->entries[e].key.block = block;
    link_hash(s, e);
    link_block(s, e);
}
