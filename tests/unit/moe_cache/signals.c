/* Signals by hand and against double, and their text read back line by line. */
#include <criterion/criterion.h>
#include <math.h>
#include "tests/support/rng.h"
#include "tests/unit/moe_cache/slots_world.h"

static lkv_moe_stats measure(lkv_moe_args a)
{
    lkv_moe_stats s = {.size = sizeof s};
    a.size = sizeof a;
    SW_MUST(lkv_moe_measure(&a, &s));
    return s;
}

/* Loads 1, 1, 2, 0: p = 1/4, 1/4, 1/2; H = 1.5 ln 2; mean 1, deviation sqrt(1/2), peak 2. */
Test(moe_signals, loads_by_hand)
{
    static const uint64_t load[4] = {1, 1, 2, 0};
    lkv_moe_stats s = measure((lkv_moe_args){.load = load, .num_experts = 4});
    cr_expect_float_eq(s.utilisation_nats, 1.5 * log(2), 1e-15);
    cr_expect_float_eq(s.utilisation_bits, 1.5, 1e-15);
    cr_expect_float_eq(s.utilisation_share, 0.75, 1e-15);
    cr_expect_float_eq(s.load_cv, sqrt(0.5), 1e-15);
    cr_expect(s.load_peak == 2 && s.experts_used == 3 && s.experts_overloaded == 1);
    cr_expect_eq(s.outside, LKV_MOE_UTILISATION_LOW | LKV_MOE_OVERLOADED);
    s = measure((lkv_moe_args){.load = load,
                               .num_experts = 4,
                               .overload_factor = 2,
                               .utilisation_low = 0.5,
                               .utilisation_high = 1});
    cr_expect(s.experts_overloaded == 0 && s.outside == LKV_MOE_UTILISATION_HIGH);
    static const uint64_t one = 5, none[3] = {0, 0, 0};
    s = measure((lkv_moe_args){.load = &one, .num_experts = 1});
    cr_expect(s.utilisation_nats == 0 && s.utilisation_share == 1 && s.load_cv == 0);
    s = measure((lkv_moe_args){.load = none, .num_experts = 3});
    cr_expect(s.utilisation_nats == 0 && s.load_cv == 0 && s.outside == 0 && s.load_peak == 0);
}

Test(moe_signals, equal_loads_have_all_entropy)
{
    uint64_t load[384];
    for (uint32_t n = 2; n <= 384; n++) {
        for (uint32_t e = 0; e < n; e++)
            load[e] = 1000;
        lkv_moe_stats s = measure((lkv_moe_args){.load = load, .num_experts = n});
        cr_assert(fabs(s.utilisation_nats - log(n)) < 1e-12 && s.load_cv < 1e-12, "%u", n);
    }
}

struct objects {
    lkv_context *ctx;
    lkv_pool *pool;
    lkv_slots *slots;
    lkv_gate *gate;
    uint64_t load[8];
    lkv_moe_args args;
};

/* Two of ten entropies trigger; two sequences share a block with 3 payloads. */
static void open_objects(struct objects *o)
{
    int32_t tokens[20];
    float values[10] = {1, 1, 1, 1, 1, 1, 1, 1, 3, 4};
    uint8_t triggered[10];
    lkv_tensor t = {values, LKV_DTYPE_F32, 1, {10}, {1}};
    lkv_gate_desc d = {.size = sizeof d};
    lkv_gate_args a = {.size = sizeof a, .entropy = &t, .triggered = triggered};
    o->ctx = sw_context();
    o->pool = sw_pool(o->ctx, 39, 0);
    o->slots = sw_slots(o->pool, 4, LKV_SLOTS_LRU, SW_PAYLOAD);
    SW_MUST(lkv_gate_create(&d, &o->gate));
    SW_MUST(lkv_gate_step(o->gate, &a));
    for (int i = 0; i < 20; i++)
        tokens[i] = i;
    lkv_seq seq = sw_admit(o->pool, tokens, 20);
    SW_MUST(lkv_seq_commit(o->pool, seq, 20));
    sw_admit(o->pool, tokens, 20);
    for (uint32_t i = 0; i < 3; i++)
        cr_assert(sw_put(o->slots, sw_token(o->pool, seq, 0, i), 1, 0));
    cr_assert_eq(sw_look(o->slots, sw_token(o->pool, seq, 0, 1)), 1);
    for (uint64_t e = 0; e < 8; e++)
        o->load[e] = 10 + e;
    o->args = (lkv_moe_args){.size = sizeof o->args,
                             .load = o->load,
                             .gate = o->gate,
                             .slots = o->slots,
                             .pool = o->pool,
                             .num_experts = 8};
}

static void close_objects(struct objects *o)
{
    lkv_gate_release(o->gate);
    lkv_slots_release(o->slots);
    lkv_pool_release(o->pool);
    lkv_context_release(o->ctx);
}

Test(moe_signals, of_live_objects)
{
    struct objects o;
    open_objects(&o);
    lkv_moe_stats s = measure(o.args);
    cr_expect(s.trigger_rate == 0.2 && s.threshold == 2.1 && s.gate_tokens == 10);
    cr_expect_eq(s.outside, LKV_MOE_TRIGGER_HIGH);
    cr_expect(s.slot_hits == 1 && s.slot_misses == 3 && s.slots_ready == 3);
    cr_expect(s.headroom_blocks == 9 && s.lent_blocks == 1 && s.slot_blocks == 1);
    cr_expect_eq(s.dedup_ratio, 0.5, "%g", s.dedup_ratio);
    close_objects(&o);
}

/* The value of the sample whose line begins with text; -1: none. */
static double sample(const char *all, const char *text)
{
    for (const char *line = all; line && *line; line = strchr(line, '\n') + 1)
        if (!strncmp(line, text, strlen(text)) && line[strlen(text)] == ' ')
            return strtod(line + strlen(text), NULL);
    return -1;
}

Test(moe_signals, text_has_the_same_numbers)
{
    struct objects o;
    char text[16384], name[64];
    size_t needed = 0, again = 0;
    open_objects(&o);
    lkv_moe_stats s = measure(o.args);
    SW_MUST(lkv_moe_metrics_text(&o.args, NULL, NULL, 0, &needed));
    cr_assert(needed < sizeof text);
    cr_expect_eq(lkv_moe_metrics_text(&o.args, NULL, text, needed - 1, &again), LKV_E_INVALID);
    SW_MUST(lkv_moe_metrics_text(&o.args, NULL, text, sizeof text, &again));
    cr_expect(again == needed && strlen(text) + 1 == needed);
    cr_expect_eq(sample(text, "latentkv_moe_utilisation_nats"), s.utilisation_nats, "exact");
    cr_expect_eq(sample(text, "latentkv_moe_gate_trigger_ratio"), 0.2);
    cr_expect_eq(sample(text, "latentkv_moe_gate_threshold_nats"), 2.1);
    cr_expect_eq(sample(text, "latentkv_moe_slot_lookups_total{kind=\"miss\"}"), 3);
    cr_expect_eq(sample(text, "latentkv_moe_dedup_ratio"), 0.5);
    double sum = 0, entropy = 0;
    for (int e = 0; e < 8; e++)
        sum += (double)o.load[e];
    for (int e = 0; e < 8; e++) {
        snprintf(name, sizeof name, "latentkv_moe_expert_tokens_total{expert=\"%d\"}", e);
        double n = sample(text, name);
        cr_expect_eq(n, (double)o.load[e], "%s", name);
        entropy -= n / sum * log(n / sum);
    }
    cr_expect_float_eq(entropy, s.utilisation_nats, 1e-12);
    SW_MUST(lkv_moe_metrics_text(&o.args, "model=\"a\"", text, sizeof text, &again));
    cr_expect_eq(sample(text, "latentkv_moe_slots_ready{model=\"a\"}"), 3);
    cr_expect_eq(sample(text, "latentkv_moe_expert_tokens_total{expert=\"3\",model=\"a\"}"), 13);
    cr_expect_eq(lkv_moe_metrics_text(&o.args, "expert=\"1\"", text, sizeof text, &again),
                 LKV_E_INVALID);
    close_objects(&o);
}
