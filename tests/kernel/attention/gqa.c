/* See gqa.h. */
#include "tests/kernel/attention/gqa.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/support/compare.h"

lkv_tensor gqa_tensor(void *data, uint32_t dtype, uint64_t tokens, uint32_t heads, uint32_t dim)
{
    return (lkv_tensor){.data = data,
                        .dtype = dtype,
                        .ndim = 3,
                        .shape = {(int64_t)tokens, heads, dim},
                        .stride = {(int64_t)heads * dim, dim, 1}};
}

static void open_pool(struct gqa *w)
{
    const struct gqa_shape *s = &w->shape;
    lkv_context_desc ctx = {
        .size = sizeof ctx, .device = LKV_DEVICE_CPU, .num_threads = s->threads, .isa = s->isa};
    lkv_pool_desc pool = {.size = sizeof pool,
                          .kind = LKV_KIND_LATENT_GQA,
                          .format = s->format,
                          .encode_flags = s->encode_flags,
                          .owner = LKV_OWNER_ENGINE,
                          .tokens_per_block = s->block,
                          .latent_dim = s->key_latent,
                          .value_latent_dim = s->value_latent,
                          .num_kv_heads = s->kv_heads,
                          .num_layers = 1,
                          .num_blocks = w->num_blocks};
    lkv_pool_layout layout = {.size = sizeof layout};
    must(lkv_context_create(&ctx, &w->ctx), "context");
    must(lkv_pool_create(w->ctx, &pool, &w->pool), "pool");
    must(lkv_pool_layer(w->pool, 0, &layout), "layer");
    memset(layout.base, 0xFF, layout.block_stride_bytes * w->num_blocks); /* NaN in unused slots */
}

/* The matrices of the two sides need not belong to each other: each is checked by itself. */
static void open_weights(struct gqa *w)
{
    const struct gqa_shape *s = &w->shape;
    const uint32_t dims[2] = {s->key_dim, s->value_dim};
    const uint32_t latents[2] = {s->key_latent, s->value_latent};
    lkv_tensor t[4];
    for (uint32_t i = 0; i < 4; i++) {
        uint64_t n = (uint64_t)s->kv_heads * dims[i / 2] * latents[i / 2];
        w->matrices[i] = random_rows(s->seed * 10 + i, n, 1 / sqrt(dims[i / 2]), LKV_DTYPE_F32);
        t[i] = gqa_tensor(w->matrices[i], LKV_DTYPE_F32, s->kv_heads, dims[i / 2], latents[i / 2]);
    }
    lkv_model_desc model = {.size = sizeof model,
                            .num_layers = 1,
                            .num_heads = s->kv_heads * s->group,
                            .latent_dim = s->key_latent,
                            .nope_dim = s->key_dim,
                            .v_dim = s->value_dim};
    lkv_weights_desc desc = {.size = sizeof desc,
                             .key_down = &t[0],
                             .key_up = &t[1],
                             .value_down = &t[2],
                             .value_up = &t[3]};
    if (s->encode_flags & LKV_ENCODE_ROTATE)
        desc.flags = LKV_WEIGHTS_ROTATE;
    must(lkv_weights_create(w->ctx, &model, &desc, &w->weights), "weights");
    w->projector = (struct ref_projector){.key_dim = s->key_dim,
                                          .value_dim = s->value_dim,
                                          .key_latent = s->key_latent,
                                          .value_latent = s->value_latent,
                                          .key_down = w->matrices[0],
                                          .key_up = w->matrices[1],
                                          .value_down = w->matrices[2],
                                          .value_up = w->matrices[3]};
}

/* Blocks in an order that is not theirs: the id of entry n is n * 5 + 2 modulo a count prime to 5.
 */
static void fill_table(struct gqa *w)
{
    uint64_t next = 0;
    for (uint32_t s = 0; s < w->shape.num_seqs; s++)
        for (uint32_t b = 0; b < w->width; b++)
            w->table[s * w->width + b] = b * w->shape.block < w->shape.tokens[s]
                                             ? (int32_t)((next++ * 5 + 2) % w->num_blocks)
                                             : (int32_t)0x7F00FF00;
}

int64_t gqa_slot(const struct gqa *w, uint32_t seq, uint64_t token)
{
    return (int64_t)w->table[seq * w->width + token / w->shape.block] * w->shape.block +
           (int64_t)(token % w->shape.block);
}

static void append_and_gather(struct gqa *w, uint32_t seq)
{
    const struct gqa_shape *s = &w->shape;
    const uint64_t n = s->tokens[seq], rows = n * s->kv_heads;
    int64_t *slots = malloc((n + 1) * sizeof *slots);
    w->keys[seq] = random_rows(s->seed * 100 + seq, rows * s->key_dim, 1, LKV_DTYPE_F32);
    w->values[seq] = random_rows(s->seed * 100 + 50 + seq, rows * s->value_dim, 1, LKV_DTYPE_F32);
    w->key_latents[seq] = malloc((rows * s->key_latent + 1) * sizeof(float));
    w->value_latents[seq] = malloc((rows * s->value_latent + 1) * sizeof(float));
    for (uint64_t t = 0; t < n; t++)
        slots[t] = gqa_slot(w, seq, t);
    lkv_tensor key = gqa_tensor(w->keys[seq], LKV_DTYPE_F32, n, s->kv_heads, s->key_dim);
    lkv_tensor value = gqa_tensor(w->values[seq], LKV_DTYPE_F32, n, s->kv_heads, s->value_dim);
    lkv_tensor to_key =
        gqa_tensor(w->key_latents[seq], LKV_DTYPE_F32, n, s->kv_heads, s->key_latent);
    lkv_tensor to_value =
        gqa_tensor(w->value_latents[seq], LKV_DTYPE_F32, n, s->kv_heads, s->value_latent);
    lkv_append_args append = {.size = sizeof append,
                              .latent = &key,
                              .value = &value,
                              .weights = w->weights,
                              .slots = slots,
                              .flags = LKV_APPEND_CHECKED};
    lkv_gather_args gather = {
        .size = sizeof gather, .latent = &to_key, .value = &to_value, .slots = slots};
    must(lkv_append(w->pool, &append, NULL), "append");
    must(lkv_gather(w->pool, &gather, NULL), "gather");
    free(slots);
}

void gqa_open(struct gqa *w, const struct gqa_shape *shape)
{
    *w = (struct gqa){.shape = *shape, .num_blocks = 2};
    for (uint32_t s = 0; s < shape->num_seqs; s++) {
        uint32_t blocks = (shape->tokens[s] + shape->block - 1) / shape->block;
        w->num_blocks += blocks;
        w->width = blocks + 2 > w->width ? blocks + 2 : w->width;
    }
    w->num_blocks += w->num_blocks % 5 == 0;
    w->table = malloc((size_t)shape->num_seqs * w->width * sizeof *w->table);
    open_pool(w);
    open_weights(w);
    fill_table(w);
    for (uint32_t s = 0; s < shape->num_seqs; s++)
        append_and_gather(w, s);
}

void gqa_close(struct gqa *w)
{
    for (uint32_t s = 0; s < w->shape.num_seqs; s++) {
        free(w->keys[s]);
        free(w->values[s]);
        free(w->key_latents[s]);
        free(w->value_latents[s]);
    }
    for (uint32_t i = 0; i < 4; i++)
        free(w->matrices[i]);
    free(w->table);
    lkv_weights_release(w->weights);
    lkv_pool_release(w->pool);
    lkv_context_release(w->ctx);
}

/* ---- one attend */

static uint32_t q_len_of(const struct gqa_run *run, uint32_t i)
{
    return (uint32_t)(run->q_indptr[i + 1] - run->q_indptr[i]);
}

static lkv_plan *plan_of(const struct gqa *w, const struct gqa_run *run)
{
    const struct gqa_shape *s = &w->shape;
    const uint32_t rows = (uint32_t)run->q_indptr[run->num_seqs];
    lkv_plan_desc desc = {.size = sizeof desc,
                          .pool = w->pool,
                          .num_heads = s->kv_heads * s->group,
                          .max_seqs = run->num_seqs,
                          .max_tokens = rows,
                          .max_q_len = 1,
                          .max_seq_len = 1,
                          .max_blocks_per_seq = w->width,
                          .q_dtype = run->q_dtype,
                          .out_dtype = run->out_dtype,
                          .q_form = run->q_form,
                          .out_form = run->out_form,
                          .absorb_threshold = 2, /* not for this kind */
                          .nope_dim = s->key_dim,
                          .v_dim = s->value_dim};
    lkv_plan *plan;
    for (uint32_t i = 0; i < run->num_seqs; i++) {
        desc.max_q_len = q_len_of(run, i) > desc.max_q_len ? q_len_of(run, i) : desc.max_q_len;
        if (run->seq_lens[i] > (int32_t)desc.max_seq_len)
            desc.max_seq_len = (uint32_t)run->seq_lens[i];
    }
    must(lkv_plan_create(w->ctx, &desc, &plan), "plan");
    return plan;
}

static void *poisoned(size_t bytes)
{
    size_t room = (bytes + 255) / 256 * 256 + 256;
    return memset(aligned_alloc(256, room), 0xFF, room);
}

static int32_t *table_of(const struct gqa *w, const struct gqa_run *run)
{
    const uint64_t bytes = w->width * sizeof(int32_t);
    int32_t *table = malloc(run->num_seqs * bytes);
    for (uint32_t i = 0; i < run->num_seqs; i++) {
        const uint64_t seq = run->seqs ? run->seqs[i] : i;
        const int32_t *from =
            run->table ? run->table + (uint64_t)i * w->width : w->table + seq * w->width;
        memcpy(table + (uint64_t)i * w->width, from, bytes);
    }
    return table;
}

lkv_status gqa_attend(const struct gqa *w, const struct gqa_run *run, struct output *out)
{
    const struct gqa_shape *s = &w->shape;
    const uint32_t H = s->kv_heads * s->group;
    const uint64_t T = (uint64_t)run->q_indptr[run->num_seqs], rows = T * H;
    const uint32_t q_dim = run->q_form == LKV_Q_HEAD ? s->key_dim : s->key_latent;
    out->dim = run->out_form == LKV_OUT_HEAD ? s->value_dim : s->value_latent;
    lkv_plan *plan = plan_of(w, run);
    size_t bytes;
    must(lkv_plan_workspace(plan, &bytes), "workspace");
    void *workspace = poisoned(bytes), *q = poisoned(rows * q_dim * 4);
    void *raw = poisoned(rows * out->dim * 4);
    int32_t *table = table_of(w, run);
    put_values(run->q, rows * q_dim, run->q_dtype, q);
    out->out = malloc((rows * out->dim + 1) * sizeof(float));
    out->lse = poisoned(rows * 4);
    out->entropy = poisoned(rows * 4);
    lkv_tensor tq = gqa_tensor(q, run->q_dtype, T, H, q_dim);
    lkv_tensor to = gqa_tensor(raw, run->out_dtype, T, H, out->dim), bias = {0};
    lkv_tensor lse = {.data = out->lse, .dtype = LKV_DTYPE_F32, .ndim = 2};
    lse.shape[0] = (int64_t)T;
    lse.shape[1] = lse.stride[0] = H;
    lse.stride[1] = 1;
    lkv_tensor entropy = lse;
    entropy.data = out->entropy;
    bias = lse;
    bias.data = (void *)(uintptr_t)run->bias;
    bias.shape[0] = run->num_seqs;
    bias.shape[1] = bias.stride[0] = run->bias_width;
    lkv_batch batch = {.size = sizeof batch,
                       .num_seqs = run->num_seqs,
                       .max_blocks_per_seq = w->width,
                       .block_table = table,
                       .seq_lens = run->seq_lens,
                       .q_indptr = run->q_indptr,
                       .num_tokens = T};
    lkv_attend_args args = {.size = sizeof args,
                            .q = &tq,
                            .out = &to,
                            .lse = &lse,
                            .entropy = &entropy,
                            .bias = run->bias ? &bias : NULL,
                            .weights = w->weights,
                            .workspace = workspace,
                            .workspace_bytes = bytes,
                            .scale = 1 / sqrt(s->key_dim),
                            .flags = run->attend_flags};
    must(lkv_plan_update(plan, &batch, workspace, bytes, NULL), "update");
    lkv_status status = lkv_attend(plan, w->pool, &batch, &args, NULL);
    get_values(raw, rows * out->dim, run->out_dtype, out->out);
    lkv_plan_release(plan);
    free(workspace);
    free(q);
    free(raw);
    free(table);
    return status;
}

/* ---- the oracle */

/* Stored latents of a rotated pool come back in the original basis: there the oracle works. */
static struct ref_context context_of(const struct gqa *w, const struct gqa_run *run, uint32_t i,
                                     uint32_t g, double *rows)
{
    const uint32_t seq = run->seqs ? run->seqs[i] : i;
    const struct ref_latents latents = {w->key_latents[seq], w->value_latents[seq],
                                        w->shape.tokens[seq], w->shape.kv_heads};
    struct ref_context c = ref_heads_context(&w->projector, &latents, g, rows);
    const float *bias = run->oracle_bias ? run->oracle_bias : run->bias;
    c.bias = bias ? bias + (uint64_t)i * run->bias_width : NULL;
    return c;
}

static int row_check(const struct output *out, uint64_t row, const double *want,
                     const struct ref_result *r, double bound, const char *label)
{
    const float *found = out->out + row * out->dim, lse = out->lse[row];
    char text[128];
    snprintf(text, sizeof text, "%s, row %llu", label, (unsigned long long)row);
    if (r->lse == -INFINITY) {
        for (uint32_t i = 0; i < out->dim; i++)
            if (found[i] != 0)
                return fprintf(stderr, "%s: out[%u] is %g, want 0\n", text, i, found[i]), 0;
        if (lse == -INFINITY && out->entropy[row] == 0)
            return 1;
    } else if (!close_l2(text, found, want, out->dim, bound)) {
        return 0;
    } else if (fabs(lse - r->lse) <= 1e-5 * fmax(1, fabs(r->lse)) &&
               fabs(out->entropy[row] - r->entropy) <= 1e-5 * fmax(1, r->entropy)) {
        return 1;
    }
    fprintf(stderr, "%s: lse %.9g, entropy %.9g; want %.9g, %.9g\n", text, lse, out->entropy[row],
            r->lse, r->entropy);
    return 0;
}

static int head_check(const struct gqa *w, const struct gqa_run *run, const struct output *out,
                      const struct ref_context *c, const uint32_t at[2])
{
    const struct gqa_shape *s = &w->shape;
    const uint32_t i = at[0], head = at[1], H = s->kv_heads * s->group, q_len = q_len_of(run, i);
    const uint32_t q_dim = run->q_form == LKV_Q_HEAD ? s->key_dim : s->key_latent;
    double *q = malloc(q_dim * sizeof *q), *want = malloc(out->dim * sizeof *want);
    int good = 1;
    for (uint32_t j = 0; j < q_len && good; j++) {
        const uint64_t row = (uint64_t)(run->q_indptr[i] + (int32_t)j) * H + head;
        for (uint32_t k = 0; k < q_dim; k++)
            q[k] = run->q[row * q_dim + k];
        int64_t seen = (int64_t)run->seq_lens[i] - q_len + j + 1;
        struct ref_row r = {.g = head / s->group,
                            .q_latent = run->q_form == LKV_Q_LATENT,
                            .out_latent = run->out_form == LKV_OUT_LATENT,
                            .visible = (int64_t)q_len > run->seq_lens[i] ? 0 : seen,
                            .scale = 1 / sqrt(s->key_dim),
                            .q = q,
                            .out = want};
        struct ref_result result = ref_heads_attend(&w->projector, c, &r);
        char label[64];
        snprintf(label, sizeof label, "sequence %u, head %u", i, head);
        good = row_check(out, row, want, &result, run->out_dtype == LKV_DTYPE_F32 ? 1e-5 : 3e-3,
                         label);
    }
    free(q);
    free(want);
    return good;
}

int gqa_check(const struct gqa *w, const struct gqa_run *run, const struct output *out,
              const char *label)
{
    const struct gqa_shape *s = &w->shape;
    for (uint32_t i = 0; i < run->num_seqs; i++)
        for (uint32_t g = 0; g < s->kv_heads; g++) {
            const uint64_t count = s->tokens[run->seqs ? run->seqs[i] : i];
            double *rows = malloc((count * (s->key_latent + s->value_latent) + 1) * sizeof *rows);
            struct ref_context c = context_of(w, run, i, g, rows);
            int good = 1;
            for (uint32_t h = g * s->group; h < (g + 1) * s->group && good; h++)
                good = head_check(w, run, out, &c, (uint32_t[]){i, h});
            free(rows);
            if (!good)
                return fprintf(stderr, "%s: format %s, %s\n", label, format_name(s->format),
                               isa_name(s->isa)),
                       0;
        }
    return 1;
}
