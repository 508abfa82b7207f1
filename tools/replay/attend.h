/* Real data under a replay: seeded latents are appended for every row of every step, a share of the
 * steps attends over the real blocks, and some rows are compared with the float64 oracle. */
#ifndef TOOLS_REPLAY_ATTEND_H
#define TOOLS_REPLAY_ATTEND_H

#include "tools/replay/replay.h"

/* Identity of a token's latent: a hash of every token up to it. A block served for the wrong prefix
 * therefore holds visibly wrong latents. */
uint64_t attend_chain(uint64_t before, int32_t token);

struct attend_seq {
    const uint64_t *chain; /* [seq_len] */
};

/* A step as lkv_pool_step filled it. */
struct attend_batch {
    const lkv_step *step;
    const struct attend_seq *seqs; /* [num_seqs] */
};

/* What lkv_attend was asked for in the last step: rows 0 if it was not. */
struct attend_asked {
    uint64_t rows;
    float *entropy;          /* [rows, heads], with --moe */
    const int32_t *q_indptr; /* [num_seqs + 1] of the last rows of each sequence */
};

struct attender;
struct attender *attender_new(struct replay *r);
void attender_step(struct attender *a, const struct attend_batch *batch);
struct attend_asked attender_asked(const struct attender *a);
void attender_free(struct attender *a);

#endif
