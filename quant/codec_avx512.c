/* All four record formats with AVX-512: the scalar codecs' bytes, sixteen values at a time. */
#if defined(__x86_64__)
#include "quant/avx512.h"

static void bf16_encode(const struct lkvi_record *record, float fixed_outer, float *row,
                        uint8_t *bytes, struct lkvi_repair *repair)
{
    (void)fixed_outer;
    lkvi_row_ops_avx512.repair(row, record->latent_dim, record->latent_dim, repair);
    lkvi_row_ops_avx512.rope_encode(row, record->latent_dim, bytes + record->codes_offset);
}

static void bf16_decode(const struct lkvi_record *record, const uint8_t *bytes, float *row)
{
    lkvi_row_ops_avx512.rope_decode(bytes + record->codes_offset, record->latent_dim, row);
}

const struct lkvi_codec lkvi_codec_bf16_avx512 = {bf16_encode, bf16_decode};

/* ---- FP8 */

static void fp8_encode(const struct lkvi_record *record, float fixed_outer, float *row,
                       uint8_t *bytes, struct lkvi_repair *repair)
{
    (void)fixed_outer;
    uint32_t latent = record->latent_dim;
    uint8_t *codes = bytes + record->codes_offset, *scales = bytes + record->scales_offset;
    lkvi_row_ops_avx512.repair(row, latent, LKVI_FP8_GROUP, repair);
    memset(scales, 0, record->scales_bytes);
    for (uint32_t begin = 0; begin < latent; begin += LKVI_FP8_GROUP) {
        uint32_t n = latent - begin < LKVI_FP8_GROUP ? latent - begin : LKVI_FP8_GROUP;
        float s = amax_row(row + begin, n) / 448.0f;
        s = s < FLT_MIN ? 0.0f : s;
        memcpy(scales + begin / LKVI_FP8_GROUP * sizeof s, &s, sizeof s);
        if (s == 0.0f)
            memset(codes + begin, 0, n);
        for (uint32_t i = begin; i < begin + n && s != 0.0f; i += 16) {
            __m512 x = _mm512_div_ps(_mm512_loadu_ps(row + i), _mm512_set1_ps(s));
            __m512i code = small_from_f32(x, LKVI_E4M3);
            _mm_storeu_si128((__m128i *)(codes + i), _mm512_cvtepi32_epi8(code));
        }
    }
}

static void fp8_decode(const struct lkvi_record *record, const uint8_t *bytes, float *row)
{
    const uint8_t *codes = bytes + record->codes_offset, *scales = bytes + record->scales_offset;
    for (uint32_t i = 0; i < record->latent_dim; i += 16) {
        float s;
        memcpy(&s, scales + i / LKVI_FP8_GROUP * sizeof s, sizeof s);
        _mm512_storeu_ps(row + i, _mm512_mul_ps(load_e4m3x16(codes + i), _mm512_set1_ps(s)));
    }
}

const struct lkvi_codec lkvi_codec_fp8_avx512 = {fp8_encode, fp8_decode};

/* ---- INT8 */

static struct lkvi_int8_scale int8_scale(const struct lkvi_record *record, const float *row)
{
    __m512 low = _mm512_loadu_ps(row), high = low;
    for (uint32_t i = 16; i < record->latent_dim; i += 16) {
        __m512 x = _mm512_loadu_ps(row + i);
        low = _mm512_min_ps(low, x);
        high = _mm512_max_ps(high, x);
    }
    return lkvi_int8_choose(_mm512_reduce_min_ps(low), _mm512_reduce_max_ps(high),
                            record->encode_flags & LKV_ENCODE_INT8_SYMMETRIC);
}

static void int8_encode(const struct lkvi_record *record, float fixed_outer, float *row,
                        uint8_t *bytes, struct lkvi_repair *repair)
{
    (void)fixed_outer;
    uint32_t latent = record->latent_dim;
    uint8_t *codes = bytes + record->codes_offset;
    lkvi_row_ops_avx512.repair(row, latent, latent, repair);
    struct lkvi_int8_scale s = int8_scale(record, row);
    lkvi_int8_put_scale(record, s, bytes);
    const __m512 scale = _mm512_set1_ps(s.scale), zero = _mm512_set1_ps(s.zero);
    for (uint32_t i = 0; i < latent; i += 16) {
        __m512 q = _mm512_add_ps(_mm512_div_ps(_mm512_loadu_ps(row + i), scale), zero);
        __m128i code = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(q)); /* nearest even, clamps */
        _mm_storeu_si128((__m128i *)(codes + i), code);
    }
}

static void int8_decode(const struct lkvi_record *record, const uint8_t *bytes, float *row)
{
    const uint8_t *codes = bytes + record->codes_offset;
    float s[2];
    memcpy(s, bytes + record->scales_offset, sizeof s);
    const __m512 scale = _mm512_set1_ps(s[0]), zero = _mm512_set1_ps(s[1]);
    const __m512 top = _mm512_set1_ps(FLT_MAX), bottom = _mm512_set1_ps(-FLT_MAX);
    for (uint32_t i = 0; i < record->latent_dim; i += 16) {
        __m512i q = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(codes + i)));
        __m512 x = _mm512_mul_ps(scale, _mm512_sub_ps(_mm512_cvtepi32_ps(q), zero));
        x = _mm512_max_ps(bottom, _mm512_min_ps(top, x)); /* this order lets NaN through */
        _mm512_storeu_ps(row + i, x);
    }
}

const struct lkvi_codec lkvi_codec_int8_avx512 = {int8_encode, int8_decode};

/* ---- NVFP4 */

struct group {
    __m512i codes; /* one e2m1 code a lane */
    __m512 values; /* what a decoder makes of them */
    uint32_t scale;
};

static __m512 f32_from_e2m1(__m512i code)
{
    const __m512 table = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f,
                                        -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
    return _mm512_permutexvar_ps(code, table); /* takes the low 4 bits */
}

static struct group encode_group(__m512 x, float amax, float top, float outer)
{
    struct group g = {_mm512_setzero_si512(), _mm512_setzero_ps(), 0};
    g.scale = lkvi_e4m3_from_f32(amax / top / outer);
    if (g.scale == 0)
        return g;
    __m512 s = _mm512_set1_ps(lkvi_f32_from_e4m3((uint8_t)g.scale) * outer);
    g.codes = small_from_f32(_mm512_div_ps(x, s), LKVI_E2M1);
    g.values = _mm512_mul_ps(f32_from_e2m1(g.codes), s);
    return g;
}

static float squared_error(__m512 x, const struct group *g)
{
    __m512 d = _mm512_sub_ps(x, g->values), e = _mm512_mul_ps(d, d);
    __m256 low = _mm512_castps512_ps256(e), high = _mm512_extractf32x8_ps(e, 1);
    __m256 h = _mm256_hadd_ps(low, high);
    h = _mm256_hadd_ps(h, h);
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

static struct group choose_group(const struct lkvi_record *record, const float *row, float outer)
{
    __m512 x = _mm512_loadu_ps(row);
    float amax = _mm512_reduce_max_ps(_mm512_abs_ps(x));
    struct group six = encode_group(x, amax, 6.0f, outer);
    if (!(record->encode_flags & LKV_ENCODE_NVFP4_FOUR_OVER_SIX))
        return six;
    struct group four = encode_group(x, amax, 4.0f, outer);
    return squared_error(x, &four) < squared_error(x, &six) ? four : six;
}

static void nvfp4_encode(const struct lkvi_record *record, float fixed_outer, float *row,
                         uint8_t *bytes, struct lkvi_repair *repair)
{
    uint32_t latent = record->latent_dim;
    uint8_t *codes = bytes + record->codes_offset, *scales = bytes + record->scales_offset;
    lkvi_row_ops_avx512.repair(row, latent, LKVI_NVFP4_GROUP, repair);
    memset(scales, 0, record->scales_bytes);
    float outer = lkvi_nvfp4_outer(record, fixed_outer, amax_row(row, latent));
    memcpy(scales + record->scales_bytes - 12, &outer, sizeof outer);
    memset(codes + latent / 2, 0, record->codes_bytes - latent / 2);
    if (outer == 0.0f) {
        memset(codes, 0, latent / 2);
        return;
    }
    for (uint32_t begin = 0; begin < latent; begin += LKVI_NVFP4_GROUP) {
        struct group g = choose_group(record, row + begin, outer);
        scales[begin / LKVI_NVFP4_GROUP] = (uint8_t)g.scale;
        __m128i nibbles = _mm512_cvtepi32_epi8(g.codes);
        __m128i words = _mm_maddubs_epi16(nibbles, _mm_set1_epi16(0x1001)); /* low + 16 * high */
        _mm_storel_epi64((__m128i *)(codes + begin / 2), _mm_packus_epi16(words, words));
    }
}

/* 16 codes from 8 bytes: lane i shifts its word right by 4 (i mod 8) and looks its code up. */
static __m512 load_e2m1x16(const uint8_t *codes)
{
    const __m512i word = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m512i shift =
        _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    __m512i both = _mm512_castsi128_si512(_mm_loadl_epi64((const __m128i *)codes));
    return f32_from_e2m1(_mm512_srlv_epi32(_mm512_permutexvar_epi32(word, both), shift));
}

static void nvfp4_decode(const struct lkvi_record *record, const uint8_t *bytes, float *row)
{
    const uint8_t *codes = bytes + record->codes_offset, *packed = bytes + record->scales_offset;
    float outer, scales[LKVI_MAX_LATENT / LKVI_NVFP4_GROUP];
    uint32_t groups = record->latent_dim / LKVI_NVFP4_GROUP;
    memcpy(&outer, packed + record->scales_bytes - 12, sizeof outer);
    for (uint32_t g = 0; g < groups; g += 16) /* the section is padded to 16 scales */
        _mm512_storeu_ps(scales + g,
                         _mm512_mul_ps(load_e4m3x16(packed + g), _mm512_set1_ps(outer)));
    for (uint32_t g = 0; g < groups; g++) {
        __m512 x = _mm512_mul_ps(load_e2m1x16(codes + 8 * g), _mm512_set1_ps(scales[g]));
        _mm512_storeu_ps(row + LKVI_NVFP4_GROUP * g, x);
    }
}

const struct lkvi_codec lkvi_codec_nvfp4_avx512 = {nvfp4_encode, nvfp4_decode};
#endif
