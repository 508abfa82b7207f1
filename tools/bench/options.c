/* Options of `lkv bench append` and `lkv bench decode`. */
#include <string.h>

#include "tools/bench/bench.h"
#include "tools/common/parse.h"

enum {
    KEY_DEVICE = 0x100,
    KEY_FORMAT,
    KEY_HEADS,
    KEY_Q_LEN,
    KEY_BATCH,
    KEY_CONTEXT,
    KEY_THREADS,
    KEY_ISA,
    KEY_REPEATS,
    KEY_SECONDS,
    KEY_PRESET,
    KEY_BLOCK_TOKENS,
    KEY_SEED,
    KEY_WARM,
    KEY_JSON
};

static const struct argp_option option_table[] = {
    {"device", KEY_DEVICE, "DEV", 0, "cpu (default), cuda or cuda:N", 0},
    {"format", KEY_FORMAT, "LIST", 0, "of bf16, fp8, int8, nvfp4; default all", 0},
    {"heads", KEY_HEADS, "LIST", 0, "query heads; default 16,128, on a GPU a table", 0},
    {"q-len", KEY_Q_LEN, "LIST", 0, "query rows a sequence; default 1", 0},
    {"batch", KEY_BATCH, "LIST", 0, "sequences, or tokens a call of append", 0},
    {"context", KEY_CONTEXT, "LIST", 0, "tokens a sequence; default 4096", 0},
    {"preset", KEY_PRESET, "NAME", 0, "the model whose latent and rope sizes are used; default v3",
     0},
    {"block-tokens", KEY_BLOCK_TOKENS, "N", 0, "tokens a block; default 64", 0},
    {"threads", KEY_THREADS, "N", 0, "CPU threads; 0 (default): one a core", 0},
    {"isa", KEY_ISA, "NAME", 0, "scalar, avx2 or avx512 at most; default the best", 0},
    {"repeats", KEY_REPEATS, "N", 0, "timed runs of a shape; default 21", 0},
    {"seconds", KEY_SECONDS, "S", 0, "time of a shape at most, after five runs; default 5", 0},
    {"seed", KEY_SEED, "N", 0, "of the data; default 1", 0},
    {"warm", KEY_WARM, 0, 0, "do not flush the caches between runs", 0},
    {"json", KEY_JSON, "FILE", 0, "write the rows as JSON; - is stdout", 0},
    {0}};

static void parse_numbers(struct argp_state *state, const char *what, const char *text,
                          uint64_t most, struct number_list *out)
{
    out->count = parse_list(state, what, text, out->items, MAX_ITEMS);
    for (size_t i = 0; i < out->count; i++)
        if (!out->items[i] || out->items[i] > most)
            argp_error(state, "%s has %llu; need 1 to %llu", what,
                       (unsigned long long)out->items[i], (unsigned long long)most);
}

static uint32_t parse_isa(struct argp_state *state, const char *text)
{
    static const char *const names[] = {
        [LKV_ISA_SCALAR] = "scalar", [LKV_ISA_AVX2] = "avx2", [LKV_ISA_AVX512] = "avx512"};
    for (uint32_t i = LKV_ISA_SCALAR; i <= LKV_ISA_AVX512; i++)
        if (!strcmp(text, names[i]))
            return i;
    argp_error(state, "--isa is '%s'; need scalar, avx2 or avx512", text);
    return 0;
}

static error_t parse_shape(int key, char *arg, struct argp_state *state, struct bench_options *o)
{
    switch (key) {
    case KEY_FORMAT:
        o->num_formats = parse_formats(state, arg, o->formats, 4);
        return 0;
    case KEY_HEADS:
        parse_numbers(state, "--heads", arg, 256, &o->heads);
        return 0;
    case KEY_Q_LEN:
        parse_numbers(state, "--q-len", arg, 65536, &o->q_lens);
        return 0;
    case KEY_BATCH:
        parse_numbers(state, "--batch", arg, 1 << 20, &o->batches);
        return 0;
    case KEY_CONTEXT:
        parse_numbers(state, "--context", arg, 1 << 24, &o->contexts);
        return 0;
    case KEY_BLOCK_TOKENS:
        o->block_tokens = (uint32_t)parse_uint(state, "--block-tokens", arg, 16, 128);
        return 0;
    case KEY_PRESET:
        o->preset = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct bench_options *o = state->input;
    switch (key) {
    case KEY_DEVICE:
        o->device = parse_device(state, arg);
        break;
    case KEY_THREADS:
        o->threads = (uint32_t)parse_uint(state, "--threads", arg, 0, 256);
        break;
    case KEY_ISA:
        o->isa = parse_isa(state, arg);
        break;
    case KEY_REPEATS:
        o->repeats = (uint32_t)parse_uint(state, "--repeats", arg, 1, 100000);
        break;
    case KEY_SECONDS:
        o->seconds = parse_real(state, "--seconds", arg, 0, 1e6);
        break;
    case KEY_SEED:
        o->seed = parse_uint(state, "--seed", arg, 0, UINT64_MAX);
        break;
    case KEY_WARM:
        o->keep_caches = 1;
        break;
    case KEY_JSON:
        o->json = arg;
        break;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is one argument too many", arg);
        break;
    default:
        return parse_shape(key, arg, state, o);
    }
    return 0;
}

void bench_parse(int argc, char **argv, const char *doc, struct bench_options *o)
{
    const struct argp parser = {.options = option_table, .parser = parse_option, .doc = doc};
    argp_parse(&parser, argc, argv, 0, NULL, o);
}
