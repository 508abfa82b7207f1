/* Figures of docs/moe-cache.md: CPU time a token of routing, gate and fallback, one thread. Prints,
 * asserts nothing but that the calls succeed. Each line: the least and the median of 15 runs. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "latentkv/moe_cache.h"
#include "tests/support/rng.h"
#include "tests/unit/moe_cache/slots_world.h"

enum { RUNS = 15, TOKENS = 8192, MAX_EXPERTS = 384, HEADS = 128, TRACE_TOKENS = 256 };

struct bench {
    lkv_context *ctx;
    lkv_router *router;
    lkv_gate *gate;
    float *values, *weights, *entropy;
    int32_t *experts, *fallback;
    uint8_t *triggered;
    lkv_slots *slots;
    lkv_slot_key *keys;
    lkv_slot *slot;
    uint32_t num_experts, top_k;
    uint64_t tokens, heads;
    int failed;
};

static double cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(struct bench *b, const char *name, lkv_status (*call)(struct bench *))
{
    double ns[RUNS];
    for (int i = -1; i < RUNS; i++) {
        double begin = cpu_ns();
        b->failed |= call(b) != LKV_OK;
        if (i >= 0)
            ns[i] = (cpu_ns() - begin) / (double)b->tokens;
    }
    qsort(ns, RUNS, sizeof *ns, by_value);
    printf("%-44s %9.1f %9.1f ns a token%s\n", name, ns[0], ns[RUNS / 2],
           b->failed ? lkv_last_error() : "");
}

static lkv_status route_logits(struct bench *b)
{
    lkv_tensor logits = {
        b->values, LKV_DTYPE_F32, 2, {(int64_t)b->tokens, b->num_experts}, {b->num_experts, 1}};
    lkv_route_args a = {.size = sizeof a,
                        .logits = &logits,
                        .experts = b->experts,
                        .weights = b->weights,
                        .entropy = b->entropy,
                        .num_tokens = b->tokens};
    return lkv_route(b->router, &a, NULL);
}

static lkv_status route_hidden(struct bench *b)
{
    lkv_tensor x = {b->values, LKV_DTYPE_F32, 2, {(int64_t)b->tokens, 7168}, {7168, 1}};
    lkv_route_args a = {.size = sizeof a,
                        .x = &x,
                        .experts = b->experts,
                        .weights = b->weights,
                        .num_tokens = b->tokens};
    return lkv_route(b->router, &a, NULL);
}

static lkv_status gate_step(struct bench *b)
{
    lkv_tensor t = {b->values,
                    LKV_DTYPE_F32,
                    2,
                    {(int64_t)b->tokens, (int64_t)b->heads},
                    {(int64_t)b->heads, 1}};
    lkv_gate_args a = {.size = sizeof a, .entropy = &t, .triggered = b->triggered};
    return lkv_gate_step(b->gate, &a);
}

static lkv_status choose(struct bench *b)
{
    lkv_fallback_args a = {.size = sizeof a,
                           .policy = LKV_FALLBACK_FNV1A,
                           .num_experts = 256,
                           .primary = b->experts,
                           .triggered = b->triggered,
                           .fallback = b->fallback,
                           .num_tokens = b->tokens};
    return lkv_fallback_choose(&a);
}

/* A decode batch: 256 keys a call, in random order. */
enum { BATCH = 256, NUM_KEYS = 32768 };

static lkv_status look_up(struct bench *b)
{
    lkv_status status = LKV_OK;
    for (uint64_t i = 0; i < b->tokens && status == LKV_OK; i += BATCH) {
        lkv_slots_args a = {
            .size = sizeof a, .keys = b->keys + i, .slots = b->slot, .num_keys = BATCH};
        status = lkv_slots_get(b->slots, &a);
        b->failed |= a.num_ready != BATCH;
    }
    return status;
}

/* 32,768 payloads of 64 bytes, of tokens of live KV blocks; 8,192 of them are looked up. */
static void slots(struct bench *b)
{
    struct rng r = rng_seed(3);
    uint64_t num, blocks = NUM_KEYS / SW_BLOCK;
    int32_t *tokens = calloc(NUM_KEYS, sizeof *tokens), *table = calloc(blocks, sizeof *table);
    lkv_pool *pool = sw_pool(b->ctx, 2 * blocks, 0);
    for (int32_t i = 0; i < NUM_KEYS; i++)
        tokens[i] = i;
    lkv_seq seq = sw_admit(pool, tokens, NUM_KEYS);
    SW_MUST(lkv_seq_table(pool, seq, table, blocks, &num));
    b->slots = sw_slots(pool, 0, LKV_SLOTS_LRU, 64);
    b->keys = calloc(NUM_KEYS, sizeof *b->keys);
    b->slot = calloc(BATCH, sizeof *b->slot);
    for (uint32_t i = 0; i < NUM_KEYS; i++) {
        b->keys[i] =
            (lkv_slot_key){LKV_SLOT_KEY_TOKEN, 0, (uint32_t)table[i / SW_BLOCK], i % SW_BLOCK};
        lkv_slot slot = sw_get(b->slots, b->keys[i], LKV_SLOTS_CREATE, 0);
        b->failed |= lkv_slots_commit(b->slots, &slot.handle, 1, 1) != LKV_OK;
    }
    for (uint32_t i = NUM_KEYS - 1; i; i--) {
        uint64_t k = rng_below(&r, i + 1);
        lkv_slot_key key = b->keys[i];
        b->keys[i] = b->keys[k];
        b->keys[k] = key;
    }
    measure(b, "slot lookup, hit, of 32,768", look_up);
    lkv_slots_release(b->slots);
    lkv_pool_release(pool);
    free(tokens);
    free(table);
    free(b->keys);
    free(b->slot);
}

static void routers(struct bench *b, uint32_t kind, uint32_t experts, uint32_t hidden, char *name)
{
    struct rng r = rng_seed(experts);
    uint64_t n = (uint64_t)256 * (hidden + 1) + (uint64_t)experts * 7168;
    float *w = malloc(n * sizeof *w);
    rng_fill_normal(&r, w, n, 0.02);
    lkv_router_desc d = {.size = sizeof d,
                         .kind = kind,
                         .hidden_dim = hidden,
                         .num_experts = experts,
                         .top_k = kind == LKV_ROUTER_V3 ? 8 : 1,
                         .trace_weight = w,
                         .trace_bias = w,
                         .weight = w,
                         .bias = w};
    if (kind == LKV_ROUTER_V3) {
        d.flags = LKV_ROUTER_NORMALISE;
        d.num_groups = experts == 256 ? 8 : 1;
        d.topk_groups = experts == 256 ? 4 : 1;
    }
    b->num_experts = experts;
    b->failed |= lkv_router_create(b->ctx, &d, &b->router) != LKV_OK;
    measure(b, name, hidden ? route_hidden : route_logits);
    lkv_router_release(b->router);
    free(w);
}

static void *room(uint64_t n, uint64_t bytes)
{
    void *p = calloc(n, bytes);
    if (!p)
        exit(2);
    return p;
}

static void open_bench(struct bench *b)
{
    struct rng r = rng_seed(1);
    uint64_t n = (uint64_t)TOKENS * MAX_EXPERTS;
    lkv_context_desc cd = {.size = sizeof cd, .device = LKV_DEVICE_CPU, .num_threads = 1};
    lkv_gate_desc gd = {.size = sizeof gd};
    b->values = room(n, sizeof *b->values);
    b->weights = room(TOKENS * 8, sizeof *b->weights);
    b->experts = room(TOKENS * 8, sizeof *b->experts);
    b->fallback = room(TOKENS, sizeof *b->fallback);
    b->entropy = room(TOKENS, sizeof *b->entropy);
    b->triggered = room(TOKENS, 1);
    rng_fill_normal(&r, b->values, n, 1.5);
    b->tokens = TOKENS;
    b->failed |= lkv_context_create(&cd, &b->ctx) != LKV_OK;
    b->failed |= lkv_gate_create(&gd, &b->gate) != LKV_OK;
}

int main(void)
{
    struct bench b = {0};
    open_bench(&b);
    lkv_context_info info = {.size = sizeof info};
    lkv_context_query(b.ctx, &info);
    printf("%s, isa %u, one thread, CPU time: least, median\n", info.name, info.isa);
    routers(&b, LKV_ROUTER_V3, 256, 0, "choice of 8 of 256, 8 groups, with entropy");
    routers(&b, LKV_ROUTER_V3, 384, 0, "choice of 8 of 384, with entropy");
    routers(&b, LKV_ROUTER_TRACE, 8, 0, "trace choice of 1 of 8, with entropy");
    b.heads = HEADS;
    measure(&b, "gate, mean over 128 heads", gate_step);
    b.heads = 16;
    measure(&b, "gate, mean over 16 heads", gate_step);
    b.heads = 1;
    measure(&b, "gate, router entropy", gate_step);
    measure(&b, "fallback, FNV-1a mod 256", choose);
    slots(&b);
    b.tokens = TRACE_TOKENS;
    routers(&b, LKV_ROUTER_V3, 256, 7168, "V3 router from x, D 7168");
    routers(&b, LKV_ROUTER_TRACE, 8, 7168, "trace router from x, D 7168");
    return b.failed;
}
