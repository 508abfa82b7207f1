/* See moments.h. The sums are float64 over float32 rows; eight rows share one pass over them. */
#include "tools/fit/moments.h"

#include <gsl/gsl_eigen.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/out.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("arch=haswell", "default")))
#else
#define CLONES
#endif

enum { ROWS = 8 };

struct moments moments_new(uint32_t dim)
{
    return (struct moments){.dim = dim, .sums = out_alloc((size_t)dim * dim, sizeof(double))};
}

/* rows [ROWS, dim]; the loop over j is the vector */
CLONES static void add_rows(double *sums, const double *rows, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        double *to = sums + (size_t)i * n;
        double x[ROWS];
        for (uint32_t r = 0; r < ROWS; r++)
            x[r] = rows[(size_t)r * n + i];
        for (uint32_t j = 0; j <= i; j++) {
            const double *y = rows + j;
            const double low = x[0] * y[0] + x[1] * y[n] + (x[2] * y[2 * n] + x[3] * y[3 * n]);
            y += (size_t)4 * n;
            to[j] += low + (x[4] * y[0] + x[5] * y[n] + (x[6] * y[2 * n] + x[7] * y[3 * n]));
        }
    }
}

void moments_add(struct moments *m, const float *rows, uint64_t count, uint64_t stride)
{
    double *wide = out_alloc((size_t)m->dim * ROWS, sizeof *wide);
    for (uint64_t at = 0; at < count; at += ROWS) {
        for (uint32_t r = 0; r < ROWS; r++)
            for (uint32_t i = 0; i < m->dim; i++)
                wide[(size_t)r * m->dim + i] = at + r < count ? rows[(at + r) * stride + i] : 0;
        add_rows(m->sums, wide, m->dim);
    }
    m->count += count;
    free(wide);
}

static gsl_matrix *mean_moment(const struct moments *m)
{
    gsl_matrix *a = gsl_matrix_alloc(m->dim, m->dim);
    for (uint32_t i = 0; i < m->dim; i++)
        for (uint32_t j = 0; j <= i; j++) {
            double x = m->sums[(size_t)i * m->dim + j] / (double)m->count;
            gsl_matrix_set(a, i, j, x);
            gsl_matrix_set(a, j, i, x);
        }
    return a;
}

struct spectrum spectrum_of(const struct moments *m)
{
    const uint32_t n = m->dim;
    struct spectrum s = {.dim = n,
                         .values = out_alloc(n, sizeof(double)),
                         .vectors = out_alloc((size_t)n * n, sizeof(double))};
    gsl_matrix *a = mean_moment(m), *vectors = gsl_matrix_alloc(n, n);
    gsl_vector *values = gsl_vector_alloc(n);
    gsl_eigen_symmv_workspace *work = gsl_eigen_symmv_alloc(n);
    if (gsl_eigen_symmv(a, values, vectors, work))
        out_die("the eigenvectors of a moment matrix of %u dimensions were not found", n);
    gsl_eigen_symmv_sort(values, vectors, GSL_EIGEN_SORT_VAL_DESC);
    for (uint32_t i = 0; i < n; i++) {
        s.values[i] = gsl_vector_get(values, i);
        for (uint32_t d = 0; d < n; d++)
            s.vectors[(size_t)i * n + d] = gsl_matrix_get(vectors, d, i);
    }
    gsl_eigen_symmv_free(work);
    gsl_vector_free(values);
    gsl_matrix_free(vectors);
    gsl_matrix_free(a);
    return s;
}

void spectrum_free(struct spectrum *s)
{
    free(s->values);
    free(s->vectors);
    memset(s, 0, sizeof *s);
}

/* v' S v with the half of S that is kept */
static double quadratic(const struct moments *m, const double *v)
{
    double sum = 0;
    for (uint32_t i = 0; i < m->dim; i++) {
        const double *row = m->sums + (size_t)i * m->dim;
        double part = row[i] * v[i] / 2;
        for (uint32_t j = 0; j < i; j++)
            part += row[j] * v[j];
        sum += 2 * part * v[i];
    }
    return sum;
}

void spectrum_energy(const struct spectrum *s, const struct moments *m, double *energy)
{
    for (uint32_t i = 0; i < s->dim; i++) {
        double e = quadratic(m, s->vectors + (size_t)i * s->dim);
        energy[i] = e > 0 ? e : 0; /* rounding of a direction without energy */
    }
}
