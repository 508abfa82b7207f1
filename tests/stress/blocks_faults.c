/* In: nothing. Out: exit 0 if every allocation may fail, once each, without a trace.
 * A script of calls is run with the n-th allocation failing, for n = 1, 2, ... until nothing fails
 * any more. A call that fails must say NO_MEMORY, change no figure, and succeed when repeated. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "block_manager/manager.h"
#include "core/alloc.h"

enum { BLOCK = 16, TOKENS = 100, QUIET_MAX = 5 };

static int64_t armed;
static int failed_calls;

struct world {
    struct lkvi_manager *m;
    int32_t tokens[TOKENS];
    lkv_key keys[3];
    lkv_seq seq, child, other, first;
    lkv_lease pin, lent;
};

static lkv_prompt prompt_of(const struct world *w, uint32_t num_keys)
{
    lkv_prompt prompt = {.size = sizeof prompt,
                         .tokens = w->tokens,
                         .keys = w->keys,
                         .num_tokens = TOKENS,
                         .num_keys = num_keys};
    return prompt;
}

static lkv_status call_create(struct world *w)
{
    struct lkvi_manager_config config = {.num_blocks = 40,
                                         .base_blocks = 30,
                                         .host_blocks = 12,
                                         .tokens_per_block = BLOCK,
                                         .max_seqs = 8,
                                         .event_slots = 16};
    return lkvi_manager_create(&config, &w->m);
}

static lkv_status call_match(struct world *w)
{
    lkv_match match = {.size = sizeof match};
    lkv_prompt prompt = prompt_of(w, 3);
    return lkvi_seq_match(w->m, &prompt, &match);
}

static lkv_status call_admit(struct world *w)
{
    lkv_prompt prompt = prompt_of(w, 3);
    return lkvi_seq_admit(w->m, &prompt, NULL, NULL, &w->seq);
}

static lkv_status call_commit(struct world *w)
{
    return lkvi_seq_commit(w->m, w->seq, TOKENS);
}

static lkv_status call_fork(struct world *w)
{
    return lkvi_seq_fork(w->m, w->seq, &w->child);
}

static lkv_status call_append(struct world *w)
{
    return lkvi_seq_append(w->m, w->child, w->tokens, 40, NULL);
}

static lkv_status call_step(struct world *w)
{
    uint32_t num_new[2] = {20, 20};
    lkv_seq seqs[2] = {w->seq, w->child};
    int32_t tokens[40] = {0}, table[2 * 16], lens[2];
    lkv_step step = {.size = sizeof step,
                     .num_seqs = 2,
                     .seqs = seqs,
                     .num_new = num_new,
                     .tokens = tokens,
                     .block_table = table,
                     .seq_lens = lens,
                     .table_width = 16};
    return lkvi_manager_step(w->m, &step, NULL);
}

static lkv_status call_admit_hit(struct world *w)
{
    lkv_prompt prompt = prompt_of(w, 3);
    prompt.num_tokens = 90;
    return lkvi_seq_admit(w->m, &prompt, NULL, NULL, &w->other);
}

/* The first priority makes the ranks. */
static lkv_status call_admit_first(struct world *w)
{
    lkv_prompt prompt = prompt_of(w, 0);
    lkv_admit_args args = {.size = sizeof args, .priority = 9, .priority_until = 5};
    prompt.num_tokens = 20;
    return lkvi_seq_admit(w->m, &prompt, &args, NULL, &w->first);
}

static lkv_status call_swap_out(struct world *w)
{
    return lkvi_seq_swap_out(w->m, w->other, 3, NULL);
}

/* What waited for fence 3 waits no more, then it is copied. */
static lkv_status call_swap_in(struct world *w)
{
    uint64_t num;
    lkvi_manager_pass_fence(w->m, 3);
    lkvi_manager_peek_copies(w->m, NULL, 0, &num);
    lkvi_manager_settle_copies(w->m, num, 0);
    return lkvi_seq_swap_in(w->m, w->other, NULL);
}

static lkv_status call_demote(struct world *w)
{
    uint64_t queued;
    if (w->other) {
        lkvi_seq_commit(w->m, w->other, 80);
        lkvi_seq_free(w->m, w->other, 0);
        w->other = 0;
    }
    return lkvi_manager_demote(w->m, 40, &queued);
}

static lkv_status call_pin(struct world *w)
{
    int32_t table[8];
    uint64_t num;
    lkvi_seq_table(w->m, w->seq, table, 3, &num);
    return lkvi_lease_pin(w->m, table, 3, &w->pin);
}

static lkv_status call_lend(struct world *w)
{
    int32_t blocks[5];
    return lkvi_lease_lend(w->m, 5, blocks, &w->lent);
}

static lkv_status call_check(struct world *w)
{
    return lkvi_manager_check(w->m);
}

static int same_figures(const lkv_pool_stats *a, const lkv_pool_stats *b)
{
    return !memcmp(&a->blocks_free, &b->blocks_free,
                   offsetof(lkv_pool_stats, metadata_allocated_bytes) -
                       offsetof(lkv_pool_stats, blocks_free));
}

/* 0 fine, 1 the call broke a rule. */
static int run_call(struct world *w, lkv_status (*call)(struct world *), int index)
{
    lkv_pool_stats before, after;
    if (w->m)
        lkvi_manager_query(w->m, &before);
    lkv_status status = call(w);
    if (status == LKV_OK)
        return 0;
    failed_calls++;
    lkvi_alloc_fail_after(0);
    if (status != LKV_E_NO_MEMORY || !*lkv_last_error()) {
        fprintf(stderr, "call %d, allocation %lld: status %d\n", index, (long long)armed, status);
        return 1;
    }
    if (!w->m)
        return call(w) != LKV_OK;
    lkvi_manager_query(w->m, &after);
    if (!same_figures(&before, &after) || lkvi_manager_check(w->m) != LKV_OK) {
        fprintf(stderr, "call %d, allocation %lld: figures differ or %s\n", index, (long long)armed,
                lkv_last_error());
        return 1;
    }
    status = call(w);
    if (status != LKV_OK)
        fprintf(stderr, "call %d, allocation %lld: again %d\n", index, (long long)armed, status);
    return status != LKV_OK;
}

static int run_script(void)
{
    static lkv_status (*const calls[])(struct world *) = {
        call_create,   call_match,   call_admit,     call_commit, call_fork,
        call_append,   call_step,    call_admit_hit, call_pin,    call_admit_first,
        call_swap_out, call_swap_in, call_demote,    call_lend,   call_check};
    static const char names[3][8] = {"adapter", "image-1", "image-2"};
    struct world w = {.m = NULL};
    int wrong = 0;
    for (int i = 0; i < TOKENS; i++)
        w.tokens[i] = i;
    w.keys[0] = (lkv_key){names[0], 0, UINT64_MAX, LKV_KEY_ADAPTER, 7};
    w.keys[1] = (lkv_key){names[1], 10, 30, LKV_KEY_MULTIMODAL, 7};
    w.keys[2] = (lkv_key){names[2], 40, 50, LKV_KEY_MULTIMODAL, 7};
    for (int i = 0; i < (int)(sizeof calls / sizeof *calls) && !wrong; i++)
        wrong = run_call(&w, calls[i], i);
    lkvi_alloc_fail_after(0);
    if (!wrong && lkvi_manager_check(w.m) != LKV_OK)
        wrong = 1;
    lkvi_manager_destroy(w.m);
    return wrong;
}

int main(void)
{
    /* An allocation that can be done without (all metadata in one piece) fails no call. */
    for (int quiet = 0; quiet < QUIET_MAX;) {
        int before = failed_calls;
        lkvi_alloc_fail_after(++armed);
        if (run_script())
            return 1;
        quiet = failed_calls == before ? quiet + 1 : 0;
    }
    printf("%d allocations failed once each\n", failed_calls);
    return failed_calls < 30;
}
