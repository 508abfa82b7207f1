/* Presets against the numbers that the models publish, and the tables against float64. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include "latentkv/latentkv.h"

enum { MAX_R = 64, NUM_POSITIONS = 7 };

Test(model, presets_are_the_published_numbers)
{
    static const struct {
        const char *name;
        uint32_t layers, heads, latent, rope, nope, v;
        double theta, factor, scale; /* scale: from the configuration, by another program */
    } rows[] = {
        {"v2-lite", 27, 16, 512, 64, 128, 128, 1e4, 40, 0.11472138679293},
        {"v3", 61, 128, 512, 64, 128, 128, 1e4, 40, 0.13523377886088},
        {"r1", 61, 128, 512, 64, 128, 128, 1e4, 40, 0.13523377886088},
        {"k2", 61, 64, 512, 64, 128, 128, 5e4, 32, 0.13086079996295},
        {"glm-4.7-flash", 47, 20, 512, 64, 192, 256, 1e6, 0, 0.0625},
        {"minicpm3", 62, 40, 256, 32, 64, 64, 1e4, 0, 0.10206207261597},
        {"tiny-mla", 4, 8, 512, 64, 128, 128, 1e4, 0, 0.07216878364870},
    };
    for (uint32_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        lkv_model_desc m = {.size = sizeof m};
        cr_assert_str_eq(lkv_model_preset_name(i), rows[i].name);
        cr_assert_eq(lkv_model_preset(rows[i].name, &m), LKV_OK);
        cr_expect(m.num_layers == rows[i].layers && m.num_heads == rows[i].heads &&
                      m.latent_dim == rows[i].latent && m.rope_dim == rows[i].rope &&
                      m.nope_dim == rows[i].nope && m.v_dim == rows[i].v,
                  "%s", rows[i].name);
        cr_expect(m.rope_theta == rows[i].theta && m.yarn_factor == rows[i].factor, "%s",
                  rows[i].name);
        cr_expect_float_eq(m.softmax_scale, rows[i].scale, 1e-12, "%s: %.14f", rows[i].name,
                           m.softmax_scale);
    }
    cr_assert_null(lkv_model_preset_name(sizeof rows / sizeof rows[0]));
}

/* Angle per position of pair i, in long double, yarn by its definition: pairs that turn more than
 * beta_fast times over the original length keep their frequency, those below beta_slow are divided
 * by the factor, a straight line between. The bounds of V2 and V3 are pairs 10 and 23, of K2 19
 * and 20 (both betas 1: 19.16 rounded down and up). */
static long double frequency(const lkv_model_desc *m, uint32_t i, long double low, long double high)
{
    long double f = powl((long double)m->rope_theta, -2.0L * i / m->rope_dim);
    if (m->rope_factors)
        f /= (long double)m->rope_factors[i];
    if (m->yarn_factor == 0)
        return f;
    if (i <= low)
        return f;
    if (i >= high)
        return f / (long double)m->yarn_factor;
    long double share = (i - low) / (high - low);
    return f * (1 - share) + f / (long double)m->yarn_factor * share;
}

static void turn_units(const lkv_model_desc *m, const int32_t *positions, uint64_t num_positions,
                       float out[][MAX_R])
{
    static float in[NUM_POSITIONS][MAX_R];
    lkv_context_desc desc = {
        .size = sizeof desc,
        .device = LKV_DEVICE_CPU,
    };
    lkv_context *ctx;
    lkv_rope *rope;
    uint32_t r = m->rope_dim;
    for (int t = 0; t < NUM_POSITIONS; t++)
        for (uint32_t i = 0; i < r; i++) /* (1, 0) in each pair */
            in[t][i] = m->rope_style == LKV_ROPE_HALF ? i < r / 2 : i % 2 == 0;
    lkv_tensor x = {in, LKV_DTYPE_F32, 2, {NUM_POSITIONS, r}, {MAX_R, 1}};
    lkv_tensor y = {out, LKV_DTYPE_F32, 2, {NUM_POSITIONS, r}, {MAX_R, 1}};
    cr_assert_eq(lkv_context_create(&desc, &ctx), LKV_OK);
    cr_assert_eq(lkv_rope_create(ctx, m, num_positions, &rope), LKV_OK, "%s", lkv_last_error());
    cr_assert_eq(lkv_rope_apply(rope, &x, &y, positions, NULL), LKV_OK, "%s", lkv_last_error());
    lkv_rope_release(rope);
    lkv_context_release(ctx);
}

Test(model, tables_are_right_to_an_ulp_at_position_a_million)
{
    static const int32_t all[NUM_POSITIONS] = {0, 1, 63, 4096, 131071, 999999, 1000000};
    int32_t positions[NUM_POSITIONS];
    static const struct {
        const char *name;
        double low, high;
        int32_t limit; /* positions of the table: building a million takes seconds */
    } rows[] = {{"v3", 10, 23, 1000001}, {"minicpm3", 0, 0, 1000001},    {"v2-lite", 10, 23, 20000},
                {"k2", 19, 20, 20000},   {"glm-4.7-flash", 0, 0, 20000}, {"tiny-mla", 0, 0, 20000}};
    static float out[NUM_POSITIONS][MAX_R];
    for (size_t row = 0; row < sizeof rows / sizeof rows[0]; row++) {
        lkv_model_desc m = {.size = sizeof m};
        cr_assert_eq(lkv_model_preset(rows[row].name, &m), LKV_OK);
        for (int t = 0; t < NUM_POSITIONS; t++)
            positions[t] = all[t] < rows[row].limit ? all[t] : rows[row].limit - 1;
        turn_units(&m, positions, (uint64_t)rows[row].limit, out);
        uint32_t pairs = m.rope_dim / 2, half = m.rope_style == LKV_ROPE_HALF;
        for (int t = 0; t < NUM_POSITIONS; t++)
            for (uint32_t i = 0; i < pairs; i++) {
                long double angle = positions[t] * frequency(&m, i, rows[row].low, rows[row].high);
                float c = out[t][half ? i : 2 * i], s = out[t][half ? i + pairs : 2 * i + 1];
                cr_expect(fabsl(c - cosl(angle)) < 1.2e-7L && fabsl(s - sinl(angle)) < 1.2e-7L,
                          "%s position %d pair %u: %.9g %.9g, want %.9Lg %.9Lg", rows[row].name,
                          positions[t], i, c, s, cosl(angle), sinl(angle));
            }
    }
}

/* mscale and mscale_all_dim apart: cos and sin carry the quotient. */
Test(model, amplitude)
{
    static const int32_t positions[NUM_POSITIONS] = {0};
    static float out[NUM_POSITIONS][MAX_R];
    lkv_model_desc m = {.size = sizeof m};
    cr_assert_eq(lkv_model_preset("v3", &m), LKV_OK);
    m.yarn_mscale = 0.707;
    turn_units(&m, positions, 1, out);
    double want = (0.1 * 0.707 * log(40) + 1) / (0.1 * log(40) + 1);
    cr_assert_float_eq(out[0][0], want, 1e-7, "%.9g, want %.9g", out[0][0], want);
}
