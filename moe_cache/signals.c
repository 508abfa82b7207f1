/* In: how many tokens each expert got, and what the gate, the slots and the pool say. Out: the
 * signals that the document names, what is outside its band, and all of it as Prometheus text. */
#include "moe_cache/signals.h"

#include <math.h>
#include "block_manager/prometheus.h"

static void count_load(const lkv_moe_args *args, lkv_moe_stats *s)
{
    uint64_t most = 0;
    for (uint32_t e = 0; e < args->num_experts; e++) {
        s->routed += args->load[e];
        s->experts_used += args->load[e] != 0;
        most = args->load[e] > most ? args->load[e] : most;
    }
    s->experts = args->num_experts;
    s->load_peak = s->routed ? (double)most / ((double)s->routed / args->num_experts) : 0;
}

void lkvi_signals_load(const lkv_moe_args *args, lkv_moe_stats *s)
{
    if (!args->load)
        return;
    count_load(args, s);
    if (!s->routed)
        return;
    double mean = (double)s->routed / args->num_experts, squares = 0, entropy = 0;
    for (uint32_t e = 0; e < args->num_experts; e++) {
        double n = (double)args->load[e], p = n / (double)s->routed;
        squares += (n - mean) * (n - mean);
        entropy -= p > 0 ? p * log(p) : 0;
        s->experts_overloaded += n > args->overload_factor * mean;
    }
    s->utilisation_nats = fmax(entropy, 0);
    s->utilisation_bits = s->utilisation_nats / 0.69314718055994531;
    s->utilisation_share =
        args->num_experts > 1 ? s->utilisation_nats / log((double)args->num_experts) : 1;
    s->load_cv = sqrt(squares / args->num_experts) / mean;
}

void lkvi_signals_judge(const lkv_moe_args *args, lkv_moe_stats *s)
{
    uint64_t outside = 0;
    if (s->routed) {
        outside |= s->utilisation_nats < args->utilisation_low ? LKV_MOE_UTILISATION_LOW : 0;
        outside |= s->utilisation_nats > args->utilisation_high ? LKV_MOE_UTILISATION_HIGH : 0;
        outside |= s->experts_overloaded ? LKV_MOE_OVERLOADED : 0;
    }
    if (s->gate_tokens) {
        outside |= s->trigger_rate < args->trigger_low ? LKV_MOE_TRIGGER_LOW : 0;
        outside |= s->trigger_rate > args->trigger_high ? LKV_MOE_TRIGGER_HIGH : 0;
    }
    s->outside = outside;
}

/* ---- text */

#define WHOLE(field) offsetof(lkv_moe_stats, field), 0
#define REAL(field) offsetof(lkv_moe_stats, field), 1
#define SLOT_KEYS "latentkv_moe_slot_lookups_total", "counter", "Slot keys looked up, by result."
#define SLOT_ENDS "latentkv_moe_slot_ends_total", "counter", "Slot keys that ended, by reason."

/* Bits are nats / ln 2 and no unit of their own here: promtool's check refuses the word. */
static const struct lkvi_metric metrics[] = {
    {"latentkv_moe_experts", "gauge", "Experts of the router.", NULL, WHOLE(experts)},
    {"latentkv_moe_experts_used", "gauge", "Experts that got a token.", NULL, WHOLE(experts_used)},
    {"latentkv_moe_experts_overloaded", "gauge", "Experts above the overload factor.", NULL,
     WHOLE(experts_overloaded)},
    {"latentkv_moe_utilisation_nats", "gauge", "Entropy of the experts' loads.", NULL,
     REAL(utilisation_nats)},
    {"latentkv_moe_utilisation_ratio", "gauge", "The same as a share of ln E.", NULL,
     REAL(utilisation_share)},
    {"latentkv_moe_load_cv", "gauge", "Standard deviation of the loads over their mean.", NULL,
     REAL(load_cv)},
    {"latentkv_moe_load_peak_ratio", "gauge", "Largest load over the mean.", NULL, REAL(load_peak)},
    {"latentkv_moe_gate_threshold_nats", "gauge", "Threshold of the entropy gate.", NULL,
     REAL(threshold)},
    {"latentkv_moe_gate_trigger_ratio", "gauge", "Triggered tokens, of all seen.", NULL,
     REAL(trigger_rate)},
    {"latentkv_moe_gate_tokens_total", "counter", "Entropies the gate has seen.", NULL,
     WHOLE(gate_tokens)},
    {"latentkv_moe_gate_triggered_total", "counter", "Of them, above the threshold.", NULL,
     WHOLE(gate_triggered)},
    {"latentkv_moe_gate_skipped_total", "counter", "Entropies that were not finite.", NULL,
     WHOLE(gate_skipped)},
    {"latentkv_moe_gate_windows_total", "counter", "Windows that moved the threshold.", NULL,
     WHOLE(gate_windows)},
    {"latentkv_moe_slots", "gauge", "Payload slots in the budget.", NULL, WHOLE(slots_total)},
    {"latentkv_moe_slots_ready", "gauge", "Payloads that can be hit.", NULL, WHOLE(slots_ready)},
    {SLOT_KEYS, "kind=\"hit\"", WHOLE(slot_hits)},
    {SLOT_KEYS, "kind=\"miss\"", WHOLE(slot_misses)},
    {"latentkv_moe_slot_refused_total", "counter", "Misses that found no room.", NULL,
     WHOLE(slot_refused)},
    {SLOT_ENDS, "kind=\"evicted\"", WHOLE(slot_evicted)},
    {SLOT_ENDS, "kind=\"dropped\"", WHOLE(slot_dropped)},
    {"latentkv_moe_headroom_blocks", "gauge", "Blocks that can be lent.", NULL,
     WHOLE(headroom_blocks)},
    {"latentkv_moe_lent_blocks", "gauge", "Blocks that are lent.", NULL, WHOLE(lent_blocks)},
    {"latentkv_moe_slot_blocks", "gauge", "Blocks that hold payload slots.", NULL,
     WHOLE(slot_blocks)},
    {"latentkv_moe_dedup_ratio", "gauge", "Token payloads saved by sharing.", NULL,
     REAL(dedup_ratio)},
    {"latentkv_moe_outside", "gauge", "Bits of signals outside their band.", NULL, WHOLE(outside)},
};

lkv_status lkvi_signals_text(const lkv_moe_args *args, const lkv_moe_stats *stats,
                             const char *labels, char *buffer, size_t capacity, size_t *needed)
{
    const struct lkvi_metrics all = {.table = metrics,
                                     .num = sizeof metrics / sizeof metrics[0],
                                     .series = {.name = "latentkv_moe_expert_tokens_total",
                                                .type = "counter",
                                                .help = "Tokens that an expert got.",
                                                .label = "expert",
                                                .values = args->load,
                                                .num = args->load ? args->num_experts : 0}};
    return lkvi_metrics_text(&all, stats, labels, buffer, capacity, needed);
}
