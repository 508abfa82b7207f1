/* NVFP4 records: e2m1 codes, one e4m3 scale a group of 16, one fp32 outer scale a token.
 * The idea: s = float(sb) * outer is computed from the rounded group scale, so encoder and decoder
 * agree on it; x' = e2m1 value * s. Four-over-six also tries to map amax_g to 4 instead of 6. */
#include <math.h>
#include "quant/scalar.h"

struct group {
    uint8_t scale;                   /* e4m3 */
    uint8_t codes[LKVI_NVFP4_GROUP]; /* e2m1, one a byte */
};

static float largest(const float *x, uint32_t n)
{
    float amax = 0.0f;
    for (uint32_t i = 0; i < n; i++)
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    return amax;
}

static struct group encode_group(const float *x, float top, float outer)
{
    struct group g = {0};
    g.scale = lkvi_e4m3_from_f32(largest(x, LKVI_NVFP4_GROUP) / top / outer);
    float s = lkvi_f32_from_e4m3(g.scale) * outer;
    for (int i = 0; i < LKVI_NVFP4_GROUP && g.scale != 0; i++)
        g.codes[i] = lkvi_e2m1_from_f32(x[i] / s);
    return g;
}

/* Sum of squares by halves of neighbours: (0+1)+(2+3), ... */
static float squared_error(const float *x, const struct group *g, float outer)
{
    float e[LKVI_NVFP4_GROUP], s = lkvi_f32_from_e4m3(g->scale) * outer;
    for (int i = 0; i < LKVI_NVFP4_GROUP; i++) {
        float d = x[i] - lkvi_f32_from_e2m1(g->codes[i]) * s;
        e[i] = d * d;
    }
    for (int n = LKVI_NVFP4_GROUP / 2; n >= 1; n /= 2)
        for (int i = 0; i < n; i++)
            e[i] = e[2 * i] + e[2 * i + 1];
    return e[0];
}

static struct group choose_group(const struct lkvi_record *record, const float *x, float outer)
{
    struct group six = encode_group(x, 6.0f, outer);
    if (!(record->encode_flags & LKV_ENCODE_NVFP4_FOUR_OVER_SIX))
        return six;
    struct group four = encode_group(x, 4.0f, outer);
    return squared_error(x, &four, outer) < squared_error(x, &six, outer) ? four : six;
}

static void encode(const struct lkvi_record *record, float fixed_outer, float *row, uint8_t *bytes,
                   struct lkvi_repair *repair)
{
    uint32_t latent = record->latent_dim;
    uint8_t *codes = bytes + record->codes_offset, *scales = bytes + record->scales_offset;
    lkvi_repair(row, latent, LKVI_NVFP4_GROUP, repair);
    memset(codes, 0, record->codes_bytes);
    memset(scales, 0, record->scales_bytes);
    float outer = lkvi_nvfp4_outer(record, fixed_outer, largest(row, latent));
    memcpy(scales + record->scales_bytes - 12, &outer, sizeof outer);
    if (outer == 0.0f)
        return;
    for (uint32_t begin = 0; begin < latent; begin += LKVI_NVFP4_GROUP) {
        struct group g = choose_group(record, row + begin, outer);
        scales[begin / LKVI_NVFP4_GROUP] = g.scale;
        for (int i = 0; i < LKVI_NVFP4_GROUP; i += 2)
            codes[(begin + i) / 2] = (uint8_t)(g.codes[i] | g.codes[i + 1] << 4);
    }
}

static void decode(const struct lkvi_record *record, const uint8_t *bytes, float *row)
{
    const uint8_t *codes = bytes + record->codes_offset, *scales = bytes + record->scales_offset;
    float outer;
    memcpy(&outer, scales + record->scales_bytes - 12, sizeof outer);
    for (uint32_t i = 0; i < record->latent_dim; i += 2) {
        float s = lkvi_f32_from_e4m3(scales[i / LKVI_NVFP4_GROUP]) * outer;
        row[i] = lkvi_f32_from_e2m1(codes[i / 2] & 15) * s;
        row[i + 1] = lkvi_f32_from_e2m1(codes[i / 2] >> 4) * s;
    }
}

const struct lkvi_codec lkvi_codec_nvfp4_scalar = {encode, decode};
