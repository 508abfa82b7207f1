/* The few functions of libcuda.so.1 that benches need, bound by name. Handles are opaque pointers,
 * device addresses 64-bit numbers, as in the driver's ABI. */
#ifndef TOOLS_COMMON_CUDA_DRIVER_H
#define TOOLS_COMMON_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

enum { CUDA_ATTRIBUTE_SM_COUNT = 16, CUDA_ATTRIBUTE_L2_BYTES = 38 };

struct cuda_driver {
    int (*init)(unsigned flags);
    int (*device_get)(int *device, int ordinal);
    int (*device_attribute)(int *value, int attribute, int device);
    int (*context_retain)(void **context, int device);
    int (*context_use)(void *context);
    int (*error_text)(int error, const char **text);
    int (*alloc)(uint64_t *p, size_t bytes);
    int (*free)(uint64_t p);
    int (*write)(uint64_t to, const void *from, size_t bytes);
    int (*read)(void *to, uint64_t from, size_t bytes);
    int (*fill)(uint64_t p, unsigned char value, size_t bytes, void *stream);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_wait)(void *stream);
    int (*event_create)(void **event, unsigned flags);
    int (*event_record)(void *event, void *stream);
    int (*event_wait)(void *event);
    int (*event_elapsed_ms)(float *ms, void *begin, void *end);
    int (*module_load)(void **module, const void *ptx);
    int (*module_function)(void **function, void *module, const char *name);
    int (*launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                  unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                  void *stream, void **params, void **extra);
};

/* -1 with the reason if there is no driver. */
int cuda_driver_open(struct cuda_driver *cuda, char *why, size_t why_bytes);

/* A kernel `read_all(uint64 p, uint64 num_16_byte_words, uint64 sink)` in PTX: every thread sums
 * 16-byte words with a grid stride, four loads in flight. */
extern const char cuda_read_kernel[];

#endif
