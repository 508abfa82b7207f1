/* A. Identity and keys: nobody is ever served another prompt's blocks. */
#include "tests/cases/cases.h"

enum { B = 16 };

static lkv_key whole(uint32_t tag, const char *text)
{
    return (lkv_key){text, 0, UINT64_MAX, tag, (uint32_t)strlen(text)};
}

static lkv_key image(const char *text, uint64_t begin, uint64_t end)
{
    return (lkv_key){text, begin, end, LKV_KEY_MULTIMODAL, (uint32_t)strlen(text)};
}

static lkv_prompt keyed(const int32_t *tokens, uint64_t n, const lkv_key *keys, uint32_t num)
{
    lkv_prompt prompt = case_prompt(tokens, n);
    prompt.keys = keys;
    prompt.num_keys = num;
    return prompt;
}

/* With the hash cut to 8 bits a block collides with 1 in 256 others: at block 0 and at block 3. */
static void collide(uint32_t hash_bits, uint64_t at)
{
    struct lkvi_manager_config config = {.num_blocks = 4000,
                                         .base_blocks = 4000,
                                         .tokens_per_block = B,
                                         .max_seqs = 4,
                                         .hash_bits = hash_bits};
    struct lkvi_manager *m = case_pool_of(&config);
    int32_t a[5 * B];
    uint32_t collisions = 0;
    case_tokens(a, 5 * B, 0);
    case_cache(m, a, 5 * B);
    uint32_t parent = 0;
    for (uint64_t k = 0; k < at; k++)
        parent = lkvi_child(m, parent, a + k * B, 0);
    uint32_t same = lkvi_identity_hash(m, parent, a + at * B, 0);
    for (int32_t other = 1; other < 3000; other++) {
        a[at * B] = 100000 + other;
        collisions += lkvi_identity_hash(m, parent, a + at * B, 0) == same;
        case_eq(lkvi_child(m, parent, a + at * B, 0), 0);
    }
    case_eq(case_match(m, a, 5 * B), at * B);
    cr_assert(hash_bits != 8 || collisions > 0, "no collision was tried");
    lkvi_manager_destroy(m);
}

Test(cases, BM_01_collision_is_a_miss)
{
    collide(8, 0);
    struct lkvi_manager *one = case_pool(4, B), *two = case_pool(4, B);
    int32_t a[B];
    case_tokens(a, B, 0);
    cr_assert(memcmp(one->index.secret, two->index.secret, sizeof one->index.secret));
    cr_assert(lkvi_identity_hash(one, 0, a, 0) != lkvi_identity_hash(two, 0, a, 0));
    lkvi_manager_destroy(one);
    lkvi_manager_destroy(two);
}

Test(cases, BM_02_collision_at_any_block_is_a_miss)
{
    collide(8, 0);
    collide(8, 3);
    collide(1, 3);
}

Test(cases, BM_03_compensating_changes_miss)
{
    struct lkvi_manager *m = case_pool(16, B);
    int32_t x[4 * B + 1], y[4 * B + 1];
    case_tokens(x, 4 * B + 1, 1000);
    case_cache(m, x, 4 * B + 1);
    for (uint64_t j = 0; j + 1 < 4 * B; j++) {
        memcpy(y, x, sizeof y);
        y[j] += 31;
        y[j + 1] -= 1;
        case_eq(case_match(m, y, 4 * B + 1), j / B * B);
    }
    lkvi_manager_destroy(m);
}

Test(cases, BM_05_adapter_is_part_of_the_identity)
{
    struct lkvi_manager *m = case_pool(16, B);
    int32_t p[3 * B + 1];
    lkv_key a = whole(LKV_KEY_ADAPTER, "A"), b = whole(LKV_KEY_ADAPTER, "B");
    case_tokens(p, 3 * B + 1, 0);
    lkv_prompt under_a = keyed(p, 3 * B + 1, &a, 1), under_b = keyed(p, 3 * B + 1, &b, 1);
    case_cache_prompt(m, &under_a);
    case_eq(case_match_prompt(m, &under_b), 0);
    case_eq(case_match(m, p, 3 * B + 1), 0);
    case_eq(case_match_prompt(m, &under_a), 3 * B);
    lkvi_manager_destroy(m);
}

Test(cases, BM_06_adapter_version_is_part_of_the_identity)
{
    struct lkvi_manager *m = case_pool(16, B);
    int32_t p[2 * B + 1];
    lkv_key v1 = whole(LKV_KEY_ADAPTER, "X\0001"), v2 = whole(LKV_KEY_ADAPTER, "X\0002");
    v1.bytes = v2.bytes = 3;
    case_tokens(p, 2 * B + 1, 0);
    lkv_prompt one = keyed(p, 2 * B + 1, &v1, 1), two = keyed(p, 2 * B + 1, &v2, 1);
    case_cache_prompt(m, &one);
    case_eq(case_match_prompt(m, &two), 0);
    case_eq(case_match_prompt(m, &one), 2 * B);
    lkvi_manager_destroy(m);
}

Test(cases, BM_06_dropping_one_namespace_evicts_its_idle_blocks_alone)
{
    struct lkvi_manager *m = case_pool(16, B);
    int32_t p[2 * B + 1];
    lkv_key v1 = whole(LKV_KEY_ADAPTER, "X\0001"), v2 = whole(LKV_KEY_ADAPTER, "X\0002");
    uint64_t dropped;
    v1.bytes = v2.bytes = 3;
    case_tokens(p, 2 * B + 1, 0);
    lkv_prompt one = keyed(p, 2 * B + 1, &v1, 1), two = keyed(p, 2 * B + 1, &v2, 1);
    case_cache_prompt(m, &one);
    case_cache_prompt(m, &two);
    case_cache(m, p, 2 * B + 1);
    lkv_seq live = case_admit_prompt(m, &two);
    case_eq(lkvi_manager_drop(m, &v2, &dropped), LKV_OK);
    case_check(m);
    case_eq(dropped, 2);
    case_eq(case_match_prompt(m, &two), 0);
    case_eq(case_match_prompt(m, &one), 2 * B);
    case_eq(case_match(m, p, 2 * B + 1), 2 * B);
    case_commit(m, live, 2 * B + 1); /* of the version that was dropped: never published again */
    case_eq(case_match_prompt(m, &two), 0);
    case_eq(case_stats(m).blocks_in_use, 3);
    case_free(m, live, 0);
    case_eq(case_stats(m).blocks_cached, 4);
    lkvi_manager_destroy(m);
}

/* Bytes of a whole key that spell the place and bytes of a placed one are still another key. */
Test(cases, BM_07_a_whole_key_is_no_placed_key)
{
    struct lkvi_manager *m = case_pool(16, B);
    int32_t p[B + 1];
    char spelled[16 + 3] = {0};
    uint64_t end = B;
    memcpy(spelled + 8, &end, sizeof end); /* begin 0, end B, little endian */
    memcpy(spelled + 16, "img", 3);
    lkv_key placed = image("img", 0, B);
    lkv_key forged = {spelled, 0, UINT64_MAX, LKV_KEY_MULTIMODAL, sizeof spelled};
    case_tokens(p, B + 1, 0);
    lkv_prompt one = keyed(p, B + 1, &placed, 1), two = keyed(p, B + 1, &forged, 1);
    case_cache_prompt(m, &one);
    case_eq(case_match_prompt(m, &two), 0);
    case_eq(case_match_prompt(m, &one), B);
    lkvi_manager_destroy(m);
}

Test(cases, BM_07_images_behind_equal_placeholders)
{
    struct lkvi_manager *m = case_pool(16, B);
    int32_t p[3 * B + 1];
    lkv_key one = image("img1", B, 3 * B), two = image("img2", B, 3 * B);
    case_tokens(p, 3 * B + 1, 0);
    for (int i = B; i < 3 * B; i++)
        p[i] = 9;
    lkv_prompt first = keyed(p, 3 * B + 1, &one, 1), second = keyed(p, 3 * B + 1, &two, 1);
    case_cache_prompt(m, &first);
    case_eq(case_match_prompt(m, &second), B);
    case_eq(case_match_prompt(m, &first), 3 * B);
    lkvi_manager_destroy(m);
}

Test(cases, BM_08_the_whole_key_counts)
{
    struct lkvi_manager *m = case_pool(16, B);
    int32_t p[2 * B + 1];
    lkv_key one = image("aaaaaaaaaaaaaaTT", 0, 2 * B), two = image("baaaaaaaaaaaaaTT", 0, 2 * B);
    case_tokens(p, 2 * B + 1, 0);
    lkv_prompt first = keyed(p, 2 * B + 1, &one, 1), second = keyed(p, 2 * B + 1, &two, 1);
    case_cache_prompt(m, &first);
    case_eq(case_match_prompt(m, &second), 0);
    lkvi_manager_destroy(m);
}

/* Two images share block 1: whatever the split of the appends, the chain is the one-shot chain. */
Test(cases, BM_10_appends_and_one_shot_give_one_chain)
{
    int32_t p[3 * B + 1];
    lkv_key keys[2] = {image("first", 10, 20), image("second", 25, 40)};
    lkv_key swapped[2] = {keys[1], keys[0]};
    case_tokens(p, 3 * B + 1, 0);
    for (uint64_t split = 1; split < 3 * B; split++) {
        struct lkvi_manager *m = case_pool(16, B);
        lkv_prompt start = keyed(p, split, keys, 2), all = keyed(p, 3 * B + 1, swapped, 2);
        lkv_seq seq = case_admit_prompt(m, &start);
        for (uint64_t at = split; at < 3 * B + 1; at++) {
            case_eq(lkvi_seq_append(m, seq, p + at, 1, NULL), LKV_OK);
            if (at % 5 == 0)
                case_commit(m, seq, at);
        }
        case_commit(m, seq, 3 * B + 1);
        case_eq(case_match_prompt(m, &all), 3 * B);
        lkvi_manager_destroy(m);
    }
}

Test(cases, BM_11_every_position_counts)
{
    struct lkvi_manager *m = case_pool(16, B);
    int32_t p[2 * B + 1];
    case_tokens(p, 2 * B + 1, 0);
    case_cache(m, p, 2 * B + 1);
    for (int j = 0; j < B; j++) {
        p[j] ^= 1 << 20;
        case_eq(case_match(m, p, 2 * B + 1), 0);
        p[j] ^= 1 << 20;
    }
    case_eq(case_match(m, p, 2 * B + 1), 2 * B);
    lkvi_manager_destroy(m);
}
