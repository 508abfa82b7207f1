/* The entropy gate: a threshold that follows the mean and the spread of what it has seen. No locks
 * here: the public object in api/ has one. */
#ifndef LKVI_MOE_CACHE_GATE_H
#define LKVI_MOE_CACHE_GATE_H

#include <stdint.h>
#include "latentkv/moe_cache.h"

struct lkvi_gate_rows {
    const float *entropy; /* row t, head h at entropy[t * row_stride + h] */
    uint64_t row_stride, num_rows;
    uint32_t num_heads;
    const uint8_t *active; /* NULL: all */
    uint8_t *triggered;
    float *reduced; /* NULL: not wanted */
    uint64_t num_triggered, num_skipped;
};

/* desc has its defaults filled in; state is updated. */
void lkvi_gate_step(const lkv_gate_desc *desc, lkv_gate_state *state, struct lkvi_gate_rows *rows);

#endif
