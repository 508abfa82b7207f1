/* lkv replay: options, then one run of the trace, then what came out. Exit code 1 when an invariant
 * check or a comparison with the oracle failed. */
#include <string.h>

#include "tools/command.h"
#include "tools/common/clock.h"
#include "tools/common/out.h"
#include "tools/replay/command_line.h"
#include "tools/replay/compare.h"
#include "tools/replay/replay.h"

enum { DEFAULT_REQUESTS = 160 };

static void load_trace(struct replay *r)
{
    const struct replay_options *o = &r->options;
    if (o->trace)
        trace_read(&r->trace, o->trace, o->limit, o->session_gap_s);
    else
        synthetic_make(&r->trace, SYNTHETIC_CHAT, o->seed, o->limit ? o->limit : DEFAULT_REQUESTS);
    if (o->until_s > 0 && !trace_cut(&r->trace, o->until_s))
        out_die("no request arrives before --until %g", o->until_s);
    if (o->continue_tails)
        trace_continue_tails(&r->trace);
}

void replay_run(struct replay *r)
{
    const uint64_t begin = clock_ns();
    const int by_share = r->options.compare == COMPARE_LRU || r->options.compare == COMPARE_MEMORY;
    if (by_share)
        trace_sort(&r->trace);
    if (r->options.infinite || by_share)
        replay_infinite(r);
    else
        replay_schedule(r);
    replay_check(r);
    r->result.rss_growth_bytes = compare_rss_bytes() - r->rss_before;
    if (by_share)
        compare_shares(r);
    r->result.wall_s = (double)(clock_ns() - begin) * 1e-9;
    r->result.stats.size = sizeof r->result.stats;
    out_must(lkv_pool_query(r->pool.pool, &r->result.stats), "pool statistics");
}

static void print(struct replay *r)
{
    if (!r->options.json || strcmp(r->options.json, "-") != 0) {
        replay_print(r);
        compare_print(r);
    }
    if (r->options.report)
        replay_report(r, r->options.report);
    out_json(replay_json(r), r->options.json);
}

void replay_begin(struct replay *r)
{
    load_trace(r);
    r->rss_before = compare_rss_bytes();
    replay_open(r);
}

int replay_end(struct replay *r)
{
    print(r);
    const uint64_t failures = r->result.check_failures + r->result.attend.failures +
                              r->result.lend.failures + r->result.lend.preempted_for +
                              moe_failures(&r->result.moe);
    json_decref(r->result.other_heap);
    json_decref(r->result.compare);
    replay_close(r);
    return failures ? EXIT_FAILED : EXIT_DONE;
}

int command_replay(int argc, char **argv)
{
    struct replay r = {.rss_before = 0};
    replay_parse(argc, argv,
                 "Runs a serving workload through the block manager: arrivals, prefill in chunks, "
                 "decode steps, preemption.",
                 &r.options, NULL, 0);
    replay_begin(&r);
    replay_run(&r);
    if (r.options.compare == COMPARE_MALLOC)
        compare_malloc(&r, argc, argv);
    return replay_end(&r);
}
