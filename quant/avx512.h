/* AVX-512 pieces that the vector codecs share: sixteen fp32 at a time. Included by *_avx512.c only.
 * Every step is the scalar step of the same name. */
#ifndef LKVI_QUANT_AVX512_H
#define LKVI_QUANT_AVX512_H

#include <immintrin.h>
#include "quant/scalar.h"

/* Largest magnitude of n values, n a multiple of 16. */
static inline float amax_row(const float *x, uint32_t n)
{
    __m512 a = _mm512_setzero_ps();
    for (uint32_t i = 0; i < n; i += 16)
        a = _mm512_max_ps(a, _mm512_abs_ps(_mm512_loadu_ps(x + i)));
    return _mm512_reduce_max_ps(a);
}

/* 1 if all n values are finite, n a multiple of 16 */
static inline int all_finite(const float *x, uint32_t n)
{
    __mmask16 broken = 0;
    for (uint32_t i = 0; i < n; i += 16) /* quiet NaN, infinities, signalling NaN */
        broken |= _mm512_fpclass_ps_mask(_mm512_loadu_ps(x + i), 0x01 | 0x08 | 0x10 | 0x80);
    return broken == 0;
}

static inline __m512i round_off16(__m512i bits, unsigned shift)
{
    __m512i odd = _mm512_and_epi32(_mm512_srli_epi32(bits, shift), _mm512_set1_epi32(1));
    __m512i half = _mm512_set1_epi32((1 << (shift - 1)) - 1);
    return _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, half), odd), shift);
}

/* A small float's code in each 32-bit lane; see avx2.h for the fields. */
struct small_float {
    float normal, magic;
    int32_t shift, rebias, largest, sign_shift, sign_bit;
};
#define LKVI_E4M3 ((struct small_float){0x1p-6f, 0x1p14f, 20, (127 - 7) << 3, 0x7E, 24, 0x80})
#define LKVI_E2M1 ((struct small_float){1.0f, 0x1p22f, 22, (127 - 1) << 1, 7, 28, 8})

static inline __m512i small_from_f32(__m512 x, struct small_float f)
{
    __m512 mag = _mm512_abs_ps(x), magic = _mm512_set1_ps(f.magic);
    __m512i low = _mm512_sub_epi32(_mm512_castps_si512(_mm512_add_ps(mag, magic)),
                                   _mm512_castps_si512(magic));
    __m512i high = round_off16(_mm512_castps_si512(mag), (unsigned)f.shift);
    high = _mm512_sub_epi32(high, _mm512_set1_epi32(f.rebias));
    high = _mm512_min_epi32(high, _mm512_set1_epi32(f.largest));
    __mmask16 below = _mm512_cmp_ps_mask(mag, _mm512_set1_ps(f.normal), _CMP_LT_OQ);
    __m512i sign = _mm512_srli_epi32(_mm512_castps_si512(x), (unsigned)f.sign_shift);
    sign = _mm512_and_epi32(sign, _mm512_set1_epi32(f.sign_bit));
    return _mm512_or_epi32(_mm512_mask_blend_epi32(below, high, low), sign);
}

/* 16 e4m3 codes to fp32, through fp16: the same exponent field four bits wide, off by 2^8 */
static inline __m512 load_e4m3x16(const uint8_t *codes)
{
    __m256i words = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)codes));
    __m256i sign = _mm256_slli_epi16(_mm256_and_si256(words, _mm256_set1_epi16(0x80)), 8);
    __m256i mag = _mm256_and_si256(words, _mm256_set1_epi16(0x7F));
    __m256i nan = _mm256_cmpeq_epi16(mag, _mm256_set1_epi16(0x7F));
    __m256i half = _mm256_or_si256(_mm256_slli_epi16(mag, 7), _mm256_srli_epi16(nan, 1));
    return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(half, sign)), _mm512_set1_ps(0x1p8f));
}

/* 32-bit sign-bit pattern for lanes whose index has `bit` set */
static inline __m512 sign_where(int bit)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __mmask16 set = _mm512_test_epi32_mask(lane, _mm512_set1_epi32(bit));
    return _mm512_castsi512_ps(_mm512_maskz_set1_epi32(set, INT32_MIN));
}

#endif
