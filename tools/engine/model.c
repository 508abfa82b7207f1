/* Loading a model. In: a folder with config.json and safetensors. Out: float32 weights in the
 * shapes that config.json promises. What this engine cannot run (experts, low-rank q, RoPE scaling,
 * biases) is refused by the key's name. */
#include "tools/engine/model.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/engine/safetensors.h"

static int read_uint(json_t *root, const char *key, uint32_t *out, struct engine_error *error)
{
    json_t *value = json_object_get(root, key);
    json_int_t x = json_integer_value(value);
    if (!json_is_integer(value) || x < 1 || x > 1 << 24)
        return engine_fail(error, "config.json: %s is missing or not in 1..2^24", key);
    *out = (uint32_t)x;
    return 0;
}

static int refuse(json_t *root, const char *key, struct engine_error *error)
{
    json_t *value = json_object_get(root, key);
    if (!value || json_is_null(value) || json_is_false(value))
        return 0;
    return engine_fail(error, "config.json: %s is set; this engine runs models without it", key);
}

static int read_dims(json_t *root, struct model_config *c, struct engine_error *error)
{
    const struct {
        const char *key;
        uint32_t *out;
    } fields[] = {{"vocab_size", &c->vocab},
                  {"hidden_size", &c->hidden},
                  {"intermediate_size", &c->mlp},
                  {"num_hidden_layers", &c->num_layers},
                  {"num_attention_heads", &c->num_heads},
                  {"kv_lora_rank", &c->latent_dim},
                  {"qk_rope_head_dim", &c->rope_dim},
                  {"qk_nope_head_dim", &c->nope_dim},
                  {"v_head_dim", &c->v_dim},
                  {"max_position_embeddings", &c->max_positions}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (read_uint(root, fields[i].key, fields[i].out, error))
            return -1;
    if (c->hidden % 8 || c->mlp % 8 || c->num_heads * c->v_dim % 8)
        return engine_fail(error, "config.json: hidden %u, mlp %u, heads * v %u: multiples of 8",
                           c->hidden, c->mlp, c->num_heads * c->v_dim);
    return 0;
}

static int read_config(json_t *root, struct model_config *c, struct engine_error *error)
{
    static const char *const unsupported[] = {"q_lora_rank", "rope_scaling", "attention_bias",
                                              "index_topk", "tie_word_embeddings"};
    for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++)
        if (refuse(root, unsupported[i], error))
            return -1;
    if (read_dims(root, c, error))
        return -1;
    uint32_t dense = 0;
    if (read_uint(root, "first_k_dense_replace", &dense, error))
        return -1;
    if (dense < c->num_layers)
        return engine_fail(error,
                           "config.json: %u of %u layers are dense; this engine has no experts",
                           dense, c->num_layers);
    c->rms_eps = (float)json_number_value(json_object_get(root, "rms_norm_eps"));
    c->rope_theta = json_number_value(json_object_get(root, "rope_theta"));
    if (!(c->rms_eps > 0) || !(c->rope_theta > 1))
        return engine_fail(error, "config.json: rms_norm_eps %g, rope_theta %g; both are needed",
                           (double)c->rms_eps, c->rope_theta);
    return 0;
}

static int load_config(const char *folder, struct model_config *c, struct engine_error *error)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/config.json", folder);
    json_error_t where;
    json_t *root = json_load_file(path, 0, &where);
    if (!root)
        return engine_fail(error, "%s: %s", path, where.text);
    int status = read_config(root, c, error);
    json_decref(root);
    return status;
}

static int load_layer(const struct checkpoint *from, const struct model_config *c, uint32_t index,
                      struct layer_weights *w, struct engine_error *error)
{
    const uint64_t hidden = c->hidden, latent = c->latent_dim, mlp = c->mlp, heads = c->num_heads;
    const struct {
        const char *name;
        float **out;
        uint64_t shape[2]; /* second 0: one dimension */
    } tensors[] = {
        {"input_layernorm", &w->input_norm, {hidden, 0}},
        {"self_attn.q_proj", &w->q_proj, {heads * (c->nope_dim + c->rope_dim), hidden}},
        {"self_attn.kv_a_proj_with_mqa", &w->kv_a_proj, {latent + c->rope_dim, hidden}},
        {"self_attn.kv_a_layernorm", &w->kv_a_norm, {latent, 0}},
        {"self_attn.kv_b_proj", &w->kv_b_proj, {heads * (c->nope_dim + c->v_dim), latent}},
        {"self_attn.o_proj", &w->o_proj, {hidden, heads * c->v_dim}},
        {"post_attention_layernorm", &w->post_norm, {hidden, 0}},
        {"mlp.gate_proj", &w->gate, {mlp, hidden}},
        {"mlp.up_proj", &w->up, {mlp, hidden}},
        {"mlp.down_proj", &w->down, {hidden, mlp}},
    };
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        char name[160];
        snprintf(name, sizeof name, "model.layers.%" PRIu32 ".%s.weight", index, tensors[i].name);
        uint32_t ndim = tensors[i].shape[1] ? 2 : 1;
        if (checkpoint_load(from, name, ndim, tensors[i].shape, tensors[i].out, error))
            return -1;
    }
    return 0;
}

static int load_weights(const struct checkpoint *from, struct model *m, struct engine_error *error)
{
    const struct model_config *c = &m->config;
    const uint64_t table[2] = {c->vocab, c->hidden};
    if (checkpoint_load(from, "model.embed_tokens.weight", 2, table, &m->embed, error) ||
        checkpoint_load(from, "model.norm.weight", 1, &table[1], &m->final_norm, error) ||
        checkpoint_load(from, "lm_head.weight", 2, table, &m->lm_head, error))
        return -1;
    m->layers = calloc(c->num_layers, sizeof *m->layers);
    if (!m->layers)
        return engine_fail(error, "out of memory for %u layers", c->num_layers);
    for (uint32_t i = 0; i < c->num_layers; i++)
        if (load_layer(from, c, i, &m->layers[i], error))
            return -1;
    return 0;
}

int model_load(const char *folder, struct model *model, struct engine_error *error)
{
    struct checkpoint *checkpoint = NULL;
    memset(model, 0, sizeof *model);
    if (load_config(folder, &model->config, error) || checkpoint_open(folder, &checkpoint, error))
        return -1;
    int status = load_weights(checkpoint, model, error);
    checkpoint_close(checkpoint);
    if (status)
        model_free(model);
    return status;
}

void model_free(struct model *m)
{
    for (uint32_t i = 0; m->layers && i < m->config.num_layers; i++) {
        struct layer_weights *w = &m->layers[i];
        float *const all[] = {w->input_norm, w->q_proj,    w->kv_a_proj, w->kv_a_norm, w->kv_b_proj,
                              w->o_proj,     w->post_norm, w->gate,      w->up,        w->down};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            free(all[k]);
    }
    free(m->layers);
    free(m->embed);
    free(m->final_norm);
    free(m->lm_head);
    memset(m, 0, sizeof *m);
}

lkv_model_desc model_describe(const struct model_config *c)
{
    lkv_model_desc desc = {.size = sizeof desc};
    desc.num_layers = c->num_layers;
    desc.num_heads = c->num_heads;
    desc.latent_dim = c->latent_dim;
    desc.rope_dim = c->rope_dim;
    desc.nope_dim = c->nope_dim;
    desc.v_dim = c->v_dim;
    desc.rope_style = LKV_ROPE_INTERLEAVED;
    desc.rope_theta = c->rope_theta;
    desc.softmax_scale = 1.0 / sqrt((double)(c->nope_dim + c->rope_dim));
    return desc;
}
