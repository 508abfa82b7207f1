/* In: what the routed tokens left behind. Out: the health table, and the JSON object (keys in
 * docs/json.md). */
#include <stdio.h>

#include "tools/common/out.h"
#include "tools/replay/moe.h"
#include "tools/replay/replay.h"

static const char *const routers[] = {"", "trace", "v3"};
static const char *const policies[] = {"none", "fnv1a", "lcg", "buddy", "shared"};
static const char *const slot_policies[] = {"lru", "lfu", "least-stale"};

static double share(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

/* What sharing saves. */
static double saved(double with, double without)
{
    return without > 0 ? 1 - with / without : 0;
}

uint64_t moe_failures(const struct moe_result *x)
{
    return x->trace_wrong + x->payloads_wrong + x->refused_with_room;
}

/* ---- JSON */

static void put(json_t *to, const char *key, uint64_t value)
{
    json_object_set_new(to, key, json_integer((json_int_t)value));
}

static void put_real(json_t *to, const char *key, double value)
{
    json_object_set_new(to, key, out_number(value));
}

static json_t *signals_json(const lkv_moe_stats *s)
{
    json_t *to = json_object();
    put(to, "experts_used", s->experts_used);
    put(to, "experts_overloaded", s->experts_overloaded);
    put(to, "routed", s->routed);
    put_real(to, "utilisation_nats", s->utilisation_nats);
    put_real(to, "utilisation_bits", s->utilisation_bits);
    put_real(to, "utilisation_share", s->utilisation_share);
    put_real(to, "load_cv", s->load_cv);
    put_real(to, "load_peak", s->load_peak);
    put_real(to, "threshold", s->threshold);
    put_real(to, "trigger_rate", s->trigger_rate);
    put(to, "gate_tokens", s->gate_tokens);
    put(to, "gate_triggered", s->gate_triggered);
    put(to, "gate_skipped", s->gate_skipped);
    put(to, "gate_windows", s->gate_windows);
    put(to, "slots_total", s->slots_total);
    put(to, "slots_ready", s->slots_ready);
    put(to, "slot_hits", s->slot_hits);
    put(to, "slot_misses", s->slot_misses);
    put(to, "slot_refused", s->slot_refused);
    put(to, "slot_evicted", s->slot_evicted);
    put(to, "slot_dropped", s->slot_dropped);
    put(to, "headroom_blocks", s->headroom_blocks);
    put(to, "lent_blocks", s->lent_blocks);
    put(to, "slot_blocks", s->slot_blocks);
    put_real(to, "dedup_ratio", s->dedup_ratio);
    put(to, "outside", s->outside);
    return to;
}

static json_t *sharing_json(const struct moe_sharing *s)
{
    json_t *to = json_object();
    put_real(to, "payloads", share(s->with, s->weight));
    put_real(to, "payloads_unshared", share(s->without, s->weight));
    put_real(to, "saved", saved(s->with, s->without));
    put_real(to, "running_payloads", share(s->running_with, s->weight));
    put_real(to, "running_payloads_unshared", share(s->running_without, s->weight));
    put_real(to, "running_saved", saved(s->running_with, s->running_without));
    put(to, "peak_payloads", s->peak_with);
    put(to, "peak_payloads_unshared", s->peak_without);
    put_real(to, "peak_saved", saved((double)s->peak_with, (double)s->peak_without));
    return to;
}

json_t *moe_json(const struct replay *r)
{
    const struct moe_options *o = &r->options.moe;
    const struct moe_result *x = &r->result.moe;
    if (!o->experts)
        return json_null();
    json_t *to = json_object();
    put(to, "experts", o->experts);
    json_object_set_new(to, "router", json_string(routers[o->router]));
    put(to, "top_k", o->top_k);
    json_object_set_new(to, "gate",
                        json_string(r->options.attend_rate > 0 ? "attention" : "router"));
    json_object_set_new(to, "fallback", json_string(policies[o->fallback]));
    json_object_set_new(to, "slot_policy", json_string(slot_policies[o->slot_policy]));
    put(to, "payload_bytes", o->payload_bytes);
    put(to, "slots_per_block",
        x->slots.blocks_max ? x->slots.slots_total / x->slots.blocks_max : 0);
    put(to, "fallbacks", x->fallbacks);
    put(to, "created", x->created);
    put(to, "refused", x->refused);
    put(to, "refused_with_room", x->refused_with_room);
    put(to, "slot_blocks_peak", x->blocks_peak);
    put(to, "trace_written", x->trace_written);
    put(to, "trace_read", x->trace_read);
    put(to, "trace_checked", x->trace_checked);
    put(to, "trace_wrong", x->trace_wrong);
    put(to, "payloads_found", x->payloads_found);
    put(to, "payloads_gone", x->payloads_gone);
    put(to, "payloads_wrong", x->payloads_wrong);
    json_object_set_new(to, "signals", signals_json(&x->stats));
    json_object_set_new(to, "sharing", sharing_json(&x->sharing));
    return to;
}

/* ---- the table */

static const char *verdict(uint64_t outside, uint64_t low, uint64_t high)
{
    return outside & low ? "low" : outside & high ? "high" : "ok";
}

static void row(struct out_table *t, const char *what, double value, const char *unit,
                const char *band, const char *found)
{
    out_cell(t, "%s", what);
    out_cell(t, "%.4g", value);
    out_cell(t, "%s", unit);
    out_cell(t, "%s", band);
    out_cell(t, "%s", found);
}

static void print_health(const lkv_moe_stats *s)
{
    static const char *const heads[] = {"signal", "value", "unit", "healthy", "found"};
    struct out_table *t = out_table_new(5, heads);
    row(t, "utilisation entropy", s->utilisation_nats, "nats", "1.8 to 2.3",
        verdict(s->outside, LKV_MOE_UTILISATION_LOW, LKV_MOE_UTILISATION_HIGH));
    row(t, "  in bits", s->utilisation_bits, "bits", "", "");
    row(t, "  of ln E", 100 * s->utilisation_share, "%", "", "");
    row(t, "trigger rate", 100 * s->trigger_rate, "%", "12 to 18",
        verdict(s->outside, LKV_MOE_TRIGGER_LOW, LKV_MOE_TRIGGER_HIGH));
    row(t, "gate threshold", s->threshold, "nats", "", "");
    row(t, "overloaded experts", (double)s->experts_overloaded, "", "0",
        verdict(s->outside, 0, LKV_MOE_OVERLOADED));
    row(t, "largest load", s->load_peak, "x mean", "to 1.8", "");
    row(t, "load CV", s->load_cv, "", "", "");
    row(t, "slots ready", share(100 * (double)s->slots_ready, (double)s->slots_total), "%", "", "");
    row(t, "headroom lent", share(100 * (double)s->lent_blocks, (double)s->headroom_blocks), "%",
        "", "");
    row(t, "slot hits", share(100 * (double)s->slot_hits, (double)(s->slot_hits + s->slot_misses)),
        "%", "", "");
    row(t, "payloads evicted", (double)s->slot_evicted, "", "", "");
    out_table_print(t, stdout);
}

void moe_print(const struct replay *r)
{
    const struct moe_options *o = &r->options.moe;
    const struct moe_result *x = &r->result.moe;
    const struct moe_sharing *s = &x->sharing;
    if (!o->experts)
        return;
    printf("\nmixture of experts: %s router, %u of %u, gate on the entropy of %s, fallback %s\n",
           routers[o->router], o->top_k, o->experts,
           r->options.attend_rate > 0 ? "attention" : "the router", policies[o->fallback]);
    print_health(&x->stats);
    printf(
        "  routing trace: %llu tokens written; %llu read back on prefix hits, %llu of them routed "
        "again, %llu differ\n",
        (unsigned long long)x->trace_written, (unsigned long long)x->trace_read,
        (unsigned long long)x->trace_checked, (unsigned long long)x->trace_wrong);
    printf(
        "  payloads: %llu made, %llu refused (%llu below the budget); on prefix hits %llu found, "
        "%llu gone, %llu of another token\n",
        (unsigned long long)x->created, (unsigned long long)x->refused,
        (unsigned long long)x->refused_with_room, (unsigned long long)x->payloads_found,
        (unsigned long long)x->payloads_gone, (unsigned long long)x->payloads_wrong);
    printf("  sharing saves %.1f %% of the payloads of running sequences (mean; %.1f %% at their "
           "peak), %.1f %% with those of idle cache counted\n",
           100 * saved(s->running_with, s->running_without),
           100 * saved((double)s->peak_with, (double)s->peak_without),
           100 * saved(s->with, s->without));
}
