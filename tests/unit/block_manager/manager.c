/* What the scenarios and the random walk do not reach: more open fences than lists, tables of which
 * only the tail is written, promises after a truncation, partial hits, tickets in wrong hands. */
#include <criterion/criterion.h>
#include "block_manager/state.h"

enum { B = 16 };

static struct lkvi_manager *pool(uint64_t num_blocks, uint64_t base)
{
    struct lkvi_manager *m = NULL;
    struct lkvi_manager_config config = {
        .num_blocks = num_blocks, .base_blocks = base, .tokens_per_block = B, .max_seqs = 128};
    cr_assert(lkvi_manager_create(&config, &m) == LKV_OK, "%s", lkv_last_error());
    return m;
}

static void good(struct lkvi_manager *m, lkv_status status)
{
    cr_assert(status == LKV_OK, "status %d: %s", status, lkv_last_error());
    cr_assert(lkvi_manager_check(m) == LKV_OK, "%s", lkv_last_error());
}

static lkv_prompt numbered(int32_t *tokens, uint64_t n, int32_t first)
{
    for (uint64_t i = 0; i < n; i++)
        tokens[i] = first + (int32_t)i;
    lkv_prompt prompt = {.size = sizeof prompt, .tokens = tokens, .num_tokens = n};
    return prompt;
}

static lkv_seq admit(struct lkvi_manager *m, const lkv_prompt *prompt)
{
    lkv_seq seq = 0;
    good(m, lkvi_seq_admit(m, prompt, NULL, NULL, &seq));
    return seq;
}

Test(manager, more_fences_than_lists)
{
    enum { N = 3 * LKVI_NUM_BUCKETS / 2 };
    struct lkvi_manager *m = pool(N, N);
    int32_t tokens[B];
    lkv_seq seqs[N];
    for (int32_t i = 0; i < N; i++) {
        lkv_prompt prompt = numbered(tokens, B, i * 100);
        seqs[i] = admit(m, &prompt);
    }
    for (uint32_t i = 0; i < N; i++)
        good(m, lkvi_seq_free(m, seqs[i], 1 + (i * 37) % N)); /* every fence once, shuffled */
    for (uint64_t fence = 1; fence <= N; fence++) {
        good(m, lkvi_manager_pass_fence(m, fence));
        cr_assert(m->counts.state[LKVI_PENDING] == N - fence, "after fence %d: %d wait", (int)fence,
                  (int)m->counts.state[LKVI_PENDING]);
    }
    lkvi_manager_destroy(m);
}

Test(manager, lending_succeeds_at_base_and_never_preempts)
{
    struct lkvi_manager *m = pool(13, 10);
    int32_t tokens[10 * B], blocks[4];
    lkv_lease lease;
    lkv_prompt idle = numbered(tokens, 3 * B, 7000);
    lkv_seq seq = admit(m, &idle);
    good(m, lkvi_seq_commit(m, seq, 3 * B));
    good(m, lkvi_seq_free(m, seq, 0));
    lkv_prompt full = numbered(tokens, 10 * B, 0);
    admit(m, &full);
    cr_assert(m->counts.state[LKVI_IDLE] == 3);
    good(m, lkvi_lease_lend(m, 3, blocks, &lease));
    cr_assert(m->counts.state[LKVI_IN_USE] == 10 && m->counts.state[LKVI_IDLE] == 0);
    lkv_lease more;
    cr_assert(lkvi_lease_lend(m, 1, blocks, &more) == LKV_E_NO_BLOCKS);
    good(m, lkvi_lease_release(m, lease, 5));
    cr_assert(lkvi_lease_lend(m, 1, blocks, &more) == LKV_E_NO_BLOCKS);
    good(m, lkvi_manager_pass_fence(m, 5));
    good(m, lkvi_lease_lend(m, 3, blocks, &more));
    lkvi_manager_destroy(m);
}

static void step(struct lkvi_manager *m, lkv_seq *seqs, uint32_t flags, uint32_t n, int32_t *table)
{
    const uint32_t num_new[2] = {n, n};
    int32_t tokens[64] = {0};
    lkv_step s = {.size = sizeof s,
                  .num_seqs = 2,
                  .flags = flags,
                  .seqs = seqs,
                  .num_new = num_new,
                  .tokens = tokens,
                  .block_table = table,
                  .table_width = 8};
    good(m, lkvi_manager_step(m, &s, NULL));
}

/* A caller that keeps its rows and asks for tails has the same table as one that asks for all. */
Test(manager, a_table_kept_by_its_tail_is_the_whole_table)
{
    struct lkvi_manager *m = pool(64, 64);
    int32_t tokens[40], kept[16], want[8];
    lkv_prompt prompt = numbered(tokens, 40, 0);
    lkv_seq seqs[2] = {admit(m, &prompt), 0};
    good(m, lkvi_seq_fork(m, seqs[0], &seqs[1]));
    step(m, seqs, 0, 1, kept);
    for (uint64_t round = 0; round < 40; round++) {
        if (round % 7 == 3)
            good(m, lkvi_seq_truncate(m, seqs[round % 2], 20 + round % 9, 0));
        step(m, seqs, LKV_STEP_TABLE_TAIL, 1 + (uint32_t)round % 3, kept);
        for (int i = 0; i < 2; i++) {
            uint64_t num;
            memset(want, 0, sizeof want);
            good(m, lkvi_seq_table(m, seqs[i], want, 8, &num));
            cr_assert(!memcmp(kept + 8 * i, want, sizeof want), "round %d row %d", (int)round, i);
        }
    }
    lkvi_manager_destroy(m);
}

Test(manager, partial_hits_are_copied_and_their_source_held)
{
    struct lkvi_manager *m = pool(6, 6);
    int32_t a[3 * B], b[3 * B];
    lkv_admission result = {.size = sizeof result};
    lkv_seq seq;
    lkv_prompt first = numbered(a, 2 * B, 0);
    seq = admit(m, &first);
    good(m, lkvi_seq_commit(m, seq, 2 * B));
    good(m, lkvi_seq_free(m, seq, 0));
    lkv_prompt second = numbered(b, 2 * B, 0);
    b[B + 9] = 77;
    good(m, lkvi_seq_admit(m, &second, NULL, &result, &seq));
    cr_assert(result.hit_tokens == B + 9 && result.partial_hit_tokens == 9);
    cr_assert(result.needed == 3, "one fresh, one idle hit, one idle source");
    uint32_t source = m->copies[0].from;
    good(m, lkvi_manager_settle_copies(m, 1, 4));
    cr_assert(m->blocks[source].state == LKVI_PENDING);
    good(m, lkvi_manager_pass_fence(m, 4));
    cr_assert(m->blocks[source].state == LKVI_IDLE);
    second.flags = LKV_PROMPT_NO_PARTIAL;
    lkv_match match = {.size = sizeof match};
    good(m, lkvi_seq_match(m, &second, &match));
    cr_assert(match.hit_tokens == B && match.partial_hit_tokens == 0);
    lkvi_manager_destroy(m);
}

Test(manager, a_ticket_of_another_prompt_or_epoch_is_stale)
{
    struct lkvi_manager *m = pool(16, 16);
    int32_t a[2 * B + 1], b[2 * B + 1];
    lkv_prompt mine = numbered(a, 2 * B + 1, 0), yours = numbered(b, 2 * B + 1, 500);
    lkv_match match = {.size = sizeof match};
    lkv_admit_args args = {.size = sizeof args, .match = &match};
    lkv_seq seq = admit(m, &mine);
    good(m, lkvi_seq_commit(m, seq, 2 * B + 1));
    good(m, lkvi_seq_free(m, seq, 0));
    good(m, lkvi_seq_match(m, &mine, &match));
    cr_assert(match.hit_blocks == 2);
    cr_assert(lkvi_seq_admit(m, &yours, &args, NULL, &seq) == LKV_E_STALE_HIT);
    for (int i = 0; i < 4; i++)
        for (int bit = 0; bit < 64; bit++) { /* no forged ticket may do more than be refused */
            match.ticket[i] ^= 1ull << bit;
            lkv_status status = lkvi_seq_admit(m, &yours, &args, NULL, &seq);
            cr_assert(status == LKV_E_STALE_HIT, "word %d bit %d: status %d", i, bit, status);
            match.ticket[i] ^= 1ull << bit;
        }
    good(m, lkvi_manager_reset(m, 0));
    cr_assert(lkvi_seq_admit(m, &mine, &args, NULL, &seq) == LKV_E_STALE_HIT);
    lkvi_manager_destroy(m);
}

/* Growth of a whole admission never fails while others fill the pool. */
Test(manager, a_promise_survives_truncation)
{
    struct lkvi_manager *m = pool(10, 10);
    int32_t tokens[8 * B];
    lkv_prompt prompt = numbered(tokens, B, 0);
    lkv_admit_args args = {.size = sizeof args, .max_tokens = 5 * B, .flags = LKV_ADMIT_WHOLE};
    lkv_seq whole, other;
    good(m, lkvi_seq_admit(m, &prompt, &args, NULL, &whole));
    lkv_prompt rest = numbered(tokens, 5 * B, 900);
    other = admit(m, &rest);
    cr_assert(lkvi_seq_append(m, other, tokens, 1, NULL) == LKV_E_NO_BLOCKS);
    for (int round = 0; round < 3; round++) {
        good(m, lkvi_seq_append(m, whole, tokens, 4 * B, NULL));
        good(m, lkvi_seq_truncate(m, whole, B, 0));
        cr_assert(lkvi_seq_append(m, other, tokens, 1, NULL) == LKV_E_NO_BLOCKS);
    }
    lkvi_manager_destroy(m);
}
