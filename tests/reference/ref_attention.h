/* The oracle of attention in float64, one query row of one head at a time: two passes, no tiles, no
 * running maximum. Keys and values are plain rows, so the absorbed form (keys [c | k_rope], values
 * c), the decompressed form (keys [W_UK c | k_rope], values W_UV c) and any dense attention are the
 * same call. A key that is not there has bias -INFINITY. */
#ifndef LKVT_REFERENCE_REF_ATTENTION_H
#define LKVT_REFERENCE_REF_ATTENTION_H

#include <stdint.h>

struct ref_context {
    uint64_t count; /* keys */
    uint32_t key_dim, value_dim;
    uint64_t key_stride, value_stride; /* doubles between rows */
    const double *keys, *values;
    const float *bias; /* [count] added to the scaled score, or NULL */
};

struct ref_result {
    double lse;     /* -INFINITY where no key is seen */
    double entropy; /* nats, 0 where no key is seen */
};

/* The absorbed context over dequantised records latent [count, L] and rope [count, R] (NULL if R is
 * 0). rows is the caller's [count, L + R] and must outlive the context. */
struct ref_context ref_absorbed(const float *latent, const float *rope, uint64_t count, uint32_t L,
                                uint32_t R, double *rows);
/* The decompressed context of one head; rows is [count, N + R + V]. */
struct ref_head {
    const float *w_uk, *w_uv; /* [N, L], [V, L] */
    uint32_t N, V;
};
struct ref_context ref_decompressed(const float *latent, const float *rope, uint64_t count,
                                    uint32_t L, uint32_t R, const struct ref_head *head,
                                    double *rows);

/* One row over keys 0 .. visible - 1 (visible <= count; 0 or less: none): out [value_dim]. */
struct ref_result ref_attend(const struct ref_context *context, int64_t visible, const double *q,
                             double scale, double *out);

/* Joins parts over disjoint keys: outs [parts, dim] normalised, lses and entropies [parts]. */
struct ref_result ref_merge(uint64_t parts, uint64_t dim, const double *outs, const double *lses,
                            const double *entropies, double *out);

/* latent [L] = nope [N] . w_uk [N, L];  value [V] = w_uv [V, L] . latent [L] */
void ref_absorb(const double *nope, const float *w_uk, uint32_t N, uint32_t L, double *latent);
void ref_value(const double *latent, const float *w_uv, uint32_t V, uint32_t L, double *value);

#endif
