/* Fallback policies against the definition of the hash and answers worked out by hand. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include "latentkv/moe_cache.h"
#include "moe_cache/fallback.h"
#include "tests/reference/ref_moe.h"
#include "tests/support/compare.h"

static const uint32_t sizes[] = {1, 2, 8, 16, 64, 160, 256, 384, 65535};
enum { NUM_SIZES = sizeof sizes / sizeof sizes[0] };

static uint32_t hash(uint32_t x)
{
    uint8_t bytes[4] = {(uint8_t)x, (uint8_t)(x >> 8), (uint8_t)(x >> 16), (uint8_t)(x >> 24)};
    return ref_fnv1a(bytes, 4);
}

/* Published values of the 32-bit FNV-1a: "" and "a", "foobar"; and ours on 4 bytes. */
Test(moe_fallback, the_hash_is_fnv1a)
{
    cr_expect_eq(ref_fnv1a(NULL, 0), 0x811c9dc5u);
    cr_expect_eq(ref_fnv1a((const uint8_t *)"a", 1), 0xe40c292cu);
    cr_expect_eq(ref_fnv1a((const uint8_t *)"foobar", 6), 0xbf9cf968u);
    for (uint64_t x = 0; x < ((uint64_t)1 << 32); x += 65521 * 17)
        cr_assert_eq(lkvi_fnv1a((uint32_t)x), hash((uint32_t)x), "%llu", (unsigned long long)x);
}

/* Every primary of every size, both hashes. */
Test(moe_fallback, hashes_never_give_the_primary)
{
    for (int i = 0; i < NUM_SIZES; i++) {
        uint32_t n = sizes[i];
        int32_t *primary = malloc(n * sizeof *primary), *found = malloc(n * sizeof *found);
        for (uint32_t e = 0; e < n; e++)
            primary[e] = (int32_t)e;
        for (uint32_t policy = LKV_FALLBACK_FNV1A; policy <= LKV_FALLBACK_LCG; policy++) {
            lkv_fallback_args a = {.size = sizeof a,
                                   .policy = policy,
                                   .num_experts = n,
                                   .primary = primary,
                                   .fallback = found,
                                   .num_tokens = n};
            cr_assert_eq(lkv_fallback_choose(&a), LKV_OK, "%s", lkv_last_error());
            cr_expect_eq(a.num_chosen, n == 1 ? 0 : n);
            for (uint32_t e = 0; e < n; e++) {
                uint64_t raw =
                    policy == LKV_FALLBACK_FNV1A ? hash(e) : (uint64_t)e * 16777619u + 1000000007u;
                int32_t want = (int32_t)(raw % n);
                want = n == 1 ? -1 : want == (int32_t)e ? (want + 1) % (int32_t)n : want;
                cr_assert_eq(found[e], want, "size %u policy %u primary %u: %d, want %d", n, policy,
                             e, found[e], want);
            }
        }
        free(primary);
        free(found);
    }
}

struct few {
    int32_t primary[6], found[6];
    uint8_t triggered[6], resident[4];
    int32_t buddy[4];
    lkv_fallback_args args;
};

static void check(struct few *f, const int32_t want[6], uint64_t absent, const char *what)
{
    uint64_t chosen = 0;
    f->args.size = sizeof f->args;
    f->args.num_experts = 4;
    f->args.primary = f->primary;
    f->args.fallback = f->found;
    f->args.num_tokens = 6;
    cr_assert_eq(lkv_fallback_choose(&f->args), LKV_OK, "%s", lkv_last_error());
    cr_expect(same_bytes(what, f->found, want, sizeof f->found));
    for (int i = 0; i < 6; i++)
        chosen += want[i] >= 0;
    cr_expect_eq(f->args.num_chosen, chosen, "%s", what);
    cr_expect_eq(f->args.num_absent, absent, "%s", what);
}

Test(moe_fallback, tables_triggers_and_residency_by_hand)
{
    struct few f = {.primary = {0, 1, 2, 3, -1, 1},
                    .triggered = {1, 1, 1, 1, 1, 0},
                    .resident = {1, 0, 1, 1},
                    .buddy = {1, 2, 2, -1}};
    f.args.policy = LKV_FALLBACK_NONE;
    check(&f, (int32_t[]){-1, -1, -1, -1, -1, -1}, 0, "none");
    f.args.policy = LKV_FALLBACK_BUDDY;
    f.args.buddy = f.buddy;
    check(&f, (int32_t[]){1, 2, -1, -1, -1, 2}, 0, "buddy: 2 names itself, 3 has none");
    f.args.triggered = f.triggered;
    check(&f, (int32_t[]){1, 2, -1, -1, -1, -1}, 0, "triggered");
    f.args.resident = f.resident;
    check(&f, (int32_t[]){-1, 2, -1, -1, -1, -1}, 1, "1 is not loaded");
    f.args.policy = LKV_FALLBACK_SHARED;
    f.args.shared_expert = 3;
    check(&f, (int32_t[]){3, 3, 3, -1, -1, -1}, 0, "shared, also a primary");
    f.args.shared_expert = 4;
    check(&f, (int32_t[]){4, 4, 4, 4, -1, -1}, 0, "shared, beside the routed ones");
    f.args.shared_expert = 1;
    check(&f, (int32_t[]){-1, -1, -1, -1, -1, -1}, 3, "shared, not loaded");
}
