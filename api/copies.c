/* In: the pairs of blocks that the manager wants copied, inside the device or between the tiers.
 * Out: the copies, for every layer and plane, or the pairs for a caller who copies himself. The one
 * idea: pairs are issued, enqueued and only then settled, so a failed copy is asked for again and
 * never lost. */
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

uint64_t lkvi_pool_block_bytes(const struct lkv_pool *pool)
{
    uint64_t bytes = pool->layers ? pool->desc.num_layers * pool->shape.block_bytes : 0;
    for (uint32_t i = 0; i < pool->desc.num_planes; i++)
        bytes += pool->planes[i].bytes_per_block;
    return bytes;
}

lkv_status lkvi_pool_move(struct lkv_pool *pool, uint64_t block, uint8_t *packed, uint32_t kind,
                          void *stream)
{
    const struct lkvi_backend *backend = pool->ctx->backend;
    void *state = pool->ctx->backend_state;
    int to_host = kind == LKVI_COPY_TO_HOST;
    for (uint32_t i = 0; i < pool->desc.num_layers; i++, packed += pool->shape.block_bytes) {
        uint8_t *at = pool->layers[i] + block * pool->shape.block_stride;
        LKV_TRY(backend->copy(state, to_host ? packed : at, to_host ? at : packed,
                              pool->shape.block_bytes, kind, stream));
    }
    for (uint32_t i = 0; i < pool->desc.num_planes; i++) {
        const struct lkvi_plane *plane = &pool->planes[i];
        uint8_t *at = plane->base + block * plane->bytes_per_block;
        uint8_t *to = to_host ? packed : at, *from = to_host ? at : packed;
        if (plane->on_host)
            memcpy(to, from, plane->bytes_per_block);
        else
            LKV_TRY(backend->copy(state, to, from, plane->bytes_per_block, kind, stream));
        packed += plane->bytes_per_block;
    }
    return LKV_OK;
}

/* Ids behind the device's are the host tier's. */
static lkv_status copy_pair(struct lkv_pool *pool, const int32_t pair[2], void *stream)
{
    const int64_t first = (int64_t)pool->desc.num_blocks + 1;
    uint8_t *host = pool->host.base;
    if (pair[0] >= first)
        return lkvi_pool_move(pool, (uint64_t)pair[1],
                              host + (uint64_t)(pair[0] - first) * pool->host.block_bytes,
                              LKVI_COPY_TO_DEVICE, stream);
    if (pair[1] >= first)
        return lkvi_pool_move(pool, (uint64_t)pair[0],
                              host + (uint64_t)(pair[1] - first) * pool->host.block_bytes,
                              LKVI_COPY_TO_HOST, stream);
    LKV_TRY(copy_records(pool, pair, stream));
    return copy_planes(pool, pair, stream);
}

/* As many as there are now: those that a copy's fence sets free wait for the next call. What was
 * enqueued before one fails is settled, the rest is asked for again. */
static lkv_status apply_waiting(struct lkv_pool *pool, uint64_t fence, void *stream)
{
    int32_t pairs[PAIRS_AT_A_TIME][2];
    lkv_status status = LKV_OK;
    uint64_t waiting;
    do {
        uint64_t done = 0;
        lkvi_manager_issue_copies(pool->manager, pairs[0], PAIRS_AT_A_TIME, &waiting);
        uint64_t n = waiting < PAIRS_AT_A_TIME ? waiting : PAIRS_AT_A_TIME;
        while (done < n && (status = copy_pair(pool, pairs[done], stream)) == LKV_OK)
            done++;
        lkvi_manager_settle_copies(pool->manager, done, fence);
    } while (status == LKV_OK && waiting > PAIRS_AT_A_TIME);
    return status;
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
    LKV_TRY(lkvi_manager_issue_copies(manager, pairs, capacity, &waiting));
    if (waiting > capacity)
        LKV_TRY(lkvi_manager_settle_copies(manager, 0, 0));
    if (waiting > capacity)
        return lkvi_fail(LKV_E_INVALID, "capacity is %llu pairs; need %llu",
                         (unsigned long long)capacity, (unsigned long long)waiting);
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
