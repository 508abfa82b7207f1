/* Attention against float64 on the dequantised records: heads x q_len x context x format x
 * instruction set x output dtype (acceptance d of the first issue).
 *
 *   --sample   the edges of every axis, for every run of the tests
 *   --full     the whole matrix; --full int8 one format of it, to run the four side by side
 *
 * Every (heads, q_len, context) is attended in full; the oracle computes up to ORACLE_ROWS of its
 * (token, head) rows: the first and the last of both, the rest drawn by the seed. The error of a
 * row is rel-L2 over its latent_dim outputs; each row is held to the bound, not their mean. lse and
 * entropy of the same rows are held to 1e-5 relative or absolute. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "tests/kernel/attention/world.h"
#include "tests/support/compare.h"

enum { LATENT = 512, ROPE = 64, DIM = LATENT + ROPE, ORACLE_ROWS = 64, MAX_Q = 300 };

struct axis {
    uint32_t count, values[8];
};
struct matrix {
    struct axis heads, q_lens, contexts;
};

static const struct matrix full = {
    {6, {1, 8, 16, 20, 64, 128}}, {5, {1, 2, 5, 64, 300}}, {7, {0, 1, 63, 64, 65, 1000, 5000}}};
static const struct matrix sample = {
    {3, {1, 20, 128}}, {3, {1, 5, 64}}, {6, {0, 1, 63, 64, 65, 1000}}};

struct tally {
    uint64_t cases, rows, failures;
    double worst, worst_lse, worst_entropy;
};

struct cell {
    uint32_t heads, q_len, seq, context, dtype;
    uint64_t seed;
};

static double bound_of(uint32_t dtype)
{
    return dtype == LKV_DTYPE_F32 ? 1e-5 : 3e-3;
}

static double scalar_error(double found, double wanted)
{
    double e = fabs(found - wanted) / fmax(1, fabs(wanted));
    return isnan(e) ? INFINITY : e;
}

static void check_row(const struct world *w, const struct cell *c, const struct run *run,
                      const struct output *out, uint64_t row, struct tally *tally)
{
    double q[DIM], want[LATENT];
    uint64_t token = row / c->heads;
    for (uint32_t i = 0; i < DIM; i++)
        q[i] = i < LATENT ? run->q[row * LATENT + i] : run->q_rope[row * ROPE + i - LATENT];
    struct ref_result r =
        ref_attend(&w->context[c->seq], (int64_t)(c->context + token + 1), q, run->scale, want);
    double e = relative_l2(out->out + row * LATENT, want, LATENT);
    double lse = scalar_error(out->lse[row], r.lse);
    double entropy = scalar_error(out->entropy[row], r.entropy);
    tally->rows++;
    tally->worst = fmax(tally->worst, e);
    tally->worst_lse = fmax(tally->worst_lse, lse);
    tally->worst_entropy = fmax(tally->worst_entropy, entropy);
    if (e <= bound_of(c->dtype) && lse <= 1e-5 && entropy <= 1e-5)
        return;
    tally->failures++;
    fprintf(stderr,
            "FAIL seed %llu %s %s heads %u q_len %u context %u: token %llu head %llu: rel-L2 %.3e "
            "(want <= %.0e), lse %.9g want %.9g, entropy %.9g want %.9g\n",
            (unsigned long long)c->seed, format_name(w->shape.format), isa_name(w->shape.isa),
            c->heads, c->q_len, c->context, (unsigned long long)token,
            (unsigned long long)(row % c->heads), e, bound_of(c->dtype), out->lse[row], r.lse,
            out->entropy[row], r.entropy);
}

static void check_cell(const struct world *w, const struct cell *c, struct tally *tally)
{
    uint64_t rows = (uint64_t)c->q_len * c->heads;
    int32_t seq_len = (int32_t)(c->context + c->q_len), indptr[2] = {0, (int32_t)c->q_len};
    float *q = random_rows(c->seed, rows * LATENT, 1, c->dtype);
    float *q_rope = random_rows(c->seed + 1, rows * ROPE, 1, c->dtype);
    struct run run = {.num_seqs = 1,
                      .seqs = &c->seq,
                      .seq_lens = &seq_len,
                      .q_indptr = indptr,
                      .heads = c->heads,
                      .q_dtype = c->dtype,
                      .out_dtype = c->dtype,
                      .scale = 1 / sqrt(192),
                      .q = q,
                      .q_rope = q_rope};
    struct output out;
    struct rng r = rng_seed(c->seed + 2);
    must(world_attend(w, &run, &out), "attend");
    uint64_t fixed[4] = {0, c->heads - 1, rows - c->heads, rows - 1};
    for (uint64_t i = 0; i < ORACLE_ROWS && i < rows; i++)
        check_row(w, c, &run, &out,
                  rows <= ORACLE_ROWS ? i
                  : i < 4             ? fixed[i]
                                      : rng_below(&r, rows),
                  tally);
    tally->cases++;
    output_free(&out);
    free(q);
    free(q_rope);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void check_heads(const struct world *w, const struct matrix *m, uint32_t heads,
                        uint32_t dtype, struct tally *all)
{
    struct tally tally = {0};
    double start = seconds();
    for (uint32_t i = 0; i < m->q_lens.count; i++)
        for (uint32_t s = 0; s < m->contexts.count; s++) {
            struct cell c = {heads, m->q_lens.values[i], s, m->contexts.values[s], dtype, 0};
            c.seed = 7 + 1000003ull * heads + 10007ull * c.q_len + 31ull * c.context;
            check_cell(w, &c, &tally);
        }
    printf("%-5s %-6s heads %3u out %s: %3llu shapes, %5llu rows, worst rel-L2 %.2e (bound %.0e), "
           "lse %.1e, entropy %.1e, %.1f s%s\n",
           format_name(w->shape.format), isa_name(w->shape.isa), heads,
           dtype == LKV_DTYPE_F32 ? "fp32" : "bf16", (unsigned long long)tally.cases,
           (unsigned long long)tally.rows, tally.worst, bound_of(dtype), tally.worst_lse,
           tally.worst_entropy, seconds() - start, tally.failures ? "  FAILED" : "");
    fflush(stdout);
    all->cases += tally.cases;
    all->rows += tally.rows;
    all->failures += tally.failures;
}

static void check_world(const struct matrix *m, uint32_t format, uint32_t isa, struct tally *all)
{
    static const uint32_t dtypes[2] = {LKV_DTYPE_BF16, LKV_DTYPE_F32};
    uint32_t tokens[8];
    struct world w;
    for (uint32_t s = 0; s < m->contexts.count; s++)
        tokens[s] = m->contexts.values[s] + MAX_Q;
    struct world_shape shape = {.format = format,
                                .isa = isa,
                                .latent = LATENT,
                                .rope = ROPE,
                                .block = 64,
                                .num_seqs = m->contexts.count,
                                .tokens = tokens,
                                .seed = 11 + format};
    world_open(&w, &shape);
    for (uint32_t h = 0; h < m->heads.count; h++)
        for (uint32_t d = 0; d < 2; d++)
            check_heads(&w, m, m->heads.values[h], dtypes[d], all);
    world_close(&w);
}

/* LKV_FORMAT_* by name, 0 for none. */
static uint32_t format_of(const char *name)
{
    for (uint32_t f = LKV_FORMAT_BF16; f <= LKV_FORMAT_NVFP4; f++)
        if (!strcmp(name, format_name(f)))
            return f;
    return 0;
}

static void check_matrix(const struct matrix *m, uint32_t only, struct tally *all)
{
    uint32_t isas[3], num_isas = isas_present(isas);
    for (uint32_t format = LKV_FORMAT_BF16; format <= LKV_FORMAT_NVFP4; format++)
        for (uint32_t i = 0; i < num_isas; i++)
            if (!only || format == only)
                check_world(m, format, isas[i], all);
}

int main(int argc, char **argv)
{
    const struct matrix *m = argc >= 2 && !strcmp(argv[1], "--full")     ? &full
                             : argc >= 2 && !strcmp(argv[1], "--sample") ? &sample
                                                                         : NULL;
    uint32_t only = argc == 3 ? format_of(argv[2]) : 0;
    struct tally all = {0};
    if (!m || argc > 3 || (argc == 3 && !only)) {
        fprintf(stderr, "use: %s --sample | --full [bf16 | fp8 | int8 | nvfp4]\n", argv[0]);
        return 2;
    }
    double start = seconds();
    check_matrix(m, only, &all);
    printf("%s: %llu shapes, %llu oracle rows (at most %d a shape), %llu failures, %.0f s\n",
           m == &full ? "full matrix" : "sampled matrix", (unsigned long long)all.cases,
           (unsigned long long)all.rows, ORACLE_ROWS, (unsigned long long)all.failures,
           seconds() - start);
    return all.failures != 0;
}
