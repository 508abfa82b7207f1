/* lkv make-trace: a synthetic workload in the Mooncake JSONL form. */
#include <argp.h>
#include <string.h>

#include "tools/command.h"
#include "tools/common/out.h"
#include "tools/common/parse.h"
#include "tools/replay/replay.h"

enum { KEY_KIND = 0x100, KEY_SEED, KEY_REQUESTS, KEY_OUT, KEY_JSON };

struct options {
    enum synthetic_kind kind;
    uint64_t seed, requests;
    const char *out, *json;
    int have_kind;
};

static const struct argp_option option_table[] = {
    {"kind", KEY_KIND, "chat|agent", 0, "what the prompts look like", 0},
    {"seed", KEY_SEED, "N", 0, "equal seeds give equal files; default 1", 0},
    {"requests", KEY_REQUESTS, "N", 0, "how many; default 1000", 0},
    {"out", KEY_OUT, "FILE", 0, "where the trace goes; - (default) is stdout", 0},
    {"json", KEY_JSON, "FILE", 0, "write the trace's totals as JSON; - is stdout", 0},
    {0}};

static enum synthetic_kind parse_kind(struct argp_state *state, const char *text)
{
    if (strcmp(text, "chat") != 0 && strcmp(text, "agent") != 0)
        argp_error(state, "--kind is '%s'; need chat or agent", text);
    return text[0] == 'a' ? SYNTHETIC_AGENT : SYNTHETIC_CHAT;
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct options *o = state->input;
    switch (key) {
    case KEY_KIND:
        o->kind = parse_kind(state, arg);
        o->have_kind = 1;
        break;
    case KEY_SEED:
        o->seed = parse_uint(state, "--seed", arg, 0, UINT64_MAX);
        break;
    case KEY_REQUESTS:
        o->requests = parse_uint(state, "--requests", arg, 1, 10000000);
        break;
    case KEY_OUT:
        o->out = arg;
        break;
    case KEY_JSON:
        o->json = arg;
        break;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is one argument too many", arg);
        break;
    case ARGP_KEY_END:
        if (!o->have_kind)
            argp_error(state, "--kind is needed: chat or agent");
        if (o->json && !strcmp(o->json, "-") && !strcmp(o->out, "-"))
            argp_error(state, "--json - and --out - cannot both have stdout");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
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
    static const struct argp parser = {.options = option_table,
                                       .parser = parse_option,
                                       .doc =
                                           "Writes a synthetic workload, one JSON object a line."};
    struct options o = {.seed = 1, .requests = 1000, .out = "-"};
    struct trace trace;
    argp_parse(&parser, argc, argv, 0, NULL, &o);
    synthetic_make(&trace, o.kind, o.seed, o.requests);
    trace_write(&trace, o.out);
    out_json(describe(&trace, &o), o.json);
    trace_free(&trace);
    return EXIT_DONE;
}
