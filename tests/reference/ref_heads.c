/* The oracle of LATENT_GQA. See ref_heads.h. */
#include "tests/reference/ref_heads.h"

#include <stdlib.h>

static void down(const float *x, uint32_t dim, uint32_t latent_dim, const float *matrix,
                 double *latent)
{
    for (uint32_t k = 0; k < latent_dim; k++) {
        double sum = 0;
        for (uint32_t d = 0; d < dim; d++)
            sum += (double)x[d] * matrix[(uint64_t)d * latent_dim + k];
        latent[k] = sum;
    }
}

void ref_key_latent(const struct ref_projector *p, uint32_t g, const float *key, double *latent)
{
    down(key, p->key_dim, p->key_latent, p->key_down + (uint64_t)g * p->key_dim * p->key_latent,
         latent);
}

void ref_value_latent(const struct ref_projector *p, uint32_t g, const float *value, double *latent)
{
    down(value, p->value_dim, p->value_latent,
         p->value_down + (uint64_t)g * p->value_dim * p->value_latent, latent);
}

struct ref_context ref_heads_context(const struct ref_projector *p, const struct ref_latents *l,
                                     uint32_t g, double *rows)
{
    uint32_t K = p->key_latent, V = p->value_latent, stride = K + V;
    for (uint64_t t = 0; t < l->count; t++) {
        const uint64_t at = t * l->num_heads + g;
        for (uint32_t i = 0; i < K; i++)
            rows[t * stride + i] = l->keys[at * K + i];
        for (uint32_t i = 0; i < V; i++)
            rows[t * stride + K + i] = l->values[at * V + i];
    }
    return (struct ref_context){.count = l->count,
                                .key_dim = K,
                                .value_dim = V,
                                .key_stride = stride,
                                .value_stride = stride,
                                .keys = rows,
                                .values = rows + K};
}

struct ref_result ref_heads_attend(const struct ref_projector *p, const struct ref_context *context,
                                   const struct ref_row *row)
{
    double *q = malloc(p->key_latent * sizeof *q), *out = malloc(p->value_latent * sizeof *out);
    for (uint32_t i = 0; i < p->key_latent && row->q_latent; i++)
        q[i] = row->q[i];
    if (!row->q_latent)
        ref_absorb(row->q, p->key_up + (uint64_t)row->g * p->key_dim * p->key_latent, p->key_dim,
                   p->key_latent, q);
    struct ref_result result = ref_attend(context, row->visible, q, row->scale, out);
    for (uint32_t i = 0; i < p->value_latent && row->out_latent; i++)
        row->out[i] = out[i];
    if (!row->out_latent)
        ref_value(out, p->value_up + (uint64_t)row->g * p->value_dim * p->value_latent,
                  p->value_dim, p->value_latent, row->out);
    free(q);
    free(out);
    return result;
}
