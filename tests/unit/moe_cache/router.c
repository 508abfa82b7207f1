/* Routers against their float64 twins and answers worked out by hand. Given logits are exact
 * inputs: a choice may differ from the twin's only where two scores lie closer than fp32 can tell.
 */
#include <criterion/criterion.h>
#include <float.h>
#include <stdlib.h>
#include "latentkv/moe_cache.h"
#include "tests/reference/ref_moe.h"
#include "tests/support/compare.h"
#include "tests/support/rng.h"

enum { T = 37 };

struct shape {
    uint32_t trace, experts, top_k, groups, topk_groups, hidden, normalise, biased;
    double scale;
};

static const struct shape shapes[] = {
    {0, 256, 8, 8, 4, 64, 1, 1, 2.5},   /* DeepSeek-V3 */
    {0, 384, 8, 1, 1, 32, 1, 1, 2.827}, /* Kimi-K2 */
    {0, 160, 6, 8, 3, 48, 0, 0, 16.0},  /* groups without a bias */
    {0, 64, 8, 64, 16, 16, 1, 1, 1.0},  /* groups of one */
    {0, 5, 3, 1, 1, 16, 1, 0, 1.0},     /* no multiple of the lanes */
    {0, 1, 1, 1, 1, 16, 1, 1, 1.0},     {0, 1024, 32, 4, 2, 16, 1, 1, 1.0},
    {1, 8, 1, 1, 1, 112, 0, 0, 1.0}, /* the source document's size */
    {1, 33, 1, 1, 1, 16, 0, 0, 1.0},    {1, 1, 1, 1, 1, 16, 0, 0, 1.0},
};
enum { NUM_SHAPES = sizeof shapes / sizeof shapes[0] };

struct world {
    lkv_context *ctx;
    lkv_router *router;
    struct ref_router ref;
    float *trace_weight, *trace_bias, *weight, *bias;
    float *x, *logits, *weights, *entropy;
    int32_t *experts;
    uint64_t *load;
};

static float *normal(struct rng *r, uint64_t n, double sigma)
{
    float *p = malloc(n * sizeof *p);
    rng_fill_normal(r, p, n, sigma);
    return p;
}

static lkv_context *context(uint32_t isa, uint32_t threads)
{
    lkv_context *ctx = NULL;
    lkv_context_desc d = {
        .size = sizeof d, .device = LKV_DEVICE_CPU, .num_threads = threads, .isa = isa};
    cr_assert_eq(lkv_context_create(&d, &ctx), LKV_OK, "%s", lkv_last_error());
    return ctx;
}

static void describe(const struct shape *s, const struct world *w, lkv_router_desc *d)
{
    *d = (lkv_router_desc){.size = sizeof *d,
                           .kind = s->trace ? LKV_ROUTER_TRACE : LKV_ROUTER_V3,
                           .flags = s->normalise ? LKV_ROUTER_NORMALISE : 0,
                           .hidden_dim = s->hidden,
                           .num_experts = s->experts,
                           .top_k = s->top_k,
                           .trace_weight = w->trace_weight,
                           .trace_bias = w->trace_bias,
                           .weight = w->weight,
                           .bias = w->bias};
    if (!s->trace) {
        d->num_groups = s->groups;
        d->topk_groups = s->topk_groups;
        d->routed_scale = s->scale;
    }
}

static struct world *open_world(const struct shape *s, uint32_t isa, uint32_t threads)
{
    struct world *w = calloc(1, sizeof *w);
    struct rng r = rng_seed(s->experts * 1000 + s->top_k);
    uint64_t inner = s->trace ? 256 : s->hidden;
    lkv_router_desc d;
    if (s->trace) {
        w->trace_weight = normal(&r, 256 * (s->hidden + 1), 0.1);
        w->trace_bias = normal(&r, 256, 0.1);
    }
    w->weight = normal(&r, s->experts * inner, 0.3);
    w->bias = s->biased || s->trace ? normal(&r, s->experts, 0.1) : NULL;
    w->x = normal(&r, T * s->hidden, 1);
    w->logits = calloc(T * s->experts, sizeof *w->logits);
    w->weights = calloc(T * s->top_k, sizeof *w->weights);
    w->experts = calloc(T * s->top_k, sizeof *w->experts);
    w->entropy = calloc(T, sizeof *w->entropy);
    w->load = calloc(s->experts, sizeof *w->load);
    w->ctx = context(isa, threads);
    describe(s, w, &d);
    cr_assert_eq(lkv_router_create(w->ctx, &d, &w->router), LKV_OK, "%s", lkv_last_error());
    w->ref =
        (struct ref_router){(int)s->trace,   (int)s->normalise, s->hidden, s->experts, s->top_k,
                            s->groups,       s->topk_groups,    256,       1.2,        s->scale,
                            w->trace_weight, w->trace_bias,     w->weight, w->bias};
    return w;
}

static void close_world(struct world *w)
{
    lkv_router_release(w->router);
    lkv_context_release(w->ctx);
    free(w->trace_weight);
    free(w->trace_bias);
    free(w->weight);
    free(w->bias);
    free(w->x);
    free(w->logits);
    free(w->weights);
    free(w->experts);
    free(w->entropy);
    free(w->load);
    free(w);
}

static lkv_tensor matrix(void *data, uint32_t dtype, int64_t rows, int64_t cols)
{
    return (lkv_tensor){data, dtype, 2, {rows, cols}, {cols, 1}};
}

/* With x: logits come out; without: they go in. */
static void route(struct world *w, const struct shape *s, const lkv_tensor *x)
{
    lkv_tensor logits = matrix(w->logits, LKV_DTYPE_F32, T, s->experts);
    lkv_route_args a = {.size = sizeof a,
                        .x = x,
                        .logits = &logits,
                        .experts = w->experts,
                        .weights = w->weights,
                        .entropy = w->entropy,
                        .load = w->load,
                        .num_tokens = T,
                        .layer = 3};
    cr_assert_eq(lkv_route(w->router, &a, NULL), LKV_OK, "%s", lkv_last_error());
}

/* Against the twin on the logits that w holds. */
static void check_choice(const struct world *w, const struct shape *s, uint32_t t)
{
    double logits[1024], score[1024], value[1024], weights[32];
    int32_t chosen[32];
    for (uint32_t e = 0; e < s->experts; e++)
        logits[e] = w->logits[t * s->experts + e];
    double h = ref_router_choose(&w->ref, logits, chosen, weights);
    ref_router_scores(&w->ref, logits, score, value);
    const int32_t *found = w->experts + t * s->top_k;
    for (uint32_t k = 0; k < s->top_k; k++) {
        double margin = fabs(value[chosen[k]] - value[found[k]]);
        cr_expect(found[k] == chosen[k] || margin <= 4 * FLT_EPSILON,
                  "experts %u token %u: choice %u is %d (%.9g), want %d (%.9g)", s->experts, t, k,
                  found[k], value[found[k]], chosen[k], value[chosen[k]]);
        double want = weights[k], error = fabs(w->weights[t * s->top_k + k] - want);
        cr_expect(found[k] != chosen[k] || error <= 2e-6 * want,
                  "experts %u token %u: weight %u is %.9g, want %.9g", s->experts, t, k,
                  (double)w->weights[t * s->top_k + k], want);
    }
    cr_expect(fabs(w->entropy[t] - h) <= 4e-6, "experts %u token %u: entropy %.9g, want %.9g",
              s->experts, t, (double)w->entropy[t], h);
}

Test(moe_router, equals_the_twin_on_given_logits)
{
    for (int i = 0; i < NUM_SHAPES; i++) {
        const struct shape *s = &shapes[i];
        struct world *w = open_world(s, LKV_ISA_AUTO, 1);
        struct rng r = rng_seed(77);
        rng_fill_normal(&r, w->logits, T * s->experts, 3);
        route(w, s, NULL);
        for (uint32_t t = 0; t < T; t++)
            check_choice(w, s, t);
        close_world(w);
    }
}

/* sum |w x| over a row */
static double weight_of(const float *w, const double *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += fabs(w[i] * x[i]);
    return sum;
}

/* Rounding of one fp32 logit. A sum of depth n in 16 lanes: (n / 16 + 6) eps sum |w x|. Trace: that
 * of each hidden value, times GELU's steepest slope 1.13 and its own 4 eps, through the second. */
static double logit_bound(const struct ref_router *r, const double *x, uint32_t e)
{
    double eps = FLT_EPSILON, hidden[256], bound = 0;
    if (!r->trace)
        return (r->hidden / 16 + 6) * eps *
               weight_of(r->weight + (uint64_t)e * r->hidden, x, r->hidden);
    const float *w = r->weight + (uint64_t)e * 256;
    for (uint32_t m = 0; m < 256; m++) {
        hidden[m] = weight_of(r->trace_weight + (uint64_t)m * (r->hidden + 1), x, r->hidden + 1) +
                    fabs((double)r->trace_bias[m]);
        bound += fabs((double)w[m]) * (1.13 * (r->hidden / 16 + 8) * eps + 4 * eps) * hidden[m];
    }
    return bound + (256 / 16 + 6) * eps * (weight_of(w, hidden, 256) + fabs((double)r->bias[e]));
}

Test(moe_router, logits_are_the_twins)
{
    for (int i = 0; i < NUM_SHAPES; i++) {
        const struct shape *s = &shapes[i];
        struct world *w = open_world(s, LKV_ISA_AUTO, 1);
        lkv_tensor x = matrix(w->x, LKV_DTYPE_F32, T, s->hidden);
        double want[1024], wide[128];
        route(w, s, &x);
        for (uint32_t t = 0; t < T; t++) {
            for (uint32_t k = 0; k < s->hidden; k++)
                wide[k] = w->x[t * s->hidden + k];
            wide[s->hidden] = 3;
            ref_router_logits(&w->ref, w->x + t * s->hidden, 3, want);
            for (uint32_t e = 0; e < s->experts; e++)
                cr_assert(
                    fabs(w->logits[t * s->experts + e] - want[e]) <= logit_bound(&w->ref, wide, e),
                    "experts %u token %u: logit %u is %.9g, want %.9g +- %.1e", s->experts, t, e,
                    (double)w->logits[t * s->experts + e], want[e], logit_bound(&w->ref, wide, e));
            check_choice(w, s, t);
        }
        close_world(w);
    }
}

/* Every result, bit for bit, whatever the instruction set and the threads; bf16 rows are the fp32
 * rows of the same values; rows may lie apart. */
Test(moe_router, bits_do_not_depend_on_the_machine)
{
    static const uint32_t variants[][2] = {
        {LKV_ISA_SCALAR, 1}, {LKV_ISA_AVX2, 1}, {LKV_ISA_AVX512, 1}, {LKV_ISA_AUTO, 3}};
    for (int i = 0; i < NUM_SHAPES; i++) {
        const struct shape *s = &shapes[i];
        struct world *first = NULL;
        for (int v = 0; v < 4; v++) {
            struct world *w = open_world(s, variants[v][0], variants[v][1]);
            uint16_t *half = calloc(T, 2 * (s->hidden + 16));
            lkv_tensor x = matrix(w->x, LKV_DTYPE_F32, T, s->hidden);
            for (uint32_t k = 0; k < T * s->hidden; k++) {
                uint32_t bits = float_bits(w->x[k]) & 0xFFFF0000u;
                memcpy(&w->x[k], &bits, 4);
                half[k / s->hidden * (s->hidden + 16) + k % s->hidden] = (uint16_t)(bits >> 16);
            }
            if (v & 1) {
                x = matrix(half, LKV_DTYPE_BF16, T, s->hidden);
                x.stride[0] = s->hidden + 16;
            }
            route(w, s, &x);
            if (first) {
                cr_expect(same_floats("logits", w->logits, first->logits, T * s->experts));
                cr_expect(same_floats("weights", w->weights, first->weights, T * s->top_k));
                cr_expect(same_floats("entropy", w->entropy, first->entropy, T));
                cr_expect(same_bytes("experts", w->experts, first->experts, 4 * T * s->top_k));
                cr_expect(same_bytes("load", w->load, first->load, 8 * s->experts));
                close_world(w);
            } else {
                first = w;
            }
            free(half);
        }
        close_world(first);
    }
}

/* Logits of a few values only: many equals, and the lowest index first. */
Test(moe_router, ties_take_the_lowest_index)
{
    for (int i = 0; i < NUM_SHAPES; i++) {
        struct shape s = shapes[i];
        s.biased = 0;
        struct world *w = open_world(&s, LKV_ISA_AUTO, 1);
        struct rng r = rng_seed(5);
        double logits[1024], weights[32];
        int32_t chosen[32];
        for (uint32_t k = 0; k < T * s.experts; k++)
            w->logits[k] = k < s.experts ? 1.5f : (float)rng_below(&r, 3);
        route(w, &s, NULL);
        for (uint32_t t = 0; t < T; t++) {
            for (uint32_t e = 0; e < s.experts; e++)
                logits[e] = w->logits[t * s.experts + e];
            ref_router_choose(&w->ref, logits, chosen, weights);
            for (uint32_t k = 0; k < s.top_k; k++)
                cr_assert_eq(w->experts[t * s.top_k + k], chosen[k],
                             "experts %u token %u: choice %u is %d, want %d", s.experts, t, k,
                             w->experts[t * s.top_k + k], chosen[k]);
        }
        if (!s.trace)
            for (uint32_t k = 0; k < s.top_k && s.groups == 1; k++)
                cr_assert_eq(w->experts[k], (int32_t)k);
        close_world(w);
    }
}

/* By hand. Two groups of two; sigmoid(0) = 1/2, sigmoid(ln 3) = 3/4, sigmoid(-ln 3) = 1/4. With the
 * bias {0, 0.5, 0, 0}: values 1/2, 3/4, 3/4, 3/4; group sums 5/4 and 3/2: the second group. */
Test(moe_router, v3_by_hand)
{
    const float ln3 = 1.09861229f, bias[4] = {0, 0.5f, 0, 0};
    float logits[4] = {0, -ln3, ln3, ln3}, weights[2], entropy;
    int32_t experts[2];
    lkv_context *ctx = context(LKV_ISA_AUTO, 1);
    lkv_router *router;
    lkv_router_desc d = {.size = sizeof d,
                         .kind = LKV_ROUTER_V3,
                         .flags = LKV_ROUTER_NORMALISE,
                         .num_experts = 4,
                         .top_k = 2,
                         .num_groups = 2,
                         .topk_groups = 1,
                         .routed_scale = 3,
                         .bias = bias};
    lkv_tensor l = matrix(logits, LKV_DTYPE_F32, 1, 4);
    lkv_route_args a = {.size = sizeof a,
                        .logits = &l,
                        .experts = experts,
                        .weights = weights,
                        .entropy = &entropy,
                        .num_tokens = 1};
    cr_assert_eq(lkv_router_create(ctx, &d, &router), LKV_OK, "%s", lkv_last_error());
    cr_assert_eq(lkv_route(router, &a, NULL), LKV_OK, "%s", lkv_last_error());
    cr_expect(experts[0] == 2 && experts[1] == 3, "%d %d", experts[0], experts[1]);
    cr_expect_float_eq(weights[0], 1.5f, 1e-6);
    /* p = 2/9, 1/9, 3/9, 3/9 */
    cr_expect_float_eq(entropy, (float)(log(9) - (2 * log(2) + 0 + 6 * log(3)) / 9), 1e-6);
    lkv_router_release(router);
    lkv_context_release(ctx);
}

Test(moe_router, what_is_not_finite_still_gives_different_experts)
{
    const struct shape s = {0, 16, 8, 4, 2, 16, 1, 0, 1.0};
    for (int kind = 0; kind < 2; kind++) {
        struct shape shape = s;
        shape.trace = (uint32_t)kind;
        shape.normalise = !kind;
        shape.top_k = kind ? 1 : 8;
        struct world *w = open_world(&shape, LKV_ISA_AUTO, 1);
        struct rng r = rng_seed(9);
        for (uint32_t k = 0; k < T * s.experts; k++)
            w->logits[k] = k < s.experts       ? NAN
                           : k < 2 * s.experts ? -INFINITY
                           : k < 3 * s.experts ? INFINITY
                                               : rng_any_float(&r);
        route(w, &shape, NULL);
        for (uint32_t t = 0; t < T; t++) {
            uint32_t seen = 0;
            for (uint32_t k = 0; k < shape.top_k; k++) {
                int32_t e = w->experts[t * shape.top_k + k];
                cr_assert(e >= 0 && e < 16 && !(seen >> e & 1), "token %u: choice %u is %d", t, k,
                          e);
                seen |= 1u << e;
                cr_expect(isfinite(w->weights[t * shape.top_k + k]), "token %u weight %u", t, k);
            }
            cr_expect(isfinite(w->entropy[t]) && w->entropy[t] >= 0, "token %u: %g", t,
                      (double)w->entropy[t]);
        }
        close_world(w);
    }
}

Test(moe_router, load_counts_every_choice_and_no_token_is_fine)
{
    const struct shape *s = &shapes[0];
    struct world *w = open_world(s, LKV_ISA_AUTO, 2);
    lkv_tensor x = matrix(w->x, LKV_DTYPE_F32, T, s->hidden);
    lkv_route_args none = {.size = sizeof none, .logits = &x};
    uint64_t sum = 0, want[256] = {0};
    route(w, s, &x);
    for (uint32_t i = 0; i < T * s->top_k; i++)
        want[w->experts[i]]++;
    cr_expect(same_bytes("load", w->load, want, sizeof want));
    for (uint32_t e = 0; e < s->experts; e++)
        sum += w->load[e];
    cr_expect_eq(sum, T * s->top_k);
    lkv_tensor empty = matrix(NULL, LKV_DTYPE_F32, 0, s->experts);
    none.logits = &empty;
    cr_expect_eq(lkv_route(w->router, &none, NULL), LKV_OK, "%s", lkv_last_error());
    close_world(w);
}
