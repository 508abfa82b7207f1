/* lkv_pool_drop: which blocks a key names, and that nothing else moves: other keys of the same tag,
 * the same bytes under another tag, longer or shorter bytes, the order of eviction. */
#include "tests/cases/cases.h"

enum { B = 16 };

static lkv_key key_of(uint32_t tag, const char *data, uint64_t begin, uint64_t end)
{
    return (lkv_key){data, begin, end, tag, (uint32_t)strlen(data)};
}

static lkv_key whole(uint32_t tag, const char *data)
{
    return key_of(tag, data, 0, UINT64_MAX);
}

static uint64_t drop(struct lkvi_manager *m, lkv_key key)
{
    uint64_t dropped;
    case_eq(lkvi_manager_drop(m, &key, &dropped), LKV_OK);
    case_check(m);
    return dropped;
}

static lkv_prompt keyed(const int32_t *tokens, uint64_t n, const lkv_key *keys, uint32_t num)
{
    lkv_prompt prompt = case_prompt(tokens, n);
    prompt.keys = keys;
    prompt.num_keys = num;
    return prompt;
}

Test(namespaces, only_the_key_that_is_named)
{
    const lkv_key keys[6] = {whole(LKV_KEY_ADAPTER, "a"), whole(LKV_KEY_ADAPTER, "b"),
                             whole(LKV_KEY_SALT, "a"),    whole(LKV_KEY_ADAPTER, "ab"),
                             whole(LKV_KEY_USER, "a"),    whole(LKV_KEY_ADAPTER, "")};
    int32_t tokens[2 * B + 1];
    case_tokens(tokens, 2 * B + 1, 0);
    for (int gone = 0; gone < 6; gone++) {
        struct lkvi_manager *m = case_pool(32, B);
        case_cache(m, tokens, 2 * B + 1);
        for (int i = 0; i < 6; i++) {
            lkv_prompt prompt = keyed(tokens, 2 * B + 1, &keys[i], 1);
            case_cache_prompt(m, &prompt);
        }
        case_eq(drop(m, keys[gone]), 2);
        case_eq(drop(m, keys[gone]), 0);
        for (int i = 0; i < 6; i++) {
            lkv_prompt prompt = keyed(tokens, 2 * B + 1, &keys[i], 1);
            cr_assert(case_match_prompt(m, &prompt) == (i == gone ? 0 : 2 * B),
                      "key %d after key %d was dropped", i, gone);
        }
        case_eq(case_match(m, tokens, 2 * B + 1), 2 * B);
        lkvi_manager_destroy(m);
    }
}

Test(namespaces, one_key_of_several)
{
    struct lkvi_manager *m = case_pool(32, B);
    const lkv_key both[2] = {whole(LKV_KEY_SALT, "tenant"), whole(LKV_KEY_ADAPTER, "x")};
    int32_t tokens[B + 1];
    case_tokens(tokens, B + 1, 0);
    lkv_prompt prompts[3] = {keyed(tokens, B + 1, both, 2), keyed(tokens, B + 1, both, 1),
                             keyed(tokens, B + 1, both + 1, 1)};
    for (int i = 0; i < 3; i++)
        case_cache_prompt(m, &prompts[i]);
    case_eq(drop(m, both[0]), 2);
    case_eq(case_match_prompt(m, &prompts[0]), 0);
    case_eq(case_match_prompt(m, &prompts[1]), 0);
    case_eq(case_match_prompt(m, &prompts[2]), B);
    lkvi_manager_destroy(m);
}

Test(namespaces, an_image_takes_what_follows_it)
{
    struct lkvi_manager *m = case_pool(32, B);
    const lkv_key image = key_of(LKV_KEY_MULTIMODAL, "img", B + 3, 2 * B);
    int32_t tokens[4 * B + 1];
    case_tokens(tokens, 4 * B + 1, 0);
    lkv_prompt prompt = keyed(tokens, 4 * B + 1, &image, 1);
    case_cache_prompt(m, &prompt);
    case_eq(drop(m, whole(LKV_KEY_MULTIMODAL, "img")), 3);
    case_eq(case_match_prompt(m, &prompt), B);
    lkvi_manager_destroy(m);
}

/* Four other prompts rested before and after: they go in the order in which they would have. */
Test(namespaces, the_order_of_others_stays)
{
    struct lkvi_manager *m = case_pool(32, B);
    const lkv_key key = whole(LKV_KEY_SALT, "s");
    int32_t tokens[B + 1];
    for (int32_t i = 0; i < 8; i++) {
        case_tokens(tokens, B + 1, 1000 * i);
        lkv_prompt prompt = keyed(tokens, B + 1, &key, i & 1);
        case_cache_prompt(m, &prompt);
    }
    case_eq(drop(m, key), 4);
    for (int32_t gone = 0; gone < 8; gone += 2) {
        case_eq(case_evict(m, 1), 1);
        for (int32_t i = 0; i < 8; i += 2) {
            case_tokens(tokens, B + 1, 1000 * i);
            cr_assert(case_match(m, tokens, B + 1) == (i > gone ? B : 0), "prompt %d of %d", i,
                      gone);
        }
    }
    case_eq(case_evict(m, 1), 0);
    lkvi_manager_destroy(m);
}

Test(namespaces, tickets_forks_and_fences)
{
    struct lkvi_manager *m = case_pool(32, B);
    const lkv_key key = whole(LKV_KEY_ADAPTER, "x");
    int32_t tokens[3 * B];
    lkv_match ticket = {.size = sizeof ticket};
    lkv_seq seq, fork, late;
    case_tokens(tokens, 3 * B, 0);
    lkv_prompt prompt = keyed(tokens, 3 * B, &key, 1);
    seq = case_admit_prompt(m, &prompt);
    case_commit(m, seq, 2 * B);
    case_eq(lkvi_seq_fork(m, seq, &fork), LKV_OK);
    case_eq(lkvi_seq_match(m, &prompt, &ticket), LKV_OK);
    case_eq(ticket.hit_blocks, 2);
    case_eq(drop(m, key), 2);
    lkv_admit_args args = {.size = sizeof args, .match = &ticket};
    case_eq(lkvi_seq_admit(m, &prompt, &args, NULL, &late), LKV_E_STALE_HIT);
    case_commit(m, seq, 3 * B);
    case_commit(m, fork, 3 * B);
    case_eq(case_match_prompt(m, &prompt), 0);
    case_eq(case_free(m, seq, 5), LKV_OK);
    case_eq(case_free(m, fork, 5), LKV_OK);
    case_eq(case_stats(m).blocks_pending, 3);
    lkvi_manager_pass_fence(m, 5);
    case_check(m);
    case_eq(case_stats(m).blocks_free, 32);
    late = case_admit_prompt(m, &prompt); /* admitted after the drop: publishes as ever */
    case_commit(m, late, 3 * B);
    case_eq(case_match_prompt(m, &prompt), 2 * B);
    lkvi_manager_destroy(m);
}

Test(namespaces, events_tell_of_each_block)
{
    struct lkvi_manager_config config = {.num_blocks = 16,
                                         .base_blocks = 16,
                                         .tokens_per_block = B,
                                         .max_seqs = 4,
                                         .event_slots = 64};
    struct lkvi_manager *m = case_pool_of(&config);
    const lkv_key key = whole(LKV_KEY_ADAPTER, "x");
    int32_t tokens[3 * B + 1];
    lkv_event events[16];
    case_tokens(tokens, 3 * B + 1, 0);
    lkv_prompt prompt = keyed(tokens, 3 * B + 1, &key, 1), part = keyed(tokens, B + 1, &key, 1);
    case_cache_prompt(m, &prompt);
    lkv_seq user = case_admit_prompt(m, &part);
    case_eq(drop(m, key), 3);
    lkv_event_batch batch = {.size = sizeof batch, .from_seq = 4, .events = events, .capacity = 16};
    case_eq(lkvi_events_read(m, &batch), LKV_OK);
    case_eq(batch.num_events, 3);
    for (int i = 0; i < 3; i++) {
        case_eq(events[i].kind, LKV_EVENT_REMOVED);
        case_eq(events[i].reason, LKV_REMOVED_DROPPED);
    }
    case_free(m, user, 0);
    lkvi_manager_destroy(m);
}
