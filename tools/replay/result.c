/* In: the counters of a replay. Out: its table and its JSON object (keys in docs/json.md). */
#include "tools/replay/replay.h"

#include <stdarg.h>
#include <stdio.h>

#include "tools/common/out.h"
#include "tools/common/parse.h"
#include "tools/replay/compare.h"

static double ratio(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

static double mean_of(const struct timeline *t, int waste)
{
    double sum = 0;
    for (uint64_t i = 0; i < t->count; i++)
        sum += waste ? t->samples[i].waste : t->samples[i].in_use;
    return ratio(sum, (double)t->count);
}

static void put(json_t *to, const char *key, uint64_t value)
{
    json_object_set_new(to, key, json_integer((json_int_t)value));
}

/* 0 is what the library's allocator cannot tell. */
static json_t *known(int64_t value)
{
    return value ? json_integer(value) : json_null();
}

static void put_hits(json_t *to, const struct replay_result *x)
{
    put(to, "requests", x->requests);
    put(to, "prompt_tokens", x->prompt_tokens);
    put(to, "hit_tokens", x->hit_tokens);
    put(to, "partial_hit_tokens", x->partial_hit_tokens);
    json_object_set_new(to, "hit_ratio",
                        out_number(ratio((double)x->hit_tokens, (double)x->prompt_tokens)));
    json_object_set_new(to, "whole_block_hit_ratio",
                        out_number(ratio((double)(x->hit_tokens - x->partial_hit_tokens),
                                         (double)x->prompt_tokens)));
    put(to, "output_tokens", x->output_tokens);
}

static void put_blocks(json_t *to, const struct replay *r)
{
    const struct replay_result *x = &r->result;
    put(to, "blocks_total", x->stats.blocks_total);
    put(to, "blocks_base", x->stats.blocks_base);
    put(to, "blocks_peak", x->blocks_peak);
    put(to, "blocks_cached", x->stats.blocks_cached);
    put(to, "working_set_blocks", x->working_set_blocks);
    put(to, "evicted", x->stats.evicted_blocks);
    put(to, "preempted", x->preempted);
    put(to, "never_fits", x->never_fits);
    json_object_set_new(to, "utilisation_mean", out_number(mean_of(&x->timeline, 0)));
    json_object_set_new(to, "internal_waste_mean", out_number(mean_of(&x->timeline, 1)));
}

static json_t *attend_json(const struct replay *r)
{
    const struct attend_result *a = &r->result.attend;
    if (!(r->options.attend_rate > 0))
        return json_null();
    return json_pack("{s:I,s:I,s:o,s:o,s:I}", "steps", (json_int_t)a->steps, "rows",
                     (json_int_t)a->rows, "max_rel_l2", out_number(a->max_rel_l2),
                     "max_latent_rel_l2", out_number(a->max_latent_rel_l2), "failures",
                     (json_int_t)a->failures);
}

static json_t *lend_json(struct replay *r)
{
    struct lend_result *x = &r->result.lend;
    if (!(r->options.lend_share > 0))
        return json_null();
    return json_pack("{s:I,s:I,s:I,s:I,s:o}", "lends", (json_int_t)x->lends, "failures",
                     (json_int_t)x->failures, "peak_blocks", (json_int_t)x->peak_blocks,
                     "preempted_for_lends", (json_int_t)x->preempted_for, "us",
                     series_p50_p99(&x->us));
}

static json_t *host_json(const struct replay *r)
{
    const struct host_result *x = &r->result.host;
    const lkv_pool_stats *s = &r->result.stats;
    if (!r->pool.host_blocks)
        return json_null();
    return json_pack(
        "{s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "blocks", (json_int_t)r->pool.host_blocks, "hit_tokens",
        (json_int_t)x->hit_tokens, "swapped_out", (json_int_t)x->swapped_out, "swapped_in",
        (json_int_t)x->swapped_in, "swaps_refused", (json_int_t)x->refused, "demoted_blocks",
        (json_int_t)s->demoted_blocks, "promoted_blocks", (json_int_t)s->promoted_blocks);
}

static json_t *priority_json(const struct replay *r)
{
    const struct replay_result *x = &r->result;
    const uint64_t others = x->prompt_tokens - x->priority_prompt_tokens;
    if (!(r->options.priority_share > 0))
        return json_null();
    return json_pack(
        "{s:I,s:I,s:o,s:o}", "requests", (json_int_t)x->priority_requests, "prompt_tokens",
        (json_int_t)x->priority_prompt_tokens, "hit_ratio",
        out_number(ratio((double)x->priority_hit_tokens, (double)x->priority_prompt_tokens)),
        "others_hit_ratio",
        out_number(ratio((double)(x->hit_tokens - x->priority_hit_tokens), (double)others)));
}

static json_t *moment_json(const struct sample *s)
{
    return json_pack("{s:o,s:o,s:o,s:o,s:o,s:I,s:o,s:o,s:I}", "time_s", out_number(s->time_s),
                     "in_use", out_number(s->in_use), "idle", out_number(s->idle), "hit_ratio",
                     out_number(s->hit_ratio), "running", out_number(s->running), "metadata_bytes",
                     (json_int_t)s->allocated, "metadata_active_bytes", known(s->active),
                     "metadata_resident_bytes", known(s->resident), "rss_growth_bytes",
                     (json_int_t)s->rss_growth);
}

static json_t *over_time_json(const struct replay *r)
{
    const struct timeline *t = &r->result.timeline;
    const uint64_t wanted = r->options.over_time;
    if (!wanted)
        return json_null();
    json_t *moments = json_array();
    for (uint64_t i = 0; i < wanted && i < t->count; i++) {
        const uint64_t n = wanted < t->count ? wanted : t->count;
        const uint64_t at = n > 1 ? i * (t->count - 1) / (n - 1) : 0;
        json_array_append_new(moments, moment_json(&t->samples[at]));
    }
    return moments;
}

json_t *replay_json(struct replay *r)
{
    struct replay_result *x = &r->result;
    const struct replay_options *o = &r->options;
    json_t *to = json_object();
    json_object_set_new(to, "trace", o->trace ? json_string(o->trace) : json_string("synthetic"));
    json_object_set_new(to, "format", json_string(format_name(o->format)));
    put(to, "block_tokens", o->block_tokens);
    json_object_set_new(to, "infinite", json_boolean(o->infinite));
    put_hits(to, x);
    put_blocks(to, r);
    put(to, "steps", x->steps);
    json_object_set_new(to, "simulated_s", out_number(x->simulated_s));
    json_object_set_new(to, "match_admit_us", series_p50_p99(&x->match_admit_us));
    json_object_set_new(to, "step_us", series_p50_p99(&x->step_us));
    json_object_set_new(to, "manager_s", out_number(x->manager_s));
    json_object_set_new(to, "manager_cpu_s", out_number(x->manager_cpu_s));
    json_object_set_new(to, "wall_s", out_number(x->wall_s));
    put(to, "metadata_bytes", x->stats.metadata_allocated_bytes);
    json_object_set_new(to, "metadata_active_bytes",
                        known((int64_t)x->stats.metadata_active_bytes));
    json_object_set_new(to, "metadata_resident_bytes",
                        known((int64_t)x->stats.metadata_resident_bytes));
    json_object_set_new(to, "rss_growth_bytes", json_integer(x->rss_growth_bytes));
    put(to, "checks", x->checks);
    put(to, "check_failures", x->check_failures);
    json_object_set_new(to, "lend", lend_json(r));
    json_object_set_new(to, "host", host_json(r));
    json_object_set_new(to, "priority", priority_json(r));
    json_object_set_new(to, "over_time", over_time_json(r));
    json_object_set_new(to, "attend", attend_json(r));
    json_object_set_new(to, "moe", moe_json(r));
    json_object_set_new(to, "compare", compare_json(r, to));
    return to;
}

static void line(const char *label, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void line(const char *label, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("  %-22s", label);
    vprintf(format, args);
    putchar('\n');
    va_end(args);
}

static void print_hits(const struct replay_result *x)
{
    const double prompt = (double)x->prompt_tokens;
    line("requests", "%llu (%llu prompt tokens, %llu generated)", (unsigned long long)x->requests,
         (unsigned long long)x->prompt_tokens, (unsigned long long)x->output_tokens);
    line("hit ratio", "%.1f %% of prompt tokens, %.1f %% by whole blocks",
         100 * ratio((double)x->hit_tokens, prompt),
         100 * ratio((double)(x->hit_tokens - x->partial_hit_tokens), prompt));
}

static void print_blocks(const struct replay *r)
{
    const struct replay_result *x = &r->result;
    line("blocks", "%llu, KV may use %llu, peak %llu in use, %llu evicted",
         (unsigned long long)x->stats.blocks_total, (unsigned long long)x->stats.blocks_base,
         (unsigned long long)x->blocks_peak, (unsigned long long)x->stats.evicted_blocks);
    line("utilisation, waste", "%.1f %% of all blocks, %.1f %% of the room in them (means)",
         100 * mean_of(&x->timeline, 0), 100 * mean_of(&x->timeline, 1));
    line("preempted, never fit", "%llu, %llu", (unsigned long long)x->preempted,
         (unsigned long long)x->never_fits);
}

void replay_print(const struct replay *r)
{
    struct replay_result x = r->result; /* percentiles sort in place: the arrays are shared */
    const struct attend_result *a = &x.attend;
    printf("replay of %s, %s, blocks of %u tokens\n",
           r->options.trace ? r->options.trace : "the synthetic workload",
           format_name(r->options.format), r->options.block_tokens);
    print_hits(&x);
    print_blocks(r);
    line("match + admit", "%.1f us median, %.1f us p99", series_percentile(&x.match_admit_us, 0.5),
         series_percentile(&x.match_admit_us, 0.99));
    line(r->options.infinite ? "commit + free" : "step", "%.1f us median, %.1f us p99",
         series_percentile(&x.step_us, 0.5), series_percentile(&x.step_us, 0.99));
    line("time", "%.2f s in the manager (CPU %.2f s), %.1f s in all, %.0f s simulated", x.manager_s,
         x.manager_cpu_s, x.wall_s, x.simulated_s);
    line("invariant checks", "%llu, %llu failed", (unsigned long long)x.checks,
         (unsigned long long)x.check_failures);
    if (r->options.attend_rate > 0)
        line("attention", "%llu steps, %llu rows vs float64: rel-L2 at most %.2e; latents %.2e",
             (unsigned long long)a->steps, (unsigned long long)a->rows, a->max_rel_l2,
             a->max_latent_rel_l2);
    moe_print(r);
}
