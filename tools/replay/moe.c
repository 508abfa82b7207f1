/* In: steps. Out: routed tokens, triggers, payloads in slots, a trace beside each block.
 *
 *   chain -> logits -> lkv_route -> experts ------------------------> trace beside the block
 *                         | entropy   | primary                         ^
 *   attention's entropy --+-> gate -> triggered -> fallback -> slot ----+              */
#include <stdlib.h>
#include <string.h>

#include "tools/common/out.h"
#include "tools/replay/attend.h"
#include "tools/replay/moe_state.h"

enum { GROUPED_FROM = 64, GROUPS = 8, KEPT_GROUPS = 4 }; /* DeepSeek-V3's, where E allows it */
enum { LOOK_EVERY = 64, LOOKS = 2048 };

/* ---- life */

static void open_router(struct moe *m)
{
    const struct moe_options *o = &m->r->options.moe;
    const int grouped = o->router == LKV_ROUTER_V3 && o->experts >= GROUPED_FROM &&
                        o->experts % GROUPS == 0 && m->top_k <= o->experts / GROUPS * KEPT_GROUPS;
    const lkv_router_desc desc = {.size = sizeof desc,
                                  .kind = o->router,
                                  .flags = o->router == LKV_ROUTER_V3 ? LKV_ROUTER_NORMALISE : 0,
                                  .num_experts = o->experts,
                                  .top_k = m->top_k,
                                  .num_groups = grouped ? GROUPS : 0,
                                  .topk_groups = grouped ? KEPT_GROUPS : 0};
    out_must(lkv_router_create(m->r->pool.ctx, &desc, &m->router), "the router");
}

static void open_gate(struct moe *m)
{
    const struct moe_options *o = &m->r->options.moe;
    const lkv_gate_desc desc = {
        .size = sizeof desc, .window_steps = o->gate_window, .stddevs = o->gate_stddevs};
    out_must(lkv_gate_create(&desc, &m->gate), "the gate");
}

/* All of the headroom is the budget. */
static void open_slots(struct moe *m)
{
    const lkv_slots_desc desc = {.size = sizeof desc,
                                 .payload_bytes = m->r->pool.payload_bytes,
                                 .policy = m->r->options.moe.slot_policy,
                                 .num_layers = 1};
    if (m->r->options.headroom > 0)
        out_must(lkv_slots_create(m->r->pool.pool, &desc, &m->slots), "the slots");
}

static void open_rows(struct moe *m)
{
    const struct replay_options *o = &m->r->options;
    const uint64_t n = (uint64_t)o->max_running + o->chunk;
    m->capacity = n < MOE_TILE ? MOE_TILE : n; /* hits come by tiles */
    m->logits = out_alloc((size_t)MOE_TILE * o->moe.experts, sizeof *m->logits);
    m->experts = out_alloc(m->capacity * m->top_k, sizeof *m->experts);
    m->traced = out_alloc(m->capacity * (m->top_k + 1), sizeof *m->traced);
    m->primary = out_alloc(m->capacity, sizeof *m->primary);
    m->fallback = out_alloc(m->capacity, sizeof *m->fallback);
    m->buddy = out_alloc(o->moe.experts, sizeof *m->buddy);
    m->entropy = out_alloc(m->capacity, sizeof *m->entropy);
    m->chain = out_alloc(m->capacity, sizeof *m->chain);
    m->triggered = out_alloc(m->capacity, sizeof *m->triggered);
    m->answers = out_alloc(m->capacity, sizeof *m->answers);
    m->keys = out_alloc(m->capacity, sizeof *m->keys);
    m->places = out_alloc(m->capacity, sizeof *m->places);
    m->handles = out_alloc(m->capacity, sizeof *m->handles);
    m->load = out_alloc(o->moe.experts, sizeof *m->load);
    for (uint32_t e = 0; e < o->moe.experts; e++) /* neighbours help one another */
        m->buddy[e] = (e ^ 1) < o->moe.experts ? (int32_t)(e ^ 1) : -1;
}

struct moe *moe_new(struct replay *r)
{
    struct moe *m = out_alloc(1, sizeof *m);
    m->r = r;
    m->top_k = r->options.moe.top_k;
    m->source = moe_source_new(&r->options.moe, r->options.seed);
    open_rows(m);
    open_router(m);
    open_gate(m);
    open_slots(m);
    return m;
}

void moe_free(struct moe *m)
{
    if (!m)
        return;
    lkv_slots_release(m->slots);
    lkv_gate_release(m->gate);
    lkv_router_release(m->router);
    moe_source_free(m->source);
    void *const arrays[] = {m->logits,  m->experts, m->traced,    m->primary, m->fallback,
                            m->buddy,   m->entropy, m->chain,     m->keys,    m->places,
                            m->handles, m->load,    m->triggered, m->answers, m};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
}

/* ---- route, gate, fallback */

static lkv_tensor matrix(float *data, uint64_t rows, uint32_t columns)
{
    return (lkv_tensor){.data = data,
                        .dtype = LKV_DTYPE_F32,
                        .ndim = 2,
                        .shape = {(int64_t)rows, columns},
                        .stride = {columns, 1}};
}

void moe_route(struct moe *m, const uint64_t *chain, uint64_t n, float *entropy, int counts)
{
    for (uint64_t at = 0; at < n; at += MOE_TILE) {
        const uint64_t tile = n - at < MOE_TILE ? n - at : MOE_TILE;
        const lkv_tensor logits = matrix(m->logits, tile, m->r->options.moe.experts);
        const lkv_route_args args = {.size = sizeof args,
                                     .logits = &logits,
                                     .experts = m->experts + at * m->top_k,
                                     .entropy = entropy ? entropy + at : NULL,
                                     .load = counts ? m->load : NULL,
                                     .num_tokens = tile};
        moe_source_logits(m->source, chain + at, tile, m->logits);
        out_must(lkv_route(m->router, &args, NULL), "routing");
    }
}

void moe_choose_fallback(struct moe *m, uint64_t n, const uint8_t *triggered)
{
    for (uint64_t i = 0; i < n; i++)
        m->primary[i] = m->experts[i * m->top_k];
    lkv_fallback_args args = {.size = sizeof args,
                              .policy = m->r->options.moe.fallback,
                              .num_experts = m->r->options.moe.experts,
                              .primary = m->primary,
                              .triggered = triggered,
                              .buddy = m->buddy,
                              .fallback = m->fallback,
                              .num_tokens = n};
    out_must(lkv_fallback_choose(&args), "the fallback");
}

static void ask_gate(struct moe *m, const lkv_tensor *entropy, uint8_t *triggered)
{
    lkv_gate_args args = {.size = sizeof args, .entropy = entropy, .triggered = triggered};
    out_must(lkv_gate_step(m->gate, &args), "the gate");
}

/* With --attend the gate sees attention's entropies and no others: rows that attention was not
 * asked for are not triggered. */
static void gate_by_attention(struct moe *m, const lkv_step *step, const struct attend_asked *asked)
{
    if (!asked->rows)
        return;
    const lkv_tensor entropy = matrix(asked->entropy, asked->rows, m->r->options.heads);
    ask_gate(m, &entropy, m->answers);
    for (uint32_t i = 0; i < step->num_seqs; i++) { /* a sequence's last rows */
        const int32_t n = asked->q_indptr[i + 1] - asked->q_indptr[i];
        memcpy(m->triggered + step->q_indptr[i + 1] - n, m->answers + asked->q_indptr[i],
               (size_t)n);
    }
}

static void gate_rows(struct moe *m, const lkv_step *step, uint64_t rows,
                      const struct attend_asked *asked)
{
    memset(m->triggered, 0, rows);
    if (asked) {
        gate_by_attention(m, step, asked);
        return;
    }
    const lkv_tensor entropy = {m->entropy, LKV_DTYPE_F32, 1, {(int64_t)rows}, {1}};
    ask_gate(m, &entropy, m->triggered);
}

/* ---- trace and payloads */

lkv_trace_args moe_trace_args(const struct moe *m, const int64_t *slots, uint64_t n)
{
    return (lkv_trace_args){.size = sizeof(lkv_trace_args),
                            .slots = slots,
                            .experts = m->traced,
                            .num_tokens = n,
                            .num_layers = 1,
                            .top_k = m->top_k + 1};
}

static void write_trace(struct moe *m, const int64_t *slots, uint64_t rows)
{
    for (uint64_t i = 0; i < rows; i++) {
        int32_t *to = m->traced + i * (m->top_k + 1);
        memcpy(to, m->experts + i * m->top_k, m->top_k * sizeof *to);
        to[m->top_k] = m->fallback[i];
    }
    const lkv_trace_args args = moe_trace_args(m, slots, rows);
    out_must(lkv_trace_write(m->r->pool.pool, &args), "the routing trace");
    m->r->result.moe.trace_written += rows;
}

static void note_refused(struct moe *m, uint64_t refused)
{
    struct moe_result *x = &m->r->result.moe;
    lkv_slots_stats s = {.size = sizeof s};
    x->refused += refused;
    if (!refused)
        return;
    out_must(lkv_slots_query(m->slots, &s), "slot statistics");
    x->refused_with_room += s.blocks_held < s.blocks_max ? refused : 0;
}

/* Keys of the triggered tokens, their slots, their marks. Until its slot is known, handles[k] is
 * the row of key k. */
static void put_payloads(struct moe *m, const int64_t *slots, uint64_t rows)
{
    const uint32_t block = m->r->options.block_tokens;
    uint64_t n = 0, made = 0;
    for (uint64_t i = 0; i < rows; i++) {
        if (m->fallback[i] < 0)
            continue;
        m->keys[n] = (lkv_slot_key){.kind = LKV_SLOT_KEY_TOKEN,
                                    .block = (uint32_t)(slots[i] / block),
                                    .index = (uint32_t)(slots[i] % block)};
        m->handles[n++] = i;
    }
    m->r->result.moe.fallbacks += n;
    if (!m->slots || !n)
        return;
    lkv_slots_args args = {.size = sizeof args,
                           .keys = m->keys,
                           .slots = m->places,
                           .num_keys = n,
                           .step = m->steps,
                           .flags = LKV_SLOTS_CREATE};
    out_must(lkv_slots_get(m->slots, &args), "the slots");
    for (uint64_t k = 0; k < n; k++) {
        const uint64_t i = m->handles[k];
        const struct moe_mark mark = {m->chain[i], m->primary[i], m->fallback[i]};
        if (m->places[k].state != LKV_SLOT_NEW)
            continue;
        memcpy(m->places[k].address, &mark, sizeof mark);
        m->handles[made++] = m->places[k].handle;
    }
    out_must(lkv_slots_commit(m->slots, m->handles, made, 1), "the slots");
    m->r->result.moe.created += made;
    note_refused(m, args.num_refused);
}

/* ---- sharing */

static void look_at_sharing(struct moe *m, double weight)
{
    struct moe_sharing *x = &m->r->result.moe.sharing;
    lkv_slots_stats s = {.size = sizeof s};
    out_must(lkv_slots_query(m->slots, &s), "slot statistics");
    const uint64_t with = s.token_entries - s.token_idle, without = s.token_users - s.token_idle;
    x->weight += weight;
    x->with += weight * (double)s.token_entries;
    x->without += weight * (double)s.token_users;
    x->running_with += weight * (double)with;
    x->running_without += weight * (double)without;
    if (without > x->peak_without) {
        x->peak_with = with;
        x->peak_without = without;
    }
    if (s.blocks_held > m->r->result.moe.blocks_peak)
        m->r->result.moe.blocks_peak = s.blocks_held;
}

/* Every 64 steps, in long runs less often. */
static void maybe_look(struct moe *m)
{
    const uint64_t stride = LOOK_EVERY * (1 + m->steps / ((uint64_t)LOOK_EVERY * LOOKS));
    if (!m->slots || m->steps < m->next_look)
        return;
    m->next_look = m->steps + stride;
    look_at_sharing(m, (double)stride);
}

/* ---- the step */

static uint64_t gather_chains(struct moe *m, const lkv_step *step, const struct attend_seq *seqs)
{
    uint64_t row = 0;
    for (uint32_t i = 0; i < step->num_seqs; i++) {
        if (step->num_rows[i])
            memcpy(m->chain + row, seqs[i].chain + step->row_begin[i],
                   step->num_rows[i] * sizeof *m->chain);
        row += step->num_rows[i];
    }
    return row;
}

void moe_step(struct moe *m, const lkv_step *step, const struct attend_seq *seqs,
              const struct attend_asked *asked)
{
    const uint64_t rows = gather_chains(m, step, seqs);
    m->steps++;
    if (rows) {
        moe_route(m, m->chain, rows, m->entropy, 1);
        gate_rows(m, step, rows, asked);
        moe_choose_fallback(m, rows, m->triggered);
        write_trace(m, step->slots, rows);
        put_payloads(m, step->slots, rows);
    }
    maybe_look(m);
}

/* ---- signals */

lkv_moe_args moe_args(struct moe *m)
{
    return (lkv_moe_args){.size = sizeof(lkv_moe_args),
                          .load = m->load,
                          .gate = m->gate,
                          .slots = m->slots,
                          .pool = m->r->pool.pool,
                          .num_experts = m->r->options.moe.experts};
}

void moe_measure(struct moe *m)
{
    struct moe_result *x = &m->r->result.moe;
    const lkv_moe_args args = moe_args(m);
    x->stats.size = sizeof x->stats;
    x->slots.size = sizeof x->slots;
    x->gate.size = sizeof x->gate;
    out_must(lkv_moe_measure(&args, &x->stats), "the signals");
    out_must(lkv_gate_save(m->gate, &x->gate), "the gate");
    if (m->slots)
        out_must(lkv_slots_query(m->slots, &x->slots), "slot statistics");
}
