/* The seam to a device: one table of operations, each answering "supported?", "how much scratch?",
 * "run". The CPU table is built in; the CUDA table comes from liblatentkv_cuda.so through one
 * symbol, lkvi_backend_open. api/ checks arguments; behind this line they are trusted. No operation
 * allocates device memory, synchronises or changes the current device, except those that say so. */
#ifndef LKVI_CORE_BACKEND_H
#define LKVI_CORE_BACKEND_H

#include <stdint.h>
#include "latentkv/latentkv.h"

#ifdef __cplusplus
extern "C" {
#endif

struct lkvi_append_params;
struct lkvi_gather_params;
struct lkvi_rotate_params;
struct lkvi_rope_params;
struct lkvi_project_params;
struct lkvi_plan_params;
struct lkvi_batch_view;
struct lkvi_attend_params;
struct lkvi_merge_params;
struct lkvi_append_heads_params;
struct lkvi_gather_heads_params;

enum { LKVI_BACKEND_ABI = 2 };

/* What the core gives a backend: its only way to speak. */
struct lkvi_host {
    lkv_status (*fail)(lkv_status status, const char *format, ...);
    void (*log)(const lkv_context *ctx, int32_t level, const char *format, ...);
};

enum { LKVI_COPY_TO_DEVICE = 1, LKVI_COPY_TO_HOST = 2, LKVI_COPY_ON_DEVICE = 3 };

struct lkvi_backend {
    uint32_t abi; /* LKVI_BACKEND_ABI */
    uint32_t reserved;
    const char *name;

    /* life; open may allocate and synchronise. state is passed to every other call */
    lkv_status (*open)(lkv_context *ctx, int32_t device, void **state);
    void (*close)(void *state);
    lkv_status (*query)(void *state, lkv_context_info *info);

    /* memory; allocate, free and wait may synchronise. Fresh memory is zero. */
    lkv_status (*allocate)(void *state, uint64_t bytes, uint32_t on_host, void **out);
    void (*release)(void *state, void *p, uint32_t on_host);
    lkv_status (*copy)(void *state, void *to, const void *from, uint64_t bytes, uint32_t kind,
                       void *stream);
    lkv_status (*wait)(void *state, void *stream);

    lkv_status (*append)(void *state, const struct lkvi_append_params *p, void *stream);
    lkv_status (*gather)(void *state, const struct lkvi_gather_params *p, void *stream);
    lkv_status (*rotate)(void *state, const struct lkvi_rotate_params *p, void *stream);
    lkv_status (*rope)(void *state, const struct lkvi_rope_params *p, void *stream);

    lkv_status (*project_scratch)(void *state, const struct lkvi_project_params *p, size_t *bytes);
    lkv_status (*project)(void *state, const struct lkvi_project_params *p, void *scratch,
                          size_t bytes, void *stream);

    /* supported? and scratch in one: fills kernel_row, num_splits_max, workspace_bytes of p */
    lkv_status (*plan)(void *state, struct lkvi_plan_params *p);
    lkv_status (*plan_update)(void *state, const struct lkvi_plan_params *plan,
                              const struct lkvi_batch_view *batch, void *workspace, void *stream);
    lkv_status (*attend)(void *state, const struct lkvi_attend_params *p, void *stream);
    lkv_status (*merge)(void *state, const struct lkvi_merge_params *p, void *stream);

    /* LATENT_GQA pools; both NULL: not supported */
    lkv_status (*append_heads)(void *state, const struct lkvi_append_heads_params *p, void *stream);
    lkv_status (*gather_heads)(void *state, const struct lkvi_gather_heads_params *p, void *stream);
};

/* The one symbol of liblatentkv_cuda.so. */
typedef const struct lkvi_backend *(*lkvi_backend_open_fn)(const struct lkvi_host *host);
#define LKVI_BACKEND_OPEN_SYMBOL "lkvi_backend_open"

/* The built-in table (attention/cpu/backend.c). */
extern const struct lkvi_backend lkvi_backend_cpu;

#ifdef __cplusplus
}
#endif
#endif
