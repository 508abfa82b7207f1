/* The oracle of LATENT_GQA in float64: matrices of one projector, latents of one KV head. */
#ifndef LKVT_REFERENCE_REF_HEADS_H
#define LKVT_REFERENCE_REF_HEADS_H

#include "tests/reference/ref_attention.h"

struct ref_projector {
    uint32_t key_dim, value_dim, key_latent, value_latent;
    const float *key_down, *key_up;     /* [G, key_dim, key_latent] */
    const float *value_down, *value_up; /* [G, value_dim, value_latent] */
};

/* latent = x . down of KV head g */
void ref_key_latent(const struct ref_projector *p, uint32_t g, const float *key, double *latent);
void ref_value_latent(const struct ref_projector *p, uint32_t g, const float *value,
                      double *latent);

/* Keys and values of KV head g out of dense latents [count, G, key_latent], [count, G,
 * value_latent]; rows is the caller's [count, key_latent + value_latent]. */
struct ref_latents {
    const float *keys, *values;
    uint64_t count;
    uint32_t num_heads; /* G */
};
struct ref_context ref_heads_context(const struct ref_projector *p, const struct ref_latents *l,
                                     uint32_t g, double *rows);

/* One row of a query head that reads KV head g. q [key_dim] is projected by key_up, or with
 * q_latent is [key_latent]; out [value_dim] is expanded by value_up, or with out_latent is
 * [value_latent]. */
struct ref_row {
    uint32_t g, q_latent, out_latent;
    int64_t visible;
    double scale;
    const double *q;
    double *out;
};
struct ref_result ref_heads_attend(const struct ref_projector *p, const struct ref_context *context,
                                   const struct ref_row *row);

#endif
