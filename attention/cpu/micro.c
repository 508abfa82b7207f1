/* The choice among the micro-kernels. */
#include "attention/cpu/micro.h"
#include "latentkv/latentkv.h"

const struct lkvi_micro *lkvi_micro_get(uint32_t isa)
{
#if defined(__x86_64__)
    if (isa == LKV_ISA_AVX512)
        return &lkvi_micro_avx512;
    if (isa == LKV_ISA_AVX2)
        return &lkvi_micro_avx2;
#endif
    (void)isa;
    return &lkvi_micro_portable;
}
