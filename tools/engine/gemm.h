/* The engine's dense arithmetic on the CPU, float32. Small on purpose: the model around the cache
 * only has to be right and not in the way. */
#ifndef LKV_TOOLS_ENGINE_GEMM_H
#define LKV_TOOLS_ENGINE_GEMM_H

#include <stddef.h>

/* y[m, n] = (or +=, if accumulate) sum_k x[m, k] w[n, k]; x rows x_stride apart, w and y dense; k a
 * multiple of 8. Split over num_threads threads by columns. */
struct gemm {
    const float *x, *w;
    float *y;
    size_t m, n, k, x_stride;
    int accumulate;
};
void gemm_run(const struct gemm *g, unsigned num_threads);

/* y[m, n] = x * rsqrt(mean(x^2) + eps) * weight, row by row */
void rms_norm(const float *x, const float *weight, float *y, size_t m, size_t n, float eps);
/* gate = silu(gate) * up */
void silu_multiply(float *gate, const float *up, size_t count);

#endif
