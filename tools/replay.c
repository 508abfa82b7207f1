/* lkv replay: options, then one run of the trace, then what came out. Exit code 1 when an invariant
 * check or a comparison with the oracle failed. */
#include <string.h>

#include "tools/command.h"
#include "tools/common/clock.h"
#include "tools/common/options.h"
#include "tools/common/out.h"
#include "tools/common/parse.h"
#include "tools/replay/compare.h"
#include "tools/replay/replay.h"

enum { DEFAULT_REQUESTS = 160, DEFAULT_CHECK_EVERY = 100, MOST_ROWS = 48 };

static void parse_compare(struct argp_state *state, const char *text, void *to)
{
    static const char *const names[] = {"none", "lru", "memory", "malloc"};
    for (uint32_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!strcmp(text, names[i])) {
            *(uint32_t *)to = i;
            return;
        }
    }
    argp_error(state, "--compare: '%s' is not lru, memory, malloc or none", text);
}

static void parse_the_format(struct argp_state *state, const char *text, void *to)
{
    *(uint32_t *)to = parse_format(state, text);
}

/* "25%" of the working set, or "8GiB" over all layers of the model. */
static void parse_amount(struct argp_state *state, const char *text, void *to)
{
    struct replay_amount *amount = to;
    const size_t n = strlen(text);
    char number[32];
    *amount = (struct replay_amount){0, 0};
    if (n < 2 || n > sizeof number || text[n - 1] != '%') {
        amount->bytes = parse_bytes(state, "--memory or --host", text);
        return;
    }
    memcpy(number, text, n - 1);
    number[n - 1] = 0;
    amount->share = parse_real(state, "the percentage", number, 0.01, 1000) / 100;
}

static void parse_preempt(struct argp_state *state, const char *text, void *to)
{
    if (strcmp(text, "swap") != 0 && strcmp(text, "recompute") != 0)
        argp_error(state, "--preempt is '%s'; need recompute or swap", text);
    *(int *)to = text[0] == 's';
}

static int is_set(const struct replay_amount *amount)
{
    return amount->bytes || amount->share > 0;
}

static void check(struct argp_state *state, void *input)
{
    struct replay_options *o = input;
    if (o->compare == COMPARE_LRU)
        o->infinite = 1;
    if (o->compare == COMPARE_MEMORY)
        o->no_tables = 1;
    if (o->compare == COMPARE_MALLOC && !o->library)
        argp_error(state, "--compare malloc needs --library");
    if ((o->blocks != 0) + is_set(&o->memory) + o->infinite > 1)
        argp_error(state, "--blocks, --memory and --infinite exclude each other");
    if (o->compare == COMPARE_MEMORY && (o->blocks || is_set(&o->memory) || o->infinite))
        argp_error(state, "--compare memory sets the size of the pool itself");
    if (o->no_tables && o->attend_rate > 0)
        argp_error(state, "--attend needs the tables that --no-tables leaves out");
    if (o->infinite && o->attend_rate > 0)
        argp_error(state, "--infinite decodes nothing: it has no steps to --attend");
    if (o->lend_share > 0 && !(o->headroom > 0))
        argp_error(state, "--lend needs a --headroom to lend from");
    if ((o->swap || o->demote) && !is_set(&o->host))
        argp_error(state, "--preempt swap and --demote need a --host tier");
    if (o->compare == COMPARE_MEMORY && is_set(&o->host))
        argp_error(state, "--compare memory has no host tier: plain LRU has none");
    if (o->infinite && is_set(&o->host))
        argp_error(state, "--infinite evicts nothing: it has no use for a --host tier");
    if (o->lend_share > 0 && o->infinite)
        argp_error(state, "--lend happens between steps, which --infinite has none of");
}

static size_t trace_rows(struct replay_options *o, struct option_row *to)
{
    const struct option_row rows[] = {
        {"trace", "FILE",
         "Mooncake or Claude Code JSONL or Azure CSV, plain or gzip; default: the synthetic chat "
         "workload of --seed",
         OPTION_TEXT, &o->trace, 0, 0, NULL, 1},
        {"limit", "N", "only the first N requests", OPTION_U64, &o->limit, 1, 0, NULL, 1},
        {"until", "S", "only what arrives before this second of the trace", OPTION_REAL,
         &o->until_s, 0.001, 1e12, NULL, 1},
        {"session-gap", "S",
         "seconds between starts of Claude Code sessions, which have no common clock; default 10",
         OPTION_REAL, &o->session_gap_s, 0, 1e9, NULL, 1},
        {"continue-tails", NULL,
         "tokens past a prompt's whole ids are those with which a later prompt that has the same "
         "ids goes on, not private ones",
         OPTION_FLAG, &o->continue_tails, 0, 0, NULL, 1},
        {"seed", "N", "of tokens, latents and the synthetic workload; default 1", OPTION_U64,
         &o->seed, 0, 0, NULL, 1}};
    memcpy(to, rows, sizeof rows);
    return sizeof rows / sizeof *rows;
}

static size_t pool_rows(struct replay_options *o, struct option_row *to)
{
    const struct option_row rows[] = {
        {"format", "F", "bf16, fp8, int8 (default) or nvfp4", OPTION_OWN, &o->format, 0, 0,
         parse_the_format, 2},
        {"block-tokens", "N", "tokens a block: 16, 32, 64 (default) or 128", OPTION_U32,
         &o->block_tokens, 16, 128, NULL, 2},
        {"blocks", "N", "size of the pool in blocks", OPTION_U64, &o->blocks, 1, 1u << 30, NULL, 2},
        {"memory", "SIZE",
         "size of the pool in bytes over all layers, or of the trace's working set: 25%; default "
         "8GiB",
         OPTION_OWN, &o->memory, 0, 0, parse_amount, 2},
        {"host", "SIZE", "of the host tier, likewise; default none", OPTION_OWN, &o->host, 0, 0,
         parse_amount, 2},
        {"infinite", NULL,
         "a pool that never evicts; prompts are published as soon as they are admitted, in trace "
         "order, and nothing is decoded",
         OPTION_FLAG, &o->infinite, 0, 0, NULL, 2},
        {"headroom", "H", "share of the pool kept for fallback slots; default 0", OPTION_REAL,
         &o->headroom, 0, 10, NULL, 2},
        {"compare", "WITH",
         "lru: --infinite in order of arrival, then pools of 10, 25, 50 and 100 % of the working "
         "set beside plain block LRU of as many blocks; memory: the scheduler with pools of these "
         "sizes, each beside plain block LRU driven through the same steps; malloc: metadata "
         "beside that of --library, in a process of its own; none",
         OPTION_OWN, &o->compare, 0, 0, parse_compare, 2},
        {"library", "FILE", "with --compare malloc: a liblatentkv.so built with -DLKV_JEMALLOC=off",
         OPTION_TEXT, &o->library, 0, 0, NULL, 2},
        {"no-partial", NULL, "no reuse of a part of a block", OPTION_FLAG, &o->no_partial, 0, 0,
         NULL, 2},
        {"preset", "NAME", "the model that --memory counts for; default v3", OPTION_TEXT,
         &o->preset, 0, 0, NULL, 2},
        {"layers", "N", "its layers, if not the preset's", OPTION_U32, &o->layers, 1, 4096, NULL,
         2}};
    memcpy(to, rows, sizeof rows);
    return sizeof rows / sizeof *rows;
}

static size_t run_rows(struct replay_options *o, struct option_row *to)
{
    const struct option_row rows[] = {
        {"max-running", "N", "sequences at a time; default 256", OPTION_U32, &o->max_running, 1,
         65536, NULL, 3},
        {"chunk", "N", "prompt tokens a step at most; default 4096", OPTION_U32, &o->chunk, 1,
         1 << 20, NULL, 3},
        {"step-ms", "MS", "simulated length of a step; default 50", OPTION_REAL, &o->step_ms, 0.001,
         1e6, NULL, 3},
        {"eager", NULL,
         "admit whatever fits now, without a spare block for each running sequence: more "
         "preemptions",
         OPTION_FLAG, &o->eager, 0, 0, NULL, 3},
        {"preempt", "HOW", "recompute (default), or swap to the host tier", OPTION_OWN, &o->swap, 0,
         0, parse_preempt, 3},
        {"demote", NULL, "copy what a step may evict to the host tier before it", OPTION_FLAG,
         &o->demote, 0, 0, NULL, 3},
        {"lend", "SHARE",
         "fallback slots that come and go between the steps, at most this share of the headroom",
         OPTION_REAL, &o->lend_share, 0, 1, NULL, 3},
        {"priority", "SHARE", "this share of the sessions (or requests) has priority 50",
         OPTION_REAL, &o->priority_share, 0, 1, NULL, 3},
        {"priority-s", "S", "and keeps it for so long; default 60", OPTION_REAL, &o->priority_s,
         0.001, 1e9, NULL, 3}};
    memcpy(to, rows, sizeof rows);
    return sizeof rows / sizeof *rows;
}

static size_t more_rows(struct replay_options *o, struct option_row *to)
{
    const struct option_row rows[] = {
        {"no-tables", NULL,
         "steps fill no block tables: as wide as the longest request, they cost more than the rest",
         OPTION_FLAG, &o->no_tables, 0, 0, NULL, 4},
        {"attend", "RATE", "append real latents in one layer and attend in this share of the steps",
         OPTION_REAL, &o->attend_rate, 0, 1, NULL, 4},
        {"heads", "N", "query heads with --attend; default 16", OPTION_U32, &o->heads, 1, 256, NULL,
         4},
        {"threads", "N", "with --attend; 0 (default): one a core", OPTION_U32, &o->threads, 0, 256,
         NULL, 4},
        {"check-every", "N", "steps between invariant checks; default 100", OPTION_U32,
         &o->check_every, 1, 1u << 30, NULL, 5},
        {"over-time", "N", "write so many moments of the pool into the JSON", OPTION_U32,
         &o->over_time, 1, 2 * TIMELINE_POINTS, NULL, 5},
        {"report", "FILE", "write one HTML file with plots", OPTION_TEXT, &o->report, 0, 0, NULL,
         5},
        OPTION_JSON(&o->json)};
    memcpy(to, rows, sizeof rows);
    return sizeof rows / sizeof *rows;
}

static void parse(int argc, char **argv, struct replay_options *o)
{
    struct option_row rows[MOST_ROWS];
    size_t n = trace_rows(o, rows);
    n += pool_rows(o, rows + n);
    n += run_rows(o, rows + n);
    n += more_rows(o, rows + n);
    options_parse(argc, argv,
                  "Runs a serving workload through the block manager: arrivals, prefill in chunks, "
                  "decode steps, preemption.",
                  rows, n, check, o);
}

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

static void run(struct replay *r)
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

int command_replay(int argc, char **argv)
{
    struct replay r = {.options = {.preset = "v3",
                                   .format = LKV_FORMAT_INT8,
                                   .block_tokens = 64,
                                   .max_running = 256,
                                   .chunk = 4096,
                                   .step_ms = 50,
                                   .heads = 16,
                                   .seed = 1,
                                   .session_gap_s = 10,
                                   .priority_s = 60,
                                   .check_every = DEFAULT_CHECK_EVERY}};
    parse(argc, argv, &r.options);
    if (!r.options.blocks && !r.options.infinite && !is_set(&r.options.memory))
        r.options.memory.bytes = UINT64_C(8) << 30;
    load_trace(&r);
    r.rss_before = compare_rss_bytes();
    replay_open(&r);
    run(&r);
    if (r.options.compare == COMPARE_MALLOC)
        compare_malloc(&r, argc, argv);
    print(&r);
    const uint64_t failures = r.result.check_failures + r.result.attend.failures +
                              r.result.lend.failures + r.result.lend.preempted_for;
    json_decref(r.result.other_heap);
    json_decref(r.result.compare);
    replay_close(&r);
    return failures ? EXIT_FAILED : EXIT_DONE;
}
