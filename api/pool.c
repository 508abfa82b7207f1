/* In: a live pool, or only its descriptor. Out: sizes, addresses, faults, statistics. Calls that
 * change which block holds what are in seq.c, lease.c and copies.c. */
#include <string.h>
#include "api/check.h"
#include "api/pool_shape.h"
#include "core/status.h"

lkv_status lkvi_pool_live(const struct lkv_pool *pool)
{
    return lkvi_object_check((const struct lkvi_object *)pool, LKVI_KIND_POOL);
}

lkv_status lkvi_pool_manager(const struct lkv_pool *pool, struct lkvi_manager **out)
{
    LKV_TRY(lkvi_pool_live(pool));
    if (!pool->manager)
        return lkvi_fail(LKV_E_INVALID, "pool is LKV_OWNER_ENGINE; this call needs a pool of "
                                        "LKV_OWNER_LIBRARY");
    *out = pool->manager;
    return LKV_OK;
}

lkv_status lkvi_pool_store(const struct lkv_pool *pool, uint32_t layer, struct lkvi_store *out)
{
    if (!pool->layers)
        return lkvi_fail(LKV_E_INVALID, "pool is LKV_POOL_METADATA_ONLY; this call needs records");
    if (layer >= pool->desc.num_layers)
        return lkvi_fail(LKV_E_INVALID, "layer is %u; need less than %u", layer,
                         pool->desc.num_layers);
    *out = (struct lkvi_store){.record = pool->shape.record,
                               .tokens_per_block = pool->desc.tokens_per_block,
                               .first_block = pool->desc.owner == LKV_OWNER_LIBRARY,
                               .num_blocks = pool->shape.memory_blocks,
                               .block_stride = pool->shape.block_stride,
                               .base = pool->layers[layer],
                               .faults = pool->faults,
                               .fixed_outer = pool->fixed_outer ? pool->fixed_outer[layer] : 0};
    return LKV_OK;
}

lkv_status lkv_block_query(const lkv_pool_desc *given, lkv_block_info *given_info)
{
    lkv_pool_desc desc;
    struct lkvi_pool_shape s;
    LKV_TRY(lkvi_admit(&desc, sizeof desc, given, "lkv_pool_desc"));
    LKV_TRY(lkvi_admit_out(given_info, "lkv_block_info"));
    LKV_TRY(lkvi_pool_shape(&desc, &s));
    lkv_block_info info = {.size = sizeof info,
                           .record_bytes = s.record.bytes,
                           .block_bytes = s.block_bytes,
                           .total_bytes = s.total_bytes,
                           .codes_offset = s.record.codes_offset,
                           .codes_bytes = s.record.codes_bytes,
                           .scales_offset = s.record.scales_offset,
                           .scales_bytes = s.record.scales_bytes,
                           .rope_offset = s.record.rope_offset,
                           .rope_bytes = s.record.rope_bytes,
                           .base_blocks = s.base_blocks,
                           .headroom_blocks = desc.num_blocks - s.base_blocks,
                           .alignment = 256,
                           .format_version = LKVI_FORMAT_VERSION,
                           .value_offset = s.record.value_offset,
                           .head_bytes = s.record.head_bytes};
    lkvi_give(given_info, &info, sizeof info);
    return LKV_OK;
}

lkv_status lkv_pool_layer(const lkv_pool *pool, uint32_t layer, lkv_pool_layout *given)
{
    struct lkvi_store store;
    LKV_TRY(lkvi_pool_live(pool));
    LKV_TRY(lkvi_admit_out(given, "lkv_pool_layout"));
    LKV_TRY(lkvi_pool_store(pool, layer, &store));
    lkv_pool_layout layout = {.size = sizeof layout,
                              .base = store.base,
                              .block_stride_bytes = store.block_stride,
                              .record_bytes = store.record.bytes,
                              .memory_blocks = store.num_blocks};
    lkvi_give(given, &layout, sizeof layout);
    return LKV_OK;
}

lkv_status lkv_pool_plane(const lkv_pool *pool, uint32_t plane, void **base,
                          uint64_t *bytes_per_block)
{
    LKV_TRY(lkvi_pool_live(pool));
    LKV_TRY(lkvi_array_check(base, 1, sizeof *base, "base"));
    LKV_TRY(lkvi_array_check(bytes_per_block, 1, sizeof *bytes_per_block, "bytes_per_block"));
    if (plane >= pool->desc.num_planes)
        return lkvi_fail(LKV_E_INVALID, "plane is %u; need less than %u", plane,
                         pool->desc.num_planes);
    *base = pool->planes[plane].base;
    *bytes_per_block = pool->planes[plane].bytes_per_block;
    return LKV_OK;
}

/* The CPU's record is written with atomics by whoever appends meanwhile: read it the same way. The
 * kind is cleared last, because claiming it is what makes a fault the first one. */
static void read_host_faults(struct lkvi_fault_record *shared, uint32_t clear,
                             struct lkvi_fault_record *out)
{
    out->first_kind = __atomic_load_n(&shared->first_kind, __ATOMIC_ACQUIRE);
    out->first_token = __atomic_load_n(&shared->first_token, __ATOMIC_RELAXED);
    out->first_index = __atomic_load_n(&shared->first_index, __ATOMIC_RELAXED);
    out->count = clear ? __atomic_exchange_n(&shared->count, 0, __ATOMIC_RELAXED)
                       : __atomic_load_n(&shared->count, __ATOMIC_RELAXED);
    if (clear)
        __atomic_store_n(&shared->first_kind, LKV_FAULT_NONE, __ATOMIC_RELEASE);
}

static lkv_status read_device_faults(struct lkv_pool *pool, uint32_t clear,
                                     struct lkvi_fault_record *out)
{
    const struct lkvi_backend *backend = pool->ctx->backend;
    void *state = pool->ctx->backend_state;
    const struct lkvi_fault_record zero = {0};
    LKV_TRY(backend->wait(state, NULL));
    LKV_TRY(backend->copy(state, out, pool->faults, sizeof *out, LKVI_COPY_TO_HOST, NULL));
    if (clear)
        LKV_TRY(backend->copy(state, pool->faults, &zero, sizeof zero, LKVI_COPY_TO_DEVICE, NULL));
    return backend->wait(state, NULL);
}

lkv_status lkv_pool_faults(lkv_pool *pool, uint32_t clear, lkv_faults *given)
{
    struct lkvi_fault_record record = {0};
    LKV_TRY(lkvi_pool_live(pool));
    LKV_TRY(lkvi_admit_out(given, "lkv_faults"));
    if (pool->faults && pool->ctx->device == LKV_DEVICE_CPU)
        read_host_faults(pool->faults, clear, &record);
    else if (pool->faults)
        LKV_TRY(read_device_faults(pool, clear, &record));
    lkv_faults faults = {.size = sizeof faults,
                         .count = record.count,
                         .first_kind = record.first_kind,
                         .first_token = record.first_token,
                         .first_index = record.first_index};
    lkvi_give(given, &faults, sizeof faults);
    return LKV_OK;
}

lkv_status lkv_pool_query(lkv_pool *pool, lkv_pool_stats *given)
{
    LKV_TRY(lkvi_pool_live(pool));
    LKV_TRY(lkvi_admit_out(given, "lkv_pool_stats"));
    lkv_pool_stats stats = {.size = sizeof stats};
    if (pool->manager)
        LKV_TRY(lkvi_manager_query(pool->manager, &stats));
    else /* the engine knows who holds what */
        stats.blocks_total = stats.blocks_base = pool->desc.num_blocks;
    lkvi_give(given, &stats, sizeof stats);
    return LKV_OK;
}

lkv_status lkv_pool_check(lkv_pool *pool)
{
    LKV_TRY(lkvi_pool_live(pool));
    return pool->manager ? lkvi_manager_check(pool->manager) : LKV_OK;
}
