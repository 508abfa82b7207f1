/* lkv bench decode: attention over a filled cache, one layer, bf16 queries and output, latent in
 * and out. Bytes are the records that must be read once; operations are 2 (2 L + R) a key, head and
 * row.
 */
#include "tools/bench/bench.h"

#include "tools/common/out.h"
#include "tools/common/progress.h"

struct decode_run {
    struct bench *b;
    struct bench_cache cache;
    lkv_plan *plan;
    lkv_batch batch;
    lkv_tensor q, q_rope, out;
    lkv_attend_args args;
};

static void run_decode(void *arg)
{
    struct decode_run *r = arg;
    out_must(lkv_attend(r->plan, r->cache.pool, &r->batch, &r->args, device_stream(r->b->device)),
             "attend");
}

static void make_plan(struct decode_run *r, const struct bench_shape *s)
{
    struct bench *b = r->b;
    const lkv_plan_desc desc = {.size = sizeof desc,
                                .pool = r->cache.pool,
                                .num_heads = (uint32_t)s->heads,
                                .max_seqs = (uint32_t)s->batch,
                                .max_tokens = (uint32_t)(s->batch * s->q_len),
                                .max_q_len = (uint32_t)s->q_len,
                                .max_seq_len = (uint32_t)s->context,
                                .max_blocks_per_seq = r->cache.width,
                                .q_dtype = LKV_DTYPE_BF16,
                                .out_dtype = LKV_DTYPE_BF16,
                                .q_form = LKV_Q_LATENT,
                                .out_form = LKV_OUT_LATENT};
    b->kernel[0] = 0;
    out_must(lkv_plan_create(b->ctx, &desc, &r->plan), "the plan");
    out_must(lkv_plan_workspace(r->plan, &r->args.workspace_bytes), "the plan's workspace");
    r->args.workspace = bench_alloc(b, r->args.workspace_bytes);
}

static void make_inputs(struct decode_run *r, const struct bench_shape *s)
{
    struct bench *b = r->b;
    const int64_t rows = (int64_t)(s->batch * s->q_len), heads = (int64_t)s->heads;
    const int64_t dim = b->model.latent_dim, rope = b->model.rope_dim;
    void *q = bench_normals(b, (uint64_t)(rows * heads * dim), b->options->seed + 3);
    void *q_rope = bench_normals(b, (uint64_t)(rows * heads * rope), b->options->seed + 4);
    void *out = bench_alloc(b, (size_t)(rows * heads * dim) * 2);
    r->q = bench_tensor(q, LKV_DTYPE_BF16, 3, rows, heads, dim);
    r->q_rope = bench_tensor(q_rope, LKV_DTYPE_BF16, 3, rows, heads, rope);
    r->out = bench_tensor(out, LKV_DTYPE_BF16, 3, rows, heads, dim);
    r->args.size = sizeof r->args;
    r->args.q = &r->q;
    r->args.q_rope = rope ? &r->q_rope : NULL;
    r->args.out = &r->out;
    r->args.scale = b->model.softmax_scale;
    r->batch = (lkv_batch){.size = sizeof r->batch,
                           .num_seqs = (uint32_t)s->batch,
                           .max_blocks_per_seq = r->cache.width,
                           .block_table = r->cache.block_table,
                           .seq_lens = r->cache.seq_lens,
                           .q_indptr = r->cache.q_indptr,
                           .num_tokens = (uint64_t)rows};
}

static void close_run(struct decode_run *r)
{
    struct device *d = r->b->device;
    device_free(d, r->q.data);
    device_free(d, r->q_rope.data);
    device_free(d, r->out.data);
    device_free(d, r->args.workspace);
    lkv_plan_release(r->plan);
    cache_close(r->b, &r->cache);
}

static void bench_shape_decode(struct bench *b, const struct bench_shape *s)
{
    struct decode_run r = {.b = b};
    struct series us = {0};
    cache_open(b, s, 1, &r.cache);
    make_plan(&r, s);
    make_inputs(&r, s);
    out_must(lkv_plan_update(r.plan, &r.batch, r.args.workspace, r.args.workspace_bytes,
                             device_stream(b->device)),
             "the plan");
    bench_measure(b, run_decode, &r, &us);
    const double keys = (double)(s->batch * s->context);
    const double work = 2.0 * (2 * b->model.latent_dim + b->model.rope_dim);
    bench_add_row(b, b->kernel, s, &us, keys * (double)r.cache.block.record_bytes,
                  keys * work * (double)(s->heads * s->q_len));
    series_free(&us);
    close_run(&r);
}

static void bench_lists(struct bench *b, uint32_t format, struct progress *bar, uint64_t *done)
{
    const struct bench_options *o = b->options;
    for (size_t h = 0; h < o->heads.count; h++)
        for (size_t q = 0; q < o->q_lens.count; q++)
            for (size_t n = 0; n < o->batches.count; n++)
                for (size_t c = 0; c < o->contexts.count; c++) {
                    const struct bench_shape s = {format, o->heads.items[h], o->q_lens.items[q],
                                                  o->batches.items[n], o->contexts.items[c]};
                    if (s.q_len <= s.context)
                        bench_shape_decode(b, &s);
                    progress_show(bar, ++*done);
                }
}

static void bench_whole_table(struct bench *b, uint32_t format, struct progress *bar,
                              uint64_t *done)
{
    for (size_t i = 0; i < bench_table_rows; i++) {
        const struct bench_table_row *r = &bench_table[i];
        const struct bench_shape s = {format, r->heads, r->q_len, r->batch, r->context};
        bench_shape_decode(b, &s);
        bench_add_peer(b, r);
        progress_show(bar, ++*done);
    }
}

/* Lists that the command line left out. */
static void fill_lists(struct bench_options *o)
{
    const struct number_list heads = {{16, 128}, 2}, q_lens = {{1}, 1}, batches = {{1, 8}, 2},
                             contexts = {{4096}, 1};
    o->heads = o->heads.count ? o->heads : heads;
    o->q_lens = o->q_lens.count ? o->q_lens : q_lens;
    o->batches = o->batches.count ? o->batches : batches;
    o->contexts = o->contexts.count ? o->contexts : contexts;
}

int bench_decode(int argc, char **argv)
{
    struct bench_options o = {.device = LKV_DEVICE_CPU,
                              .formats = {1, 2, 3, 4},
                              .num_formats = 4,
                              .repeats = 21,
                              .seconds = 5,
                              .block_tokens = 64,
                              .seed = 1,
                              .preset = "v3"};
    struct bench b;
    struct progress bar;
    uint64_t done = 0;
    bench_parse(
        argc, argv,
        "Attention over a filled cache of one layer. On a GPU and without --heads, --q-len, "
        "--batch and --context: the ten shapes of docs/kernels.md, each beside the best "
        "bf16 peer's time (quoted, not measured).",
        &o);
    const int whole = o.device != LKV_DEVICE_CPU && !o.heads.count && !o.q_lens.count &&
                      !o.batches.count && !o.contexts.count;
    fill_lists(&o);
    bench_open(&b, &o);
    progress_start(&bar, "decode",
                   o.num_formats * (whole ? bench_table_rows
                                          : o.heads.count * o.q_lens.count * o.batches.count *
                                                o.contexts.count));
    for (size_t f = 0; f < o.num_formats; f++) {
        if (whole)
            bench_whole_table(&b, o.formats[f], &bar, &done);
        else
            bench_lists(&b, o.formats[f], &bar, &done);
    }
    progress_end(&bar);
    bench_close(&b);
    return EXIT_DONE;
}
