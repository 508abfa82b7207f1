/* Where samples come from: a model that reads texts, arrays of NumPy, or a safetensors file. Out: a
 * call for every run of neighbouring tokens of one layer. */
#ifndef LKV_TOOLS_FIT_SOURCE_H
#define LKV_TOOLS_FIT_SOURCE_H

#include <stdint.h>
#include "tools/engine/error.h"
#include "tools/engine/projector.h"

enum { SOURCE_MAX_TEXTS = 64 };

struct source_options {
    const char *model, *library;         /* a model and token ids */
    const char *texts[SOURCE_MAX_TEXTS]; /* in JSON */
    const char *arrays[NUM_PARTS]; /* or .npy of keys and values: [T, heads, D], [layers, ...] */
    const char *samples;           /* or safetensors: layers.N.key, layers.N.value */
    uint32_t num_texts, num_threads, limit;
};

struct sample_shape {
    uint32_t num_layers, num_heads, dim[NUM_PARTS];
};

struct samples {
    uint32_t layer;
    uint64_t first, count, total; /* tokens [first, first + count) of a text of total */
    const float *rows[NUM_PARTS]; /* [count, heads, D]; lent for the call */
};
typedef void (*sample_fn)(void *user, const struct samples *samples);

struct source;
int source_open(const struct source_options *options, struct source **out,
                struct sample_shape *shape, struct engine_error *error);
/* All samples, layer by layer or chunk by chunk; may be called again. */
int source_run(struct source *s, sample_fn take, void *user, struct engine_error *error);
void source_close(struct source *s);

#endif
