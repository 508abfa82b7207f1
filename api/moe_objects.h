/* The public objects of moe_cache.h behind their handles. */
#ifndef LKVI_API_MOE_OBJECTS_H
#define LKVI_API_MOE_OBJECTS_H

#include <pthread.h>
#include "core/context.h"
#include "api/objects.h"
#include "moe_cache/router.h"
#include "moe_cache/slots.h"

struct lkv_router {
    struct lkvi_object object;
    struct lkv_context *ctx;
    struct lkvi_router_params params;
    float *memory; /* trace_weight, trace_layer, trace_bias, weight, bias */
};

struct lkv_gate {
    struct lkvi_object object;
    pthread_mutex_t mutex; /* of state */
    lkv_gate_desc desc;    /* defaults filled in */
    lkv_gate_state state;
};

struct lkv_slots {
    struct lkvi_object object;
    struct lkv_pool *pool;
    struct lkvi_slots *slots;
    uint64_t payload_bytes; /* rounded up */
    uint64_t given_bytes;   /* as the caller said */
    uint32_t num_layers;    /* of keys */
    lkv_slot_fill_fn fill;
    void *fill_user;
};

/* LKV_E_UNSUPPORTED on a CUDA context; what names the call. */
lkv_status lkvi_moe_context(const struct lkv_context *ctx, const char *what);

#endif
