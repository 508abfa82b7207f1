/* To first order in errors e_t of the scores, with p the softmax, H its entropy:
 *   d lse = sum_t p_t e_t                d H = -sum_t p_t (ln p_t + H) e_t
 * Every kernel rounds q to its operand, once for all keys: e_t = scale sum_d q_d r_d k_td, |r_d| <=
 * u_d. So with weights w_t = p_t or p_t (ln p_t + H) and m_d = sum_t w_t k_td,
 *   d = scale sum_d q_d r_d m_d,   a sum of independent terms of variance at most (q_d m_d u_d)^2 /
 * 3 (r_d uniform). The unit roundoffs u: the rope part 2^-8 (bf16); the latent part 2^-8 for BF16
 * records, 2^-11 (fp16) for the others, and for INT8 also the 16-bit integers of the largest |q|:
 * q_d u_d <= max|q| / 65278. Keys are exact operands, except FP8's in the generic rows (fp16, each
 * for itself): variance sum_t w_t^2 sum_d (q_d k_td 2^-11)^2 / 3.
 * Six sigmas: one of 10^9 comparisons fails by chance. Sums in fp32 of at most 512 terms a thread
 * err by 512 2^-24 of themselves, products inside the tensor cores by 2^-20 of their absolutes. */
#include "tests/gpu/bound.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "latentkv/latentkv.h"

static const double SIGMAS = 6, SUMS = 0x1p-15, PRODUCTS = 0x1p-20;

struct weights {   /* of one of the two derivatives */
    double *mean;  /* [key_dim] sum_t w_t k_td */
    double square; /* sum_t w_t^2 sum_d (q_d k_td)^2 */
};

/* Scores and their softmax: p becomes the probabilities; returns the largest score and the lse. */
static void softmax(const struct ref_context *c, int64_t visible, const double *q, double scale,
                    double *p, double *top, double *lse)
{
    double sum = 0;
    *top = -INFINITY;
    for (int64_t t = 0; t < visible; t++) {
        const double *k = c->keys + (uint64_t)t * c->key_stride;
        p[t] = 0;
        for (uint32_t d = 0; d < c->key_dim; d++)
            p[t] += q[d] * k[d];
        p[t] = scale * p[t] + (c->bias ? c->bias[t] : 0);
        *top = fmax(*top, p[t]);
    }
    for (int64_t t = 0; t < visible; t++)
        sum += p[t] = exp(p[t] - *top);
    for (int64_t t = 0; t < visible; t++)
        p[t] /= sum;
    *lse = *top + log(sum);
}

static void add_key(const struct ref_context *c, const double *k, const double *q, double weight,
                    struct weights *w)
{
    double square = 0;
    for (uint32_t d = 0; d < c->key_dim; d++) {
        w->mean[d] += weight * k[d];
        square += q[d] * k[d] * q[d] * k[d];
    }
    w->square += weight * weight * square;
}

static double bound_with(const struct ref_context *c, const double *q, uint32_t latent,
                         double scale, uint32_t format, const struct weights *w)
{
    const double u = format == LKV_FORMAT_BF16 ? 0x1p-8 : 0x1p-11;
    double most = 0, variance = 0, absolute = 0;
    for (uint32_t d = 0; d < latent; d++)
        most = fmax(most, fabs(q[d]));
    for (uint32_t d = 0; d < c->key_dim; d++) {
        const double r = q[d] * (d < latent ? u : 0x1p-8);
        const double step = format == LKV_FORMAT_INT8 && d < latent ? most / 65278 : 0;
        variance += (r * r + step * step) * w->mean[d] * w->mean[d] / 3;
        absolute += fabs(q[d] * w->mean[d]);
    }
    if (format == LKV_FORMAT_FP8)
        variance += w->square * 0x1p-22 / 3;
    return scale * (SIGMAS * sqrt(variance) + PRODUCTS * absolute);
}

struct bound bound_of(const struct ref_context *c, int64_t visible, const double *q,
                      uint32_t latent, double scale, uint32_t format)
{
    double *p = malloc(((uint64_t)visible + 1) * sizeof *p), top, lse, entropy = 0;
    double *means = calloc(2 * (size_t)c->key_dim + 1, sizeof *means);
    struct weights of_lse = {.mean = means}, of_entropy = {.mean = means + c->key_dim};
    softmax(c, visible, q, scale, p, &top, &lse);
    for (int64_t t = 0; t < visible; t++)
        entropy -= p[t] > 0 ? p[t] * log(p[t]) : 0;
    for (int64_t t = 0; t < visible; t++)
        if (p[t] > 0) {
            const double *k = c->keys + (uint64_t)t * c->key_stride;
            add_key(c, k, q, p[t], &of_lse);
            add_key(c, k, q, p[t] * (log(p[t]) + entropy), &of_entropy);
        }
    /* H = ln l - m with l = sum e^(s - top), m = the mean of s - top: both are sums in fp32. */
    const double mean = fabs(lse - top - entropy);
    struct bound b = {bound_with(c, q, latent, scale, format, &of_lse) + SUMS,
                      bound_with(c, q, latent, scale, format, &of_entropy) + SUMS * (2 + mean)};
    free(p);
    free(means);
    return b;
}
