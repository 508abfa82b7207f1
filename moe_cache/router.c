/* In: hidden states or logits. Out: for each token its experts by falling score, their weights, the
 * entropy of the whole distribution.
 * Tokens run in tiles of eight, so that a pair of weight rows is read once for all of them; each
 * tile's numbers live on the stack. Choosing is exact comparison of finished fp32 scores, the
 * lowest index first among equals; only the scores are arithmetic. */
#include "moe_cache/router.h"

#include <float.h>
#include <math.h>
#include <string.h>
#include "moe_cache/router_ops.h"

enum { TILE = LKVI_ROUTE_TILE };
_Static_assert((int)LKVI_MAX_EXPERTS == (int)LKVI_ROUTE_MAX, "room for the choice");

struct job {
    const struct lkvi_router_params *router;
    const struct lkvi_route_batch *batch;
};

const struct lkvi_route_ops *lkvi_route_ops_get(uint32_t isa)
{
#if defined(__x86_64__)
    if (isa == LKV_ISA_AVX512)
        return &lkvi_route_ops_avx512;
    if (isa == LKV_ISA_AVX2)
        return &lkvi_route_ops_avx2;
#endif
    (void)isa;
    return &lkvi_route_ops_portable;
}

/* ---- choosing */

/* -inf from n to the end of its line of lanes. */
static void pad(float *x, uint32_t n)
{
    for (uint32_t i = n; i < lkvi_lanes16(n); i++)
        x[i] = -INFINITY;
}

/* Experts outside the best groups become -inf. */
static void mask_groups(const struct lkvi_router_params *r, float *x)
{
    uint32_t width = r->num_experts / r->num_groups;
    float scores[LKVI_MAX_EXPERTS], two[2];
    int32_t chosen[LKVI_MAX_EXPERTS];
    uint8_t keep[LKVI_MAX_EXPERTS];
    memset(keep, 0, r->num_groups);
    for (uint32_t g = 0; g < r->num_groups; g++) {
        r->ops->top2(x + g * width, width, two);
        scores[g] = r->bias && width > 1 ? fmaxf(two[0] + two[1], -FLT_MAX) : two[0];
    }
    pad(scores, r->num_groups);
    r->ops->best(scores, r->num_groups, r->topk_groups, chosen);
    for (uint32_t i = 0; i < r->topk_groups; i++)
        keep[chosen[i]] = 1;
    for (uint32_t g = 0; g < r->num_groups; g++)
        for (uint32_t i = 0; i < width && !keep[g]; i++)
            x[g * width + i] = -INFINITY;
}

static void weigh(const struct lkvi_router_params *r, const float *score, const int32_t *experts,
                  float *weights)
{
    float sum = 0;
    for (uint32_t k = 0; k < r->top_k; k++)
        sum += score[experts[k]];
    for (uint32_t k = 0; k < r->top_k; k++) {
        float w = score[experts[k]];
        if (r->normalise)
            w = sum > 0 ? w / sum : 0;
        weights[k] = w * r->routed_scale;
    }
}

/* H = ln S - (sum s ln s) / S; for softmax ln Z - (sum e a) / Z, the same form. */
static float entropy_of(const float moments[2])
{
    double sum = moments[0], moment = moments[1];
    if (!(sum > 0))
        return 0;
    double h = log(sum) - moment / sum;
    return h > 0 ? (float)h : 0;
}

struct outputs {
    int32_t *experts;
    float *weights, *entropy;
};

static void choose_v3(const struct lkvi_router_params *r, const float *logits,
                      const struct outputs *out)
{
    float score[LKVI_MAX_EXPERTS], biased[LKVI_MAX_EXPERTS], moments[2];
    r->ops->sigmoid(logits, score, r->num_experts, out->entropy ? moments : NULL);
    for (uint32_t e = 0; e < r->num_experts; e++)
        biased[e] = r->bias ? score[e] + r->bias[e] : score[e];
    if (r->topk_groups < r->num_groups)
        mask_groups(r, biased);
    pad(biased, r->num_experts);
    r->ops->best(biased, r->num_experts, r->top_k, out->experts);
    if (out->weights)
        weigh(r, score, out->experts, out->weights);
    if (out->entropy)
        *out->entropy = entropy_of(moments);
}

/* The largest becomes -inf in logits and comes back. */
static void choose_trace(const struct lkvi_router_params *r, float *logits,
                         const struct outputs *out)
{
    float e[LKVI_MAX_EXPERTS], moments[2], max[2];
    r->ops->top2(logits, r->num_experts, max);
    pad(logits, r->num_experts);
    r->ops->best(logits, r->num_experts, 1, out->experts);
    if (!out->weights && !out->entropy)
        return;
    logits[*out->experts] = max[0];
    r->ops->softmax(logits, e, r->num_experts, max[0], r->inverse_temperature, moments);
    if (out->weights)
        *out->weights = e[*out->experts] / moments[0];
    if (out->entropy)
        *out->entropy = entropy_of(moments);
}

/* ---- a tile */

/* GELU in its erf form. */
static void gelu(float *x, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        x[i] = 0.5f * x[i] * (1.f + erff(x[i] * 0.70710678f));
}

/* The layer's number is one more input: its column of weights joins the bias. */
static void trace_logits(const struct lkvi_router_params *r, struct lkvi_linear l, uint32_t layer)
{
    float bias[LKVI_MAX_TRACE_DIM], hidden[TILE * LKVI_MAX_TRACE_DIM];
    struct lkvi_linear second = l;
    for (uint32_t i = 0; i < r->trace_dim; i++)
        bias[i] = r->trace_bias[i] + r->trace_layer[i] * (float)layer;
    l.weight = r->trace_weight;
    l.bias = bias;
    l.rows = r->trace_dim;
    l.y = hidden;
    l.y_stride = r->trace_dim;
    r->ops->linear(&l);
    gelu(hidden, (uint64_t)l.tokens * r->trace_dim);
    second.x = hidden;
    second.x_is_bf16 = 0;
    second.x_stride_bytes = r->trace_dim * sizeof *hidden;
    second.depth = r->trace_dim;
    r->ops->linear(&second);
}

/* Weights and bias of the last layer are in place; V3's bias is for the choice alone. */
static void tile_logits(const struct job *job, uint64_t first, uint32_t tokens, float *logits)
{
    const struct lkvi_router_params *r = job->router;
    const struct lkvi_route_batch *b = job->batch;
    uint64_t stride_bytes = b->x_stride * (b->x_is_bf16 ? 2 : 4);
    struct lkvi_linear l = {.x = (const char *)b->x + first * stride_bytes,
                            .x_stride_bytes = stride_bytes,
                            .x_is_bf16 = b->x_is_bf16,
                            .tokens = tokens,
                            .weight = r->weight,
                            .bias = r->kind == LKV_ROUTER_TRACE ? r->bias : NULL,
                            .rows = r->num_experts,
                            .depth = r->hidden_dim,
                            .y = logits,
                            .y_stride = lkvi_lanes16(r->num_experts)};
    if (r->kind == LKV_ROUTER_TRACE)
        trace_logits(r, l, b->layer);
    else
        r->ops->linear(&l);
}

static void move_logits(const struct job *job, uint64_t first, uint32_t tokens, float *logits)
{
    const struct lkvi_route_batch *b = job->batch;
    uint32_t n = job->router->num_experts;
    for (uint32_t t = 0; t < tokens && b->logits; t++) {
        float *here = logits + (uint64_t)t * lkvi_lanes16(n);
        float *there = b->logits + (first + t) * b->logits_stride;
        memcpy(b->x ? there : here, b->x ? here : there, n * sizeof *here);
    }
}

static void run_tile(void *arg, uint64_t index, uint32_t worker)
{
    const struct job *job = arg;
    const struct lkvi_router_params *r = job->router;
    const struct lkvi_route_batch *b = job->batch;
    uint64_t first = index * TILE, left = b->num_tokens - first;
    uint32_t tokens = left < TILE ? (uint32_t)left : TILE, stride = lkvi_lanes16(r->num_experts);
    float logits[TILE * LKVI_MAX_EXPERTS];
    (void)worker;
    memset(logits, 0, (uint64_t)tokens * stride * sizeof *logits);
    if (b->x)
        tile_logits(job, first, tokens, logits);
    move_logits(job, first, tokens, logits);
    for (uint32_t t = 0; t < tokens; t++) {
        uint64_t at = (first + t) * r->top_k;
        struct outputs out = {b->experts + at, b->weights ? b->weights + at : NULL,
                              b->entropy ? b->entropy + first + t : NULL};
        r->ops->tame(logits + (uint64_t)t * stride, stride);
        if (r->kind == LKV_ROUTER_TRACE)
            choose_trace(r, logits + (uint64_t)t * stride, &out);
        else
            choose_v3(r, logits + (uint64_t)t * stride, &out);
    }
}

void lkvi_route(const struct lkvi_router_params *router, const struct lkvi_route_batch *batch,
                struct lkvi_threads *threads)
{
    struct job job = {router, batch};
    lkvi_threads_run(threads, (batch->num_tokens + TILE - 1) / TILE, run_tile, &job);
    for (uint64_t i = 0; batch->load && i < batch->num_tokens * router->top_k; i++)
        batch->load[batch->experts[i]]++;
}
