/* lkv make-trace: a synthetic workload in the Mooncake JSONL form. */
#include <string.h>

#include "tools/command.h"
#include "tools/common/options.h"
#include "tools/common/out.h"
#include "tools/replay/replay.h"

struct options {
    enum synthetic_kind kind;
    uint64_t seed, requests;
    const char *out, *json;
    int have_kind;
};

static void parse_kind(struct argp_state *state, const char *text, void *to)
{
    struct options *o = to;
    if (strcmp(text, "chat") != 0 && strcmp(text, "agent") != 0)
        argp_error(state, "--kind is '%s'; need chat or agent", text);
    o->kind = text[0] == 'a' ? SYNTHETIC_AGENT : SYNTHETIC_CHAT;
    o->have_kind = 1;
}

static void check(struct argp_state *state, void *input)
{
    const struct options *o = input;
    if (!o->have_kind)
        argp_error(state, "--kind is needed: chat or agent");
    if (o->json && !strcmp(o->json, "-") && !strcmp(o->out, "-"))
        argp_error(state, "--json - and --out - cannot both have stdout");
}

static void parse(int argc, char **argv, struct options *o)
{
    const struct option_row rows[] = {
        {"kind", "chat|agent", "what the prompts look like", OPTION_OWN, o, 0, 0, parse_kind, 0},
        OPTION_SEED(&o->seed),
        {"requests", "N", "how many; default 1000", OPTION_U64, &o->requests, 1, 10000000, NULL, 0},
        {"out", "FILE", "where the trace goes; - (default) is stdout", OPTION_TEXT, &o->out, 0, 0,
         NULL, 0},
        OPTION_JSON(&o->json)};
    options_parse(argc, argv, "Writes a synthetic workload, one JSON object a line.", rows,
                  sizeof rows / sizeof *rows, check, o);
}

static json_t *describe(const struct trace *t, const struct options *o)
{
    uint64_t prompt = 0, output = 0;
    for (uint64_t i = 0; i < t->num_requests; i++) {
        prompt += t->requests[i].input_length;
        output += t->requests[i].output_length;
    }
    return json_pack(
        "{s:s,s:I,s:I,s:I,s:I,s:I,s:f,s:i}", "kind", o->kind == SYNTHETIC_CHAT ? "chat" : "agent",
        "seed", (json_int_t)o->seed, "requests", (json_int_t)t->num_requests, "prompt_tokens",
        (json_int_t)prompt, "output_tokens", (json_int_t)output, "unique_blocks",
        (json_int_t)trace_working_set(t, t->block_tokens), "span_s",
        t->requests[t->num_requests - 1].arrival_s, "block_tokens", (int)t->block_tokens);
}

int command_make_trace(int argc, char **argv)
{
    struct options o = {.seed = 1, .requests = 1000, .out = "-"};
    struct trace trace;
    parse(argc, argv, &o);
    synthetic_make(&trace, o.kind, o.seed, o.requests);
    trace_write(&trace, o.out);
    out_json(describe(&trace, &o), o.json);
    trace_free(&trace);
    return EXIT_DONE;
}
