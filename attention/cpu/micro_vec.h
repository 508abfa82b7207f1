/* Vectors of LANES floats by the compiler's vector types: what micro.inc needs of every instruction
 * set but the fused multiply-add and the maximum. */
#include <stdint.h>

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef float vec_any __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static inline vec v_load(const float *p)
{
    return (vec) * (const vec_any *)p;
}

static inline void v_store(float *p, vec x)
{
    *(vec_any *)p = (vec_any)x;
}
