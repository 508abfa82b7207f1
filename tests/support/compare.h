/* Comparisons that say where they fail: the first differing index and both values go to stderr,
 * with the caller's label (seed, shape). They return 1 when all is well, so they sit inside
 * cr_assert. */
#ifndef LKVT_SUPPORT_COMPARE_H
#define LKVT_SUPPORT_COMPARE_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static inline uint32_t float_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline int same_bytes(const char *label, const void *found, const void *wanted, uint64_t n)
{
    const uint8_t *a = found, *b = wanted;
    for (uint64_t i = 0; i < n; i++)
        if (a[i] != b[i]) {
            fprintf(stderr, "%s: byte %llu is 0x%02X, want 0x%02X\n", label, (unsigned long long)i,
                    a[i], b[i]);
            return 0;
        }
    return 1;
}

/* Bit equality, any NaN equal to any NaN. */
static inline int same_floats(const char *label, const float *found, const float *wanted,
                              uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (float_bits(found[i]) != float_bits(wanted[i]) &&
            !(isnan(found[i]) && isnan(wanted[i]))) {
            fprintf(stderr, "%s: element %llu is %a (%.9g), want %a (%.9g)\n", label,
                    (unsigned long long)i, found[i], found[i], wanted[i], wanted[i]);
            return 0;
        }
    return 1;
}

/* |found - wanted| / |wanted|, Euclidean; 0 for two zero vectors, infinity if only wanted is zero
 * or anything is not finite */
static inline double relative_l2(const float *found, const double *wanted, uint64_t n)
{
    double error = 0, norm = 0;
    for (uint64_t i = 0; i < n; i++) {
        double d = (double)found[i] - wanted[i];
        error += d * d;
        norm += wanted[i] * wanted[i];
    }
    if (!isfinite(error) || !isfinite(norm))
        return INFINITY;
    return norm > 0 ? sqrt(error / norm) : error > 0 ? INFINITY : 0;
}

static inline int close_l2(const char *label, const float *found, const double *wanted, uint64_t n,
                           double bound)
{
    double e = relative_l2(found, wanted, n);
    if (e <= bound)
        return 1;
    uint64_t worst = 0;
    for (uint64_t i = 0; i < n; i++)
        if (!(fabs(found[i] - wanted[i]) <= fabs(found[worst] - wanted[worst])))
            worst = i;
    fprintf(stderr, "%s: rel-L2 %.3e, want <= %.3e; worst element %llu is %.9g, want %.9g\n", label,
            e, bound, (unsigned long long)worst, found[worst], wanted[worst]);
    return 0;
}

#endif
