/* Pools: sizes of the formats, block counts, every way to lay layers out, planes, identity. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include "api/pool_shape.h"
#include "core/context.h"
#include "tests/unit/api/world.h"

static lkv_pool_desc pool_of(uint32_t format, uint32_t latent, uint32_t rope)
{
    return (lkv_pool_desc){.size = sizeof(lkv_pool_desc),
                           .format = format,
                           .tokens_per_block = 64,
                           .latent_dim = latent,
                           .rope_dim = rope,
                           .num_layers = 3,
                           .num_blocks = 130,
                           .fallback_headroom = 0.3};
}

Test(pool, record_sizes_of_the_design)
{
    static const uint64_t bytes[2][4] = {{1152, 656, 656, 432}, {576, 336, 336, 224}};
    for (int small = 0; small < 2; small++)
        for (uint32_t format = 1; format <= 4; format++) {
            lkv_pool_desc d = pool_of(format, small ? 256 : 512, small ? 32 : 64);
            lkv_block_info info = {.size = sizeof info};
            cr_assert_eq(lkv_block_query(&d, &info), LKV_OK);
            cr_expect_eq(info.record_bytes, bytes[small][format - 1]);
            cr_expect_eq(info.block_bytes, 64 * info.record_bytes);
            cr_expect_eq(info.total_bytes, 131 * 3 * info.block_bytes);
            cr_expect_eq(info.rope_offset + info.rope_bytes, info.record_bytes);
        }
}

/* Two KV heads, keys of 32 and values of 16 dimensions: each a record without a rope part. */
Test(pool, records_of_heads)
{
    static const uint64_t key[4] = {64, 48, 48, 48}, value[4] = {32, 32, 32, 48};
    for (uint32_t format = 1; format <= 4; format++) {
        lkv_pool_desc d = pool_of(format, 32, 0);
        lkv_block_info info = {.size = sizeof info};
        d.kind = LKV_KIND_LATENT_GQA;
        d.num_kv_heads = 2;
        d.value_latent_dim = 16;
        cr_assert_eq(lkv_block_query(&d, &info), LKV_OK, "%s", lkv_last_error());
        cr_expect_eq(info.value_offset, key[format - 1]);
        cr_expect_eq(info.head_bytes, key[format - 1] + value[format - 1]);
        cr_expect_eq(info.record_bytes, 2 * info.head_bytes);
        cr_expect_eq(info.codes_offset, 0);
        cr_expect_eq(info.scales_offset + info.scales_bytes, info.value_offset);
        cr_expect_eq(info.rope_bytes, 0);
    }
}

/* A device without the operations says so, and nothing is made. */
Test(pool, heads_need_a_backend_that_has_them)
{
    lkv_context_desc desc = {.size = sizeof desc, .device = LKV_DEVICE_CPU, .num_threads = 1};
    lkv_pool_desc d = pool_of(LKV_FORMAT_INT8, 32, 0);
    lkv_context *ctx;
    lkv_pool *pool = NULL;
    d.kind = LKV_KIND_LATENT_GQA;
    d.num_kv_heads = 2;
    cr_assert_eq(lkv_context_create(&desc, &ctx), LKV_OK);
    struct lkvi_backend without = *ctx->backend;
    const struct lkvi_backend *own = ctx->backend;
    without.append_heads = NULL;
    ctx->backend = &without;
    cr_expect_eq(lkv_pool_create(ctx, &d, &pool), LKV_E_UNSUPPORTED);
    cr_expect(strstr(lkv_last_error(), "LKV_KIND_LATENT_GQA") && !pool, "%s", lkv_last_error());
    ctx->backend = own;
    cr_expect_eq(lkv_pool_create(ctx, &d, &pool), LKV_OK, "%s", lkv_last_error());
    lkv_pool_release(pool);
    lkv_context_release(ctx);
}

Test(pool, base_is_the_floor_of_n_over_one_plus_headroom)
{
    static const struct {
        uint64_t n;
        double headroom;
        uint64_t base;
    } rows[] = {{130, 0.3, 100}, {1300000000, 0.3, 1000000000},
                {16, 0.3, 12},   {1, 0, 1},
                {100, 0, 100},   {11, 0.1, 10},
                {121, 0.1, 110}, {3, 0.5, 2}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        lkv_pool_desc d = pool_of(LKV_FORMAT_INT8, 512, 64);
        lkv_block_info info = {.size = sizeof info};
        d.num_blocks = rows[i].n;
        d.fallback_headroom = rows[i].headroom;
        d.flags = LKV_POOL_METADATA_ONLY;
        cr_assert_eq(lkv_block_query(&d, &info), LKV_OK);
        cr_expect_eq(info.base_blocks, rows[i].base, "%llu / (1 + %g): %llu, want %llu",
                     (unsigned long long)rows[i].n, rows[i].headroom,
                     (unsigned long long)info.base_blocks, (unsigned long long)rows[i].base);
        cr_expect_eq(info.base_blocks + info.headroom_blocks, rows[i].n);
        cr_expect_eq(info.total_bytes, 0);
    }
}

/* Writes a row to every layer and reads it back, so that layers that overlap are found. */
static void layers_are_apart(struct world *w, lkv_pool *pool, const char *what)
{
    for (uint32_t layer = 0; layer < W_LAYERS; layer++) {
        w->append.layer = layer;
        for (int i = 0; i < W_T * W_LATENT; i++)
            w->data[i] = (float)(layer + 1);
        cr_assert_eq(lkv_append(pool, &w->append, NULL), LKV_OK, "%s: %s", what, lkv_last_error());
    }
    for (uint32_t layer = 0; layer < W_LAYERS; layer++) {
        w->gather.layer = layer;
        cr_assert_eq(lkv_gather(pool, &w->gather, NULL), LKV_OK, "%s: %s", what, lkv_last_error());
        const float *rows = w->t.gather_latent.data;
        for (int i = 0; i < W_T * W_LATENT; i++)
            cr_assert_float_eq(rows[i], (float)(layer + 1), 0.02, "%s: layer %u, element %d is %g",
                               what, layer, i, rows[i]);
    }
}

Test(pool, layouts)
{
    struct world *w = world_create();
    lkv_pool_desc d = w->pool_desc;
    lkv_block_info info = {.size = sizeof info};
    d.owner = LKV_OWNER_ENGINE;
    cr_assert_eq(lkv_block_query(&d, &info), LKV_OK);
    uint64_t block = info.block_bytes, layer = block * W_BLOCKS;
    uint8_t *memory = aligned_alloc(256, (4 * layer + 255) / 256 * 256);
    void *layers[W_LAYERS] = {memory + 2 * layer, memory + 16};
    struct {
        const char *what;
        uint64_t block_stride, layer_stride, total;
        int by_layer;
    } rows[] = {{"layer-major", 0, 0, W_LAYERS * layer, 0},
                {"padded blocks", block + 16, 0, 0, 0},
                {"block-major", W_LAYERS * block, block, W_LAYERS * layer, 0},
                {"layers apart", 0, layer + 256, 2 * layer + 256, 0},
                {"a base a layer", 0, 0, W_LAYERS * layer, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        lkv_pool *pool;
        d.block_stride_bytes = rows[i].block_stride;
        d.layer_stride_bytes = rows[i].layer_stride;
        d.memory = rows[i].by_layer ? NULL : memory;
        d.layer_memory = rows[i].by_layer ? layers : NULL;
        d.memory_bytes = 4 * layer;
        cr_assert_eq(lkv_block_query(&d, &info), LKV_OK, "%s: %s", rows[i].what, lkv_last_error());
        if (rows[i].total)
            cr_expect_eq(info.total_bytes, rows[i].total, "%s", rows[i].what);
        cr_assert_eq(lkv_pool_create(w->ctx, &d, &pool), LKV_OK, "%s: %s", rows[i].what,
                     lkv_last_error());
        layers_are_apart(w, pool, rows[i].what);
        lkv_pool_release(pool);
    }
    free(memory);
    world_destroy(w);
}

/* A partial hit asks for a copy: records of all layers and both planes follow it. */
Test(pool, copies_reach_every_layer_and_plane)
{
    struct world *w = world_create();
    lkv_pool_layout layout = {.size = sizeof layout};
    void *planes[2];
    uint64_t bytes[2], num;
    int32_t table[W_BLOCKS];
    lkv_seq child;
    for (uint32_t i = 0; i < 2; i++) {
        cr_assert_eq(lkv_pool_plane(w->pool, i, &planes[i], &bytes[i]), LKV_OK);
        memset((char *)planes[i] + (uint64_t)w->table[2] * bytes[i], 7 + (int)i, bytes[i]);
    }
    cr_assert_eq(lkv_seq_fork(w->pool, w->seq, &child), LKV_OK);
    cr_assert_eq(lkv_seq_append(w->pool, child, w->tokens, 1, NULL), LKV_OK);
    cr_assert_eq(lkv_pool_apply_copies(w->pool, 0, NULL), LKV_OK, "%s", lkv_last_error());
    cr_assert_eq(lkv_seq_table(w->pool, child, table, W_BLOCKS, &num), LKV_OK);
    cr_assert(num == 3 && table[0] == w->table[0] && table[2] != w->table[2]);
    for (uint32_t layer = 0; layer < W_LAYERS; layer++) {
        cr_assert_eq(lkv_pool_layer(w->pool, layer, &layout), LKV_OK);
        uint8_t *base = layout.base;
        cr_expect_eq(memcmp(base + (uint64_t)table[2] * layout.block_stride_bytes,
                            base + (uint64_t)w->table[2] * layout.block_stride_bytes,
                            layout.block_stride_bytes),
                     0, "layer %u", layer);
    }
    for (int i = 0; i < 2; i++)
        for (uint64_t b = 0; b < bytes[i]; b++)
            cr_expect_eq(((uint8_t *)planes[i])[(uint64_t)table[2] * bytes[i] + b], 7 + i);
    cr_assert_eq(lkv_pool_check(w->pool), LKV_OK, "%s", lkv_last_error());
    world_destroy(w);
}

Test(pool, identity_tells_pools_apart)
{
    uint8_t print[32] = {1}, first[32], digest[32];
    lkv_pool_desc d = pool_of(LKV_FORMAT_INT8, 512, 64);
    lkvi_pool_identity(&d, first);
#define DIFFERS(change)                                                                            \
    do {                                                                                           \
        lkv_pool_desc e = d;                                                                       \
        change;                                                                                    \
        lkvi_pool_identity(&e, digest);                                                            \
        cr_expect(memcmp(first, digest, 32), #change);                                             \
    } while (0)
    DIFFERS(e.format = LKV_FORMAT_FP8);
    DIFFERS(e.encode_flags = LKV_ENCODE_ROTATE);
    DIFFERS(e.latent_dim = 256);
    DIFFERS(e.rope_dim = 32);
    DIFFERS(e.rope_style = LKV_ROPE_HALF);
    DIFFERS(e.num_layers = 4);
    DIFFERS(e.tokens_per_block = 32);
    DIFFERS(e.model_fingerprint = print);
    DIFFERS(e.kind = LKV_KIND_LATENT_GQA);
    d.kind = LKV_KIND_LATENT_GQA;
    lkvi_pool_identity(&d, first);
    DIFFERS(e.num_kv_heads = 3);
    DIFFERS(e.value_latent_dim = 256);
#undef DIFFERS
    d.value_latent_dim = 512; /* what 0 means */
    lkvi_pool_identity(&d, digest);
    cr_assert_eq(memcmp(first, digest, 32), 0);
    d.kind = LKV_KIND_MLA;
    d.value_latent_dim = 0;
    lkvi_pool_identity(&d, first);
    d.num_blocks = 7; /* where the blocks lie and how many there are is no identity */
    d.owner = LKV_OWNER_ENGINE;
    d.num_kv_heads = 1;
    lkvi_pool_identity(&d, digest);
    cr_assert_eq(memcmp(first, digest, 32), 0);
}
