/* In: a verb of the scenarios. Out: the manager's call and the check after it. */
#include "tests/cases/cases.h"

void case_check(struct lkvi_manager *m)
{
    cr_assert(lkvi_manager_check(m) == LKV_OK, "%s", lkv_last_error());
}

struct lkvi_manager *case_pool_of(const struct lkvi_manager_config *config)
{
    struct lkvi_manager *m = NULL;
    cr_assert(lkvi_manager_create(config, &m) == LKV_OK, "%s", lkv_last_error());
    case_check(m);
    return m;
}

struct lkvi_manager *case_pool(uint64_t num_blocks, uint32_t block_tokens)
{
    struct lkvi_manager_config config = {.num_blocks = num_blocks,
                                         .base_blocks = num_blocks,
                                         .tokens_per_block = block_tokens,
                                         .max_seqs = 64};
    return case_pool_of(&config);
}

void case_tokens(int32_t *tokens, uint64_t n, int32_t first)
{
    for (uint64_t i = 0; i < n; i++)
        tokens[i] = first + (int32_t)i;
}

lkv_prompt case_prompt(const int32_t *tokens, uint64_t n)
{
    lkv_prompt prompt = {
        .size = sizeof prompt, .tokens = tokens, .num_tokens = n, .flags = LKV_PROMPT_NO_PARTIAL};
    return prompt;
}

uint64_t case_match_prompt(struct lkvi_manager *m, const lkv_prompt *prompt)
{
    lkv_match match = {.size = sizeof match};
    cr_assert(lkvi_seq_match(m, prompt, &match) == LKV_OK, "%s", lkv_last_error());
    case_check(m);
    return match.hit_tokens;
}

uint64_t case_match(struct lkvi_manager *m, const int32_t *tokens, uint64_t n)
{
    lkv_prompt prompt = case_prompt(tokens, n);
    return case_match_prompt(m, &prompt);
}

lkv_seq case_admit_prompt(struct lkvi_manager *m, const lkv_prompt *prompt)
{
    lkv_seq seq = 0;
    cr_assert(lkvi_seq_admit(m, prompt, NULL, NULL, &seq) == LKV_OK, "%s", lkv_last_error());
    case_check(m);
    return seq;
}

lkv_seq case_admit(struct lkvi_manager *m, const int32_t *tokens, uint64_t n)
{
    lkv_prompt prompt = case_prompt(tokens, n);
    return case_admit_prompt(m, &prompt);
}

lkv_status case_try_admit(struct lkvi_manager *m, const int32_t *tokens, uint64_t n,
                          lkv_admission *result, lkv_seq *seq)
{
    lkv_prompt prompt = case_prompt(tokens, n);
    lkv_status status = lkvi_seq_admit(m, &prompt, NULL, result, seq);
    case_check(m);
    return status;
}

lkv_status case_append(struct lkvi_manager *m, lkv_seq seq, uint64_t n, int32_t first)
{
    int32_t tokens[256];
    cr_assert(n <= 256);
    case_tokens(tokens, n, first);
    lkv_status status = lkvi_seq_append(m, seq, tokens, n, NULL);
    case_check(m);
    return status;
}

void case_commit(struct lkvi_manager *m, lkv_seq seq, uint64_t upto)
{
    cr_assert(lkvi_seq_commit(m, seq, upto) == LKV_OK, "%s", lkv_last_error());
    case_check(m);
}

lkv_status case_free(struct lkvi_manager *m, lkv_seq seq, uint64_t fence)
{
    lkv_status status = lkvi_seq_free(m, seq, fence);
    case_check(m);
    return status;
}

void case_cache_prompt(struct lkvi_manager *m, const lkv_prompt *prompt)
{
    lkv_seq seq = case_admit_prompt(m, prompt);
    case_commit(m, seq, prompt->num_tokens);
    case_eq(case_free(m, seq, 0), LKV_OK);
}

void case_cache(struct lkvi_manager *m, const int32_t *tokens, uint64_t n)
{
    lkv_prompt prompt = case_prompt(tokens, n);
    case_cache_prompt(m, &prompt);
}

uint64_t case_table(struct lkvi_manager *m, lkv_seq seq, int32_t *table)
{
    uint64_t num;
    cr_assert(lkvi_seq_table(m, seq, table, 256, &num) == LKV_OK, "%s", lkv_last_error());
    return num;
}

lkv_pool_stats case_stats(struct lkvi_manager *m)
{
    lkv_pool_stats stats = {.size = sizeof stats};
    lkvi_manager_query(m, &stats);
    return stats;
}

uint64_t case_evict(struct lkvi_manager *m, uint64_t n)
{
    uint64_t evicted;
    case_eq(lkvi_manager_evict(m, n, &evicted), LKV_OK);
    case_check(m);
    return evicted;
}
