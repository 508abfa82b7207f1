/* E. Tiers, copies, planes; with B's and C's scenarios that need a host tier. Here those about ids,
 * by the manager alone; those about bytes are in bytes.c. */
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

/* The manager does not name a copy before the fence of who writes its source has passed. */
Test(cases, BM_59_a_copy_out_is_not_asked_for_before_its_fence)
{
    struct lkvi_manager *m = pool_with_host(4, 4);
    int32_t p[2 * B];
    case_tokens(p, 2 * B, 0);
    lkv_seq seq = case_admit(m, p, 2 * B);
    case_eq(swap_out(m, seq, 7), LKV_OK);
    case_eq(run_copies(m, 0), 0);
    pass(m, 6);
    case_eq(run_copies(m, 0), 0);
    case_eq(case_stats(m).blocks_in_use, 2);
    pass(m, 7);
    case_eq(run_copies(m, 0), 2);
    case_eq(case_stats(m).blocks_free, 4);
    lkvi_manager_destroy(m);
}
