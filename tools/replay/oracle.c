/* In: a query row, dequantised records. Out: what attention over them is in float64. */
#include "tools/replay/oracle.h"

#include <math.h>
#include <stdlib.h>

#include "tools/common/out.h"

void oracle_resize(struct oracle *k, uint64_t num)
{
    const uint32_t dim = k->latent_dim + k->rope_dim;
    if (!k->q)
        k->q = out_alloc(dim, sizeof *k->q);
    if (num > k->capacity) {
        k->capacity = num + num / 4;
        k->rows = out_grow(k->rows, k->capacity * dim * sizeof *k->rows);
    }
    k->num = num;
}

void oracle_free(struct oracle *k)
{
    free(k->rows);
    free(k->q);
}

double *oracle_row(const struct oracle *k, uint64_t token)
{
    return k->rows + token * (k->latent_dim + k->rope_dim);
}

void oracle_attend(const struct oracle *k, const float *q, const float *q_rope, double scale,
                   double *out)
{
    const uint32_t dim = k->latent_dim, all = dim + k->rope_dim;
    const struct ref_context context = {.count = k->num,
                                        .key_dim = all,
                                        .value_dim = dim,
                                        .key_stride = all,
                                        .value_stride = all,
                                        .keys = k->rows,
                                        .values = k->rows};
    for (uint32_t i = 0; i < dim; i++)
        k->q[i] = (double)q[i];
    for (uint32_t i = dim; i < all; i++)
        k->q[i] = (double)q_rope[i - dim];
    ref_attend(&context, (int64_t)k->num, k->q, scale, out);
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
