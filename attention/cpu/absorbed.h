/* The absorbed path: queries live in the latent space and meet the stored latents themselves. In: a
 * wave of units and items (plan.h). Out: rows of out, lse, entropy. Three steps with a barrier
 * between them: absorb q (only for LKV_Q_HEAD), attend item by item into slots, merge the slots of
 * each unit and, for LKV_OUT_HEAD, apply W_UV. */
#ifndef LKVI_ATTENTION_CPU_ABSORBED_H
#define LKVI_ATTENTION_CPU_ABSORBED_H

#include "attention/cpu/tile.h"

struct lkvi_wave {
    const struct lkvi_attend_env *env;
    struct lkvi_cpu_unit *units;
    struct lkvi_cpu_item *items;
    uint32_t num_units, num_items;
};
void lkvi_wave_run(struct lkvi_wave *wave);

/* The decompressed path for one sequence: dense attention of each head over keys and values made
 * from the latents, tile by tile. */
void lkvi_decompressed_run(const struct lkvi_attend_env *env, const struct lkvi_cpu_unit *seq);

#endif
