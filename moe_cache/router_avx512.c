/* The routers' arithmetic with AVX-512: 16 lanes are one register. */
#if defined(__x86_64__)
#include <immintrin.h>

#define LANES 16
#define MASK(m) _mm512_movepi32_mask((__m512i)(m))
#include "moe_cache/router_ops.inc"

const struct lkvi_route_ops lkvi_route_ops_avx512 = {"avx512", linear, tame, sigmoid,
                                                     softmax,  best,   top2};
#endif
