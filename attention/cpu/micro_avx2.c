/* The micro-kernels with AVX2 and FMA: 6 rows by 2 vectors, 12 accumulators of the 16 registers. */
#if defined(__x86_64__)
#include <immintrin.h>
#include "attention/cpu/micro.h"

enum { LANES = 8 };
#define ROWS 6
#include "attention/cpu/micro_vec.h"

static inline vec v_set(float x)
{
    return (vec)_mm256_set1_ps(x);
}

static inline vec v_fma(vec a, vec b, vec c)
{
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

static inline vec v_max(vec a, vec b)
{
    return (vec)_mm256_max_ps((__m256)a, (__m256)b);
}

#include "attention/cpu/micro.inc"

const struct lkvi_micro lkvi_micro_avx2 = {"avx2", gemm, dots, softmax};
#endif
