/* Seeded random numbers that are the same on every machine: splitmix64. mix64 is a bijection of 64
 * bits, so different inputs never give equal outputs: token expansion relies on that. */
#ifndef TOOLS_COMMON_RNG_H
#define TOOLS_COMMON_RNG_H

#include <math.h>
#include <stdint.h>

static inline uint64_t mix64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline uint64_t rng_next(uint64_t *state)
{
    uint64_t r = mix64(*state);
    *state += 0x9e3779b97f4a7c15u;
    return r;
}

/* (0, 1): never 0, so its logarithm is finite */
static inline double rng_unit(uint64_t *state)
{
    return ((double)(rng_next(state) >> 11) + 0.5) * 0x1p-53;
}

static inline uint64_t rng_below(uint64_t *state, uint64_t n)
{
    return n ? rng_next(state) % n : 0;
}

static inline double rng_exponential(uint64_t *state, double mean)
{
    return -mean * log(rng_unit(state));
}

static inline double rng_normal(uint64_t *state)
{
    double r = sqrt(-2.0 * log(rng_unit(state)));
    return r * cos(6.283185307179586 * rng_unit(state));
}

/* median and sigma of the logarithm */
static inline double rng_lognormal(uint64_t *state, double median, double sigma)
{
    return median * exp(sigma * rng_normal(state));
}

#endif
