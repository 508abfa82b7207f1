/* Keys and values of every head, made from the compressed cache row of each token: what plain
 * multi-head attention would store. The source of samples for a projector, and what a LATENT_GQA
 * cache is fed with. */
#ifndef LKV_TOOLS_ENGINE_HEADS_H
#define LKV_TOOLS_ENGINE_HEADS_H

#include "tools/engine/model.h"

struct heads {
    float *latents;  /* [chunk, latent] behind kv_a_layernorm */
    float *rope;     /* [chunk, rope] turned; filled by the caller */
    float *expanded; /* [chunk, heads * (nope + v)] */
    float *keys;     /* [chunk, heads, nope + rope] */
    float *values;   /* [chunk, heads, v] */
};

int heads_create(struct heads *h, const struct model_config *config, uint32_t chunk,
                 struct engine_error *error);
void heads_free(struct heads *h);
/* kv: [n, latent + rope] as kv_a_proj gives it. */
void heads_expand(struct heads *h, const struct model *model, uint32_t layer, const float *kv,
                  uint32_t n, uint32_t num_threads);

#endif
