/* lkv bench blocks: what the block manager costs a scheduler, beside what is asked of it. One core,
 * medians. The trace rows need the trace files and are null without them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tools/bench/bench.h"
#include "tools/bench/manager.h"
#include "tools/common/options.h"
#include "tools/common/out.h"
#include "tools/common/progress.h"
#include "tools/replay/replay.h"

struct options {
    const char *claude, *mooncake, *json;
    uint32_t repeats;
};

static void parse(int argc, char **argv, struct options *o)
{
    const struct option_row rows[] = {
        {"claude-code", "FILE", "requests.jsonl.gz of the Claude Code trace", OPTION_TEXT,
         &o->claude, 0, 0, NULL, 0},
        {"mooncake", "FILE", "conversation_trace.jsonl.gz of the Mooncake trace", OPTION_TEXT,
         &o->mooncake, 0, 0, NULL, 0},
        {"repeats", "N", "timed runs of an operation; default 201", OPTION_U32, &o->repeats, 1,
         100000, NULL, 0},
        OPTION_JSON(&o->json)};
    options_parse(argc, argv, "Times the block manager's operations on one core.", rows,
                  sizeof rows / sizeof *rows, NULL, NULL);
}

/* The manager's seconds of an infinite replay; checks, samples and expansion are not counted. */
static double replay_seconds(const char *path)
{
    struct replay r = {.options = {.trace = path,
                                   .preset = "v3",
                                   .format = LKV_FORMAT_INT8,
                                   .block_tokens = MANAGER_BLOCK,
                                   .infinite = 1,
                                   .seed = 1,
                                   .check_every = UINT32_MAX}};
    if (!path)
        return NAN;
    trace_read(&r.trace, path, 0, 10);
    replay_open(&r);
    replay_infinite(&r);
    const double seconds = r.result.manager_cpu_s;
    replay_close(&r);
    return seconds;
}

struct figures {
    double match_admit_us, step_us, step_whole_us, cold_us, evict_10k_us, evict_1m_us;
    double metadata_bytes, claude_s, mooncake_s;
    struct threads_ratio threads;
};

static struct figures measure(const struct options *o)
{
    struct figures f;
    struct progress bar;
    progress_start(&bar, "blocks", 9);
    f.match_admit_us = measure_match_admit(o->repeats);
    progress_show(&bar, 1);
    f.step_us = measure_step(o->repeats, 0);
    progress_show(&bar, 2);
    f.step_whole_us = measure_step(o->repeats, 1);
    progress_show(&bar, 3);
    f.cold_us = measure_cold_prompt(o->repeats);
    progress_show(&bar, 4);
    const struct evict_cost evict = measure_evict(10000, 1000000);
    f.evict_10k_us = evict.small_us;
    f.evict_1m_us = evict.large_us;
    f.metadata_bytes = evict.metadata_bytes;
    progress_show(&bar, 6);
    f.mooncake_s = replay_seconds(o->mooncake);
    progress_show(&bar, 7);
    f.claude_s = replay_seconds(o->claude);
    progress_show(&bar, 8);
    f.threads = measure_threads_ratio();
    progress_end(&bar);
    return f;
}

static void print(const struct figures *f)
{
    static const char *const heads[] = {"operation", "measured", "floor", "target"};
    const struct {
        const char *what;
        double value;
        const char *floor, *target;
    } rows[] = {
        {"match + admit a cached 50,000-token prompt, us", f->match_admit_us, "150", "50"},
        {"decode step of 1,000 sequences, us", f->step_us, "150", "40"},
        {"  with whole tables written, us", f->step_whole_us, "-", "-"},
        {"admit + commit + free a cold 50,000-token prompt, us", f->cold_us, "250", "90"},
        {"evict a block, pool of 10,000, us", f->evict_10k_us, "-", "-"},
        {"evict a block, pool of 1,000,000, us", f->evict_1m_us, "-", "-"},
        {"  ratio", f->evict_1m_us / f->evict_10k_us, "1.5", "1.1"},
        {"metadata a block, B", f->metadata_bytes, "400", "340"},
        {"replay of claude-code, s", f->claude_s, "15", "5"},
        {"replay of mooncake conversation, s", f->mooncake_s, "1", "0.3"},
        {"8 threads to 1 thread, calls a second", f->threads.one_pool, "1", "1.5"},
        {"  with a pool each", f->threads.own_pools, "-", "-"},
    };
    struct out_table *t = out_table_new(4, heads);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        out_cell(t, "%s", rows[i].what);
        if (isnan(rows[i].value))
            out_cell(t, "-");
        else
            out_cell(t, "%.3f", rows[i].value);
        out_cell(t, "%s", rows[i].floor);
        out_cell(t, "%s", rows[i].target);
    }
    out_table_print(t, stdout);
}

static json_t *describe(const struct figures *f)
{
    return json_pack("{s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "device", "cpu",
                     "match_admit_50k_us", out_number(f->match_admit_us), "step_1000_us",
                     out_number(f->step_us), "step_1000_whole_tables_us",
                     out_number(f->step_whole_us), "admit_free_cold_50k_us", out_number(f->cold_us),
                     "evict_10k_us", out_number(f->evict_10k_us), "evict_1m_us",
                     out_number(f->evict_1m_us), "evict_cost_ratio_1m_10k",
                     out_number(f->evict_1m_us / f->evict_10k_us), "metadata_bytes_per_block",
                     out_number(f->metadata_bytes), "replay_claude_code_s", out_number(f->claude_s),
                     "replay_mooncake_s", out_number(f->mooncake_s), "threads8_ratio",
                     out_number(f->threads.one_pool), "threads8_own_pools_ratio",
                     out_number(f->threads.own_pools));
}

int bench_blocks(int argc, char **argv)
{
    struct options o = {.repeats = 201};
    parse(argc, argv, &o);
    const struct figures f = measure(&o);
    if (!o.json || strcmp(o.json, "-") != 0)
        print(&f);
    out_json(describe(&f), o.json);
    return EXIT_DONE;
}
