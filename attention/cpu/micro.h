/* The arithmetic of the CPU's attention: three operations, one table entry an instruction set.
 *
 *   gemm      C[rows, cols] (+)= A[rows, depth] . B[depth, cols], B in panels of 16 columns
 *   dots      the same for a handful of columns, vectors along the depth
 *   softmax   a tile of scores [keys, rows] -> weights, with the running maximum and sums
 *
 * Columns are the vector lanes: query rows for scores (K's tile is A, the packed queries are B),
 * value dims for P.V. Every element of C is one chain of fused multiply-adds a block of 64 of the
 * depth, then one sum of blocks: the same bits whatever the shape around it, and an error that
 * grows with 64 and not with the context. */
#ifndef LKVI_ATTENTION_CPU_MICRO_H
#define LKVI_ATTENTION_CPU_MICRO_H

#include <stdint.h>

enum { LKVI_PANEL = 16, LKVI_DEPTH_BLOCK = 64, LKVI_DOT_ROWS = 4 };

struct lkvi_gemm {
    uint32_t rows, cols, depth; /* cols a multiple of LKVI_PANEL */
    const float *a;             /* element (i, k) at a + i * a_row + k * a_depth */
    uint64_t a_row, a_depth;
    const float *b; /* panel p, element (k, j) at b + p * b_panel + k * b_depth + j */
    uint64_t b_depth, b_panel;
    float *c; /* row i at c + i * c_row */
    uint64_t c_row;
    const float *rescale; /* [rows] C = C * rescale[i] + A.B; NULL: C = A.B */
};

/* Scores of few query rows, where 16 lanes of rows would be mostly padding: the depth is the lanes.
 * c[i * c_row + j] = a row i . b row j for j < cols, and 0 up to LKVI_PANEL. */
struct lkvi_dots {
    uint32_t rows, cols, depth; /* cols <= LKVI_DOT_ROWS */
    const float *a, *b;         /* dense in the depth */
    uint64_t a_row;
    float *c;
    uint64_t c_row;
};

struct lkvi_softmax {
    float *scores; /* [keys, cols] raw products in, weights exp(s - max) out */
    uint32_t keys, cols;
    float scale;
    const float *bias; /* [keys], added to the scaled score; NULL: none */
    const float
        *last; /* [cols] last key of the tile that column sees, < 0 none; NULL: all see all */
    float *max, *sum, *moment; /* [cols] running: max s, sum p, sum p (s - max) */
    float *rescale;            /* [cols] out: what earlier sums and outputs were multiplied by */
};

struct lkvi_micro {
    const char *name;
    void (*gemm)(const struct lkvi_gemm *g);
    void (*dots)(const struct lkvi_dots *d);
    void (*softmax)(const struct lkvi_softmax *s);
};

/* isa LKV_ISA_*; one that this build lacks gives the portable entry. */
const struct lkvi_micro *lkvi_micro_get(uint32_t isa);

extern const struct lkvi_micro lkvi_micro_portable;
#if defined(__x86_64__)
extern const struct lkvi_micro lkvi_micro_avx2, lkvi_micro_avx512;
#endif

static inline uint64_t lkvi_round16(uint64_t n)
{
    return (n + 15) / 16 * 16;
}

/* Element (k, j) of a packed B of `depth`: panels of [depth][16]. */
static inline uint64_t lkvi_packed_at(uint64_t depth, uint64_t k, uint64_t j)
{
    return (j / LKVI_PANEL * depth + k) * LKVI_PANEL + j % LKVI_PANEL;
}

#endif
