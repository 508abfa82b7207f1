/* The micro-kernels with AVX-512: 12 rows by one vector; the rows' values are broadcast by the
 * multiply-add itself, so a step is one load and 12 fused operations. */
#if defined(__x86_64__)
#include <immintrin.h>
#include "attention/cpu/micro.h"

enum { LANES = 16 };
#define ROWS 12
#include "attention/cpu/micro_vec.h"

static inline vec v_set(float x)
{
    return (vec)_mm512_set1_ps(x);
}

static inline vec v_fma(vec a, vec b, vec c)
{
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}

static inline vec v_max(vec a, vec b)
{
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
}

#include "attention/cpu/micro.inc"

const struct lkvi_micro lkvi_micro_avx512 = {"avx512", gemm, dots, softmax};
#endif
