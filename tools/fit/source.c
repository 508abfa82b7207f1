/* See source.h. A model runs over its own bf16 cache; keys and values are tapped before they are
 * compressed, in float32. */
#include "tools/fit/source.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/document.h"
#include "tools/common/progress.h"
#include "tools/engine/safetensors.h"
#include "tools/engine/session.h"
#include "tools/fit/npy.h"

enum { CHUNK = 256, BLOCK_TOKENS = 64, MAX_LAYERS = 4096 };

struct source {
    struct source_options options;
    struct sample_shape shape;
    struct engine_api api;
    struct model model;
    struct checkpoint *file;
    struct npy arrays[NUM_PARTS];
    uint64_t num_tokens; /* of arrays and files, a layer */
};

/* ---- a model */

struct reading {
    sample_fn take;
    void *user;
    uint64_t total;
};

static void on_tap(void *user, const struct session_tap *tap)
{
    const struct reading *r = user;
    const struct samples samples = {.layer = tap->layer,
                                    .first = tap->first,
                                    .count = tap->count,
                                    .total = r->total,
                                    .rows = {tap->keys, tap->values}};
    r->take(r->user, &samples);
}

static int read_chunks(struct session *session, const struct model *model, const struct document *d,
                       struct engine_error *error)
{
    float *logits = malloc((size_t)CHUNK * model->config.vocab * sizeof *logits);
    struct progress bar;
    int status = logits ? 0 : engine_fail(error, "out of memory for logits");
    progress_start(&bar, "tokens", d->count);
    for (uint32_t at = 0; !status && at < d->count; at += CHUNK) {
        const uint32_t n = d->count - at < CHUNK ? d->count - at : CHUNK;
        status = session_run(session, d->ids + at, n, logits, error);
        progress_show(&bar, at + n);
    }
    progress_end(&bar);
    free(logits);
    return status;
}

static int read_text(struct source *s, const char *path, struct reading *r,
                     struct engine_error *error)
{
    struct document d = document_read(path, s->options.limit);
    struct session *session = NULL;
    r->total = d.count;
    const struct session_options options = {.format = LKV_FORMAT_BF16,
                                            .device = LKV_DEVICE_CPU,
                                            .num_threads = s->options.num_threads,
                                            .tokens_per_block = BLOCK_TOKENS,
                                            .max_tokens = d.count,
                                            .max_chunk = CHUNK,
                                            .tap = on_tap,
                                            .tap_user = r};
    int status = session_create(&s->api, &s->model, &options, &session, error);
    if (!status)
        status = read_chunks(session, &s->model, &d, error);
    session_free(session);
    free(d.ids);
    return status;
}

static int open_model(struct source *s, struct engine_error *error)
{
    if (engine_api_open(&s->api, s->options.library, error) ||
        model_load(s->options.model, &s->model, error))
        return -1;
    const struct model_config *c = &s->model.config;
    s->shape = (struct sample_shape){
        .num_layers = c->num_layers,
        .num_heads = c->num_heads,
        .dim = {c->nope_dim + c->rope_dim, c->v_dim},
    };
    return 0;
}

/* ---- arrays */

static int open_arrays(struct source *s, struct engine_error *error)
{
    for (uint32_t part = 0; part < NUM_PARTS; part++) {
        struct npy *a = &s->arrays[part];
        if (npy_read(s->options.arrays[part], a, error))
            return -1;
        if (a->ndim < 3)
            return engine_fail(error,
                               "%s has %u dimensions; need [tokens, heads, D], or layers "
                               "before them",
                               s->options.arrays[part], a->ndim);
        const uint64_t *tail = a->shape + a->ndim - 3, layers = a->ndim == 4 ? a->shape[0] : 1;
        if (part && (layers != s->shape.num_layers || tail[0] != s->num_tokens ||
                     tail[1] != s->shape.num_heads))
            return engine_fail(error,
                               "%s has %" PRIu64 " layers, %" PRIu64 " tokens, %" PRIu64
                               " heads; the keys have %u, %" PRIu64 ", %u",
                               s->options.arrays[part], layers, tail[0], tail[1],
                               s->shape.num_layers, s->num_tokens, s->shape.num_heads);
        s->shape.num_layers = (uint32_t)layers;
        s->num_tokens = tail[0];
        s->shape.num_heads = (uint32_t)tail[1];
        s->shape.dim[part] = (uint32_t)tail[2];
    }
    return 0;
}

static void give_arrays(const struct source *s, sample_fn take, void *user)
{
    for (uint32_t layer = 0; layer < s->shape.num_layers; layer++) {
        struct samples out = {.layer = layer, .count = s->num_tokens, .total = s->num_tokens};
        for (uint32_t part = 0; part < NUM_PARTS; part++)
            out.rows[part] = s->arrays[part].data + (uint64_t)layer * s->num_tokens *
                                                        s->shape.num_heads * s->shape.dim[part];
        take(user, &out);
    }
}

/* ---- a safetensors file */

static void tensor_name(char name[64], uint32_t layer, uint32_t part)
{
    snprintf(name, 64, "layers.%u.%s", layer, part_name(part));
}

static int open_file(struct source *s, struct engine_error *error)
{
    struct engine_error none;
    struct tensor_view v;
    char name[64];
    if (checkpoint_open_file(s->options.samples, &s->file, error))
        return -1;
    for (uint32_t part = 0; part < NUM_PARTS; part++) {
        tensor_name(name, 0, part);
        if (checkpoint_look(s->file, name, &v, error))
            return -1;
        if (v.ndim != 3)
            return engine_fail(error, "tensor %s has %u dimensions; need [tokens, heads, D]", name,
                               v.ndim);
        s->num_tokens = v.shape[0];
        s->shape.num_heads = (uint32_t)v.shape[1];
        s->shape.dim[part] = (uint32_t)v.shape[2];
    }
    do
        tensor_name(name, ++s->shape.num_layers, PART_KEY);
    while (s->shape.num_layers < MAX_LAYERS && !checkpoint_look(s->file, name, &v, &none));
    return 0;
}

static int give_file(const struct source *s, sample_fn take, void *user, struct engine_error *error)
{
    int status = 0;
    for (uint32_t layer = 0; !status && layer < s->shape.num_layers; layer++) {
        float *rows[NUM_PARTS] = {NULL};
        for (uint32_t part = 0; !status && part < NUM_PARTS; part++) {
            const uint64_t shape[3] = {s->num_tokens, s->shape.num_heads, s->shape.dim[part]};
            char name[64];
            tensor_name(name, layer, part);
            status = checkpoint_load(s->file, name, 3, shape, &rows[part], error);
        }
        const struct samples out = {.layer = layer,
                                    .count = s->num_tokens,
                                    .total = s->num_tokens,
                                    .rows = {rows[PART_KEY], rows[PART_VALUE]}};
        if (!status)
            take(user, &out);
        free(rows[PART_KEY]);
        free(rows[PART_VALUE]);
    }
    return status;
}

/* ---- all three */

int source_open(const struct source_options *options, struct source **out,
                struct sample_shape *shape, struct engine_error *error)
{
    struct source *s = calloc(1, sizeof *s);
    if (!s)
        return engine_fail(error, "out of memory");
    s->options = *options;
    int status = options->model     ? open_model(s, error)
                 : options->samples ? open_file(s, error)
                                    : open_arrays(s, error);
    if (status) {
        source_close(s);
        return -1;
    }
    *shape = s->shape;
    *out = s;
    return 0;
}

int source_run(struct source *s, sample_fn take, void *user, struct engine_error *error)
{
    struct reading r = {take, user, 0};
    if (s->options.samples)
        return give_file(s, take, user, error);
    if (!s->options.model) {
        give_arrays(s, take, user);
        return 0;
    }
    for (uint32_t i = 0; i < s->options.num_texts; i++)
        if (read_text(s, s->options.texts[i], &r, error))
            return -1;
    return 0;
}

void source_close(struct source *s)
{
    if (!s)
        return;
    model_free(&s->model);
    if (s->api.library)
        engine_api_close(&s->api);
    checkpoint_close(s->file);
    for (uint32_t part = 0; part < NUM_PARTS; part++)
        free(s->arrays[part].data);
    free(s);
}
