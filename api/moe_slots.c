/* In: a pool with headroom, keys, handles. Out: checked calls to moe_cache/slots.c, and addresses:
 * a slot is a number inside one layer's part of a block, which is where the payload is contiguous.
 * The fill callback runs here, outside the lock. */
#include "api/check.h"
#include "api/moe_objects.h"
#include "core/alloc.h"
#include "core/status.h"

enum { ALIGNMENT = 16, MAX_LAYERS = 4096 };

static lkv_status desc_check(const struct lkv_pool *pool, lkv_slots_desc *d)
{
    uint64_t headroom = pool->desc.num_blocks - pool->shape.base_blocks;
    if (!d->payload_bytes || d->payload_bytes > pool->shape.block_bytes)
        return lkvi_fail(LKV_E_INVALID, "payload_bytes is %llu; need 1 to block_bytes %llu",
                         (unsigned long long)d->payload_bytes,
                         (unsigned long long)pool->shape.block_bytes);
    if (!headroom || d->max_blocks > headroom)
        return lkvi_fail(LKV_E_INVALID, "max_blocks is %llu; the pool has %llu headroom blocks",
                         (unsigned long long)d->max_blocks, (unsigned long long)headroom);
    if (d->policy > LKV_SLOTS_LEAST_STALE)
        return lkvi_fail(LKV_E_INVALID, "policy is %u; need LKV_SLOTS_LRU to LEAST_STALE",
                         d->policy);
    if (d->num_layers > MAX_LAYERS)
        return lkvi_fail(LKV_E_INVALID, "num_layers is %u; need at most %d", d->num_layers,
                         MAX_LAYERS);
    d->max_blocks = d->max_blocks ? d->max_blocks : headroom;
    d->num_layers = d->num_layers ? d->num_layers : pool->desc.num_layers;
    return LKV_OK;
}

static lkv_status slots_build(struct lkv_slots *s, const lkv_slots_desc *d)
{
    struct lkvi_manager *manager;
    LKV_TRY(lkvi_pool_manager(s->pool, &manager));
    struct lkvi_slots_config config = {
        .policy = d->policy,
        .num_layers = d->num_layers,
        .block_tokens = s->pool->desc.tokens_per_block,
        .chunks_per_block = s->pool->desc.num_layers,
        .slots_per_chunk = (uint32_t)(s->pool->shape.block_bytes / s->payload_bytes),
        .max_blocks = d->max_blocks};
    uint64_t total = (uint64_t)config.chunks_per_block * config.slots_per_chunk * d->max_blocks;
    if (total > LKVI_MAX_SLOTS)
        return lkvi_fail(LKV_E_INVALID, "max_blocks %llu give %llu slots; need at most %d",
                         (unsigned long long)d->max_blocks, (unsigned long long)total,
                         LKVI_MAX_SLOTS);
    return lkvi_slots_create(manager, &config, &s->slots);
}

static void slots_destroy(struct lkv_slots *s)
{
    if (s->slots)
        lkvi_slots_destroy(s->slots);
    lkvi_pool_drop(s->pool);
    lkvi_object_recycle(&s->object);
}

lkv_status lkv_slots_create(lkv_pool *pool, const lkv_slots_desc *given, lkv_slots **out)
{
    struct lkvi_manager *manager;
    lkv_slots_desc d;
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    LKV_TRY(lkvi_admit(&d, sizeof d, given, "lkv_slots_desc"));
    LKV_TRY(lkvi_array_check(out, 1, sizeof(void *), "out"));
    LKV_TRY(desc_check(pool, &d));
    struct lkv_slots *s = lkvi_object_create(LKVI_KIND_SLOTS, sizeof *s);
    if (!s)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for slots of %zu bytes", sizeof *s);
    lkvi_pool_retain(pool);
    s->pool = pool;
    s->given_bytes = d.payload_bytes;
    s->payload_bytes = (d.payload_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    s->num_layers = d.num_layers;
    s->fill = d.fill;
    s->fill_user = d.fill_user;
    lkv_status status = slots_build(s, &d);
    if (status != LKV_OK) {
        slots_destroy(s);
        return status;
    }
    lkvi_object_publish(&s->object);
    *out = s;
    return LKV_OK;
}

void lkv_slots_release(lkv_slots *slots)
{
    if (lkvi_object_withdraw((struct lkvi_object *)slots, LKVI_KIND_SLOTS) &&
        lkvi_object_drop(&slots->object))
        slots_destroy(slots);
}

static lkv_status slots_live(const struct lkv_slots *slots)
{
    return lkvi_object_check((const struct lkvi_object *)slots, LKVI_KIND_SLOTS);
}

/* ---- get */

static lkv_status key_check(const struct lkv_slots *s, const lkv_slot_key *k, uint64_t i)
{
    const lkv_pool_desc *d = &s->pool->desc;
    if (k->kind != LKV_SLOT_KEY_TOKEN && k->kind != LKV_SLOT_KEY_FREE)
        return lkvi_fail(LKV_E_INVALID, "keys[%llu].kind is %u; need LKV_SLOT_KEY_TOKEN or FREE",
                         (unsigned long long)i, k->kind);
    if (k->layer >= s->num_layers)
        return lkvi_fail(LKV_E_INVALID, "keys[%llu].layer is %u; need less than %u",
                         (unsigned long long)i, k->layer, s->num_layers);
    if (k->kind == LKV_SLOT_KEY_FREE)
        return LKV_OK;
    if (!k->block || k->block > d->num_blocks)
        return lkvi_fail(LKV_E_INVALID, "keys[%llu].block is %u; need 1 to %llu",
                         (unsigned long long)i, k->block, (unsigned long long)d->num_blocks);
    if (k->index >= d->tokens_per_block)
        return lkvi_fail(LKV_E_INVALID, "keys[%llu].index is %u; need less than %u",
                         (unsigned long long)i, k->index, d->tokens_per_block);
    return LKV_OK;
}

static lkv_status keys_check(const struct lkv_slots *s, const lkv_slot_key *keys, uint64_t n)
{
    LKV_TRY(lkvi_array_check(keys, n, _Alignof(lkv_slot_key), "keys"));
    for (uint64_t i = 0; i < n; i++)
        LKV_TRY(key_check(s, &keys[i], i));
    return LKV_OK;
}

static lkv_status args_check(const struct lkv_slots *s, const lkv_slots_args *a)
{
    LKV_TRY(lkvi_flags_check(a->flags, LKV_SLOTS_PIN | LKV_SLOTS_CREATE | LKV_SLOTS_FILL,
                             "slots flags"));
    LKV_TRY(lkvi_flags_check(a->reserved, 0, "reserved"));
    if ((a->flags & LKV_SLOTS_FILL) && !(a->flags & LKV_SLOTS_CREATE))
        return lkvi_fail(LKV_E_INVALID, "LKV_SLOTS_FILL without LKV_SLOTS_CREATE; need both");
    if ((a->flags & LKV_SLOTS_FILL) && !s->fill)
        return lkvi_fail(LKV_E_INVALID, "LKV_SLOTS_FILL without a fill callback in the descriptor");
    LKV_TRY(lkvi_array_check(a->slots, a->num_keys, _Alignof(lkv_slot), "slots"));
    return keys_check(s, a->keys, a->num_keys);
}

static void address_of(const struct lkv_slots *s, lkv_slot *slot)
{
    if (slot->state != LKV_SLOT_READY && slot->state != LKV_SLOT_NEW)
        return;
    slot->offset_bytes *= (uint32_t)s->payload_bytes;
    if (s->pool->layers)
        slot->address = s->pool->layers[slot->layer] +
                        (uint64_t)slot->block * s->pool->shape.block_stride + slot->offset_bytes;
}

/* Slots from `at` on that were new are given up. */
static void give_up(struct lkv_slots *s, lkv_slots_args *a, uint64_t at)
{
    for (uint64_t i = at; i < a->num_keys; i++) {
        if (a->slots[i].state != LKV_SLOT_NEW)
            continue;
        lkvi_slots_commit(s->slots, &a->slots[i].handle, 1, 0);
        a->slots[i] = (lkv_slot){.state = LKV_SLOT_MISS};
        a->num_new--;
        a->num_missed++;
    }
}

static lkv_status fill(struct lkv_slots *s, lkv_slots_args *a)
{
    for (uint64_t i = 0; i < a->num_keys; i++) {
        lkv_slot *slot = &a->slots[i];
        if (slot->state != LKV_SLOT_NEW)
            continue;
        lkv_status status = s->fill(s->fill_user, &a->keys[i], slot->address, s->given_bytes);
        if (status != LKV_OK) {
            give_up(s, a, i);
            return lkvi_fail(status, "the fill callback said %s for keys[%llu]",
                             lkv_status_name(status), (unsigned long long)i);
        }
        LKV_TRY(lkvi_slots_commit(s->slots, &slot->handle, 1, 1));
        slot->state = LKV_SLOT_READY;
        a->num_new--;
        a->num_ready++;
    }
    return LKV_OK;
}

lkv_status lkv_slots_get(lkv_slots *slots, lkv_slots_args *given)
{
    lkv_slots_args a;
    LKV_TRY(slots_live(slots));
    LKV_TRY(lkvi_admit(&a, sizeof a, given, "lkv_slots_args"));
    LKV_TRY(args_check(slots, &a));
    lkvi_slots_get(slots->slots, &a);
    for (uint64_t i = 0; i < a.num_keys; i++)
        address_of(slots, &a.slots[i]);
    lkv_status status = a.flags & LKV_SLOTS_FILL ? fill(slots, &a) : LKV_OK;
    lkvi_give(given, &a, sizeof a);
    return status;
}

/* ---- handles, keys, figures */

lkv_status lkv_slots_commit(lkv_slots *slots, const uint64_t *handles, uint64_t n, uint32_t ready)
{
    LKV_TRY(slots_live(slots));
    LKV_TRY(lkvi_array_check(handles, n, sizeof *handles, "handles"));
    LKV_TRY(lkvi_flags_check(ready, 1, "ready"));
    return lkvi_slots_commit(slots->slots, handles, n, ready);
}

lkv_status lkv_slots_unpin(lkv_slots *slots, const uint64_t *handles, uint64_t n)
{
    LKV_TRY(slots_live(slots));
    LKV_TRY(lkvi_array_check(handles, n, sizeof *handles, "handles"));
    return lkvi_slots_unpin(slots->slots, handles, n);
}

lkv_status lkv_slots_erase(lkv_slots *slots, const lkv_slot_key *keys, uint64_t n, uint64_t *erased)
{
    LKV_TRY(slots_live(slots));
    LKV_TRY(lkvi_array_check(erased, 1, sizeof *erased, "erased"));
    LKV_TRY(keys_check(slots, keys, n));
    *erased = lkvi_slots_erase(slots->slots, keys, n);
    return LKV_OK;
}

lkv_status lkv_slots_query(lkv_slots *slots, lkv_slots_stats *given)
{
    LKV_TRY(slots_live(slots));
    LKV_TRY(lkvi_admit_out(given, "lkv_slots_stats"));
    lkv_slots_stats stats = {.size = sizeof stats};
    uint64_t block = slots->pool->shape.block_bytes * slots->pool->desc.num_layers;
    lkvi_slots_query(slots->slots, &stats);
    stats.payload_bytes = slots->payload_bytes;
    stats.budget_bytes = stats.blocks_max * block;
    stats.held_bytes = stats.blocks_held * block;
    stats.used_bytes = (stats.slots_ready + stats.slots_filling) * slots->payload_bytes;
    lkvi_give(given, &stats, sizeof stats);
    return LKV_OK;
}
