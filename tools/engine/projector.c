/* In and out: one safetensors file, float32. Names: layers.N.key_down, layers.N.key_up,
 * layers.N.value_down, layers.N.value_up, each [heads, D, L]. Layer 0 says the shapes; every other
 * tensor must have them. */
#include "tools/engine/projector.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/engine/safetensors.h"

enum { NUM_SIDES = 2, MAX_LAYERS = 4096, NAME_BYTES = 64 };

const char *part_name(uint32_t part)
{
    return part == PART_KEY ? "key" : "value";
}

static float **matrix_of(const struct projector *p, uint32_t layer, uint32_t part, uint32_t side)
{
    struct projector_layer *l = &p->layers[layer];
    return side ? &l->up[part] : &l->down[part];
}

static void name_of(char name[NAME_BYTES], uint32_t layer, uint32_t part, uint32_t side)
{
    snprintf(name, NAME_BYTES, "layers.%" PRIu32 ".%s_%s", layer, part_name(part),
             side ? "up" : "down");
}

static uint64_t matrix_floats(const struct projector *p, uint32_t part)
{
    return (uint64_t)p->num_heads * p->dim[part] * p->latent[part];
}

int projector_create(struct projector *p, struct engine_error *error)
{
    p->layers = calloc(p->num_layers, sizeof *p->layers);
    int status = p->layers ? 0 : -1;
    for (uint32_t i = 0; !status && i < p->num_layers * NUM_PARTS * NUM_SIDES; i++) {
        uint32_t part = i / NUM_SIDES % NUM_PARTS;
        float **m = matrix_of(p, i / (NUM_PARTS * NUM_SIDES), part, i % NUM_SIDES);
        *m = calloc(matrix_floats(p, part), sizeof **m);
        status = *m ? 0 : -1;
    }
    if (!status)
        return 0;
    projector_free(p);
    return engine_fail(error, "out of memory for a projector of %u layers", p->num_layers);
}

void projector_free(struct projector *p)
{
    for (uint32_t i = 0; p->layers && i < p->num_layers; i++)
        for (uint32_t part = 0; part < NUM_PARTS; part++) {
            free(p->layers[i].down[part]);
            free(p->layers[i].up[part]);
        }
    free(p->layers);
    p->layers = NULL;
}

/* ---- reading */

static int read_shape(struct projector *p, const struct checkpoint *c, struct engine_error *error)
{
    for (uint32_t part = 0; part < NUM_PARTS; part++) {
        char name[NAME_BYTES];
        struct tensor_view v;
        name_of(name, 0, part, 0);
        if (checkpoint_look(c, name, &v, error))
            return -1;
        if (v.ndim != 3 || (part && v.shape[0] != p->num_heads))
            return engine_fail(error, "tensor %s has %u dimensions, %" PRIu64 " heads; need 3, %u",
                               name, v.ndim, v.shape[0], p->num_heads);
        p->num_heads = (uint32_t)v.shape[0];
        p->dim[part] = (uint32_t)v.shape[1];
        p->latent[part] = (uint32_t)v.shape[2];
    }
    return 0;
}

static uint32_t count_layers(const struct checkpoint *c)
{
    struct engine_error ignored;
    struct tensor_view v;
    uint32_t n = 1;
    for (char name[NAME_BYTES]; n < MAX_LAYERS; n++) {
        name_of(name, n, PART_KEY, 0);
        if (checkpoint_look(c, name, &v, &ignored))
            break;
    }
    return n;
}

static int read_layers(struct projector *p, const struct checkpoint *c, struct engine_error *error)
{
    p->layers = calloc(p->num_layers, sizeof *p->layers);
    if (!p->layers)
        return engine_fail(error, "out of memory for %u layers", p->num_layers);
    for (uint32_t i = 0; i < p->num_layers * NUM_PARTS * NUM_SIDES; i++) {
        uint32_t layer = i / (NUM_PARTS * NUM_SIDES), part = i / NUM_SIDES % NUM_PARTS;
        const uint64_t shape[3] = {p->num_heads, p->dim[part], p->latent[part]};
        char name[NAME_BYTES];
        name_of(name, layer, part, i % NUM_SIDES);
        if (checkpoint_load(c, name, 3, shape, matrix_of(p, layer, part, i % NUM_SIDES), error))
            return -1;
    }
    return 0;
}

int projector_read(struct projector *p, const char *path, struct engine_error *error)
{
    struct checkpoint *c;
    memset(p, 0, sizeof *p);
    if (checkpoint_open_file(path, &c, error))
        return -1;
    int status = read_shape(p, c, error);
    if (!status) {
        p->num_layers = count_layers(c);
        status = read_layers(p, c, error);
    }
    checkpoint_close(c);
    if (status)
        projector_free(p);
    return status;
}

int projector_keep(struct projector *p, uint32_t part, uint32_t latent, struct engine_error *error)
{
    const uint32_t had = p->latent[part];
    if (!latent || latent % 16 || latent > had)
        return engine_fail(error, "%u dimensions of a %s; need a multiple of 16, at most %u",
                           latent, part_name(part), had);
    const uint64_t rows = (uint64_t)p->num_heads * p->dim[part];
    for (uint32_t i = 0; i < p->num_layers * NUM_SIDES; i++) {
        float *m = *matrix_of(p, i / NUM_SIDES, part, i % NUM_SIDES);
        for (uint64_t r = 0; r < rows; r++)
            memmove(m + r * latent, m + r * had, latent * sizeof *m);
    }
    p->latent[part] = latent;
    return 0;
}

/* ---- writing */

static char *header_text(const struct projector *p, const char *form)
{
    json_t *root = json_object();
    uint64_t at = 0;
    json_object_set_new(root, "__metadata__",
                        json_pack("{s:s, s:s}", "format", "latentkv projector 1", "form", form));
    for (uint32_t i = 0; i < p->num_layers * NUM_PARTS * NUM_SIDES; i++) {
        uint32_t part = i / NUM_SIDES % NUM_PARTS;
        uint64_t bytes = matrix_floats(p, part) * sizeof(float);
        char name[NAME_BYTES];
        name_of(name, i / (NUM_PARTS * NUM_SIDES), part, i % NUM_SIDES);
        json_object_set_new(root, name,
                            json_pack("{s:s, s:[i,i,i], s:[I,I]}", "dtype", "F32", "shape",
                                      (int)p->num_heads, (int)p->dim[part], (int)p->latent[part],
                                      "data_offsets", (json_int_t)at, (json_int_t)(at + bytes)));
        at += bytes;
    }
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    return text;
}

static int write_all(FILE *f, const struct projector *p, const char *header)
{
    const uint64_t length = strlen(header), padded = (length + 7) / 8 * 8;
    int bad = fwrite(&padded, sizeof padded, 1, f) != 1 || fwrite(header, length, 1, f) != 1 ||
              fprintf(f, "%*s", (int)(padded - length), "") < 0;
    for (uint32_t i = 0; !bad && i < p->num_layers * NUM_PARTS * NUM_SIDES; i++) {
        uint32_t part = i / NUM_SIDES % NUM_PARTS;
        float *const *m = matrix_of(p, i / (NUM_PARTS * NUM_SIDES), part, i % NUM_SIDES);
        bad = fwrite(*m, matrix_floats(p, part) * sizeof **m, 1, f) != 1;
    }
    return bad;
}

int projector_write(const struct projector *p, const char *path, const char *form,
                    struct engine_error *error)
{
    char *header = header_text(p, form);
    FILE *f = header ? fopen(path, "wb") : NULL;
    int bad = !f || write_all(f, p, header);
    if (f && fclose(f))
        bad = 1;
    free(header);
    return bad ? engine_fail(error, "cannot write %s", path) : 0;
}
