/* What every attention test stands on: a context of one instruction set, an engine-owned pool with
 * random latents appended through the ABI, a shuffled block table, and the same tokens dequantised
 * for the oracle. A run attends through the ABI and hands back fp32 rows. */
#ifndef LKVT_KERNEL_ATTENTION_WORLD_H
#define LKVT_KERNEL_ATTENTION_WORLD_H

#include <stdint.h>
#include "latentkv/latentkv.h"
#include "tests/reference/ref_attention.h"
#include "tests/support/rng.h"

struct world_shape {
    uint32_t format, encode_flags, isa, threads;
    uint32_t latent, rope, block; /* dims; tokens a block */
    uint32_t num_seqs;
    const uint32_t *tokens; /* [num_seqs] tokens appended to each */
    uint64_t seed;
    const float *given_latent, *given_rope; /* tokens of sequence 0; NULL: random */
};

struct world {
    struct world_shape shape;
    lkv_context *ctx;
    lkv_pool *pool;
    uint32_t width;
    uint64_t num_blocks;
    int32_t *table;              /* [num_seqs, width], unused entries poisoned */
    struct ref_context *context; /* [num_seqs] absorbed, over all appended tokens */
    float **latents, **ropes;    /* [num_seqs] dequantised */
    double **rows;
};

/* Ends the program with the library's sentence when a call that must work does not. */
void must(lkv_status status, const char *what);
void world_open(struct world *w, const struct world_shape *shape);
void world_close(struct world *w);
/* ISAs that this processor has, LKV_ISA_* from scalar up; says on stderr what is missing. */
uint32_t isas_present(uint32_t isas[3]);
const char *isa_name(uint32_t isa);
const char *format_name(uint32_t format);

/* fp32 -> dtype and back, by plain bit rules. */
void put_values(const float *from, uint64_t n, uint32_t dtype, void *to);
void get_values(const void *from, uint64_t n, uint32_t dtype, float *to);

struct run {
    uint32_t num_seqs;
    const uint32_t *seqs; /* [num_seqs] world sequences, NULL: 0, 1, ... */
    const int32_t *seq_lens, *q_indptr;
    uint32_t heads, q_dtype, out_dtype, q_form, out_form, threshold, plan_flags, attend_flags;
    uint32_t nope, value;
    double scale;
    const float *q, *q_rope; /* [T, H, D]; rounded to q_dtype by the run, in place */
    const float *bias;       /* [num_seqs, bias_width] */
    uint32_t bias_width;
    const lkv_weights *weights;
    const int32_t *table;     /* [num_seqs, world width] instead of the world's */
    const float *uk, *uv;     /* [H, N, L], [H, V, L]: the oracle's weights */
    const float *oracle_bias; /* [num_seqs, bias_width] instead of bias: keys that are not there */
};

struct output {
    uint32_t dim;
    float *out, *lse, *entropy; /* [T, H, dim], [T, H] */
};

/* Attends; poisons workspace and outputs first. status of lkv_attend; out is allocated. */
lkv_status world_attend(const struct world *w, const struct run *run, struct output *out);
void output_free(struct output *out);
/* Every row of a run against the oracle: rel-L2 of a row <= bound; lse and entropy to 1e-5; rows
 * that see nothing exactly 0, -infinity, 0. Prints the first failure; 1 if all is well. */
int world_check(const struct world *w, const struct run *run, const struct output *out,
                double bound, const char *label);
/* kv_b_proj of random W_UK and W_UV (sigma each), kept in run->uk and run->uv. */
void random_weights(const struct world *w, struct run *run, uint64_t seed, double sigma);
void free_weights(struct run *run);
/* n values of a N(0, sigma) in `dtype` precision. */
float *random_rows(uint64_t seed, uint64_t n, double sigma, uint32_t dtype);

#endif
