/* lkv replay: options, then one run of the trace, then what came out. Exit code 1 when an invariant
 * check or a comparison with the oracle failed. */
#include <argp.h>
#include <string.h>

#include "tools/command.h"
#include "tools/common/clock.h"
#include "tools/common/out.h"
#include "tools/common/parse.h"
#include "tools/replay/compare.h"
#include "tools/replay/replay.h"

enum { DEFAULT_REQUESTS = 160, DEFAULT_CHECK_EVERY = 100 };
enum {
    KEY_TRACE = 0x100,
    KEY_FORMAT,
    KEY_BLOCKS,
    KEY_MEMORY,
    KEY_INFINITE,
    KEY_BLOCK_TOKENS,
    KEY_HEADROOM,
    KEY_MAX_RUNNING,
    KEY_LIMIT,
    KEY_ATTEND,
    KEY_REPORT,
    KEY_JSON,
    KEY_PRESET,
    KEY_LAYERS,
    KEY_HEADS,
    KEY_CHUNK,
    KEY_STEP_MS,
    KEY_SESSION_GAP,
    KEY_SEED,
    KEY_THREADS,
    KEY_CHECK_EVERY,
    KEY_NO_PARTIAL,
    KEY_COMPARE,
    KEY_LIBRARY
};

static const struct argp_option option_table[] = {
    {"trace", KEY_TRACE, "FILE", 0,
     "Mooncake or Claude Code JSONL or Azure CSV, plain or gzip; default: the synthetic chat "
     "workload of --seed",
     1},
    {"limit", KEY_LIMIT, "N", 0, "only the first N requests", 1},
    {"session-gap", KEY_SESSION_GAP, "S", 0,
     "seconds between starts of Claude Code sessions, which have no common clock; default 10", 1},
    {"seed", KEY_SEED, "N", 0, "of tokens, latents and the synthetic workload; default 1", 1},
    {"format", KEY_FORMAT, "F", 0, "bf16, fp8, int8 (default) or nvfp4", 2},
    {"block-tokens", KEY_BLOCK_TOKENS, "N", 0, "tokens a block: 16, 32, 64 (default) or 128", 2},
    {"blocks", KEY_BLOCKS, "N", 0, "size of the pool in blocks", 2},
    {"memory", KEY_MEMORY, "SIZE", 0, "size of the pool in bytes over all layers; default 8GiB", 2},
    {"infinite", KEY_INFINITE, 0, 0,
     "a pool that never evicts; prompts are published as soon as they are admitted, in trace "
     "order, "
     "and nothing is decoded",
     2},
    {"headroom", KEY_HEADROOM, "H", 0, "share of the pool kept for fallback slots; default 0", 2},
    {"compare", KEY_COMPARE, "WITH", 0,
     "lru: --infinite in order of arrival, then pools of 10, 25, 50 and 100 % of the working set "
     "beside plain block LRU of as many blocks; malloc: metadata beside that of --library, in a "
     "process of its own; none",
     2},
    {"library", KEY_LIBRARY, "FILE", 0,
     "with --compare malloc: a liblatentkv.so built with -DLKV_JEMALLOC=off", 2},
    {"no-partial", KEY_NO_PARTIAL, 0, 0, "no reuse of a part of a block", 2},
    {"preset", KEY_PRESET, "NAME", 0, "the model that --memory counts for; default v3", 2},
    {"layers", KEY_LAYERS, "N", 0, "its layers, if not the preset's", 2},
    {"max-running", KEY_MAX_RUNNING, "N", 0, "sequences at a time; default 256", 3},
    {"chunk", KEY_CHUNK, "N", 0, "prompt tokens a step at most; default 4096", 3},
    {"step-ms", KEY_STEP_MS, "MS", 0, "simulated length of a step; default 50", 3},
    {"attend", KEY_ATTEND, "RATE", 0,
     "append real latents in one layer and attend in this share of the steps", 4},
    {"heads", KEY_HEADS, "N", 0, "query heads with --attend; default 16", 4},
    {"threads", KEY_THREADS, "N", 0, "with --attend; 0 (default): one a core", 4},
    {"check-every", KEY_CHECK_EVERY, "N", 0, "steps between invariant checks; default 100", 5},
    {"report", KEY_REPORT, "FILE", 0, "write one HTML file with plots", 5},
    {"json", KEY_JSON, "FILE", 0, "write the result as JSON; - is stdout", 5},
    {0}};

static int parse_compare(struct argp_state *state, const char *arg)
{
    if (!strcmp(arg, "lru"))
        return COMPARE_LRU;
    if (!strcmp(arg, "malloc"))
        return COMPARE_MALLOC;
    if (strcmp(arg, "none") != 0)
        argp_error(state, "--compare: '%s' is not lru, malloc or none", arg);
    return COMPARE_NONE;
}

static error_t parse_pool(int key, char *arg, struct argp_state *state, struct replay_options *o)
{
    switch (key) {
    case KEY_FORMAT:
        o->format = parse_format(state, arg);
        return 0;
    case KEY_BLOCK_TOKENS:
        o->block_tokens = (uint32_t)parse_uint(state, "--block-tokens", arg, 16, 128);
        return 0;
    case KEY_BLOCKS:
        o->blocks = parse_uint(state, "--blocks", arg, 1, 1u << 30);
        return 0;
    case KEY_MEMORY:
        o->memory_bytes = parse_bytes(state, "--memory", arg);
        return 0;
    case KEY_INFINITE:
        o->infinite = 1;
        return 0;
    case KEY_HEADROOM:
        o->headroom = parse_real(state, "--headroom", arg, 0, 10);
        return 0;
    case KEY_NO_PARTIAL:
        o->no_partial = 1;
        return 0;
    case KEY_COMPARE:
        o->compare = parse_compare(state, arg);
        return 0;
    case KEY_LIBRARY:
        o->library = arg;
        return 0;
    case KEY_PRESET:
        o->preset = arg;
        return 0;
    case KEY_LAYERS:
        o->layers = (uint32_t)parse_uint(state, "--layers", arg, 1, 4096);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_run(int key, char *arg, struct argp_state *state, struct replay_options *o)
{
    switch (key) {
    case KEY_LIMIT:
        o->limit = parse_uint(state, "--limit", arg, 1, UINT64_MAX);
        return 0;
    case KEY_SESSION_GAP:
        o->session_gap_s = parse_real(state, "--session-gap", arg, 0, 1e9);
        return 0;
    case KEY_SEED:
        o->seed = parse_uint(state, "--seed", arg, 0, UINT64_MAX);
        return 0;
    case KEY_MAX_RUNNING:
        o->max_running = (uint32_t)parse_uint(state, "--max-running", arg, 1, 65536);
        return 0;
    case KEY_CHUNK:
        o->chunk = (uint32_t)parse_uint(state, "--chunk", arg, 1, 1 << 20);
        return 0;
    case KEY_STEP_MS:
        o->step_ms = parse_real(state, "--step-ms", arg, 0.001, 1e6);
        return 0;
    case KEY_ATTEND:
        o->attend_rate = parse_real(state, "--attend", arg, 0, 1);
        return 0;
    case KEY_HEADS:
        o->heads = (uint32_t)parse_uint(state, "--heads", arg, 1, 256);
        return 0;
    case KEY_THREADS:
        o->threads = (uint32_t)parse_uint(state, "--threads", arg, 0, 256);
        return 0;
    case KEY_CHECK_EVERY:
        o->check_every = (uint32_t)parse_uint(state, "--check-every", arg, 1, 1u << 30);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void check_options(struct argp_state *state, struct replay_options *o)
{
    if (o->compare == COMPARE_LRU)
        o->infinite = 1;
    if (o->compare == COMPARE_MALLOC && !o->library)
        argp_error(state, "--compare malloc needs --library");
    if ((o->blocks != 0) + (o->memory_bytes != 0) + o->infinite > 1)
        argp_error(state, "--blocks, --memory and --infinite exclude each other");
    if (o->infinite && o->attend_rate > 0)
        argp_error(state, "--infinite decodes nothing: it has no steps to --attend");
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct replay_options *o = state->input;
    switch (key) {
    case KEY_TRACE:
        o->trace = arg;
        return 0;
    case KEY_REPORT:
        o->report = arg;
        return 0;
    case KEY_JSON:
        o->json = arg;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is one argument too many", arg);
        return 0;
    case ARGP_KEY_END:
        check_options(state, o);
        return 0;
    default:
        if (parse_pool(key, arg, state, o) == 0)
            return 0;
        return parse_run(key, arg, state, o);
    }
}

static void load_trace(struct replay *r)
{
    const struct replay_options *o = &r->options;
    if (o->trace)
        trace_read(&r->trace, o->trace, o->limit, o->session_gap_s);
    else
        synthetic_make(&r->trace, SYNTHETIC_CHAT, o->seed, o->limit ? o->limit : DEFAULT_REQUESTS);
}

/* rss_bytes: before there was a pool */
static void run(struct replay *r, int64_t rss_bytes)
{
    const uint64_t begin = clock_ns();
    if (r->options.compare == COMPARE_LRU)
        trace_sort(&r->trace);
    if (r->options.infinite)
        replay_infinite(r);
    else
        replay_schedule(r);
    replay_check(r);
    r->result.rss_growth_bytes = compare_rss_bytes() - rss_bytes;
    if (r->options.compare == COMPARE_LRU)
        compare_lru(r);
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
    static const struct argp parser = {
        .options = option_table,
        .parser = parse_option,
        .doc = "Runs a serving workload through the block manager: arrivals, prefill in chunks, "
               "decode steps, preemption by recompute."};
    struct replay r = {.options = {.preset = "v3",
                                   .format = LKV_FORMAT_INT8,
                                   .block_tokens = 64,
                                   .max_running = 256,
                                   .chunk = 4096,
                                   .step_ms = 50,
                                   .heads = 16,
                                   .seed = 1,
                                   .session_gap_s = 10,
                                   .check_every = DEFAULT_CHECK_EVERY}};
    argp_parse(&parser, argc, argv, 0, NULL, &r.options);
    if (!r.options.blocks && !r.options.infinite && !r.options.memory_bytes)
        r.options.memory_bytes = UINT64_C(8) << 30;
    load_trace(&r);
    const int64_t rss_bytes = compare_rss_bytes();
    replay_open(&r);
    run(&r, rss_bytes);
    if (r.options.compare == COMPARE_MALLOC)
        compare_malloc(&r, argc, argv);
    print(&r);
    const uint64_t failures = r.result.check_failures + r.result.attend.failures;
    json_decref(r.result.other_heap);
    replay_close(&r);
    return failures ? EXIT_FAILED : EXIT_DONE;
}
