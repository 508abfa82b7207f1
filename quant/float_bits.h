/* Exact conversions between fp32 and the small floats: bf16, fp16, e4m3 (fn: no infinity), e2m1.
 * To a small float: nearest, ties to even, the sign of zero kept; e4m3 and e2m1 saturate, the
 * *_from_f32 of bf16 and fp16 overflow to infinity as IEEE does, lkvi_bf16_saturate stays finite.
 *
 * One idea for all of them: in the normal range rounding is an integer add on the fp32 bits; below
 * it, adding a power of two whose ulp is the target's step makes the fp32 adder round for us. */
#ifndef LKVI_QUANT_FLOAT_BITS_H
#define LKVI_QUANT_FLOAT_BITS_H

#include <stdint.h>
#include <string.h>

static inline uint32_t lkvi_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float lkvi_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline int lkvi_is_finite(float x)
{
    return (lkvi_bits(x) & 0x7F800000u) != 0x7F800000u;
}

/* Drops `shift` low bits of the bits of a non-negative number, to nearest even; the carry may walk
 * into the exponent, which is what rounding up to the next power of two is. */
static inline uint32_t lkvi_round_off(uint32_t bits, uint32_t shift)
{
    uint32_t half = (1u << (shift - 1)) - 1;
    return (bits + half + ((bits >> shift) & 1)) >> shift;
}

static inline float lkvi_f32_from_bf16(uint16_t h)
{
    return lkvi_float((uint32_t)h << 16);
}

static inline uint16_t lkvi_bf16_from_f32(float x)
{
    uint32_t u = lkvi_bits(x);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)((u >> 16) | 0x40); /* NaN: quiet, payload cut */
    return (uint16_t)lkvi_round_off(u, 16);  /* the sign rides along: it is above the carry */
}

/* x finite; what would round to infinity becomes the largest finite bf16. */
static inline uint16_t lkvi_bf16_saturate(float x)
{
    uint16_t h = lkvi_bf16_from_f32(x);
    return (uint16_t)((h & 0x7FFF) == 0x7F80 ? h - 1 : h);
}

static inline float lkvi_f32_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, mag = h & 0x7FFF;
    if (mag >= 0x7C00) /* infinity and NaN; a signalling NaN turns quiet */
        return lkvi_float(sign | 0x7F800000u | (mag & 0x3FF) << 13 |
                          (mag > 0x7C00 ? 0x400000u : 0));
    if (mag < 0x400) /* subnormal: mag * 2^-24 */
        return lkvi_float(sign | lkvi_bits((float)mag * 0x1p-24f));
    return lkvi_float(sign | ((mag << 13) + ((127u - 15u) << 23)));
}

static inline uint16_t lkvi_f16_from_f32(float x)
{
    uint32_t u = lkvi_bits(x), sign = u >> 16 & 0x8000, mag = u & 0x7FFFFFFFu;
    if (mag > 0x7F800000u)
        return (uint16_t)(sign | 0x7E00 | (mag >> 13 & 0x3FF));
    if (mag < 0x38800000u) /* below 2^-14 the step is 2^-24, the ulp of 0.5 */
        return (uint16_t)(sign | (lkvi_bits(lkvi_float(mag) + 0.5f) - 0x3F000000u));
    uint32_t code = lkvi_round_off(mag, 13) - ((127u - 15u) << 10);
    return (uint16_t)(sign | (code < 0x7C00 ? code : 0x7C00));
}

static inline float lkvi_f32_from_e4m3(uint8_t code)
{
    uint32_t sign = (uint32_t)(code & 0x80) << 24, mag = code & 0x7F;
    if (mag == 0x7F)
        return lkvi_float(sign | 0x7FC00000u);
    if (mag < 8) /* subnormal: mag * 2^-9 */
        return lkvi_float(sign | lkvi_bits((float)mag * 0x1p-9f));
    return lkvi_float(sign | ((mag << 20) + ((127u - 7u) << 23)));
}

/* Not for NaN. Infinity saturates too. */
static inline uint8_t lkvi_e4m3_from_f32(float x)
{
    uint32_t u = lkvi_bits(x), sign = u >> 24 & 0x80, mag = u & 0x7FFFFFFFu, code;
    if (mag < 0x3C800000u) /* below 2^-6 the step is 2^-9, the ulp of 2^14 */
        code = lkvi_bits(lkvi_float(mag) + 0x1p14f) - 0x46800000u;
    else
        code = lkvi_round_off(mag, 20) - ((127u - 7u) << 3);
    return (uint8_t)(sign | (code < 0x7E ? code : 0x7E));
}

/* code 0..15: sign in bit 3. */
static inline float lkvi_f32_from_e2m1(uint8_t code)
{
    uint32_t sign = (uint32_t)(code & 8) << 28, mag = code & 7;
    uint32_t bits = mag == 0 ? 0 : mag == 1 ? 0x3F000000u : (mag << 22) + ((127u - 1u) << 23);
    return lkvi_float(sign | bits);
}

/* Not for NaN. Infinity saturates too. */
static inline uint8_t lkvi_e2m1_from_f32(float x)
{
    uint32_t u = lkvi_bits(x), sign = u >> 28 & 8, mag = u & 0x7FFFFFFFu, code;
    if (mag < 0x3F800000u) /* below 1 the step is 0.5, the ulp of 2^22 */
        code = lkvi_bits(lkvi_float(mag) + 0x1p22f) - 0x4A800000u;
    else
        code = lkvi_round_off(mag, 22) - ((127u - 1u) << 1);
    return (uint8_t)(sign | (code < 7 ? code : 7));
}

#endif
