/* The working arrays of a session. Those that latentkv touches are pairs {host, device}; on the CPU
 * both are the same memory and the push and pull functions do nothing. */
#ifndef LKV_TOOLS_ENGINE_ARRAYS_H
#define LKV_TOOLS_ENGINE_ARRAYS_H

#include <stddef.h>
#include <stdint.h>
#include "tools/engine/error.h"
#include "tools/engine/model.h"

struct device; /* tools/common/device.h */

struct twin {
    void *host, *device;
    size_t bytes;
};

struct arrays {
    struct device *device;         /* NULL on the CPU */
    float *x, *normed, *gate, *up; /* host only: [chunk, hidden] twice, [chunk, mlp] twice */
    struct twin q;                 /* [chunk, heads, nope + rope] */
    struct twin q_rope;            /* [chunk, heads, rope]; device only */
    struct twin kv;                /* [chunk, latent + rope] */
    struct twin attended;          /* [chunk, heads, v] */
    struct twin block_table, seq_len, q_indptr, slots, positions;
    struct twin workspace; /* device only */
    float **kv_norms;      /* [layers] of [latent], device */
    void **uploads;        /* device copies to free at the end */
    size_t num_uploads;
    size_t q_row, kv_row, attended_row; /* bytes a token */
};

struct array_sizes {
    const struct model_config *config;
    uint32_t max_chunk, table_width;
    size_t workspace_bytes;
    int32_t device;
};

int arrays_create(struct arrays *a, const struct array_sizes *sizes, const struct model *model,
                  struct engine_error *error);
void arrays_free(struct arrays *a);
/* A device copy of host bytes that lives as long as the arrays; on the CPU the host pointer itself.
 */
int arrays_upload(struct arrays *a, const void *host, size_t bytes, void **out,
                  struct engine_error *error);
/* The stream that the library's calls and the copies below share; NULL on the CPU. */
void *arrays_stream(const struct arrays *a);
int arrays_push_batch(struct arrays *a, uint32_t n, struct engine_error *error);
int arrays_push_layer(struct arrays *a, uint32_t n, struct engine_error *error);
int arrays_pull_attended(struct arrays *a, uint32_t n, struct engine_error *error);

#endif
