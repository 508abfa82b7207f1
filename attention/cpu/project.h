/* Products with W_UK and W_UV for a few rows of one head: what lkv_project_* and attend share. */
#ifndef LKVI_ATTENTION_CPU_PROJECT_H
#define LKVI_ATTENTION_CPU_PROJECT_H

#include "attention/cpu/micro.h"
#include "attention/params.h"

struct lkvi_project {
    const struct lkvi_micro *micro;
    const struct lkvi_weights_view *weights;
    float *scratch; /* lkvi_project_floats() */
};

/* latent[i, :] = nope[i, :] . W_UK[head]; nope [n, N] dense, n <= 64 */
void lkvi_project_latent(const struct lkvi_project *job, uint32_t head, uint32_t n,
                         const float *nope, float *latent, uint64_t latent_stride);
/* value[i, :] = W_UV[head] . latent[i, :]; value [n, V] dense, n <= 64 */
void lkvi_project_value(const struct lkvi_project *job, uint32_t head, uint32_t n,
                        const float *latent, uint64_t latent_stride, float *value);
#endif
