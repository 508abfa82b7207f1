/* Float64 truth for a replay, by tests/reference: records as it decodes them, attention over them.
 */
#ifndef TOOLS_REPLAY_ORACLE_H
#define TOOLS_REPLAY_ORACLE_H

#include <stdint.h>
#include "tests/reference/ref_attention.h"
#include "tests/reference/ref_quant.h"

struct oracle {
    uint32_t latent_dim, rope_dim;
    double *rows; /* [num, L + R]: a sequence's records, dequantised */
    double *q;    /* [L + R] */
    uint64_t num, capacity;
};

void oracle_resize(struct oracle *k, uint64_t num);
void oracle_free(struct oracle *k);
double *oracle_row(const struct oracle *k, uint64_t token); /* L values, then R */

/* One query row of one head over all rows: out [L]. */
void oracle_attend(const struct oracle *k, const float *q, const float *q_rope, double scale,
                   double *out);
/* |a - b| / |b| in the Euclidean norm. */
double oracle_rel_l2(const float *a, const double *b, uint32_t n);

#endif
