/* Float64 twins of moe_cache/: routers, gate, fallback, combination. Slow and obvious. */
#ifndef LKVT_REF_MOE_H
#define LKVT_REF_MOE_H

#include <stdint.h>

struct ref_router { /* as lkv_router_desc, defaults filled in */
    int trace, normalise;
    uint32_t hidden, experts, top_k, groups, topk_groups, trace_dim;
    double temperature, scale;
    const float *trace_weight, *trace_bias, *weight, *bias;
};

/* logits [E] of one token. */
void ref_router_logits(const struct ref_router *r, const float *x, uint32_t layer, double *logits);
/* From logits: score [E] (sigmoid, or p), value [E] that is compared. */
void ref_router_scores(const struct ref_router *r, const double *logits, double *score,
                       double *value);
/* The choice: chosen [K], weights [K]; returns the entropy. */
double ref_router_choose(const struct ref_router *r, const double *logits, int32_t *chosen,
                         double *weights);

struct ref_gate {
    double threshold, stddevs, hysteresis;
    uint32_t window, frozen;
    uint64_t steps;
    double *values; /* [capacity] of the window, all of them */
    uint64_t count, capacity;
};

/* One step over n reduced values; triggered in and out. */
void ref_gate_step(struct ref_gate *g, const double *values, uint64_t n, uint8_t *triggered);

/* FNV-1a of any bytes, 32 bits. */
uint32_t ref_fnv1a(const uint8_t *bytes, uint64_t n);

#endif
