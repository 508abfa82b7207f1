/* Dense products by 4 x 4 dot products over vectors of eight: both operands run along k, so nothing
 * is packed. The compiler makes an AVX2 and a baseline version; the loader picks one. */
#include "tools/engine/gemm.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

/* Vectors stay inside this file: the warning about their calling convention does not apply. */
#pragma GCC diagnostic ignored "-Wpsabi"
#define INLINE static inline __attribute__((always_inline))

typedef float vec8 __attribute__((vector_size(32)));
typedef float vec8_loose __attribute__((vector_size(32), aligned(4)));

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("arch=haswell", "default")))
#else
#define CLONES
#endif

enum { TILE = 4, MAX_THREADS = 64 };

INLINE vec8 load8(const float *p)
{
    return *(const vec8_loose *)p;
}

INLINE float sum8(const vec8 *v)
{
    const float *x = (const float *)v;
    return ((x[0] + x[4]) + (x[1] + x[5])) + ((x[2] + x[6]) + (x[3] + x[7]));
}

INLINE void store(const struct gemm *g, size_t i, size_t j, float value)
{
    float *y = g->y + i * g->n + j;
    *y = g->accumulate ? *y + value : value;
}

INLINE void tile4(const struct gemm *g, size_t i, size_t j)
{
    vec8 sums[TILE][TILE] = {{{0}}};
    const float *x = g->x + i * g->x_stride, *w = g->w + j * g->k;
    for (size_t k = 0; k < g->k; k += 8)
        for (int a = 0; a < TILE; a++) {
            vec8 xa = load8(x + (size_t)a * g->x_stride + k);
            for (int b = 0; b < TILE; b++)
                sums[a][b] += xa * load8(w + (size_t)b * g->k + k);
        }
    for (int a = 0; a < TILE; a++)
        for (int b = 0; b < TILE; b++)
            store(g, i + (size_t)a, j + (size_t)b, sum8(&sums[a][b]));
}

INLINE void single(const struct gemm *g, size_t i, size_t j)
{
    vec8 sum = {0};
    for (size_t k = 0; k < g->k; k += 8)
        sum += load8(g->x + i * g->x_stride + k) * load8(g->w + j * g->k + k);
    store(g, i, j, sum8(&sum));
}

/* Columns [begin, end): a strip of w stays in cache while the rows pass. */
CLONES static void columns(const struct gemm *g, size_t begin, size_t end)
{
    for (size_t j = begin; j < end; j += TILE) {
        size_t i = 0;
        if (j + TILE <= end)
            for (; i + TILE <= g->m; i += TILE)
                tile4(g, i, j);
        for (; i < g->m; i++)
            for (size_t b = j; b < end && b < j + TILE; b++)
                single(g, i, b);
    }
}

struct part {
    const struct gemm *g;
    size_t begin, end;
};

static void *run_part(void *arg)
{
    const struct part *p = arg;
    columns(p->g, p->begin, p->end);
    return NULL;
}

void gemm_run(const struct gemm *g, unsigned num_threads)
{
    struct part parts[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    int started[MAX_THREADS] = {0};
    if (num_threads > MAX_THREADS)
        num_threads = MAX_THREADS;
    if (num_threads < 1 || g->m * g->n * g->k < 1 << 20)
        num_threads = 1;
    size_t strip = (g->n / num_threads + TILE - 1) / TILE * TILE;
    for (unsigned t = 0; t < num_threads; t++) {
        size_t begin = t * strip < g->n ? t * strip : g->n;
        size_t end = t + 1 == num_threads || begin + strip > g->n ? g->n : begin + strip;
        parts[t] = (struct part){g, begin, end};
        started[t] = t > 0 && pthread_create(&threads[t], NULL, run_part, &parts[t]) == 0;
    }
    for (unsigned t = 0; t < num_threads;
         t++) /* the caller does its own and what could not start */
        if (!started[t])
            run_part(&parts[t]);
    for (unsigned t = 1; t < num_threads; t++)
        if (started[t])
            pthread_join(threads[t], NULL);
}

void rms_norm(const float *x, const float *weight, float *y, size_t m, size_t n, float eps)
{
    for (size_t i = 0; i < m; i++, x += n, y += n) {
        double square = 0;
        for (size_t j = 0; j < n; j++)
            square += (double)x[j] * x[j];
        float scale = (float)(1.0 / sqrt(square / (double)n + eps));
        for (size_t j = 0; j < n; j++)
            y[j] = x[j] * scale * weight[j];
    }
}

void silu_multiply(float *gate, const float *up, size_t count)
{
    for (size_t i = 0; i < count; i++)
        gate[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}
