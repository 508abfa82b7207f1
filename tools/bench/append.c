/* lkv bench append: quantising tokens into their records. --batch is the number of tokens a call;
 * bytes are what must move: the bf16 latent and rope in, the record out. */
#include "tools/bench/bench.h"

#include "tools/common/out.h"

struct append_run {
    struct bench *b;
    struct bench_cache cache;
    int64_t *slots; /* device */
    lkv_tensor latent, rope;
    lkv_append_args args;
};

static void run_append(void *arg)
{
    struct append_run *r = arg;
    out_must(lkv_append(r->cache.pool, &r->args, device_stream(r->b->device)), "append");
}

static void bench_shape_append(struct bench *b, struct bench_shape shape)
{
    struct append_run r = {.b = b};
    struct series us = {0};
    const uint64_t tokens = shape.batch, dim = b->model.latent_dim, rope = b->model.rope_dim;
    const struct bench_shape one = {
        .format = shape.format, .heads = 1, .q_len = 1, .batch = 1, .context = tokens};
    cache_open(b, &one, 0, &r.cache);
    void *latent = bench_normals(b, tokens * dim, b->options->seed);
    void *ropes = bench_normals(b, tokens * rope, b->options->seed + 1);
    r.slots = bench_upload(b, r.cache.slots, tokens * sizeof *r.slots);
    r.latent = bench_tensor(latent, LKV_DTYPE_BF16, 2, (int64_t)tokens, (int64_t)dim, 0);
    r.rope = bench_tensor(ropes, LKV_DTYPE_BF16, 2, (int64_t)tokens, (int64_t)rope, 0);
    r.args = (lkv_append_args){.size = sizeof r.args,
                               .latent = &r.latent,
                               .rope = rope ? &r.rope : NULL,
                               .slots = r.slots};
    bench_measure(b, run_append, &r, &us);
    const uint64_t bytes = tokens * (2 * (dim + rope) + r.cache.block.record_bytes);
    bench_add_row(b, "append", &shape, &us, (double)bytes, 0);
    series_free(&us);
    device_free(b->device, latent);
    device_free(b->device, ropes);
    device_free(b->device, r.slots);
    cache_close(b, &r.cache);
}

int bench_append(int argc, char **argv)
{
    struct bench_options o = {.device = LKV_DEVICE_CPU,
                              .formats = {1, 2, 3, 4},
                              .num_formats = 4,
                              .batches = {{1, 64, 4096}, 3},
                              .repeats = 21,
                              .seconds = 5,
                              .block_tokens = 64,
                              .seed = 1,
                              .preset = "v3"};
    struct bench b;
    bench_parse(argc, argv,
                "Quantises tokens into records; --batch is tokens a call; --heads, --q-len and "
                "--context have no meaning here.",
                &o);
    bench_open(&b, &o);
    for (size_t f = 0; f < o.num_formats; f++)
        for (size_t n = 0; n < o.batches.count; n++)
            bench_shape_append(
                &b, (struct bench_shape){.format = o.formats[f], .batch = o.batches.items[n]});
    bench_close(&b);
    return EXIT_DONE;
}
