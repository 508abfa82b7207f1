/* NVFP4 records with AVX2: the scalar codec's bytes, one group of 16 as two vectors.
 *
 * Decoding: a 16-byte load brings 32 codes. Both lanes get a copy whose bytes are doubled and
 * ordered so that two table look-ups (the two upper bytes of the fp32 value; the lower ones are
 * zero) and two levels of unpacking leave eight neighbouring values in each vector. */
#if defined(__x86_64__)
#include "quant/avx2.h"

enum { MAX_GROUPS = LKVI_MAX_LATENT / LKVI_NVFP4_GROUP };

/* Scales of all groups of a token for one choice of the largest code (6 or 4). */
struct scales {
    uint8_t codes[MAX_GROUPS]; /* e4m3 */
    float values[MAX_GROUPS];  /* value * outer; 0 where the code is 0 */
};

struct group {
    __m256i codes[2]; /* one e2m1 code a 32-bit lane */
    __m256 values[2]; /* what a decoder makes of them */
};

static __m256 f32_from_e2m1(__m256i code)
{
    const __m256 table = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    __m256 sign =
        _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(8)), 28));
    return _mm256_or_ps(_mm256_permutevar8x32_ps(table, code), sign); /* takes the low 3 bits */
}

/* Eight groups at a time: their scales need two divisions each, as dear as those of 16 values. */
static void choose_scales(const float *amax, uint32_t groups, float top, float outer,
                          struct scales *out)
{
    const __m256 outer8 = _mm256_set1_ps(outer), top8 = _mm256_set1_ps(top);
    for (uint32_t g = 0; g < groups; g += 8) {
        __m256 ratio = _mm256_div_ps(_mm256_div_ps(_mm256_loadu_ps(amax + g), top8), outer8);
        __m256i code = small_from_f32(ratio, LKVI_E4M3), zero = _mm256_setzero_si256();
        __m128i bytes = _mm256_castsi256_si128(bytes_from_lanes(code, zero, zero, zero));
        _mm_storel_epi64((__m128i *)(out->codes + g), bytes);
        __m256 value = f32_from_e4m3x8(_mm_cvtepu8_epi16(bytes));
        _mm256_storeu_ps(out->values + g, _mm256_mul_ps(value, outer8));
    }
}

/* scale 0: codes 0, whatever the division gives */
static struct group encode_group(const __m256 *x, float scale)
{
    struct group g;
    __m256 s = _mm256_set1_ps(scale);
    __m256i used = _mm256_castps_si256(_mm256_cmp_ps(s, _mm256_setzero_ps(), _CMP_NEQ_OQ));
    for (int v = 0; v < 2; v++) {
        __m256i code = small_from_f32(_mm256_div_ps(x[v], s), LKVI_E2M1);
        g.codes[v] = _mm256_and_si256(code, used);
        g.values[v] = _mm256_mul_ps(f32_from_e2m1(g.codes[v]), s);
    }
    return g;
}

/* Neighbours first: two horizontal adds leave sums of four, in the order of the scalar tree. */
static float squared_error(const __m256 *x, const struct group *g)
{
    __m256 d0 = _mm256_sub_ps(x[0], g->values[0]), d1 = _mm256_sub_ps(x[1], g->values[1]);
    __m256 e = _mm256_hadd_ps(_mm256_mul_ps(d0, d0), _mm256_mul_ps(d1, d1));
    e = _mm256_hadd_ps(e, e);
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

/* 16 codes to 8 bytes: even codes low, odd codes high */
static void put_codes(const struct group *g, uint8_t *codes)
{
    __m256i zero = _mm256_setzero_si256();
    __m128i bytes = _mm256_castsi256_si128(bytes_from_lanes(g->codes[0], g->codes[1], zero, zero));
    __m128i words = _mm_maddubs_epi16(bytes, _mm_set1_epi16(0x1001)); /* low + 16 * high */
    _mm_storel_epi64((__m128i *)codes, _mm_packus_epi16(words, words));
}

static void encode_six(const float *row, const struct scales *six, uint32_t groups, uint8_t *codes,
                       uint8_t *scales)
{
    memcpy(scales, six->codes, groups);
    for (uint32_t g = 0; g < groups; g++) {
        const float *at = row + LKVI_NVFP4_GROUP * g;
        __m256 x[2] = {_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8)};
        struct group coded = encode_group(x, six->values[g]);
        put_codes(&coded, codes + 8 * g);
    }
}

static void encode_four_over_six(const float *row, const struct scales *six,
                                 const struct scales *four, uint32_t groups, uint8_t *bytes[2])
{
    for (uint32_t g = 0; g < groups; g++) {
        const float *at = row + LKVI_NVFP4_GROUP * g;
        __m256 x[2] = {_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8)};
        struct group by6 = encode_group(x, six->values[g]), by4 = encode_group(x, four->values[g]);
        int keep_four = squared_error(x, &by4) < squared_error(x, &by6);
        bytes[1][g] = keep_four ? four->codes[g] : six->codes[g];
        put_codes(keep_four ? &by4 : &by6, bytes[0] + 8 * g);
    }
}

static void encode_groups(const struct lkvi_record *record, const float *row, const float *amax,
                          float outer, uint8_t *bytes)
{
    uint32_t groups = record->latent_dim / LKVI_NVFP4_GROUP;
    uint8_t *sections[2] = {bytes + record->codes_offset, bytes + record->scales_offset};
    struct scales six, four;
    choose_scales(amax, groups, 6.0f, outer, &six);
    if (!(record->encode_flags & LKV_ENCODE_NVFP4_FOUR_OVER_SIX)) {
        encode_six(row, &six, groups, sections[0], sections[1]);
        return;
    }
    choose_scales(amax, groups, 4.0f, outer, &four);
    encode_four_over_six(row, &six, &four, groups, sections);
}

static void encode(const struct lkvi_record *record, float fixed_outer, float *row, uint8_t *bytes,
                   struct lkvi_repair *repair)
{
    uint32_t latent = record->latent_dim, groups = latent / LKVI_NVFP4_GROUP;
    uint8_t *codes = bytes + record->codes_offset, *scales = bytes + record->scales_offset;
    float amax[MAX_GROUPS], top = 0.0f;
    lkvi_row_ops_avx2.repair(row, latent, LKVI_NVFP4_GROUP, repair);
    memset(amax, 0, (groups + 7) / 8 * 8 * sizeof *amax); /* scales are chosen by eights */
    for (uint32_t g = 0; g < groups; g++) {
        amax[g] = amax_row(row + LKVI_NVFP4_GROUP * g, LKVI_NVFP4_GROUP);
        top = amax[g] > top ? amax[g] : top;
    }
    float outer = lkvi_nvfp4_outer(record, fixed_outer, top);
    memset(scales, 0, record->scales_bytes);
    memcpy(scales + record->scales_bytes - 12, &outer, sizeof outer);
    memset(codes + latent / 2, 0, record->codes_bytes - latent / 2);
    if (outer == 0.0f)
        memset(codes, 0, latent / 2);
    else
        encode_groups(record, row, amax, outer, bytes);
}

/* 32 codes from 16 bytes, times the scales of their two groups */
static void decode_32(const uint8_t *codes, const float *scales, float *row)
{
    const __m256i doubled = _mm256_setr_epi8(0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13, 2,
                                             2, 3, 3, 6, 6, 7, 7, 10, 10, 11, 11, 14, 14, 15, 15);
    const __m256i upper = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        0, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40, -128, -65, -65, -65, -64, -64, -64, -64));
    const __m256i lower = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 0, -128, -64, 0, 0x40, -128, -64, 0, 0, -128, -64, 0, 0x40, -128, -64));
    __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)codes));
    both = _mm256_shuffle_epi8(both, doubled); /* each 16-bit word: one byte twice */
    __m256i even = _mm256_and_si256(both, _mm256_set1_epi16(0x000F));
    __m256i odd = _mm256_and_si256(_mm256_srli_epi16(both, 4), _mm256_set1_epi16(0x0F00));
    __m256i nibbles = _mm256_or_si256(even, odd), zero = _mm256_setzero_si256();
    __m256i high = _mm256_shuffle_epi8(upper, nibbles), low = _mm256_shuffle_epi8(lower, nibbles);
    __m256i first = _mm256_unpacklo_epi8(low, high), second = _mm256_unpackhi_epi8(low, high);
    __m256 s0 = _mm256_broadcast_ss(scales), s1 = _mm256_broadcast_ss(scales + 1);
    __m256 a = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, first));
    __m256 b = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, first));
    __m256 c = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, second));
    __m256 d = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, second));
    _mm256_storeu_ps(row, _mm256_mul_ps(a, s0));
    _mm256_storeu_ps(row + 8, _mm256_mul_ps(b, s0));
    _mm256_storeu_ps(row + 16, _mm256_mul_ps(c, s1));
    _mm256_storeu_ps(row + 24, _mm256_mul_ps(d, s1));
}

static void decode_group(const uint8_t *codes, float scale, float *row)
{
    for (int i = 0; i < LKVI_NVFP4_GROUP; i += 2) {
        row[i] = lkvi_f32_from_e2m1(codes[i / 2] & 15) * scale;
        row[i + 1] = lkvi_f32_from_e2m1(codes[i / 2] >> 4) * scale;
    }
}

static void decode(const struct lkvi_record *record, const uint8_t *bytes, float *row)
{
    const uint8_t *codes = bytes + record->codes_offset, *packed = bytes + record->scales_offset;
    float outer, scales[MAX_GROUPS];
    uint32_t latent = record->latent_dim, groups = latent / LKVI_NVFP4_GROUP;
    memcpy(&outer, packed + record->scales_bytes - 12, sizeof outer);
    for (uint32_t g = 0; g < groups; g += 8) /* the section's padding covers the last eight */
        _mm256_storeu_ps(scales + g, _mm256_mul_ps(load_e4m3x8(packed + g), _mm256_set1_ps(outer)));
    uint32_t i = 0;
    for (; i + 32 <= latent; i += 32)
        decode_32(codes + i / 2, scales + i / LKVI_NVFP4_GROUP, row + i);
    if (i < latent)
        decode_group(codes + i / 2, scales[i / LKVI_NVFP4_GROUP], row + i);
}

const struct lkvi_codec lkvi_codec_nvfp4_avx2 = {encode, decode};
#endif
