/* The oracle of attention. See ref_attention.h. */
#include "tests/reference/ref_attention.h"

#include <math.h>
#include <stdlib.h>

/* Eight sums side by side, only to keep the oracle's time bearable. */
static double dot(const double *a, const double *b, uint32_t n)
{
    double sum[8] = {0};
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (uint32_t j = 0; j < 8; j++)
            sum[j] += a[i + j] * b[i + j];
    for (; i < n; i++)
        sum[0] += a[i] * b[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

struct ref_context ref_absorbed(const float *latent, const float *rope, uint64_t count, uint32_t L,
                                uint32_t R, double *rows)
{
    for (uint64_t t = 0; t < count; t++) {
        for (uint32_t i = 0; i < L; i++)
            rows[t * (L + R) + i] = latent[t * L + i];
        for (uint32_t i = 0; i < R; i++)
            rows[t * (L + R) + L + i] = rope[t * R + i];
    }
    return (struct ref_context){.count = count,
                                .key_dim = L + R,
                                .value_dim = L,
                                .key_stride = L + R,
                                .value_stride = L + R,
                                .keys = rows,
                                .values = rows};
}

struct ref_context ref_decompressed(const float *latent, const float *rope, uint64_t count,
                                    uint32_t L, uint32_t R, const struct ref_head *head,
                                    double *rows)
{
    uint32_t N = head->N, V = head->V;
    uint64_t stride = N + R + V;
    double *c = malloc(L * sizeof *c);
    for (uint64_t t = 0; t < count; t++) {
        double *row = rows + t * stride;
        for (uint32_t i = 0; i < L; i++)
            c[i] = latent[t * L + i];
        ref_value(c, head->w_uk, N, L, row);
        for (uint32_t i = 0; i < R; i++)
            row[N + i] = rope[t * R + i];
        ref_value(c, head->w_uv, V, L, row + N + R);
    }
    free(c);
    return (struct ref_context){.count = count,
                                .key_dim = N + R,
                                .value_dim = V,
                                .key_stride = stride,
                                .value_stride = stride,
                                .keys = rows,
                                .values = rows + N + R};
}

/* Scores of the visible keys; returns the largest. */
static double scores_of(const struct ref_context *c, int64_t visible, const double *q, double scale,
                        double *s)
{
    double max = -INFINITY;
    for (int64_t t = 0; t < visible; t++) {
        s[t] = scale * dot(q, c->keys + (uint64_t)t * c->key_stride, c->key_dim);
        if (c->bias)
            s[t] += c->bias[t];
        max = s[t] > max ? s[t] : max;
    }
    return max;
}

struct ref_result ref_attend(const struct ref_context *c, int64_t visible, const double *q,
                             double scale, double *out)
{
    struct ref_result result = {-INFINITY, 0};
    double sum = 0, moment = 0, max = -INFINITY;
    double *s = visible > 0 ? malloc((uint64_t)visible * sizeof *s) : NULL;
    for (uint32_t i = 0; i < c->value_dim; i++)
        out[i] = 0;
    if (visible > 0)
        max = scores_of(c, visible, q, scale, s);
    for (int64_t t = 0; t < visible && max != -INFINITY; t++) {
        double p = exp(s[t] - max);
        const double *v = c->values + (uint64_t)t * c->value_stride;
        sum += p;
        if (p > 0)
            moment += p * s[t];
        for (uint32_t i = 0; i < c->value_dim; i++)
            out[i] += p * v[i];
    }
    free(s);
    if (sum > 0) {
        for (uint32_t i = 0; i < c->value_dim; i++)
            out[i] /= sum;
        result.lse = max + log(sum);
        result.entropy = result.lse - moment / sum;
    }
    return result;
}

struct ref_result ref_merge(uint64_t parts, uint64_t dim, const double *outs, const double *lses,
                            const double *entropies, double *out)
{
    struct ref_result result = {-INFINITY, 0};
    double max = -INFINITY, sum = 0, score = 0;
    for (uint64_t i = 0; i < dim; i++)
        out[i] = 0;
    for (uint64_t p = 0; p < parts; p++)
        max = lses[p] > max ? lses[p] : max;
    for (uint64_t p = 0; p < parts && max != -INFINITY; p++) {
        double w = exp(lses[p] - max);
        sum += w;
        if (w == 0)
            continue;
        score += w * (lses[p] - entropies[p]); /* the part's mean score */
        for (uint64_t i = 0; i < dim; i++)
            out[i] += w * outs[p * dim + i];
    }
    if (sum > 0) {
        for (uint64_t i = 0; i < dim; i++)
            out[i] /= sum;
        result.lse = max + log(sum);
        result.entropy = result.lse - score / sum;
    }
    return result;
}

void ref_absorb(const double *nope, const float *w_uk, uint32_t N, uint32_t L, double *latent)
{
    for (uint32_t i = 0; i < L; i++)
        latent[i] = 0;
    for (uint32_t n = 0; n < N; n++)
        for (uint32_t i = 0; i < L; i++)
            latent[i] += nope[n] * w_uk[(uint64_t)n * L + i];
}

void ref_value(const double *latent, const float *w_uv, uint32_t V, uint32_t L, double *value)
{
    for (uint32_t v = 0; v < V; v++) {
        double sum = 0;
        for (uint32_t i = 0; i < L; i++)
            sum += w_uv[(uint64_t)v * L + i] * latent[i];
        value[v] = sum;
    }
}
