/* The tile step: load, scores, softmax, P.V. See tile.h. */
#include "attention/cpu/tile.h"

#include <math.h>
#include <string.h>

float *lkvi_tile_scratch(const struct lkvi_attend_env *env, uint32_t worker,
                         struct lkvi_tile_scratch *out)
{
    uint8_t *base = (uint8_t *)env->p->workspace + env->layout.workers_at;
    float *at = (float *)base + worker * env->layout.worker_floats;
    out->scores = at;
    out->bias = out->scores + LKVI_TILE_KEYS * LKVI_GROUP_ROWS;
    out->last = out->bias + LKVI_TILE_KEYS;
    out->rescale = out->last + LKVI_GROUP_ROWS;
    return out->rescale + LKVI_GROUP_ROWS;
}

void lkvi_queries_clear(struct lkvi_queries *q)
{
    memset(q->out, 0, (uint64_t)q->num_rows * q->value_dim * sizeof(float));
    for (uint32_t i = 0; i < q->num_cols; i++) {
        q->max[i] = -INFINITY;
        q->sum[i] = q->moment[i] = 0.0f;
    }
}

static int64_t row_limit(const struct lkvi_queries *q, uint32_t row)
{
    return q->first_limit + (int64_t)((q->first_row + row) / q->num_heads_a_token);
}

int64_t lkvi_queries_end(const struct lkvi_queries *q)
{
    return row_limit(q, q->num_rows - 1);
}

/* Last visible key of each column inside the tile; NULL if every row sees the whole tile. */
static const float *tile_last(const struct lkvi_queries *q, const struct lkvi_tile *tile,
                              float *last)
{
    if (row_limit(q, 0) >= (int64_t)tile->first_key + tile->count)
        return NULL;
    for (uint32_t i = 0; i < q->num_cols; i++) {
        int64_t seen = i < q->num_rows ? row_limit(q, i) - tile->first_key : 0;
        seen = seen < 0 ? 0 : seen > LKVI_TILE_KEYS ? LKVI_TILE_KEYS : seen;
        last[i] = (float)seen - 1.0f;
    }
    return last;
}

static void tile_scores(const struct lkvi_micro *micro, const struct lkvi_queries *q,
                        const struct lkvi_tile *tile, float *scores)
{
    struct lkvi_gemm g = {.rows = tile->count,
                          .cols = q->num_cols,
                          .depth = q->key_dim,
                          .a = tile->keys,
                          .a_row = tile->key_stride,
                          .a_depth = 1,
                          .b = q->packed,
                          .b_depth = LKVI_PANEL,
                          .b_panel = (uint64_t)q->key_dim * LKVI_PANEL,
                          .c = scores,
                          .c_row = q->num_cols};
    struct lkvi_dots d = {.rows = tile->count,
                          .cols = q->num_rows,
                          .depth = q->key_dim,
                          .a = tile->keys,
                          .b = q->packed,
                          .a_row = tile->key_stride,
                          .c = scores,
                          .c_row = q->num_cols};
    if (q->by_rows)
        micro->dots(&d);
    else
        micro->gemm(&g);
}

void lkvi_tile_attend(const struct lkvi_micro *micro, float scale, const struct lkvi_queries *q,
                      const struct lkvi_tile *tile, const struct lkvi_tile_scratch *scratch)
{
    if ((int64_t)tile->first_key >= lkvi_queries_end(q))
        return;
    tile_scores(micro, q, tile, scratch->scores);
    struct lkvi_softmax softmax = {.scores = scratch->scores,
                                   .keys = tile->count,
                                   .cols = q->num_cols,
                                   .scale = scale,
                                   .bias = tile->bias,
                                   .last = tile_last(q, tile, scratch->last),
                                   .max = q->max,
                                   .sum = q->sum,
                                   .moment = q->moment,
                                   .rescale = scratch->rescale};
    micro->softmax(&softmax);
    struct lkvi_gemm value = {.rows = q->num_rows,
                              .cols = q->value_dim,
                              .depth = tile->count,
                              .a = scratch->scores,
                              .a_row = 1,
                              .a_depth = q->num_cols,
                              .b = tile->values,
                              .b_depth = tile->value_stride,
                              .b_panel = LKVI_PANEL,
                              .c = q->out,
                              .c_row = q->value_dim,
                              .rescale = scratch->rescale};
    micro->gemm(&value);
}

static void decode_run(const struct lkvi_attend_env *env, const struct lkvi_store *store,
                       uint64_t id, uint32_t key, uint32_t count, float *rows)
{
    lkvi_decode_rows(store, env->ctx->isa, store->base + id * store->block_stride,
                     key % store->tokens_per_block, count, rows,
                     lkvi_row_floats(&env->p->store.record));
}

/* A run of keys inside one block. */
static uint32_t load_run(const struct lkvi_attend_env *env, const struct lkvi_cpu_unit *unit,
                         uint32_t key, uint32_t count, float *rows)
{
    const struct lkvi_store *store = &env->p->store;
    const struct lkvi_batch_view *batch = &env->p->batch;
    uint64_t entry = unit->seq * batch->block_table_stride + key / store->tokens_per_block;
    int32_t id = batch->block_table[entry];
    if (id < 0 || (uint64_t)id >= store->num_blocks) {
        memset(rows, 0, (uint64_t)count * lkvi_row_floats(&store->record) * sizeof(float));
        return 0;
    }
    if (store->record.kind == LKV_KIND_MLA) {
        decode_run(env, store, (uint64_t)id, key, count, rows);
        return 1;
    }
    for (uint32_t is_value = 0; is_value < 2; is_value++) {
        struct lkvi_store part = lkvi_store_part(store, unit->kv_head, is_value);
        decode_run(env, &part, (uint64_t)id, key, count,
                   rows + (is_value ? lkvi_row_value_at(&store->record) : 0));
    }
    return 1;
}

const float *lkvi_tile_load(const struct lkvi_attend_env *env, const struct lkvi_cpu_unit *unit,
                            uint32_t first, uint32_t count, float *rows, float *bias)
{
    const struct lkvi_attend_params *p = env->p;
    uint32_t dims = lkvi_row_floats(&p->store.record);
    uint32_t per_block = p->store.tokens_per_block, used = p->bias != NULL;
    for (uint32_t i = 0; i < count; i++)
        bias[i] = p->bias ? p->bias[(int64_t)unit->seq * p->bias_stride + first + i] : 0.0f;
    for (uint32_t done = 0, run; done < count; done += run) {
        uint32_t key = first + done, room = per_block - key % per_block;
        run = count - done < room ? count - done : room;
        if (load_run(env, unit, key, run, rows + (uint64_t)done * dims))
            continue;
        used = 1;
        for (uint32_t i = done; i < done + run; i++)
            bias[i] = -INFINITY;
    }
    return used ? bias : NULL;
}

void lkvi_row_finish(const struct lkvi_attend_params *p, uint64_t token, uint32_t head, double max,
                     double sum, double moment)
{
    if (p->lse)
        p->lse[(int64_t)token * p->lse_stride + head] =
            sum > 0 ? (float)(max + log(sum)) : -INFINITY;
    if (p->entropy)
        p->entropy[(int64_t)token * p->entropy_stride + head] =
            sum > 0 ? (float)(log(sum) - moment / sum) : 0.0f;
}
