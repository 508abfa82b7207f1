/* Float64 truth for a replay: records as tests/reference decodes them, attention over them. */
#ifndef TOOLS_REPLAY_ORACLE_H
#define TOOLS_REPLAY_ORACLE_H

#include <stdint.h>
#include "tests/reference/ref_quant.h"

struct oracle_keys { /* the sequence's records, dequantised */
    double *latent;  /* [num, L] */
    double *rope;    /* [num, R] */
    uint64_t num, capacity;
    uint32_t latent_dim, rope_dim;
};

void oracle_resize(struct oracle_keys *k, uint64_t num);
void oracle_free(struct oracle_keys *k);

/* One query row of one head over all keys: out [L]. */
void oracle_attend(const struct oracle_keys *k, const float *q, const float *q_rope, double scale,
                   double *out);
/* |a - b| / |b| in the Euclidean norm. */
double oracle_rel_l2(const float *a, const double *b, uint32_t n);

#endif
