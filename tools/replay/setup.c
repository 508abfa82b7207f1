/* In: the options and the trace. Out: a context and a pool of the right number of blocks. Without
 * --attend the pool is METADATA_ONLY; with it one layer has real records, while --memory still
 * counts every layer of the model. --moe alone has memory too, for payloads and traces: records as
 * small as they can be, with as many slots in a block as the model's block has. */
#include "tools/replay/replay.h"

#include <stdlib.h>

#include "tools/common/out.h"
#include "tools/common/parse.h"

enum { ANY_NUM_BLOCKS = 1000 }; /* while only the size of one block is asked for */
enum { SMALL_DIM = 16, MOST_DIM = 4096 };

static lkv_pool_desc describe_pool(const struct replay *r, uint32_t layers)
{
    const struct replay_options *o = &r->options;
    const lkv_model_desc *m = &r->pool.model;
    return (lkv_pool_desc){
        .size = sizeof(lkv_pool_desc),
        .format = o->format,
        .encode_flags = o->encode_flags,
        .flags = (o->attend_rate > 0 || o->moe.experts ? 0 : (uint32_t)LKV_POOL_METADATA_ONLY) |
                 (o->no_partial ? (uint32_t)LKV_POOL_NO_PARTIAL : 0),
        .tokens_per_block = o->block_tokens,
        .latent_dim = m->latent_dim,
        .rope_dim = m->rope_dim,
        .rope_style = m->rope_style,
        .num_layers = layers,
        .max_seqs = o->infinite ? 4 : o->max_running + 1,
        .num_blocks = r->pool.num_blocks ? r->pool.num_blocks : ANY_NUM_BLOCKS,
        .fallback_headroom = o->headroom,
        .host_blocks = r->pool.host_blocks,
    };
}

static lkv_block_info query_block(const struct replay *r, uint32_t layers)
{
    const lkv_pool_desc desc = describe_pool(r, layers);
    lkv_block_info info = {.size = sizeof info};
    out_must(lkv_block_query(&desc, &info), "the pool");
    return info;
}

/* Every distinct prompt at once, the one that runs, and the headroom on top. */
static uint64_t infinite_blocks(const struct replay *r)
{
    const uint64_t need = r->result.working_set_blocks + r->pool.table_width + 2;
    return (uint64_t)((double)need * (1 + r->options.headroom)) + 1;
}

/* --compare memory begins with the run that never evicts. */
static uint64_t wanted_blocks(const struct replay *r)
{
    const struct replay_options *o = &r->options;
    if (o->blocks)
        return o->blocks;
    if (o->infinite || o->compare == COMPARE_MEMORY)
        return infinite_blocks(r);
    if (o->memory.share > 0)
        return (uint64_t)(o->memory.share * (double)r->result.working_set_blocks) + 1;
    return o->memory.bytes / r->pool.kv_block_bytes;
}

static void size_pool(struct replay *r)
{
    const struct replay_options *o = &r->options;
    struct replay_pool *p = &r->pool;
    const uint32_t layers = o->layers ? o->layers : p->model.num_layers;
    p->table_width = trace_longest(&r->trace) / o->block_tokens + 2;
    r->result.working_set_blocks = trace_working_set(&r->trace, o->block_tokens);
    p->kv_block_bytes = query_block(r, layers).block_bytes * layers;
    p->num_blocks = wanted_blocks(r);
    p->host_blocks = o->host.share > 0
                         ? (uint64_t)(o->host.share * (double)r->result.working_set_blocks) + 1
                         : o->host.bytes / p->kv_block_bytes;
    if (!p->num_blocks)
        out_die("--memory holds no block: one of %u tokens takes %llu bytes over %u layers",
                o->block_tokens, (unsigned long long)p->kv_block_bytes, layers);
}

/* Slots of --payload bytes in a block of the model: each layer's part is cut by itself. */
static uint64_t slots_per_block(const struct replay *r)
{
    const struct replay_options *o = &r->options;
    const uint32_t layers = o->layers ? o->layers : r->pool.model.num_layers;
    const uint64_t layer_bytes = r->pool.kv_block_bytes / layers;
    if (o->moe.payload_bytes > layer_bytes)
        out_die("--payload is %llu bytes; need at most a block of one layer, %llu",
                (unsigned long long)o->moe.payload_bytes, (unsigned long long)layer_bytes);
    return layers * (layer_bytes / o->moe.payload_bytes);
}

/* Where there is no attention: records no larger than what the slots' marks need. */
static void shrink_records(lkv_pool_desc *desc, uint64_t slots)
{
    const uint64_t row = (uint64_t)SMALL_DIM * 2 * desc->tokens_per_block;
    const uint64_t times = (slots * sizeof(struct moe_mark) + row - 1) / row;
    if (times * SMALL_DIM > MOST_DIM)
        out_die("--payload gives %llu slots a block; need at most %llu", (unsigned long long)slots,
                (unsigned long long)(MOST_DIM / SMALL_DIM * row / sizeof(struct moe_mark)));
    desc->format = LKV_FORMAT_BF16;
    desc->encode_flags = 0;
    desc->latent_dim = (uint32_t)times * SMALL_DIM;
    desc->rope_dim = 0;
}

static void size_slots(struct replay *r, lkv_pool_desc *desc)
{
    lkv_block_info info = {.size = sizeof info};
    const uint64_t slots = slots_per_block(r);
    if (!(r->options.attend_rate > 0))
        shrink_records(desc, slots);
    out_must(lkv_block_query(desc, &info), "the pool");
    r->pool.payload_bytes = info.block_bytes / slots / 16 * 16;
    if (r->pool.payload_bytes < sizeof(struct moe_mark))
        out_die("--payload gives %llu slots a block; one layer of %llu bytes has no room for them",
                (unsigned long long)slots, (unsigned long long)info.block_bytes);
}

void replay_open(struct replay *r)
{
    struct replay_pool *p = &r->pool;
    p->model.size = sizeof p->model;
    out_must(lkv_model_preset(r->options.preset, &p->model), "--preset");
    size_pool(r);
    const lkv_context_desc context = {
        .size = sizeof context, .device = LKV_DEVICE_CPU, .num_threads = r->options.threads};
    out_must(lkv_context_create(&context, &p->ctx), "the context");
    lkv_pool_desc desc = describe_pool(r, 1);
    const lkv_plane_desc trace = {.bytes_per_block = 2 * (uint64_t)(r->options.moe.top_k + 1) *
                                                     r->options.block_tokens,
                                  .placement = LKV_PLANE_HOST,
                                  .tag = 1};
    p->has_memory = !(desc.flags & LKV_POOL_METADATA_ONLY);
    if (r->options.moe.experts) {
        size_slots(r, &desc);
        desc.planes = &trace;
        desc.num_planes = 1;
    }
    p->block = query_block(r, 1);
    out_must(lkv_pool_create(p->ctx, &desc, &p->pool), "the pool");
    p->max_copies = desc.max_seqs + (p->host_blocks ? p->num_blocks + p->host_blocks : 0);
    p->copies = out_alloc(2 * p->max_copies, sizeof *p->copies);
    r->expander = (struct expander){.trace = &r->trace, .seed = r->options.seed};
}

void replay_close(struct replay *r)
{
    lkv_pool_release(r->pool.pool);
    lkv_context_release(r->pool.ctx);
    free(r->pool.copies);
    expand_free(&r->expander);
    trace_free(&r->trace);
    series_free(&r->result.match_admit_us);
    series_free(&r->result.step_us);
    series_free(&r->result.lend.us);
    free(r->result.timeline.samples);
}
