/* The size-first rule through every function of moe_cache.h that takes such a struct, as tail.c
 * does for latentkv.h: a longer struct with a zero tail is as good as ours, with data in its tail
 * it is refused and nothing changes, a shorter result is kept to. */
#include <criterion/criterion.h>
#include "latentkv/moe_cache.h"
#include "tests/unit/api/grown.h"

enum { BLOCK = 16, EXPERTS = 8, ROWS = 2, DIM = 16, NUM_BLOCKS = 26 };

struct moe_world {
    lkv_context *ctx;
    lkv_pool *pool;
    lkv_slots *slots;
    lkv_router *router;
    lkv_gate *gate;
    lkv_seq seq;
    int64_t places[ROWS];
    float logits[ROWS * EXPERTS], entropy[ROWS], rows[ROWS * DIM], out[ROWS * DIM], scale[ROWS];
    int32_t experts[ROWS], fallback[ROWS];
    uint8_t triggered[ROWS];
    uint64_t load[EXPERTS];
    lkv_slot_key keys[ROWS];
    lkv_slot found[ROWS];
    lkv_tensor logits_of, entropy_of, rows_of, out_of;
    void *made;
};

static void must(lkv_status status)
{
    cr_assert_eq(status, LKV_OK, "%s", lkv_last_error());
}

static lkv_tensor matrix(float *data, int64_t columns)
{
    return (lkv_tensor){data, LKV_DTYPE_F32, 2, {ROWS, columns}, {columns, 1}};
}

static void open_pool(struct moe_world *w)
{
    const lkv_context_desc context = {
        .size = sizeof context, .device = LKV_DEVICE_CPU, .num_threads = 1};
    const lkv_plane_desc plane = {BLOCK * 2, LKV_PLANE_HOST, 1};
    const lkv_pool_desc pool = {.size = sizeof pool,
                                .format = LKV_FORMAT_BF16,
                                .tokens_per_block = BLOCK,
                                .latent_dim = 16,
                                .num_layers = 1,
                                .num_blocks = NUM_BLOCKS,
                                .fallback_headroom = 0.3,
                                .planes = &plane,
                                .num_planes = 1};
    const int32_t tokens[ROWS] = {5, 6};
    const lkv_prompt prompt = {.size = sizeof prompt, .tokens = tokens, .num_tokens = ROWS};
    int32_t table[1];
    uint64_t num;
    must(lkv_context_create(&context, &w->ctx));
    must(lkv_pool_create(w->ctx, &pool, &w->pool));
    must(lkv_seq_admit(w->pool, &prompt, NULL, NULL, &w->seq));
    must(lkv_seq_table(w->pool, w->seq, table, 1, &num));
    for (uint32_t i = 0; i < ROWS; i++) {
        w->places[i] = (int64_t)table[0] * BLOCK + i;
        w->keys[i] = (lkv_slot_key){LKV_SLOT_KEY_TOKEN, 0, (uint32_t)table[0], i};
    }
}

static const lkv_router_desc router_desc = {
    .size = sizeof router_desc, .kind = LKV_ROUTER_V3, .num_experts = EXPERTS, .top_k = 1};
static const lkv_gate_desc gate_desc = {.size = sizeof gate_desc};
static const lkv_slots_desc slots_desc = {
    .size = sizeof slots_desc, .payload_bytes = 64, .max_blocks = 2};

static void open_world(struct moe_world *w)
{
    *w = (struct moe_world){.made = NULL};
    for (uint32_t i = 0; i < ROWS * EXPERTS; i++)
        w->logits[i] = 0.1f * (float)(i % 5);
    for (uint32_t i = 0; i < ROWS * DIM; i++)
        w->rows[i] = 1 + (float)i;
    w->logits_of = matrix(w->logits, EXPERTS);
    w->rows_of = matrix(w->rows, DIM);
    w->out_of = matrix(w->out, DIM);
    w->entropy_of = (lkv_tensor){w->entropy, LKV_DTYPE_F32, 1, {ROWS}, {1}};
    open_pool(w);
    must(lkv_router_create(w->ctx, &router_desc, &w->router));
    must(lkv_gate_create(&gate_desc, &w->gate));
    must(lkv_slots_create(w->pool, &slots_desc, &w->slots));
}

static void close_world(struct moe_world *w)
{
    must(lkv_pool_check(w->pool));
    lkv_slots_release(w->slots);
    lkv_gate_release(w->gate);
    lkv_router_release(w->router);
    lkv_pool_release(w->pool);
    lkv_context_release(w->ctx);
}

/* ---- arguments */

static lkv_route_args route_args(struct moe_world *w)
{
    return (lkv_route_args){.size = sizeof(lkv_route_args),
                            .logits = &w->logits_of,
                            .experts = w->experts,
                            .entropy = w->entropy,
                            .load = w->load,
                            .num_tokens = ROWS};
}

static lkv_gate_args gate_args(struct moe_world *w)
{
    return (lkv_gate_args){
        .size = sizeof(lkv_gate_args), .entropy = &w->entropy_of, .triggered = w->triggered};
}

static lkv_fallback_args fallback_args(struct moe_world *w)
{
    return (lkv_fallback_args){.size = sizeof(lkv_fallback_args),
                               .policy = LKV_FALLBACK_FNV1A,
                               .num_experts = EXPERTS,
                               .primary = w->experts,
                               .fallback = w->fallback,
                               .num_tokens = ROWS};
}

static lkv_combine_args combine_args(struct moe_world *w)
{
    return (lkv_combine_args){.size = sizeof(lkv_combine_args),
                              .primary = &w->rows_of,
                              .fallback = &w->rows_of,
                              .out = &w->out_of,
                              .chosen = w->experts,
                              .mode = LKV_COMBINE_ADD};
}

static lkv_token_scale_args scale_args(struct moe_world *w)
{
    return (lkv_token_scale_args){.size = sizeof(lkv_token_scale_args),
                                  .x = &w->rows_of,
                                  .scale = w->scale,
                                  .low = 0.5,
                                  .high = 2};
}

static lkv_slots_args slots_args(struct moe_world *w)
{
    return (lkv_slots_args){.size = sizeof(lkv_slots_args),
                            .keys = w->keys,
                            .slots = w->found,
                            .num_keys = ROWS,
                            .flags = LKV_SLOTS_CREATE};
}

static lkv_trace_args trace_args(struct moe_world *w)
{
    return (lkv_trace_args){.size = sizeof(lkv_trace_args),
                            .slots = w->places,
                            .experts = w->experts,
                            .num_tokens = ROWS,
                            .num_layers = 1,
                            .top_k = 1};
}

static lkv_moe_args signals_args(struct moe_world *w)
{
    return (lkv_moe_args){.size = sizeof(lkv_moe_args),
                          .load = w->load,
                          .gate = w->gate,
                          .slots = w->slots,
                          .pool = w->pool,
                          .num_experts = EXPERTS};
}

static lkv_status call_create(struct moe_world *w, int which, uint8_t byte)
{
    if (which == 0)
        return lkv_router_create(w->ctx, grown(&router_desc, byte), (lkv_router **)&w->made);
    if (which == 1)
        return lkv_gate_create(grown(&gate_desc, byte), (lkv_gate **)&w->made);
    return lkv_slots_create(w->pool, grown(&slots_desc, byte), (lkv_slots **)&w->made);
}

static lkv_status call(struct moe_world *w, int which, uint8_t byte)
{
    const lkv_route_args route = route_args(w);
    const lkv_gate_args gate = gate_args(w);
    const lkv_fallback_args fallback = fallback_args(w);
    const lkv_combine_args combine = combine_args(w);
    const lkv_token_scale_args scale = scale_args(w);
    const lkv_slots_args slots = slots_args(w);
    const lkv_trace_args trace = trace_args(w);
    const lkv_moe_args signals = signals_args(w);
    lkv_gate_state state = {.size = sizeof state};
    lkv_moe_stats stats = {.size = sizeof stats};
    size_t needed;
    switch (which) {
    case 3:
        return lkv_route(w->router, grown(&route, byte), NULL);
    case 4:
        return lkv_gate_step(w->gate, grown(&gate, byte));
    case 5:
        must(lkv_gate_save(w->gate, &state));
        return lkv_gate_load(w->gate, grown(&state, byte));
    case 6:
        return lkv_fallback_choose(grown(&fallback, byte));
    case 7:
        return lkv_combine(w->ctx, grown(&combine, byte), NULL);
    case 8:
        return lkv_token_scale(w->ctx, grown(&scale, byte), NULL);
    case 9:
        return lkv_slots_get(w->slots, grown(&slots, byte));
    case 10:
        return lkv_trace_write(w->pool, grown(&trace, byte));
    case 11:
        return lkv_trace_read(w->pool, grown(&trace, byte));
    case 12:
        return lkv_moe_measure(grown(&signals, byte), &stats);
    case 13:
        return lkv_moe_metrics_text(grown(&signals, byte), NULL, NULL, 0, &needed);
    default:
        return call_create(w, which, byte);
    }
}
enum { NUM_CALLS = 14 };

static void release(struct moe_world *w, int which)
{
    if (which == 0)
        lkv_router_release(w->made);
    else if (which == 1)
        lkv_gate_release(w->made);
    else if (which == 2)
        lkv_slots_release(w->made);
}

/* All that a refused call could have touched. */
static uint64_t fingerprint(struct moe_world *w)
{
    lkv_gate_state gate = {.size = sizeof gate};
    lkv_slots_stats slots = {.size = sizeof slots};
    lkv_pool_stats pool = {.size = sizeof pool};
    uint64_t h = 14695981039346656037u;
    must(lkv_gate_save(w->gate, &gate));
    must(lkv_slots_query(w->slots, &slots));
    must(lkv_pool_query(w->pool, &pool));
    pool.metadata_allocated_bytes = pool.metadata_active_bytes = pool.metadata_resident_bytes = 0;
    const void *const parts[] = {&gate, &slots, &pool, w};
    const size_t sizes[] = {sizeof gate, sizeof slots, sizeof pool, sizeof *w};
    for (int p = 0; p < 4; p++)
        for (size_t i = 0; i < sizes[p]; i++)
            h = (h ^ ((const uint8_t *)parts[p])[i]) * 1099511628211u;
    return h;
}

Test(tail_moe, of_arguments)
{
    struct moe_world w;
    open_world(&w);
    for (int i = 0; i < NUM_CALLS; i++) {
        const uint64_t before = fingerprint(&w);
        cr_expect_eq(call(&w, i, 1), LKV_E_VERSION, "call %d: %s", i, lkv_last_error());
        cr_expect_eq(fingerprint(&w), before, "call %d changed something", i);
        cr_expect_eq(call(&w, i, 0), LKV_OK, "call %d: %s", i, lkv_last_error());
        release(&w, i);
    }
    close_world(&w);
}

/* ---- results */

static lkv_status ask(struct moe_world *w, int which, void *result)
{
    const lkv_moe_args signals = signals_args(w);
    if (which == 0)
        return lkv_gate_save(w->gate, result);
    if (which == 1)
        return lkv_slots_query(w->slots, result);
    return lkv_moe_measure(&signals, result);
}

Test(tail_moe, of_results)
{
    static const size_t sizes[] = {sizeof(lkv_gate_state), sizeof(lkv_slots_stats),
                                   sizeof(lkv_moe_stats)};
    struct moe_world w;
    open_world(&w);
    for (int i = 3; i < NUM_CALLS; i++) /* so that the figures are not all zero */
        call(&w, i, 0);
    for (int which = 0; which < 3; which++) {
        uint64_t full[64] = {sizes[which]}, given[64];
        must(ask(&w, which, full));
        for (size_t size = 8; size <= sizeof given; size += 8) {
            memset(given, 0xc3, sizeof given);
            given[0] = size;
            must(ask(&w, which, given));
            cr_expect_eq(given[0], size);
            for (size_t i = 1; i < 64; i++) {
                const uint64_t want = i * 8 >= size           ? 0xc3c3c3c3c3c3c3c3u
                                      : i * 8 >= sizes[which] ? 0
                                                              : full[i];
                cr_expect_eq(given[i], want, "result %d, size %zu, word %zu", which, size, i);
            }
        }
    }
    close_world(&w);
}
