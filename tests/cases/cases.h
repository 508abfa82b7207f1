/* The scenarios' verbs, in the words of the case list: each call is followed by the check of all
 * invariants, so every step of every scenario is. Whole blocks unless a case says partial. */
#ifndef TESTS_CASES_CASES_H
#define TESTS_CASES_CASES_H

#include <criterion/criterion.h>
#include "block_manager/state.h"

struct lkvi_manager *case_pool(uint64_t num_blocks, uint32_t block_tokens);
struct lkvi_manager *case_pool_of(const struct lkvi_manager_config *config);
void case_check(struct lkvi_manager *m);
/* tokens[i] = first + i */
void case_tokens(int32_t *tokens, uint64_t n, int32_t first);

lkv_prompt case_prompt(const int32_t *tokens, uint64_t n);
uint64_t case_match(struct lkvi_manager *m, const int32_t *tokens, uint64_t n); /* hit tokens */
uint64_t case_match_prompt(struct lkvi_manager *m, const lkv_prompt *prompt);
lkv_seq case_admit(struct lkvi_manager *m, const int32_t *tokens, uint64_t n); /* must succeed */
lkv_seq case_admit_prompt(struct lkvi_manager *m, const lkv_prompt *prompt);
lkv_status case_try_admit(struct lkvi_manager *m, const int32_t *tokens, uint64_t n,
                          lkv_admission *result, lkv_seq *seq);
lkv_status case_append(struct lkvi_manager *m, lkv_seq seq, uint64_t n, int32_t first);
void case_commit(struct lkvi_manager *m, lkv_seq seq, uint64_t upto);
lkv_status case_free(struct lkvi_manager *m, lkv_seq seq, uint64_t fence);
/* admit, commit all, free: the prompt is cached and idle */
void case_cache(struct lkvi_manager *m, const int32_t *tokens, uint64_t n);
void case_cache_prompt(struct lkvi_manager *m, const lkv_prompt *prompt);
uint64_t case_table(struct lkvi_manager *m, lkv_seq seq, int32_t *table); /* number of blocks */
lkv_pool_stats case_stats(struct lkvi_manager *m);
uint64_t case_evict(struct lkvi_manager *m, uint64_t n);

#define case_eq(found, wanted)                                                                     \
    cr_assert((int64_t)(found) == (int64_t)(wanted), "%s is %lld, want %lld", #found,              \
              (long long)(found), (long long)(wanted))

#endif
