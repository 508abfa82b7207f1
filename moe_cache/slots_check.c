/* In: slots, under the manager's lock. Out: LKV_OK, or LKV_E_INTERNAL with what is broken first.
 * Everything is counted again from the arrays and compared with what the calls have kept. */
#include "moe_cache/slots_state.h"

#define CHECK(what, found, wanted, where)                                                          \
    do {                                                                                           \
        if ((uint64_t)(found) != (uint64_t)(wanted))                                               \
            return lkvi_fail(LKV_E_INTERNAL, "slots: %s: found %llu, want %llu (at %llu)", what,   \
                             (unsigned long long)(found), (unsigned long long)(wanted),            \
                             (unsigned long long)(where));                                         \
    } while (0)

static lkv_status check_slabs(const struct lkvi_slots *s)
{
    uint64_t held = 0, partial = 0;
    for (uint32_t b = 1; b <= s->config.max_blocks; b++) {
        const struct lkvi_slab *slab = &s->slabs[b];
        uint64_t used = 0, open = 0;
        for (uint32_t i = 0; i < s->per_block; i++)
            used += s->slots[(b - 1) * s->per_block + i + 1].state != LKVI_SLOT_FREE;
        CHECK("used slots of a slab", slab->block ? slab->used : 0, used, b);
        CHECK("an empty slab is given back", slab->block && !slab->used, 0, b);
        for (uint32_t i = slab->block ? slab->free : 0; i; i = s->slots[i].next, open++)
            CHECK("a slab's free slot", s->slots[i].state, LKVI_SLOT_FREE, i);
        CHECK("free slots of a slab", open, slab->block ? s->per_block - used : 0, b);
        held += slab->block != 0;
        partial += slab->block && open;
    }
    for (uint32_t b = s->partial; b; b = s->slabs[b].next)
        partial--;
    CHECK("slabs with room are listed", partial, 0, 0);
    CHECK("borrowed blocks", s->held, held, 0);
    CHECK("borrowed blocks within the budget", s->held <= s->config.max_blocks, 1, 0);
    return LKV_OK;
}

static lkv_status check_slot(const struct lkvi_slots *s, uint32_t i)
{
    const struct lkvi_slot *slot = &s->slots[i];
    int evictable = slot->state == LKVI_SLOT_READY && !slot->pins && slot->entries;
    CHECK("a slot that may go is in a class, no other", slot->listed, evictable, i);
    CHECK("a ready slot is wanted by somebody",
          slot->state == LKVI_SLOT_READY && !slot->pins && !slot->entries, 0, i);
    CHECK("who fills a slot has a pin", slot->state == LKVI_SLOT_FILLING && !slot->pins, 0, i);
    for (uint32_t e = slot->entries; e && slot->state != LKVI_SLOT_FREE;
         e = s->entries[e].slot_next)
        CHECK("an entry names its slot", s->entries[e].slot, i, e);
    return LKV_OK;
}

static lkv_status check_slots(const struct lkvi_slots *s)
{
    uint64_t ready = 0, filling = 0, pinned = 0, listed = 0;
    for (uint32_t i = 1; i <= s->num_slots; i++) {
        const struct lkvi_slot *slot = &s->slots[i];
        if (slot->state == LKVI_SLOT_FREE)
            continue;
        LKV_TRY(check_slot(s, i));
        ready += slot->state == LKVI_SLOT_READY;
        filling += slot->state == LKVI_SLOT_FILLING;
        pinned += slot->pins != 0;
        listed += slot->listed;
    }
    for (uint32_t c = 0; c < s->num_classes; c++)
        for (uint32_t i = s->classes[c].oldest; i; i = s->slots[i].next)
            listed--;
    CHECK("slots in classes", listed, 0, 0);
    CHECK("ready slots", s->num_ready, ready, 0);
    CHECK("slots being filled", s->num_filling, filling, 0);
    CHECK("pinned slots", s->num_pinned, pinned, 0);
    return LKV_OK;
}

static lkv_status check_entries(const struct lkvi_slots *s)
{
    uint64_t live = 0, token = 0, linked = 0, open = 0;
    for (uint32_t e = 1; e <= s->num_entries; e++) {
        const struct lkvi_entry *entry = &s->entries[e];
        if (!entry->slot)
            continue;
        live++;
        token += entry->key.kind == LKV_SLOT_KEY_TOKEN;
        CHECK("the table finds an entry", lkvi_entry_find(s, &entry->key), e, e);
        CHECK("an entry's slot is in use", s->slots[entry->slot].state == LKVI_SLOT_FREE, 0, e);
    }
    for (uint32_t b = 0; b <= s->num_ids; b++) {
        uint64_t before = linked;
        for (uint32_t e = s->heads[b].first; e; e = s->entries[e].block_next, linked++)
            CHECK("an entry's block", s->entries[e].key.block, b, e);
        CHECK("entries of a block", s->heads[b].num, linked - before, b);
    }
    for (uint32_t e = s->free_entry; e; e = s->entries[e].hash_next)
        open++;
    CHECK("entries", s->live_entries, live, 0);
    CHECK("entries of tokens", s->token_entries, token, 0);
    CHECK("entries linked to blocks", linked, token, 0);
    CHECK("free entries", open, s->num_entries - live, 0);
    return LKV_OK;
}

/* A key whose block is dead would be the next owner's hit. */
static lkv_status check_blocks(const struct lkvi_slots *s, const struct lkvi_manager *m)
{
    for (uint32_t b = 1; b <= s->num_ids; b++)
        if (s->heads[b].first && lkvi_side_device(m, b))
            CHECK("entries of a block that is gone", lkvi_side_alive(m, b), 1, b);
    return LKV_OK;
}

lkv_status lkvi_slots_check(struct lkvi_side *side)
{
    struct lkvi_slots *s = (struct lkvi_slots *)side;
    LKV_TRY(check_slabs(s));
    LKV_TRY(check_slots(s));
    LKV_TRY(check_entries(s));
    return check_blocks(s, s->m);
}
