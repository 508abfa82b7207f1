/* Builds the world of world.h; a failure here is a failure of the library's good cases. */
#include "tests/unit/api/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(call)                                                                                 \
    do {                                                                                           \
        lkv_status s_ = (call);                                                                    \
        if (s_ != LKV_OK) {                                                                        \
            fprintf(stderr, "%s: %s: %s\n", #call, lkv_status_name(s_), lkv_last_error());         \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static lkv_tensor tensor(void *data, uint32_t ndim, int64_t a, int64_t b, int64_t c, int64_t d)
{
    lkv_tensor t = {.data = data, .dtype = LKV_DTYPE_F32, .ndim = ndim, .shape = {a, b, c, d}};
    int64_t stride = 1;
    for (uint32_t i = ndim; i-- > 0; stride *= t.shape[i])
        t.stride[i] = stride;
    return t;
}

static void make_tensors(struct world *w)
{
    struct tensors *t = &w->t;
    float *in = w->data, *out = w->out.rows;
    for (size_t i = 0; i < sizeof w->data / sizeof w->data[0]; i++)
        in[i] = (float)((i * 2654435761u >> 8) % 2001) / 1000 - 1;
    t->latent = tensor(in, 2, W_T, W_LATENT, 0, 0);
    t->rope = tensor(in + 1024, 2, W_T, W_ROPE, 0, 0);
    t->q = tensor(in + 2048, 3, W_T, W_HEADS, W_NOPE, 0);
    t->q_rope = tensor(in + 4096, 3, W_T, W_HEADS, W_ROPE, 0);
    t->bias = tensor(in + 6144, 2, 1, 64, 0, 0);
    t->o_latent = tensor(in + 8192, 3, W_T, W_HEADS, W_LATENT, 0);
    t->kv_b_proj = tensor(in + 16384, 2, W_HEADS * (W_NOPE + W_V), W_LATENT, 0, 0);
    t->outs = tensor(in + 32768, 4, 2, W_T, W_HEADS, W_V);
    t->lses = tensor(in + 40960, 3, 2, W_T, W_HEADS, 0);
    t->entropies = tensor(in + 45056, 3, 2, W_T, W_HEADS, 0);
    t->out = tensor(out, 3, W_T, W_HEADS, W_V, 0);
    t->lse = tensor(out + 512, 2, W_T, W_HEADS, 0, 0);
    t->entropy = tensor(out + 640, 2, W_T, W_HEADS, 0, 0);
    t->q_latent = tensor(out + 1024, 3, W_T, W_HEADS, W_LATENT, 0);
    t->gather_latent = tensor(out + 2048, 2, W_T, W_LATENT, 0, 0);
    t->gather_rope = tensor(out + 3072, 2, W_T, W_ROPE, 0, 0);
    t->merged = tensor(out + 3584, 3, W_T, W_HEADS, W_V, 0);
}

static void make_descs(struct world *w)
{
    w->ctx_desc =
        (lkv_context_desc){.size = sizeof w->ctx_desc, .device = LKV_DEVICE_CPU, .num_threads = 2};
    w->model = (lkv_model_desc){.size = sizeof w->model,
                                .num_layers = W_LAYERS,
                                .num_heads = W_HEADS,
                                .latent_dim = W_LATENT,
                                .rope_dim = W_ROPE,
                                .nope_dim = W_NOPE,
                                .v_dim = W_V,
                                .rope_style = LKV_ROPE_INTERLEAVED,
                                .rope_theta = 1e4,
                                .softmax_scale = 0.1};
    w->pool_desc = (lkv_pool_desc){.size = sizeof w->pool_desc,
                                   .format = LKV_FORMAT_INT8,
                                   .tokens_per_block = W_BLOCK,
                                   .latent_dim = W_LATENT,
                                   .rope_dim = W_ROPE,
                                   .rope_style = LKV_ROPE_INTERLEAVED,
                                   .num_layers = W_LAYERS,
                                   .max_seqs = 8,
                                   .num_blocks = W_BLOCKS,
                                   .fallback_headroom = 0.3};
    w->weights_desc =
        (lkv_weights_desc){.size = sizeof w->weights_desc, .kv_b_proj = &w->t.kv_b_proj};
}

static void make_pools(struct world *w)
{
    static const lkv_plane_desc planes[] = {{64, LKV_PLANE_DEVICE, 1}, {32, LKV_PLANE_HOST, 200}};
    lkv_pool_desc d = w->pool_desc;
    lkv_block_info info = {.size = sizeof info};
    MUST(lkv_pool_create(w->ctx, &d, &w->dead_pool));
    lkv_pool_release(w->dead_pool);
    MUST(lkv_pool_create(w->other_ctx, &d, &w->other_pool));
    d.flags = LKV_POOL_METADATA_ONLY;
    MUST(lkv_pool_create(w->ctx, &d, &w->meta));
    d.flags = 0;
    d.planes = planes;
    d.num_planes = 2;
    MUST(lkv_pool_create(w->ctx, &d, &w->pool));
    d.planes = NULL;
    d.num_planes = 0;
    d.owner = LKV_OWNER_ENGINE;
    MUST(lkv_block_query(&d, &info));
    w->engine_bytes = info.total_bytes;
    w->engine_memory = aligned_alloc(256, (info.total_bytes + 255) / 256 * 256);
    memset(w->engine_memory, 0x5a, info.total_bytes);
    d.memory = w->engine_memory;
    d.memory_bytes = info.total_bytes;
    MUST(lkv_pool_create(w->ctx, &d, &w->engine));
}

static void make_weights(struct world *w)
{
    MUST(lkv_weights_create(w->ctx, &w->model, &w->weights_desc, &w->weights));
    MUST(lkv_weights_create(w->other_ctx, &w->model, &w->weights_desc, &w->other_weights));
    MUST(lkv_weights_create(w->ctx, &w->model, &w->weights_desc, &w->dead_weights));
    lkv_weights_release(w->dead_weights);
    w->weights_desc.flags = LKV_WEIGHTS_ROTATE;
    MUST(lkv_weights_create(w->ctx, &w->model, &w->weights_desc, &w->rotated));
    w->weights_desc.flags = 0;
    MUST(lkv_rope_create(w->ctx, &w->model, 128, &w->rope));
    MUST(lkv_rope_create(w->other_ctx, &w->model, 128, &w->other_rope));
    MUST(lkv_rope_create(w->ctx, &w->model, 128, &w->dead_rope));
    lkv_rope_release(w->dead_rope);
}

static void make_sequences(struct world *w)
{
    for (int i = 0; i < W_TOKENS; i++)
        w->tokens[i] = 100 + i;
    w->prompt = (lkv_prompt){.size = sizeof w->prompt, .tokens = w->tokens, .num_tokens = W_TOKENS};
    w->admit = (lkv_admit_args){.size = sizeof w->admit};
    w->admission.size = sizeof w->admission;
    MUST(lkv_seq_admit(w->pool, &w->prompt, &w->admit, &w->admission, &w->stale_seq));
    MUST(lkv_seq_free(w->pool, w->stale_seq, 0));
    MUST(lkv_seq_admit(w->pool, &w->prompt, &w->admit, &w->admission, &w->seq));
    uint64_t num;
    MUST(lkv_seq_table(w->pool, w->seq, w->table, W_BLOCKS, &num));
    MUST(lkv_lease_pin(w->pool, w->table, 1, &w->stale_lease));
    MUST(lkv_lease_release(w->pool, w->stale_lease, 0));
    w->num_new[0] = 1;
    w->step = (lkv_step){.size = sizeof w->step,
                         .num_seqs = 1,
                         .seqs = &w->seq,
                         .num_new = w->num_new,
                         .tokens = w->tokens,
                         .block_table = w->out.ids,
                         .seq_lens = w->out.seq_lens,
                         .q_indptr = w->out.q_indptr,
                         .slots = w->out.slots,
                         .positions = w->out.positions,
                         .slots_capacity = 64,
                         .table_width = W_BLOCKS};
}

static void make_args(struct world *w)
{
    struct tensors *t = &w->t;
    for (int i = 0; i < W_T; i++) {
        w->positions[i] = W_TOKENS - W_T + i;
        w->slots[i] =
            (int64_t)w->table[w->positions[i] / W_BLOCK] * W_BLOCK + w->positions[i] % W_BLOCK;
    }
    w->seq_lens[0] = W_TOKENS;
    w->q_indptr[1] = W_T;
    w->batch = (lkv_batch){.size = sizeof w->batch,
                           .num_seqs = 1,
                           .max_blocks_per_seq = 4,
                           .block_table = w->table,
                           .seq_lens = w->seq_lens,
                           .q_indptr = w->q_indptr,
                           .num_tokens = W_T};
    w->append = (lkv_append_args){
        .size = sizeof w->append, .latent = &t->latent, .rope = &t->rope, .slots = w->slots};
    w->gather = (lkv_gather_args){.size = sizeof w->gather,
                                  .slots = w->slots,
                                  .latent = &t->gather_latent,
                                  .rope = &t->gather_rope};
    w->merge = (lkv_merge_args){.size = sizeof w->merge,
                                .outs = &t->outs,
                                .lses = &t->lses,
                                .entropies = &t->entropies,
                                .out = &t->merged,
                                .lse = &t->lse,
                                .entropy = &t->entropy};
}

static void make_plans(struct world *w)
{
    w->plan_desc = (lkv_plan_desc){.size = sizeof w->plan_desc,
                                   .pool = w->pool,
                                   .num_heads = W_HEADS,
                                   .max_seqs = 2,
                                   .max_tokens = 8,
                                   .max_q_len = 4,
                                   .max_seq_len = 64,
                                   .q_dtype = LKV_DTYPE_F32,
                                   .out_dtype = LKV_DTYPE_F32,
                                   .q_form = LKV_Q_HEAD,
                                   .out_form = LKV_OUT_HEAD,
                                   .nope_dim = W_NOPE,
                                   .v_dim = W_V};
    MUST(lkv_plan_create(w->ctx, &w->plan_desc, &w->plan));
    MUST(lkv_plan_create(w->ctx, &w->plan_desc, &w->fresh_plan));
    MUST(lkv_plan_create(w->ctx, &w->plan_desc, &w->dead_plan));
    lkv_plan_release(w->dead_plan);
    size_t project;
    MUST(lkv_plan_workspace(w->plan, &w->workspace_bytes));
    MUST(lkv_project_workspace(w->weights, W_T, &project));
    w->workspace_bytes = ((project > w->workspace_bytes ? project : w->workspace_bytes) | 511) + 1;
    w->workspace = aligned_alloc(256, w->workspace_bytes);
    w->attend = (lkv_attend_args){.size = sizeof w->attend,
                                  .q = &w->t.q,
                                  .q_rope = &w->t.q_rope,
                                  .out = &w->t.out,
                                  .lse = &w->t.lse,
                                  .entropy = &w->t.entropy,
                                  .bias = &w->t.bias,
                                  .weights = w->weights,
                                  .workspace = w->workspace,
                                  .workspace_bytes = w->workspace_bytes,
                                  .scale = 0.1};
}

static void make_outputs(struct outputs *o)
{
    memset(o, 0xc3, sizeof *o);
    o->context_info.size = sizeof o->context_info;
    o->model.size = sizeof o->model;
    o->block_info.size = sizeof o->block_info;
    o->layout.size = sizeof o->layout;
    o->pool.size = sizeof o->pool;
    o->plan.size = sizeof o->plan;
    o->faults.size = sizeof o->faults;
    o->match.size = sizeof o->match;
    o->seq_info.size = sizeof o->seq_info;
    o->stats.size = sizeof o->stats;
}

struct world *world_create(void)
{
    struct world *w = calloc(1, sizeof *w);
    make_tensors(w);
    make_descs(w);
    MUST(lkv_context_create(&w->ctx_desc, &w->ctx));
    MUST(lkv_context_create(&w->ctx_desc, &w->other_ctx));
    MUST(lkv_context_create(&w->ctx_desc, &w->dead_ctx));
    lkv_context_release(w->dead_ctx);
    make_pools(w);
    make_weights(w);
    make_sequences(w);
    make_args(w);
    make_plans(w);
    MUST(lkv_append(w->pool, &w->append, NULL));
    MUST(lkv_plan_update(w->plan, &w->batch, w->workspace, w->workspace_bytes, NULL));
    MUST(lkv_attend(w->plan, w->pool, &w->batch, &w->attend, NULL));
    make_outputs(&w->out);
    return w;
}

/* Parents first: children hold them. */
void world_destroy(struct world *w)
{
    lkv_context_release(w->ctx);
    lkv_context_release(w->other_ctx);
    lkv_pool_release(w->pool);
    lkv_pool_release(w->engine);
    lkv_pool_release(w->meta);
    lkv_pool_release(w->other_pool);
    lkv_weights_release(w->weights);
    lkv_weights_release(w->rotated);
    lkv_weights_release(w->other_weights);
    lkv_rope_release(w->rope);
    lkv_rope_release(w->other_rope);
    lkv_plan_release(w->plan);
    lkv_plan_release(w->fresh_plan);
    free(w->workspace);
    free(w->engine_memory);
    free(w);
}

static uint64_t mix(uint64_t hash, const void *data, uint64_t bytes)
{
    const uint8_t *p = data;
    for (uint64_t i = 0; i < bytes; i++)
        hash = (hash ^ p[i]) * 1099511628211u;
    return hash;
}

static uint64_t mix_pool(uint64_t hash, lkv_pool *pool)
{
    lkv_pool_stats stats = {.size = sizeof stats};
    lkv_pool_layout layout = {.size = sizeof layout};
    MUST(lkv_pool_check(pool));
    MUST(lkv_pool_query(pool, &stats));
    stats.metadata_active_bytes = stats.metadata_allocated_bytes = stats.metadata_resident_bytes =
        0; /* the allocator's own business */
    hash = mix(hash, &stats, sizeof stats);
    for (uint32_t i = 0; i < W_LAYERS && lkv_pool_layer(pool, i, &layout) == LKV_OK; i++)
        hash = mix(hash, layout.base, layout.block_stride_bytes * layout.memory_blocks);
    return hash;
}

uint64_t world_fingerprint(struct world *w)
{
    lkv_seq_info info = {.size = sizeof info};
    lkv_faults faults = {.size = sizeof faults};
    uint64_t hash = 14695981039346656037u;
    hash = mix_pool(mix_pool(mix_pool(hash, w->pool), w->engine), w->meta);
    MUST(lkv_seq_query(w->pool, w->seq, &info));
    MUST(lkv_pool_faults(w->pool, 0, &faults));
    hash = mix(mix(hash, &info, sizeof info), &faults, sizeof faults);
    return mix(hash, &w->out, sizeof w->out);
}
