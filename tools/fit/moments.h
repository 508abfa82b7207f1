/* Second moments of samples and their eigenvectors (GNU Scientific Library). In: rows of one head's
 * keys or values. Out: directions by falling energy, and how much of any samples' energy each
 * holds. About zero, not about the mean: a projector has no offset, so what it loses is measured
 * from 0. */
#ifndef LKV_TOOLS_FIT_MOMENTS_H
#define LKV_TOOLS_FIT_MOMENTS_H

#include <stdint.h>

struct moments {
    uint32_t dim;
    uint64_t count; /* rows */
    double *sums;   /* [dim, dim] sum of x_i x_j; j <= i is kept */
};
struct moments moments_new(uint32_t dim); /* dies without memory; free sums with free() */
void moments_add(struct moments *m, const float *rows, uint64_t count, uint64_t stride);

struct spectrum {
    uint32_t dim;
    double *values;  /* [dim] falling, of the mean second moment */
    double *vectors; /* [dim, dim] row i belongs to values[i] */
};
struct spectrum spectrum_of(const struct moments *m);
void spectrum_free(struct spectrum *s);
/* energy[i] = sum over the samples of m of (vector i . x)^2 */
void spectrum_energy(const struct spectrum *s, const struct moments *m, double *energy);

#endif
