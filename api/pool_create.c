/* In: a context and a pool descriptor. Out: a pool, and later its end. The one idea: everything is
 * checked before the first allocation, and one destroy() undoes any part of what was built. */
#include <float.h>
#include <math.h>
#include <string.h>
#include "api/check.h"
#include "api/pool_shape.h"
#include "core/alloc.h"
#include "core/status.h"

enum {
    MEMORY_ALIGNMENT = 256,
    LAYER_ALIGNMENT = 16,
    DEFAULT_MAX_SEQS = 1024,
    DEFAULT_EVENTS = 16384
};

static void pool_destroy(struct lkv_pool *pool)
{
    const struct lkvi_backend *backend = pool->ctx->backend;
    void *state = pool->ctx->backend_state;
    lkvi_manager_destroy(pool->manager);
    for (uint32_t i = 0; i < pool->desc.num_planes; i++)
        if (pool->planes[i].base)
            backend->release(state, pool->planes[i].base, pool->planes[i].on_host);
    if (pool->memory)
        backend->release(state, pool->memory, 0);
    if (pool->host.base)
        backend->release(state, pool->host.base, 1);
    if (pool->faults)
        backend->release(state, pool->faults, 0);
    lkvi_free(NULL, pool->layers);
    lkvi_free(NULL, pool->fixed_outer);
    if (pool->copies_ready)
        pthread_mutex_destroy(&pool->copies);
    lkvi_context_drop(pool->ctx);
    lkvi_object_recycle(&pool->object);
}

void lkvi_pool_retain(struct lkv_pool *pool)
{
    lkvi_object_retain(&pool->object);
}

void lkvi_pool_drop(struct lkv_pool *pool)
{
    if (lkvi_object_drop(&pool->object))
        pool_destroy(pool);
}

void lkv_pool_release(lkv_pool *pool)
{
    if (lkvi_object_withdraw((struct lkvi_object *)pool, LKVI_KIND_POOL))
        lkvi_pool_drop(pool);
}

static lkv_status check_memory(const lkv_pool_desc *d, const struct lkvi_pool_shape *s)
{
    if (d->memory && (uintptr_t)d->memory % MEMORY_ALIGNMENT)
        return lkvi_fail(LKV_E_INVALID, "memory is at %p; need alignment %d", d->memory,
                         MEMORY_ALIGNMENT);
    if (d->memory && d->memory_bytes < s->total_bytes)
        return lkvi_fail(LKV_E_INVALID, "memory_bytes is %llu; need %llu",
                         (unsigned long long)d->memory_bytes, (unsigned long long)s->total_bytes);
    if (!d->layer_memory)
        return LKV_OK;
    LKV_TRY(lkvi_array_check((const void *)d->layer_memory, d->num_layers, sizeof(void *),
                             "layer_memory"));
    for (uint32_t i = 0; i < d->num_layers; i++)
        if (!d->layer_memory[i] || (uintptr_t)d->layer_memory[i] % LAYER_ALIGNMENT)
            return lkvi_fail(LKV_E_INVALID, "layer_memory[%u] is %p; need alignment %d", i,
                             d->layer_memory[i], LAYER_ALIGNMENT);
    return LKV_OK;
}

static lkv_status check_outer(const lkv_pool_desc *d)
{
    if (!(d->encode_flags & LKV_ENCODE_NVFP4_FIXED_OUTER))
        return LKV_OK;
    LKV_TRY(lkvi_array_check(d->fixed_outer, d->num_layers, sizeof(float), "fixed_outer"));
    for (uint32_t i = 0; i < d->num_layers; i++)
        if (!isfinite(d->fixed_outer[i]) || d->fixed_outer[i] < FLT_MIN)
            return lkvi_fail(LKV_E_INVALID, "fixed_outer[%u] is %g; need a normal value above 0", i,
                             (double)d->fixed_outer[i]);
    return LKV_OK;
}

static lkv_status check_planes(const lkv_pool_desc *d, uint64_t blocks)
{
    LKV_TRY(lkvi_array_check(d->planes, d->num_planes, _Alignof(lkv_plane_desc), "planes"));
    for (uint32_t i = 0; i < d->num_planes; i++) {
        const lkv_plane_desc *p = &d->planes[i];
        if (!p->bytes_per_block || p->bytes_per_block > ((uint64_t)1 << 50) / blocks)
            return lkvi_fail(LKV_E_INVALID,
                             "planes[%u].bytes_per_block is %llu; need 1 to 2^50 "
                             "over all blocks",
                             i, (unsigned long long)p->bytes_per_block);
        if (p->placement > LKV_PLANE_HOST)
            return lkvi_fail(LKV_E_INVALID, "planes[%u].placement is %u; need LKV_PLANE_*", i,
                             p->placement);
    }
    return LKV_OK;
}

/* The small host parts. The mutex first: destroy() must know whether it exists. */
static lkv_status build_host(struct lkv_pool *pool, const lkv_pool_desc *d)
{
    pthread_mutex_init(&pool->copies, NULL);
    pool->copies_ready = 1;
    if (d->encode_flags & LKV_ENCODE_NVFP4_FIXED_OUTER) {
        pool->fixed_outer = lkvi_zalloc(NULL, d->num_layers, sizeof(float));
        if (!pool->fixed_outer)
            return lkvi_fail(LKV_E_NO_MEMORY, "no memory for %u outer scales", d->num_layers);
        memcpy(pool->fixed_outer, d->fixed_outer, d->num_layers * sizeof(float));
    }
    if (d->owner == LKV_OWNER_ENGINE)
        return LKV_OK;
    struct lkvi_manager_config config = {.num_blocks = d->num_blocks,
                                         .base_blocks = pool->shape.base_blocks,
                                         .host_blocks = d->host_blocks,
                                         .tokens_per_block = d->tokens_per_block,
                                         .max_seqs = d->max_seqs ? d->max_seqs : DEFAULT_MAX_SEQS,
                                         .flags =
                                             d->flags & (LKV_POOL_NO_CACHE | LKV_POOL_NO_PARTIAL)};
    if (d->flags & LKV_POOL_EVENTS)
        config.event_slots = d->num_events ? (uint32_t)d->num_events : DEFAULT_EVENTS;
    lkvi_pool_identity(d, config.identity);
    return lkvi_manager_create(&config, &pool->manager);
}

static lkv_status build_layers(struct lkv_pool *pool, const lkv_pool_desc *d)
{
    const struct lkvi_backend *backend = pool->ctx->backend;
    uint8_t *memory = d->memory;
    void *fresh = NULL;
    pool->layers = lkvi_zalloc(NULL, d->num_layers, sizeof *pool->layers);
    if (!pool->layers)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for %u layer addresses", d->num_layers);
    if (!memory && !d->layer_memory) {
        LKV_TRY(backend->allocate(pool->ctx->backend_state, pool->shape.total_bytes, 0, &fresh));
        memory = pool->memory = fresh;
    }
    for (uint32_t i = 0; i < d->num_layers; i++)
        pool->layers[i] =
            d->layer_memory ? d->layer_memory[i] : memory + i * pool->shape.layer_stride;
    return LKV_OK;
}

static lkv_status build_host_tier(struct lkv_pool *pool, const lkv_pool_desc *d)
{
    void *fresh = NULL;
    uint64_t bytes;
    pool->host.block_bytes = lkvi_pool_block_bytes(pool);
    if (!d->host_blocks)
        return LKV_OK;
    if (__builtin_mul_overflow(d->host_blocks, pool->host.block_bytes, &bytes) ||
        bytes > (uint64_t)1 << 50)
        return lkvi_fail(LKV_E_INVALID, "host_blocks is %llu of %llu bytes; need at most 2^50",
                         (unsigned long long)d->host_blocks,
                         (unsigned long long)pool->host.block_bytes);
    LKV_TRY(pool->ctx->backend->allocate(pool->ctx->backend_state, bytes, 1, &fresh));
    pool->host.base = fresh;
    return LKV_OK;
}

static lkv_status build_device(struct lkv_pool *pool, const lkv_pool_desc *d)
{
    const struct lkvi_backend *backend = pool->ctx->backend;
    void *state = pool->ctx->backend_state, *fresh = NULL;
    if (d->flags & LKV_POOL_METADATA_ONLY)
        return LKV_OK;
    LKV_TRY(build_layers(pool, d));
    LKV_TRY(backend->allocate(state, sizeof *pool->faults, 0, &fresh));
    pool->faults = fresh;
    for (uint32_t i = 0; i < d->num_planes; i++) {
        struct lkvi_plane *plane = &pool->planes[i];
        plane->bytes_per_block = d->planes[i].bytes_per_block;
        plane->on_host = d->planes[i].placement == LKV_PLANE_HOST;
        plane->tag = d->planes[i].tag;
        LKV_TRY(backend->allocate(state, plane->bytes_per_block * pool->shape.memory_blocks,
                                  plane->on_host, &fresh));
        plane->base = fresh;
    }
    return build_host_tier(pool, d);
}

/* Block 0 of a LIBRARY pool is zero by contract, also in memory that the caller lent. */
static lkv_status clear_filler(struct lkv_pool *pool, const lkv_pool_desc *d)
{
    if (d->owner != LKV_OWNER_LIBRARY || !(d->memory || d->layer_memory))
        return LKV_OK;
    void *zeros = lkvi_zalloc(NULL, 1, pool->shape.block_bytes);
    if (!zeros)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for a block of %llu bytes",
                         (unsigned long long)pool->shape.block_bytes);
    lkv_status status = LKV_OK;
    for (uint32_t i = 0; i < d->num_layers && status == LKV_OK; i++)
        status = pool->ctx->backend->copy(pool->ctx->backend_state, pool->layers[i], zeros,
                                          pool->shape.block_bytes, LKVI_COPY_TO_DEVICE, NULL);
    if (status == LKV_OK)
        status = pool->ctx->backend->wait(pool->ctx->backend_state, NULL);
    lkvi_free(NULL, zeros);
    return status;
}

static lkv_status pool_build(struct lkv_pool *pool, const lkv_pool_desc *d)
{
    pool->desc = *d;
    pool->desc.memory = NULL;
    pool->desc.layer_memory = NULL;
    pool->desc.fixed_outer = NULL;
    pool->desc.planes = NULL;
    pool->desc.model_fingerprint = NULL;
    LKV_TRY(build_host(pool, d));
    LKV_TRY(build_device(pool, d));
    return clear_filler(pool, d);
}

lkv_status lkv_pool_create(lkv_context *ctx, const lkv_pool_desc *given, lkv_pool **out)
{
    lkv_pool_desc desc;
    struct lkvi_pool_shape shape;
    LKV_TRY(lkvi_context_check(ctx));
    LKV_TRY(lkvi_admit(&desc, sizeof desc, given, "lkv_pool_desc"));
    LKV_TRY(lkvi_array_check(out, 1, sizeof(void *), "out"));
    LKV_TRY(lkvi_pool_shape(&desc, &shape));
    if (desc.kind == LKV_KIND_LATENT_GQA && !ctx->backend->append_heads)
        return lkvi_fail(LKV_E_UNSUPPORTED,
                         "kind is LKV_KIND_LATENT_GQA; this release has it on CPU contexts only");
    LKV_TRY(check_memory(&desc, &shape));
    LKV_TRY(check_outer(&desc));
    LKV_TRY(check_planes(&desc, shape.memory_blocks));
    struct lkv_pool *pool = lkvi_object_create(LKVI_KIND_POOL, sizeof *pool);
    if (!pool)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for a pool of %zu bytes", sizeof *pool);
    lkvi_context_retain(ctx);
    pool->ctx = ctx;
    pool->shape = shape;
    lkv_status status = pool_build(pool, &desc);
    if (status != LKV_OK) {
        pool_destroy(pool);
        return status;
    }
    lkvi_object_publish(&pool->object);
    *out = pool;
    return LKV_OK;
}
