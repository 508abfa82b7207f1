/* Reading NumPy's .npy: little-endian float16, float32 or float64 in C order. */
#ifndef LKV_TOOLS_FIT_NPY_H
#define LKV_TOOLS_FIT_NPY_H

#include <stdint.h>
#include "tools/engine/error.h"

enum { NPY_MAX_DIMS = 4 };

struct npy {
    uint32_t ndim;
    uint64_t shape[NPY_MAX_DIMS];
    float *data; /* all of it, free with free() */
};

int npy_read(const char *path, struct npy *out, struct engine_error *error);

#endif
