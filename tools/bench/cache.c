/* In: a shape. Out: an engine-owned pool whose sequences lie in shuffled blocks, filled by
 * lkv_append with seeded normal latents (CACHE_ROWS different ones, used again and again). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/bench.h"
#include "tools/common/out.h"
#include "tools/common/rng.h"

static uint16_t to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void *bench_alloc(struct bench *b, size_t bytes)
{
    void *p = device_alloc(b->device, bytes);
    if (!p)
        out_die("%s: %s", device_label(b->device), device_error());
    return p;
}

void bench_write(struct bench *b, void *to, const void *from, size_t bytes)
{
    if (device_write(b->device, to, from, bytes))
        out_die("%s: %s", device_label(b->device), device_error());
}

void *bench_upload(struct bench *b, const void *from, size_t bytes)
{
    void *p = bench_alloc(b, bytes);
    bench_write(b, p, from, bytes);
    return p;
}

void *bench_normals(struct bench *b, uint64_t n, uint64_t seed)
{
    uint16_t *host = out_alloc(n, sizeof *host);
    uint64_t state = mix64(seed);
    for (uint64_t i = 0; i < n; i++)
        host[i] = to_bf16((float)rng_normal(&state));
    void *p = bench_upload(b, host, n * sizeof *host);
    free(host);
    return p;
}

lkv_tensor bench_tensor(void *data, uint32_t dtype, uint32_t ndim, int64_t n0, int64_t n1,
                        int64_t n2)
{
    lkv_tensor t = {.data = data, .dtype = dtype, .ndim = ndim, .shape = {n0, n1}};
    t.stride[0] = ndim == 3 ? n1 * n2 : n1;
    t.stride[1] = ndim == 3 ? n2 : 1;
    if (ndim == 3) {
        t.shape[2] = n2;
        t.stride[2] = 1;
    }
    return t;
}

static void shuffle(int32_t *ids, uint64_t n, uint64_t seed)
{
    uint64_t state = mix64(seed);
    for (uint64_t i = 0; i < n; i++)
        ids[i] = (int32_t)i;
    for (uint64_t i = n; i > 1; i--) {
        const uint64_t j = rng_below(&state, i);
        const int32_t id = ids[i - 1];
        ids[i - 1] = ids[j];
        ids[j] = id;
    }
}

static void open_pool(struct bench *b, const struct bench_shape *s, struct bench_cache *c)
{
    const lkv_pool_desc desc = {.size = sizeof desc,
                                .format = s->format,
                                .owner = LKV_OWNER_ENGINE,
                                .tokens_per_block = b->options->block_tokens,
                                .latent_dim = b->model.latent_dim,
                                .rope_dim = b->model.rope_dim,
                                .rope_style = b->model.rope_style,
                                .num_layers = 1,
                                .num_blocks = s->batch * c->width};
    c->block.size = sizeof c->block;
    out_must(lkv_block_query(&desc, &c->block), "the pool");
    out_must(lkv_pool_create(b->ctx, &desc, &c->pool), "the pool");
}

static void make_tables(struct bench *b, const struct bench_shape *s, struct bench_cache *c)
{
    const uint32_t block = b->options->block_tokens;
    const uint64_t num = s->batch * c->width;
    int32_t *table = out_alloc(num, sizeof *table);
    int32_t *lens = out_alloc(s->batch, sizeof *lens);
    int32_t *indptr = out_alloc(s->batch + 1, sizeof *indptr);
    c->slots = out_alloc(s->batch * s->context, sizeof *c->slots);
    shuffle(table, num, b->options->seed);
    for (uint64_t i = 0; i < s->batch; i++) {
        lens[i] = (int32_t)s->context;
        indptr[i + 1] = (int32_t)((i + 1) * s->q_len);
        for (uint64_t t = 0; t < s->context; t++)
            c->slots[i * s->context + t] =
                (int64_t)table[i * c->width + t / block] * block + (int64_t)(t % block);
    }
    c->block_table = bench_upload(b, table, num * sizeof *table);
    c->seq_lens = bench_upload(b, lens, s->batch * sizeof *lens);
    c->q_indptr = bench_upload(b, indptr, (s->batch + 1) * sizeof *indptr);
    free(table);
    free(lens);
    free(indptr);
}

static void fill_pool(struct bench *b, const struct bench_shape *s, struct bench_cache *c)
{
    const uint64_t total = s->batch * s->context;
    int64_t *slots = bench_alloc(b, CACHE_ROWS * sizeof *slots);
    for (uint64_t at = 0; at < total; at += CACHE_ROWS) {
        const uint64_t n = total - at < CACHE_ROWS ? total - at : CACHE_ROWS;
        const lkv_tensor latent =
            bench_tensor(c->latent, LKV_DTYPE_BF16, 2, (int64_t)n, b->model.latent_dim, 0);
        const lkv_tensor rope =
            bench_tensor(c->rope, LKV_DTYPE_BF16, 2, (int64_t)n, b->model.rope_dim, 0);
        const lkv_append_args args = {.size = sizeof args,
                                      .latent = &latent,
                                      .rope = b->model.rope_dim ? &rope : NULL,
                                      .slots = slots};
        bench_write(b, slots, c->slots + at, n * sizeof *slots);
        out_must(lkv_append(c->pool, &args, device_stream(b->device)), "append");
    }
    lkv_faults faults = {.size = sizeof faults};
    out_must(lkv_pool_faults(c->pool, 1, &faults), "faults"); /* also waits for the device */
    device_free(b->device, slots);
}

void cache_open(struct bench *b, const struct bench_shape *shape, int fill, struct bench_cache *c)
{
    *c = (struct bench_cache){0};
    c->width =
        (uint32_t)((shape->context + b->options->block_tokens - 1) / b->options->block_tokens);
    open_pool(b, shape, c);
    make_tables(b, shape, c);
    c->latent = bench_normals(b, (uint64_t)CACHE_ROWS * b->model.latent_dim, b->options->seed + 1);
    c->rope = bench_normals(b, (uint64_t)CACHE_ROWS * b->model.rope_dim, b->options->seed + 2);
    if (fill)
        fill_pool(b, shape, c);
}

void cache_close(struct bench *b, struct bench_cache *c)
{
    lkv_pool_release(c->pool);
    device_free(b->device, c->block_table);
    device_free(b->device, c->seq_lens);
    device_free(b->device, c->q_indptr);
    device_free(b->device, c->latent);
    device_free(b->device, c->rope);
    free(c->slots);
}
