/* lkv fit-projector: from keys and values of a model to the matrices of a LATENT_GQA pool. In: a
 * model and texts, or arrays. Out: a projector file, and the truncation error over the latent's
 * dimensions on samples that the fit never saw. A program of its own (lkv starts it), so that the
 * GNU Scientific Library and its licence stay out of lkv. */
#include <argp.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/options.h"
#include "tools/common/out.h"
#include "tools/common/parse.h"
#include "tools/fit/stored.h"

enum { LATENT_STEP = 16 };

struct options {
    struct source_options source;
    const char *out, *json, *form_text;
    uint32_t latent[NUM_PARTS], form;
    double held_share;
};

static void must(int status, const struct engine_error *error)
{
    if (status)
        out_die("%s", error->text);
}

static void add_text(struct argp_state *state, const char *path, void *to)
{
    struct source_options *s = to;
    if (s->num_texts == SOURCE_MAX_TEXTS)
        argp_error(state, "more than %d texts", SOURCE_MAX_TEXTS);
    else
        s->texts[s->num_texts++] = path;
}

static void parse_form(struct argp_state *state, const char *text, void *to)
{
    struct options *o = to;
    o->form_text = text;
    o->form = strcmp(text, "whitened") == 0 ? FORM_WHITENED : FORM_ORTHOGONAL;
    if (o->form == FORM_ORTHOGONAL && strcmp(text, "orthogonal") != 0)
        argp_error(state, "--form is '%s'; need whitened or orthogonal", text);
}

static void check(struct argp_state *state, void *input)
{
    const struct options *o = input;
    const struct source_options *s = &o->source;
    const int model = s->model || s->num_texts, arrays = s->arrays[0] || s->arrays[1];
    const int whole =
        (!model || (s->model && s->num_texts)) && (!arrays || (s->arrays[0] && s->arrays[1]));
    if (model + arrays + (s->samples != NULL) != 1 || !whole)
        argp_error(state, "one source of samples: --model with --tokens, --keys with --values, or "
                          "--samples");
    if (!o->out)
        argp_error(state, "--out is needed");
}

static void parse(int argc, char **argv, struct options *o)
{
    struct source_options *s = &o->source;
    const struct option_row rows[] = {
        {"model", "DIR", "folder with config.json and safetensors", OPTION_TEXT, &s->model, 0, 0,
         NULL, 0},
        {"tokens", "FILE", "a text's token ids in JSON; may be given again", OPTION_OWN, s, 0, 0,
         add_text, 0},
        {"limit", "N", "only the first N tokens of each text", OPTION_U32, &s->limit, 2, 1 << 20,
         NULL, 0},
        {"keys", "FILE", "or .npy: [tokens, heads, D], or layers before them", OPTION_TEXT,
         &s->arrays[PART_KEY], 0, 0, NULL, 0},
        {"values", "FILE", "the values beside --keys", OPTION_TEXT, &s->arrays[PART_VALUE], 0, 0,
         NULL, 0},
        {"samples", "FILE", "or safetensors: layers.N.key and layers.N.value", OPTION_TEXT,
         &s->samples, 0, 0, NULL, 0},
        {"latent-dim", "L", "of a key's latent; default D / 4", OPTION_U32, &o->latent[PART_KEY],
         LATENT_STEP, 1024, NULL, 1},
        {"value-latent-dim", "L", "of a value's; default its D / 4, or --latent-dim", OPTION_U32,
         &o->latent[PART_VALUE], LATENT_STEP, 1024, NULL, 1},
        {"form", "F", "whitened (default) or orthogonal", OPTION_OWN, o, 0, 0, parse_form, 1},
        {"held-out", "S", "last share of each text that only measures; default 0.25", OPTION_REAL,
         &o->held_share, 0.01, 0.9, NULL, 1},
        {"threads", "N", "CPU threads; 0 (default): one a core", OPTION_U32, &s->num_threads, 0,
         256, NULL, 2},
        {"library", "PATH", "liblatentkv.so to load", OPTION_TEXT, &s->library, 0, 0, NULL, 2},
        {"out", "FILE", "the projector, safetensors", OPTION_TEXT, &o->out, 0, 0, NULL, 2},
        OPTION_JSON(&o->json)};
    options_parse(argc, argv, "Fits the projector of a LATENT_GQA pool to keys and values.", rows,
                  sizeof rows / sizeof *rows, check, o);
}

/* ---- dimensions */

static uint32_t quarter(uint32_t dim)
{
    uint32_t n = dim / 4 / LATENT_STEP * LATENT_STEP;
    return n ? n : LATENT_STEP;
}

static void settle_latents(struct options *o, const struct sample_shape *shape)
{
    if (!o->latent[PART_VALUE])
        o->latent[PART_VALUE] =
            o->latent[PART_KEY] ? o->latent[PART_KEY] : quarter(shape->dim[PART_VALUE]);
    if (!o->latent[PART_KEY])
        o->latent[PART_KEY] = quarter(shape->dim[PART_KEY]);
    for (uint32_t part = 0; part < NUM_PARTS; part++)
        if (o->latent[part] % LATENT_STEP || o->latent[part] >= shape->dim[part] + LATENT_STEP)
            out_die("the latent of a %s has %u dimensions; need a multiple of %d for its %u",
                    part_name(part), o->latent[part], LATENT_STEP, shape->dim[part]);
}

/* ---- the report */

static json_t *row_of(const struct fit *f, uint32_t layer, uint32_t part, uint32_t latent_dim)
{
    const struct truncation t = fit_truncation(f, layer, part, latent_dim);
    return json_pack("{s:o, s:s, s:i, s:o, s:o, s:o, s:o}", "layer",
                     layer == UINT32_MAX ? json_null() : json_integer(layer), "part",
                     part_name(part), "latent_dim", (int)latent_dim, "error",
                     out_number(t.held_out), "error_least", out_number(t.least), "error_most",
                     out_number(t.most), "fit_error", out_number(t.fit));
}

/* All layers together first, then layer by layer. */
static json_t *curve(const struct fit *f)
{
    json_t *rows = json_array();
    for (uint32_t i = 0; i <= f->shape.num_layers; i++)
        for (uint32_t part = 0; part < NUM_PARTS; part++)
            for (uint32_t n = LATENT_STEP; n < f->shape.dim[part] + LATENT_STEP; n += LATENT_STEP)
                json_array_append_new(rows, row_of(f, i ? i - 1 : UINT32_MAX, part, n));
    return rows;
}

static void print_curve(const struct fit *f)
{
    const char *const heads[] = {"part",      "latent",     "error",
                                 "best head", "worst head", "on the fit"};
    struct out_table *t = out_table_new(sizeof heads / sizeof *heads, heads);
    for (uint32_t part = 0; part < NUM_PARTS; part++)
        for (uint32_t n = LATENT_STEP; n < f->shape.dim[part] + LATENT_STEP; n += LATENT_STEP) {
            const struct truncation e = fit_truncation(f, UINT32_MAX, part, n);
            out_cell(t, "%s", part_name(part));
            out_cell(t, "%u", n);
            out_cell(t, "%.4f", e.held_out);
            out_cell(t, "%.4f", e.least);
            out_cell(t, "%.4f", e.most);
            out_cell(t, "%.4f", e.fit);
        }
    out_table_print(t, stdout);
}

static void add_stored(json_t *rows, const struct fit *f, const struct projector *p)
{
    for (uint32_t i = 0; i < 4 * NUM_PARTS; i++) {
        const uint32_t format = LKV_FORMAT_BF16 + i % 4, part = i / 4;
        const struct truncation e = stored_error(f, p, format, part);
        json_array_append_new(
            rows, json_pack("{s:s, s:i, s:s, s:o, s:o, s:o}", "part", part_name(part), "latent_dim",
                            (int)p->latent[part], "format", format_name(format), "error",
                            out_number(e.held_out), "error_least", out_number(e.least),
                            "error_most", out_number(e.most)));
    }
}

/* Truncation and rounding together, for each format of a pool: all dimensions of the projector,
 * half and a quarter of them where they are multiples of 16. p keeps the last. */
static json_t *stored(const struct fit *f, struct projector *p)
{
    json_t *rows = json_array();
    add_stored(rows, f, p);
    for (uint32_t i = 0; i < 2; i++) {
        struct engine_error none;
        const uint32_t key = p->latent[PART_KEY] / 2, value = p->latent[PART_VALUE] / 2;
        if (key % LATENT_STEP || value % LATENT_STEP || projector_keep(p, PART_KEY, key, &none) ||
            projector_keep(p, PART_VALUE, value, &none))
            break;
        add_stored(rows, f, p);
    }
    return rows;
}

static void print_stored(const json_t *rows)
{
    const char *const heads[] = {"part", "latent", "stored as", "error", "best head", "worst head"};
    const char *const numbers[] = {"error", "error_least", "error_most"};
    struct out_table *t = out_table_new(sizeof heads / sizeof *heads, heads);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        out_cell(t, "%s", json_string_value(json_object_get(row, "part")));
        out_cell(t, "%d", (int)json_integer_value(json_object_get(row, "latent_dim")));
        out_cell(t, "%s", json_string_value(json_object_get(row, "format")));
        for (size_t k = 0; k < 3; k++)
            out_cell(t, "%.4f", json_number_value(json_object_get(row, numbers[k])));
    }
    printf("the same, of the first %d held-out tokens, stored and read again:\n", KEPT_MAX);
    out_table_print(t, stdout);
}

static void report(const struct options *o, const struct fit *f, struct projector *p)
{
    const struct sample_shape *s = &f->shape;
    const struct fit_part *any = fit_part_at(f, 0, 0, PART_KEY);
    const unsigned long long samples = any->fit.count, held = any->held_out.count;
    json_t *rows = stored(f, p);
    if (!o->json || strcmp(o->json, "-") != 0) {
        printf("%u layers, %u heads: fitted to %llu tokens, measured on %llu others\n"
               "keys %u -> %u, values %u -> %u, %s: %s\n"
               "||x - x'|| / ||x|| by dimensions kept, all layers and heads:\n",
               s->num_layers, s->num_heads, samples, held, s->dim[PART_KEY], o->latent[PART_KEY],
               s->dim[PART_VALUE], o->latent[PART_VALUE], o->form_text, o->out);
        print_curve(f);
        print_stored(rows);
    }
    out_json(json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:I, s:o, s:o}", "form",
                       o->form_text, "layers", (int)s->num_layers, "kv_heads", (int)s->num_heads,
                       "head_dim", (int)s->dim[PART_KEY], "value_dim", (int)s->dim[PART_VALUE],
                       "latent_dim", (int)o->latent[PART_KEY], "value_latent_dim",
                       (int)o->latent[PART_VALUE], "fit_tokens", (json_int_t)samples,
                       "held_out_tokens", (json_int_t)held, "stored", rows, "rows", curve(f)),
             o->json);
}

static void make_projector(const struct options *o, const struct fit *f, struct projector *p)
{
    struct engine_error error;
    *p = (struct projector){.num_layers = f->shape.num_layers, .num_heads = f->shape.num_heads};
    memcpy(p->dim, f->shape.dim, sizeof p->dim);
    memcpy(p->latent, o->latent, sizeof p->latent);
    must(projector_create(p, &error), &error);
    fit_projector(f, o->form, p);
    must(projector_write(p, o->out, o->form_text, &error), &error);
}

int main(int argc, char **argv)
{
    argp_err_exit_status = EXIT_USAGE;
    struct options o = {.held_share = 0.25, .form_text = "whitened"};
    struct engine_error error;
    struct sample_shape shape;
    struct source *source;
    struct fit fit;
    struct projector projector;
    parse(argc, argv, &o);
    must(source_open(&o.source, &source, &shape, &error), &error);
    settle_latents(&o, &shape);
    fit_create(&fit, &shape, o.held_share);
    must(source_run(source, fit_take, &fit, &error), &error);
    must(fit_solve(&fit, &error), &error);
    make_projector(&o, &fit, &projector);
    report(&o, &fit, &projector);
    projector_free(&projector);
    fit_free(&fit);
    source_close(source);
    return EXIT_DONE;
}
