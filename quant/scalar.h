/* Inside quant/ only: the scalar codecs and row operations, which are the specification, and the
 * pieces that the vector files share with them. */
#ifndef LKVI_QUANT_SCALAR_H
#define LKVI_QUANT_SCALAR_H

#include <float.h>
#include "quant/codec.h"
#include "quant/float_bits.h"

enum { LKVI_FP8_GROUP = 128, LKVI_NVFP4_GROUP = 16 };

extern const struct lkvi_codec lkvi_codec_bf16_scalar, lkvi_codec_fp8_scalar,
    lkvi_codec_int8_scalar, lkvi_codec_nvfp4_scalar;
extern const struct lkvi_row_ops lkvi_row_ops_scalar;

#if defined(__x86_64__)
extern const struct lkvi_codec lkvi_codec_bf16_avx2, lkvi_codec_fp8_avx2, lkvi_codec_int8_avx2,
    lkvi_codec_nvfp4_avx2;
extern const struct lkvi_row_ops lkvi_row_ops_avx2;
extern const struct lkvi_codec lkvi_codec_bf16_avx512, lkvi_codec_fp8_avx512,
    lkvi_codec_int8_avx512, lkvi_codec_nvfp4_avx512;
extern const struct lkvi_row_ops lkvi_row_ops_avx512;
#endif

/* The non-finite rule over groups of `group` values; the last group may be short. */
void lkvi_repair(float *row, uint32_t n, uint32_t group, struct lkvi_repair *repair);

/* RMSNorm's sum has the shape of one GPU warp: 256 running sums, 8 to a lane; each lane adds its 8
 * by neighbours, then the 32 lanes by halves. This is the part after the running sums; sum is
 * overwritten. */
enum { LKVI_WARP_LANES = 32, LKVI_WARP_FOLD = 256 };
float lkvi_warp_sum(float *sum);

/* INT8: scale and zero of a row from its extremes; both the row's min and max are finite. */
struct lkvi_int8_scale {
    float scale, zero;
};
struct lkvi_int8_scale lkvi_int8_choose(float min, float max, uint32_t symmetric);
/* scale and zero into the scales section, padding included */
void lkvi_int8_put_scale(const struct lkvi_record *record, struct lkvi_int8_scale s,
                         uint8_t *bytes);

/* NVFP4: outer scale of a token whose largest magnitude is amax; 0: the whole token is zero. */
static inline float lkvi_nvfp4_outer(const struct lkvi_record *record, float fixed_outer,
                                     float amax)
{
    if (record->encode_flags & LKV_ENCODE_NVFP4_FIXED_OUTER)
        return fixed_outer;
    float outer = amax / 2688.0f;
    return outer < FLT_MIN ? 0.0f : outer;
}

/* 1 / sqrt(n) for n = 2^k, rounded to fp32 */
static inline float lkvi_hadamard_scale(uint32_t n)
{
    uint32_t k = 0;
    while ((1u << k) < n)
        k++;
    uint32_t exponent = (127 - k / 2) << 23;
    return (k % 2 ? 0x1.6a09e6p-1f : 1.0f) * lkvi_float(exponent);
}

#endif
