/* INT8 records: one fp32 scale and zero a token.
 * The idea: x' = scale * (q - zero); asymmetric rows spread min..max over -128..127, symmetric and
 * nearly constant rows use zero = 0 and -127..127. */
#include <math.h>
#include "quant/scalar.h"

struct lkvi_int8_scale lkvi_int8_choose(float min, float max, uint32_t symmetric)
{
    float amax = fabsf(min) > fabsf(max) ? fabsf(min) : fabsf(max);
    struct lkvi_int8_scale s = {(max - min) / 255.0f, 0.0f};
    if (!lkvi_is_finite(s.scale))
        s.scale = max / 255.0f - min / 255.0f;
    if (symmetric || s.scale < FLT_MIN || s.scale < 0x1p-16f * amax) {
        s.scale = amax / 127.0f > FLT_MIN ? amax / 127.0f : FLT_MIN;
        return s;
    }
    s.zero = -128.0f - min / s.scale;
    return s;
}

void lkvi_int8_put_scale(const struct lkvi_record *record, struct lkvi_int8_scale s, uint8_t *bytes)
{
    float section[4] = {s.scale, s.zero, 0.0f, 0.0f};
    memcpy(bytes + record->scales_offset, section, sizeof section);
}

static void encode(const struct lkvi_record *record, float fixed_outer, float *row, uint8_t *bytes,
                   struct lkvi_repair *repair)
{
    (void)fixed_outer;
    uint32_t latent = record->latent_dim;
    uint8_t *codes = bytes + record->codes_offset;
    lkvi_repair(row, latent, latent, repair);
    float min = row[0], max = row[0];
    for (uint32_t i = 1; i < latent; i++) {
        min = row[i] < min ? row[i] : min;
        max = row[i] > max ? row[i] : max;
    }
    struct lkvi_int8_scale s =
        lkvi_int8_choose(min, max, record->encode_flags & LKV_ENCODE_INT8_SYMMETRIC);
    lkvi_int8_put_scale(record, s, bytes);
    for (uint32_t i = 0; i < latent; i++) {
        float q = row[i] / s.scale + s.zero;
        q = (q + 0x1.8p23f) - 0x1.8p23f; /* nearest even: |q| < 2^22 by the choice of scale */
        codes[i] = (uint8_t)(int8_t)(q < -128.0f ? -128.0f : q > 127.0f ? 127.0f : q);
    }
}

static void decode(const struct lkvi_record *record, const uint8_t *bytes, float *row)
{
    const uint8_t *codes = bytes + record->codes_offset;
    float s[2];
    memcpy(s, bytes + record->scales_offset, sizeof s);
    for (uint32_t i = 0; i < record->latent_dim; i++) {
        float x = s[0] * ((float)(int8_t)codes[i] - s[1]);
        x = x > FLT_MAX ? FLT_MAX : x; /* a row that reaches FLT_MAX may come back an ulp above */
        row[i] = x < -FLT_MAX ? -FLT_MAX : x;
    }
}

const struct lkvi_codec lkvi_codec_int8_scalar = {encode, decode};
