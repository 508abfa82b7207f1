/* B. Reference counts, free list, pins. */
#include "tests/cases/cases.h"

enum { B = 16 };

static uint64_t at_rest(struct lkvi_manager *m)
{
    lkv_pool_stats s = case_stats(m);
    return s.blocks_free + s.blocks_idle;
}

static lkv_lease pin(struct lkvi_manager *m, const int32_t *blocks, uint64_t n)
{
    lkv_lease lease;
    cr_assert(lkvi_lease_pin(m, blocks, n, &lease) == LKV_OK, "%s", lkv_last_error());
    case_check(m);
    return lease;
}

static lkv_status release(struct lkvi_manager *m, lkv_lease lease)
{
    lkv_status status = lkvi_lease_release(m, lease, 0);
    case_check(m);
    return status;
}

Test(cases, BM_13_one_block_twice_in_a_release_list)
{
    struct lkvi_manager *m = case_pool(8, B);
    int32_t p[B], table[256];
    case_tokens(p, B, 0);
    lkv_seq seq = case_admit(m, p, B);
    case_table(m, seq, table);
    const int32_t twice[3] = {table[0], 0, table[0]};
    lkv_lease lease = pin(m, twice, 3);
    case_eq(m->blocks[table[0]].refs, 3);
    case_eq(case_free(m, seq, 0), LKV_OK);
    case_eq(at_rest(m), 7);
    case_eq(release(m, lease), LKV_OK);
    case_eq(at_rest(m), 8);
    case_eq(release(m, lease), LKV_E_NOT_FOUND);
    case_eq(at_rest(m), 8);
    lkvi_manager_destroy(m);
}

/* No window table here names a block twice; the fork and its copy must still end at zero. */
Test(cases, BM_14_fork_and_copy_end_at_zero)
{
    struct lkvi_manager *m = case_pool(16, B);
    int32_t p[2 * B + 5];
    lkv_seq child;
    uint64_t num;
    case_tokens(p, 2 * B + 5, 0);
    lkv_seq seq = case_admit(m, p, 2 * B + 5);
    case_eq(lkvi_seq_fork(m, seq, &child), LKV_OK);
    case_eq(case_append(m, child, 1, 500), LKV_OK);
    lkvi_manager_peek_copies(m, NULL, 0, &num);
    case_eq(num, 1);
    case_eq(case_stats(m).blocks_in_use, 4);
    case_eq(lkvi_manager_settle_copies(m, 1, 0), LKV_OK);
    case_eq(case_free(m, seq, 0), LKV_OK);
    case_eq(case_free(m, child, 0), LKV_OK);
    case_eq(case_stats(m).blocks_free, 16);
    lkvi_manager_destroy(m);
}

Test(cases, BM_16_finished_requests_leave_evictable_blocks)
{
    struct lkvi_manager *m = case_pool(8, B);
    int32_t p[4 * B];
    for (int32_t i = 0; i < 10; i++) {
        case_tokens(p, 4 * B, i * 1000);
        case_cache(m, p, 4 * B);
        cr_assert(case_match(m, p, 4 * B) == 3 * B);
    }
    case_eq(case_stats(m).blocks_idle, 8);
    case_eq(case_evict(m, 100), 8);
    lkvi_manager_destroy(m);
}

Test(cases, BM_17_pinned_blocks_survive_eviction_and_reset)
{
    struct lkvi_manager *m = case_pool(8, B);
    int32_t p[3 * B + 1], table[256];
    case_tokens(p, 3 * B + 1, 0);
    lkv_seq seq = case_admit(m, p, 3 * B + 1);
    case_table(m, seq, table);
    case_commit(m, seq, 3 * B + 1);
    lkv_lease lease = pin(m, table, 1);
    case_eq(case_free(m, seq, 0), LKV_OK);
    case_eq(case_evict(m, 100), 2);
    case_eq(lkvi_manager_reset(m, 0), LKV_E_BUSY);
    cr_assert(strstr(lkv_last_error(), "1 blocks"));
    case_eq(case_match(m, p, 3 * B + 1), B);
    case_eq(release(m, lease), LKV_OK);
    case_eq(lkvi_manager_reset(m, 0), LKV_OK);
    case_eq(case_stats(m).blocks_free, 8);
    lkvi_manager_destroy(m);
}

Test(cases, BM_18_pin_and_reference_end_in_either_order)
{
    for (int pin_first = 0; pin_first < 2; pin_first++) {
        struct lkvi_manager *m = case_pool(4, B);
        int32_t p[B], table[256];
        case_tokens(p, B, 0);
        lkv_seq seq = case_admit(m, p, B);
        case_table(m, seq, table);
        lkv_lease lease = pin(m, table, 1);
        case_eq(pin_first ? release(m, lease) : case_free(m, seq, 0), LKV_OK);
        case_eq(at_rest(m), 3);
        case_eq(pin_first ? case_free(m, seq, 0) : release(m, lease), LKV_OK);
        case_eq(at_rest(m), 4);
        lkvi_manager_destroy(m);
    }
}

Test(cases, BM_20_second_unpin_is_an_error)
{
    struct lkvi_manager *m = case_pool(4, B);
    int32_t p[B], table[256];
    case_tokens(p, B, 0);
    lkv_seq seq = case_admit(m, p, B);
    case_table(m, seq, table);
    lkv_lease mine = pin(m, table, 1), yours = pin(m, table, 1);
    case_eq(release(m, mine), LKV_OK);
    case_eq(release(m, mine), LKV_E_NOT_FOUND);
    case_eq(m->blocks[table[0]].refs, 2);
    case_eq(release(m, yours), LKV_OK);
    lkvi_manager_destroy(m);
}

Test(cases, BM_21_eviction_skips_what_is_read)
{
    struct lkvi_manager *m = case_pool(4, B);
    int32_t p[2 * B + 1], table[256];
    case_tokens(p, 2 * B + 1, 0);
    lkv_seq seq = case_admit(m, p, 2 * B + 1);
    case_commit(m, seq, 2 * B + 1);
    case_table(m, seq, table);
    lkv_lease reader = pin(m, table, 2);
    case_eq(case_free(m, seq, 0), LKV_OK);
    case_eq(case_evict(m, 100), 0);
    int32_t other[2 * B];
    case_tokens(other, 2 * B, 7000);
    case_admit(m, other, 2 * B);
    cr_assert(!memcmp(lkvi_block_tokens(m, (uint32_t)table[1]), p + B, B * sizeof *p));
    case_eq(release(m, reader), LKV_OK);
    lkvi_manager_destroy(m);
}

Test(cases, BM_22_second_free_is_refused)
{
    struct lkvi_manager *m = case_pool(4, B);
    int32_t p[B];
    lkv_seq_info info;
    case_tokens(p, B, 0);
    lkv_seq seq = case_admit(m, p, B);
    case_eq(lkvi_seq_reserve(m, seq, 1, NULL), LKV_OK);
    case_eq(lkvi_seq_query(m, seq, &info), LKV_OK);
    case_eq(info.length, B);
    case_eq(info.committed, 0);
    case_eq(info.room, 2 * B);
    case_eq(case_free(m, seq, 0), LKV_OK);
    case_eq(case_free(m, seq, 0), LKV_E_NOT_FOUND);
    case_eq(case_stats(m).blocks_free, 4);
    lkvi_manager_destroy(m);
}

/* Prefixes that part inside a block: the states still add up to N. */
Test(cases, BM_23_states_add_up)
{
    struct lkvi_manager *m = case_pool(12, B);
    int32_t p[3 * B];
    for (int32_t i = 0; i < 6; i++) {
        case_tokens(p, 3 * B, 0);
        p[B + 3 + i] = 9000;
        lkv_prompt prompt = case_prompt(p, 3 * B);
        prompt.flags = 0;
        lkv_seq seq = case_admit_prompt(m, &prompt);
        case_commit(m, seq, 3 * B);
        lkv_pool_stats s = case_stats(m);
        case_eq(s.blocks_free + s.blocks_idle + s.blocks_in_use + s.blocks_pending + s.blocks_lent,
                12);
        case_eq(lkvi_manager_settle_copies(m, m->num_copies, 0), LKV_OK);
        case_eq(case_free(m, seq, 0), LKV_OK);
    }
    lkvi_manager_destroy(m);
}
