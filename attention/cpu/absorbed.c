/* The absorbed path. See absorbed.h. */
#include "attention/cpu/absorbed.h"

#include <math.h>
#include <string.h>
#include "attention/cpu/project.h"

static float *slot_of(const struct lkvi_attend_env *env, uint32_t slot)
{
    uint8_t *base = (uint8_t *)env->p->workspace + env->layout.slots_at;
    return (float *)base + slot * env->layout.slot_floats;
}

/* Absorbed queries of a unit: [num_rows, L]. */
static float *unit_queries(const struct lkvi_attend_env *env, uint32_t unit)
{
    uint8_t *base = (uint8_t *)env->p->workspace + env->layout.queries_at;
    return (float *)base + unit * env->layout.query_floats;
}

/* Rows of one task of the absorb and merge steps. */
struct chunk {
    const struct lkvi_attend_env *env;
    const struct lkvi_cpu_unit *unit;
    uint32_t unit_index;
    uint32_t begin, count; /* rows of the unit */
    float *scratch;
};

static struct chunk chunk_of(const struct lkvi_wave *wave, uint64_t index, uint32_t worker)
{
    struct lkvi_tile_scratch tile;
    uint64_t per_unit = wave->env->layout.group_rows / LKVI_CHUNK_ROWS;
    struct chunk c = {.env = wave->env, .unit_index = (uint32_t)(index / per_unit)};
    c.unit = &wave->units[c.unit_index];
    c.begin = (uint32_t)(index % per_unit) * LKVI_CHUNK_ROWS;
    uint32_t left = c.unit->num_rows > c.begin ? c.unit->num_rows - c.begin : 0;
    c.count = left < LKVI_CHUNK_ROWS ? left : LKVI_CHUNK_ROWS;
    c.scratch = lkvi_tile_scratch(wave->env, worker, &tile);
    return c;
}

struct place {
    uint64_t token;
    uint32_t head;
};

static struct place place_of(const struct lkvi_attend_env *env, const struct lkvi_cpu_unit *unit,
                             uint32_t row)
{
    uint64_t heads = lkvi_plan_heads(&env->p->plan), at = unit->first_row + row;
    return (struct place){unit->first_token + at / heads,
                          (uint32_t)(unit->kv_head * heads + at % heads)};
}

/* Rows begin + i, begin + i + H', ... of a chunk are one head's: i < min(H', count), H' the heads
 * that share keys. */
static uint32_t rows_of_head(const struct chunk *c, uint32_t i)
{
    uint32_t heads = lkvi_plan_heads(&c->env->p->plan);
    return (c->count - i + heads - 1) / heads;
}

static uint32_t heads_of(const struct chunk *c)
{
    uint32_t heads = lkvi_plan_heads(&c->env->p->plan);
    return c->count < heads ? c->count : heads;
}

/* ---- 1. absorb */

static void absorb_task(void *arg, uint64_t index, uint32_t worker)
{
    struct chunk c = chunk_of(arg, index, worker);
    const struct lkvi_attend_params *p = c.env->p;
    uint32_t nope = p->plan.nope_dim, heads = lkvi_plan_heads(&p->plan),
             latent = p->store.record.latent_dim;
    float *rows = c.scratch;
    struct lkvi_project job = {c.env->micro, &p->weights, rows + LKVI_CHUNK_ROWS * nope};
    float *queries = unit_queries(c.env, c.unit_index) + (uint64_t)c.begin * latent;
    for (uint32_t i = 0; i < heads_of(&c); i++) {
        uint32_t n = rows_of_head(&c, i);
        struct place at = place_of(c.env, c.unit, c.begin + i);
        for (uint32_t j = 0; j < n; j++)
            c.env->ops->load(lkvi_head_row(&p->q, at.token + j, at.head), p->q.dtype, nope,
                             rows + j * nope);
        lkvi_project_latent(&job, at.head, n, rows, queries + (uint64_t)i * latent,
                            (uint64_t)heads * latent);
    }
}

/* ---- 2. attend an item into its slot */

static void pack_column(float *packed, uint32_t dims, uint32_t col, const float *row)
{
    float *at = packed + lkvi_packed_at(dims, 0, col);
    for (uint32_t k = 0; k < dims; k++)
        at[(uint64_t)k * LKVI_PANEL] = row ? row[k] : 0.0f;
}

/* One query [L + R]. */
static void load_query(const struct lkvi_attend_env *env, const struct lkvi_cpu_unit *unit,
                       uint32_t unit_index, uint32_t i, float *row)
{
    const struct lkvi_attend_params *p = env->p;
    uint32_t latent = p->store.record.latent_dim, rope = p->store.record.rope_dim;
    struct place at = place_of(env, unit, i);
    if (env->layout.query_floats)
        memcpy(row, unit_queries(env, unit_index) + (uint64_t)i * latent, latent * sizeof(float));
    else
        env->ops->load(lkvi_head_row(&p->q, at.token, at.head), p->q.dtype, latent, row);
    if (rope)
        env->ops->load(lkvi_head_row(&p->q_rope, at.token, at.head), p->q_rope.dtype, rope,
                       row + latent);
}

static void pack_queries(const struct lkvi_attend_env *env, const struct lkvi_cpu_unit *unit,
                         uint32_t unit_index, float *row, float *packed)
{
    const struct lkvi_record *record = &env->p->store.record;
    uint32_t dims = record->latent_dim + record->rope_dim;
    for (uint32_t i = 0; i < unit->num_rows && unit->num_rows <= LKVI_DOT_ROWS; i++)
        load_query(env, unit, unit_index, i, packed + (uint64_t)i * dims);
    if (unit->num_rows <= LKVI_DOT_ROWS)
        return;
    for (uint32_t i = 0; i < lkvi_round16(unit->num_rows); i++) {
        if (i < unit->num_rows)
            load_query(env, unit, unit_index, i, row);
        pack_column(packed, dims, i, i < unit->num_rows ? row : NULL);
    }
}

static struct lkvi_queries slot_queries(const struct lkvi_attend_env *env,
                                        const struct lkvi_cpu_unit *unit, uint32_t slot,
                                        const float *packed)
{
    const struct lkvi_record *r = &env->p->store.record;
    float *out = slot_of(env, slot), *state = out + (uint64_t)env->layout.group_rows * r->value_dim;
    return (struct lkvi_queries){.num_rows = unit->num_rows,
                                 .num_cols = (uint32_t)lkvi_round16(unit->num_rows),
                                 .key_dim = r->latent_dim + r->rope_dim,
                                 .by_rows = unit->num_rows <= LKVI_DOT_ROWS,
                                 .value_dim = r->value_dim,
                                 .num_heads_a_token = lkvi_plan_heads(&env->p->plan),
                                 .first_row = unit->first_row,
                                 .first_limit = (int64_t)unit->seq_len - unit->q_len + 1,
                                 .packed = packed,
                                 .out = out,
                                 .max = state,
                                 .sum = state + env->layout.group_rows,
                                 .moment = state + 2 * env->layout.group_rows};
}

static void item_task(void *arg, uint64_t index, uint32_t worker)
{
    const struct lkvi_wave *wave = arg;
    const struct lkvi_attend_env *env = wave->env;
    struct lkvi_cpu_item item = wave->items[index];
    const struct lkvi_cpu_unit *unit = &wave->units[item.unit];
    struct lkvi_tile_scratch scratch;
    uint64_t dims = lkvi_row_floats(&env->p->store.record);
    float *rows = lkvi_tile_scratch(env, worker, &scratch);
    float *row = rows + LKVI_TILE_KEYS * dims, *packed = row + lkvi_round16(dims);
    struct lkvi_queries q = slot_queries(env, unit, unit->slot + item.split, packed);
    int64_t begin = (int64_t)item.split * unit->split_keys, end = begin + unit->split_keys;
    int64_t seen = lkvi_queries_end(&q);
    lkvi_queries_clear(&q);
    end = end < seen ? end : seen;
    if (begin < end)
        pack_queries(env, unit, item.unit, row, packed);
    for (int64_t at = begin; at < end; at += LKVI_TILE_KEYS) {
        struct lkvi_tile tile = {
            .keys = rows,
            .values = rows + lkvi_row_value_at(&env->p->store.record),
            .key_stride = dims,
            .value_stride = dims,
            .first_key = (uint32_t)at,
            .count = (uint32_t)(end - at < LKVI_TILE_KEYS ? end - at : LKVI_TILE_KEYS)};
        tile.bias = lkvi_tile_load(env, unit, tile.first_key, tile.count, rows, scratch.bias);
        lkvi_tile_attend(env->micro, (float)env->p->scale, &q, &tile, &scratch);
    }
}

/* ---- 3. merge */

struct joined {
    double max, sum, moment;
};

/* Sums of one row over its splits, moments moved to the common maximum. */
static struct joined join_sums(const struct lkvi_attend_env *env, const struct lkvi_cpu_unit *unit,
                               uint32_t row)
{
    struct joined all = {-INFINITY, 0, 0};
    for (uint32_t s = 0; s < unit->num_splits; s++) {
        struct lkvi_queries q = slot_queries(env, unit, unit->slot + s, NULL);
        all.max = q.max[row] > all.max ? q.max[row] : all.max;
    }
    for (uint32_t s = 0; s < unit->num_splits; s++) {
        struct lkvi_queries q = slot_queries(env, unit, unit->slot + s, NULL);
        if (!(q.sum[row] > 0))
            continue;
        double drop = q.max[row] - all.max, weight = exp(drop);
        all.sum += weight * q.sum[row];
        if (weight > 0)
            all.moment += weight * (q.moment[row] + q.sum[row] * drop);
    }
    return all;
}

static void merge_row(const struct lkvi_attend_env *env, const struct lkvi_cpu_unit *unit,
                      uint32_t row, float *out)
{
    uint32_t latent = env->p->store.record.value_dim;
    struct joined all = join_sums(env, unit, row);
    struct place at = place_of(env, unit, row);
    memset(out, 0, latent * sizeof(float));
    for (uint32_t s = 0; s < unit->num_splits; s++) {
        struct lkvi_queries q = slot_queries(env, unit, unit->slot + s, NULL);
        if (!(q.sum[row] > 0))
            continue;
        float weight = (float)(exp(q.max[row] - all.max) / all.sum);
        const float *part = q.out + (uint64_t)row * latent;
        for (uint32_t i = 0; i < latent; i++)
            out[i] += weight * part[i];
    }
    lkvi_row_finish(env->p, at.token, at.head, all.max, all.sum, all.moment);
}

static void put_latents(const struct chunk *c, const float *rows)
{
    const struct lkvi_attend_params *p = c->env->p;
    uint32_t latent = p->store.record.value_dim;
    for (uint32_t i = 0; i < c->count; i++) {
        struct place at = place_of(c->env, c->unit, c->begin + i);
        c->env->ops->store(rows + (uint64_t)i * latent, latent, p->out.dtype,
                           (void *)lkvi_head_row(&p->out, at.token, at.head));
    }
}

static void put_values(const struct chunk *c, const float *rows, float *scratch)
{
    const struct lkvi_attend_params *p = c->env->p;
    uint32_t latent = p->store.record.value_dim, heads = lkvi_plan_heads(&p->plan);
    uint32_t dim = p->plan.v_dim;
    float *values = scratch;
    struct lkvi_project job = {c->env->micro, &p->weights, values + LKVI_CHUNK_ROWS * dim};
    for (uint32_t i = 0; i < heads_of(c); i++) {
        struct place at = place_of(c->env, c->unit, c->begin + i);
        uint32_t n = rows_of_head(c, i);
        lkvi_project_value(&job, at.head, n, rows + (uint64_t)i * latent, (uint64_t)heads * latent,
                           values);
        for (uint32_t j = 0; j < n; j++)
            c->env->ops->store(values + j * dim, dim, p->out.dtype,
                               (void *)lkvi_head_row(&p->out, at.token + j, at.head));
    }
}

static void merge_task(void *arg, uint64_t index, uint32_t worker)
{
    struct chunk c = chunk_of(arg, index, worker);
    const struct lkvi_plan_params *plan = &c.env->p->plan;
    float *rows = c.scratch;
    for (uint32_t i = 0; i < c.count; i++)
        merge_row(c.env, c.unit, c.begin + i, rows + (uint64_t)i * plan->record.value_dim);
    if (plan->out_form == LKV_OUT_HEAD)
        put_values(&c, rows, rows + LKVI_CHUNK_ROWS * plan->record.value_dim);
    else
        put_latents(&c, rows);
}

void lkvi_wave_run(struct lkvi_wave *wave)
{
    const struct lkvi_attend_env *env = wave->env;
    uint64_t chunks = (uint64_t)wave->num_units * (env->layout.group_rows / LKVI_CHUNK_ROWS);
    if (!wave->num_units)
        return;
    if (env->layout.query_floats)
        lkvi_threads_run(env->ctx->threads, chunks, absorb_task, wave);
    lkvi_threads_run(env->ctx->threads, wave->num_items, item_task, wave);
    lkvi_threads_run(env->ctx->threads, chunks, merge_task, wave);
    wave->num_units = wave->num_items = 0;
}
