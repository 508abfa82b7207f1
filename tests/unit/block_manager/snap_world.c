/* In: prompts. Out: pools whose bytes tell whose they are. */
#include "tests/unit/block_manager/snap_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const lkv_plane_desc planes[] = {
    {.bytes_per_block = 24, .placement = LKV_PLANE_HOST, .tag = 1},
    {.bytes_per_block = 37, .placement = LKV_PLANE_DEVICE, .tag = 200},
};

void snap_must(lkv_status status, const char *what)
{
    if (status == LKV_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, lkv_status_name(status), lkv_last_error());
    exit(3);
}

lkv_pool_desc snap_desc(uint64_t num_blocks, int with_planes, int block_major)
{
    lkv_pool_desc desc = {.size = sizeof desc,
                          .format = LKV_FORMAT_INT8,
                          .tokens_per_block = SNAP_BLOCK,
                          .latent_dim = SNAP_LATENT,
                          .rope_dim = SNAP_ROPE,
                          .num_layers = SNAP_LAYERS,
                          .num_blocks = num_blocks,
                          .max_seqs = 64,
                          .planes = planes,
                          .num_planes = with_planes ? 2 : 0};
    lkv_block_info info = {.size = sizeof info};
    snap_must(lkv_block_query(&desc, &info), "block query");
    if (block_major) {
        desc.block_stride_bytes = SNAP_LAYERS * info.block_bytes + 64;
        desc.layer_stride_bytes = info.block_bytes;
    }
    return desc;
}

struct snap_pool snap_open(const lkv_pool_desc *desc)
{
    struct snap_pool p;
    lkv_context_desc context = {.size = sizeof context, .device = LKV_DEVICE_CPU, .num_threads = 1};
    snap_must(lkv_context_create(&context, &p.ctx), "context");
    snap_must(lkv_pool_create(p.ctx, desc, &p.pool), "pool");
    return p;
}

void snap_close(struct snap_pool *p)
{
    lkv_pool_release(p->pool);
    lkv_context_release(p->ctx);
}

struct built {
    int32_t tokens[SNAP_TOKENS_MAX];
    lkv_key keys[2];
    lkv_prompt prompt;
};

static void build(const struct snap_prompt *from, struct built *b)
{
    memset(b, 0, sizeof *b);
    for (uint64_t i = 0; i < from->num_tokens; i++)
        b->tokens[i] = from->first + (int32_t)i;
    b->keys[0] =
        (lkv_key){.data = "adapter 1", .end = UINT64_MAX, .tag = LKV_KEY_ADAPTER, .bytes = 9};
    if (from->keys == 2)
        b->keys[0] = (lkv_key){
            .data = "image", .begin = 20, .end = 40, .tag = LKV_KEY_MULTIMODAL, .bytes = 5};
    b->prompt = (lkv_prompt){.size = sizeof b->prompt,
                             .tokens = b->tokens,
                             .keys = b->keys,
                             .num_tokens = from->num_tokens,
                             .num_keys = from->keys != 0};
}

static uint8_t byte_of(const struct snap_prompt *p, uint64_t k, uint32_t part, uint64_t j)
{
    uint64_t z = (uint64_t)(uint32_t)p->first * 0x9E3779B97F4A7C15u + p->keys;
    z = (z ^ k * 0xBF58476D1CE4E5B9u ^ (uint64_t)part << 40 ^ j) * 0x94D049BB133111EBu;
    return (uint8_t)(z >> 56);
}

/* Writes, or compares, every byte of block number k of the prompt, which lies in `block`. */
static uint64_t each_byte(struct snap_pool *p, const struct snap_prompt *prompt, uint64_t k,
                          int32_t block, int write)
{
    uint64_t wrong = 0;
    for (uint32_t part = 0; part < SNAP_LAYERS + 2; part++) {
        lkv_pool_layout layout = {.size = sizeof layout};
        uint64_t bytes, j;
        void *base;
        if (part < SNAP_LAYERS) {
            snap_must(lkv_pool_layer(p->pool, part, &layout), "layer");
            base = (uint8_t *)layout.base + (uint64_t)block * layout.block_stride_bytes;
            bytes = layout.record_bytes * SNAP_BLOCK;
        } else {
            if (lkv_pool_plane(p->pool, part - SNAP_LAYERS, &base, &bytes) != LKV_OK)
                break;
            base = (uint8_t *)base + (uint64_t)block * bytes;
        }
        for (j = 0; j < bytes && write; j++)
            ((uint8_t *)base)[j] = byte_of(prompt, k, part, j);
        for (j = 0; j < bytes; j++)
            wrong += ((uint8_t *)base)[j] != byte_of(prompt, k, part, j);
    }
    return wrong;
}

static uint64_t table_of(struct snap_pool *p, lkv_seq seq, int32_t *table)
{
    uint64_t num;
    snap_must(lkv_seq_table(p->pool, seq, table, SNAP_TOKENS_MAX / SNAP_BLOCK, &num), "table");
    return num;
}

void snap_cache(struct snap_pool *p, const struct snap_prompt *prompt)
{
    int32_t table[SNAP_TOKENS_MAX / SNAP_BLOCK];
    lkv_admission result = {.size = sizeof result};
    struct built b;
    lkv_seq seq;
    build(prompt, &b);
    b.prompt.flags = LKV_PROMPT_NO_PARTIAL;
    snap_must(lkv_seq_admit(p->pool, &b.prompt, NULL, &result, &seq), "admit");
    uint64_t num = table_of(p, seq, table);
    for (uint64_t k = result.hit_tokens / SNAP_BLOCK; k < num; k++)
        each_byte(p, prompt, k, table[k], 1);
    snap_must(lkv_seq_commit(p->pool, seq, prompt->num_tokens), "commit");
    snap_must(lkv_seq_free(p->pool, seq, 0), "free");
}

uint64_t snap_match(struct snap_pool *p, const struct snap_prompt *prompt)
{
    struct built b;
    lkv_match match = {.size = sizeof match};
    build(prompt, &b);
    b.prompt.flags = LKV_PROMPT_NO_PARTIAL;
    snap_must(lkv_seq_match(p->pool, &b.prompt, &match), "match");
    return match.hit_tokens;
}

uint64_t snap_verify(struct snap_pool *p, const struct snap_prompt *prompt)
{
    int32_t table[SNAP_TOKENS_MAX / SNAP_BLOCK];
    lkv_admission result = {.size = sizeof result};
    struct built b;
    lkv_seq seq;
    build(prompt, &b);
    b.prompt.flags = LKV_PROMPT_NO_PARTIAL;
    snap_must(lkv_seq_admit(p->pool, &b.prompt, NULL, &result, &seq), "admit");
    table_of(p, seq, table);
    for (uint64_t k = 0; k < result.hit_tokens / SNAP_BLOCK; k++) {
        uint64_t wrong = each_byte(p, prompt, k, table[k], 0);
        if (!wrong)
            continue;
        fprintf(stderr, "prompt %d keys %u block %llu: %llu bytes are not its own\n", prompt->first,
                prompt->keys, (unsigned long long)k, (unsigned long long)wrong);
        exit(4);
    }
    snap_must(lkv_seq_free(p->pool, seq, 0), "free");
    snap_must(lkv_pool_check(p->pool), "check");
    return result.hit_tokens;
}

lkv_status snap_save(struct snap_pool *p, const char *path, lkv_snapshot_info *info)
{
    lkv_snapshot_args args = {.size = sizeof args, .path = path};
    return lkv_pool_snapshot_save(p->pool, &args, info, NULL);
}

lkv_status snap_load(struct snap_pool *p, const char *path, lkv_snapshot_info *info)
{
    lkv_snapshot_args args = {.size = sizeof args, .path = path};
    return lkv_pool_snapshot_load(p->pool, &args, info, NULL);
}
