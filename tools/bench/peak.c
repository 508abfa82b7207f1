/* In: threads and an instruction set. Out: fp32 multiply-adds a second that these reach. Each
 * thread keeps more independent chains in registers than the latency of a multiply-add times its
 * issue rate, so nothing but the multiply-add units is busy. */
#include "tools/bench/peak.h"

#include <pthread.h>

#include "latentkv/latentkv.h"
#include "tools/common/clock.h"
#include "tools/common/out.h"

enum { CHAINS = 12, STEPS = 2000000, RUNS = 5, MAX_THREADS = 256 };

#if defined(__x86_64__)
#include <immintrin.h>

/* Twelve chains x = x * a + b that stay near 1. The empty asm keeps the sums alive. */
__attribute__((target("avx2,fma"))) static void chains_avx2(void)
{
    __m256 x[CHAINS];
    const __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(0.5f);
    for (int c = 0; c < CHAINS; c++)
        x[c] = _mm256_set1_ps((float)c);
    for (int i = 0; i < STEPS; i++)
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++)
            x[c] = _mm256_fmadd_ps(x[c], a, b);
    for (int c = 0; c < CHAINS; c++)
        __asm__ volatile("" ::"x"(x[c]));
}

__attribute__((target("avx512f"))) static void chains_avx512(void)
{
    __m512 x[CHAINS];
    const __m512 a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(0.5f);
    for (int c = 0; c < CHAINS; c++)
        x[c] = _mm512_set1_ps((float)c);
    for (int i = 0; i < STEPS; i++)
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++)
            x[c] = _mm512_fmadd_ps(x[c], a, b);
    for (int c = 0; c < CHAINS; c++)
        __asm__ volatile("" ::"v"(x[c]));
}

static void (*chains_of(uint32_t isa, uint32_t *lanes))(void)
{
    *lanes = isa == LKV_ISA_AVX512 ? 16 : 8;
    return isa == LKV_ISA_AVX512 ? chains_avx512 : isa == LKV_ISA_AVX2 ? chains_avx2 : NULL;
}
#else
static void (*chains_of(uint32_t isa, uint32_t *lanes))(void)
{
    (void)isa;
    *lanes = 0;
    return NULL;
}
#endif

static void *run(void *chains)
{
    (*(void (**)(void))chains)();
    return NULL;
}

static double seconds_once(void (*chains)(void), uint32_t threads)
{
    pthread_t ids[MAX_THREADS];
    const uint64_t begin = clock_ns();
    for (uint32_t t = 1; t < threads; t++)
        if (pthread_create(&ids[t], NULL, run, &chains))
            out_die("thread %u of %u cannot start", t, threads);
    chains();
    for (uint32_t t = 1; t < threads; t++)
        pthread_join(ids[t], NULL);
    return (double)(clock_ns() - begin) * 1e-9;
}

double peak_fma_tflops(uint32_t threads, uint32_t isa)
{
    uint32_t lanes;
    void (*chains)(void) = chains_of(isa, &lanes);
    if (!chains || threads < 1 || threads > MAX_THREADS)
        return 0;
    double best = seconds_once(chains, threads);
    for (int i = 1; i < RUNS; i++) {
        const double seconds = seconds_once(chains, threads);
        best = seconds < best ? seconds : best;
    }
    return 2.0 * lanes * CHAINS * STEPS * threads / best * 1e-12;
}
