/* A LATENT_GQA pool under test: random matrices, keys and values appended through the ABI, the
 * stored latents gathered for the oracle, and one attend of a batch compared with it. */
#ifndef LKVT_KERNEL_ATTENTION_GQA_H
#define LKVT_KERNEL_ATTENTION_GQA_H

#include "tests/kernel/attention/world.h"
#include "tests/reference/ref_heads.h"

enum { GQA_MAX_SEQS = 8 };

struct gqa_shape {
    uint32_t format, encode_flags, isa, threads;
    uint32_t kv_heads, group; /* query heads a KV head */
    uint32_t key_dim, value_dim, key_latent, value_latent;
    uint32_t block, num_seqs;
    const uint32_t *tokens; /* [num_seqs] */
    uint64_t seed;
};

struct gqa {
    struct gqa_shape shape;
    lkv_context *ctx;
    lkv_pool *pool;
    lkv_weights *weights;
    struct ref_projector projector;
    float *matrices[4]; /* key_down, key_up, value_down, value_up */
    uint32_t width;
    uint64_t num_blocks;
    int32_t *table;            /* [num_seqs, width], poisoned past the tokens */
    float *keys[GQA_MAX_SEQS]; /* what was appended: [tokens, G, key_dim] */
    float *values[GQA_MAX_SEQS];
    float *key_latents[GQA_MAX_SEQS]; /* what is stored, in the stored basis */
    float *value_latents[GQA_MAX_SEQS];
};

void gqa_open(struct gqa *w, const struct gqa_shape *shape);
void gqa_close(struct gqa *w);
int64_t gqa_slot(const struct gqa *w, uint32_t seq, uint64_t token);
lkv_tensor gqa_tensor(void *data, uint32_t dtype, uint64_t tokens, uint32_t heads, uint32_t dim);

struct gqa_run {
    uint32_t num_seqs;
    const uint32_t *seqs; /* NULL: 0, 1, ... */
    const int32_t *seq_lens, *q_indptr;
    uint32_t q_form, out_form, q_dtype, out_dtype, attend_flags;
    const float *q; /* [T, H, key_dim or key_latent], already in q_dtype's precision */
    const float *bias, *oracle_bias;
    uint32_t bias_width;
    const int32_t *table; /* [num_seqs, width] instead of the pool's */
};

/* out is allocated; its dim says what of. */
lkv_status gqa_attend(const struct gqa *w, const struct gqa_run *run, struct output *out);
/* Every row against the oracle, rel-L2 1e-5 for F32 outputs and 3e-3 for others; 1 if all is well,
 * else says the first that is not. */
int gqa_check(const struct gqa *w, const struct gqa_run *run, const struct output *out,
              const char *label);

#endif
