/* The processor's fp32 multiply-add rate, measured: what bounds attention from a few heads up. */
#ifndef TOOLS_BENCH_PEAK_H
#define TOOLS_BENCH_PEAK_H

#include <stdint.h>

/* TFLOP/s of all threads together with the vectors of isa (LKV_ISA_*), best of a few runs; 0 where
 * this build has no such instructions. */
double peak_fma_tflops(uint32_t threads, uint32_t isa);

#endif
