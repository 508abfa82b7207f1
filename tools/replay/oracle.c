/* In: a query row and dequantised keys. Out: softmax attention in float64, the slow and obvious
 * way: all scores, their maximum, the weighted mean. */
#include "tools/replay/oracle.h"

#include <math.h>
#include <stdlib.h>

#include "tools/common/out.h"

void oracle_resize(struct oracle_keys *k, uint64_t num)
{
    if (num > k->capacity) {
        k->capacity = num + num / 4;
        k->latent = out_grow(k->latent, k->capacity * k->latent_dim * sizeof *k->latent);
        k->rope = out_grow(k->rope, k->capacity * (k->rope_dim + 1) * sizeof *k->rope);
    }
    k->num = num;
}

void oracle_free(struct oracle_keys *k)
{
    free(k->latent);
    free(k->rope);
}

static double dot(const float *a, const double *b, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

void oracle_attend(const struct oracle_keys *k, const float *q, const float *q_rope, double scale,
                   double *out)
{
    const uint32_t dim = k->latent_dim;
    double *score = out_alloc(k->num, sizeof *score);
    double most = -INFINITY, sum = 0;
    for (uint64_t t = 0; t < k->num; t++) {
        score[t] = scale * (dot(q, k->latent + t * dim, dim) +
                            dot(q_rope, k->rope + t * k->rope_dim, k->rope_dim));
        most = score[t] > most ? score[t] : most;
    }
    for (uint32_t i = 0; i < dim; i++)
        out[i] = 0;
    for (uint64_t t = 0; t < k->num; t++) {
        const double p = exp(score[t] - most);
        sum += p;
        for (uint32_t i = 0; i < dim; i++)
            out[i] += p * k->latent[t * dim + i];
    }
    for (uint32_t i = 0; i < dim; i++)
        out[i] /= sum;
    free(score);
}

double oracle_rel_l2(const float *a, const double *b, uint32_t n)
{
    double difference = 0, norm = 0;
    for (uint32_t i = 0; i < n; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        norm += b[i] * b[i];
    }
    return sqrt(difference / (norm > 0 ? norm : 1));
}
