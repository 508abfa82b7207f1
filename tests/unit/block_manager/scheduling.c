/* What a scheduler asks beside admission: the blocks that sequences share (lkv_seq_common), and an
 * admission that leaves room for those that already run (watermark_blocks). */
#include "tests/cases/cases.h"

enum { B = 16 };

static uint64_t common(struct lkvi_manager *m, const lkv_seq *seqs, uint64_t n)
{
    uint64_t blocks = UINT64_MAX;
    cr_assert(lkvi_seq_common(m, seqs, n, &blocks) == LKV_OK, "%s", lkv_last_error());
    return blocks;
}

Test(common, by_tables_not_by_tokens)
{
    struct lkvi_manager *m = case_pool(32, B);
    int32_t tokens[4 * B];
    lkv_seq seqs[4];
    case_tokens(tokens, 4 * B, 0);
    seqs[0] = case_admit(m, tokens, 4 * B);
    seqs[1] = case_admit(m, tokens, 4 * B); /* equal tokens, blocks of its own */
    case_eq(common(m, seqs, 2), 0);
    case_commit(m, seqs[0], 4 * B);
    seqs[2] = case_admit(m, tokens, 4 * B); /* hits three blocks */
    tokens[2 * B] = -1;
    seqs[3] = case_admit(m, tokens, 4 * B); /* and two */
    case_eq(common(m, seqs, 1), 4);
    lkv_seq pair[2] = {seqs[0], seqs[2]}, three[3] = {seqs[0], seqs[2], seqs[3]};
    case_eq(common(m, pair, 2), 3);
    case_eq(common(m, three, 3), 2);
    case_eq(common(m, seqs, 4), 0);
    lkvi_manager_destroy(m);
}

Test(common, a_block_that_is_not_full_does_not_count)
{
    struct lkvi_manager *m = case_pool(32, B);
    int32_t tokens[2 * B];
    lkv_seq pair[2];
    case_tokens(tokens, 2 * B, 0);
    pair[0] = case_admit(m, tokens, 2 * B - 1);
    case_eq(lkvi_seq_fork(m, pair[0], &pair[1]), LKV_OK);
    case_eq(common(m, pair, 2), 1);
    case_eq(case_append(m, pair[0], 1, 7), LKV_OK); /* copies the tail */
    case_eq(common(m, pair, 2), 1);
    case_eq(common(m, pair, 1), 2);
    lkvi_manager_destroy(m);
}

Test(common, refuses_none_and_dead_ones)
{
    struct lkvi_manager *m = case_pool(32, B);
    int32_t tokens[B];
    uint64_t blocks = 77;
    case_tokens(tokens, B, 0);
    lkv_seq seqs[2] = {case_admit(m, tokens, B), case_admit(m, tokens, B)};
    case_free(m, seqs[1], 0);
    case_eq(lkvi_seq_common(m, seqs, 2, &blocks), LKV_E_NOT_FOUND);
    case_eq(lkvi_seq_common(m, seqs, 0, &blocks), LKV_E_INVALID);
    case_eq(blocks, 77);
    lkvi_manager_destroy(m);
}

static lkv_status admit_above(struct lkvi_manager *m, uint64_t n, uint64_t watermark,
                              lkv_admission *result, lkv_seq *seq)
{
    static const int32_t tokens[32 * B];
    lkv_prompt prompt = case_prompt(tokens, n);
    prompt.flags |= LKV_PROMPT_NO_MATCH;
    lkv_admit_args args = {.size = sizeof args, .watermark_blocks = watermark};
    lkv_status status = lkvi_seq_admit(m, &prompt, &args, result, seq);
    case_check(m);
    return status;
}

Test(watermark, leaves_blocks_to_those_that_run)
{
    struct lkvi_manager *m = case_pool(10, B);
    lkv_admission result = {.size = sizeof result};
    lkv_seq first, second = 0, third = 0;
    case_eq(admit_above(m, 4 * B, 3, &result, &first), LKV_OK);
    case_eq(admit_above(m, 4 * B, 3, &result, &second), LKV_E_NO_BLOCKS); /* would leave 2 */
    case_eq(result.needed, 4);
    case_eq(result.free_now, 6);
    case_eq(admit_above(m, 3 * B, 3, &result, &second), LKV_OK);
    case_eq(result.needed, 3);
    case_eq(case_append(m, first, 3 * B, 5), LKV_OK); /* growth is what the blocks were left for */
    case_free(m, second, 9);
    case_eq(admit_above(m, B, 1, &result, &third), LKV_E_WAIT_PENDING);
    case_eq(admit_above(m, 0, 11, &result, &third), LKV_E_NO_BLOCKS); /* no fence will do */
    lkvi_manager_pass_fence(m, 9);
    case_eq(admit_above(m, B, 1, &result, &third), LKV_OK);
    lkvi_manager_destroy(m);
}

Test(watermark, does_not_starve_an_idle_pool)
{
    struct lkvi_manager *m = case_pool(10, B);
    lkv_seq seq = 0, other = 0;
    case_eq(admit_above(m, 10 * B, UINT64_MAX, NULL, &seq), LKV_OK);
    case_free(m, seq, 0);
    case_eq(admit_above(m, B, 0, NULL, &seq), LKV_OK);
    case_eq(admit_above(m, B, UINT64_MAX, NULL, &other), LKV_E_NO_BLOCKS);
    case_eq(admit_above(m, 11 * B, 3, NULL, &other), LKV_E_NEVER_FITS);
    lkvi_manager_destroy(m);
}
