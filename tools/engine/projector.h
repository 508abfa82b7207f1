/* A projector file: for every layer and KV head the matrices of a LATENT_GQA pool, as safetensors
 * (docs/projector.md). D is the head's dimension, L the latent's; a latent is x . down, and what it
 * stands for is up . latent. */
#ifndef LKV_TOOLS_ENGINE_PROJECTOR_H
#define LKV_TOOLS_ENGINE_PROJECTOR_H

#include <stdint.h>
#include "tools/engine/error.h"

enum { PART_KEY, PART_VALUE, NUM_PARTS };

struct projector_layer {
    float *down[NUM_PARTS], *up[NUM_PARTS]; /* [heads, D, L] */
};

struct projector {
    uint32_t num_layers, num_heads;
    uint32_t dim[NUM_PARTS], latent[NUM_PARTS]; /* D, L */
    struct projector_layer *layers;
};

const char *part_name(uint32_t part); /* "key", "value" */
/* Matrices of num_layers zeros in the shapes that p says. */
int projector_create(struct projector *p, struct engine_error *error);
void projector_free(struct projector *p);
/* Keeps the first `latent` columns of a part's matrices: directions are by falling energy. A
 * multiple of 16, at most what is there. */
int projector_keep(struct projector *p, uint32_t part, uint32_t latent, struct engine_error *error);
int projector_read(struct projector *p, const char *path, struct engine_error *error);
/* form is noted in the file's metadata. */
int projector_write(const struct projector *p, const char *path, const char *form,
                    struct engine_error *error);

#endif
