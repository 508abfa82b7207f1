/* E, and BM-59, about bytes: a CPU pool with records, planes and padded strides. */
#include <stdlib.h>
#include "api/objects.h"
#include "tests/cases/cases.h"

enum { B = 16 };

enum { LAYERS = 3, PLANES = 3, MEMORY_BLOCKS = 9, GUARD = 0xA5 };

struct bytes_pool {
    lkv_context *ctx;
    lkv_pool *pool;
    uint8_t *memory;
    uint64_t stride, bytes;
};

/* Blocks with padding behind them, in memory full of guard bytes. */
static struct bytes_pool bytes_open(uint32_t format)
{
    static const lkv_plane_desc planes[PLANES] = {
        {48, LKV_PLANE_DEVICE, 1}, {7, LKV_PLANE_DEVICE, 2}, {33, LKV_PLANE_HOST, 3}};
    struct bytes_pool p = {.stride = 0};
    lkv_context_desc context = {.size = sizeof context, .device = LKV_DEVICE_CPU, .num_threads = 1};
    lkv_pool_desc d = {.size = sizeof d,
                       .format = format,
                       .tokens_per_block = B,
                       .latent_dim = 512,
                       .rope_dim = 64,
                       .num_layers = LAYERS,
                       .num_blocks = MEMORY_BLOCKS - 1,
                       .host_blocks = 6,
                       .planes = planes,
                       .num_planes = PLANES};
    lkv_block_info info = {.size = sizeof info};
    case_eq(lkv_block_query(&d, &info), LKV_OK);
    p.stride = d.block_stride_bytes = info.block_bytes + 112;
    case_eq(lkv_block_query(&d, &info), LKV_OK);
    p.bytes = d.memory_bytes = (info.total_bytes + 255) / 256 * 256;
    p.memory = d.memory = aligned_alloc(256, p.bytes);
    memset(p.memory, GUARD, p.bytes);
    case_eq(lkv_context_create(&context, &p.ctx), LKV_OK);
    cr_assert(lkv_pool_create(p.ctx, &d, &p.pool) == LKV_OK, "%s", lkv_last_error());
    return p;
}

static void bytes_close(struct bytes_pool *p)
{
    lkv_pool_release(p->pool);
    lkv_context_release(p->ctx);
    free(p->memory);
}

/* One byte range of a block after the other: layers, then planes. */
static uint8_t *part(const struct bytes_pool *p, int32_t block, uint32_t i, uint64_t *bytes)
{
    const struct lkv_pool *pool = p->pool;
    if (i < LAYERS) {
        *bytes = pool->shape.block_bytes;
        return pool->layers[i] + (uint64_t)block * pool->shape.block_stride;
    }
    *bytes = pool->planes[i - LAYERS].bytes_per_block;
    return pool->planes[i - LAYERS].base + (uint64_t)block * *bytes;
}

static uint8_t byte_of(uint32_t what, uint32_t i, uint64_t k)
{
    return (uint8_t)((what * 2654435761u + i * 40503u + k * 2246822519u) >> 13);
}

static void fill(const struct bytes_pool *p, int32_t block, uint32_t what)
{
    uint64_t bytes;
    for (uint32_t i = 0; i < LAYERS + PLANES; i++) {
        uint8_t *at = part(p, block, i, &bytes);
        for (uint64_t k = 0; k < bytes; k++)
            at[k] = byte_of(what, i, k);
    }
}

static void holds(const struct bytes_pool *p, int32_t block, uint32_t what)
{
    uint64_t bytes;
    for (uint32_t i = 0; i < LAYERS + PLANES; i++) {
        const uint8_t *at = part(p, block, i, &bytes);
        for (uint64_t k = 0; k < bytes; k++)
            cr_assert(at[k] == byte_of(what, i, k), "block %d part %u byte %llu is %u, want %u",
                      block, i, (unsigned long long)k, at[k], byte_of(what, i, k));
    }
}

static void guards_hold(const struct bytes_pool *p)
{
    const struct lkv_pool *pool = p->pool;
    for (uint32_t i = 0; i < LAYERS; i++)
        for (uint64_t b = 0; b + 1 < MEMORY_BLOCKS; b++)
            for (uint64_t k = pool->shape.block_bytes; k < p->stride; k++)
                case_eq(pool->layers[i][b * p->stride + k], GUARD);
}

static lkv_seq bytes_admit(const struct bytes_pool *p, int32_t first, uint64_t blocks,
                           int32_t *table)
{
    int32_t tokens[4 * B];
    lkv_seq seq;
    uint64_t num;
    case_tokens(tokens, blocks * B, first);
    lkv_prompt prompt = case_prompt(tokens, blocks * B);
    cr_assert(lkv_seq_admit(p->pool, &prompt, NULL, NULL, &seq) == LKV_OK, "%s", lkv_last_error());
    case_eq(lkv_pool_apply_copies(p->pool, 0, NULL), LKV_OK);
    case_eq(lkv_seq_table(p->pool, seq, table, 4, &num), LKV_OK);
    return seq;
}

Test(cases, BM_56_every_plane_comes_back)
{
    static const uint32_t formats[3] = {LKV_FORMAT_INT8, LKV_FORMAT_NVFP4, LKV_FORMAT_FP8};
    for (int f = 0; f < 3; f++) {
        struct bytes_pool p = bytes_open(formats[f]);
        int32_t table[4];
        uint64_t num;
        lkv_seq seq = bytes_admit(&p, 0, 3, table);
        for (uint32_t i = 0; i < 3; i++)
            fill(&p, table[i], i);
        case_eq(lkv_seq_swap_out(p.pool, seq, 0, NULL), LKV_OK);
        case_eq(lkv_pool_apply_copies(p.pool, 4, NULL), LKV_OK);
        case_eq(lkv_pool_check(p.pool), LKV_OK);
        case_eq(lkv_seq_swap_in(p.pool, seq, NULL), LKV_E_WAIT_PENDING);
        case_eq(lkv_pool_pass_fence(p.pool, 4), LKV_OK);
        for (int32_t b = 1; b < MEMORY_BLOCKS; b++)
            fill(&p, b, 99); /* poison */
        case_eq(lkv_seq_swap_in(p.pool, seq, NULL), LKV_OK);
        case_eq(lkv_pool_apply_copies(p.pool, 5, NULL), LKV_OK);
        case_eq(lkv_pool_check(p.pool), LKV_OK);
        case_eq(lkv_seq_table(p.pool, seq, table, 4, &num), LKV_OK);
        for (uint32_t i = 0; i < 3; i++)
            holds(&p, table[i], i);
        guards_hold(&p);
        bytes_close(&p);
    }
}

/* The host block is the sum of what a block is, padding left out, and nothing else moves. */
Test(cases, BM_58_only_rows_move)
{
    struct bytes_pool p = bytes_open(LKV_FORMAT_INT8);
    int32_t table[4], again[4];
    lkv_pool_stats stats = {.size = sizeof stats};
    uint64_t done;
    case_eq(p.pool->host.block_bytes, LAYERS * B * 656 + 48 + 7 + 33);
    lkv_seq seq = bytes_admit(&p, 0, 3, table);
    for (uint32_t i = 0; i < 3; i++)
        fill(&p, table[i], i);
    case_eq(lkv_seq_commit(p.pool, seq, 3 * B), LKV_OK);
    case_eq(lkv_seq_free(p.pool, seq, 0), LKV_OK);
    case_eq(lkv_pool_demote(p.pool, 8, &done), LKV_OK);
    case_eq(done, 3);
    case_eq(lkv_pool_apply_copies(p.pool, 0, NULL), LKV_OK);
    case_eq(lkv_pool_evict(p.pool, 8, &done), LKV_OK);
    case_eq(done, 3);
    for (int32_t b = 1; b < MEMORY_BLOCKS; b++)
        fill(&p, b, 99);
    seq = bytes_admit(&p, 0, 4, again); /* hits 3 blocks on the host */
    for (uint32_t i = 0; i < 3; i++)
        holds(&p, again[i], i);
    case_eq(lkv_pool_query(p.pool, &stats), LKV_OK);
    case_eq(stats.promoted_blocks, 3);
    case_eq(stats.hit_tokens, 3 * B);
    guards_hold(&p);
    case_eq(lkv_pool_check(p.pool), LKV_OK);
    bytes_close(&p);
}

/* A copy to the host begins when the last step that writes its source has passed, not before. */
Test(cases, BM_59_a_copy_out_waits_for_the_writer)
{
    struct bytes_pool p = bytes_open(LKV_FORMAT_INT8);
    int32_t table[4];
    uint64_t num, queued;
    lkv_seq seq = bytes_admit(&p, 0, 2, table);
    fill(&p, table[0], 50);
    fill(&p, table[1], 51);
    case_eq(lkv_seq_swap_out(p.pool, seq, 7, NULL), LKV_OK);
    case_eq(lkv_pool_apply_copies(p.pool, 8, NULL), LKV_OK); /* copies nothing yet */
    fill(&p, table[0], 0);                                   /* step 7 writes late */
    fill(&p, table[1], 1);
    case_eq(lkv_pool_pass_fence(p.pool, 6), LKV_OK);
    case_eq(lkv_pool_apply_copies(p.pool, 8, NULL), LKV_OK);
    case_eq(lkv_pool_pass_fence(p.pool, 7), LKV_OK);
    case_eq(lkv_pool_apply_copies(p.pool, 8, NULL), LKV_OK);
    case_eq(lkv_pool_pass_fence(p.pool, 8), LKV_OK);
    case_eq(lkv_seq_swap_in(p.pool, seq, NULL), LKV_OK);
    case_eq(lkv_pool_apply_copies(p.pool, 0, NULL), LKV_OK);
    case_eq(lkv_seq_table(p.pool, seq, table, 4, &num), LKV_OK);
    holds(&p, table[0], 0);
    holds(&p, table[1], 1);
    /* and a cached block is not demoted before the fence under which it was freed */
    case_eq(lkv_seq_commit(p.pool, seq, 2 * B), LKV_OK);
    case_eq(lkv_seq_free(p.pool, seq, 9), LKV_OK);
    case_eq(lkv_pool_demote(p.pool, 8, &queued), LKV_OK);
    case_eq(queued, 0);
    case_eq(lkv_pool_pass_fence(p.pool, 9), LKV_OK);
    case_eq(lkv_pool_demote(p.pool, 8, &queued), LKV_OK);
    case_eq(queued, 2);
    case_eq(lkv_pool_check(p.pool), LKV_OK);
    bytes_close(&p);
}
