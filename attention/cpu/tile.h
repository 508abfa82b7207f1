/* One tile of keys against the query rows that share it: the loop body of both paths. In: up to 64
 * keys as fp32 rows (dequantised latents, or one head's decompressed keys and values). Out: running
 * sums of the rows. The one idea: the tile is made once and every row of the group uses it. */
#ifndef LKVI_ATTENTION_CPU_TILE_H
#define LKVI_ATTENTION_CPU_TILE_H

#include "attention/cpu/micro.h"
#include "attention/cpu/plan.h"
#include "core/context.h"
#include "quant/codec.h"

/* What every task of one attend reads. */
struct lkvi_attend_env {
    const struct lkvi_attend_params *p;
    const struct lkv_context *ctx;
    const struct lkvi_micro *micro;
    const struct lkvi_row_ops *ops;
    struct lkvi_cpu_layout layout;
};

/* Query rows and their running state. */
struct lkvi_queries {
    uint32_t num_rows, num_cols; /* cols: rows rounded up to 16 */
    uint32_t key_dim, value_dim; /* value_dim a multiple of 16 */
    uint32_t by_rows;            /* few rows: scores by dots */
    uint32_t num_heads_a_token;  /* row r belongs to token (first_row + r) / num_heads_a_token */
    uint64_t first_row;
    int64_t first_limit;       /* keys that token 0 sees */
    const float *packed;       /* [num_cols / 16][key_dim][16]; by_rows: [num_rows][key_dim] */
    float *out;                /* [num_rows, value_dim] not yet divided by sum */
    float *max, *sum, *moment; /* [num_cols] */
};

struct lkvi_tile {
    const float *keys, *values;
    uint64_t key_stride, value_stride; /* floats between keys */
    uint32_t first_key, count;
    const float *bias; /* [count] or NULL */
};

/* Scores, limits and the rescale of one worker. */
struct lkvi_tile_scratch {
    float *scores;         /* [64, 128] */
    float *bias;           /* [64] */
    float *last, *rescale; /* [128] */
};
/* Cuts the head of a worker's scratch; the rest is returned. */
float *lkvi_tile_scratch(const struct lkvi_attend_env *env, uint32_t worker,
                         struct lkvi_tile_scratch *out);

/* Sums of a fresh start. */
void lkvi_queries_clear(struct lkvi_queries *q);
/* Number of keys that the last row sees: tiles from there on are not needed. */
int64_t lkvi_queries_end(const struct lkvi_queries *q);
void lkvi_tile_attend(const struct lkvi_micro *micro, float scale, const struct lkvi_queries *q,
                      const struct lkvi_tile *tile, const struct lkvi_tile_scratch *scratch);

/* Dequantises keys [first, first + count) of a unit's sequence and KV head to rows of
 * lkvi_row_floats() floats, zero where the table names no block. Returns the tile's bias: the
 * caller's values, -infinity for keys that are not there; NULL when there is neither. */
const float *lkvi_tile_load(const struct lkvi_attend_env *env, const struct lkvi_cpu_unit *unit,
                            uint32_t first, uint32_t count, float *rows, float *bias);

/* lse and entropy of a finished row; sums in float64 so that splits may be joined first. */
void lkvi_row_finish(const struct lkvi_attend_params *p, uint64_t token, uint32_t head, double max,
                     double sum, double moment);

static inline const void *lkvi_head_row(const struct lkvi_heads *h, uint64_t token, uint32_t head)
{
    int64_t at = (int64_t)token * h->token_stride + head * h->head_stride;
    return (const uint8_t *)h->data + at * (h->dtype == LKV_DTYPE_F32 ? 4 : 2);
}

#endif
