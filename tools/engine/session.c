/* One sequence through the model. In: a chunk of tokens. Out: their logits. The cache is
 * latentkv's: the block manager gives slots and tables, append normalises, turns and quantises,
 * attend projects both ways. Everything else is float32 on the host. On a CUDA device the arrays
 * that latentkv reads or writes have a twin in device memory (arrays.h). */
#include "tools/engine/session.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/engine/arrays.h"
#include "tools/engine/gemm.h"
#include "tools/engine/heads.h"

struct session {
    const struct engine_api *api;
    const struct model *model;
    struct session_options options;
    lkv_context *ctx;
    lkv_pool *pool;
    lkv_rope *rope;
    lkv_plan *plan;
    lkv_weights **weights; /* [num_layers] */
    lkv_seq seq;
    uint32_t length;
    uint32_t table_width;
    uint64_t token_bytes;
    size_t workspace_bytes;
    struct arrays arrays;
    struct heads heads; /* with a projector or a tap */
};

static int create_pool(struct session *s, struct engine_error *error)
{
    const struct session_options *o = &s->options;
    const struct model_config *c = &s->model->config;
    s->table_width = (o->max_tokens + o->tokens_per_block - 1) / o->tokens_per_block;
    lkv_pool_desc desc = {.size = sizeof desc};
    desc.format = o->format;
    desc.encode_flags = o->encode_flags;
    desc.tokens_per_block = o->tokens_per_block;
    desc.latent_dim = c->latent_dim;
    desc.rope_dim = c->rope_dim;
    desc.rope_style = LKV_ROPE_INTERLEAVED;
    desc.num_layers = c->num_layers;
    if (o->projector) {
        desc.kind = LKV_KIND_LATENT_GQA;
        desc.num_kv_heads = o->projector->num_heads;
        desc.latent_dim = o->projector->latent[PART_KEY];
        desc.value_latent_dim = o->projector->latent[PART_VALUE];
        desc.rope_dim = 0;
        desc.rope_style = LKV_ROPE_NONE;
    }
    desc.max_seqs = 1;
    desc.num_blocks = s->table_width;
    lkv_block_info info = {.size = sizeof info};
    if (engine_api_check(s->api, s->api->lkv_block_query(&desc, &info), "block layout", error))
        return -1;
    s->token_bytes = info.record_bytes * c->num_layers;
    return engine_api_check(s->api, s->api->lkv_pool_create(s->ctx, &desc, &s->pool), "pool",
                            error);
}

static int create_plan(struct session *s, struct engine_error *error)
{
    const struct session_options *o = &s->options;
    const struct model_config *c = &s->model->config;
    lkv_plan_desc desc = {.size = sizeof desc};
    desc.pool = s->pool;
    desc.num_heads = c->num_heads;
    desc.max_seqs = 1;
    desc.max_tokens = desc.max_q_len = o->max_chunk;
    desc.max_seq_len = o->max_tokens;
    desc.max_blocks_per_seq = s->table_width;
    desc.q_dtype = desc.out_dtype = LKV_DTYPE_F32;
    desc.q_form = LKV_Q_HEAD;
    desc.out_form = LKV_OUT_HEAD;
    desc.nope_dim = c->nope_dim + (o->projector ? c->rope_dim : 0);
    desc.v_dim = c->v_dim;
    if (engine_api_check(s->api, s->api->lkv_plan_create(s->ctx, &desc, &s->plan), "plan", error))
        return -1;
    return engine_api_check(s->api, s->api->lkv_plan_workspace(s->plan, &s->workspace_bytes),
                            "workspace", error);
}

static lkv_tensor tensor(void *data, uint32_t ndim, const int64_t *shape, const int64_t *stride)
{
    lkv_tensor t = {.data = data, .dtype = LKV_DTYPE_F32, .ndim = ndim};
    memcpy(t.shape, shape, ndim * sizeof *shape);
    memcpy(t.stride, stride, ndim * sizeof *stride);
    return t;
}

/* One layer's projector in the place of W_UK and W_UV. */
static int create_projector(struct session *s, uint32_t layer, struct engine_error *error)
{
    const struct projector *p = s->options.projector;
    const struct projector_layer *from = &p->layers[layer];
    const int64_t heads = p->num_heads;
    lkv_model_desc model = model_describe(&s->model->config);
    model.nope_dim = p->dim[PART_KEY];
    model.latent_dim = p->latent[PART_KEY];
    model.rope_dim = 0;
    lkv_tensor t[2 * NUM_PARTS];
    for (uint32_t i = 0; i < 2 * NUM_PARTS; i++) {
        const int64_t dim = p->dim[i / 2], latent = p->latent[i / 2];
        t[i] = tensor(i % 2 ? from->up[i / 2] : from->down[i / 2], 3,
                      (int64_t[]){heads, dim, latent}, (int64_t[]){dim * latent, latent, 1});
    }
    lkv_weights_desc desc = {.size = sizeof desc,
                             .key_down = &t[0],
                             .key_up = &t[1],
                             .value_down = &t[2],
                             .value_up = &t[3]};
    desc.flags = s->options.encode_flags & LKV_ENCODE_ROTATE ? LKV_WEIGHTS_ROTATE : 0;
    lkv_status status = s->api->lkv_weights_create(s->ctx, &model, &desc, &s->weights[layer]);
    return engine_api_check(s->api, status, "projector", error);
}

static int create_weights(struct session *s, const lkv_model_desc *model,
                          struct engine_error *error)
{
    const struct model_config *c = &s->model->config;
    s->weights = calloc(c->num_layers, sizeof *s->weights);
    if (!s->weights)
        return engine_fail(error, "out of memory for %u layers", c->num_layers);
    for (uint32_t i = 0; s->options.projector && i < c->num_layers; i++)
        if (create_projector(s, i, error))
            return -1;
    if (s->options.projector)
        return 0;
    const int64_t shape[2] = {(int64_t)c->num_heads * (c->nope_dim + c->v_dim), c->latent_dim};
    const int64_t stride[2] = {c->latent_dim, 1};
    for (uint32_t i = 0; i < c->num_layers; i++) {
        float *rows = NULL;
        if (arrays_upload(&s->arrays, s->model->layers[i].kv_b_proj,
                          (size_t)(shape[0] * shape[1]) * sizeof *rows, (void **)&rows, error))
            return -1;
        lkv_tensor kv_b = tensor(rows, 2, shape, stride);
        lkv_weights_desc desc = {.size = sizeof desc, .kv_b_proj = &kv_b};
        desc.compute_dtype = LKV_DTYPE_F32;
        if (s->options.encode_flags & LKV_ENCODE_ROTATE)
            desc.flags = LKV_WEIGHTS_ROTATE;
        lkv_status status = s->api->lkv_weights_create(s->ctx, model, &desc, &s->weights[i]);
        if (engine_api_check(s->api, status, "weights", error))
            return -1;
    }
    return 0;
}

static int create_objects(struct session *s, struct engine_error *error)
{
    lkv_context_desc desc = {.size = sizeof desc};
    desc.device = s->options.device;
    desc.num_threads = s->options.num_threads;
    lkv_model_desc model = model_describe(&s->model->config);
    if (engine_api_check(s->api, s->api->lkv_context_create(&desc, &s->ctx), "context", error) ||
        create_pool(s, error) || create_plan(s, error))
        return -1;
    lkv_status status = s->api->lkv_rope_create(s->ctx, &model, s->options.max_tokens, &s->rope);
    if (engine_api_check(s->api, status, "RoPE", error))
        return -1;
    struct array_sizes sizes = {.config = &s->model->config,
                                .max_chunk = s->options.max_chunk,
                                .table_width = s->table_width,
                                .workspace_bytes = s->workspace_bytes,
                                .device = s->options.device};
    if (arrays_create(&s->arrays, &sizes, s->model, error))
        return -1;
    if ((s->options.tap || s->options.projector) &&
        heads_create(&s->heads, sizes.config, sizes.max_chunk, error))
        return -1;
    return create_weights(s, &model, error);
}

static int check_projector(const struct model_config *c, const struct projector *p,
                           struct engine_error *error)
{
    const uint32_t key = c->nope_dim + c->rope_dim;
    if (p->num_layers == c->num_layers && p->num_heads == c->num_heads && p->dim[PART_KEY] == key &&
        p->dim[PART_VALUE] == c->v_dim)
        return 0;
    return engine_fail(error,
                       "the projector is for %u layers, %u heads, keys of %u, values of %u; the "
                       "model has %u, %u, %u, %u",
                       p->num_layers, p->num_heads, p->dim[PART_KEY], p->dim[PART_VALUE],
                       c->num_layers, c->num_heads, key, c->v_dim);
}

int session_create(const struct engine_api *api, const struct model *model,
                   const struct session_options *options, struct session **out,
                   struct engine_error *error)
{
    if (options->entropy && options->device != LKV_DEVICE_CPU)
        return engine_fail(error, "entropies are read on the CPU only");
    if (options->max_tokens > model->config.max_positions)
        return engine_fail(error, "%u tokens; the model has %u positions", options->max_tokens,
                           model->config.max_positions);
    if ((options->tap || options->projector) && options->device != LKV_DEVICE_CPU)
        return engine_fail(error, "keys and values of heads are made on the CPU only");
    if (options->projector && check_projector(&model->config, options->projector, error))
        return -1;
    struct session *s = calloc(1, sizeof *s);
    if (!s)
        return engine_fail(error, "out of memory");
    s->api = api;
    s->model = model;
    s->options = *options;
    if (s->options.num_threads == 0)
        s->options.num_threads = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    if (create_objects(s, error)) {
        session_free(s);
        return -1;
    }
    *out = s;
    return 0;
}

void session_free(struct session *s)
{
    if (!s)
        return;
    if (s->seq)
        s->api->lkv_seq_free(s->pool, s->seq, 0);
    for (uint32_t i = 0; s->weights && i < s->model->config.num_layers; i++)
        s->api->lkv_weights_release(s->weights[i]);
    free(s->weights);
    arrays_free(&s->arrays);
    heads_free(&s->heads);
    s->api->lkv_rope_release(s->rope);
    s->api->lkv_plan_release(s->plan);
    s->api->lkv_pool_release(s->pool);
    s->api->lkv_context_release(s->ctx);
    free(s);
}

static int admit(struct session *s, const int32_t *tokens, uint32_t n, struct engine_error *error)
{
    lkv_prompt prompt = {.size = sizeof prompt, .tokens = tokens, .num_tokens = n};
    lkv_admit_args args = {.size = sizeof args, .max_tokens = s->options.max_tokens};
    lkv_admission result = {.size = sizeof result};
    lkv_status status = s->api->lkv_seq_admit(s->pool, &prompt, &args, &result, &s->seq);
    return engine_api_check(s->api, status, "admit", error);
}

/* The first chunk admits the sequence; later ones are appended by the step itself. */
static int schedule(struct session *s, const int32_t *tokens, uint32_t n,
                    struct engine_error *error)
{
    if (!s->seq && admit(s, tokens, n, error))
        return -1;
    struct arrays *a = &s->arrays;
    const uint64_t begin = s->length;
    lkv_step step = {.size = sizeof step, .num_seqs = 1, .seqs = &s->seq};
    if (s->length) {
        step.num_new = &n;
        step.tokens = tokens;
    }
    step.row_begin = &begin;
    step.num_rows = &n;
    step.block_table = a->block_table.host;
    step.seq_lens = a->seq_len.host;
    step.q_indptr = a->q_indptr.host;
    step.slots = a->slots.host;
    step.positions = a->positions.host;
    step.slots_capacity = s->options.max_chunk;
    step.table_width = s->table_width;
    lkv_admission result = {.size = sizeof result};
    lkv_status status = s->api->lkv_pool_step(s->pool, &step, &result);
    if (engine_api_check(s->api, status, "step", error))
        return -1;
    return arrays_push_batch(a, n, error);
}

static lkv_batch batch_of(const struct session *s, uint32_t n)
{
    const struct arrays *a = &s->arrays;
    lkv_batch batch = {.size = sizeof batch, .num_seqs = 1, .num_tokens = n};
    batch.max_blocks_per_seq = s->table_width;
    batch.block_table = a->block_table.device;
    batch.seq_lens = a->seq_len.device;
    batch.q_indptr = a->q_indptr.device;
    return batch;
}

/* What expand_layer has made, in place of the latent and its rope part. */
static int append_heads(struct session *s, const lkv_append_args *given, uint32_t n,
                        struct engine_error *error)
{
    const struct projector *p = s->options.projector;
    const int64_t heads = p->num_heads, key_dim = p->dim[PART_KEY], value_dim = p->dim[PART_VALUE];
    lkv_tensor key = tensor(s->heads.keys, 3, (int64_t[]){n, heads, key_dim},
                            (int64_t[]){heads * key_dim, key_dim, 1});
    lkv_tensor value = tensor(s->heads.values, 3, (int64_t[]){n, heads, value_dim},
                              (int64_t[]){heads * value_dim, value_dim, 1});
    lkv_append_args args = {.size = sizeof args,
                            .latent = &key,
                            .value = &value,
                            .weights = s->weights[given->layer],
                            .slots = given->slots,
                            .layer = given->layer};
    return engine_api_check(s->api, s->api->lkv_append(s->pool, &args, NULL), "append", error);
}

static int append_layer(struct session *s, uint32_t layer, uint32_t n, struct engine_error *error)
{
    const struct model_config *c = &s->model->config;
    struct arrays *a = &s->arrays;
    const int64_t row = c->latent_dim + c->rope_dim;
    float *kv = a->kv.device;
    lkv_tensor latent = tensor(kv, 2, (int64_t[]){n, c->latent_dim}, (int64_t[]){row, 1});
    lkv_tensor rope =
        tensor(kv + c->latent_dim, 2, (int64_t[]){n, c->rope_dim}, (int64_t[]){row, 1});
    lkv_append_args args = {.size = sizeof args, .latent = &latent, .rope = &rope, .layer = layer};
    args.slots = a->slots.device;
    args.positions = a->positions.device;
    args.rope_table = s->rope;
    args.norm_weight = a->kv_norms[layer];
    args.norm_eps = c->rms_eps;
    if (s->options.projector)
        return append_heads(s, &args, n, error);
    return engine_api_check(s->api, s->api->lkv_append(s->pool, &args, arrays_stream(&s->arrays)),
                            "append", error);
}

static int attend_layer(struct session *s, uint32_t layer, uint32_t n, struct engine_error *error)
{
    const struct model_config *c = &s->model->config;
    struct arrays *a = &s->arrays;
    const int64_t heads = c->num_heads, head = c->nope_dim + c->rope_dim;
    float *q = a->q.device;
    lkv_tensor nope =
        tensor(q, 3, (int64_t[]){n, heads, c->nope_dim}, (int64_t[]){heads * head, head, 1});
    lkv_tensor raw = tensor(q + c->nope_dim, 3, (int64_t[]){n, heads, c->rope_dim},
                            (int64_t[]){heads * head, head, 1});
    lkv_tensor turned = tensor(a->q_rope.device, 3, (int64_t[]){n, heads, c->rope_dim},
                               (int64_t[]){heads * c->rope_dim, c->rope_dim, 1});
    lkv_tensor out = tensor(a->attended.device, 3, (int64_t[]){n, heads, c->v_dim},
                            (int64_t[]){heads * c->v_dim, c->v_dim, 1});
    lkv_tensor whole =
        tensor(q, 3, (int64_t[]){n, heads, head}, (int64_t[]){heads * head, head, 1});
    const int joined = s->options.projector != NULL; /* q stays [nope | rope], turned in place */
    lkv_status status = s->api->lkv_rope_apply(s->rope, &raw, joined ? &raw : &turned,
                                               a->positions.device, arrays_stream(a));
    if (engine_api_check(s->api, status, "RoPE of q", error))
        return -1;
    lkv_batch batch = batch_of(s, n);
    lkv_attend_args args = {.size = sizeof args,
                            .q = joined ? &whole : &nope,
                            .q_rope = joined ? NULL : &turned,
                            .out = &out};
    args.weights = s->weights[layer];
    args.workspace = a->workspace.device;
    args.workspace_bytes = s->workspace_bytes;
    args.scale = model_describe(c).softmax_scale;
    args.layer = layer;
    float *rows =
        s->options.entropy ? s->options.entropy + layer * s->options.max_chunk * heads : NULL;
    lkv_tensor entropy = tensor(rows, 2, (int64_t[]){n, heads}, (int64_t[]){heads, 1});
    args.entropy = rows ? &entropy : NULL;
    status = s->api->lkv_attend(s->plan, s->pool, &batch, &args, arrays_stream(a));
    return engine_api_check(s->api, status, "attend", error);
}

/* Makes keys and values of every head and shows them to the tap, if there is one. */
static int expand_layer(struct session *s, uint32_t layer, uint32_t n, struct engine_error *error)
{
    const struct model_config *c = &s->model->config;
    const int64_t row = c->latent_dim + c->rope_dim, rope = c->rope_dim;
    float *kv = s->arrays.kv.host;
    lkv_tensor raw = tensor(kv + c->latent_dim, 2, (int64_t[]){n, rope}, (int64_t[]){row, 1});
    lkv_tensor turned = tensor(s->heads.rope, 2, (int64_t[]){n, rope}, (int64_t[]){rope, 1});
    lkv_status status =
        s->api->lkv_rope_apply(s->rope, &raw, &turned, s->arrays.positions.host, NULL);
    if (engine_api_check(s->api, status, "RoPE of k", error))
        return -1;
    heads_expand(&s->heads, s->model, layer, kv, n, s->options.num_threads);
    const struct session_tap tap = {.layer = layer,
                                    .first = s->length,
                                    .count = n,
                                    .keys = s->heads.keys,
                                    .values = s->heads.values};
    if (s->options.tap)
        s->options.tap(s->options.tap_user, &tap);
    return 0;
}

static void dense(const struct session *s, const float *x, const float *w, float *y,
                  const size_t mnk[3], int accumulate)
{
    struct gemm g = {.x = x, .w = w, .y = y, .m = mnk[0], .n = mnk[1], .k = mnk[2]};
    g.x_stride = mnk[2];
    g.accumulate = accumulate;
    gemm_run(&g, s->options.num_threads);
}

static int run_layer(struct session *s, uint32_t layer, uint32_t n, struct engine_error *error)
{
    const struct model_config *c = &s->model->config;
    const struct layer_weights *w = &s->model->layers[layer];
    struct arrays *a = &s->arrays;
    const size_t hidden = c->hidden, mlp = c->mlp, values = (size_t)c->num_heads * c->v_dim;
    const size_t q_dim = (size_t)c->num_heads * (c->nope_dim + c->rope_dim);
    rms_norm(a->x, w->input_norm, a->normed, n, hidden, c->rms_eps);
    dense(s, a->normed, w->q_proj, a->q.host, (size_t[]){n, q_dim, hidden}, 0);
    dense(s, a->normed, w->kv_a_proj, a->kv.host,
          (size_t[]){n, c->latent_dim + c->rope_dim, hidden}, 0);
    if ((s->options.tap || s->options.projector) && expand_layer(s, layer, n, error))
        return -1;
    if (arrays_push_layer(a, n, error) || append_layer(s, layer, n, error) ||
        attend_layer(s, layer, n, error) || arrays_pull_attended(a, n, error))
        return -1;
    dense(s, a->attended.host, w->o_proj, a->x, (size_t[]){n, hidden, values}, 1);
    rms_norm(a->x, w->post_norm, a->normed, n, hidden, c->rms_eps);
    dense(s, a->normed, w->gate, a->gate, (size_t[]){n, mlp, hidden}, 0);
    dense(s, a->normed, w->up, a->up, (size_t[]){n, mlp, hidden}, 0);
    silu_multiply(a->gate, a->up, n * mlp);
    dense(s, a->gate, w->down, a->x, (size_t[]){n, hidden, mlp}, 1);
    return 0;
}

static int check_tokens(const struct session *s, const int32_t *tokens, uint32_t n,
                        struct engine_error *error)
{
    if (n == 0 || n > s->options.max_chunk || s->length + n > s->options.max_tokens)
        return engine_fail(error, "%u tokens behind %u; at most %u at once and %u in all", n,
                           s->length, s->options.max_chunk, s->options.max_tokens);
    for (uint32_t i = 0; i < n; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= s->model->config.vocab)
            return engine_fail(error, "token %u is %d; the vocabulary has %u", i, tokens[i],
                               s->model->config.vocab);
    return 0;
}

int session_run(struct session *s, const int32_t *tokens, uint32_t n, float *logits,
                struct engine_error *error)
{
    const struct model *m = s->model;
    const size_t hidden = m->config.hidden;
    struct arrays *a = &s->arrays;
    if (check_tokens(s, tokens, n, error) || schedule(s, tokens, n, error))
        return -1;
    lkv_batch batch = batch_of(s, n);
    lkv_status status = s->api->lkv_plan_update(s->plan, &batch, a->workspace.device,
                                                s->workspace_bytes, arrays_stream(a));
    if (engine_api_check(s->api, status, "plan update", error))
        return -1;
    for (uint32_t i = 0; i < n; i++)
        memcpy(a->x + i * hidden, m->embed + (size_t)tokens[i] * hidden, hidden * sizeof *a->x);
    for (uint32_t layer = 0; layer < m->config.num_layers; layer++)
        if (run_layer(s, layer, n, error))
            return -1;
    s->length += n;
    rms_norm(a->x, m->final_norm, a->normed, n, hidden, m->config.rms_eps);
    dense(s, a->normed, m->lm_head, logits, (size_t[]){n, m->config.vocab, hidden}, 0);
    return engine_api_check(s->api, s->api->lkv_seq_commit(s->pool, s->seq, s->length), "commit",
                            error);
}

int session_check(struct session *s, struct engine_error *error)
{
    lkv_faults faults = {.size = sizeof faults};
    if (engine_api_check(s->api, s->api->lkv_pool_check(s->pool), "pool check", error) ||
        engine_api_check(s->api, s->api->lkv_pool_faults(s->pool, 0, &faults), "faults", error))
        return -1;
    if (faults.count)
        return engine_fail(error, "%llu faults on the device, the first of kind %u at row %llu",
                           (unsigned long long)faults.count, faults.first_kind,
                           (unsigned long long)faults.first_token);
    return 0;
}

uint64_t session_token_bytes(const struct session *s)
{
    return s->token_bytes;
}
