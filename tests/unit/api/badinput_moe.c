/* Rows of wrong calls for moe_cache.h: routers, gates, fallback, combination. What refused
 * calls must not write lies in w->out; gates are asked for their state before and after. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include "latentkv/moe_cache.h"
#include "tests/unit/api/badinput.h"

enum { E = 8, D = 16, N = 4 };

struct moe {
    lkv_router *router, *dead_router;
    lkv_gate *gate, *dead_gate;
    lkv_router_desc router_desc, trace_desc;
    lkv_gate_desc gate_desc;
    lkv_tensor x, logits, rows, out;
    lkv_route_args route;
    lkv_gate_args step;
    lkv_gate_state state;
    lkv_fallback_args fallback;
    lkv_combine_args combine;
    lkv_token_scale_args scale;
    float weights[E * 16 * 17];
    int32_t primary[N], buddy[E];
    uint8_t triggered[N];
};

static lkv_tensor matrix(void *data, int64_t cols)
{
    return (lkv_tensor){data, LKV_DTYPE_F32, 2, {N, cols}, {cols, 1}};
}

static void make_descs(struct moe *m)
{
    m->router_desc = (lkv_router_desc){.size = sizeof m->router_desc,
                                       .kind = LKV_ROUTER_V3,
                                       .hidden_dim = D,
                                       .num_experts = E,
                                       .top_k = 2,
                                       .num_groups = 4,
                                       .topk_groups = 2,
                                       .weight = m->weights,
                                       .bias = m->weights};
    m->trace_desc = (lkv_router_desc){.size = sizeof m->trace_desc,
                                      .kind = LKV_ROUTER_TRACE,
                                      .hidden_dim = D,
                                      .num_experts = E,
                                      .trace_dim = 16,
                                      .trace_weight = m->weights,
                                      .trace_bias = m->weights,
                                      .weight = m->weights,
                                      .bias = m->weights};
    m->gate_desc = (lkv_gate_desc){.size = sizeof m->gate_desc};
}

static void make_args(struct world *w, struct moe *m)
{
    float *out = w->out.rows;
    m->x = matrix(w->data, D);
    m->logits = matrix(out, E);
    m->rows = matrix(w->data, D);
    m->out = matrix(out + 64, D);
    m->route = (lkv_route_args){.size = sizeof m->route,
                                .x = &m->x,
                                .logits = &m->logits,
                                .experts = w->out.ids,
                                .weights = out + 256,
                                .entropy = out + 300,
                                .load = (uint64_t *)w->out.slots,
                                .num_tokens = N};
    m->step = (lkv_gate_args){.size = sizeof m->step,
                              .entropy = &m->x,
                              .triggered = (uint8_t *)w->out.positions,
                              .reduced = out + 320};
    m->fallback = (lkv_fallback_args){.size = sizeof m->fallback,
                                      .policy = LKV_FALLBACK_FNV1A,
                                      .num_experts = E,
                                      .primary = m->primary,
                                      .fallback = w->out.ids,
                                      .num_tokens = N};
    m->combine = (lkv_combine_args){.size = sizeof m->combine,
                                    .primary = &m->x,
                                    .fallback = &m->rows,
                                    .out = &m->out,
                                    .chosen = m->primary,
                                    .mode = LKV_COMBINE_ADD};
    m->scale = (lkv_token_scale_args){
        .size = sizeof m->scale, .x = &m->x, .scale = out + 340, .low = 0.5, .high = 2};
}

static void make_objects(struct world *w, struct moe *m)
{
    cr_assert_eq(lkv_router_create(w->ctx, &m->router_desc, &m->router), LKV_OK);
    cr_assert_eq(lkv_router_create(w->ctx, &m->trace_desc, &m->dead_router), LKV_OK);
    lkv_router_release(m->dead_router);
    cr_assert_eq(lkv_gate_create(&m->gate_desc, &m->gate), LKV_OK);
    cr_assert_eq(lkv_gate_create(&m->gate_desc, &m->dead_gate), LKV_OK);
    lkv_gate_release(m->dead_gate);
    m->state.size = sizeof m->state;
    cr_assert_eq(lkv_gate_save(m->gate, &m->state), LKV_OK);
}

#define BAD_ROUTER(base, word, change)                                                             \
    WITH(lkv_router_desc, d, base, change,                                                         \
         BAD(lkv_router_create, word, INVALID, w->ctx, &d, MARK(w)))

static void bad_routers(struct world *w, struct moe *m)
{
    lkv_router_desc *v3 = &m->router_desc, *trace = &m->trace_desc;
    float broken[E] = {0, NAN};
    BAD(lkv_router_create, "NULL", INVALID, NULL, v3, MARK(w));
    BAD(lkv_router_create, "released", INVALID, w->dead_ctx, v3, MARK(w));
    BAD(lkv_router_create, "NULL", INVALID, w->ctx, NULL, MARK(w));
    BAD(lkv_router_create, "alignment", INVALID, w->ctx, OFF(v3), MARK(w));
    BAD(lkv_router_create, "out", INVALID, w->ctx, v3, NULL);
    BAD_ROUTER(*v3, "kind is 0", d.kind = 0);
    BAD_ROUTER(*v3, "kind is 3", d.kind = 3);
    BAD_ROUTER(*v3, "flags", d.flags = 2);
    BAD_ROUTER(*v3, "hidden_dim is 24", d.hidden_dim = 24);
    BAD_ROUTER(*v3, "hidden_dim", d.hidden_dim = UINT32_MAX - 15);
    BAD_ROUTER(*v3, "num_experts is 0", d.num_experts = 0);
    BAD_ROUTER(*v3, "num_experts", d.num_experts = UINT32_MAX);
    BAD_ROUTER(*v3, "top_k is 0", d.top_k = 0);
    BAD_ROUTER(*v3, "top_k is 5", d.top_k = 5);
    BAD_ROUTER(*v3, "num_groups is 3", d.num_groups = 3; d.topk_groups = 1);
    BAD_ROUTER(*v3, "topk_groups is 5", d.topk_groups = 5);
    BAD_ROUTER(*v3, "routed_scale", d.routed_scale = NAN);
    BAD_ROUTER(*v3, "routed_scale", d.routed_scale = -1);
    BAD_ROUTER(*v3, "trace_dim", d.trace_dim = 16);
    BAD_ROUTER(*v3, "weight is NULL", d.weight = NULL);
    BAD_ROUTER(*v3, "alignment", d.weight = OFF(d.weight));
    BAD_ROUTER(*v3, "bias[1] is nan", d.bias = broken);
    BAD_ROUTER(*trace, "top_k", d.top_k = 2);
    BAD_ROUTER(*trace, "num_groups", d.num_groups = 1);
    BAD_ROUTER(*trace, "trace_dim is 1040", d.trace_dim = 1040);
    BAD_ROUTER(*trace, "temperature", d.temperature = INFINITY);
    BAD_ROUTER(*trace, "trace_weight", d.trace_weight = NULL);
    BAD_ROUTER(*trace, "trace_bias", d.trace_bias = NULL);
    BAD_ROUTER(*trace, "bias is NULL", d.bias = NULL);
    WITH(lkv_router_desc, d, *v3, d.size = 0,
         BAD(lkv_router_create, "size is 0", INVALID, w->ctx, &d, MARK(w)));
}

#define BAD_ROUTE(word, change)                                                                    \
    WITH(lkv_route_args, a, m->route, change, BAD(lkv_route, word, INVALID, m->router, &a, NULL))
#define BAD_X(word, change) WITH(lkv_tensor, t, m->x, change, BAD_ROUTE(word, a.x = &t))

static void bad_routes(struct world *w, struct moe *m)
{
    BAD(lkv_route, "NULL", INVALID, NULL, &m->route, NULL);
    BAD(lkv_route, "released", INVALID, m->dead_router, &m->route, NULL);
    BAD(lkv_route, "another kind", INVALID, (lkv_router *)w->pool, &m->route, NULL);
    BAD(lkv_route, "stream", INVALID, m->router, &m->route, w);
    BAD(lkv_route, "NULL", INVALID, m->router, NULL, NULL);
    BAD(lkv_route, "alignment", INVALID, m->router, OFF(&m->route), NULL);
    BAD_ROUTE("num_tokens", a.num_tokens = UINT64_MAX);
    BAD_ROUTE("shape[0]", a.num_tokens = N + 1);
    BAD_ROUTE("logits is NULL", a.x = NULL; a.logits = NULL);
    BAD_ROUTE("experts is NULL", a.experts = NULL);
    BAD_ROUTE("experts", a.experts = OFF(a.experts));
    BAD_ROUTE("weights", a.weights = OFF(a.weights));
    BAD_ROUTE("entropy", a.entropy = OFF(a.entropy));
    BAD_ROUTE("load", a.load = OFF(a.load));
    BAD_ROUTE("flags", a.flags = 1);
    BAD_X("F16", t.dtype = LKV_DTYPE_F16);
    BAD_X("shape[1]", t.shape[1] = D - 1);
    BAD_X("stride", t.stride[0] = D - 1);
    BAD_X("NULL", t.data = NULL);
    BAD_X("alignment", t.data = OFF(t.data));
}

#define BAD_GATE(word, change)                                                                     \
    WITH(lkv_gate_desc, d, m->gate_desc, change, BAD(lkv_gate_create, word, INVALID, &d, MARK(w)))
#define BAD_STEP(word, change)                                                                     \
    WITH(lkv_gate_args, a, m->step, change, BAD(lkv_gate_step, word, INVALID, m->gate, &a))
#define BAD_STATE(word, change)                                                                    \
    WITH(lkv_gate_state, s, m->state, change, BAD(lkv_gate_load, word, INVALID, m->gate, &s))

static void bad_gates(struct world *w, struct moe *m)
{
    BAD(lkv_gate_create, "NULL", INVALID, NULL, MARK(w));
    BAD(lkv_gate_create, "alignment", INVALID, OFF(&m->gate_desc), MARK(w));
    BAD(lkv_gate_create, "out", INVALID, &m->gate_desc, NULL);
    BAD_GATE("size is 0", d.size = 0);
    BAD_GATE("reduce is 2", d.reduce = 2);
    BAD_GATE("window_steps", d.window_steps = UINT32_MAX);
    BAD_GATE("threshold", d.threshold = NAN);
    BAD_GATE("stddevs", d.stddevs = INFINITY);
    BAD_GATE("hysteresis", d.hysteresis = -1);
    BAD_GATE("frozen", d.frozen = 2);
    BAD_GATE("flags", d.flags = 1);
    BAD(lkv_gate_step, "NULL", INVALID, NULL, &m->step);
    BAD(lkv_gate_step, "released", INVALID, m->dead_gate, &m->step);
    BAD(lkv_gate_step, "NULL", INVALID, m->gate, NULL);
    BAD_STEP("entropy is NULL", a.entropy = NULL);
    BAD_STEP("triggered is NULL", a.triggered = NULL);
    BAD_STEP("reduced", a.reduced = OFF(a.reduced));
    WITH(lkv_tensor, t, m->x, t.shape[1] = 0, BAD_STEP("heads", a.entropy = &t));
    WITH(lkv_tensor, t, m->x, t.dtype = LKV_DTYPE_BF16, BAD_STEP("BF16", a.entropy = &t));
    WITH(lkv_tensor, t, m->x, t.ndim = 3, BAD_STEP("dimensions", a.entropy = &t));
    BAD(lkv_gate_freeze, "NULL", INVALID, NULL, 1);
    BAD(lkv_gate_freeze, "released", INVALID, m->dead_gate, 1);
    BAD(lkv_gate_freeze, "frozen is 0x2", INVALID, m->gate, 2);
}

static void bad_states(struct world *w, struct moe *m)
{
    BAD(lkv_gate_save, "NULL", INVALID, NULL, &m->state);
    BAD(lkv_gate_save, "released", INVALID, m->dead_gate, &m->state);
    BAD(lkv_gate_save, "NULL", INVALID, m->gate, NULL);
    BAD(lkv_gate_save, "alignment", INVALID, m->gate, OFF(&m->state));
    BAD(lkv_gate_load, "NULL", INVALID, NULL, &m->state);
    BAD(lkv_gate_load, "released", INVALID, m->dead_gate, &m->state);
    BAD(lkv_gate_load, "NULL", INVALID, m->gate, NULL);
    BAD_STATE("steps is 1000", s.steps = 1000);
    BAD_STATE("count is 1", s.count = s.total = 1);
    BAD_STATE("total is 0", s.triggered = 1);
    BAD_STATE("mean", s.mean = NAN);
    BAD_STATE("m2", s.m2 = -1);
    BAD_STATE("threshold", s.threshold = INFINITY);
    BAD_STATE("frozen", s.frozen = 2);
    BAD_STATE("reserved", s.reserved = 1);
}

#define BAD_FALLBACK(word, change)                                                                 \
    WITH(lkv_fallback_args, a, m->fallback, change, BAD(lkv_fallback_choose, word, INVALID, &a))

static void bad_fallbacks(struct world *w, struct moe *m)
{
    int32_t wrong[E] = {0, -2, 8};
    BAD(lkv_fallback_choose, "NULL", INVALID, NULL);
    BAD(lkv_fallback_choose, "alignment", INVALID, OFF(&m->fallback));
    BAD_FALLBACK("policy is 5", a.policy = 5);
    BAD_FALLBACK("num_experts is 0", a.num_experts = 0);
    BAD_FALLBACK("num_experts", a.num_experts = UINT32_MAX);
    BAD_FALLBACK("primary is NULL", a.primary = NULL);
    BAD_FALLBACK("primary[1] is -2", a.primary = wrong);
    BAD_FALLBACK("primary[0] is 8", a.primary = wrong + 2);
    BAD_FALLBACK("fallback is NULL", a.fallback = NULL);
    BAD_FALLBACK("buddy is NULL", a.policy = LKV_FALLBACK_BUDDY);
    BAD_FALLBACK("buddy[1] is -2", a.policy = LKV_FALLBACK_BUDDY; a.buddy = wrong);
    BAD_FALLBACK("shared_expert is -1", a.policy = LKV_FALLBACK_SHARED; a.shared_expert = -1);
    BAD_FALLBACK("shared_expert", a.policy = LKV_FALLBACK_SHARED; a.shared_expert = INT32_MAX);
    BAD_FALLBACK("flags", a.flags = 1);
}

#define BAD_COMBINE(word, change)                                                                  \
    WITH(lkv_combine_args, a, m->combine, change, BAD(lkv_combine, word, INVALID, w->ctx, &a, NULL))
#define BAD_SCALE(word, change)                                                                    \
    WITH(lkv_token_scale_args, a, m->scale, change,                                                \
         BAD(lkv_token_scale, word, INVALID, w->ctx, &a, NULL))

static void bad_rows(struct world *w, struct moe *m)
{
    BAD(lkv_combine, "NULL", INVALID, NULL, &m->combine, NULL);
    BAD(lkv_combine, "released", INVALID, w->dead_ctx, &m->combine, NULL);
    BAD(lkv_combine, "stream", INVALID, w->ctx, &m->combine, w);
    BAD(lkv_combine, "NULL", INVALID, w->ctx, NULL, NULL);
    BAD_COMBINE("mode is 0", a.mode = 0);
    BAD_COMBINE("mode is 4", a.mode = 4);
    BAD_COMBINE("flags", a.flags = 1);
    BAD_COMBINE("primary is NULL", a.primary = NULL);
    BAD_COMBINE("out is NULL", a.out = NULL);
    BAD_COMBINE("fallback is NULL", a.fallback = NULL);
    BAD_COMBINE("STAT_ONLY", a.mode = LKV_COMBINE_STAT_ONLY);
    BAD_COMBINE("chosen is NULL", a.chosen = NULL);
    BAD_COMBINE("weight", a.weight = OFF(w->data));
    WITH(lkv_tensor, t, m->rows, t.dtype = LKV_DTYPE_BF16, BAD_COMBINE("BF16", a.fallback = &t));
    WITH(lkv_tensor, t, m->rows, t.shape[1] = 8, BAD_COMBINE("shape[1] 8", a.fallback = &t));
    BAD(lkv_token_scale, "NULL", INVALID, NULL, &m->scale, NULL);
    BAD(lkv_token_scale, "stream", INVALID, w->ctx, &m->scale, w);
    BAD(lkv_token_scale, "NULL", INVALID, w->ctx, NULL, NULL);
    BAD_SCALE("x is NULL", a.x = NULL);
    BAD_SCALE("scale is NULL", a.scale = NULL);
    BAD_SCALE("low is 3", a.low = 3);
    BAD_SCALE("low", a.low = NAN);
    BAD_SCALE("decay is 2", a.decay = 2);
    BAD_SCALE("mean", a.mean = INFINITY);
    BAD_SCALE("mean", a.count = UINT64_MAX);
}

void bad_moe(struct world *w)
{
    struct moe *m = &(struct moe){0};
    lkv_gate_state after = {.size = sizeof after};
    make_descs(m);
    make_args(w, m);
    make_objects(w, m);
    bad_routers(w, m);
    bad_routes(w, m);
    bad_gates(w, m);
    bad_states(w, m);
    bad_fallbacks(w, m);
    bad_rows(w, m);
    cr_assert_eq(lkv_gate_save(m->gate, &after), LKV_OK);
    cr_expect_eq(memcmp(&after, &m->state, sizeof after), 0, "a refused call changed the gate");
    lkv_router_release(NULL);
    lkv_router_release(m->dead_router);
    lkv_router_release(m->router);
    lkv_gate_release(NULL);
    lkv_gate_release(m->dead_gate);
    lkv_gate_release(m->gate);
    called("lkv_router_release");
    called("lkv_gate_release");
}
