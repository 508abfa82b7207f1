/* In: a router's weights, then batches. Out: an object with a copy of the weights; checked batches
 * to moe_cache/router.c. The layer's column of the trace weights is taken apart here, so that what
 * is multiplied by hidden states is dense and a multiple of the lanes. */
#include <math.h>
#include <string.h>
#include "api/check.h"
#include "api/moe_objects.h"
#include "core/alloc.h"
#include "core/status.h"

enum { MAX_HIDDEN_DIM = 65536, TRACE_DIM = 256 };

lkv_status lkvi_moe_context(const struct lkv_context *ctx, const char *what)
{
    LKV_TRY(lkvi_context_check(ctx));
    if (ctx->device != LKV_DEVICE_CPU)
        return lkvi_fail(LKV_E_UNSUPPORTED, "%s runs on CPU contexts; this one is CUDA device %d",
                         what, ctx->device);
    return LKV_OK;
}

static lkv_status between(const char *name, uint32_t value, uint32_t low, uint32_t high)
{
    if (value < low || value > high)
        return lkvi_fail(LKV_E_INVALID, "%s is %u; need %u to %u", name, value, low, high);
    return LKV_OK;
}

static lkv_status multiple16(const char *name, uint32_t value, uint32_t high)
{
    if (value % 16 || value > high)
        return lkvi_fail(LKV_E_INVALID, "%s is %u; need a multiple of 16 up to %u", name, value,
                         high);
    return LKV_OK;
}

static lkv_status zero(const char *name, uint32_t value, const char *kind)
{
    if (value)
        return lkvi_fail(LKV_E_INVALID, "%s is %u in a router of kind %s; need 0", name, value,
                         kind);
    return LKV_OK;
}

static lkv_status positive(const char *name, double value, double *out, double otherwise)
{
    if (!isfinite(value) || value < 0 || (float)value > 1e30f ||
        (value > 0 && (float)value < 1e-30f))
        return lkvi_fail(LKV_E_INVALID, "%s is %g; need 0 or a value from 1e-30 to 1e30", name,
                         value);
    *out = value > 0 ? value : otherwise;
    return LKV_OK;
}

/* ---- the descriptor: each kind's fields, defaults filled in */

static lkv_status trace_fields(lkv_router_desc *d)
{
    d->top_k = d->top_k ? d->top_k : 1;
    d->trace_dim = d->trace_dim ? d->trace_dim : TRACE_DIM;
    LKV_TRY(between("top_k of the trace router", d->top_k, 1, 1));
    LKV_TRY(zero("num_groups", d->num_groups, "TRACE"));
    LKV_TRY(zero("topk_groups", d->topk_groups, "TRACE"));
    LKV_TRY(zero("flags", d->flags, "TRACE"));
    LKV_TRY(multiple16("trace_dim", d->trace_dim, LKVI_MAX_TRACE_DIM));
    return positive("temperature", d->temperature, &d->temperature, 1.2);
}

static lkv_status v3_fields(lkv_router_desc *d)
{
    d->num_groups = d->num_groups ? d->num_groups : 1;
    d->topk_groups = d->topk_groups ? d->topk_groups : d->num_groups;
    LKV_TRY(lkvi_flags_check(d->flags, LKV_ROUTER_NORMALISE, "router flags"));
    LKV_TRY(between("num_groups", d->num_groups, 1, d->num_experts));
    LKV_TRY(between("topk_groups", d->topk_groups, 1, d->num_groups));
    LKV_TRY(zero("trace_dim", d->trace_dim, "V3"));
    if (d->num_experts % d->num_groups)
        return lkvi_fail(LKV_E_INVALID, "num_groups is %u; need a divisor of num_experts %u",
                         d->num_groups, d->num_experts);
    uint32_t reach = d->num_experts / d->num_groups * d->topk_groups;
    LKV_TRY(between("top_k", d->top_k, 1, reach < LKVI_MAX_TOP_K ? reach : LKVI_MAX_TOP_K));
    return positive("routed_scale", d->routed_scale, &d->routed_scale, 1);
}

static lkv_status floats_check(const float *p, uint64_t n, const char *name)
{
    LKV_TRY(lkvi_array_check(p, n, sizeof *p, name));
    for (uint64_t i = 0; i < n; i++)
        if (!isfinite(p[i]))
            return lkvi_fail(LKV_E_INVALID, "%s[%llu] is %g; need a finite value", name,
                             (unsigned long long)i, (double)p[i]);
    return LKV_OK;
}

static lkv_status pointers_check(const lkv_router_desc *d)
{
    uint64_t e = d->num_experts, m = d->trace_dim, hidden = d->hidden_dim;
    if (d->kind == LKV_ROUTER_V3) {
        LKV_TRY(floats_check(d->weight, e * hidden, "weight"));
        return floats_check(d->bias, d->bias ? e : 0, "bias");
    }
    if (!hidden)
        return LKV_OK;
    LKV_TRY(floats_check(d->trace_weight, m * (hidden + 1), "trace_weight"));
    LKV_TRY(floats_check(d->trace_bias, m, "trace_bias"));
    LKV_TRY(floats_check(d->weight, e * m, "weight"));
    return floats_check(d->bias, e, "bias");
}

static lkv_status desc_check(lkv_router_desc *d)
{
    LKV_TRY(between("kind", d->kind, LKV_ROUTER_TRACE, LKV_ROUTER_V3));
    LKV_TRY(between("num_experts", d->num_experts, 1, LKVI_MAX_EXPERTS));
    LKV_TRY(multiple16("hidden_dim", d->hidden_dim, MAX_HIDDEN_DIM));
    LKV_TRY(d->kind == LKV_ROUTER_TRACE ? trace_fields(d) : v3_fields(d));
    return pointers_check(d);
}

/* ---- create, release */

static void router_destroy(struct lkv_router *r)
{
    lkvi_free(NULL, r->memory);
    lkvi_context_drop(r->ctx);
    lkvi_object_recycle(&r->object);
}

static const float *put(float **at, const float *from, uint64_t n)
{
    float *to = *at;
    memcpy(to, from, n * sizeof *to);
    *at += n;
    return to;
}

static void copy_trace(struct lkvi_router_params *p, const lkv_router_desc *d, float **at)
{
    uint64_t m = d->trace_dim, hidden = d->hidden_dim;
    float *rows = *at, *layer = rows + m * hidden;
    for (uint64_t i = 0; i < m; i++) {
        memcpy(rows + i * hidden, d->trace_weight + i * (hidden + 1), hidden * sizeof *rows);
        layer[i] = d->trace_weight[i * (hidden + 1) + hidden];
    }
    *at = layer + m;
    p->trace_weight = rows;
    p->trace_layer = layer;
    p->trace_bias = put(at, d->trace_bias, m);
    p->weight = put(at, d->weight, d->num_experts * m);
    p->bias = put(at, d->bias, d->num_experts);
}

static lkv_status copy_weights(struct lkv_router *r, const lkv_router_desc *d)
{
    uint64_t e = d->num_experts, m = d->trace_dim, hidden = d->hidden_dim;
    uint64_t n = e * (hidden + m + 1) + m * (hidden + 2);
    float *at = r->memory = lkvi_zalloc(NULL, n, sizeof *at);
    if (!at)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for a router of %llu weights",
                         (unsigned long long)n);
    if (d->kind == LKV_ROUTER_TRACE) {
        if (hidden)
            copy_trace(&r->params, d, &at);
        return LKV_OK;
    }
    if (hidden)
        r->params.weight = put(&at, d->weight, e * hidden);
    if (d->bias)
        r->params.bias = put(&at, d->bias, e);
    return LKV_OK;
}

lkv_status lkv_router_create(lkv_context *ctx, const lkv_router_desc *given, lkv_router **out)
{
    lkv_router_desc d;
    LKV_TRY(lkvi_moe_context(ctx, "lkv_router"));
    LKV_TRY(lkvi_admit(&d, sizeof d, given, "lkv_router_desc"));
    LKV_TRY(lkvi_array_check(out, 1, sizeof(void *), "out"));
    LKV_TRY(desc_check(&d));
    struct lkv_router *r = lkvi_object_create(LKVI_KIND_ROUTER, sizeof *r);
    if (!r)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for a router of %zu bytes", sizeof *r);
    lkvi_context_retain(ctx);
    r->ctx = ctx;
    r->params = (struct lkvi_router_params){
        .kind = d.kind,
        .normalise = d.flags & LKV_ROUTER_NORMALISE,
        .hidden_dim = d.hidden_dim,
        .num_experts = d.num_experts,
        .top_k = d.top_k,
        .num_groups = d.num_groups,
        .topk_groups = d.topk_groups,
        .trace_dim = d.trace_dim,
        .inverse_temperature = d.kind == LKV_ROUTER_TRACE ? (float)(1 / d.temperature) : 0,
        .routed_scale = (float)d.routed_scale,
        .ops = lkvi_route_ops_get(ctx->isa)};
    lkv_status status = copy_weights(r, &d);
    if (status != LKV_OK) {
        router_destroy(r);
        return status;
    }
    lkvi_object_publish(&r->object);
    *out = r;
    return LKV_OK;
}

void lkv_router_release(lkv_router *router)
{
    if (lkvi_object_withdraw((struct lkvi_object *)router, LKVI_KIND_ROUTER) &&
        lkvi_object_drop(&router->object))
        router_destroy(router);
}

/* ---- a batch */

static lkv_status route_tensors(const struct lkv_router *r, const lkv_route_args *a)
{
    int64_t tokens = (int64_t)a->num_tokens, hidden = r->params.hidden_dim;
    struct lkvi_want x = {"x", LKVI_F32 | 1 << LKV_DTYPE_BF16, 2, {tokens, hidden}};
    struct lkvi_want logits = {"logits", LKVI_F32_LOOSE, 2, {tokens, r->params.num_experts}};
    if (a->num_tokens >= (uint64_t)1 << 31)
        return lkvi_fail(LKV_E_INVALID, "num_tokens is %llu; need less than 2^31",
                         (unsigned long long)a->num_tokens);
    if (a->x && !hidden)
        return lkvi_fail(LKV_E_INVALID, "x is given to a router of hidden_dim 0; need logits");
    if (a->x)
        LKV_TRY(lkvi_tensor_check(r->ctx, a->x, &x));
    return a->x && !a->logits ? LKV_OK : lkvi_tensor_check(r->ctx, a->logits, &logits);
}

static lkv_status route_arrays(const struct lkv_router *r, const lkv_route_args *a)
{
    uint64_t n = a->num_tokens;
    LKV_TRY(lkvi_array_check(a->experts, n, sizeof *a->experts, "experts"));
    LKV_TRY(lkvi_array_check(a->weights, a->weights ? n : 0, sizeof *a->weights, "weights"));
    LKV_TRY(lkvi_array_check(a->entropy, a->entropy ? n : 0, sizeof *a->entropy, "entropy"));
    LKV_TRY(
        lkvi_array_check(a->load, a->load ? r->params.num_experts : 0, sizeof *a->load, "load"));
    return lkvi_flags_check(a->flags, 0, "route flags");
}

lkv_status lkv_route(const lkv_router *router, const lkv_route_args *given, void *stream)
{
    lkv_route_args a;
    LKV_TRY(lkvi_object_check((const struct lkvi_object *)router, LKVI_KIND_ROUTER));
    LKV_TRY(lkvi_stream_check(router->ctx, stream));
    LKV_TRY(lkvi_admit(&a, sizeof a, given, "lkv_route_args"));
    LKV_TRY(route_tensors(router, &a));
    LKV_TRY(route_arrays(router, &a));
    struct lkvi_route_batch batch = {.x = a.x ? a.x->data : NULL,
                                     .x_stride = a.x ? (uint64_t)a.x->stride[0] : 0,
                                     .x_is_bf16 = a.x && a.x->dtype == LKV_DTYPE_BF16,
                                     .logits = a.logits ? a.logits->data : NULL,
                                     .logits_stride = a.logits ? (uint64_t)a.logits->stride[0] : 0,
                                     .experts = a.experts,
                                     .weights = a.weights,
                                     .entropy = a.entropy,
                                     .load = a.load,
                                     .num_tokens = a.num_tokens,
                                     .layer = a.layer};
    lkvi_route(&router->params, &batch, router->ctx->threads);
    return LKV_OK;
}
