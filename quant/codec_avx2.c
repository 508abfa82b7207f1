/* BF16, FP8 and INT8 records with AVX2: the scalar codecs' bytes, eight values at a time. The idea:
 * every vector step is the scalar step of the same name, so nothing here has rules of its own. */
#if defined(__x86_64__)
#include "quant/avx2.h"

static void bf16_encode(const struct lkvi_record *record, float fixed_outer, float *row,
                        uint8_t *bytes, struct lkvi_repair *repair)
{
    (void)fixed_outer;
    lkvi_row_ops_avx2.repair(row, record->latent_dim, record->latent_dim, repair);
    lkvi_row_ops_avx2.rope_encode(row, record->latent_dim, bytes + record->codes_offset);
}

static void bf16_decode(const struct lkvi_record *record, const uint8_t *bytes, float *row)
{
    lkvi_row_ops_avx2.rope_decode(bytes + record->codes_offset, record->latent_dim, row);
}

const struct lkvi_codec lkvi_codec_bf16_avx2 = {bf16_encode, bf16_decode};

/* ---- FP8: a group is 128, the last one any multiple of 16 */

static void fp8_encode_16(const float *x, __m256 scale, uint8_t *codes)
{
    __m256i a = small_from_f32(_mm256_div_ps(_mm256_loadu_ps(x), scale), LKVI_E4M3);
    __m256i b = small_from_f32(_mm256_div_ps(_mm256_loadu_ps(x + 8), scale), LKVI_E4M3);
    __m256i zero = _mm256_setzero_si256(), all = bytes_from_lanes(a, b, zero, zero);
    _mm_storeu_si128((__m128i *)codes, _mm256_castsi256_si128(all));
}

static void fp8_encode(const struct lkvi_record *record, float fixed_outer, float *row,
                       uint8_t *bytes, struct lkvi_repair *repair)
{
    (void)fixed_outer;
    uint32_t latent = record->latent_dim;
    uint8_t *codes = bytes + record->codes_offset, *scales = bytes + record->scales_offset;
    lkvi_row_ops_avx2.repair(row, latent, LKVI_FP8_GROUP, repair);
    memset(scales, 0, record->scales_bytes);
    for (uint32_t begin = 0; begin < latent; begin += LKVI_FP8_GROUP) {
        uint32_t n = latent - begin < LKVI_FP8_GROUP ? latent - begin : LKVI_FP8_GROUP;
        float s = amax_row(row + begin, n) / 448.0f;
        s = s < FLT_MIN ? 0.0f : s;
        memcpy(scales + begin / LKVI_FP8_GROUP * sizeof s, &s, sizeof s);
        if (s == 0.0f)
            memset(codes + begin, 0, n);
        for (uint32_t i = begin; i < begin + n && s != 0.0f; i += 16)
            fp8_encode_16(row + i, _mm256_set1_ps(s), codes + i);
    }
}

static void fp8_decode(const struct lkvi_record *record, const uint8_t *bytes, float *row)
{
    const uint8_t *codes = bytes + record->codes_offset, *scales = bytes + record->scales_offset;
    uint32_t latent = record->latent_dim;
    for (uint32_t begin = 0; begin < latent; begin += LKVI_FP8_GROUP) {
        uint32_t end = latent - begin < LKVI_FP8_GROUP ? latent : begin + LKVI_FP8_GROUP;
        float one;
        memcpy(&one, scales + begin / LKVI_FP8_GROUP * sizeof one, sizeof one);
        __m256 s = _mm256_set1_ps(one);
        for (uint32_t i = begin; i < end; i += 16) {
            _mm256_storeu_ps(row + i, _mm256_mul_ps(load_e4m3x8(codes + i), s));
            _mm256_storeu_ps(row + i + 8, _mm256_mul_ps(load_e4m3x8(codes + i + 8), s));
        }
    }
}

const struct lkvi_codec lkvi_codec_fp8_avx2 = {fp8_encode, fp8_decode};

/* ---- INT8 */

static struct lkvi_int8_scale int8_scale(const struct lkvi_record *record, const float *row)
{
    __m256 low = _mm256_loadu_ps(row), high = low;
    for (uint32_t i = 8; i < record->latent_dim; i += 8) {
        __m256 x = _mm256_loadu_ps(row + i);
        low = _mm256_min_ps(low, x);
        high = _mm256_max_ps(high, x);
    }
    const __m256 minus = _mm256_set1_ps(-0.0f);
    float min = -max_lanes(_mm256_xor_ps(low, minus));
    return lkvi_int8_choose(min, max_lanes(high), record->encode_flags & LKV_ENCODE_INT8_SYMMETRIC);
}

static __m256i int8_quantise(const float *x, __m256 scale, __m256 zero)
{
    __m256 q = _mm256_add_ps(_mm256_div_ps(_mm256_loadu_ps(x), scale), zero);
    return _mm256_cvtps_epi32(q); /* nearest even; the packs that follow clamp */
}

static void int8_encode(const struct lkvi_record *record, float fixed_outer, float *row,
                        uint8_t *bytes, struct lkvi_repair *repair)
{
    (void)fixed_outer;
    uint32_t latent = record->latent_dim;
    uint8_t *codes = bytes + record->codes_offset;
    lkvi_row_ops_avx2.repair(row, latent, latent, repair);
    struct lkvi_int8_scale s = int8_scale(record, row);
    lkvi_int8_put_scale(record, s, bytes);
    const __m256 scale = _mm256_set1_ps(s.scale), zero = _mm256_set1_ps(s.zero);
    for (uint32_t i = 0; i < latent; i += 16) {
        __m256i a = int8_quantise(row + i, scale, zero),
                b = int8_quantise(row + i + 8, scale, zero);
        __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xD8);
        __m128i codes16 =
            _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
        _mm_storeu_si128((__m128i *)(codes + i), codes16);
    }
}

static void int8_decode(const struct lkvi_record *record, const uint8_t *bytes, float *row)
{
    const uint8_t *codes = bytes + record->codes_offset;
    float s[2];
    memcpy(s, bytes + record->scales_offset, sizeof s);
    const __m256 scale = _mm256_set1_ps(s[0]), zero = _mm256_set1_ps(s[1]);
    const __m256 top = _mm256_set1_ps(FLT_MAX), bottom = _mm256_set1_ps(-FLT_MAX);
    for (uint32_t i = 0; i < record->latent_dim; i += 8) {
        __m256i q = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(codes + i)));
        __m256 x = _mm256_mul_ps(scale, _mm256_sub_ps(_mm256_cvtepi32_ps(q), zero));
        x = _mm256_max_ps(bottom, _mm256_min_ps(top, x)); /* this order lets NaN through */
        _mm256_storeu_ps(row + i, x);
    }
}

const struct lkvi_codec lkvi_codec_int8_avx2 = {int8_encode, int8_decode};
#endif
