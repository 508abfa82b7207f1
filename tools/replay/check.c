/* In: the running replay. Out: its counters: invariant checks, copies, samples, hits. */
#include "tools/replay/replay.h"

#include <stdio.h>

#include "tools/common/clock.h"
#include "tools/common/out.h"
#include "tools/replay/compare.h"

enum { SMALL_POOL = 4096, LARGE_BLOCKS = 32 };

struct stopwatch manager_begin(void)
{
    const uint64_t cpu_ns = clock_cpu_ns();
    return (struct stopwatch){.wall_ns = clock_ns(), .cpu_ns = cpu_ns};
}

double manager_end(struct replay *r, struct stopwatch begin)
{
    const double wall_s = (double)(clock_ns() - begin.wall_ns) * 1e-9;
    r->result.manager_cpu_s += (double)(clock_cpu_ns() - begin.cpu_ns) * 1e-9;
    r->result.manager_s += wall_s;
    return wall_s;
}

void replay_check(struct replay *r)
{
    r->result.checks++;
    if (lkv_pool_check(r->pool.pool) == LKV_OK)
        return;
    if (!r->result.check_failures++)
        fprintf(stderr, "lkv replay: step %llu: %s\n", (unsigned long long)r->result.steps,
                lkv_last_error());
}

void replay_count_step(struct replay *r)
{
    if (++r->result.steps % r->options.check_every == 0)
        replay_check(r);
}

void replay_settle_copies(struct replay *r)
{
    struct replay_pool *p = &r->pool;
    uint64_t num;
    if (p->has_memory)
        out_must(lkv_pool_apply_copies(p->pool, 0, NULL), "block copies");
    else
        out_must(lkv_pool_take_copies(p->pool, p->copies, p->max_copies, 0, &num), "block copies");
}

void replay_count_hits(struct replay *r, uint64_t prompt_tokens, const lkv_admission *a)
{
    r->result.requests++;
    r->result.prompt_tokens += prompt_tokens;
    r->result.hit_tokens += a->hit_tokens;
    r->result.partial_hit_tokens += a->partial_hit_tokens;
    r->result.host.hit_tokens += a->host_hit_blocks * r->options.block_tokens;
}

static void thin(struct timeline *t)
{
    for (uint64_t i = 0; i < t->count / 2; i++)
        t->samples[i] = t->samples[2 * i];
    t->count /= 2;
    t->stride *= 2;
}

static void keep_sample(struct replay *r, const lkv_pool_stats *s, struct sample sample)
{
    struct timeline *t = &r->result.timeline;
    const double total = (double)s->blocks_total;
    const double room = (double)(s->tokens_live + s->waste_tokens);
    sample.in_use = (double)s->blocks_in_use / total;
    sample.idle = (double)s->blocks_idle / total;
    sample.waste = room > 0 ? (double)s->waste_tokens / room : 0;
    sample.hit_ratio = r->result.prompt_tokens
                           ? (double)r->result.hit_tokens / (double)r->result.prompt_tokens
                           : 0;
    sample.allocated = (int64_t)s->metadata_allocated_bytes;
    sample.active = (int64_t)s->metadata_active_bytes;
    sample.resident = (int64_t)s->metadata_resident_bytes;
    sample.rss_growth = r->options.over_time ? compare_rss_bytes() - r->rss_before : 0;
    if (!t->samples)
        t->samples = out_alloc(2 * TIMELINE_POINTS, sizeof *t->samples);
    t->samples[t->count++] = sample;
    if (t->count == 2 * TIMELINE_POINTS)
        thin(t);
}

void replay_sample(struct replay *r, double time_s, uint64_t running, uint64_t waiting)
{
    struct timeline *t = &r->result.timeline;
    if (!t->stride)
        t->stride = 1;
    const uint64_t seen = t->seen++;
    const uint64_t n = r->pool.num_blocks, peak_steps = n <= SMALL_POOL ? 1 : n / LARGE_BLOCKS;
    if (seen % t->stride && seen % peak_steps)
        return; /* a query may walk the blocks: in large pools not every step can have one */
    lkv_pool_stats stats = {.size = sizeof stats};
    out_must(lkv_pool_query(r->pool.pool, &stats), "pool statistics");
    if (stats.blocks_in_use > r->result.blocks_peak)
        r->result.blocks_peak = stats.blocks_in_use;
    if (seen % t->stride == 0)
        keep_sample(r, &stats,
                    (struct sample){
                        .time_s = time_s, .running = (double)running, .waiting = (double)waiting});
}
