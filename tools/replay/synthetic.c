/* In: a kind, a seed, a number of requests. Out: a workload in which prompts grow turn by turn.
 * chat: many short conversations behind a few system prompts. agent: long sessions behind one large
 * tool prompt, tool output appended at each turn, the context cut now and then. All numbers are
 * token counts; medians of log-normal draws. */
#include <stdlib.h>
#include <string.h>

#include "tools/common/out.h"
#include "tools/common/rng.h"
#include "tools/replay/replay.h"

struct shape {
    uint32_t systems;                   /* different system prompts */
    uint32_t system_least, system_most; /* their lengths */
    uint32_t turns_mean, turns_most;
    double input_median, output_median; /* added by a turn */
    double think_mean_s, gap_mean_s;    /* between turns; between conversations */
    double cut_share;                   /* of turns that drop the middle of the context */
    uint32_t context_most;
};

static const struct shape shapes[] = {
    [SYNTHETIC_CHAT] = {.systems = 6,
                        .system_least = 600,
                        .system_most = 3000,
                        .turns_mean = 4,
                        .turns_most = 12,
                        .input_median = 180,
                        .output_median = 110,
                        .think_mean_s = 12,
                        .gap_mean_s = 1.2,
                        .context_most = 12000},
    [SYNTHETIC_AGENT] = {.systems = 2,
                         .system_least = 6000,
                         .system_most = 9000,
                         .turns_mean = 14,
                         .turns_most = 40,
                         .input_median = 900,
                         .output_median = 160,
                         .think_mean_s = 4,
                         .gap_mean_s = 9,
                         .cut_share = 0.04,
                         .context_most = 60000},
};

struct maker {
    struct trace *trace;
    const struct shape *shape;
    uint64_t state;
    uint32_t next_id;
    uint32_t system_length[8], system_first[8];
};

struct conversation {
    uint32_t *ids; /* of the prompt's whole blocks, then of its last part */
    uint32_t length, system;
};

static uint32_t draw(struct maker *m, double median)
{
    const double x = rng_lognormal(&m->state, median, 0.8);
    return (uint32_t)(x < 4 ? 4 : x > 12 * median ? 12 * median : x);
}

static void make_systems(struct maker *m)
{
    for (uint32_t i = 0; i < m->shape->systems; i++) {
        const uint32_t range = m->shape->system_most - m->shape->system_least;
        m->system_length[i] = m->shape->system_least + (uint32_t)rng_below(&m->state, range);
        m->system_first[i] = m->next_id;
        m->next_id += m->system_length[i] / TRACE_MOONCAKE_BLOCK;
    }
}

/* The prompt is now `length` long and agrees with the one before up to `kept` tokens. */
static void set_prompt(struct maker *m, struct conversation *c, uint32_t kept, uint32_t length)
{
    const uint32_t blocks = (length + TRACE_MOONCAKE_BLOCK - 1) / TRACE_MOONCAKE_BLOCK;
    for (uint32_t i = kept / TRACE_MOONCAKE_BLOCK; i < blocks; i++)
        c->ids[i] = m->next_id++;
    c->length = length;
}

static void emit(struct maker *m, const struct conversation *c, double time_s, uint32_t output)
{
    struct trace_request *q = trace_add_request(m->trace);
    q->arrival_s = (double)(uint64_t)(time_s * 1000) / 1000; /* the file form has milliseconds */
    q->input_length = c->length;
    q->output_length = output;
    const uint32_t blocks = (c->length + TRACE_MOONCAKE_BLOCK - 1) / TRACE_MOONCAKE_BLOCK;
    for (uint32_t i = 0; i < blocks; i++)
        trace_add_ids(m->trace, c->ids[i], 1);
}

static void begin(struct maker *m, struct conversation *c)
{
    const uint32_t system = (uint32_t)(rng_below(&m->state, m->shape->systems) *
                                       rng_below(&m->state, 4) / 3); /* the first ones more often */
    c->system = system < m->shape->systems ? system : m->shape->systems - 1;
    for (uint32_t i = 0; i < m->system_length[c->system] / TRACE_MOONCAKE_BLOCK; i++)
        c->ids[i] = m->system_first[c->system] + i;
    c->length = m->system_length[c->system];
}

static void converse(struct maker *m, struct conversation *c, double time_s, uint64_t requests)
{
    const double mean = m->shape->turns_mean;
    uint32_t turns = 1 + (uint32_t)rng_exponential(&m->state, mean - 1);
    turns = turns < m->shape->turns_most ? turns : m->shape->turns_most;
    uint32_t output = 0;
    begin(m, c);
    while (turns-- && m->trace->num_requests < requests) {
        const uint32_t input = draw(m, m->shape->input_median);
        uint32_t kept = c->length, length = kept + output + input;
        if (length > m->shape->context_most || rng_unit(&m->state) < m->shape->cut_share) {
            kept = m->system_length[c->system];
            length = kept + (length - kept) / 4 + 1;
        }
        set_prompt(m, c, kept, length);
        output = draw(m, m->shape->output_median);
        emit(m, c, time_s, output);
        time_s += 0.02 * output + rng_exponential(&m->state, m->shape->think_mean_s);
    }
}

void synthetic_make(struct trace *t, enum synthetic_kind kind, uint64_t seed, uint64_t requests)
{
    struct maker m = {.trace = t, .shape = &shapes[kind], .state = mix64(seed)};
    const uint32_t most = m.shape->context_most + 16 * (uint32_t)m.shape->input_median +
                          16 * (uint32_t)m.shape->output_median;
    struct conversation c = {.ids = out_alloc(most / TRACE_MOONCAKE_BLOCK + 2, sizeof *c.ids)};
    double start_s = 0;
    *t = (struct trace){.block_tokens = TRACE_MOONCAKE_BLOCK, .num_spaces = 1};
    make_systems(&m);
    while (t->num_requests < requests) {
        converse(&m, &c, start_s, requests);
        start_s += rng_exponential(&m.state, m.shape->gap_mean_s);
    }
    free(c.ids);
    trace_sort(t);
}
