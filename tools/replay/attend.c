/* In: steps whose blocks, lengths and slots lkv_pool_step filled. Out: real records, attention over
 * them, and how far both are from what they should be. A latent is the scaled sum of three rows of
 * seeded tables, picked by the hash of its whole prefix: cheap, and a wrong prefix shows. */
#include "tools/replay/attend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/out.h"
#include "tools/common/rng.h"
#include "tools/replay/oracle.h"

enum { TABLE_ROWS = 256, NUM_TABLES = 3, ROWS_A_SEQ = 4, COMPARED_A_STEP = 1 };
enum { ORACLE_KEY_HEADS = 8192 }; /* keys times heads that one comparison may cost */

struct attender {
    struct replay *r;
    lkv_plan *plan;
    void *workspace;
    size_t workspace_bytes;
    float *tables; /* [NUM_TABLES, TABLE_ROWS, L + R] */
    uint64_t rng;
    float *latent, *rope;    /* rows to append */
    float *q, *q_rope, *out; /* rows to attend */
    float *entropy;          /* [rows, heads], or NULL */
    uint32_t asked;          /* rows of the last step, 0 if it did not attend */
    int32_t *q_indptr;       /* [max_running + 1] */
    lkv_pool_layout layout;
    struct oracle oracle;
    float *expected; /* [L] */
    double *truth;   /* [L] */
};

uint64_t attend_chain(uint64_t before, int32_t token)
{
    return mix64(before ^ ((uint64_t)(uint32_t)token << 17) ^ (uint32_t)token);
}

static uint32_t dim_of(const struct attender *a)
{
    return a->r->pool.model.latent_dim;
}

static uint32_t rope_of(const struct attender *a)
{
    return a->r->pool.model.rope_dim;
}

/* [L] and [R] of the token with this chain value */
static void make_row(const struct attender *a, uint64_t chain, float *latent, float *rope)
{
    const uint32_t dim = dim_of(a), all = dim + rope_of(a);
    const float *x = a->tables + (chain & 255) * all;
    const float *y = a->tables + (TABLE_ROWS + (chain >> 8 & 255)) * all;
    const float *z = a->tables + (2 * TABLE_ROWS + (chain >> 16 & 255)) * all;
    const float scale = 0.57735027f;
    for (uint32_t i = 0; i < dim; i++)
        latent[i] = scale * (x[i] + y[i] + z[i]);
    for (uint32_t i = 0; rope && i < all - dim; i++)
        rope[i] = scale * (x[dim + i] + y[dim + i] + z[dim + i]);
}

static lkv_tensor tensor_2d(void *data, uint64_t rows, uint32_t dim)
{
    return (lkv_tensor){.data = data,
                        .dtype = LKV_DTYPE_F32,
                        .ndim = 2,
                        .shape = {(int64_t)rows, dim},
                        .stride = {dim, 1}};
}

static lkv_tensor tensor_3d(void *data, uint64_t rows, uint32_t heads, uint32_t dim)
{
    return (lkv_tensor){.data = data,
                        .dtype = LKV_DTYPE_F32,
                        .ndim = 3,
                        .shape = {(int64_t)rows, heads, dim},
                        .stride = {(int64_t)heads * dim, dim, 1}};
}

/* ---- life */

static void make_tables(struct attender *a)
{
    const size_t n = (size_t)NUM_TABLES * TABLE_ROWS * (dim_of(a) + rope_of(a));
    a->tables = out_alloc(n, sizeof *a->tables);
    for (size_t i = 0; i < n; i++)
        a->tables[i] = (float)rng_normal(&a->rng);
}

static void make_plan(struct attender *a)
{
    const struct replay *r = a->r;
    const lkv_plan_desc desc = {.size = sizeof desc,
                                .pool = r->pool.pool,
                                .num_heads = r->options.heads,
                                .max_seqs = r->options.max_running,
                                .max_tokens = ROWS_A_SEQ * r->options.max_running,
                                .max_q_len = ROWS_A_SEQ,
                                .max_seq_len = trace_longest(&r->trace),
                                .max_blocks_per_seq = r->pool.table_width,
                                .q_dtype = LKV_DTYPE_F32,
                                .out_dtype = LKV_DTYPE_F32,
                                .q_form = LKV_Q_LATENT,
                                .out_form = LKV_OUT_LATENT};
    out_must(lkv_plan_create(r->pool.ctx, &desc, &a->plan), "the plan");
    out_must(lkv_plan_workspace(a->plan, &a->workspace_bytes), "the plan's workspace");
    a->workspace_bytes = (a->workspace_bytes + 255) / 256 * 256 + 256;
    a->workspace = aligned_alloc(256, a->workspace_bytes);
    if (!a->workspace)
        out_die("out of memory: %zu bytes of workspace", a->workspace_bytes);
}

struct attender *attender_new(struct replay *r)
{
    struct attender *a = out_alloc(1, sizeof *a);
    const size_t dim = r->pool.model.latent_dim, rope = r->pool.model.rope_dim;
    const size_t appended = (size_t)r->options.max_running + r->options.chunk;
    const size_t rows = (size_t)ROWS_A_SEQ * r->options.max_running * r->options.heads;
    a->r = r;
    a->rng = mix64(r->options.seed ^ 0xa77e4d);
    a->layout.size = sizeof a->layout;
    a->oracle.latent_dim = (uint32_t)dim;
    a->oracle.rope_dim = (uint32_t)rope;
    out_must(lkv_pool_layer(r->pool.pool, 0, &a->layout), "the pool's layout");
    make_tables(a);
    make_plan(a);
    a->latent = out_alloc(appended * dim, sizeof(float));
    a->rope = out_alloc(appended * rope, sizeof(float));
    a->q = out_alloc(rows * dim, sizeof(float));
    a->out = out_alloc(rows * dim, sizeof(float));
    a->q_rope = out_alloc(rows * rope, sizeof(float));
    if (r->options.moe.experts)
        a->entropy = out_alloc(rows, sizeof(float));
    a->q_indptr = out_alloc(r->options.max_running + 1, sizeof *a->q_indptr);
    a->expected = out_alloc(dim, sizeof(float));
    a->truth = out_alloc(dim, sizeof(double));
    return a;
}

void attender_free(struct attender *a)
{
    if (!a)
        return;
    lkv_plan_release(a->plan);
    oracle_free(&a->oracle);
    free(a->workspace);
    free(a->tables);
    free(a->latent);
    free(a->rope);
    free(a->q);
    free(a->out);
    free(a->q_rope);
    free(a->entropy);
    free(a->q_indptr);
    free(a->expected);
    free(a->truth);
    free(a);
}

/* ---- append and attend */

static void append_rows(struct attender *a, const struct attend_batch *b)
{
    const uint32_t dim = dim_of(a), rope = rope_of(a);
    uint64_t row = 0;
    for (uint32_t i = 0; i < b->step->num_seqs; i++)
        for (uint32_t j = 0; j < b->step->num_rows[i]; j++, row++)
            make_row(a, b->seqs[i].chain[b->step->row_begin[i] + j], a->latent + row * dim,
                     a->rope + row * rope);
    if (!row)
        return;
    const lkv_tensor latents = tensor_2d(a->latent, row, dim),
                     ropes = tensor_2d(a->rope, row, rope);
    const lkv_append_args args = {.size = sizeof args,
                                  .latent = &latents,
                                  .rope = rope ? &ropes : NULL,
                                  .slots = b->step->slots,
                                  .flags = LKV_APPEND_CHECKED};
    out_must(lkv_append(a->r->pool.pool, &args, NULL), "append");
}

/* The last rows of each sequence ask; rows of one prefill chunk would all ask nearly the same. */
static uint32_t make_queries(struct attender *a, const struct attend_batch *b)
{
    uint32_t rows = 0;
    for (uint32_t i = 0; i < b->step->num_seqs; i++) {
        const uint32_t n = b->step->num_rows[i];
        a->q_indptr[i] = (int32_t)rows;
        rows += n < ROWS_A_SEQ ? n : ROWS_A_SEQ;
    }
    a->q_indptr[b->step->num_seqs] = (int32_t)rows;
    for (uint32_t h = 0; h < rows * a->r->options.heads; h++)
        make_row(a, rng_next(&a->rng), a->q + (size_t)h * dim_of(a),
                 a->q_rope + (size_t)h * rope_of(a));
    return rows;
}

static void attend_rows(struct attender *a, const struct attend_batch *b, uint32_t rows)
{
    const uint32_t heads = a->r->options.heads;
    const lkv_batch batch = {.size = sizeof batch,
                             .num_seqs = b->step->num_seqs,
                             .max_blocks_per_seq = b->step->table_width,
                             .block_table = b->step->block_table,
                             .seq_lens = b->step->seq_lens,
                             .q_indptr = a->q_indptr,
                             .num_tokens = rows};
    const lkv_tensor q = tensor_3d(a->q, rows, heads, dim_of(a));
    const lkv_tensor q_rope = tensor_3d(a->q_rope, rows, heads, rope_of(a));
    const lkv_tensor out = tensor_3d(a->out, rows, heads, dim_of(a));
    const lkv_tensor entropy = {a->entropy, LKV_DTYPE_F32, 2, {(int64_t)rows, heads}, {heads, 1}};
    const lkv_attend_args args = {.size = sizeof args,
                                  .q = &q,
                                  .q_rope = rope_of(a) ? &q_rope : NULL,
                                  .out = &out,
                                  .entropy = a->entropy ? &entropy : NULL,
                                  .workspace = a->workspace,
                                  .workspace_bytes = a->workspace_bytes,
                                  .scale = a->r->pool.model.softmax_scale,
                                  .flags = LKV_ATTEND_CHECKED};
    out_must(lkv_plan_update(a->plan, &batch, a->workspace, a->workspace_bytes, NULL), "the plan");
    out_must(lkv_attend(a->plan, a->r->pool.pool, &batch, &args, NULL), "attend");
}

/* ---- comparison */

/* What quantisation may do to a latent of this kind: twice DESIGN 7's figures and more. */
static double latent_bound(uint32_t format)
{
    static const double bounds[] = {0, 0.004, 0.05, 0.03, 0.15};
    return bounds[format];
}

static void note(struct attender *a, double *most, double value, double bound)
{
    *most = value > *most || isnan(value) ? value : *most;
    a->r->result.attend.failures += !(value <= bound);
}

static void decode_keys(struct attender *a, const struct attend_batch *b, uint32_t i)
{
    const struct replay_options *o = &a->r->options;
    const struct ref_format format = {.format = o->format, .latent = dim_of(a), .rope = rope_of(a)};
    const int32_t *table = b->step->block_table + (size_t)i * b->step->table_width;
    struct attend_result *x = &a->r->result.attend;
    oracle_resize(&a->oracle, (uint64_t)b->step->seq_lens[i]);
    for (uint64_t t = 0; t < a->oracle.num; t++) {
        const uint8_t *record =
            (const uint8_t *)a->layout.base +
            (uint64_t)table[t / o->block_tokens] * a->layout.block_stride_bytes +
            t % o->block_tokens * a->layout.record_bytes;
        double *row = oracle_row(&a->oracle, t);
        ref_decode(&format, record, row, row + dim_of(a));
        make_row(a, b->seqs[i].chain[t], a->expected, NULL);
        note(a, &x->max_latent_rel_l2, oracle_rel_l2(a->expected, row, dim_of(a)),
             latent_bound(o->format));
    }
}

static void compare_seq(struct attender *a, const struct attend_batch *b, uint32_t i)
{
    const uint32_t heads = a->r->options.heads;
    const uint32_t row = (uint32_t)a->q_indptr[i + 1] - 1;
    struct attend_result *x = &a->r->result.attend;
    decode_keys(a, b, i);
    uint64_t compared = ORACLE_KEY_HEADS / a->oracle.num + 1;
    compared = compared < heads ? compared : heads;
    const uint32_t first = (uint32_t)rng_below(&a->rng, heads - compared + 1);
    for (uint32_t h = first; h < first + compared; h++) {
        const size_t at = (size_t)row * heads + h;
        oracle_attend(&a->oracle, a->q + at * dim_of(a), a->q_rope + at * rope_of(a),
                      a->r->pool.model.softmax_scale, a->truth);
        note(a, &x->max_rel_l2, oracle_rel_l2(a->out + at * dim_of(a), a->truth, dim_of(a)), 1e-5);
    }
    x->rows++;
}

static void compare_some(struct attender *a, const struct attend_batch *b)
{
    for (uint32_t n = 0; n < COMPARED_A_STEP; n++) {
        const uint32_t i = (uint32_t)rng_below(&a->rng, b->step->num_seqs);
        if (b->step->num_rows[i])
            compare_seq(a, b, i);
    }
}

void attender_step(struct attender *a, const struct attend_batch *b)
{
    append_rows(a, b);
    a->asked = 0;
    if (rng_unit(&a->rng) >= a->r->options.attend_rate)
        return;
    const uint32_t rows = make_queries(a, b);
    if (!rows)
        return;
    attend_rows(a, b, rows);
    a->asked = rows;
    compare_some(a, b);
    a->r->result.attend.steps++;
}

struct attend_asked attender_asked(const struct attender *a)
{
    return (struct attend_asked){.rows = a->asked, .entropy = a->entropy, .q_indptr = a->q_indptr};
}
