/* Row operations on expert outputs, fp32 arithmetic on F32 or BF16 rows. */
#ifndef LKVI_MOE_CACHE_COMBINE_H
#define LKVI_MOE_CACHE_COMBINE_H

#include <stdint.h>
#include "core/threads.h"
#include "latentkv/moe_cache.h"

struct lkvi_moe_rows { /* of one dtype a call */
    char *data;
    uint64_t stride_bytes;
};

struct lkvi_combine {
    struct lkvi_moe_rows primary, fallback, out;
    const int32_t *chosen;
    const float *weight; /* NULL: 1 */
    uint64_t num_rows;
    uint32_t dim, is_bf16, mode;
};

void lkvi_combine(const struct lkvi_combine *c, struct lkvi_threads *threads);

struct lkvi_token_scale {
    struct lkvi_moe_rows x;
    uint64_t num_rows;
    uint32_t dim, is_bf16;
    float *scale;
    double low, high, decay;
    double mean; /* in and out, as count */
    uint64_t count;
};

void lkvi_token_scale(struct lkvi_token_scale *s, struct lkvi_threads *threads);

#endif
