/* A DeepSeek-V3-shaped model with dense MLPs: config.json and float32 weights. Read only once
 * loaded. */
#ifndef LKV_TOOLS_ENGINE_MODEL_H
#define LKV_TOOLS_ENGINE_MODEL_H

#include <stdint.h>
#include "tools/engine/error.h"
#include "latentkv/latentkv.h"

struct model_config {
    uint32_t vocab, hidden, mlp, num_layers, num_heads;
    uint32_t latent_dim, rope_dim, nope_dim, v_dim;
    uint32_t max_positions;
    float rms_eps;
    double rope_theta;
};

struct layer_weights {
    float *input_norm; /* [hidden] */
    float *q_proj;     /* [heads * (nope + rope), hidden]; of each head first nope, then rope */
    float *kv_a_proj;  /* [latent + rope, hidden] */
    float *kv_a_norm;  /* [latent] */
    float *kv_b_proj;  /* [heads * (nope + v), latent] */
    float *o_proj;     /* [hidden, heads * v] */
    float *post_norm;  /* [hidden] */
    float *gate, *up;  /* [mlp, hidden] */
    float *down;       /* [hidden, mlp] */
};

struct model {
    struct model_config config;
    float *embed;                 /* [vocab, hidden] */
    float *final_norm;            /* [hidden] */
    float *lm_head;               /* [vocab, hidden] */
    struct layer_weights *layers; /* [num_layers] */
};

int model_load(const char *folder, struct model *model, struct engine_error *error);
void model_free(struct model *model);
/* The same dimensions as latentkv wants them. */
lkv_model_desc model_describe(const struct model_config *config);

#endif
