/* The decompressed path: long queries make their own keys and values, K = c W_UK and V = c W_UV, 64
 * keys at a time, and attend densely (192 / 128 dims instead of 576 / 512). A task is one head and
 * up to 1024 query tokens; chunks of context are joined by the running softmax, which is the LSE
 * merge done in place.
 *
 *   tile row: [ V, padded to 16 | K_nope | K_rope ]     columns of one product, then a copy */
#include <string.h>
#include "attention/cpu/absorbed.h"
#include "attention/cpu/project.h"

struct job {
    const struct lkvi_attend_env *env;
    const struct lkvi_cpu_unit *seq;
    uint64_t query_tiles;
};

/* One worker's memory and shapes. */
struct work {
    const struct lkvi_attend_env *env;
    const struct lkvi_cpu_unit *seq;
    struct lkvi_tile_scratch tile;
    uint32_t head, first, count;        /* query tokens of the sequence */
    uint64_t latent, rope, nope, value; /* value padded to 16 */
    uint64_t stride;                    /* of a tile row */
    float *latents, *rows, *weights, *queries, *row;
};

static struct work work_of(const struct job *job, uint64_t index, uint32_t worker)
{
    const struct lkvi_plan_params *p = &job->env->p->plan;
    struct work w = {.env = job->env,
                     .seq = job->seq,
                     .head = (uint32_t)(index / job->query_tiles),
                     .first = (uint32_t)(index % job->query_tiles) * LKVI_QUERY_TILE,
                     .latent = p->record.latent_dim,
                     .rope = p->record.rope_dim,
                     .nope = p->nope_dim,
                     .value = lkvi_round16(p->v_dim)};
    uint32_t left = job->seq->q_len - w.first;
    w.count = left < LKVI_QUERY_TILE ? left : LKVI_QUERY_TILE;
    w.stride = w.value + lkvi_round16(lkvi_round16(w.nope) + w.rope);
    w.latents = lkvi_tile_scratch(job->env, worker, &w.tile);
    w.rows = w.latents + LKVI_TILE_KEYS * (w.latent + lkvi_round16(w.rope));
    w.weights = w.rows + LKVI_TILE_KEYS * w.stride;
    w.queries = w.weights + w.latent * (w.value + lkvi_round16(w.nope));
    w.row = w.queries + lkvi_round16(w.count) * (w.stride + 3);
    return w;
}

static void pack_column(float *packed, uint64_t dims, uint64_t col, const float *row)
{
    float *at = packed + lkvi_packed_at(dims, 0, col);
    for (uint64_t k = 0; k < dims; k++)
        at[k * LKVI_PANEL] = row ? row[k] : 0.0f;
}

/* Columns of the product: v rows of W_UV, nope rows of W_UK, zeros between. */
static void pack_weights(const struct work *w)
{
    const struct lkvi_weights_view *view = &w->env->p->weights;
    const float *uk = (const float *)view->w_uk + w->head * w->nope * w->latent;
    const float *uv = (const float *)view->w_uv + w->head * (uint64_t)view->v_dim * w->latent;
    for (uint64_t col = 0; col < w->value + lkvi_round16(w->nope); col++) {
        uint64_t n = col - w->value;
        const float *from = NULL;
        if (col < view->v_dim)
            from = uv + col * w->latent;
        else if (col >= w->value && n < w->nope)
            from = uk + n * w->latent;
        pack_column(w->weights, w->latent, col, from);
    }
}

/* Group g of 128 query tokens. */
static struct lkvi_queries group_of(const struct work *w, uint32_t g)
{
    uint32_t first = g * LKVI_GROUP_ROWS, left = w->count - first;
    float *at = w->queries + first * (w->stride + 3);
    struct lkvi_queries q = {.num_rows = left < LKVI_GROUP_ROWS ? left : LKVI_GROUP_ROWS,
                             .key_dim = (uint32_t)(w->nope + w->rope),
                             .value_dim = (uint32_t)w->value,
                             .num_heads_a_token = 1,
                             .first_row = w->first + first,
                             .first_limit = (int64_t)w->seq->seq_len - w->seq->q_len + 1};
    q.num_cols = (uint32_t)lkvi_round16(q.num_rows);
    q.packed = at;
    q.out = at + q.num_cols * (w->stride - w->value);
    q.max = q.out + q.num_cols * w->value;
    q.sum = q.max + q.num_cols;
    q.moment = q.sum + q.num_cols;
    return q;
}

static void pack_group(const struct work *w, struct lkvi_queries *q)
{
    const struct lkvi_attend_params *p = w->env->p;
    float *packed = (float *)q->packed;
    for (uint32_t i = 0; i < q->num_cols; i++) {
        uint64_t token = w->seq->first_token + q->first_row + i;
        if (i < q->num_rows) {
            w->env->ops->load(lkvi_head_row(&p->q, token, w->head), p->q.dtype, (uint32_t)w->nope,
                              w->row);
            if (w->rope)
                w->env->ops->load(lkvi_head_row(&p->q_rope, token, w->head), p->q_rope.dtype,
                                  (uint32_t)w->rope, w->row + w->nope);
        }
        pack_column(packed, q->key_dim, i, i < q->num_rows ? w->row : NULL);
    }
    lkvi_queries_clear(q);
}

/* Latents of a tile -> its keys and values. */
static void decompress(const struct work *w, struct lkvi_tile *tile)
{
    uint64_t dims = w->latent + w->rope;
    tile->bias =
        lkvi_tile_load(w->env, w->seq, tile->first_key, tile->count, w->latents, w->tile.bias);
    struct lkvi_gemm g = {.rows = tile->count,
                          .cols = (uint32_t)(w->value + lkvi_round16(w->nope)),
                          .depth = (uint32_t)w->latent,
                          .a = w->latents,
                          .a_row = dims,
                          .a_depth = 1,
                          .b = w->weights,
                          .b_depth = LKVI_PANEL,
                          .b_panel = w->latent * LKVI_PANEL,
                          .c = w->rows,
                          .c_row = w->stride};
    w->env->micro->gemm(&g);
    for (uint32_t t = 0; t < tile->count && w->rope; t++)
        memcpy(w->rows + t * w->stride + w->value + w->nope, w->latents + t * dims + w->latent,
               w->rope * sizeof(float));
}

static void put_group(const struct work *w, const struct lkvi_queries *q)
{
    const struct lkvi_attend_params *p = w->env->p;
    for (uint32_t i = 0; i < q->num_rows; i++) {
        uint64_t token = w->seq->first_token + q->first_row + i;
        float *row = q->out + (uint64_t)i * q->value_dim;
        float inverse = q->sum[i] > 0 ? 1.0f / q->sum[i] : 0.0f;
        for (uint32_t v = 0; v < p->plan.v_dim; v++)
            row[v] *= inverse;
        w->env->ops->store(row, p->plan.v_dim, p->out.dtype,
                           (void *)lkvi_head_row(&p->out, token, w->head));
        lkvi_row_finish(p, token, w->head, q->max[i], q->sum[i], q->moment[i]);
    }
}

static void attend_tile_of_keys(const struct work *w, uint32_t first, uint32_t count,
                                uint32_t groups)
{
    struct lkvi_tile tile = {.keys = w->rows + w->value,
                             .values = w->rows,
                             .key_stride = w->stride,
                             .value_stride = w->stride,
                             .first_key = first,
                             .count = count};
    decompress(w, &tile);
    for (uint32_t g = 0; g < groups; g++) {
        struct lkvi_queries q = group_of(w, g);
        lkvi_tile_attend(w->env->micro, (float)w->env->p->scale, &q, &tile, &w->tile);
    }
}

static void decompressed_task(void *arg, uint64_t index, uint32_t worker)
{
    struct work w = work_of(arg, index, worker);
    uint32_t groups = (w.count + LKVI_GROUP_ROWS - 1) / LKVI_GROUP_ROWS;
    pack_weights(&w);
    for (uint32_t g = 0; g < groups; g++) {
        struct lkvi_queries q = group_of(&w, g);
        pack_group(&w, &q);
    }
    uint32_t end = w.seq->seq_len - w.seq->q_len + w.first + w.count;
    for (uint32_t key = 0; key < end; key += LKVI_TILE_KEYS)
        attend_tile_of_keys(&w, key, end - key < LKVI_TILE_KEYS ? end - key : LKVI_TILE_KEYS,
                            groups);
    for (uint32_t g = 0; g < groups; g++) {
        struct lkvi_queries q = group_of(&w, g);
        put_group(&w, &q);
    }
}

void lkvi_decompressed_run(const struct lkvi_attend_env *env, const struct lkvi_cpu_unit *seq)
{
    struct job job = {.env = env,
                      .seq = seq,
                      .query_tiles =
                          ((uint64_t)seq->q_len + LKVI_QUERY_TILE - 1) / LKVI_QUERY_TILE};
    lkvi_threads_run(env->ctx->threads, job.query_tiles * env->p->plan.num_heads, decompressed_task,
                     &job);
}
