/* The small floats: every code, and every float32 near every rounding boundary, against the oracle
 * that looks at all codes. */
#include <criterion/criterion.h>
#include "quant/float_bits.h"
#include "tests/reference/ref_quant.h"
#include "tests/support/compare.h"

enum { ULPS = 64 }; /* floats tried on each side of a boundary */

static float step(float x, int ulps)
{
    uint32_t u = float_bits(x) + (uint32_t)ulps;
    memcpy(&x, &u, sizeof x);
    return x;
}

Test(floats, every_e4m3_code)
{
    for (int c = 0; c < 256; c++) {
        float x = lkvi_f32_from_e4m3((uint8_t)c), want = (float)ref_e4m3((uint8_t)c);
        cr_assert(isnan(want) ? isnan(x) : float_bits(x) == float_bits(want),
                  "e4m3 0x%02X is %g, want %g", c, x, want);
        if (!isnan(want))
            cr_assert_eq(lkvi_e4m3_from_f32(x), c, "e4m3 0x%02X does not come back", c);
    }
}

Test(floats, every_e2m1_code)
{
    static const float values[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    for (int c = 0; c < 16; c++) {
        float x = lkvi_f32_from_e2m1((uint8_t)c), want = c & 8 ? -values[c & 7] : values[c & 7];
        cr_assert_eq(float_bits(x), float_bits(want), "e2m1 %d is %g, want %g", c, x, want);
        cr_assert_eq(lkvi_e2m1_from_f32(x), c, "e2m1 %d does not come back", c);
    }
}

static void near_e4m3(float boundary)
{
    for (int d = -ULPS; d <= ULPS; d++)
        for (int sign = 0; sign < 2; sign++) {
            float x = boundary == 0 ? step(0.0f, d + ULPS) : step(boundary, d);
            x = sign ? -x : x;
            cr_assert_eq(lkvi_e4m3_from_f32(x), ref_to_e4m3(x), "e4m3(%a) is 0x%02X, want 0x%02X",
                         x, lkvi_e4m3_from_f32(x), ref_to_e4m3(x));
        }
}

static void near_e2m1(float boundary)
{
    for (int d = -ULPS; d <= ULPS; d++)
        for (int sign = 0; sign < 2; sign++) {
            float x = boundary == 0 ? step(0.0f, d + ULPS) : step(boundary, d);
            x = sign ? -x : x;
            cr_assert_eq(lkvi_e2m1_from_f32(x), ref_to_e2m1(x), "e2m1(%a) is %u, want %u", x,
                         lkvi_e2m1_from_f32(x), ref_to_e2m1(x));
        }
}

Test(floats, near_every_e4m3_boundary)
{
    for (int c = 0; c < 0x7E; c++) {
        double low = ref_e4m3((uint8_t)c), high = ref_e4m3((uint8_t)(c + 1));
        near_e4m3((float)low);
        near_e4m3((float)((low + high) / 2));
    }
    near_e4m3(448.0f);
    near_e4m3(464.0f); /* where rounding would pass the largest code */
    near_e4m3(0x1p127f);
    cr_assert_eq(lkvi_e4m3_from_f32(INFINITY), 0x7E);
    cr_assert_eq(lkvi_e4m3_from_f32(-INFINITY), 0xFE);
}

Test(floats, near_every_e2m1_boundary)
{
    static const float boundaries[] = {0.0f, 0.25f, 0.5f, 0.75f, 1.0f, 1.25f, 1.5f, 1.75f,
                                       2.0f, 2.5f,  3.0f, 3.5f,  4.0f, 5.0f,  6.0f, 7.0f};
    for (size_t i = 0; i < sizeof boundaries / sizeof *boundaries; i++)
        near_e2m1(boundaries[i]);
    cr_assert_eq(lkvi_e2m1_from_f32(INFINITY), 7);
}

/* The page's table of ties, as numbers. */
Test(floats, e2m1_ties)
{
    static const float ties[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    static const float to[7] = {0.0f, 1.0f, 1.0f, 2.0f, 2.0f, 4.0f, 4.0f};
    for (int i = 0; i < 7; i++)
        cr_assert_eq(lkvi_f32_from_e2m1(lkvi_e2m1_from_f32(ties[i])), to[i], "tie %g", ties[i]);
}

Test(floats, near_every_bf16_boundary)
{
    for (uint32_t c = 0; c < 0x7F80; c++)
        for (int d = -3; d <= 3; d++)
            for (uint32_t half = 0; half < 2; half++) {
                uint32_t u = (c << 16) + half * 0x8000 + (uint32_t)d;
                if ((u & 0x7F800000u) == 0x7F800000u)
                    continue; /* below zero, or at infinity */
                float x = lkvi_float(u);
                cr_assert_eq(lkvi_bf16_saturate(x), ref_to_bf16(x), "bf16(%a)", x);
                cr_assert_eq(lkvi_bf16_saturate(-x), ref_to_bf16(-x), "bf16(%a)", -x);
            }
    cr_assert_eq(lkvi_bf16_saturate(0x1.fffffep127f), 0x7F7F);
    cr_assert_eq(lkvi_bf16_from_f32(0x1.fffffep127f), 0x7F80);
    cr_assert_eq(lkvi_bf16_from_f32(INFINITY), 0x7F80);
    cr_assert((lkvi_bf16_from_f32(NAN) & 0x7FFF) > 0x7F80);
}

static double f16_value(uint32_t mag)
{
    int e = (int)(mag >> 10), m = (int)(mag & 0x3FF);
    return e == 0 ? ldexp(m, -24) : ldexp(1024 + m, e - 25);
}

/* Between neighbours c and c + 1 (0x7C00 stands for 65536: the step that overflows). */
Test(floats, near_every_f16_boundary)
{
    for (uint32_t c = 0; c < 0x7C00; c++) {
        double low = f16_value(c), high = f16_value(c + 1), middle = (low + high) / 2;
        cr_assert_eq((double)lkvi_f32_from_f16((uint16_t)c), low, "f16 0x%04X", c);
        cr_assert_eq(lkvi_f16_from_f32((float)low), c, "f16 0x%04X does not come back", c);
        for (int d = -3; d <= 3; d++) {
            float x = step((float)middle, d);
            uint32_t want = x < middle || (x == middle && c % 2 == 0) ? c : c + 1;
            cr_assert_eq(lkvi_f16_from_f32(x), want, "f16(%a)", x);
            cr_assert_eq(lkvi_f16_from_f32(-x), want | 0x8000, "f16(%a)", -x);
        }
    }
    cr_assert_eq(lkvi_f16_from_f32(INFINITY), 0x7C00);
    cr_assert(isinf(lkvi_f32_from_f16(0x7C00)) && isnan(lkvi_f32_from_f16(0x7E00)));
    cr_assert((lkvi_f16_from_f32(NAN) & 0x7FFF) > 0x7C00);
}
