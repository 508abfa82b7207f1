/* In: the pairs of blocks that the manager wants copied. Out: the copies, for every layer and
 * plane, or the pairs for a caller who copies himself. The one idea: pairs are peeked, enqueued and
 * only then settled, so a failed copy is asked for again and never lost. */
#include <string.h>
#include "api/check.h"
#include "api/objects.h"
#include "core/status.h"

enum { PAIRS_AT_A_TIME = 256 };

static lkv_status copy_records(struct lkv_pool *pool, const int32_t pair[2], void *stream)
{
    const struct lkvi_backend *backend = pool->ctx->backend;
    uint64_t stride = pool->shape.block_stride;
    for (uint32_t i = 0; i < pool->desc.num_layers; i++)
        LKV_TRY(backend->copy(pool->ctx->backend_state, pool->layers[i] + pair[1] * stride,
                              pool->layers[i] + pair[0] * stride, pool->shape.block_bytes,
                              LKVI_COPY_ON_DEVICE, stream));
    return LKV_OK;
}

static lkv_status copy_planes(struct lkv_pool *pool, const int32_t pair[2], void *stream)
{
    for (uint32_t i = 0; i < pool->desc.num_planes; i++) {
        const struct lkvi_plane *plane = &pool->planes[i];
        uint8_t *to = plane->base + pair[1] * plane->bytes_per_block;
        const uint8_t *from = plane->base + pair[0] * plane->bytes_per_block;
        if (plane->on_host)
            memcpy(to, from, plane->bytes_per_block);
        else
            LKV_TRY(pool->ctx->backend->copy(pool->ctx->backend_state, to, from,
                                             plane->bytes_per_block, LKVI_COPY_ON_DEVICE, stream));
    }
    return LKV_OK;
}

static lkv_status apply_waiting(struct lkv_pool *pool, uint64_t fence, void *stream)
{
    int32_t pairs[PAIRS_AT_A_TIME][2];
    uint64_t waiting;
    do {
        LKV_TRY(lkvi_manager_peek_copies(pool->manager, pairs[0], PAIRS_AT_A_TIME, &waiting));
        uint64_t n = waiting < PAIRS_AT_A_TIME ? waiting : PAIRS_AT_A_TIME;
        for (uint64_t i = 0; i < n; i++) {
            LKV_TRY(copy_records(pool, pairs[i], stream));
            LKV_TRY(copy_planes(pool, pairs[i], stream));
        }
        if (n)
            LKV_TRY(lkvi_manager_settle_copies(pool->manager, n, fence));
    } while (waiting > PAIRS_AT_A_TIME);
    return LKV_OK;
}

lkv_status lkv_pool_apply_copies(lkv_pool *pool, uint64_t fence, void *stream)
{
    struct lkvi_manager *manager;
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    LKV_TRY(lkvi_stream_check(pool->ctx, stream));
    if (!pool->layers)
        return lkvi_fail(LKV_E_INVALID, "pool is LKV_POOL_METADATA_ONLY; its copies are taken with "
                                        "lkv_pool_take_copies");
    pthread_mutex_lock(&pool->copies);
    lkv_status status = apply_waiting(pool, fence, stream);
    pthread_mutex_unlock(&pool->copies);
    return status;
}

static lkv_status take_waiting(struct lkvi_manager *manager, int32_t *pairs, uint64_t capacity,
                               uint64_t fence, uint64_t *num)
{
    uint64_t waiting;
    LKV_TRY(lkvi_manager_peek_copies(manager, NULL, 0, &waiting));
    if (waiting <= capacity)
        LKV_TRY(lkvi_manager_peek_copies(manager, pairs, capacity, &waiting));
    if (waiting > capacity)
        return lkvi_fail(LKV_E_INVALID, "capacity is %llu pairs; need %llu",
                         (unsigned long long)capacity, (unsigned long long)waiting);
    if (waiting)
        LKV_TRY(lkvi_manager_settle_copies(manager, waiting, fence));
    *num = waiting;
    return LKV_OK;
}

lkv_status lkv_pool_take_copies(lkv_pool *pool, int32_t *pairs, uint64_t capacity, uint64_t fence,
                                uint64_t *num)
{
    struct lkvi_manager *manager;
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    if (pool->layers)
        return lkvi_fail(LKV_E_INVALID, "pool holds records; its copies are done by "
                                        "lkv_pool_apply_copies");
    LKV_TRY(lkvi_array_check(pairs, capacity, sizeof *pairs, "pairs"));
    LKV_TRY(lkvi_array_check(num, 1, sizeof *num, "num"));
    pthread_mutex_lock(&pool->copies);
    lkv_status status = take_waiting(manager, pairs, capacity, fence, num);
    pthread_mutex_unlock(&pool->copies);
    return status;
}

lkv_status lkv_pool_pass_fence(lkv_pool *pool, uint64_t fence)
{
    struct lkvi_manager *manager;
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    return lkvi_manager_pass_fence(manager, fence);
}
