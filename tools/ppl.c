/* lkv ppl: perplexity of a model whose KV cache is one of latentkv's formats. In: a model folder,
 * token ids, a format. Out: perplexity, KL divergence a token against the bf16 cache, bytes a
 * token, and a greedy continuation. The library is reached only through tools/engine, by dlopen. */
#include <argp.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/command.h"
#include "tools/common/document.h"
#include "tools/common/out.h"
#include "tools/common/parse.h"
#include "tools/common/progress.h"
#include "tools/engine/session.h"
#include "tools/engine/uncertain.h"

enum { CHUNK = 256, BLOCK_TOKENS = 64, KEY_BASE = 0x100 };
enum {
    KEY_MODEL = KEY_BASE,
    KEY_TOKENS,
    KEY_FORMAT,
    KEY_DEVICE,
    KEY_GATE,
    KEY_GENERATE,
    KEY_ENCODE,
    KEY_LIBRARY,
    KEY_THREADS,
    KEY_LIMIT,
    KEY_KIND,
    KEY_PROJECTOR,
    KEY_LATENT,
    KEY_VALUE_LATENT,
    KEY_JSON
};

struct options {
    const char *model, *tokens, *projector, *library, *json;
    struct session_options session;
    const char *gate;
    uint32_t generate, limit;
    int have_format;
    uint32_t kind, latent[NUM_PARTS]; /* 0: the projector's */
};

struct result {
    double nll, kl; /* sums over predicted tokens */
    uint32_t predicted;
    int32_t *generated;
};

/* One session, or two in lock step: the second has the bf16 cache that KL is measured against. */
struct run {
    struct session *session, *reference;
    uint32_t vocab;
    float *logits, *reference_logits; /* [CHUNK, vocab] */
    struct uncertain *uncertain;      /* with --gate */
};

static const struct argp_option option_table[] = {
    {"model", KEY_MODEL, "DIR", 0, "folder with config.json and safetensors", 0},
    {"tokens", KEY_TOKENS, "FILE", 0, "JSON: {\"token_ids\": [...]} or a bare array", 0},
    {"format", KEY_FORMAT, "F", 0, "cache: bf16, fp8, int8 or nvfp4", 0},
    {"encode", KEY_ENCODE, "LIST", 0, "symmetric, rotate, four-over-six, comma-separated", 0},
    {"kind", KEY_KIND, "K", 0, "mla (default), or latent-gqa: projected keys and values", 0},
    {"projector", KEY_PROJECTOR, "FILE", 0, "of latent-gqa, by lkv fit-projector", 0},
    {"latent-dim", KEY_LATENT, "L", 0, "of keys: the projector's first L; default all", 0},
    {"value-latent-dim", KEY_VALUE_LATENT, "L", 0, "the same of values", 0},
    {"device", KEY_DEVICE, "DEV", 0, "cpu (default) or cuda:N", 0},
    {"threads", KEY_THREADS, "N", 0, "CPU threads; 0 (default): one a core", 0},
    {"limit", KEY_LIMIT, "N", 0, "only the first N tokens", 0},
    {"generate", KEY_GENERATE, "N", 0, "continue greedily by N tokens", 0},
    {"library", KEY_LIBRARY, "PATH", 0, "liblatentkv.so to load", 0},
    {"gate", KEY_GATE, "FILE", 0, "write each token's attention entropies and the gate's answers",
     0},
    {"json", KEY_JSON, "FILE", 0, "write the result as JSON; - is stdout", 0},
    {0}};

static uint32_t parse_encode(struct argp_state *state, const char *text)
{
    static const struct {
        const char *name;
        uint32_t flag;
    } known[] = {{"symmetric", LKV_ENCODE_INT8_SYMMETRIC},
                 {"rotate", LKV_ENCODE_ROTATE},
                 {"four-over-six", LKV_ENCODE_NVFP4_FOUR_OVER_SIX}};
    uint32_t flags = 0;
    while (*text) {
        size_t n = strcspn(text, ","), i = 0;
        while (i < 3 && (strlen(known[i].name) != n || strncmp(known[i].name, text, n) != 0))
            i++;
        if (i == 3)
            argp_error(state, "--encode: '%.*s' is not symmetric, rotate or four-over-six", (int)n,
                       text);
        else
            flags |= known[i].flag;
        text += n + (text[n] == ',');
    }
    return flags;
}

static uint32_t parse_kind(struct argp_state *state, const char *text)
{
    if (strcmp(text, "latent-gqa") == 0)
        return LKV_KIND_LATENT_GQA;
    if (strcmp(text, "mla") != 0)
        argp_error(state, "--kind is '%s'; need mla or latent-gqa", text);
    return LKV_KIND_MLA;
}

static void check_options(struct argp_state *state, const struct options *o)
{
    if (!o->model || !o->tokens || !o->have_format)
        argp_error(state, "--model, --tokens and --format are needed");
    if ((o->kind == LKV_KIND_LATENT_GQA) != (o->projector != NULL) ||
        (!o->projector && (o->latent[PART_KEY] || o->latent[PART_VALUE])))
        argp_error(state, "--kind latent-gqa and --projector go together, latent dims with them");
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct options *o = state->input;
    switch (key) {
    case KEY_MODEL:
        o->model = arg;
        break;
    case KEY_TOKENS:
        o->tokens = arg;
        break;
    case KEY_LIBRARY:
        o->library = arg;
        break;
    case KEY_GATE:
        o->gate = arg;
        break;
    case KEY_JSON:
        o->json = arg;
        break;
    case KEY_FORMAT:
        o->session.format = parse_format(state, arg);
        o->have_format = 1;
        break;
    case KEY_ENCODE:
        o->session.encode_flags = parse_encode(state, arg);
        break;
    case KEY_KIND:
        o->kind = parse_kind(state, arg);
        break;
    case KEY_LATENT:
        o->latent[PART_KEY] = (uint32_t)parse_uint(state, "--latent-dim", arg, 16, 1024);
        break;
    case KEY_VALUE_LATENT:
        o->latent[PART_VALUE] = (uint32_t)parse_uint(state, "--value-latent-dim", arg, 16, 1024);
        break;
    case KEY_PROJECTOR:
        o->projector = arg;
        break;
    case KEY_DEVICE:
        o->session.device = parse_device(state, arg);
        break;
    case KEY_THREADS:
        o->session.num_threads = (uint32_t)parse_uint(state, "--threads", arg, 0, 256);
        break;
    case KEY_LIMIT:
        o->limit = (uint32_t)parse_uint(state, "--limit", arg, 2, 1 << 20);
        break;
    case KEY_GENERATE:
        o->generate = (uint32_t)parse_uint(state, "--generate", arg, 0, 1 << 16);
        break;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is one argument too many", arg);
        break;
    case ARGP_KEY_END:
        check_options(state, o);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static double log_sum_exp(const float *logits, uint32_t n)
{
    double top = logits[0], sum = 0;
    for (uint32_t i = 1; i < n; i++)
        top = fmax(top, logits[i]);
    for (uint32_t i = 0; i < n; i++)
        sum += exp(logits[i] - top);
    return top + log(sum);
}

/* sum p (log p - log q), p from the reference */
static double divergence(const float *reference, const float *logits, uint32_t n)
{
    const double p_norm = log_sum_exp(reference, n), q_norm = log_sum_exp(logits, n);
    double kl = 0;
    for (uint32_t i = 0; i < n; i++) {
        const double log_p = reference[i] - p_norm;
        kl += exp(log_p) * (log_p - (logits[i] - q_norm));
    }
    return kl;
}

static void must(int status, const struct engine_error *error)
{
    if (status)
        out_die("%s", error->text);
}

/* Row j of the chunk that starts at `begin` predicts token begin + j + 1. */
static void score_chunk(const struct run *run, const struct document *d, uint32_t begin, uint32_t n,
                        struct result *r)
{
    for (uint32_t j = 0; j < n && begin + j + 1 < d->count; j++) {
        const float *row = run->logits + (size_t)j * run->vocab;
        r->nll += log_sum_exp(row, run->vocab) - row[d->ids[begin + j + 1]];
        if (run->reference)
            r->kl += divergence(run->reference_logits + (size_t)j * run->vocab, row, run->vocab);
        r->predicted++;
    }
}

static void feed(const struct run *run, const int32_t *ids, uint32_t n, int with_reference)
{
    struct engine_error error;
    must(session_run(run->session, ids, n, run->logits, &error), &error);
    if (with_reference && run->reference)
        must(session_run(run->reference, ids, n, run->reference_logits, &error), &error);
}

/* Leaves the logits behind the last token in row 0. */
static void score_document(const struct run *run, const struct document *d, struct result *r)
{
    struct progress bar;
    progress_start(&bar, "tokens", d->count);
    for (uint32_t begin = 0; begin < d->count; begin += CHUNK) {
        const uint32_t n = d->count - begin < CHUNK ? d->count - begin : CHUNK;
        feed(run, d->ids + begin, n, 1);
        score_chunk(run, d, begin, n, r);
        if (run->uncertain)
            uncertain_ask(run->uncertain, n);
        memmove(run->logits, run->logits + (size_t)(n - 1) * run->vocab,
                run->vocab * sizeof *run->logits);
        progress_show(&bar, begin + n);
    }
    progress_end(&bar);
}

static int32_t arg_max(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return (int32_t)best;
}

static void generate(const struct run *run, uint32_t count, struct result *r)
{
    r->generated = out_alloc(count, sizeof *r->generated);
    for (uint32_t i = 0; i < count; i++) {
        r->generated[i] = arg_max(run->logits, run->vocab);
        if (i + 1 < count)
            feed(run, &r->generated[i], 1, 0);
    }
}

static json_t *describe(const struct options *o, const struct result *r, uint64_t token_bytes)
{
    json_t *generated = json_array();
    for (uint32_t i = 0; i < o->generate; i++)
        json_array_append_new(generated, json_integer(r->generated[i]));
    const struct projector *p = o->session.projector;
    return json_pack(
        "{s:s, s:o, s:o, s:s, s:i, s:o, s:o, s:o, s:I, s:i, s:o}", "kind", p ? "latent-gqa" : "mla",
        "latent_dim", p ? json_integer(p->latent[PART_KEY]) : json_null(), "value_latent_dim",
        p ? json_integer(p->latent[PART_VALUE]) : json_null(), "format",
        format_name(o->session.format), "encode_flags", (int)o->session.encode_flags, "perplexity",
        out_number(exp(r->nll / r->predicted)), "mean_nll", out_number(r->nll / r->predicted),
        "mean_kl", out_number(r->kl / r->predicted), "cache_bytes_per_token",
        (json_int_t)token_bytes, "tokens", (int)r->predicted, "generated", generated);
}

static void print_result(const struct options *o, const struct result *r, uint64_t token_bytes)
{
    printf("cache %s, %llu bytes a token: perplexity %.4f over %u tokens (mean nll %.6f nats), KL "
           "%.3g nats a token against bf16\n",
           format_name(o->session.format), (unsigned long long)token_bytes,
           exp(r->nll / r->predicted), r->predicted, r->nll / r->predicted, r->kl / r->predicted);
    if (!o->generate)
        return;
    printf("generated:");
    for (uint32_t i = 0; i < o->generate; i++)
        printf(" %d", r->generated[i]);
    printf("\n");
}

static struct session *open_session(const struct engine_api *api, const struct model *model,
                                    struct session_options options)
{
    struct engine_error error;
    struct session *session = NULL;
    must(session_create(api, model, &options, &session, &error), &error);
    return session;
}

static void open_run(struct run *run, const struct engine_api *api, const struct model *model,
                     const struct options *o)
{
    const size_t logits = (size_t)CHUNK * model->config.vocab;
    run->vocab = model->config.vocab;
    run->logits = out_alloc(logits, sizeof *run->logits);
    run->session = open_session(api, model, o->session);
    if (o->session.format == LKV_FORMAT_BF16 && !o->session.encode_flags && !o->session.projector)
        return;
    struct session_options reference = o->session;
    reference.entropy = NULL;
    reference.format = LKV_FORMAT_BF16;
    reference.encode_flags = 0;
    reference.projector = NULL;
    run->reference_logits = out_alloc(logits, sizeof *run->reference_logits);
    run->reference = open_session(api, model, reference);
}

static void close_run(struct run *run)
{
    struct engine_error error;
    must(session_check(run->session, &error), &error);
    session_free(run->session);
    session_free(run->reference);
    free(run->logits);
    free(run->reference_logits);
}

static void measure(const struct options *o, const struct engine_api *api,
                    const struct model *model)
{
    struct document d = document_read(o->tokens, o->limit);
    json_t *gate = json_null();
    struct options sized = *o;
    sized.session.max_tokens = d.count + o->generate;
    struct run run = {0};
    if (o->gate) {
        run.uncertain = uncertain_new(api, &model->config, CHUNK);
        sized.session.entropy = uncertain_room(run.uncertain);
    }
    struct result r = {0};
    open_run(&run, api, model, &sized);
    score_document(&run, &d, &r);
    generate(&run, o->generate, &r);
    const uint64_t token_bytes = session_token_bytes(run.session);
    close_run(&run);
    if (run.uncertain)
        gate = uncertain_end(run.uncertain, o->gate);
    if (!o->json || strcmp(o->json, "-") != 0)
        print_result(o, &r, token_bytes);
    json_t *root = describe(o, &r, token_bytes);
    json_object_set_new(root, "gate", gate);
    out_json(root, o->json);
    free(r.generated);
    free(d.ids);
}

int command_ppl(int argc, char **argv)
{
    static const struct argp parser = {
        .options = option_table,
        .parser = parse_option,
        .doc = "Perplexity of a DeepSeek-V3-shaped model over a latentkv cache."};
    struct options o = {.session = {.device = LKV_DEVICE_CPU,
                                    .tokens_per_block = BLOCK_TOKENS,
                                    .max_chunk = CHUNK}};
    argp_parse(&parser, argc, argv, 0, NULL, &o);
    struct engine_api api;
    struct engine_error error;
    struct model model;
    must(engine_api_open(&api, o.library, &error), &error);
    must(model_load(o.model, &model, &error), &error);
    struct projector projector;
    if (o.projector) {
        must(projector_read(&projector, o.projector, &error), &error);
        for (uint32_t part = 0; part < NUM_PARTS; part++)
            if (o.latent[part])
                must(projector_keep(&projector, part, o.latent[part], &error), &error);
        o.session.projector = &projector;
    }
    measure(&o, &api, &model);
    if (o.projector)
        projector_free(&projector);
    model_free(&model);
    engine_api_close(&api);
    return EXIT_DONE;
}
