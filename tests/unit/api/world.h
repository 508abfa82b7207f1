/* A small world of live objects, valid arguments for every function, and handles that were released
 * or belong to another context. Tests change one thing and see what happens. */
#ifndef LKVT_UNIT_API_WORLD_H
#define LKVT_UNIT_API_WORLD_H

#include <stdint.h>
#include "latentkv/latentkv.h"

enum {
    W_LAYERS = 2,
    W_BLOCKS = 16,
    W_BLOCK = 16, /* tokens a block */
    W_LATENT = 64,
    W_ROPE = 32,
    W_HEADS = 2,
    W_NOPE = 16,
    W_V = 8,
    W_TOKENS = 40, /* of the live sequence */
    W_T = 4        /* rows of the append, attend, gather calls */
};

struct tensors {
    lkv_tensor latent, rope, q, q_rope, out, lse, entropy, bias, q_latent, o_latent;
    lkv_tensor gather_latent, gather_rope, kv_b_proj, outs, lses, entropies, merged;
};

/* What calls may write: everything in here is part of the fingerprint. */
struct outputs {
    void *object, *base;
    uint64_t num, bytes_per_block, seq, lease;
    size_t bytes;
    lkv_context_info context_info;
    lkv_model_desc model;
    lkv_block_info block_info;
    lkv_pool_layout layout;
    lkv_pool_desc pool;
    lkv_plan_desc plan;
    lkv_faults faults;
    lkv_match match;
    lkv_seq_info seq_info;
    lkv_pool_stats stats;
    int32_t ids[64], seq_lens[4], q_indptr[5], positions[64];
    int64_t slots[64];
    float rows[4096];
};

struct world {
    lkv_context *ctx, *other_ctx, *dead_ctx;
    lkv_pool *pool, *engine, *meta, *other_pool, *dead_pool;
    lkv_weights *weights, *rotated, *other_weights, *dead_weights;
    lkv_rope *rope, *other_rope, *dead_rope;
    lkv_plan *plan, *fresh_plan, *dead_plan; /* fresh_plan: never updated */
    lkv_seq seq, stale_seq;
    lkv_lease stale_lease;
    lkv_context_desc ctx_desc;
    lkv_model_desc model;
    lkv_pool_desc pool_desc;
    lkv_weights_desc weights_desc;
    lkv_plan_desc plan_desc;
    lkv_prompt prompt;
    lkv_admit_args admit;
    lkv_step step;
    lkv_batch batch;
    lkv_append_args append;
    lkv_attend_args attend;
    lkv_gather_args gather;
    lkv_merge_args merge;
    lkv_admission admission; /* may be written by a failure */
    struct tensors t;
    struct outputs out;
    void *workspace;
    size_t workspace_bytes;
    uint8_t *engine_memory;
    uint64_t engine_bytes;
    int32_t tokens[W_TOKENS], table[W_BLOCKS], seq_lens[1], q_indptr[2], positions[W_T];
    int64_t slots[W_T];
    uint32_t num_new[1];
    float data[65536]; /* inputs */
};

/* Never returns on failure. */
struct world *world_create(void);
void world_destroy(struct world *w);
/* Of everything that a refused call must leave alone. */
uint64_t world_fingerprint(struct world *w);

#endif
