/* E. Tiers, copies, planes; with B's and C's scenarios that need a host tier. Those about ids use
 * the manager alone, those about bytes a CPU pool with records, planes and padded strides. */
#include <stdlib.h>
#include "api/objects.h"
#include "tests/cases/cases.h"

enum { B = 16 };

static struct lkvi_manager *pool_with_host(uint64_t num_blocks, uint64_t host_blocks)
{
    struct lkvi_manager_config config = {.num_blocks = num_blocks,
                                         .base_blocks = num_blocks,
                                         .host_blocks = host_blocks,
                                         .tokens_per_block = B,
                                         .max_seqs = 64,
                                         .event_slots = 4096};
    return case_pool_of(&config);
}

/* All copies that wait are enqueued; their fence is `fence`. The number of them. */
static uint64_t run_copies(struct lkvi_manager *m, uint64_t fence)
{
    uint64_t num;
    lkvi_manager_peek_copies(m, NULL, 0, &num);
    case_eq(lkvi_manager_settle_copies(m, num, fence), LKV_OK);
    case_check(m);
    return num;
}

static uint64_t demote(struct lkvi_manager *m, uint64_t n)
{
    uint64_t queued = 0;
    cr_assert(lkvi_manager_demote(m, n, &queued) == LKV_OK, "%s", lkv_last_error());
    case_check(m);
    return queued;
}

static void pass(struct lkvi_manager *m, uint64_t fence)
{
    lkvi_manager_pass_fence(m, fence);
    case_check(m);
}

static lkv_status swap_out(struct lkvi_manager *m, lkv_seq seq, uint64_t fence)
{
    lkv_status status = lkvi_seq_swap_out(m, seq, fence, NULL);
    case_check(m);
    return status;
}

static lkv_status swap_in(struct lkvi_manager *m, lkv_seq seq)
{
    lkv_status status = lkvi_seq_swap_in(m, seq, NULL);
    case_check(m);
    return status;
}

/* The first `blocks` blocks of a prompt are on the host alone. */
static void cache_on_host(struct lkvi_manager *m, const int32_t *tokens, uint64_t blocks)
{
    case_cache(m, tokens, blocks * B);
    case_eq(demote(m, blocks), blocks);
    case_eq(run_copies(m, 0), blocks);
    case_eq(case_evict(m, blocks), blocks);
}

/* The key reaches the host tier too: what another adapter left there is no hit. */
Test(cases, BM_05_adapters_are_kept_apart_on_the_host)
{
    struct lkvi_manager *m = pool_with_host(8, 8);
    lkv_key a = {"adapter A", 0, UINT64_MAX, LKV_KEY_ADAPTER, 9};
    lkv_key b = {"adapter B", 0, UINT64_MAX, LKV_KEY_ADAPTER, 9};
    int32_t p[3 * B];
    case_tokens(p, 3 * B, 0);
    lkv_prompt prompt = case_prompt(p, 3 * B);
    prompt.keys = &a;
    prompt.num_keys = 1;
    case_cache_prompt(m, &prompt);
    case_eq(demote(m, 3), 3);
    run_copies(m, 0);
    case_eq(case_evict(m, 3), 3);
    case_eq(case_stats(m).host_blocks_cached, 3);
    case_eq(case_match_prompt(m, &prompt), 2 * B);
    prompt.keys = &b;
    case_eq(case_match_prompt(m, &prompt), 0);
    prompt.num_keys = 0;
    case_eq(case_match_prompt(m, &prompt), 0);
    lkvi_manager_destroy(m);
}

Test(cases, BM_25_a_block_computed_again_has_one_owner)
{
    struct lkvi_manager *m = pool_with_host(6, 6);
    int32_t p[3 * B], table[256];
    lkv_match match = {.size = sizeof match};
    case_tokens(p, 3 * B, 0);
    cache_on_host(m, p, 3);
    case_eq(case_stats(m).blocks_cached, 0);
    case_eq(case_stats(m).host_blocks_cached, 3);
    lkv_prompt prompt = case_prompt(p, 3 * B);
    prompt.flags |= LKV_PROMPT_NO_MATCH; /* recomputes what the host has */
    lkv_seq seq = case_admit_prompt(m, &prompt);
    case_commit(m, seq, 3 * B);
    case_table(m, seq, table);
    case_eq(case_stats(m).blocks_cached, 3);
    case_eq(case_stats(m).host_blocks_cached, 0);
    case_eq(case_stats(m).host_blocks_copies, 3);
    for (int i = 0; i < 3; i++)
        case_eq(m->blocks[table[i]].refs, 1);
    prompt.flags = LKV_PROMPT_NO_PARTIAL;
    case_eq(lkvi_seq_match(m, &prompt, &match), LKV_OK);
    case_eq(match.hit_blocks, 2);
    case_eq(match.host_hit_blocks, 0);
    case_eq((uint32_t)match.ticket[0], table[1]);
    case_eq(case_free(m, seq, 0), LKV_OK);
    case_eq(case_stats(m).blocks_idle, 3);
    case_eq(case_stats(m).blocks_free, 3);
    lkvi_manager_destroy(m);
}

/* At every moment of a swap an abort gives the host blocks back. */
Test(cases, BM_27_a_swapped_sequence_frees_its_host_blocks)
{
    for (int moment = 0; moment < 4; moment++) {
        struct lkvi_manager *m = pool_with_host(8, 8);
        int32_t p[3 * B];
        case_tokens(p, 3 * B, 0);
        lkv_seq seq = case_admit(m, p, 3 * B);
        case_commit(m, seq, 2 * B);
        case_eq(swap_out(m, seq, moment == 3 ? 9 : 0), LKV_OK);
        case_eq(case_stats(m).host_blocks_in_use, 3);
        if (moment == 1 || moment == 2)
            case_eq(run_copies(m, 5), 3);
        if (moment == 2)
            pass(m, 5);
        case_eq(case_free(m, seq, 0), LKV_OK);
        case_eq(case_stats(m).host_blocks_pending, moment == 1 ? 3 : 0);
        pass(m, 9);
        case_eq(run_copies(m, 0), 0);
        case_eq(case_stats(m).host_blocks_free, 8);
        case_eq(case_stats(m).blocks_free + case_stats(m).blocks_idle, 8);
        case_eq(case_stats(m).blocks_idle, 2);
        lkvi_manager_destroy(m);
    }
}

Test(cases, BM_39_swaps_are_all_or_nothing)
{
    struct lkvi_manager *m = pool_with_host(4, 2);
    int32_t p[3 * B], q[2 * B], before[256], after[256];
    lkv_admission result = {.size = sizeof result};
    case_tokens(p, 3 * B, 0);
    case_tokens(q, 2 * B, 5000);
    lkv_seq seq = case_admit(m, p, 3 * B - 1);
    case_table(m, seq, before);
    case_eq(lkvi_seq_swap_out(m, seq, 0, &result), LKV_E_NO_HOST_SPACE);
    case_check(m);
    case_eq(result.needed, 3);
    case_eq(result.free_now, 2);
    case_eq(case_table(m, seq, after), 3);
    cr_assert(!memcmp(before, after, 3 * sizeof *before));
    case_eq(run_copies(m, 0), 0);
    case_eq(case_append(m, seq, 1, 0), LKV_OK); /* it still runs */
    case_eq(lkvi_seq_truncate(m, seq, 2 * B, 0), LKV_OK);
    case_eq(swap_out(m, seq, 0), LKV_OK);
    case_eq(run_copies(m, 0), 2);
    lkv_seq other = case_admit(m, q, 2 * B), third = case_admit(m, q, B);
    case_eq(lkvi_seq_swap_in(m, seq, &result), LKV_E_NO_BLOCKS);
    case_eq(result.needed, 2);
    case_eq(result.free_now, 1);
    case_eq(case_stats(m).host_blocks_in_use, 2);
    case_eq(run_copies(m, 0), 0);
    case_eq(case_free(m, third, 0), LKV_OK);
    case_eq(swap_in(m, seq), LKV_OK);
    case_eq(run_copies(m, 0), 2);
    case_eq(case_stats(m).host_blocks_free, 2);
    case_eq(case_free(m, seq, 0), LKV_OK);
    case_eq(case_free(m, other, 0), LKV_OK);
    lkvi_manager_destroy(m);
}

/* A table of a sequence on the device has the device's ids, whatever moved in between. */
Test(cases, BM_53_tables_carry_ids_of_the_device)
{
    static const int back[3] = {2, 0, 1};
    struct lkvi_manager *m = pool_with_host(6, 6);
    int32_t p[2 * B], table[256];
    lkv_seq seqs[3];
    uint64_t num;
    for (int32_t i = 0; i < 3; i++) {
        case_tokens(p, 2 * B, i * 1000);
        seqs[i] = case_admit(m, p, 2 * B);
    }
    for (int i = 0; i < 3; i++)
        case_eq(swap_out(m, seqs[i], 0), LKV_OK);
    case_eq(lkvi_seq_table(m, seqs[0], table, 256, &num), LKV_E_INVALID);
    case_eq(case_append(m, seqs[0], 1, 0), LKV_E_INVALID);
    case_eq(swap_in(m, seqs[0]), LKV_E_WAIT_PENDING);
    case_eq(run_copies(m, 0), 6);
    uint8_t seen[7] = {0};
    for (int i = 0; i < 3; i++) {
        case_eq(swap_in(m, seqs[back[i]]), LKV_OK);
        case_eq(case_table(m, seqs[back[i]], table), 2);
        for (int k = 0; k < 2; k++) {
            cr_assert(table[k] >= 1 && table[k] <= 6, "id %d", table[k]);
            case_eq(seen[table[k]]++, 0);
        }
    }
    lkvi_manager_destroy(m);
}

Test(cases, BM_54_both_tiers_add_up_while_blocks_come_and_go)
{
    struct lkvi_manager *m = pool_with_host(12, 10);
    uint64_t state = 54;
    lkv_seq live[4] = {0};
    int32_t p[4 * B];
    for (int i = 0; i < 1000; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint32_t r = (uint32_t)(state >> 33), slot = r % 4;
        if (live[slot]) {
            case_commit(m, live[slot], 3 * B);
            case_eq(case_free(m, live[slot], r % 3 ? 0 : (uint64_t)i), LKV_OK);
            live[slot] = 0;
        } else {
            case_tokens(p, 3 * B, (int32_t)(r / 4 % 8) * 1000);
            case_try_admit(m, p, 3 * B, NULL, &live[slot]);
        }
        demote(m, 4);
        run_copies(m, r % 5 ? 0 : (uint64_t)i);
        pass(m, (uint64_t)i);
        lkv_pool_stats s = case_stats(m);
        case_eq(s.blocks_free + s.blocks_idle + s.blocks_in_use + s.blocks_pending, 12);
        case_eq(s.host_blocks_free + s.host_blocks_idle + s.host_blocks_in_use +
                    s.host_blocks_pending,
                10);
        case_eq(s.host_blocks_idle, s.host_blocks_cached + s.host_blocks_copies);
    }
    cr_assert(case_stats(m).demoted_blocks > 100 && case_stats(m).promoted_blocks > 100,
              "%llu demoted, %llu promoted", (unsigned long long)case_stats(m).demoted_blocks,
              (unsigned long long)case_stats(m).promoted_blocks);
    lkvi_manager_destroy(m);
}

/* ---- bytes */

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
