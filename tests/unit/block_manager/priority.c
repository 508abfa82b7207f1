/* Priorities of cached blocks and their end: who goes first, what a hit changes, when a tick of the
 * caller's clock takes a priority away. The random walk (tests/stress) compares every eviction. */
#include "tests/cases/cases.h"

enum { B = 16 };

static lkv_status admit_at(struct lkvi_manager *m, const int32_t *tokens, uint32_t priority,
                           uint64_t until, lkv_seq *seq)
{
    lkv_prompt prompt = case_prompt(tokens, B);
    lkv_admit_args args = {.size = sizeof args, .priority = priority, .priority_until = until};
    return lkvi_seq_admit(m, &prompt, &args, NULL, seq);
}

/* One cached block of tokens first, first + 1, ... */
static void cache_at(struct lkvi_manager *m, int32_t first, uint32_t priority, uint64_t until)
{
    int32_t tokens[B];
    lkv_seq seq = 0;
    case_tokens(tokens, B, first);
    cr_assert(admit_at(m, tokens, priority, until, &seq) == LKV_OK, "%s", lkv_last_error());
    case_commit(m, seq, B);
    case_eq(case_free(m, seq, 0), LKV_OK);
}

static int cached(struct lkvi_manager *m, int32_t first)
{
    int32_t tokens[B + 1];
    case_tokens(tokens, B + 1, first);
    return case_match(m, tokens, B + 1) == B;
}

Test(priority, lower_goes_first_whenever_it_came)
{
    static const uint32_t priorities[6] = {100, 0, 64, 63, 0, 100};
    static const int order[6] = {1, 4, 3, 2, 0, 5};
    struct lkvi_manager *m = case_pool(8, B);
    for (int i = 0; i < 6; i++)
        cache_at(m, 1000 * (i + 1), priorities[i], 0);
    for (int gone = 0; gone < 6; gone++) {
        case_eq(case_evict(m, 1), 1);
        for (int i = 0; i < 6; i++)
            cr_assert(cached(m, 1000 * (order[i] + 1)) == (i > gone),
                      "after %d evictions block %d is %s", gone + 1, order[i],
                      i > gone ? "gone" : "there");
    }
    lkvi_manager_destroy(m);
}

Test(priority, a_chain_goes_from_its_leaf_then_higher_priorities)
{
    struct lkvi_manager *m = case_pool(8, B);
    int32_t tokens[2 * B + 1];
    case_tokens(tokens, 2 * B + 1, 0);
    case_cache(m, tokens, B);
    lkv_prompt prompt = case_prompt(tokens, 2 * B);
    lkv_seq seq = case_admit_prompt(m, &prompt);
    case_commit(m, seq, 2 * B);
    case_free(m, seq, 0);
    cache_at(m, 5000, 7, 0);
    case_eq(case_evict(m, 1), 1);
    case_eq(case_match(m, tokens, 2 * B + 1), B);
    case_eq(case_evict(m, 1), 1);
    case_eq(case_match(m, tokens, 2 * B + 1), 0);
    case_eq(cached(m, 5000), 1);
    lkvi_manager_destroy(m);
}

Test(priority, ends_with_the_tick)
{
    struct lkvi_manager *m = case_pool(8, B);
    cache_at(m, 1000, 50, 10);
    cache_at(m, 2000, 0, 0);
    cache_at(m, 3000, 50, 11);
    lkvi_manager_tick(m, 9);
    case_check(m);
    case_eq(m->lru.live, 1);
    lkvi_manager_tick(m, 10);
    case_check(m);
    case_eq(m->lru.live, 2); /* 1000 is the newest of priority 0 now */
    lkvi_manager_tick(m, 3); /* the clock does not go back */
    case_eq(m->order.now, 10);
    case_eq(case_evict(m, 1), 1);
    case_eq(cached(m, 2000), 0);
    case_eq(case_evict(m, 1), 1);
    case_eq(cached(m, 1000), 0);
    case_eq(cached(m, 3000), 1);
    cache_at(m, 4000, 50, 10); /* over before it began */
    case_eq(case_evict(m, 1), 1);
    case_eq(cached(m, 4000), 0);
    lkvi_manager_destroy(m);
}

Test(priority, a_hit_raises_and_never_lowers)
{
    static const struct {
        uint32_t first, then, want;
        uint64_t first_until, then_until, want_until;
    } rows[] = {{5, 9, 9, 0, 40, 40},  {9, 5, 9, 40, 0, 40}, {5, 5, 5, 40, 60, 60},
                {5, 5, 5, 60, 40, 60}, {5, 5, 5, 40, 0, 0},  {5, 5, 5, 0, 40, 0},
                {0, 5, 5, 0, 40, 40},  {5, 0, 5, 40, 0, 40}, {9, 5, 5, 20, 40, 40}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct lkvi_manager *m = case_pool(8, B);
        int32_t tokens[B + 1];
        lkv_seq seq = 0;
        cache_at(m, 100, rows[i].first, rows[i].first_until);
        case_tokens(tokens, B + 1, 100);
        lkv_prompt prompt = case_prompt(tokens, B + 1);
        lkv_admit_args args = {
            .size = sizeof args, .priority = rows[i].then, .priority_until = rows[i].then_until};
        lkvi_manager_tick(m, 30);
        case_eq(lkvi_seq_admit(m, &prompt, &args, NULL, &seq), LKV_OK);
        case_free(m, seq, 0);
        uint32_t b = m->blocks[0].first_child;
        cr_assert(m->blocks[b].priority == rows[i].want &&
                      m->order.ranks[b].until == rows[i].want_until,
                  "row %zu: %u until %llu", i, m->blocks[b].priority,
                  (unsigned long long)m->order.ranks[b].until);
        lkvi_manager_destroy(m);
    }
}

static uint64_t next(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

/* Ends at distances from 1 to 2^62, ticks of all lengths: at every tick exactly those that are over
 * have moved. */
Test(priority, the_wheel_forgets_nobody)
{
    enum { N = 200 };
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct lkvi_manager *m = case_pool(N, B);
        uint64_t state = seed * 0x9e3779b97f4a7c15u, now = next(&state) >> (8 + seed), until[N];
        lkvi_manager_tick(m, now);
        for (int i = 0; i < N; i++) {
            until[i] = now + 1 + (next(&state) >> (2 + next(&state) % 62));
            cache_at(m, 100 * i, 1 + (uint32_t)i % 100, until[i]);
        }
        for (int step = 0; step < 150; step++) {
            uint64_t over = 0;
            now += next(&state) >> (2 + next(&state) % 62);
            lkvi_manager_tick(m, now);
            case_check(m);
            for (int i = 0; i < N; i++)
                over += until[i] <= m->order.now;
            cr_assert(m->lru.live == over, "seed %llu step %d: %u have ended, want %llu",
                      (unsigned long long)seed, step, m->lru.live, (unsigned long long)over);
        }
        lkvi_manager_destroy(m);
    }
}

Test(priority, beyond_100_is_refused)
{
    struct lkvi_manager *m = case_pool(8, B);
    int32_t tokens[B];
    lkv_seq seq = 0;
    case_tokens(tokens, B, 0);
    case_eq(admit_at(m, tokens, 101, 0, &seq), LKV_E_INVALID);
    case_check(m);
    case_eq(case_stats(m).blocks_free, 8);
    lkvi_manager_destroy(m);
}
