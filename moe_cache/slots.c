/* In: keys, handles, and what the block manager tells of KV blocks. Out: places of payloads.
 * A payload is written once, by whoever got it as new, and never moves: a copied KV block gets
 * further entries for the same slots, a swapped one takes its entries along by name. */
#include "moe_cache/slots.h"

#include "moe_cache/slots_state.h"

static struct lkvi_slots *of(struct lkvi_side *side)
{
    return (struct lkvi_slots *)side;
}

/* ---- what happens to KV blocks */

/* An entry goes, and its slot where it was the last. */
static void forget(struct lkvi_slots *s, uint32_t e)
{
    uint32_t slot = s->entries[e].slot;
    lkvi_entry_remove(s, e);
    if (!s->slots[slot].entries)
        lkvi_slot_settle(s, slot);
    s->dropped++;
}

static void on_dropped(struct lkvi_side *side, uint32_t block)
{
    struct lkvi_slots *s = of(side);
    while (s->heads[block].first)
        forget(s, s->heads[block].first);
}

static void on_written(struct lkvi_side *side, uint32_t block, uint32_t begin, uint32_t end)
{
    struct lkvi_slots *s = of(side);
    for (uint32_t e = s->heads[block].first, next; e; e = next) {
        next = s->entries[e].block_next;
        if (s->entries[e].key.index >= begin && s->entries[e].key.index < end)
            forget(s, e);
    }
}

static void on_copied(struct lkvi_side *side, uint32_t from, uint32_t to, uint32_t num_tokens)
{
    struct lkvi_slots *s = of(side);
    for (uint32_t e = s->heads[from].first; e; e = s->entries[e].block_next) {
        const struct lkvi_entry *entry = &s->entries[e];
        lkv_slot_key key = entry->key;
        if (key.index >= num_tokens || s->slots[entry->slot].state != LKVI_SLOT_READY)
            continue;
        key.block = to;
        if (lkvi_entry_add(s, &key, entry->slot))
            s->copied++;
        else
            s->copies_lost++;
    }
}

/* A block that was computed again while its twin was on the host may have payloads of its own. */
static void on_moved(struct lkvi_side *side, uint32_t from, uint32_t to)
{
    struct lkvi_slots *s = of(side);
    for (uint32_t e; (e = s->heads[from].first);) {
        lkv_slot_key key = s->entries[e].key;
        key.block = to;
        if (lkvi_entry_find(s, &key))
            forget(s, e);
        else
            lkvi_entry_rename(s, e, to);
    }
}

/* ---- create */

static lkv_status arrays_create(struct lkvi_slots *s)
{
    uint64_t buckets = 16;
    while (buckets < s->num_entries)
        buckets *= 2;
    s->bucket_mask = (uint32_t)buckets - 1;
    s->slots = lkvi_zalloc(NULL, (uint64_t)s->num_slots + 1, sizeof *s->slots);
    s->entries = lkvi_zalloc(NULL, (uint64_t)s->num_entries + 1, sizeof *s->entries);
    s->slabs = lkvi_zalloc(NULL, s->config.max_blocks + 1, sizeof *s->slabs);
    s->classes = lkvi_zalloc(NULL, s->num_classes, sizeof *s->classes);
    s->buckets = lkvi_zalloc(NULL, buckets, sizeof *s->buckets);
    s->heads = lkvi_zalloc(NULL, (uint64_t)s->num_ids + 1, sizeof *s->heads);
    if (!s->slots || !s->entries || !s->slabs || !s->classes || !s->buckets || !s->heads)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for the metadata of %u slots", s->num_slots);
    for (uint32_t e = s->num_entries; e; e--) {
        s->entries[e].hash_next = s->free_entry;
        s->free_entry = e;
    }
    for (uint32_t b = (uint32_t)s->config.max_blocks; b; b--) {
        s->slabs[b].next = s->free_slab;
        s->free_slab = b;
    }
    return LKV_OK;
}

static void arrays_free(struct lkvi_slots *s)
{
    lkvi_free(NULL, s->slots);
    lkvi_free(NULL, s->entries);
    lkvi_free(NULL, s->slabs);
    lkvi_free(NULL, s->classes);
    lkvi_free(NULL, s->buckets);
    lkvi_free(NULL, s->heads);
    lkvi_free(NULL, s);
}

lkv_status lkvi_slots_create(struct lkvi_manager *m, const struct lkvi_slots_config *config,
                             struct lkvi_slots **out)
{
    struct lkvi_slots *s = lkvi_zalloc(NULL, 1, sizeof *s);
    if (!s)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for slots of %zu bytes", sizeof *s);
    s->side = (struct lkvi_side){.dropped = on_dropped,
                                 .copied = on_copied,
                                 .moved = on_moved,
                                 .written = on_written,
                                 .check = lkvi_slots_check};
    s->m = m;
    s->config = *config;
    s->per_block = config->chunks_per_block * config->slots_per_chunk;
    s->num_slots = (uint32_t)config->max_blocks * s->per_block;
    s->num_entries = 2 * s->num_slots;
    s->num_ids = lkvi_side_num_ids(m);
    s->num_classes = config->policy == LKV_SLOTS_LFU           ? LKVI_LFU_CLASSES
                     : config->policy == LKV_SLOTS_LEAST_STALE ? config->num_layers
                                                               : 1;
    lkv_status status = arrays_create(s);
    if (status == LKV_OK)
        status = lkvi_side_attach(m, &s->side, config->max_blocks);
    if (status != LKV_OK) {
        arrays_free(s);
        return status;
    }
    *out = s;
    return LKV_OK;
}

void lkvi_slots_destroy(struct lkvi_slots *s)
{
    lkvi_side_detach(s->m, &s->side);
    arrays_free(s);
}

/* ---- get */

static uint64_t handle_of(const struct lkvi_slots *s, uint32_t slot)
{
    return (uint64_t)s->slots[slot].generation << 32 | slot;
}

static void give(const struct lkvi_slots *s, uint32_t slot, uint32_t state, lkv_slot *out)
{
    uint32_t b = lkvi_slot_slab(s, slot), i = (slot - 1) % s->per_block;
    out->handle = handle_of(s, slot);
    out->state = state;
    out->block = (int32_t)s->slabs[b].block;
    out->layer = i / s->config.slots_per_chunk;
    out->offset_bytes = i % s->config.slots_per_chunk;
}

static uint32_t create(struct lkvi_slots *s, const lkv_slot_key *key, uint32_t keep_pin)
{
    uint32_t slot;
    if (key->kind == LKV_SLOT_KEY_TOKEN && !lkvi_side_alive(s->m, key->block))
        return 0;
    if (!s->free_entry || !(slot = lkvi_slot_take(s, key->layer)))
        return 0;
    /* Borrowing may have evicted the very block that the key names. */
    if ((key->kind == LKV_SLOT_KEY_TOKEN && !lkvi_side_alive(s->m, key->block)) ||
        !lkvi_entry_add(s, key, slot)) {
        s->slots[slot].state = LKVI_SLOT_READY;
        s->slots[slot].pins = 0;
        s->num_filling--;
        s->num_pinned--;
        s->num_ready++;
        lkvi_slot_settle(s, slot);
        return 0;
    }
    s->slots[slot].keep_pin = (uint8_t)keep_pin;
    s->created++;
    return slot;
}

static void get_one(struct lkvi_slots *s, const lkv_slot_key *key, uint32_t flags, lkv_slot *out)
{
    uint32_t e = lkvi_entry_find(s, key), slot = e ? s->entries[e].slot : 0;
    *out = (lkv_slot){.state = LKV_SLOT_MISS};
    s->now_layer = key->layer;
    if (slot && s->slots[slot].state == LKVI_SLOT_FILLING) {
        out->state = LKV_SLOT_FILLING;
    } else if (slot) {
        s->hits++;
        lkvi_slot_use(s, slot);
        if (flags & LKV_SLOTS_PIN)
            lkvi_slot_pin(s, slot);
        give(s, slot, LKV_SLOT_READY, out);
    } else {
        s->misses++;
        if (!(flags & LKV_SLOTS_CREATE))
            return;
        slot = create(s, key, flags & LKV_SLOTS_PIN);
        if (slot)
            give(s, slot, LKV_SLOT_NEW, out);
        else
            out->state = LKV_SLOT_REFUSED;
        s->refused += !slot;
    }
}

void lkvi_slots_get(struct lkvi_slots *s, lkv_slots_args *args)
{
    uint64_t count[LKV_SLOT_REFUSED + 1] = {0};
    lkvi_side_lock(s->m);
    if (args->step > s->now_step)
        s->now_step = args->step;
    for (uint64_t i = 0; i < args->num_keys; i++) {
        lkvi_entry_prefetch(s, args->keys, i, args->num_keys);
        get_one(s, &args->keys[i], args->flags, &args->slots[i]);
        count[args->slots[i].state]++;
    }
    lkvi_side_unlock(s->m);
    args->num_ready = count[LKV_SLOT_READY];
    args->num_filling = count[LKV_SLOT_FILLING];
    args->num_new = count[LKV_SLOT_NEW];
    args->num_refused = count[LKV_SLOT_REFUSED];
    args->num_missed = count[LKV_SLOT_MISS];
}

/* ---- handles */

static uint32_t slot_of(const struct lkvi_slots *s, uint64_t handle)
{
    uint32_t slot = (uint32_t)handle;
    if (!slot || slot > s->num_slots || s->slots[slot].generation != (uint32_t)(handle >> 32) ||
        s->slots[slot].state == LKVI_SLOT_FREE)
        return 0;
    return slot;
}

static lkv_status stale(uint64_t handle, uint64_t i, const char *wanted)
{
    return lkvi_fail(LKV_E_NOT_FOUND, "handles[%llu] is %#llx; need that of a slot which is %s",
                     (unsigned long long)i, (unsigned long long)handle, wanted);
}

static void commit_one(struct lkvi_slots *s, uint32_t i, uint32_t ready)
{
    struct lkvi_slot *slot = &s->slots[i];
    s->num_filling--;
    s->num_ready++;
    slot->state = LKVI_SLOT_READY;
    while (!ready && slot->entries)
        lkvi_entry_remove(s, slot->entries);
    if (!ready || !slot->keep_pin) {
        slot->pins = 0;
        s->num_pinned--;
    }
    lkvi_slot_settle(s, i);
}

/* A handle that comes twice is not filling the second time: looked for before anything is done. */
static lkv_status commit_locked(struct lkvi_slots *s, const uint64_t *handles, uint64_t n,
                                uint32_t ready)
{
    lkv_status status = LKV_OK;
    uint64_t i = 0;
    for (; i < n && status == LKV_OK; i++) {
        uint32_t slot = slot_of(s, handles[i]);
        if (!slot || s->slots[slot].state != LKVI_SLOT_FILLING || s->slots[slot].marked)
            status = stale(handles[i], i, "being filled, once");
        else
            s->slots[slot].marked = 1;
    }
    uint64_t marked = status == LKV_OK ? n : i - 1;
    for (i = 0; i < marked; i++)
        s->slots[(uint32_t)handles[i]].marked = 0;
    for (i = 0; i < n && status == LKV_OK; i++)
        commit_one(s, (uint32_t)handles[i], ready);
    return status;
}

lkv_status lkvi_slots_commit(struct lkvi_slots *s, const uint64_t *handles, uint64_t n,
                             uint32_t ready)
{
    lkvi_side_lock(s->m);
    lkv_status status = commit_locked(s, handles, n, ready);
    lkvi_side_unlock(s->m);
    return status;
}

/* Pins are taken first, so that a handle which comes too often is found before a slot moves. */
static lkv_status unpin_locked(struct lkvi_slots *s, const uint64_t *handles, uint64_t n)
{
    lkv_status status = LKV_OK;
    uint64_t i = 0;
    for (; i < n && status == LKV_OK; i++) {
        uint32_t slot = slot_of(s, handles[i]);
        if (!slot || s->slots[slot].state != LKVI_SLOT_READY || !s->slots[slot].pins)
            status = stale(handles[i], i, "ready and pinned");
        else
            s->num_pinned -= !--s->slots[slot].pins;
    }
    if (status != LKV_OK) {
        for (i--; i-- > 0;)
            s->num_pinned += !s->slots[(uint32_t)handles[i]].pins++;
        return status;
    }
    for (i = 0; i < n; i++)
        if (slot_of(s, handles[i]))
            lkvi_slot_settle(s, (uint32_t)handles[i]);
    return LKV_OK;
}

lkv_status lkvi_slots_unpin(struct lkvi_slots *s, const uint64_t *handles, uint64_t n)
{
    lkvi_side_lock(s->m);
    lkv_status status = unpin_locked(s, handles, n);
    lkvi_side_unlock(s->m);
    return status;
}

/* ---- erase, query */

uint64_t lkvi_slots_erase(struct lkvi_slots *s, const lkv_slot_key *keys, uint64_t n)
{
    uint64_t erased = 0;
    lkvi_side_lock(s->m);
    for (uint64_t i = 0; i < n; i++) {
        uint32_t e = lkvi_entry_find(s, &keys[i]), slot = e ? s->entries[e].slot : 0;
        if (!e || s->slots[slot].state != LKVI_SLOT_READY)
            continue;
        lkvi_entry_remove(s, e);
        lkvi_slot_settle(s, slot);
        erased++;
    }
    lkvi_side_unlock(s->m);
    return erased;
}

/* How many entries there would be if every sequence had its own; and those that none has now. */
static void count_users(const struct lkvi_slots *s, lkv_slots_stats *out)
{
    uint64_t users = 0, idle = 0;
    for (uint32_t b = 1; b <= s->num_ids; b++) {
        uint64_t num = s->heads[b].num, refs = num ? lkvi_side_refs(s->m, b) : 0;
        users += num * (refs ? refs : 1);
        idle += refs ? 0 : num;
    }
    out->token_users = users;
    out->token_idle = idle;
}

void lkvi_slots_query(struct lkvi_slots *s, lkv_slots_stats *out)
{
    lkvi_side_lock(s->m);
    out->slots_total = s->num_slots;
    out->slots_ready = s->num_ready;
    out->slots_filling = s->num_filling;
    out->slots_pinned = s->num_pinned;
    out->entries = s->live_entries;
    out->token_entries = s->token_entries;
    count_users(s, out);
    out->blocks_max = s->config.max_blocks;
    out->blocks_held = s->held;
    out->hits = s->hits;
    out->misses = s->misses;
    out->created = s->created;
    out->refused = s->refused;
    out->evicted = s->evicted;
    out->dropped = s->dropped;
    out->copied = s->copied;
    out->copies_lost = s->copies_lost;
    lkvi_side_unlock(s->m);
}
