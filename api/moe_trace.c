/* In: slots of tokens, their experts, a side plane. Out: uint16 entries in the plane, or read back
 * from it. The plane has the block's life already; this only knows where a token's entries lie. */
#include "api/check.h"
#include "api/objects.h"
#include "core/status.h"
#include "latentkv/moe_cache.h"

enum { TRACE_TAG = 1, NO_EXPERT = 0xFFFF, MAX_LAYERS = 4096, MAX_TOP_K = 32 };

struct trace {
    uint8_t *base;
    uint64_t bytes_per_block, num_slots;
    uint32_t block_tokens;
    lkv_trace_args args;
};

static lkv_status between(const char *name, uint32_t value, uint32_t low, uint32_t high)
{
    if (value < low || value > high)
        return lkvi_fail(LKV_E_INVALID, "%s is %u; need %u to %u", name, value, low, high);
    return LKV_OK;
}

static lkv_status plane_check(const struct lkv_pool *pool, const lkv_trace_args *a)
{
    if (a->plane >= pool->desc.num_planes)
        return lkvi_fail(LKV_E_INVALID, "plane is %u; need less than %u", a->plane,
                         pool->desc.num_planes);
    const struct lkvi_plane *plane = &pool->planes[a->plane];
    if (!plane->on_host && pool->ctx->device != LKV_DEVICE_CPU)
        return lkvi_fail(LKV_E_UNSUPPORTED, "plane %u is on the device; need LKV_PLANE_HOST",
                         a->plane);
    uint64_t need = (uint64_t)pool->desc.tokens_per_block * a->num_layers * a->top_k * 2;
    if (plane->tag != TRACE_TAG)
        return lkvi_fail(LKV_E_INVALID, "plane %u has tag %u; need %d", a->plane, plane->tag,
                         TRACE_TAG);
    if (plane->bytes_per_block < need || plane->bytes_per_block % 2)
        return lkvi_fail(LKV_E_INVALID, "plane %u has %llu bytes a block; need %llu, even",
                         a->plane, (unsigned long long)plane->bytes_per_block,
                         (unsigned long long)need);
    return LKV_OK;
}

static lkv_status slots_check(const struct trace *t)
{
    for (uint64_t i = 0; i < t->args.num_tokens; i++)
        if (t->args.slots[i] >= (int64_t)t->num_slots ||
            (t->args.slots[i] >= 0 && t->args.slots[i] < t->block_tokens))
            return lkvi_fail(LKV_E_INVALID, "slots[%llu] is %lld; need %u to %llu, or negative",
                             (unsigned long long)i, (long long)t->args.slots[i], t->block_tokens,
                             (unsigned long long)t->num_slots - 1);
    return LKV_OK;
}

static lkv_status trace_open(const struct lkv_pool *pool, const lkv_trace_args *given,
                             struct trace *t)
{
    struct lkvi_manager *manager;
    lkv_trace_args *a = &t->args;
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    LKV_TRY(lkvi_admit(a, sizeof *a, given, "lkv_trace_args"));
    LKV_TRY(between("num_layers", a->num_layers, 1, MAX_LAYERS));
    LKV_TRY(between("layer", a->layer, 0, a->num_layers - 1));
    LKV_TRY(between("top_k", a->top_k, 1, MAX_TOP_K));
    LKV_TRY(plane_check(pool, a));
    LKV_TRY(lkvi_array_check(a->slots, a->num_tokens, sizeof *a->slots, "slots"));
    LKV_TRY(lkvi_array_check(a->experts, a->num_tokens, sizeof *a->experts, "experts"));
    t->base = pool->planes[a->plane].base;
    t->bytes_per_block = pool->planes[a->plane].bytes_per_block;
    t->block_tokens = pool->desc.tokens_per_block;
    t->num_slots = pool->shape.memory_blocks * t->block_tokens;
    return slots_check(t);
}

static uint16_t *entries_of(const struct trace *t, int64_t slot)
{
    uint64_t block = (uint64_t)slot / t->block_tokens, token = (uint64_t)slot % t->block_tokens;
    uint16_t *entries = (uint16_t *)(t->base + block * t->bytes_per_block);
    return entries + (token * t->args.num_layers + t->args.layer) * t->args.top_k;
}

lkv_status lkv_trace_write(lkv_pool *pool, const lkv_trace_args *given)
{
    struct trace t;
    LKV_TRY(trace_open(pool, given, &t));
    uint64_t n = t.args.num_tokens * t.args.top_k;
    for (uint64_t i = 0; i < n; i++)
        if (t.args.experts[i] < -1 || t.args.experts[i] >= NO_EXPERT)
            return lkvi_fail(LKV_E_INVALID, "experts[%llu] is %d; need -1 to %d",
                             (unsigned long long)i, t.args.experts[i], NO_EXPERT - 1);
    for (uint64_t i = 0; i < t.args.num_tokens; i++) {
        const int32_t *experts = t.args.experts + i * t.args.top_k;
        if (t.args.slots[i] < 0)
            continue;
        uint16_t *entries = entries_of(&t, t.args.slots[i]);
        for (uint32_t k = 0; k < t.args.top_k; k++)
            entries[k] = (uint16_t)experts[k];
    }
    return LKV_OK;
}

lkv_status lkv_trace_read(lkv_pool *pool, const lkv_trace_args *given)
{
    struct trace t;
    LKV_TRY(trace_open(pool, given, &t));
    for (uint64_t i = 0; i < t.args.num_tokens; i++) {
        int32_t *experts = t.args.experts + i * t.args.top_k;
        const uint16_t *entries = t.args.slots[i] >= 0 ? entries_of(&t, t.args.slots[i]) : NULL;
        for (uint32_t k = 0; k < t.args.top_k; k++)
            experts[k] = entries && entries[k] != NO_EXPERT ? entries[k] : -1;
    }
    return LKV_OK;
}
