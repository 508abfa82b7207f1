/* The public objects behind the handles. Each starts with a head (core/object.h) and holds a
 * reference to what it was made from, so release order does not matter. */
#ifndef LKVI_API_OBJECTS_H
#define LKVI_API_OBJECTS_H

#include <pthread.h>
#include "attention/params.h"
#include "block_manager/manager.h"
#include "core/context.h"
#include "quant/record.h"

enum { LKVI_MAX_PLANES = 8 };

/* Byte layout of a pool's memory; everything that a descriptor says without a device. */
struct lkvi_pool_shape {
    struct lkvi_record record;
    uint64_t block_bytes;
    uint64_t block_stride, layer_stride; /* bytes */
    uint64_t memory_blocks;              /* ids that exist in memory */
    uint64_t layer_bytes;                /* first to last byte of one layer */
    uint64_t total_bytes;                /* first to last byte of all layers; 0 METADATA_ONLY */
    uint64_t base_blocks;
};

struct lkvi_plane {
    uint8_t *base;
    uint64_t bytes_per_block;
    uint32_t on_host, tag;
};

/* Host memory behind the device's: of each host block first its layers, then its planes, packed. */
struct lkvi_host_memory {
    uint8_t *base; /* pinned; NULL: none */
    uint64_t block_bytes;
};

struct lkv_pool {
    struct lkvi_object object;
    struct lkv_context *ctx;
    struct lkvi_manager *manager; /* NULL in ENGINE pools */
    struct lkvi_pool_shape shape;
    lkv_pool_desc desc; /* caller's pointers cleared */
    uint8_t *memory;    /* owned; NULL if borrowed or METADATA_ONLY */
    uint8_t **layers;   /* [num_layers] device; NULL METADATA_ONLY */
    float *fixed_outer; /* [num_layers] host or NULL */
    struct lkvi_plane planes[LKVI_MAX_PLANES];
    struct lkvi_host_memory host;
    struct lkvi_fault_record *faults; /* device */
    pthread_mutex_t copies;           /* held from issue to settle */
    uint32_t copies_ready;            /* the mutex exists */
};

struct lkv_weights {
    struct lkvi_object object;
    struct lkv_context *ctx;
    struct lkvi_weights_view view;
    void *memory; /* device: W_UK then W_UV */
    uint32_t rotated;
};

struct lkv_rope {
    struct lkvi_object object;
    struct lkv_context *ctx;
    float *memory; /* device: cos then sin, each [num_positions, dim / 2] */
    uint64_t num_positions;
    uint32_t dim, style;
};

struct lkv_plan {
    struct lkvi_object object;
    struct lkv_context *ctx;
    struct lkv_pool *pool;
    struct lkvi_plan_params params;
    struct lkvi_batch_view batch; /* of the last update */
    void *workspace;              /* of the last update */
    uint32_t updated;
};

/* LKV_E_INVALID with a sentence unless the handle is live and of this process. */
lkv_status lkvi_pool_live(const struct lkv_pool *pool);
lkv_status lkvi_weights_live(const struct lkv_weights *weights);
lkv_status lkvi_rope_live(const struct lkv_rope *rope);
lkv_status lkvi_plan_live(const struct lkv_plan *plan);

void lkvi_pool_retain(struct lkv_pool *pool);
void lkvi_pool_drop(struct lkv_pool *pool);

/* The manager of a live LIBRARY pool. */
lkv_status lkvi_pool_manager(const struct lkv_pool *pool, struct lkvi_manager **out);
/* The bytes of one block, all layers, then all planes, in a row. */
uint64_t lkvi_pool_block_bytes(const struct lkv_pool *pool);
/* Between that row at `packed` in host memory and block `block` of the device, kind
 * LKVI_COPY_TO_HOST or LKVI_COPY_TO_DEVICE: enqueued on stream. */
lkv_status lkvi_pool_move(struct lkv_pool *pool, uint64_t block, uint8_t *packed, uint32_t kind,
                          void *stream);
/* One layer of a live pool with record memory, as the backend sees it. */
lkv_status lkvi_pool_store(const struct lkv_pool *pool, uint32_t layer, struct lkvi_store *out);

#endif
