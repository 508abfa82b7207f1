/* C. Admission, allocation, preemption. */
#include "tests/cases/cases.h"

enum { B = 16 };

/* Sets up [6 hits: the first 3 in use, the last 3 idle, 5 free] of a pool, all the rest in use. */
static lkv_seq hits_half_in_use(struct lkvi_manager *m, int32_t *p, uint64_t hits, uint64_t used)
{
    case_tokens(p, (hits + 20) * B, 0);
    case_cache(m, p, hits * B + 1);
    return case_admit(m, p, used * B + 1);
}

Test(cases, BM_29_a_refused_admission_leaves_no_trace)
{
    struct lkvi_manager *m = case_pool(12, B);
    int32_t p[26 * B], filler[5 * B];
    lkv_admission result = {.size = sizeof result};
    lkv_seq seq = 0;
    case_tokens(filler, 5 * B, 50000);
    hits_half_in_use(m, p, 6, 3); /* 4 in use, 3 idle, 5 free */
    case_admit(m, filler, 2 * B); /* 3 free */
    lkv_pool_stats before = case_stats(m);
    uint64_t order[3] = {m->lru.head, m->lru.tail, m->lru.live};
    case_eq(case_try_admit(m, p, 10 * B, &result, &seq), LKV_E_NO_BLOCKS);
    lkv_pool_stats after = case_stats(m);
    case_eq(result.needed, 3 + 4);
    case_eq(result.free_now, 6);
    /* every figure but the memory, which may keep a table for the next admission */
    cr_assert(!memcmp(&before, &after, offsetof(lkv_pool_stats, metadata_allocated_bytes)));
    case_eq(m->lru.head, order[0]);
    case_eq(m->lru.tail, order[1]);
    case_eq(m->lru.live, order[2]);
    case_eq(seq, 0);
    lkvi_manager_destroy(m);
}

Test(cases, BM_30_idle_hits_are_not_free_twice)
{
    struct lkvi_manager *m = case_pool(16, B);
    int32_t p[11 * B], filler[8 * B];
    lkv_admission result = {.size = sizeof result};
    lkv_seq seq;
    case_tokens(p, 11 * B, 0);
    case_tokens(filler, 8 * B, 50000);
    case_cache(m, p, 8 * B + 1);
    case_admit(m, filler, 8 * B);
    case_eq(case_stats(m).blocks_idle, 8);
    case_eq(case_try_admit(m, p, 10 * B, &result, &seq), LKV_E_NO_BLOCKS);
    case_eq(result.needed, 10);
    case_eq(result.free_now, 8);
    lkvi_manager_destroy(m);
}

Test(cases, BM_31_claiming_a_hit_keeps_it_cached)
{
    struct lkvi_manager *m = case_pool(8, B);
    int32_t p[3 * B + 1];
    case_tokens(p, 3 * B + 1, 0);
    case_cache(m, p, 3 * B + 1);
    for (int i = 0; i < 3; i++) {
        case_eq(case_match(m, p, 3 * B + 1), 3 * B);
        lkv_seq seq = case_admit(m, p, 3 * B + 1);
        case_eq(case_free(m, seq, 0), LKV_OK);
    }
    case_eq(case_stats(m).evicted_blocks, 0);
    lkvi_manager_destroy(m);
}

Test(cases, BM_32_what_never_fits_is_told_at_once)
{
    struct lkvi_manager *m = case_pool(10, B);
    int32_t p[200];
    lkv_seq seq;
    case_tokens(p, 200, 0);
    case_eq(case_try_admit(m, p, 200, NULL, &seq), LKV_E_NEVER_FITS);
    case_eq(case_try_admit(m, p, 160, NULL, &seq), LKV_OK);
    lkvi_manager_destroy(m);
}

/* Steps of work, not time: every eviction pops one entry and scans no others. */
Test(cases, BM_35_eviction_does_not_scan)
{
    struct lkvi_manager *m = case_pool(10000, B);
    int32_t p[100 * B];
    for (int32_t i = 0; i < 100; i++) {
        case_tokens(p, 100 * B, i * 10000);
        lkv_prompt prompt = case_prompt(p, 100 * B);
        lkv_seq seq;
        case_eq(lkvi_seq_admit(m, &prompt, NULL, NULL, &seq), LKV_OK);
        case_eq(lkvi_seq_commit(m, seq, 100 * B), LKV_OK);
        case_eq(lkvi_seq_free(m, seq, 0), LKV_OK);
    }
    uint64_t head = m->lru.head;
    case_eq(case_evict(m, 1000), 1000);
    cr_assert(m->lru.head - head <= 1000 + 100, "%llu slots read for 1000 evictions",
              (unsigned long long)(m->lru.head - head));
    lkvi_manager_destroy(m);
}

Test(cases, BM_36_out_of_blocks_is_a_status)
{
    struct lkvi_manager *m = case_pool(2, B);
    int32_t p[2 * B];
    lkv_seq_info info;
    case_tokens(p, 2 * B, 0);
    lkv_seq seq = case_admit(m, p, 2 * B - 1);
    case_eq(case_append(m, seq, 1, 0), LKV_OK);
    case_eq(case_append(m, seq, 1, 0), LKV_E_NEVER_FITS);
    case_eq(lkvi_seq_query(m, seq, &info), LKV_OK);
    case_eq(info.length, 2 * B);
    case_eq(case_free(m, seq, 0), LKV_OK);
    lkvi_manager_destroy(m);
}

Test(cases, BM_37_appends_of_any_size)
{
    static const uint64_t sizes[5] = {1, 2, 17, 18, 34}, fresh[5] = {0, 1, 1, 2, 3};
    for (int i = 0; i < 5; i++) {
        struct lkvi_manager *m = case_pool(8, B);
        int32_t p[15], table[256];
        lkv_admission result = {.size = sizeof result};
        int32_t more[34] = {0};
        case_tokens(p, 15, 0);
        lkv_seq seq = case_admit(m, p, 15);
        case_eq(lkvi_seq_append(m, seq, more, sizes[i], &result), LKV_OK);
        case_check(m);
        case_eq(case_table(m, seq, table), 1 + fresh[i]);
        if (fresh[i])
            case_eq(result.needed, fresh[i]);
        lkvi_manager_destroy(m);
    }
}

Test(cases, BM_41_hits_are_protected_from_their_own_allocation)
{
    struct lkvi_manager *m = case_pool(10, B);
    int32_t p[8 * B], other[5 * B];
    int32_t table[256];
    case_tokens(p, 8 * B, 0);
    case_tokens(other, 5 * B, 50000);
    case_cache(m, p, 5 * B);     /* the oldest: next in eviction order */
    case_cache(m, other, 5 * B); /* all ten blocks are idle */
    case_eq(case_stats(m).blocks_idle, 10);
    case_eq(case_match(m, p, 8 * B), 5 * B);
    lkv_seq seq = case_admit(m, p, 8 * B);
    case_eq(case_table(m, seq, table), 8);
    case_eq(case_match(m, p, 8 * B), 5 * B);
    case_eq(case_match(m, other, 5 * B), 2 * B);
    lkvi_manager_destroy(m);
}

Test(cases, BM_42_whole_admission_and_resumption)
{
    struct lkvi_manager *m = case_pool(10, B);
    int32_t p[8 * B + 1];
    case_tokens(p, 8 * B + 1, 0);
    lkv_prompt prompt = case_prompt(p, 2 * B);
    lkv_admit_args args = {.size = sizeof args, .max_tokens = 6 * B, .flags = LKV_ADMIT_WHOLE};
    lkv_seq one, two;
    case_eq(lkvi_seq_admit(m, &prompt, &args, NULL, &one), LKV_OK);
    case_check(m);
    p[0] = 77;
    case_eq(lkvi_seq_admit(m, &prompt, &args, NULL, &two), LKV_E_NO_BLOCKS);
    case_check(m);
    args.max_tokens = 4 * B;
    case_eq(lkvi_seq_admit(m, &prompt, &args, NULL, &two), LKV_OK);
    case_eq(case_append(m, one, 4 * B, 300), LKV_OK); /* the promise holds to the last block */
    case_eq(case_append(m, two, 2 * B, 300), LKV_OK);
    case_commit(m, two, 4 * B);
    case_eq(case_free(m, two, 0), LKV_OK); /* preempted: what it lost, it hits */
    int32_t again[4 * B + 1];
    case_tokens(again, 2 * B, 0);
    again[0] = 77;
    case_tokens(again + 2 * B, 2 * B, 300);
    again[4 * B] = 1;
    case_eq(case_match(m, again, 4 * B + 1), 4 * B);
    lkvi_manager_destroy(m);
}
