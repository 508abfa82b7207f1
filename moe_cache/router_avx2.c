/* The routers' arithmetic with AVX2: 16 lanes are two registers. */
#if defined(__x86_64__)
#include <immintrin.h>

#define LANES 8
#define MASK(m) _mm256_movemask_ps((__m256)(m))
#include "moe_cache/router_ops.inc"

const struct lkvi_route_ops lkvi_route_ops_avx2 = {"avx2",  linear, tame, sigmoid,
                                                   softmax, best,   top2};
#endif
