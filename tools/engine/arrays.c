/* The session's memory. In: the model's sizes and a device. Out: host arrays, and for what latentkv
 * touches a twin in device memory. On the CPU a twin is one buffer under two names, so pushing and
 * pulling cost nothing. */
#include "tools/engine/arrays.h"

#include <stdlib.h>
#include <string.h>

#include "tools/common/device.h"

static void *host_alloc(size_t bytes)
{
    return aligned_alloc(256, (bytes + 255) / 256 * 256);
}

static int host_floats(float **out, size_t count, struct engine_error *error)
{
    *out = host_alloc(count * sizeof **out);
    return *out ? 0 : engine_fail(error, "out of memory: %zu floats", count);
}

static int device_memory(struct arrays *a, size_t bytes, void **out, struct engine_error *error)
{
    *out = device_alloc(a->device, bytes);
    return *out ? 0 : engine_fail(error, "device: no %zu bytes: %s", bytes, device_error());
}

static int twin_create(struct arrays *a, struct twin *t, size_t bytes, struct engine_error *error)
{
    t->bytes = bytes;
    t->host = host_alloc(bytes);
    if (!t->host)
        return engine_fail(error, "out of memory: %zu bytes", bytes);
    memset(t->host, 0, bytes);
    t->device = t->host;
    return a->device ? device_memory(a, bytes, &t->device, error) : 0;
}

static void twin_free(struct arrays *a, struct twin *t)
{
    if (a->device && t->device != t->host)
        device_free(a->device, t->device);
    free(t->host);
}

static int push(struct arrays *a, const struct twin *t, size_t bytes, struct engine_error *error)
{
    if (a->device && device_write(a->device, t->device, t->host, bytes))
        return engine_fail(error, "device: copying %zu bytes in: %s", bytes, device_error());
    return 0;
}

int arrays_upload(struct arrays *a, const void *host, size_t bytes, void **out,
                  struct engine_error *error)
{
    if (!a->device) {
        *out = (void *)(uintptr_t)host;
        return 0;
    }
    void **uploads = realloc(a->uploads, (a->num_uploads + 1) * sizeof *uploads);
    if (!uploads)
        return engine_fail(error, "out of memory");
    a->uploads = uploads;
    if (device_memory(a, bytes, out, error))
        return -1;
    a->uploads[a->num_uploads++] = *out;
    if (device_write(a->device, *out, host, bytes))
        return engine_fail(error, "device: copying %zu bytes in: %s", bytes, device_error());
    return 0;
}

static int create_host(struct arrays *a, const struct array_sizes *sizes,
                       struct engine_error *error)
{
    const size_t chunk = sizes->max_chunk;
    const size_t hidden = sizes->config->hidden, mlp = sizes->config->mlp;
    return host_floats(&a->x, chunk * hidden, error) ||
                   host_floats(&a->normed, chunk * hidden, error) ||
                   host_floats(&a->gate, chunk * mlp, error) ||
                   host_floats(&a->up, chunk * mlp, error)
               ? -1
               : 0;
}

static int create_twins(struct arrays *a, const struct array_sizes *sizes,
                        struct engine_error *error)
{
    const struct model_config *c = sizes->config;
    const size_t chunk = sizes->max_chunk, heads = c->num_heads;
    a->q_row = heads * (c->nope_dim + c->rope_dim) * sizeof(float);
    a->kv_row = (size_t)(c->latent_dim + c->rope_dim) * sizeof(float);
    a->attended_row = heads * c->v_dim * sizeof(float);
    const struct {
        struct twin *twin;
        size_t bytes;
    } twins[] = {{&a->q, chunk * a->q_row},
                 {&a->q_rope, chunk * heads * c->rope_dim * sizeof(float)},
                 {&a->kv, chunk * a->kv_row},
                 {&a->attended, chunk * a->attended_row},
                 {&a->block_table, sizes->table_width * sizeof(int32_t)},
                 {&a->seq_len, sizeof(int32_t)},
                 {&a->q_indptr, 2 * sizeof(int32_t)},
                 {&a->slots, chunk * sizeof(int64_t)},
                 {&a->positions, chunk * sizeof(int32_t)},
                 {&a->workspace, sizes->workspace_bytes}};
    for (size_t i = 0; i < sizeof twins / sizeof *twins; i++)
        if (twin_create(a, twins[i].twin, twins[i].bytes, error))
            return -1;
    return 0;
}

static int upload_norms(struct arrays *a, const struct model *model, struct engine_error *error)
{
    const struct model_config *c = &model->config;
    a->kv_norms = calloc(c->num_layers, sizeof *a->kv_norms);
    if (!a->kv_norms)
        return engine_fail(error, "out of memory for %u layers", c->num_layers);
    for (uint32_t i = 0; i < c->num_layers; i++)
        if (arrays_upload(a, model->layers[i].kv_a_norm, c->latent_dim * sizeof(float),
                          (void **)&a->kv_norms[i], error))
            return -1;
    return 0;
}

int arrays_create(struct arrays *a, const struct array_sizes *sizes, const struct model *model,
                  struct engine_error *error)
{
    memset(a, 0, sizeof *a);
    if (sizes->device >= 0) {
        a->device = device_open(sizes->device);
        if (!a->device)
            return engine_fail(error, "device %d: %s", sizes->device, device_error());
    }
    if (create_host(a, sizes, error) || create_twins(a, sizes, error))
        return -1;
    return upload_norms(a, model, error);
}

void arrays_free(struct arrays *a)
{
    struct twin *const twins[] = {&a->q,           &a->q_rope,   &a->kv,       &a->attended,
                                  &a->block_table, &a->seq_len,  &a->q_indptr, &a->slots,
                                  &a->positions,   &a->workspace};
    for (size_t i = 0; i < sizeof twins / sizeof *twins; i++)
        twin_free(a, twins[i]);
    for (size_t i = 0; i < a->num_uploads; i++)
        device_free(a->device, a->uploads[i]);
    free(a->uploads);
    free(a->kv_norms);
    free(a->x);
    free(a->normed);
    free(a->gate);
    free(a->up);
    if (a->device)
        device_close(a->device);
    memset(a, 0, sizeof *a);
}

void *arrays_stream(const struct arrays *a)
{
    return a->device ? device_stream(a->device) : NULL;
}

int arrays_push_batch(struct arrays *a, uint32_t n, struct engine_error *error)
{
    return push(a, &a->block_table, a->block_table.bytes, error) ||
                   push(a, &a->seq_len, a->seq_len.bytes, error) ||
                   push(a, &a->q_indptr, a->q_indptr.bytes, error) ||
                   push(a, &a->slots, n * sizeof(int64_t), error) ||
                   push(a, &a->positions, n * sizeof(int32_t), error)
               ? -1
               : 0;
}

int arrays_push_layer(struct arrays *a, uint32_t n, struct engine_error *error)
{
    return push(a, &a->q, n * a->q_row, error) || push(a, &a->kv, n * a->kv_row, error) ? -1 : 0;
}

int arrays_pull_attended(struct arrays *a, uint32_t n, struct engine_error *error)
{
    const struct twin *t = &a->attended;
    if (a->device && device_read(a->device, t->host, t->device, n * a->attended_row))
        return engine_fail(error, "device: copying the output back: %s", device_error());
    return 0;
}
