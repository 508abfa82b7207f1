/* The host tier's own rules: which host block goes, where a demoted block comes back in the order,
 * what a hit costs, that running copies are not taken back. */
#include "tests/cases/cases.h"

enum { B = 16 };

static struct lkvi_manager *pool(uint64_t num_blocks, uint64_t host_blocks)
{
    struct lkvi_manager_config config = {.num_blocks = num_blocks,
                                         .base_blocks = num_blocks,
                                         .host_blocks = host_blocks,
                                         .tokens_per_block = B,
                                         .max_seqs = 64};
    return case_pool_of(&config);
}

static void cache(struct lkvi_manager *m, int32_t first, uint64_t blocks)
{
    int32_t p[8 * B];
    case_tokens(p, blocks * B, first);
    case_cache(m, p, blocks * B);
}

static uint64_t demote(struct lkvi_manager *m, uint64_t n, uint64_t fence)
{
    uint64_t queued = 0, num;
    cr_assert(lkvi_manager_demote(m, n, &queued) == LKV_OK, "%s", lkv_last_error());
    case_check(m);
    lkvi_manager_peek_copies(m, NULL, 0, &num);
    case_eq(lkvi_manager_settle_copies(m, num, fence), LKV_OK);
    case_check(m);
    return queued;
}

/* Blocks found, on the device and (in *far) on the host. */
static uint64_t hits(struct lkvi_manager *m, int32_t first, uint64_t blocks, uint64_t *far)
{
    int32_t p[8 * B + 1];
    lkv_match match = {.size = sizeof match};
    case_tokens(p, blocks * B + 1, first);
    lkv_prompt prompt = case_prompt(p, blocks * B + 1);
    case_eq(lkvi_seq_match(m, &prompt, &match), LKV_OK);
    *far = match.host_hit_blocks;
    return match.hit_blocks - match.host_hit_blocks;
}

/* The order of eviction is as if nothing had been demoted. */
Test(host, a_demoted_block_keeps_its_place_in_the_order)
{
    for (int fenced = 0; fenced < 2; fenced++) {
        struct lkvi_manager *m = pool(8, 8);
        uint64_t far;
        cache(m, 0, 2);
        cache(m, 1000, 2);
        cache(m, 2000, 2);
        case_eq(demote(m, 3, fenced ? 4 : 0), 3); /* 0's two, and the leaf of 1000 */
        if (fenced) {
            case_eq(case_stats(m).blocks_pending, 3);
            case_eq(case_evict(m, 1), 1); /* the next leaf that is not behind the fence */
            case_eq(hits(m, 1000, 2, &far), 2);
            case_eq(hits(m, 2000, 2, &far), 1);
            lkvi_manager_pass_fence(m, 4);
            case_check(m);
        }
        case_eq(case_evict(m, 3), 3);
        case_eq(hits(m, 0, 2, &far), 0);
        case_eq(far, 2);
        case_eq(hits(m, 1000, 2, &far), 1);
        case_eq(far, 1);
        case_eq(hits(m, 2000, 2, &far), fenced ? 1 : 2);
        lkvi_manager_destroy(m);
    }
}

/* Demotions that no eviction follows do not use the order up. */
Test(host, the_order_can_grow_at_its_old_end_for_ever)
{
    struct lkvi_manager *m = pool(4, 1);
    cache(m, 0, 4);
    for (int i = 0; i < 1000; i++) {
        case_eq(demote(m, 1 + (uint64_t)i % 2, 0), 1);
        lkvi_host_forget(m, m->host.copy_of[m->num_blocks + 1]);
        case_check(m);
    }
    lkvi_manager_destroy(m);
}

/* Room on the host is made by what was demoted longest ago, leaves first, not by what goes next. */
Test(host, the_oldest_of_the_host_goes_first)
{
    struct lkvi_manager *m = pool(12, 4);
    uint64_t far;
    cache(m, 0, 2);
    case_eq(demote(m, 2, 0), 2);
    case_eq(case_evict(m, 2), 2);
    cache(m, 1000, 2);
    case_eq(demote(m, 2, 0), 2);
    case_eq(case_evict(m, 2), 2);
    cache(m, 2000, 3);
    case_eq(case_stats(m).host_blocks_free, 0);
    case_eq(demote(m, 1, 0), 1); /* takes the leaf of 0 */
    hits(m, 0, 2, &far);
    case_eq(far, 1);
    case_eq(demote(m, 3, 0), 2); /* its root, then the leaf of 1000 */
    hits(m, 0, 2, &far);
    case_eq(far, 0);
    hits(m, 1000, 2, &far);
    case_eq(far, 1);
    case_eq(demote(m, 3, 0), 0); /* all three are there */
    cache(m, 3000, 5);           /* the host is too small for the next 8 */
    case_eq(demote(m, 8, 0), 1);
    case_eq(demote(m, 8, 0), 0);
    case_eq(hits(m, 2000, 3, &far), 3);
    case_eq(m->host.copies, 4);
    lkvi_manager_destroy(m);
}

/* A hit on the host takes a block each and says so; evicted again, nothing is copied. */
Test(host, a_hit_on_the_host_is_room_and_a_copy)
{
    struct lkvi_manager *m = pool(6, 8);
    int32_t p[5 * B];
    lkv_admission result = {.size = sizeof result};
    lkv_seq seq, other;
    uint64_t num, far;
    cache(m, 0, 4);
    case_eq(demote(m, 4, 0), 4);
    case_eq(case_evict(m, 2), 2);
    case_tokens(p, 5 * B, 0);
    case_eq(case_try_admit(m, p, 5 * B, &result, &seq), LKV_OK);
    case_eq(result.hit_tokens, 4 * B);
    case_eq(result.host_hit_blocks, 2);
    case_eq(result.needed, 5);
    lkvi_manager_peek_copies(m, NULL, 0, &num);
    case_eq(num, 2);
    case_eq(case_stats(m).promoted_blocks, 2);
    case_eq(case_free(m, seq, 0), LKV_OK); /* before the copies ran: what waits for them stays */
    case_eq(case_stats(m).blocks_pending, 2);
    case_eq(lkvi_manager_settle_copies(m, 2, 3), LKV_OK);
    case_eq(case_stats(m).host_blocks_pending, 2); /* read until the fence */
    lkvi_manager_pass_fence(m, 3);
    case_check(m);
    case_eq(case_evict(m, 4), 4);
    hits(m, 0, 4, &far);
    case_eq(far, 4);
    case_eq(case_stats(m).demoted_blocks, 4);
    /* without room for the hits there is none for computing them either */
    case_tokens(p, 3 * B, 9000);
    other = case_admit(m, p, 3 * B);
    case_tokens(p, 5 * B, 0);
    case_eq(case_try_admit(m, p, 5 * B, &result, &seq), LKV_E_NO_BLOCKS);
    case_eq(result.needed, 5);
    case_eq(case_stats(m).host_blocks_cached, 4);
    case_eq(case_free(m, other, 0), LKV_OK);
    lkvi_manager_destroy(m);
}

/* While a copy is being run its target waits for it, and so its id is nobody else's. */
Test(host, a_running_copy_is_not_taken_back)
{
    for (int issued = 0; issued < 2; issued++) {
        struct lkvi_manager *m = pool(4, 4);
        int32_t p[B + 4], pairs[8];
        uint64_t num;
        lkv_seq child;
        case_tokens(p, B + 4, 0);
        lkv_seq seq = case_admit(m, p, B + 4);
        case_eq(lkvi_seq_fork(m, seq, &child), LKV_OK);
        case_eq(case_append(m, child, 1, 7), LKV_OK); /* copies the tail */
        if (issued)
            case_eq(lkvi_manager_issue_copies(m, pairs, 4, &num), LKV_OK);
        case_eq(case_free(m, child, 0), LKV_OK);
        lkvi_manager_peek_copies(m, NULL, 0, &num);
        case_eq(num, issued);
        case_eq(case_stats(m).blocks_pending, issued);
        case_eq(lkvi_manager_settle_copies(m, num, 0), LKV_OK);
        case_check(m);
        case_eq(case_stats(m).blocks_free, 2);
        lkvi_manager_destroy(m);
    }
}

/* A whole admission is promised its room again when it comes back. */
Test(host, a_promise_is_given_up_and_taken_again)
{
    struct lkvi_manager *m = pool(6, 6);
    int32_t p[2 * B];
    lkv_admission result = {.size = sizeof result};
    lkv_seq seq, other;
    uint64_t num;
    case_tokens(p, 2 * B, 0);
    lkv_prompt prompt = case_prompt(p, 2 * B);
    lkv_admit_args args = {.size = sizeof args, .max_tokens = 4 * B, .flags = LKV_ADMIT_WHOLE};
    case_eq(lkvi_seq_admit(m, &prompt, &args, NULL, &seq), LKV_OK);
    case_eq(case_stats(m).blocks_reserved, 2);
    case_eq(lkvi_seq_swap_out(m, seq, 0, NULL), LKV_OK);
    case_check(m);
    case_eq(case_stats(m).blocks_reserved, 0);
    lkvi_manager_peek_copies(m, NULL, 0, &num);
    case_eq(lkvi_manager_settle_copies(m, num, 0), LKV_OK);
    case_tokens(p, 2 * B, 7000);
    other = case_admit(m, p, 2 * B);
    case_append(m, other, B, 1);
    case_eq(lkvi_seq_swap_in(m, seq, &result), LKV_E_NO_BLOCKS); /* 2 and a promise of 2, of 3 */
    case_check(m);
    case_eq(case_free(m, other, 0), LKV_OK);
    case_eq(lkvi_seq_swap_in(m, seq, &result), LKV_OK);
    case_check(m);
    case_eq(result.needed, 2);
    case_eq(case_stats(m).blocks_reserved, 2);
    lkvi_manager_destroy(m);
}

/* What the sequence wrote before it left can still be declared written, and is published after. */
Test(host, a_late_commit_is_published_when_it_is_back)
{
    struct lkvi_manager *m = pool(6, 6);
    int32_t p[3 * B];
    uint64_t num;
    case_tokens(p, 3 * B, 0);
    lkv_seq seq = case_admit(m, p, 3 * B - 1);
    case_commit(m, seq, B);
    case_eq(lkvi_seq_swap_out(m, seq, 0, NULL), LKV_OK);
    lkvi_manager_peek_copies(m, NULL, 0, &num);
    case_eq(lkvi_manager_settle_copies(m, num, 0), LKV_OK);
    case_commit(m, seq, 2 * B);
    case_eq(case_stats(m).published_blocks, 1);
    case_eq(lkvi_seq_swap_in(m, seq, NULL), LKV_OK);
    case_eq(case_append(m, seq, 1, 3 * B - 1), LKV_OK);
    case_commit(m, seq, 3 * B);
    case_eq(case_stats(m).published_blocks, 3);
    case_eq(case_match(m, p, 3 * B), 2 * B);
    lkvi_manager_destroy(m);
}
