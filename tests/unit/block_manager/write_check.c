/* Rows that a step may not write: blocks that a hit may find, and blocks that somebody else holds
 * although they have left the cache. */
#include "tests/cases/cases.h"

enum { B = 16 };

static const lkv_key adapter = {"adapter", 0, UINT64_MAX, LKV_KEY_ADAPTER, 7};

static lkv_prompt prompt_of(const int32_t *tokens, uint64_t n)
{
    lkv_prompt prompt = case_prompt(tokens, n);
    prompt.keys = &adapter;
    prompt.num_keys = 1;
    return prompt;
}

static lkv_status write_row(struct lkvi_manager *m, lkv_seq seq, uint64_t row)
{
    uint32_t one = 1;
    int64_t slot;
    lkv_step step = {.size = sizeof step,
                     .num_seqs = 1,
                     .seqs = &seq,
                     .row_begin = &row,
                     .num_rows = &one,
                     .slots = &slot,
                     .slots_capacity = 1};
    lkv_status status = lkvi_manager_step(m, &step, NULL);
    case_check(m);
    return status;
}

/* 0: a namespace is dropped, 1: a forced reset. Two sequences share blocks 0 and 1. */
Test(write_check, shared_blocks_outside_the_cache_are_not_written)
{
    for (int reset = 0; reset < 2; reset++) {
        struct lkvi_manager *m = case_pool(12, B);
        int32_t p[3 * B];
        uint64_t dropped;
        case_tokens(p, 3 * B, 0);
        lkv_prompt prompt = prompt_of(p, 3 * B);
        lkv_seq first = case_admit_prompt(m, &prompt);
        case_commit(m, first, 3 * B);
        lkv_seq second = case_admit_prompt(m, &prompt);
        case_eq(write_row(m, first, 0), LKV_E_INVALID); /* published */
        if (reset)
            case_eq(lkvi_manager_reset(m, LKV_RESET_FORCE), LKV_OK);
        else
            case_eq(lkvi_manager_drop(m, &adapter, &dropped), LKV_OK);
        case_check(m);
        case_eq(case_stats(m).blocks_cached, 0);
        for (uint64_t row = 0; row < 2 * B; row += B - 1) {
            case_eq(write_row(m, first, row), LKV_E_INVALID);
            case_eq(write_row(m, second, row), LKV_E_INVALID);
        }
        case_eq(write_row(m, first, 2 * B), LKV_OK); /* its own, and in no cache */
        case_eq(case_free(m, second, 0), LKV_OK);
        case_eq(write_row(m, first, 0), LKV_OK); /* nobody else is left */
        lkvi_manager_destroy(m);
    }
}

/* A reader outside holds it. */
Test(write_check, pinned_blocks_are_not_written)
{
    struct lkvi_manager *m = case_pool(6, B);
    int32_t p[2 * B], table[256];
    lkv_lease lease;
    case_tokens(p, 2 * B, 0);
    lkv_prompt prompt = case_prompt(p, 2 * B);
    prompt.flags |= LKV_PROMPT_NO_PUBLISH;
    lkv_seq seq = case_admit_prompt(m, &prompt);
    case_commit(m, seq, 2 * B);
    case_table(m, seq, table);
    case_eq(lkvi_lease_pin(m, table, 1, &lease), LKV_OK);
    case_eq(write_row(m, seq, 0), LKV_E_INVALID);
    case_eq(write_row(m, seq, B), LKV_OK);
    case_eq(lkvi_lease_release(m, lease, 0), LKV_OK);
    case_eq(write_row(m, seq, 0), LKV_OK);
    lkvi_manager_destroy(m);
}

/* A step that copies the shared tail first may write it from its committed part on. */
Test(write_check, a_tail_that_the_step_copies_is_its_own)
{
    struct lkvi_manager *m = case_pool(6, B);
    int32_t p[B + 8], more = 5;
    uint32_t one = 1, two = 2;
    uint64_t row = B + 7;
    lkv_seq child;
    case_tokens(p, B + 8, 0);
    lkv_seq seq = case_admit(m, p, B + 8);
    case_commit(m, seq, B + 8);
    case_eq(lkvi_seq_fork(m, seq, &child), LKV_OK);
    case_eq(write_row(m, child, row), LKV_E_INVALID);
    lkv_step step = {.size = sizeof step,
                     .num_seqs = 1,
                     .seqs = &child,
                     .num_new = &one,
                     .tokens = &more,
                     .row_begin = &row,
                     .num_rows = &two};
    case_eq(lkvi_manager_step(m, &step, NULL), LKV_OK);
    case_check(m);
    case_eq(m->num_copies, 1);
    lkvi_manager_destroy(m);
}
