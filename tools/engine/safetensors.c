/* Reading safetensors. In: a folder. Out: views into mapped files. Every number of a header is
 * checked against the file's size before it is used, so a damaged file is an error and not a crash.
 * JSON is jansson's. */
#include "tools/engine/safetensors.h"

#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "latentkv/latentkv.h"

struct shard {
    char name[256];
    const uint8_t *map;
    uint64_t map_bytes;
    const uint8_t *data; /* behind the header */
    uint64_t data_bytes;
    json_t *header;
};

struct checkpoint {
    struct shard *shards;
    size_t num_shards;
};

static int map_file(const char *path, struct shard *shard, struct engine_error *error)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat info;
    if (file < 0 || fstat(file, &info) != 0) {
        if (file >= 0)
            close(file);
        return engine_fail(error, "cannot open %s", path);
    }
    void *map = MAP_FAILED;
    if (info.st_size >= 8)
        map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (map == MAP_FAILED)
        return engine_fail(error, "%s: cannot be mapped (%jd bytes)", path, (intmax_t)info.st_size);
    shard->map = map;
    shard->map_bytes = (uint64_t)info.st_size;
    return 0;
}

static int parse_header(const char *path, struct shard *shard, struct engine_error *error)
{
    uint64_t n;
    memcpy(&n, shard->map, sizeof n);
    if (n > shard->map_bytes - 8)
        return engine_fail(error, "%s: header of %" PRIu64 " bytes in a file of %" PRIu64, path, n,
                           shard->map_bytes);
    json_error_t where;
    shard->header = json_loadb((const char *)shard->map + 8, n, JSON_REJECT_DUPLICATES, &where);
    if (!json_is_object(shard->header))
        return engine_fail(error, "%s: header is not a JSON object: %s", path, where.text);
    shard->data = shard->map + 8 + n;
    shard->data_bytes = shard->map_bytes - 8 - n;
    return 0;
}

static int add_shard(struct checkpoint *c, const char *folder, const char *file,
                     struct engine_error *error)
{
    for (size_t i = 0; i < c->num_shards; i++)
        if (strcmp(c->shards[i].name, file) == 0)
            return 0;
    struct shard *grown = realloc(c->shards, (c->num_shards + 1) * sizeof *grown);
    if (!grown)
        return engine_fail(error, "out of memory for %zu files", c->num_shards + 1);
    c->shards = grown;
    struct shard *shard = &c->shards[c->num_shards++];
    memset(shard, 0, sizeof *shard);
    if (strlen(file) >= sizeof shard->name || strchr(file, '/'))
        return engine_fail(error, "bad file name in the index: %.100s", file);
    strcpy(shard->name, file);
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    if (map_file(path, shard, error))
        return -1;
    return parse_header(path, shard, error);
}

static int open_shards(struct checkpoint *c, const char *folder, struct engine_error *error)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    if (access(path, F_OK) != 0)
        return add_shard(c, folder, "model.safetensors", error);
    json_error_t where;
    json_t *index = json_load_file(path, 0, &where);
    json_t *files = json_object_get(index, "weight_map");
    if (!json_is_object(files)) {
        json_decref(index);
        return engine_fail(error, "%s: no weight_map: %s", path, where.text);
    }
    const char *tensor;
    json_t *file;
    int status = 0;
    json_object_foreach(files, tensor, file)
    {
        if (!status && !json_is_string(file))
            status = engine_fail(error, "%s: %s names no file", path, tensor);
        if (!status)
            status = add_shard(c, folder, json_string_value(file), error);
    }
    json_decref(index);
    return status;
}

int checkpoint_open(const char *folder, struct checkpoint **out, struct engine_error *error)
{
    struct checkpoint *c = calloc(1, sizeof *c);
    if (!c)
        return engine_fail(error, "out of memory");
    if (open_shards(c, folder, error)) {
        checkpoint_close(c);
        return -1;
    }
    *out = c;
    return 0;
}

int checkpoint_open_file(const char *path, struct checkpoint **out, struct engine_error *error)
{
    struct checkpoint *c = calloc(1, sizeof *c);
    char folder[4096];
    const char *slash = strrchr(path, '/');
    if (!c || strlen(path) >= sizeof folder) {
        free(c);
        return engine_fail(error, "no memory for the path %.100s", path);
    }
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    if (add_shard(c, folder, slash ? slash + 1 : path, error)) {
        checkpoint_close(c);
        return -1;
    }
    *out = c;
    return 0;
}

void checkpoint_close(struct checkpoint *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->num_shards; i++) {
        json_decref(c->shards[i].header);
        if (c->shards[i].map)
            munmap((void *)c->shards[i].map, c->shards[i].map_bytes);
    }
    free(c->shards);
    free(c);
}

static uint32_t dtype_of(const char *name, uint64_t *element_bytes)
{
    static const struct {
        const char *name;
        uint32_t dtype, bytes;
    } known[] = {{"F32", LKV_DTYPE_F32, 4},
                 {"F16", LKV_DTYPE_F16, 2},
                 {"BF16", LKV_DTYPE_BF16, 2},
                 {"F8_E4M3", LKV_DTYPE_F8E4M3, 1}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (name && strcmp(name, known[i].name) == 0) {
            *element_bytes = known[i].bytes;
            return known[i].dtype;
        }
    return 0;
}

static const char *shape_text(uint32_t ndim, const uint64_t *shape, char *text, size_t bytes)
{
    size_t at = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < ndim && at < bytes; i++)
        at += (size_t)snprintf(text + at, bytes - at, i ? ", %" PRIu64 : "%" PRIu64, shape[i]);
    return text;
}

static int read_shape(const char *name, json_t *entry, struct tensor_view *v,
                      struct engine_error *error)
{
    json_t *shape = json_object_get(entry, "shape");
    size_t n = json_array_size(shape);
    if (!json_is_array(shape) || n > SAFETENSORS_MAX_DIMS)
        return engine_fail(error, "tensor %s: %zu dimensions; at most %d are read", name, n,
                           SAFETENSORS_MAX_DIMS);
    v->ndim = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        json_int_t extent = json_integer_value(json_array_get(shape, i));
        if (extent <= 0 || extent > INT32_MAX)
            return engine_fail(error, "tensor %s: extent %zu is %" JSON_INTEGER_FORMAT, name, i,
                               extent);
        v->shape[i] = (uint64_t)extent;
    }
    return 0;
}

static int read_entry(const struct shard *shard, const char *name, json_t *entry,
                      struct tensor_view *v, struct engine_error *error)
{
    if (read_shape(name, entry, v, error))
        return -1;
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    uint64_t bytes = 0;
    v->dtype = dtype_of(dtype, &bytes);
    if (!v->dtype)
        return engine_fail(error, "tensor %s: dtype %s; F32, F16, BF16 or F8_E4M3 can be read",
                           name, dtype ? dtype : "missing");
    for (uint32_t i = 0; i < v->ndim && bytes <= shard->data_bytes; i++)
        bytes *= v->shape[i]; /* an extent is below 2^31: no overflow before the loop ends */
    json_t *offsets = json_object_get(entry, "data_offsets");
    uint64_t begin = (uint64_t)json_integer_value(json_array_get(offsets, 0));
    uint64_t end = (uint64_t)json_integer_value(json_array_get(offsets, 1));
    if (end < begin || end > shard->data_bytes || end - begin != bytes)
        return engine_fail(error,
                           "tensor %s: bytes [%" PRIu64 ", %" PRIu64 ") of %" PRIu64
                           " do not hold its shape",
                           name, begin, end, shard->data_bytes);
    v->data = shard->data + begin;
    v->bytes = bytes;
    return 0;
}

int checkpoint_look(const struct checkpoint *c, const char *name, struct tensor_view *out,
                    struct engine_error *error)
{
    for (size_t i = 0; i < c->num_shards; i++) {
        json_t *entry = json_object_get(c->shards[i].header, name);
        if (entry)
            return read_entry(&c->shards[i], name, entry, out, error);
    }
    return engine_fail(error, "tensor %s is missing from the checkpoint (%zu files)", name,
                       c->num_shards);
}

int checkpoint_find(const struct checkpoint *c, const char *name, uint32_t ndim,
                    const uint64_t *shape, struct tensor_view *out, struct engine_error *error)
{
    if (checkpoint_look(c, name, out, error))
        return -1;
    if (out->ndim == ndim && memcmp(out->shape, shape, ndim * sizeof *shape) == 0)
        return 0;
    char found[96], wanted[96];
    return engine_fail(error, "tensor %s has shape [%s]; the model asks for [%s]", name,
                       shape_text(out->ndim, out->shape, found, sizeof found),
                       shape_text(ndim, shape, wanted, sizeof wanted));
}

static float widen(const uint8_t *p, uint32_t dtype)
{
    if (dtype == LKV_DTYPE_F32) {
        float x;
        memcpy(&x, p, sizeof x);
        return x;
    }
    uint16_t half;
    memcpy(&half, p, sizeof half);
    uint32_t bits = (uint32_t)half << 16;
    if (dtype == LKV_DTYPE_F16) {
        /* shift exponent and fraction into place; the multiply rebiases, subnormals included */
        bits = (uint32_t)(half & 0x7fff) << 13;
        float x;
        if (bits >= 0x0f800000)
            bits += 0x70000000; /* infinities and NaN keep an all-ones exponent */
        memcpy(&x, &bits, sizeof x);
        if (bits < 0x0f800000)
            x *= 0x1p112f;
        return half & 0x8000 ? -x : x;
    }
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

int checkpoint_load(const struct checkpoint *c, const char *name, uint32_t ndim,
                    const uint64_t *shape, float **out, struct engine_error *error)
{
    struct tensor_view v;
    if (checkpoint_find(c, name, ndim, shape, &v, error))
        return -1;
    if (v.dtype == LKV_DTYPE_F8E4M3)
        return engine_fail(error, "tensor %s is F8_E4M3; the engine reads F32, F16 and BF16", name);
    size_t step = v.dtype == LKV_DTYPE_F32 ? 4 : 2, n = v.bytes / step;
    float *data = aligned_alloc(64, (n * sizeof *data + 63) / 64 * 64);
    if (!data)
        return engine_fail(error, "out of memory for tensor %s (%zu values)", name, n);
    for (size_t i = 0; i < n; i++)
        data[i] = widen((const uint8_t *)v.data + i * step, v.dtype);
    *out = data;
    return 0;
}
