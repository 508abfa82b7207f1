/* D. Boundary lengths and publish time. E, F, G, H as far as the manager alone decides them. */
#include "tests/cases/cases.h"

enum { B = 16 };

Test(cases, BM_43_the_last_token_always_runs)
{
    static const uint64_t lengths[5] = {16, 32, 33, 47, 48}, hits[5] = {0, 16, 32, 32, 32};
    struct lkvi_manager *m = case_pool(8, B);
    int32_t p[64];
    case_tokens(p, 64, 0);
    case_cache(m, p, 64);
    for (int i = 0; i < 5; i++)
        case_eq(case_match(m, p, lengths[i]), hits[i]);
    lkvi_manager_destroy(m);
}

/* May a loader write the tokens [begin, end) of the sequence? */
static lkv_status load_rows(struct lkvi_manager *m, lkv_seq seq, uint64_t begin, uint64_t end)
{
    const uint32_t none = 0, rows = (uint32_t)(end - begin);
    int64_t slots[8 * B];
    lkv_step step = {.size = sizeof step,
                     .num_seqs = 1,
                     .seqs = &seq,
                     .num_new = &none,
                     .row_begin = &begin,
                     .num_rows = &rows,
                     .slots = slots,
                     .slots_capacity = 8 * B};
    lkv_status status = lkvi_manager_step(m, &step, NULL);
    case_check(m);
    return status;
}

/* Chunks of four blocks from outside, five blocks hit here: the chunk that overlaps must not be
 * written whole. What is loaded is published once it is there. */
Test(cases, BM_45_a_load_never_writes_shared_blocks)
{
    struct lkvi_manager *m = case_pool(32, B);
    int32_t p[8 * B + 1];
    case_tokens(p, 8 * B + 1, 0);
    case_cache(m, p, 5 * B);
    lkv_seq seq = case_admit(m, p, 8 * B + 1);
    case_eq(load_rows(m, seq, 4 * B, 8 * B), LKV_E_INVALID);
    case_eq(load_rows(m, seq, 5 * B - 1, 8 * B), LKV_E_INVALID);
    case_eq(load_rows(m, seq, 5 * B, 8 * B), LKV_OK);
    case_eq(case_match(m, p, 8 * B + 1), 5 * B); /* enqueued is not loaded */
    case_commit(m, seq, 7 * B);
    case_eq(case_match(m, p, 8 * B + 1), 7 * B);
    case_commit(m, seq, 8 * B);
    case_eq(case_match(m, p, 8 * B + 1), 8 * B);
    case_eq(load_rows(m, seq, 7 * B, 8 * B), LKV_E_INVALID); /* published now */
    lkvi_manager_destroy(m);
}

/* Two of three blocks arrive, then the source fails: the rest is computed in the same blocks, or
 * the sequence ends; nobody ever hits what did not arrive. */
Test(cases, BM_45_a_failed_load_leaves_nothing)
{
    for (int aborted = 0; aborted < 2; aborted++) {
        struct lkvi_manager *m = case_pool(32, B);
        int32_t p[8 * B + 1];
        case_tokens(p, 8 * B + 1, 0);
        case_cache(m, p, 5 * B);
        lkv_seq seq = case_admit(m, p, 8 * B + 1);
        case_eq(load_rows(m, seq, 5 * B, 8 * B), LKV_OK);
        case_commit(m, seq, 7 * B);
        if (aborted) {
            case_eq(case_free(m, seq, 3), LKV_OK); /* the late write is behind the fence */
            case_eq(case_stats(m).blocks_free, 32 - 9);
            lkvi_manager_pass_fence(m, 3);
            case_check(m);
            case_eq(case_stats(m).blocks_idle, 7);
            case_eq(case_match(m, p, 8 * B + 1), 7 * B);
        } else {
            case_eq(load_rows(m, seq, 7 * B, 8 * B + 1), LKV_OK); /* computed instead */
            case_eq(case_match(m, p, 8 * B + 1), 7 * B);
            case_commit(m, seq, 8 * B + 1);
            case_eq(case_match(m, p, 8 * B + 1), 8 * B);
        }
        lkvi_manager_destroy(m);
    }
}

Test(cases, BM_46_lengths_around_a_block)
{
    static const uint64_t lengths[8] = {0, 1, B - 1, B, B + 1, 2 * B - 1, 2 * B, 2 * B + 1};
    static const uint64_t hits[8] = {0, 0, 0, 0, B, B, B, 2 * B};
    struct lkvi_manager *m = case_pool(8, B);
    int32_t p[4 * B];
    case_tokens(p, 4 * B, 0);
    case_cache(m, p, 4 * B);
    for (int i = 0; i < 8; i++) {
        int32_t *exact =
            malloc(lengths[i] * sizeof *exact + 1); /* a read past it is seen by ASan */
        memcpy(exact, p, lengths[i] * sizeof *exact);
        case_eq(case_match(m, exact, lengths[i]), hits[i]);
        lkv_seq seq = case_admit(m, exact, lengths[i]);
        case_eq(case_free(m, seq, 0), LKV_OK);
        free(exact);
    }
    lkvi_manager_destroy(m);
}

Test(cases, BM_47_nothing_is_published_before_commit)
{
    struct lkvi_manager *m = case_pool(16, B);
    int32_t p[3 * B + 1];
    case_tokens(p, 3 * B + 1, 0);
    lkv_seq a = case_admit(m, p, 3 * B + 1);
    case_eq(case_match(m, p, 3 * B + 1), 0);
    case_eq(case_free(m, a, 0), LKV_OK);
    case_eq(case_match(m, p, 3 * B + 1), 0);
    a = case_admit(m, p, 3 * B + 1);
    case_commit(m, a, 2 * B + 3);
    case_eq(case_match(m, p, 3 * B + 1), 2 * B);
    case_eq(case_free(m, a, 0), LKV_OK);
    case_eq(case_match(m, p, 3 * B + 1), 2 * B);
    lkvi_manager_destroy(m);
}

Test(cases, BM_50_drafts_are_room_not_tokens)
{
    struct lkvi_manager *m = case_pool(8, B);
    int32_t p[34], table[256];
    lkv_seq seq;
    case_tokens(p, 34, 0);
    lkv_prompt prompt = case_prompt(p, 30);
    lkv_admit_args args = {.size = sizeof args, .max_tokens = 33};
    case_eq(lkvi_seq_admit(m, &prompt, &args, NULL, &seq), LKV_OK);
    case_commit(m, seq, 30);
    const uint32_t drafts = 4;
    int64_t slots[4];
    int32_t lens;
    lkv_step step = {.size = sizeof step,
                     .num_seqs = 1,
                     .seqs = &seq,
                     .num_new = &drafts,
                     .slots = slots,
                     .slots_capacity = 4,
                     .seq_lens = &lens};
    case_eq(lkvi_manager_step(m, &step, NULL), LKV_OK);
    case_check(m);
    case_eq(case_table(m, seq, table), 3);
    case_eq(slots[1], (int64_t)table[1] * B + 15);
    case_eq(slots[2], (int64_t)table[2] * B);
    case_eq(slots[3], -1);
    case_eq(lkvi_seq_commit(m, seq, 32), LKV_E_INVALID);
    case_eq(lkvi_seq_append(m, seq, p + 30, 1, NULL), LKV_OK);
    case_commit(m, seq, 31);
    case_eq(case_match(m, p, 34), B);
    case_eq(lkvi_seq_append(m, seq, p + 31, 1, NULL), LKV_OK);
    case_commit(m, seq, 32);
    case_eq(case_match(m, p, 34), 2 * B);
    case_eq(lkvi_seq_truncate(m, seq, 32, 0), LKV_OK);
    case_check(m);
    case_eq(case_table(m, seq, table), 2);
    case_eq(lkvi_seq_append(m, seq, p, 2, NULL), LKV_E_INVALID);
    lkvi_manager_destroy(m);
}

Test(cases, BM_51_a_fence_keeps_freed_ids_away)
{
    struct lkvi_manager *m = case_pool(4, B);
    int32_t p[4 * B], table[256], other[256];
    lkv_admission result = {.size = sizeof result};
    lkv_seq c;
    case_tokens(p, 4 * B, 0);
    lkv_seq a = case_admit(m, p, 2 * B);
    case_table(m, a, table);
    case_eq(case_free(m, a, 7), LKV_OK);
    case_eq(case_stats(m).blocks_pending, 2);
    case_eq(case_try_admit(m, p, 4 * B, &result, &c), LKV_E_WAIT_PENDING);
    case_eq(result.free_now, 2);
    case_eq(result.free_after_fence, 4);
    c = case_admit(m, p, 2 * B);
    case_table(m, c, other);
    for (int i = 0; i < 2; i++)
        cr_assert(other[i] != table[0] && other[i] != table[1]);
    case_eq(lkvi_manager_pass_fence(m, 6), LKV_OK);
    case_eq(case_stats(m).blocks_pending, 2);
    case_eq(lkvi_manager_pass_fence(m, 7), LKV_OK);
    case_check(m);
    case_eq(case_stats(m).blocks_pending, 0);
    case_eq(lkvi_seq_commit(m, a, 1), LKV_E_NOT_FOUND); /* a late result of a dead sequence */
    lkvi_manager_destroy(m);
}

Test(cases, BM_62_eviction_counts_and_reaches_parents)
{
    static const uint64_t want[5] = {3, 3, 3, 1, 0};
    struct lkvi_manager *m = case_pool(10, B);
    int32_t p[10 * B];
    case_tokens(p, 10 * B, 0);
    case_cache(m, p, 10 * B);
    for (int i = 0; i < 5; i++) {
        case_eq(case_evict(m, 3), want[i]);
        uint64_t left = case_stats(m).blocks_cached;
        case_eq(case_match(m, p, 10 * B), (left < 9 ? left : 9) * B);
    }
    lkvi_manager_destroy(m);
}

Test(cases, BM_66_holes_are_room)
{
    struct lkvi_manager *m = case_pool(20, B);
    int32_t p[10 * B];
    lkv_seq seqs[20];
    for (int32_t i = 0; i < 20; i++) {
        case_tokens(p, B, i * 100);
        seqs[i] = case_admit(m, p, B);
    }
    for (int i = 0; i < 20; i += 2)
        case_eq(case_free(m, seqs[i], 0), LKV_OK);
    case_eq(case_stats(m).longest_free_run, 1);
    case_tokens(p, 10 * B, 9000);
    case_admit(m, p, 10 * B);
    lkvi_manager_destroy(m);
}

/* Partial blocks are never published, so a block has one identity in its life in the cache. */
Test(cases, BM_67_a_block_filled_later_has_one_entry)
{
    struct lkvi_manager *m = case_pool(8, B);
    int32_t p[B];
    case_tokens(p, B, 0);
    lkv_seq seq = case_admit(m, p, B - 4);
    case_commit(m, seq, B - 4);
    case_eq(case_stats(m).blocks_cached, 0);
    case_eq(lkvi_seq_append(m, seq, p + B - 4, 4, NULL), LKV_OK);
    case_commit(m, seq, B);
    case_eq(case_stats(m).blocks_cached, 1);
    case_eq(case_free(m, seq, 0), LKV_OK);
    case_eq(case_evict(m, 8), 1);
    case_eq(m->blocks[0].first_child, 0);
    lkvi_manager_destroy(m);
}

Test(cases, BM_70_a_long_chain_ends_without_recursion)
{
    enum { N = 300000 };
    struct lkvi_manager *m = case_pool(N, B);
    int32_t *p = calloc((size_t)N * B, sizeof *p);
    lkv_prompt prompt = case_prompt(p, (uint64_t)N * B);
    lkv_seq seq;
    case_eq(lkvi_seq_admit(m, &prompt, NULL, NULL, &seq), LKV_OK);
    case_eq(lkvi_seq_commit(m, seq, (uint64_t)N * B), LKV_OK);
    case_eq(lkvi_seq_free(m, seq, 0), LKV_OK);
    case_check(m);
    case_eq(case_evict(m, N), N);
    case_eq(m->blocks[0].first_child, 0);
    lkvi_manager_destroy(m);
    free(p);
}

Test(cases, BM_71_reset_with_live_sequences)
{
    struct lkvi_manager *m = case_pool(8, B);
    int32_t p[3 * B + 1], table[256];
    case_tokens(p, 3 * B + 1, 0);
    lkv_seq seq = case_admit(m, p, 3 * B + 1);
    case_commit(m, seq, 2 * B);
    case_table(m, seq, table);
    case_eq(lkvi_manager_reset(m, 0), LKV_E_BUSY);
    cr_assert(strstr(lkv_last_error(), "4 blocks"));
    case_eq(case_match(m, p, 3 * B + 1), 2 * B);
    case_eq(lkvi_manager_reset(m, LKV_RESET_FORCE), LKV_OK);
    case_check(m);
    case_eq(case_match(m, p, 3 * B + 1), 0);
    cr_assert(!memcmp(lkvi_block_tokens(m, (uint32_t)table[1]), p + B, B * sizeof *p));
    case_commit(m, seq, 3 * B + 1); /* data of the old weights: never published */
    case_eq(case_match(m, p, 3 * B + 1), 0);
    case_eq(case_free(m, seq, 0), LKV_OK);
    case_cache(m, p, 3 * B + 1);
    case_eq(case_match(m, p, 3 * B + 1), 3 * B);
    lkvi_manager_destroy(m);
}

/* Only the arithmetic: a table entry far beyond this small pool, seen by a step that only reads. */
Test(cases, BM_73_slots_are_64_bit)
{
    struct lkvi_manager *m = case_pool(4, 128);
    const int32_t far[3] = {1 << 24, (1 << 25) + 1, INT32_MAX};
    const uint32_t none = 0, one = 1;
    const uint64_t begin = 5;
    int32_t p[8], table[256];
    int64_t slot;
    case_tokens(p, 8, 0);
    lkv_seq seq = case_admit(m, p, 8);
    case_table(m, seq, table);
    for (int i = 0; i < 3; i++) {
        lkv_step step = {.size = sizeof step,
                         .num_seqs = 1,
                         .seqs = &seq,
                         .num_new = &none,
                         .row_begin = &begin,
                         .num_rows = &one,
                         .slots = &slot,
                         .slots_capacity = 1};
        m->seqs[0].table[0] = far[i];
        case_eq(lkvi_manager_step(m, &step, NULL), LKV_OK);
        case_eq(slot, (int64_t)far[i] * 128 + 5);
    }
    m->seqs[0].table[0] = table[0];
    case_check(m);
    lkvi_manager_destroy(m);
}

Test(cases, BM_75_block_0_is_never_handed_out)
{
    struct lkvi_manager *m = case_pool(3, B);
    int32_t p[3 * B], table[256], padded[8];
    case_tokens(p, 3 * B, 0);
    lkv_seq seq = case_admit(m, p, 3 * B);
    case_eq(case_table(m, seq, table), 3);
    lkv_seq rows[2] = {0, seq};
    memset(padded, 0xff, sizeof padded);
    lkv_step step = {
        .size = sizeof step, .num_seqs = 2, .seqs = rows, .block_table = padded, .table_width = 4};
    case_eq(lkvi_manager_step(m, &step, NULL), LKV_OK);
    for (int i = 0; i < 3; i++)
        cr_assert(table[i] >= 1 && table[i] <= 3 && padded[4 + i] == table[i]);
    for (int i = 0; i < 4; i++)
        case_eq(padded[i], 0);
    case_eq(padded[7], 0);
    for (int i = 0; i < B; i++)
        case_eq(lkvi_block_tokens(m, 0)[i], 0);
    lkvi_manager_destroy(m);
}

Test(cases, BM_83_an_evicted_block_has_no_identity)
{
    struct lkvi_manager *m = case_pool(2, B);
    int32_t p[2 * B], x[2 * B];
    case_tokens(p, 2 * B, 0);
    case_tokens(x, 2 * B, 5000);
    case_cache(m, p, 2 * B);
    lkv_seq seq = case_admit(m, x, 2 * B);
    case_eq(case_match(m, p, 2 * B), 0);
    case_eq(case_stats(m).blocks_cached, 0);
    case_commit(m, seq, 2 * B);
    case_eq(case_match(m, x, 2 * B), B);
    lkvi_manager_destroy(m);
}

Test(cases, BM_86_any_mix_of_frees_gives_the_whole_pool)
{
    struct lkvi_manager *m = case_pool(30, B);
    int32_t p[30 * B];
    for (uint32_t round = 0; round < 20; round++) {
        lkv_seq seqs[10];
        for (uint32_t i = 0; i < 10; i++) {
            case_tokens(p, 3 * B, (int32_t)(round * 1000 + i * 50));
            seqs[i] = case_admit(m, p, 1 + (i * 7 + round) % (3 * B));
        }
        for (uint32_t i = 0; i < 10; i++)
            case_eq(case_free(m, seqs[(i * 3 + round) % 10], 0), LKV_OK);
        case_tokens(p, 30 * B, (int32_t)(round * 7000));
        lkv_seq all = case_admit(m, p, 30 * B);
        case_eq(case_free(m, all, 0), LKV_OK);
    }
    lkvi_manager_destroy(m);
}

Test(cases, BM_88_growth_beyond_the_limit_changes_nothing)
{
    struct lkvi_manager *m = case_pool(8, B);
    int32_t p[B];
    lkv_seq seq;
    lkv_seq_info info;
    case_tokens(p, B, 0);
    lkv_prompt prompt = case_prompt(p, B);
    lkv_admit_args args = {.size = sizeof args, .max_tokens = B + 2};
    case_eq(lkvi_seq_admit(m, &prompt, &args, NULL, &seq), LKV_OK);
    case_eq(case_append(m, seq, 2, 0), LKV_OK);
    case_eq(case_append(m, seq, 1, 0), LKV_E_INVALID);
    case_eq(lkvi_seq_reserve(m, seq, 1, NULL), LKV_E_INVALID);
    case_eq(lkvi_seq_query(m, seq, &info), LKV_OK);
    case_eq(info.length, B + 2);
    lkvi_manager_destroy(m);
}

Test(cases, BM_89_a_stale_handle_reaches_nobody)
{
    struct lkvi_manager *m = case_pool(4, B);
    int32_t p[B], table[256];
    case_tokens(p, B, 0);
    lkv_seq old = case_admit(m, p, B);
    case_eq(case_free(m, old, 0), LKV_OK);
    lkv_seq owner = case_admit(m, p, B);
    case_eq(case_free(m, old, 0), LKV_E_NOT_FOUND);
    case_table(m, owner, table);
    case_eq(m->blocks[table[0]].refs, 1);
    lkvi_manager_destroy(m);
}
