/* The gate against a twin that keeps every value of the window. */
#include <criterion/criterion.h>
#include <float.h>
#include <stdlib.h>
#include "latentkv/moe_cache.h"
#include "tests/reference/ref_moe.h"
#include "tests/support/compare.h"
#include "tests/support/rng.h"

enum { MAX_ROWS = 64, MAX_HEADS = 24 };

static lkv_gate *open_gate(lkv_gate_desc d)
{
    lkv_gate *gate = NULL;
    d.size = sizeof d;
    cr_assert_eq(lkv_gate_create(&d, &gate), LKV_OK, "%s", lkv_last_error());
    return gate;
}

static lkv_gate_state state_of(lkv_gate *gate)
{
    lkv_gate_state s = {.size = sizeof s};
    cr_assert_eq(lkv_gate_save(gate, &s), LKV_OK, "%s", lkv_last_error());
    return s;
}

/* One step over n values; the answers in triggered. */
static uint64_t step(lkv_gate *gate, float *values, int64_t n, uint8_t *triggered)
{
    lkv_tensor t = {values, LKV_DTYPE_F32, 1, {n}, {1}};
    lkv_gate_args a = {.size = sizeof a, .entropy = &t, .triggered = triggered};
    cr_assert_eq(lkv_gate_step(gate, &a), LKV_OK, "%s", lkv_last_error());
    return a.num_triggered;
}

/* Random steps of random length, heads of both kinds; the twin compares what the gate reduced. */
Test(moe_gate, equals_the_twin)
{
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct rng r = rng_seed(seed);
        uint32_t heads = 1 + (uint32_t)rng_below(&r, MAX_HEADS), max = seed & 1;
        double hysteresis = seed % 3 ? 0 : 0.3;
        struct ref_gate twin = {.threshold = 2.1, .stddevs = 0.5, .hysteresis = hysteresis};
        lkv_gate *gate =
            open_gate((lkv_gate_desc){.reduce = max, .window_steps = 50, .hysteresis = hysteresis});
        float values[MAX_ROWS * (MAX_HEADS + 3)], reduced[MAX_ROWS];
        uint8_t found[MAX_ROWS] = {0}, want[MAX_ROWS] = {0};
        double wide[MAX_ROWS];
        twin.window = 50;
        for (int i = 0; i < 220; i++) {
            int64_t n = (int64_t)rng_below(&r, MAX_ROWS);
            lkv_tensor t = {values, LKV_DTYPE_F32, 2, {n, heads}, {heads + 3, 1}};
            lkv_gate_args a = {
                .size = sizeof a, .entropy = &t, .triggered = found, .reduced = reduced};
            for (int64_t k = 0; k < n * (heads + 3); k++)
                values[k] = (float)(1.5 + 0.01 * i + rng_normal(&r));
            cr_assert_eq(lkv_gate_step(gate, &a), LKV_OK, "%s", lkv_last_error());
            for (int64_t k = 0; k < n; k++) {
                double sum = 0, most = -INFINITY;
                for (uint32_t h = 0; h < heads; h++) {
                    sum += values[k * (heads + 3) + h];
                    most = fmax(most, values[k * (heads + 3) + h]);
                }
                wide[k] = reduced[k];
                cr_assert(fabs(reduced[k] - (max ? most : sum / heads)) <= 1e-6 * heads,
                          "seed %llu step %d row %lld", (unsigned long long)seed, i, (long long)k);
            }
            ref_gate_step(&twin, wide, (uint64_t)n, want);
            cr_assert(same_bytes("triggered", found, want, (uint64_t)n), "seed %llu step %d",
                      (unsigned long long)seed, i);
            cr_assert(fabs(state_of(gate).threshold - twin.threshold) <= 1e-12 * 4,
                      "seed %llu step %d: threshold %.17g, want %.17g", (unsigned long long)seed, i,
                      state_of(gate).threshold, twin.threshold);
            twin.threshold = state_of(gate).threshold;
        }
        cr_expect_eq(state_of(gate).windows, 4);
        free(twin.values);
        lkv_gate_release(gate);
    }
}

/* By hand: 1000 steps of {1, 3}: mean 2, deviation 1, next threshold 2.5; the 1000th step still
 * answers by 2.1, and 2.1 itself does not trigger. */
Test(moe_gate, window_of_a_thousand_steps_by_hand)
{
    lkv_gate *gate = open_gate((lkv_gate_desc){0});
    float values[2] = {1, 3}, edge[2] = {2.4f, 2.6f};
    uint8_t triggered[2] = {0, 0};
    for (int i = 0; i < 1000; i++) {
        cr_assert_eq(step(gate, values, 2, triggered), 1, "step %d", i);
        cr_assert(i == 999 || state_of(gate).threshold == 2.1, "step %d", i);
    }
    cr_expect_eq(state_of(gate).threshold, 2.5, "%.17g", state_of(gate).threshold);
    cr_expect_eq(step(gate, edge, 2, triggered), 1);
    cr_expect(triggered[0] == 0 && triggered[1] == 1);
    edge[0] = 2.5f;
    step(gate, edge, 1, triggered);
    cr_expect_eq(triggered[0], 0, "equal to the threshold is not above it");
    lkv_gate_release(gate);
}

/* Equal values, however many and however placed: deviation exactly 0, no NaN. */
Test(moe_gate, zero_variance_is_safe)
{
    static const float levels[] = {0, 0.1f, 2.3f, 1e6f, 1e-30f};
    for (int i = 0; i < 5; i++) {
        lkv_gate *gate = open_gate((lkv_gate_desc){.window_steps = 100});
        float values[7];
        uint8_t triggered[7];
        for (int k = 0; k < 7; k++)
            values[k] = levels[i];
        for (int k = 0; k < 100; k++)
            step(gate, values, k % 8, triggered);
        cr_expect(fabs(state_of(gate).threshold - levels[i]) <= 1e-13 * levels[i], "%.17g",
                  state_of(gate).threshold);
        lkv_gate_release(gate);
    }
    lkv_gate *gate = open_gate((lkv_gate_desc){.window_steps = 3});
    float none[1];
    uint8_t triggered[1];
    for (int k = 0; k < 6; k++)
        step(gate, none, 0, triggered);
    cr_expect_eq(state_of(gate).threshold, 2.1, "a window without a value leaves it");
    lkv_gate_release(gate);
}

Test(moe_gate, freeze_keeps_the_threshold)
{
    lkv_gate *gate = open_gate((lkv_gate_desc){.window_steps = 2, .frozen = 1});
    float values[2] = {5, 7};
    uint8_t triggered[2];
    for (int i = 0; i < 4; i++)
        step(gate, values, 2, triggered);
    cr_expect_eq(state_of(gate).threshold, 2.1);
    cr_expect_eq(lkv_gate_freeze(gate, 0), LKV_OK);
    step(gate, values, 2, triggered);
    step(gate, values, 2, triggered);
    cr_expect_eq(state_of(gate).threshold, 6.5);
    cr_expect_eq(state_of(gate).windows, 1);
    lkv_gate_release(gate);
}

/* A gate that is saved and loaded in the middle of a window goes on bit for bit. */
Test(moe_gate, state_goes_on)
{
    lkv_gate_desc d = {.window_steps = 40, .hysteresis = 0.2};
    lkv_gate *whole = open_gate(d), *parts = open_gate(d);
    uint8_t a[MAX_ROWS] = {0}, b[MAX_ROWS] = {0};
    struct rng r = rng_seed(31);
    for (int i = 0; i < 300; i++) {
        float values[MAX_ROWS];
        int64_t n = (int64_t)rng_below(&r, MAX_ROWS);
        rng_fill_normal(&r, values, (uint64_t)n, 2);
        step(whole, values, n, a);
        step(parts, values, n, b);
        cr_assert(same_bytes("triggered", b, a, (uint64_t)n), "step %d", i);
        if (i % 13 == 0) {
            lkv_gate_state s = state_of(parts);
            lkv_gate_release(parts);
            parts = open_gate(d);
            cr_assert_eq(lkv_gate_load(parts, &s), LKV_OK, "%s", lkv_last_error());
        }
    }
    lkv_gate_state x = state_of(whole), y = state_of(parts);
    cr_expect(same_bytes("state", &y, &x, sizeof x));
    lkv_gate_release(whole);
    lkv_gate_release(parts);
}

/* Above 2.1 it starts; it stays until 1.6. */
Test(moe_gate, hysteresis_by_hand)
{
    lkv_gate *gate = open_gate((lkv_gate_desc){.hysteresis = 0.5});
    float values[] = {2.0f, 2.2f, 1.7f, 1.5f, 1.7f};
    static const uint8_t want[] = {0, 1, 1, 0, 0};
    uint8_t triggered[1] = {0};
    for (int i = 0; i < 5; i++) {
        step(gate, &values[i], 1, triggered);
        cr_expect_eq(triggered[0], want[i], "value %d", i);
    }
    lkv_gate_release(gate);
}

/* Padding rows and entropies that are not finite touch nothing. */
Test(moe_gate, left_out_rows)
{
    lkv_gate *gate = open_gate((lkv_gate_desc){.window_steps = 2, .reduce = LKV_GATE_MAX});
    float values[] = {3, 3, 99, 99, NAN, 3, 3, NAN, INFINITY, 0};
    uint8_t active[] = {1, 0, 1, 1, 1}, triggered[5] = {7, 7, 7, 7, 7};
    float reduced[5];
    lkv_tensor t = {values, LKV_DTYPE_F32, 2, {5, 2}, {2, 1}};
    lkv_gate_args a = {.size = sizeof a,
                       .entropy = &t,
                       .active = active,
                       .triggered = triggered,
                       .reduced = reduced};
    static const uint8_t want[] = {1, 0, 0, 0, 0};
    cr_assert_eq(lkv_gate_step(gate, &a), LKV_OK, "%s", lkv_last_error());
    cr_expect(same_bytes("triggered", triggered, want, 5));
    cr_expect(a.num_triggered == 1 && a.num_skipped == 3);
    cr_assert_eq(lkv_gate_step(gate, &a), LKV_OK);
    cr_expect_eq(state_of(gate).threshold, 3.0);
    cr_expect_eq(state_of(gate).total, 2);
    lkv_gate_release(gate);
}
