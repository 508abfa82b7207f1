/* In: the command line. Out: the options of a replay, or the end of the command. */
#include "tools/replay/command_line.h"

#include <string.h>

#include "tools/common/out.h"
#include "tools/common/parse.h"

enum { DEFAULT_CHECK_EVERY = 100, MOST_ROWS = 64, DEFAULT_PAYLOAD = 14336, DEFAULT_TOP_K = 8 };

/* The place of a name in a list. */
static uint32_t choose(struct argp_state *state, const char *option, const char *text,
                       const char *const *names)
{
    uint32_t i = 0;
    while (names[i] && strcmp(text, names[i]) != 0)
        i++;
    if (!names[i])
        argp_error(state, "%s: '%s' is none of those that --help names", option, text);
    return i;
}

static void parse_compare(struct argp_state *state, const char *text, void *to)
{
    static const char *const names[] = {"none", "lru", "memory", "malloc", NULL};
    *(uint32_t *)to = choose(state, "--compare", text, names);
}

static void parse_router(struct argp_state *state, const char *text, void *to)
{
    static const char *const names[] = {"trace", "v3", NULL};
    *(uint32_t *)to = LKV_ROUTER_TRACE + choose(state, "--router", text, names);
}

static void parse_fallback(struct argp_state *state, const char *text, void *to)
{
    static const char *const names[] = {"none", "fnv1a", "lcg", "buddy", "shared", NULL};
    *(uint32_t *)to = LKV_FALLBACK_NONE + choose(state, "--fallback", text, names);
}

static void parse_slot_policy(struct argp_state *state, const char *text, void *to)
{
    static const char *const names[] = {"lru", "lfu", "least-stale", NULL};
    *(uint32_t *)to = LKV_SLOTS_LRU + choose(state, "--slot-policy", text, names);
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

/* The router's own rules are the library's to check. */
static void check_moe(struct argp_state *state, struct replay_options *o)
{
    struct moe_options *m = &o->moe;
    if (!m->experts)
        return;
    if (o->infinite || o->compare)
        argp_error(state, "--moe needs steps: neither --infinite nor --compare");
    if (o->lend_share > 0)
        argp_error(state, "--moe lends the headroom to its slots: no --lend beside it");
    if (m->router == LKV_ROUTER_TRACE && m->top_k > 1)
        argp_error(state, "--top-k is %u; the trace router takes one expert", m->top_k);
    if (!m->top_k)
        m->top_k = m->router == LKV_ROUTER_TRACE ? 1
                   : m->experts < DEFAULT_TOP_K  ? m->experts
                                                 : DEFAULT_TOP_K;
}

static void check(struct argp_state *state, void *input)
{
    struct replay_options *o = input;
    check_moe(state, o);
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

static size_t moe_rows(struct moe_options *m, struct option_row *to)
{
    const struct option_row rows[] = {
        {"moe", "E", "route every token that runs among E experts, in one layer", OPTION_U32,
         &m->experts, 1, 1024, NULL, 6},
        {"router", "KIND", "trace or v3 (default)", OPTION_OWN, &m->router, 0, 0, parse_router, 6},
        {"top-k", "K", "experts a token, v3; default 8, or E", OPTION_U32, &m->top_k, 1, 31, NULL,
         6},
        {"router-spread", "S", "standard deviation of a token's logits; default 1", OPTION_REAL,
         &m->spread, 0, 100, NULL, 6},
        {"router-skew", "S", "of the experts' popularity, added to it; default 0.3", OPTION_REAL,
         &m->skew, 0, 100, NULL, 6},
        {"gate-window", "N", "steps between two thresholds; default 1000", OPTION_U32,
         &m->gate_window, 1, 1 << 30, NULL, 6},
        {"gate-stddevs", "X", "threshold: mean + X standard deviations; default 0.5", OPTION_REAL,
         &m->gate_stddevs, 0.001, 100, NULL, 6},
        {"fallback", "HOW", "fnv1a (default), lcg, buddy, shared or none", OPTION_OWN, &m->fallback,
         0, 0, parse_fallback, 6},
        {"payload", "BYTES",
         "of a fallback payload, which fills a slot of the --headroom; default 14336, one bf16 row "
         "of 7168",
         OPTION_U64, &m->payload_bytes, 1, 1 << 30, NULL, 6},
        {"slot-policy", "HOW", "lru (default), lfu or least-stale", OPTION_OWN, &m->slot_policy, 0,
         0, parse_slot_policy, 6},
        {"moe-check", "SHARE",
         "of the requests whose hits are routed again, to be compared with the trace read back; "
         "default 1",
         OPTION_REAL, &m->check_rate, 0, 1, NULL, 6}};
    memcpy(to, rows, sizeof rows);
    return sizeof rows / sizeof *rows;
}

static void set_defaults(struct replay_options *o)
{
    *o = (struct replay_options){.preset = "v3",
                                 .format = LKV_FORMAT_INT8,
                                 .block_tokens = 64,
                                 .max_running = 256,
                                 .chunk = 4096,
                                 .step_ms = 50,
                                 .heads = 16,
                                 .seed = 1,
                                 .session_gap_s = 10,
                                 .priority_s = 60,
                                 .check_every = DEFAULT_CHECK_EVERY,
                                 .moe = {.router = LKV_ROUTER_V3,
                                         .fallback = LKV_FALLBACK_FNV1A,
                                         .payload_bytes = DEFAULT_PAYLOAD,
                                         .spread = 1,
                                         .skew = 0.3,
                                         .check_rate = 1}};
}

void replay_parse(int argc, char **argv, const char *doc, struct replay_options *o,
                  const struct option_row *own, size_t num_own)
{
    struct option_row rows[MOST_ROWS];
    set_defaults(o);
    size_t n = trace_rows(o, rows);
    n += pool_rows(o, rows + n);
    n += run_rows(o, rows + n);
    n += more_rows(o, rows + n);
    n += moe_rows(&o->moe, rows + n);
    if (num_own)
        memcpy(rows + n, own, num_own * sizeof *own);
    options_parse(argc, argv, doc, rows, n + num_own, check, o);
    if (!o->blocks && !o->infinite && !is_set(&o->memory))
        o->memory.bytes = UINT64_C(8) << 30;
}
