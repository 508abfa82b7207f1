/* POD parameters of projection and attention: checked by api/, then trusted by every backend.
 * Device pointers unless said. T query rows, H heads, G KV heads, L latent, L_v a value's latent (L
 * for MLA), R rope, N nope, V value dims. */
#ifndef LKVI_ATTENTION_PARAMS_H
#define LKVI_ATTENTION_PARAMS_H

#include "quant/params.h"

#ifdef __cplusplus
extern "C" {
#endif

struct lkvi_heads { /* a 3-D view [T, H, D]; strides in elements, innermost 1 */
    void *data;
    int64_t token_stride, head_stride;
    uint32_t dtype;
    uint32_t reserved;
};

/* Compute form of one layer's kv_b_proj, or of a projector: the same with a matrix for each KV head
 * in place of each query head. Rotation is already folded in where asked. */
struct lkvi_weights_view {
    const void *w_uk; /* [K, N, L], K = num_matrices: H, or G of a projector */
    const void *w_uv; /* [K, V, L_v] */
    uint32_t dtype;
    uint32_t num_heads, nope_dim, v_dim, latent_dim;
    uint32_t num_matrices;
    uint32_t value_latent; /* L_v */
    uint32_t reserved;
    const void *key_down;   /* [K, N, L] of a projector that appends, else NULL; not rotated */
    const void *value_down; /* [K, V, L_v] */
};

struct lkvi_project_params {
    struct lkvi_weights_view weights;
    uint64_t num_tokens;
    struct lkvi_heads in, out; /* q: [T, H, N] -> [T, H, L]; out: [T, H, L_v] -> [T, H, V] */
    uint32_t to_value;         /* 0: q absorb, 1: output */
    uint32_t reserved;
};

/* What a plan fixes at creation, from maxima. */
struct lkvi_plan_params {
    struct lkvi_record record;
    uint32_t tokens_per_block;
    uint32_t num_heads;
    uint32_t max_seqs, max_tokens, max_q_len, max_seq_len, max_blocks_per_seq;
    uint32_t q_dtype, out_dtype;
    uint32_t q_form, out_form; /* LKV_Q_*, LKV_OUT_* */
    uint32_t absorb_threshold;
    uint32_t flags; /* LKV_PLAN_* */
    uint32_t nope_dim, v_dim;
    uint32_t kernel_row;      /* chosen by the backend */
    uint32_t num_splits_max;  /* chosen by the backend */
    uint64_t workspace_bytes; /* chosen by the backend */
};

struct lkvi_batch_view {
    const int32_t *block_table; /* [num_seqs, width] */
    const int32_t *seq_lens;    /* [num_seqs] */
    const int32_t *q_indptr;    /* [num_seqs + 1] or NULL: one row each */
    uint64_t block_table_stride;
    uint64_t num_tokens;
    uint32_t num_seqs;
    uint32_t table_width;
};

struct lkvi_attend_params {
    struct lkvi_plan_params plan;
    struct lkvi_store store;
    struct lkvi_batch_view batch;
    struct lkvi_weights_view weights; /* w_uk NULL if not given */
    struct lkvi_heads q, q_rope, out; /* q_rope.data NULL if R is 0 */
    float *lse;                       /* [T, H], strides below; may be NULL */
    float *entropy;
    const float *bias; /* [num_seqs, ...], may be NULL */
    int64_t lse_stride, entropy_stride,
        bias_stride; /* elements between tokens (sequences for bias); heads are adjacent */
    void *workspace;
    uint64_t workspace_bytes;
    double scale;
    uint32_t checked;
    uint32_t reserved;
};

/* Tokens of a LATENT_GQA pool. */
struct lkvi_append_heads_params {
    struct lkvi_store store;
    struct lkvi_weights_view weights; /* key_down NULL: latents are given */
    uint64_t num_tokens;
    struct lkvi_heads key, value; /* [T, G, N], [T, G, V]; latents: [T, G, L], [T, G, L_v] */
    const int64_t *slots;
    uint32_t checked;
    uint32_t reserved;
};

struct lkvi_gather_heads_params {
    struct lkvi_store store;
    uint64_t num_tokens;
    const int64_t *slots;
    struct lkvi_heads key, value; /* out [T, G, L], [T, G, L_v]; data may be NULL */
    uint32_t unrotate;
    uint32_t reserved;
};

struct lkvi_merge_params {
    uint64_t num_parts, num_tokens;
    uint32_t num_heads, dim;
    struct lkvi_heads outs; /* part p at + p * outs_part_stride */
    int64_t outs_part_stride;
    const float *lses, *entropies; /* [P, T, H] */
    int64_t lse_part_stride, lse_token_stride, entropy_part_stride, entropy_token_stride;
    struct lkvi_heads out;
    float *lse, *entropy;
    int64_t out_lse_stride, out_entropy_stride;
};

#ifdef __cplusplus
}
#endif
#endif
