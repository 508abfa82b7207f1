/* In: loads and live objects. Out: one struct of signals, or its text. Each object is asked once,
 * one after the other: figures of different objects may be a moment apart. */
#include <math.h>
#include "api/check.h"
#include "api/moe_objects.h"
#include "core/status.h"
#include "moe_cache/signals.h"

enum { MAX_EXPERTS = 65535 };

static lkv_status band(const char *name, double *low, double *high, double default_low,
                       double default_high)
{
    if (*low == 0 && *high == 0) {
        *low = default_low;
        *high = default_high;
    }
    if (!(*low >= 0 && *low <= *high && isfinite(*high)))
        return lkvi_fail(LKV_E_INVALID, "%s_low is %g, %s_high %g; need 0 <= low <= high", name,
                         *low, name, *high);
    return LKV_OK;
}

static lkv_status args_check(lkv_moe_args *a)
{
    LKV_TRY(lkvi_flags_check(a->flags, 0, "moe flags"));
    if (a->load && (!a->num_experts || a->num_experts > MAX_EXPERTS))
        return lkvi_fail(LKV_E_INVALID, "num_experts is %u; need 1 to %d", a->num_experts,
                         MAX_EXPERTS);
    LKV_TRY(lkvi_array_check(a->load, a->load ? a->num_experts : 0, sizeof *a->load, "load"));
    if (!isfinite(a->overload_factor) || a->overload_factor < 0)
        return lkvi_fail(LKV_E_INVALID, "overload_factor is %g; need a finite value from 0",
                         a->overload_factor);
    a->overload_factor = a->overload_factor > 0 ? a->overload_factor : 1.8;
    LKV_TRY(band("utilisation", &a->utilisation_low, &a->utilisation_high, 1.8, 2.3));
    return band("trigger", &a->trigger_low, &a->trigger_high, 0.12, 0.18);
}

static lkv_status ask_gate(lkv_gate *gate, lkv_moe_stats *s)
{
    lkv_gate_state g = {.size = sizeof g};
    LKV_TRY(lkv_gate_save(gate, &g));
    s->threshold = g.threshold;
    s->trigger_rate = g.total ? (double)g.triggered / (double)g.total : 0;
    s->gate_tokens = g.total;
    s->gate_triggered = g.triggered;
    s->gate_skipped = g.skipped;
    s->gate_windows = g.windows;
    return LKV_OK;
}

static lkv_status ask_slots(lkv_slots *slots, lkv_moe_stats *s)
{
    lkv_slots_stats t = {.size = sizeof t};
    LKV_TRY(lkv_slots_query(slots, &t));
    s->slots_total = t.slots_total;
    s->slots_ready = t.slots_ready;
    s->slot_hits = t.hits;
    s->slot_misses = t.misses;
    s->slot_refused = t.refused;
    s->slot_evicted = t.evicted;
    s->slot_dropped = t.dropped;
    s->slot_blocks = t.blocks_held;
    if (t.token_users)
        s->dedup_ratio = (double)(t.token_users - t.token_entries) / (double)t.token_users;
    return LKV_OK;
}

static lkv_status ask_pool(lkv_pool *pool, lkv_moe_stats *s)
{
    struct lkvi_manager *manager;
    lkv_pool_stats p = {.size = sizeof p};
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    LKV_TRY(lkvi_manager_query(manager, &p));
    s->headroom_blocks = p.blocks_total - p.blocks_base;
    s->lent_blocks = p.blocks_lent;
    return LKV_OK;
}

static lkv_status measure(const lkv_moe_args *given, lkv_moe_args *a, lkv_moe_stats *s)
{
    LKV_TRY(lkvi_admit(a, sizeof *a, given, "lkv_moe_args"));
    LKV_TRY(args_check(a));
    *s = (lkv_moe_stats){.size = sizeof *s};
    if (a->gate)
        LKV_TRY(ask_gate(a->gate, s));
    if (a->slots)
        LKV_TRY(ask_slots(a->slots, s));
    if (a->pool)
        LKV_TRY(ask_pool(a->pool, s));
    lkvi_signals_load(a, s);
    lkvi_signals_judge(a, s);
    return LKV_OK;
}

lkv_status lkv_moe_measure(const lkv_moe_args *given, lkv_moe_stats *given_stats)
{
    lkv_moe_args args;
    lkv_moe_stats stats;
    LKV_TRY(lkvi_admit_out(given_stats, "lkv_moe_stats"));
    LKV_TRY(measure(given, &args, &stats));
    lkvi_give(given_stats, &stats, sizeof stats);
    return LKV_OK;
}

lkv_status lkv_moe_metrics_text(const lkv_moe_args *given, const char *labels, char *buffer,
                                size_t capacity, size_t *needed)
{
    lkv_moe_args args;
    lkv_moe_stats stats;
    LKV_TRY(lkvi_array_check(buffer, capacity, 1, "buffer"));
    LKV_TRY(lkvi_array_check(needed, 1, sizeof *needed, "needed"));
    LKV_TRY(measure(given, &args, &stats));
    return lkvi_signals_text(&args, &stats, labels, buffer, capacity, needed);
}
