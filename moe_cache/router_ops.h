/* What the vector units do for a router. Each operation is the same chain of fp32 additions and
 * multiplications in 16 lanes on every machine, so which one ran cannot be seen in the results. */
#ifndef LKVI_MOE_CACHE_ROUTER_OPS_H
#define LKVI_MOE_CACHE_ROUTER_OPS_H

#include <stdint.h>

enum { LKVI_ROUTE_LANES = 16, LKVI_ROUTE_TILE = 8, LKVI_ROUTE_MAX = 1024 };

struct lkvi_linear {
    const void *x; /* fp32 or bf16, dense in depth */
    uint64_t x_stride_bytes;
    uint32_t x_is_bf16, tokens;
    const float *weight;  /* [rows, depth] */
    const float *bias;    /* [rows] or NULL */
    uint32_t rows, depth; /* depth a multiple of 16 */
    float *y;             /* [tokens, y_stride] */
    uint64_t y_stride;
};

struct lkvi_route_ops {
    const char *name;
    /* y[t, r] = bias[r] + the sum over 16 lanes of x[t] * weight[r] */
    void (*linear)(const struct lkvi_linear *l);
    /* in place, n padded to 16 by the caller: NaN to -FLT_MAX, infinities to +-FLT_MAX */
    void (*tame)(float *x, uint32_t n);
    /* score = sigmoid(x); with entropy not NULL the moments { sum s, sum s ln s } over n values */
    void (*sigmoid)(const float *x, float *score, uint32_t n, float *moments);
    /* score = exp((x - max) * inverse_temperature) and { sum e, sum e * argument } over n values */
    void (*softmax)(const float *x, float *score, uint32_t n, float max, float inverse_temperature,
                    float *moments);
    /* Indices of the k largest by falling value, the lowest first among equals; they become -inf,
     * and there are k above that. x is padded with -inf to 16. */
    void (*best)(float *x, uint32_t n, uint32_t k, int32_t *out);
    /* The largest and the second largest; -inf where there is none. */
    void (*top2)(const float *x, uint32_t n, float out[2]);
};

extern const struct lkvi_route_ops lkvi_route_ops_portable;
#if defined(__x86_64__)
extern const struct lkvi_route_ops lkvi_route_ops_avx2, lkvi_route_ops_avx512;
#endif

static inline uint32_t lkvi_lanes16(uint32_t n)
{
    return (n + LKVI_ROUTE_LANES - 1) / LKVI_ROUTE_LANES * LKVI_ROUTE_LANES;
}

#endif
