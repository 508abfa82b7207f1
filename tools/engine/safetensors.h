/* Read-only view of a checkpoint in the safetensors format: 8 bytes little-endian header length, a
 * JSON header (name -> dtype, shape, data_offsets from the header's end), raw row-major data. A
 * folder may hold several files with an index. */
#ifndef LKV_TOOLS_ENGINE_SAFETENSORS_H
#define LKV_TOOLS_ENGINE_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>
#include "tools/engine/error.h"

enum { SAFETENSORS_MAX_DIMS = 4 };

struct tensor_view {
    const void *data; /* may be unaligned */
    uint64_t bytes;
    uint32_t dtype; /* LKV_DTYPE_* */
    uint32_t ndim;
    uint64_t shape[SAFETENSORS_MAX_DIMS];
};

struct checkpoint;

/* folder with model.safetensors.index.json or one model.safetensors */
int checkpoint_open(const char *folder, struct checkpoint **out, struct engine_error *error);
/* one file of any name */
int checkpoint_open_file(const char *path, struct checkpoint **out, struct engine_error *error);
void checkpoint_close(struct checkpoint *checkpoint);

/* Finds a tensor of any shape. */
int checkpoint_look(const struct checkpoint *checkpoint, const char *name, struct tensor_view *out,
                    struct engine_error *error);

/* Finds a tensor and demands exactly this shape; the error names the tensor, what was found and
 * what was wanted. */
int checkpoint_find(const struct checkpoint *checkpoint, const char *name, uint32_t ndim,
                    const uint64_t *shape, struct tensor_view *out, struct engine_error *error);
/* The same, converted to float32 in fresh memory (64-byte aligned, free with free()). */
int checkpoint_load(const struct checkpoint *checkpoint, const char *name, uint32_t ndim,
                    const uint64_t *shape, float **out, struct engine_error *error);

#endif
