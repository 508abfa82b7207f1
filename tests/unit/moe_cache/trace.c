/* The routing trace lives with its blocks: written once, found again by a prefix hit, after a copy
 * on write, a swap and a snapshot. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "tests/unit/moe_cache/slots_world.h"

enum { LAYERS = 3, TOP_K = 2, LENGTH = 40 };

static lkv_pool *trace_pool(lkv_context *ctx, uint32_t placement)
{
    lkv_pool *pool;
    lkv_plane_desc planes[2] = {{8, LKV_PLANE_DEVICE, 7},
                                {SW_BLOCK * LAYERS * TOP_K * 2, placement, 1}};
    lkv_pool_desc d = {.size = sizeof d,
                       .format = LKV_FORMAT_BF16,
                       .tokens_per_block = SW_BLOCK,
                       .latent_dim = 16,
                       .rope_dim = 0,
                       .num_layers = 1,
                       .num_blocks = 20,
                       .host_blocks = 8,
                       .planes = planes,
                       .num_planes = 2};
    SW_MUST(lkv_pool_create(ctx, &d, &pool));
    return pool;
}

static void slots_of(lkv_pool *pool, lkv_seq seq, uint64_t n, int64_t *slots)
{
    int32_t table[20];
    uint64_t num;
    SW_MUST(lkv_seq_table(pool, seq, table, 20, &num));
    for (uint64_t i = 0; i < n; i++)
        slots[i] = (int64_t)table[i / SW_BLOCK] * SW_BLOCK + (int64_t)(i % SW_BLOCK);
}

static int32_t expert(uint64_t position, uint32_t layer, uint32_t k)
{
    return (position + layer) % 9 == 0 ? -1 : (int32_t)((position * 31 + layer * 7 + k) % 65535);
}

static void write_trace(lkv_pool *pool, lkv_seq seq, uint64_t n)
{
    int64_t slots[LENGTH];
    int32_t experts[LENGTH * TOP_K];
    slots_of(pool, seq, n, slots);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        lkv_trace_args a = {.size = sizeof a,
                            .slots = slots,
                            .experts = experts,
                            .num_tokens = n,
                            .plane = 1,
                            .layer = layer,
                            .num_layers = LAYERS,
                            .top_k = TOP_K};
        for (uint64_t i = 0; i < n * TOP_K; i++)
            experts[i] = expert(i / TOP_K, layer, i % TOP_K);
        SW_MUST(lkv_trace_write(pool, &a));
    }
}

static void check_trace(lkv_pool *pool, lkv_seq seq, uint64_t n, const char *when)
{
    int64_t slots[LENGTH];
    int32_t experts[LENGTH * TOP_K];
    slots_of(pool, seq, n, slots);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        lkv_trace_args a = {.size = sizeof a,
                            .slots = slots,
                            .experts = experts,
                            .num_tokens = n,
                            .plane = 1,
                            .layer = layer,
                            .num_layers = LAYERS,
                            .top_k = TOP_K};
        SW_MUST(lkv_trace_read(pool, &a));
        for (uint64_t i = 0; i < n * TOP_K; i++)
            cr_assert_eq(experts[i], expert(i / TOP_K, layer, i % TOP_K),
                         "%s: token %llu layer %u: %d, want %d", when,
                         (unsigned long long)(i / TOP_K), layer, experts[i],
                         expert(i / TOP_K, layer, i % TOP_K));
    }
}

static void fill_tokens(int32_t *tokens)
{
    for (int i = 0; i < LENGTH; i++)
        tokens[i] = 3 * i + 5;
}

Test(moe_trace, lives_with_its_block)
{
    for (uint32_t placement = LKV_PLANE_DEVICE; placement <= LKV_PLANE_HOST; placement++) {
        lkv_context *ctx = sw_context();
        lkv_pool *pool = trace_pool(ctx, placement);
        int32_t tokens[LENGTH], other = 1;
        fill_tokens(tokens);
        lkv_seq a = sw_admit(pool, tokens, LENGTH), b, c;
        write_trace(pool, a, LENGTH);
        SW_MUST(lkv_seq_commit(pool, a, LENGTH));
        check_trace(pool, a, LENGTH, "written");
        b = sw_admit(pool, tokens, LENGTH);
        check_trace(pool, b, 2 * SW_BLOCK, "a hit's whole blocks");
        SW_MUST(lkv_seq_fork(pool, a, &c));
        SW_MUST(lkv_seq_append(pool, c, &other, 1, NULL));
        SW_MUST(lkv_pool_apply_copies(pool, 0, NULL));
        check_trace(pool, c, LENGTH, "copied on write");
        SW_MUST(lkv_seq_swap_out(pool, c, 0, NULL));
        SW_MUST(lkv_pool_apply_copies(pool, 0, NULL));
        SW_MUST(lkv_seq_swap_in(pool, c, NULL));
        SW_MUST(lkv_pool_apply_copies(pool, 0, NULL));
        check_trace(pool, c, LENGTH, "swapped");
        lkv_pool_release(pool);
        lkv_context_release(ctx);
    }
}

Test(moe_trace, in_a_snapshot)
{
    char path[] = "/tmp/lkv_trace_XXXXXX";
    int fd = mkstemp(path);
    lkv_context *ctx = sw_context();
    lkv_pool *pool = trace_pool(ctx, LKV_PLANE_HOST);
    int32_t tokens[LENGTH];
    lkv_snapshot_args snap = {.size = sizeof snap, .path = path};
    cr_assert(fd >= 0);
    fill_tokens(tokens);
    lkv_seq a = sw_admit(pool, tokens, LENGTH);
    write_trace(pool, a, LENGTH);
    SW_MUST(lkv_seq_commit(pool, a, LENGTH));
    SW_MUST(lkv_pool_snapshot_save(pool, &snap, NULL, NULL));
    lkv_pool_release(pool);
    pool = trace_pool(ctx, LKV_PLANE_HOST);
    SW_MUST(lkv_pool_snapshot_load(pool, &snap, NULL, NULL));
    a = sw_admit(pool, tokens, LENGTH);
    check_trace(pool, a, 2 * SW_BLOCK, "loaded");
    lkv_pool_release(pool);
    lkv_context_release(ctx);
    close(fd);
    unlink(path);
}

/* Negative slots: nothing is written there, none is read. */
Test(moe_trace, padding_and_refusals)
{
    lkv_context *ctx = sw_context();
    lkv_pool *pool = trace_pool(ctx, LKV_PLANE_HOST);
    int32_t tokens[LENGTH], experts[2 * TOP_K] = {1, 2, 3, 4};
    int64_t slots[2] = {-1, 0};
    fill_tokens(tokens);
    lkv_seq a = sw_admit(pool, tokens, 4);
    slots_of(pool, a, 1, slots + 1);
    lkv_trace_args args = {.size = sizeof args,
                           .slots = slots,
                           .experts = experts,
                           .num_tokens = 2,
                           .plane = 1,
                           .num_layers = LAYERS,
                           .top_k = TOP_K};
    SW_MUST(lkv_trace_write(pool, &args));
    SW_MUST(lkv_trace_read(pool, &args));
    cr_expect(experts[0] == -1 && experts[1] == -1 && experts[2] == 3 && experts[3] == 4);
    experts[3] = 65535;
    experts[2] = 9;
    cr_expect_eq(lkv_trace_write(pool, &args), LKV_E_INVALID);
    SW_MUST(lkv_trace_read(pool, &args));
    cr_expect_eq(experts[2], 3, "all rows or none");
    args.plane = 0;
    cr_expect_eq(lkv_trace_read(pool, &args), LKV_E_INVALID, "another tag");
    lkv_pool_release(pool);
    lkv_context_release(ctx);
}
