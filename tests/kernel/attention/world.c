/* See world.h. */
#include "tests/kernel/attention/world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void must(lkv_status status, const char *what)
{
    if (status == LKV_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, lkv_status_name(status), lkv_last_error());
    exit(1);
}

const char *isa_name(uint32_t isa)
{
    return isa == LKV_ISA_SCALAR ? "scalar" : isa == LKV_ISA_AVX2 ? "avx2" : "avx512";
}

const char *format_name(uint32_t format)
{
    static const char *names[] = {"?", "bf16", "fp8", "int8", "nvfp4"};
    return names[format];
}

uint32_t isas_present(uint32_t isas[3])
{
    uint32_t n = 0;
    for (uint32_t isa = LKV_ISA_SCALAR; isa <= LKV_ISA_AVX512; isa++) {
        lkv_context_desc desc = {
            .size = sizeof desc, .device = LKV_DEVICE_CPU, .num_threads = 1, .isa = isa};
        lkv_context_info info = {.size = sizeof info};
        lkv_context *ctx;
        must(lkv_context_create(&desc, &ctx), "context");
        must(lkv_context_query(ctx, &info), "query");
        lkv_context_release(ctx);
        if (info.isa == isa)
            isas[n++] = isa;
        else
            fprintf(stderr, "skipped: %s, this processor does not have it\n", isa_name(isa));
    }
    return n;
}

/* ---- numbers */

static uint32_t bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static uint16_t to_bf16(float x)
{
    uint32_t u = bits(x);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

/* finite values inside fp16's normal range, and what rounds to zero */
static uint16_t to_f16(float x)
{
    uint32_t u = bits(x), sign = u >> 16 & 0x8000;
    float mag = fabsf(x);
    if (mag < 0x1p-14f)
        return (uint16_t)(sign | (uint32_t)lrintf(mag * 0x1p24f));
    u = bits(mag);
    u += 0xFFF + (u >> 13 & 1);
    return (uint16_t)(sign | ((u >> 13) - (112u << 10)));
}

static float from_bf16(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static float from_f16(uint16_t h)
{
    int e = h >> 10 & 31, m = h & 1023;
    float mag = e == 31 ? (m ? NAN : INFINITY)
                : e     ? ldexpf((float)(1024 + m), e - 25)
                        : ldexpf((float)m, -24);
    return h & 0x8000 ? -mag : mag;
}

void put_values(const float *from, uint64_t n, uint32_t dtype, void *to)
{
    uint16_t *half = to;
    if (dtype == LKV_DTYPE_F32)
        memcpy(to, from, n * 4);
    else if (dtype == LKV_DTYPE_BF16)
        for (uint64_t i = 0; i < n; i++)
            half[i] = to_bf16(from[i]);
    else
        for (uint64_t i = 0; i < n; i++)
            half[i] = to_f16(from[i]);
}

void get_values(const void *from, uint64_t n, uint32_t dtype, float *to)
{
    const uint16_t *half = from;
    if (dtype == LKV_DTYPE_F32)
        memcpy(to, from, n * 4);
    else if (dtype == LKV_DTYPE_BF16)
        for (uint64_t i = 0; i < n; i++)
            to[i] = from_bf16(half[i]);
    else
        for (uint64_t i = 0; i < n; i++)
            to[i] = from_f16(half[i]);
}

/* Long rows repeat a pool of 2^16 draws at odd offsets: making them must not be the test's cost. */
float *random_rows(uint64_t seed, uint64_t n, double sigma, uint32_t dtype)
{
    enum { DRAWS = 1 << 16 };
    struct rng r = rng_seed(seed);
    float *x = malloc((n + 1) * sizeof *x);
    uint64_t drawn = n < DRAWS ? n : DRAWS;
    rng_fill_normal(&r, x, drawn, sigma);
    for (uint64_t i = drawn, m; i < n; i += m) { /* runs from random places */
        uint64_t at = rng_below(&r, DRAWS - 509);
        m = n - i < 509 ? n - i : 509;
        memcpy(x + i, x + at, m * sizeof *x);
    }
    uint16_t half[1024];
    for (uint64_t i = 0, m; i < n && dtype != LKV_DTYPE_F32; i += m) {
        m = n - i < 1024 ? n - i : 1024;
        put_values(x + i, m, dtype, half);
        get_values(half, m, dtype, x + i);
    }
    return x;
}

/* ---- the world */

static lkv_tensor rows_of(void *data, uint32_t dtype, uint64_t rows, uint32_t dim)
{
    return (lkv_tensor){
        .data = data, .dtype = dtype, .ndim = 2, .shape = {(int64_t)rows, dim}, .stride = {dim, 1}};
}

/* 64-byte aligned, filled with NaN. */
static void *poisoned(size_t bytes)
{
    size_t room = (bytes + 255) / 256 * 256 + 256;
    void *p = aligned_alloc(256, room);
    memset(p, 0xFF, room);
    return p;
}

static void open_pool(struct world *w)
{
    const struct world_shape *s = &w->shape;
    lkv_context_desc ctx = {
        .size = sizeof ctx, .device = LKV_DEVICE_CPU, .num_threads = s->threads, .isa = s->isa};
    lkv_pool_desc pool = {.size = sizeof pool,
                          .kind = LKV_KIND_MLA,
                          .format = s->format,
                          .encode_flags = s->encode_flags,
                          .owner = LKV_OWNER_ENGINE,
                          .tokens_per_block = s->block,
                          .latent_dim = s->latent,
                          .rope_dim = s->rope,
                          .num_layers = 1,
                          .num_blocks = w->num_blocks};
    lkv_pool_layout layout = {.size = sizeof layout};
    must(lkv_context_create(&ctx, &w->ctx), "context");
    must(lkv_pool_create(w->ctx, &pool, &w->pool), "pool");
    must(lkv_pool_layer(w->pool, 0, &layout), "layer");
    memset(layout.base, 0xFF, layout.block_stride_bytes * w->num_blocks); /* NaN in unused slots */
}

static void fill_table(struct world *w, struct rng *r)
{
    int32_t *ids = malloc(w->num_blocks * sizeof *ids);
    uint64_t next = 0;
    for (uint64_t i = 0; i < w->num_blocks; i++)
        ids[i] = (int32_t)i;
    for (uint64_t i = w->num_blocks; i > 1; i--) {
        uint64_t j = rng_below(r, i);
        int32_t id = ids[i - 1];
        ids[i - 1] = ids[j];
        ids[j] = id;
    }
    for (uint32_t s = 0; s < w->shape.num_seqs; s++)
        for (uint32_t b = 0; b < w->width; b++)
            w->table[s * w->width + b] =
                b * w->shape.block < w->shape.tokens[s] ? ids[next++] : (int32_t)0x7F00FF00;
    free(ids);
}

static void append_and_gather(struct world *w, uint32_t s)
{
    const struct world_shape *shape = &w->shape;
    uint64_t n = shape->tokens[s], L = shape->latent, R = shape->rope;
    int64_t *slots = malloc((n + 1) * sizeof *slots);
    float *latent = random_rows(shape->seed * 1000 + s, n * L, 1, LKV_DTYPE_F32);
    float *rope = random_rows(shape->seed * 1000 + 500 + s, n * R, 1, LKV_DTYPE_F32);
    if (shape->given_latent) {
        memcpy(latent, shape->given_latent, n * L * sizeof *latent);
        memcpy(rope, shape->given_rope, n * R * sizeof *rope);
    }
    for (uint64_t t = 0; t < n; t++)
        slots[t] = (int64_t)w->table[s * w->width + t / shape->block] * shape->block +
                   (int64_t)(t % shape->block);
    lkv_tensor a = rows_of(latent, LKV_DTYPE_F32, n, (uint32_t)L);
    lkv_tensor b = rows_of(rope, LKV_DTYPE_F32, n, (uint32_t)R);
    lkv_append_args append = {.size = sizeof append,
                              .latent = &a,
                              .rope = R ? &b : NULL,
                              .slots = slots,
                              .flags = LKV_APPEND_CHECKED};
    lkv_gather_args gather = {.size = sizeof gather,
                              .slots = slots,
                              .latent = &a,
                              .rope = R ? &b : NULL,
                              .flags = LKV_GATHER_STORED_BASIS};
    if (n) {
        must(lkv_append(w->pool, &append, NULL), "append");
        must(lkv_gather(w->pool, &gather, NULL), "gather");
    }
    free(slots);
    w->latents[s] = latent;
    w->ropes[s] = rope;
    w->rows[s] = malloc((n + 1) * (L + R) * sizeof(double));
    w->context[s] = ref_absorbed(latent, rope, n, (uint32_t)L, (uint32_t)R, w->rows[s]);
}

void world_open(struct world *w, const struct world_shape *shape)
{
    struct rng r = rng_seed(shape->seed);
    uint32_t n = shape->num_seqs;
    *w = (struct world){.shape = *shape, .num_blocks = 3};
    for (uint32_t s = 0; s < n; s++) {
        uint32_t blocks = (shape->tokens[s] + shape->block - 1) / shape->block;
        w->num_blocks += blocks;
        w->width = blocks + 2 > w->width ? blocks + 2 : w->width;
    }
    w->table = malloc((size_t)n * w->width * sizeof *w->table);
    w->context = calloc(n, sizeof *w->context);
    w->latents = calloc(n, sizeof *w->latents);
    w->ropes = calloc(n, sizeof *w->ropes);
    w->rows = calloc(n, sizeof *w->rows);
    open_pool(w);
    fill_table(w, &r);
    for (uint32_t s = 0; s < n; s++)
        append_and_gather(w, s);
}

void world_close(struct world *w)
{
    for (uint32_t s = 0; s < w->shape.num_seqs; s++) {
        free(w->latents[s]);
        free(w->ropes[s]);
        free(w->rows[s]);
    }
    free(w->latents);
    free(w->ropes);
    free(w->rows);
    free(w->context);
    free(w->table);
    lkv_pool_release(w->pool);
    lkv_context_release(w->ctx);
}

/* ---- one attend */

static lkv_tensor heads_of(void *data, uint32_t dtype, uint64_t T, uint32_t H, uint32_t D)
{
    return (lkv_tensor){.data = data,
                        .dtype = dtype,
                        .ndim = 3,
                        .shape = {(int64_t)T, H, D},
                        .stride = {(int64_t)H * D, D, 1}};
}

static void *converted(const float *from, uint64_t n, uint32_t dtype)
{
    void *to = poisoned(n * 4);
    put_values(from, n, dtype, to);
    return to;
}

static lkv_plan *plan_of(const struct world *w, const struct run *run, uint64_t T)
{
    uint32_t longest = 1, most = 1;
    lkv_plan *plan;
    for (uint32_t i = 0; i < run->num_seqs; i++) {
        uint32_t q = run->q_indptr ? (uint32_t)(run->q_indptr[i + 1] - run->q_indptr[i]) : 1;
        most = q > most ? q : most;
        longest = run->seq_lens[i] > (int32_t)longest ? (uint32_t)run->seq_lens[i] : longest;
    }
    lkv_plan_desc desc = {.size = sizeof desc,
                          .pool = w->pool,
                          .num_heads = run->heads,
                          .max_seqs = run->num_seqs,
                          .max_tokens = T ? (uint32_t)T : 1,
                          .max_q_len = most,
                          .max_seq_len = longest,
                          .max_blocks_per_seq = w->width,
                          .q_dtype = run->q_dtype,
                          .out_dtype = run->out_dtype,
                          .q_form = run->q_form,
                          .out_form = run->out_form,
                          .absorb_threshold = run->threshold,
                          .flags = run->plan_flags,
                          .nope_dim = run->nope,
                          .v_dim = run->value};
    must(lkv_plan_create(w->ctx, &desc, &plan), "plan");
    return plan;
}

static int32_t *table_of(const struct world *w, const struct run *run)
{
    uint64_t bytes = w->width * sizeof(int32_t);
    int32_t *table = malloc(run->num_seqs * bytes);
    for (uint32_t i = 0; i < run->num_seqs; i++) {
        uint32_t seq = run->seqs ? run->seqs[i] : i;
        memcpy(table + (uint64_t)i * w->width,
               run->table ? run->table + (uint64_t)i * w->width
                          : w->table + (uint64_t)seq * w->width,
               bytes);
    }
    return table;
}

static lkv_status attend(const struct world *w, const struct run *run, uint64_t T,
                         const lkv_batch *batch, struct output *out)
{
    uint32_t qd = run->q_form == LKV_Q_HEAD ? run->nope : w->shape.latent, H = run->heads;
    uint64_t rows = T * H, values = rows * out->dim;
    size_t bytes;
    lkv_plan *plan = plan_of(w, run, T);
    must(lkv_plan_workspace(plan, &bytes), "workspace");
    void *workspace = poisoned(bytes), *raw = poisoned(values * 4);
    void *q = converted(run->q, rows * qd, run->q_dtype);
    void *q_rope = converted(run->q_rope, rows * w->shape.rope, run->q_dtype);
    lkv_tensor tq = heads_of(q, run->q_dtype, T, H, qd);
    lkv_tensor tr = heads_of(q_rope, run->q_dtype, T, H, w->shape.rope);
    lkv_tensor to = heads_of(raw, run->out_dtype, T, H, out->dim);
    lkv_tensor lse = rows_of(out->lse, LKV_DTYPE_F32, T, H);
    lkv_tensor entropy = rows_of(out->entropy, LKV_DTYPE_F32, T, H);
    lkv_tensor bias = rows_of((void *)run->bias, LKV_DTYPE_F32, run->num_seqs, run->bias_width);
    lkv_attend_args args = {.size = sizeof args,
                            .q = &tq,
                            .q_rope = w->shape.rope ? &tr : NULL,
                            .out = &to,
                            .lse = &lse,
                            .entropy = &entropy,
                            .bias = run->bias ? &bias : NULL,
                            .weights = run->weights,
                            .workspace = workspace,
                            .workspace_bytes = bytes,
                            .scale = run->scale,
                            .flags = run->attend_flags};
    must(lkv_plan_update(plan, batch, workspace, bytes, NULL), "update");
    lkv_status status = lkv_attend(plan, w->pool, batch, &args, NULL);
    get_values(raw, values, run->out_dtype, out->out);
    lkv_plan_release(plan);
    free(workspace), free(raw), free(q), free(q_rope);
    return status;
}

lkv_status world_attend(const struct world *w, const struct run *run, struct output *out)
{
    uint64_t T = run->q_indptr ? (uint64_t)run->q_indptr[run->num_seqs] : run->num_seqs;
    int32_t *table = table_of(w, run);
    lkv_batch batch = {.size = sizeof batch,
                       .num_seqs = run->num_seqs,
                       .max_blocks_per_seq = w->width,
                       .block_table = table,
                       .seq_lens = run->seq_lens,
                       .q_indptr = run->q_indptr,
                       .num_tokens = T};
    out->dim = run->out_form == LKV_OUT_HEAD ? run->value : w->shape.latent;
    out->out = poisoned(T * run->heads * out->dim * 4);
    out->lse = poisoned(T * run->heads * 4);
    out->entropy = poisoned(T * run->heads * 4);
    lkv_status status = attend(w, run, T, &batch, out);
    free(table);
    return status;
}

void output_free(struct output *out)
{
    free(out->out);
    free(out->lse);
    free(out->entropy);
}
