/* AVX2 pieces that the vector codecs share: eight fp32 at a time. Included by *_avx2.c only. */
#ifndef LKVI_QUANT_AVX2_H
#define LKVI_QUANT_AVX2_H

#include <immintrin.h>
#include "quant/scalar.h"

static inline __m256 abs8(__m256 x)
{
    return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF)));
}

static inline float max_lanes(__m256 v)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

/* Largest magnitude of n values, n a multiple of 8. */
static inline float amax_row(const float *x, uint32_t n)
{
    __m256 a = _mm256_setzero_ps(), b = a;
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        a = _mm256_max_ps(a, abs8(_mm256_loadu_ps(x + i)));
        b = _mm256_max_ps(b, abs8(_mm256_loadu_ps(x + i + 8)));
    }
    if (i < n)
        a = _mm256_max_ps(a, abs8(_mm256_loadu_ps(x + i)));
    return max_lanes(_mm256_max_ps(a, b));
}

/* 1 if all n values are finite, n a multiple of 8 */
static inline int all_finite(const float *x, uint32_t n)
{
    const __m256i exponent = _mm256_set1_epi32(0x7F800000);
    __m256i broken = _mm256_setzero_si256();
    for (uint32_t i = 0; i < n; i += 8) {
        __m256i u = _mm256_loadu_si256((const __m256i *)(x + i));
        u = _mm256_and_si256(u, exponent);
        broken = _mm256_or_si256(broken, _mm256_cmpeq_epi32(u, exponent));
    }
    return _mm256_testz_si256(broken, broken);
}

/* lkvi_round_off of 8 magnitudes */
static inline __m256i round_off8(__m256i bits, int shift)
{
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, shift), _mm256_set1_epi32(1));
    __m256i half = _mm256_set1_epi32((1 << (shift - 1)) - 1);
    return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, half), odd), shift);
}

/* A small float's code in each 32-bit lane: magic is the power of two whose ulp is the step below
 * `normal`, its smallest normal number; rebias and largest are in units of the code. */
struct small_float {
    float normal, magic;
    int32_t shift, rebias, largest, sign_shift, sign_bit;
};
#define LKVI_E4M3 ((struct small_float){0x1p-6f, 0x1p14f, 20, (127 - 7) << 3, 0x7E, 24, 0x80})
#define LKVI_E2M1 ((struct small_float){1.0f, 0x1p22f, 22, (127 - 1) << 1, 7, 28, 8})

static inline __m256i small_from_f32(__m256 x, struct small_float f)
{
    __m256i u = _mm256_castps_si256(x);
    __m256 mag = abs8(x);
    __m256i low = _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(mag, _mm256_set1_ps(f.magic))),
                                   _mm256_castps_si256(_mm256_set1_ps(f.magic)));
    __m256i high = _mm256_sub_epi32(round_off8(_mm256_castps_si256(mag), f.shift),
                                    _mm256_set1_epi32(f.rebias));
    high = _mm256_min_epi32(high, _mm256_set1_epi32(f.largest));
    __m256 below = _mm256_cmp_ps(mag, _mm256_set1_ps(f.normal), _CMP_LT_OQ);
    __m256i code = _mm256_blendv_epi8(high, low, _mm256_castps_si256(below));
    __m256i sign =
        _mm256_and_si256(_mm256_srli_epi32(u, f.sign_shift), _mm256_set1_epi32(f.sign_bit));
    return _mm256_or_si256(code, sign);
}

/* 32 lanes of 0..255 (in a, b, c, d) to 32 bytes in order */
static inline __m256i bytes_from_lanes(__m256i a, __m256i b, __m256i c, __m256i d)
{
    __m256i ab = _mm256_packus_epi32(a, b), cd = _mm256_packus_epi32(c, d);
    __m256i bytes = _mm256_packus_epi16(ab, cd); /* in-lane packs interleave the 4-byte pieces */
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* 8 e4m3 codes to fp32, through fp16: the same exponent field four bits wide, off by 2^8 */
static inline __m256 f32_from_e4m3x8(__m128i words)
{
    __m128i sign = _mm_slli_epi16(_mm_and_si128(words, _mm_set1_epi16(0x80)), 8);
    __m128i mag = _mm_and_si128(words, _mm_set1_epi16(0x7F));
    __m128i nan = _mm_cmpeq_epi16(mag, _mm_set1_epi16(0x7F));
    __m128i half = _mm_or_si128(_mm_slli_epi16(mag, 7), _mm_srli_epi16(nan, 1));
    return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(half, sign)), _mm256_set1_ps(0x1p8f));
}

static inline __m256 load_e4m3x8(const uint8_t *codes)
{
    return f32_from_e4m3x8(_mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)codes)));
}

#endif
