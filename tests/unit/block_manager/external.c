/* Tokens whose data another store loads: an admission, rows that the loader writes, a commit that
 * says how far it came. Beyond BM-45: two loads of one prefix, a load that is late, one whose world
 * has changed meanwhile, one that comes out of order. */
#include "tests/cases/cases.h"

enum { B = 16, LOADED = 4, LENGTH = LOADED * B + 1 };

static const lkv_key adapter = {"adapter", 0, UINT64_MAX, LKV_KEY_ADAPTER, 7};

static lkv_prompt prompt_of(int32_t *tokens)
{
    case_tokens(tokens, LENGTH, 0);
    lkv_prompt prompt = case_prompt(tokens, LENGTH);
    prompt.keys = &adapter;
    prompt.num_keys = 1;
    return prompt;
}

static struct lkvi_manager *pool(void)
{
    struct lkvi_manager_config config = {.num_blocks = 16,
                                         .base_blocks = 16,
                                         .host_blocks = 8,
                                         .tokens_per_block = B,
                                         .max_seqs = 8};
    return case_pool_of(&config);
}

/* Both load the same blocks. Whoever commits first publishes; the other's are its own; if the first
 * fails after a part, the second's rest hangs under what is there. */
Test(external, two_loads_of_one_prefix)
{
    for (int first_fails = 0; first_fails < 2; first_fails++) {
        struct lkvi_manager *m = pool();
        int32_t p[LENGTH];
        lkv_prompt prompt = prompt_of(p);
        lkv_seq first = case_admit_prompt(m, &prompt), second = case_admit_prompt(m, &prompt);
        case_eq(case_match_prompt(m, &prompt), 0);
        case_commit(m, first, 2 * B);
        case_commit(m, second, B);
        case_eq(case_stats(m).published_blocks, 2);
        if (first_fails)
            case_eq(case_free(m, first, 5), LKV_OK);
        else
            case_commit(m, first, LENGTH);
        case_commit(m, second, LENGTH);
        case_eq(case_stats(m).published_blocks, 4);
        case_eq(case_match_prompt(m, &prompt), LOADED * B);
        case_eq(case_free(m, second, 0), LKV_OK);
        lkvi_manager_pass_fence(m, 5);
        case_check(m);
        case_eq(case_match_prompt(m, &prompt), LOADED * B);
        lkvi_manager_destroy(m);
    }
}

/* What a loader says after the sequence has ended, or says lower than before, changes nothing. */
Test(external, late_and_repeated_news)
{
    struct lkvi_manager *m = pool();
    int32_t p[LENGTH];
    lkv_prompt prompt = prompt_of(p);
    lkv_seq seq = case_admit_prompt(m, &prompt);
    case_commit(m, seq, 3 * B);
    case_commit(m, seq, B); /* parts arrive out of order: the lower one is known */
    case_eq(case_match_prompt(m, &prompt), 3 * B);
    case_eq(lkvi_seq_commit(m, seq, LENGTH + 1), LKV_E_INVALID); /* more than is known */
    case_eq(case_free(m, seq, 4), LKV_OK);
    case_eq(lkvi_seq_commit(m, seq, LENGTH), LKV_E_NOT_FOUND);
    case_check(m);
    case_eq(case_stats(m).published_blocks, 3);
    case_eq(case_stats(m).blocks_pending, 5); /* the load may still write until the fence */
    lkvi_manager_pass_fence(m, 4);
    case_check(m);
    case_eq(case_stats(m).blocks_idle, 3);
    lkvi_manager_destroy(m);
}

/* A load that began before the adapter was dropped, or the cache reset, is not published after. */
Test(external, a_load_of_before_is_not_published)
{
    for (int reset = 0; reset < 2; reset++) {
        struct lkvi_manager *m = pool();
        int32_t p[LENGTH];
        uint64_t dropped;
        lkv_prompt prompt = prompt_of(p);
        lkv_seq seq = case_admit_prompt(m, &prompt);
        case_commit(m, seq, B);
        if (reset)
            case_eq(lkvi_manager_reset(m, LKV_RESET_FORCE), LKV_OK);
        else
            case_eq(lkvi_manager_drop(m, &adapter, &dropped), LKV_OK);
        case_commit(m, seq, LENGTH);
        case_eq(case_match_prompt(m, &prompt), 0);
        lkv_seq again = case_admit_prompt(m, &prompt);
        case_commit(m, again, LENGTH);
        case_eq(case_match_prompt(m, &prompt), LOADED * B);
        case_eq(case_free(m, seq, 0), LKV_OK);
        case_eq(case_free(m, again, 0), LKV_OK);
        lkvi_manager_destroy(m);
    }
}

/* Preempted while it loads: the copies out wait for the loader's fence, what it said before holds,
 * and the rest can be loaded into the new blocks. */
Test(external, a_load_survives_a_swap)
{
    struct lkvi_manager *m = pool();
    int32_t p[LENGTH];
    uint64_t num;
    lkv_seq_info info = {.size = sizeof info};
    lkv_prompt prompt = prompt_of(p);
    lkv_seq seq = case_admit_prompt(m, &prompt);
    case_commit(m, seq, B);
    case_eq(lkvi_seq_swap_out(m, seq, 6, NULL), LKV_OK);
    case_commit(m, seq, 2 * B); /* the loader was further than it had said */
    lkvi_manager_peek_copies(m, NULL, 0, &num);
    case_eq(num, 0);
    lkvi_manager_pass_fence(m, 6);
    lkvi_manager_peek_copies(m, NULL, 0, &num);
    case_eq(num, 5);
    case_eq(lkvi_manager_settle_copies(m, num, 0), LKV_OK);
    case_eq(lkvi_seq_swap_in(m, seq, NULL), LKV_OK);
    case_check(m);
    case_eq(lkvi_seq_query(m, seq, &info), LKV_OK);
    case_eq(info.committed, 2 * B);
    case_commit(m, seq, LENGTH);
    case_eq(case_match_prompt(m, &prompt), LOADED * B);
    lkvi_manager_destroy(m);
}
