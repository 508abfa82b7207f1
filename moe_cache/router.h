/* Routers as plain parameters: x or logits in, experts, weights and entropies out. api/ has checked
 * every pointer and extent. */
#ifndef LKVI_MOE_CACHE_ROUTER_H
#define LKVI_MOE_CACHE_ROUTER_H

#include <stdint.h>
#include "core/threads.h"
#include "latentkv/moe_cache.h"

enum { LKVI_MAX_EXPERTS = 1024, LKVI_MAX_TOP_K = 32, LKVI_MAX_TRACE_DIM = 1024 };

struct lkvi_router_params {
    uint32_t kind, normalise;
    uint32_t hidden_dim, num_experts, top_k, num_groups, topk_groups, trace_dim;
    float inverse_temperature, routed_scale;
    const float *trace_weight; /* [M, D] */
    const float *trace_layer;  /* [M]: the layer's column */
    const float *trace_bias;   /* [M] */
    const float *weight;       /* [E, M] or [E, D] */
    const float *bias;         /* [E]; V3: NULL none */
    const struct lkvi_route_ops *ops;
};

struct lkvi_route_batch {
    const void *x; /* NULL: logits are given */
    uint64_t x_stride;
    uint32_t x_is_bf16;
    float *logits; /* [T, E] or NULL */
    uint64_t logits_stride;
    int32_t *experts;
    float *weights, *entropy;
    uint64_t *load;
    uint64_t num_tokens;
    uint32_t layer;
};

void lkvi_route(const struct lkvi_router_params *router, const struct lkvi_route_batch *batch,
                struct lkvi_threads *threads);

/* The arithmetic, one entry an instruction set, all with the same bits (router_ops.inc). isa
 * LKV_ISA_*; one that this build lacks gives the portable entry. */
const struct lkvi_route_ops *lkvi_route_ops_get(uint32_t isa);

#endif
