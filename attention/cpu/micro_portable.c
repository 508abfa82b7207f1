/* The micro-kernels for any processor: four lanes of the compiler's vector type (SSE2, NEON or
 * plain code), multiply and add apart. This is the "scalar" entry of the library. */
#include "attention/cpu/micro.h"

enum { LANES = 4 };
#define ROWS 2
#include "attention/cpu/micro_vec.h"

static inline vec v_set(float x)
{
    return (vec){x, x, x, x};
}

static inline vec v_fma(vec a, vec b, vec c)
{
    return a * b + c;
}

static inline vec v_max(vec a, vec b)
{
    ivec mask = a > b;
    return (vec)((mask & (ivec)a) | (~mask & (ivec)b));
}

#include "attention/cpu/micro.inc"

const struct lkvi_micro lkvi_micro_portable = {"scalar", gemm, dots, softmax};
