/* Random numbers for tests: splitmix64, so that a seed printed by a failure is enough to see the
 * same values again on any machine. */
#ifndef LKVT_SUPPORT_RNG_H
#define LKVT_SUPPORT_RNG_H

#include <math.h>
#include <stdint.h>
#include <string.h>

struct rng {
    uint64_t state;
};

static inline struct rng rng_seed(uint64_t seed)
{
    return (struct rng){seed};
}

static inline uint64_t rng_next(struct rng *r)
{
    uint64_t z = (r->state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* 0..n-1 */
static inline uint64_t rng_below(struct rng *r, uint64_t n)
{
    return rng_next(r) % n;
}

/* [0, 1) */
static inline double rng_uniform(struct rng *r)
{
    return (double)(rng_next(r) >> 11) * 0x1p-53;
}

static inline double rng_normal(struct rng *r)
{
    double u = 1.0 - rng_uniform(r), v = rng_uniform(r);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

/* any 32 bits as a float: NaN, infinities and subnormals too */
static inline float rng_any_float(struct rng *r)
{
    uint32_t u = (uint32_t)(rng_next(r) >> 32);
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline void rng_fill_normal(struct rng *r, float *x, uint64_t n, double sigma)
{
    for (uint64_t i = 0; i < n; i++)
        x[i] = (float)(sigma * rng_normal(r));
}

#endif
