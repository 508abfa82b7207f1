/* FP8 records: e4m3 codes with one fp32 scale a group of 128 (the last group may be short).
 * The idea: s = amax / 448, code = e4m3(x / s); x' = e4m3 value * s. */
#include <math.h>
#include "quant/scalar.h"

static float group_scale(const float *x, uint32_t n)
{
    float amax = 0.0f;
    for (uint32_t i = 0; i < n; i++)
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    float s = amax / 448.0f;
    return s < FLT_MIN ? 0.0f : s;
}

static void encode(const struct lkvi_record *record, float fixed_outer, float *row, uint8_t *bytes,
                   struct lkvi_repair *repair)
{
    (void)fixed_outer;
    uint32_t latent = record->latent_dim;
    uint8_t *codes = bytes + record->codes_offset, *scales = bytes + record->scales_offset;
    lkvi_repair(row, latent, LKVI_FP8_GROUP, repair);
    memset(scales, 0, record->scales_bytes);
    for (uint32_t begin = 0; begin < latent; begin += LKVI_FP8_GROUP) {
        uint32_t n = latent - begin < LKVI_FP8_GROUP ? latent - begin : LKVI_FP8_GROUP;
        float s = group_scale(row + begin, n);
        memcpy(scales + begin / LKVI_FP8_GROUP * sizeof s, &s, sizeof s);
        for (uint32_t i = begin; i < begin + n; i++)
            codes[i] = s == 0.0f ? 0 : lkvi_e4m3_from_f32(row[i] / s);
    }
}

static void decode(const struct lkvi_record *record, const uint8_t *bytes, float *row)
{
    const uint8_t *codes = bytes + record->codes_offset, *scales = bytes + record->scales_offset;
    for (uint32_t i = 0; i < record->latent_dim; i++) {
        float s;
        memcpy(&s, scales + i / LKVI_FP8_GROUP * sizeof s, sizeof s);
        row[i] = lkvi_f32_from_e4m3(codes[i]) * s;
    }
}

const struct lkvi_codec lkvi_codec_fp8_scalar = {encode, decode};
