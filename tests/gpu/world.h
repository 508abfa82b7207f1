/* A batch on the device for the decode tests: sequences of random records in scattered blocks,
 * queries, a plan. Outputs and workspace are poisoned; unused slots hold NaN. */
#ifndef LKVT_GPU_WORLD_H
#define LKVT_GPU_WORLD_H

#include "attention/cuda/state.h"
#include "tests/gpu/gpu.h"

enum { MAX_SEQS = 16 };

struct shape {
    uint32_t format, flags, latent, rope, heads, block, q_dtype, out_dtype, bias, plan_flags;
    uint32_t num_seqs;
    int32_t lens[MAX_SEQS], rows[MAX_SEQS]; /* rows: query rows of each sequence */
    uint32_t shared;                        /* first blocks that all sequences have in common */
    uint64_t first_id;                      /* block ids start here: pools larger than 4 GiB */
    uint64_t seed;
};

struct world {
    const struct gpu *gpu;
    int chosen; /* kernel row that users get */
    struct shape s;
    struct lkvi_store store; /* device */
    struct lkvi_record record;
    uint32_t width, num_tokens, max_rows, max_len;
    float *latent[MAX_SEQS], *ropes[MAX_SEQS]; /* dequantised */
    float *q, *q_rope, *bias;                  /* as the kernel sees them, fp32 */
    int32_t *table, indptr[MAX_SEQS + 1];
    void *d_pool, *d_table, *d_lens, *d_indptr, *d_q, *d_q_rope, *d_out, *d_lse, *d_entropy,
        *d_bias;
    void *d_faults, *d_workspace;
    uint64_t out_bytes; /* of d_out */
    struct lkvi_plan_params plan;
    struct lkvi_attend_params attend;
};

/* The shape and the kernel row in words, for messages. */
void label(char *text, size_t n, const struct world *w);
/* Everything but the plan. */
void open_world(struct world *w, const struct gpu *g, const struct shape *s);
void close_world(struct world *w);
/* Plans anew with these internal flags (LKVI_PLAN_*) beside the shape's own; 0 if no row fits. */
int plan_world(struct world *w, uint32_t flags);

#endif
