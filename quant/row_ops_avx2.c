/* Row operations with AVX2: the bits of quant/row_ops.c, eight values at a time. */
#if defined(__x86_64__)
#include <math.h>
#include "quant/avx2.h"

static __m256 f32_from_bf16x8(const void *from)
{
    __m128i h = _mm_loadu_si128(from);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

static void load(const void *from, uint32_t dtype, uint32_t n, float *row)
{
    const uint16_t *half = from;
    uint32_t whole = dtype == LKV_DTYPE_F32 ? 0 : n & ~7u;
    if (dtype == LKV_DTYPE_F16)
        for (uint32_t i = 0; i < whole; i += 8) {
            __m128i h = _mm_loadu_si128((const __m128i *)(half + i));
            _mm256_storeu_ps(row + i, _mm256_cvtph_ps(h));
        }
    else
        for (uint32_t i = 0; i < whole; i += 8)
            _mm256_storeu_ps(row + i, f32_from_bf16x8(half + i));
    if (whole < n)
        lkvi_row_ops_scalar.load(half + whole, dtype, n - whole, row + whole);
}

/* 16 values to bf16; saturate: what would overflow becomes the largest finite bf16, else NaN is
 * kept */
static __m256i bf16_from_f32x16(__m256 a, __m256 b, int saturate)
{
    const __m256i infinity = _mm256_set1_epi32(0x7F80), magnitude = _mm256_set1_epi32(0x7FFF);
    __m256i codes[2];
    for (int v = 0; v < 2; v++) {
        __m256 x = v ? b : a;
        __m256i u = _mm256_castps_si256(x), code = round_off8(u, 16);
        if (saturate) { /* the compare is -1 where a step down is wanted */
            __m256i over = _mm256_cmpeq_epi32(_mm256_and_si256(code, magnitude), infinity);
            codes[v] = _mm256_add_epi32(code, over);
        } else {
            __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x40));
            __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
            codes[v] = _mm256_blendv_epi8(code, quiet, nan);
        }
    }
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(codes[0], codes[1]), 0xD8);
}

static void store(const float *row, uint32_t n, uint32_t dtype, void *to)
{
    uint16_t *half = to;
    uint32_t whole = dtype == LKV_DTYPE_F32 ? 0 : n & ~15u;
    for (uint32_t i = 0; i < whole; i += 16) {
        __m256 a = _mm256_loadu_ps(row + i), b = _mm256_loadu_ps(row + i + 8);
        if (dtype == LKV_DTYPE_F16) {
            _mm_storeu_si128((__m128i *)(half + i), _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
            _mm_storeu_si128((__m128i *)(half + i + 8),
                             _mm256_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT));
        } else {
            _mm256_storeu_si256((__m256i *)(half + i), bf16_from_f32x16(a, b, 0));
        }
    }
    if (whole < n)
        lkvi_row_ops_scalar.store(row + whole, n - whole, dtype, half + whole);
}

static void repair(float *row, uint32_t n, uint32_t group, struct lkvi_repair *out)
{
    if (n % 8 != 0 || !all_finite(row, n))
        lkvi_repair(row, n, group, out);
}

/* Each of eight vectors (eight running sums) to its own sum by neighbours. */
static __m256 sum_each(const __m256 *p)
{
    __m256 a = _mm256_hadd_ps(p[0], p[1]), b = _mm256_hadd_ps(p[2], p[3]);
    __m256 c = _mm256_hadd_ps(p[4], p[5]), d = _mm256_hadd_ps(p[6], p[7]);
    __m256 e = _mm256_hadd_ps(a, b), f = _mm256_hadd_ps(c, d); /* low lane: first fours */
    return _mm256_add_ps(_mm256_permute2f128_ps(e, f, 0x20), _mm256_permute2f128_ps(e, f, 0x31));
}

static float sum_of_squares(const float *row, uint32_t n)
{
    __m256 p[LKVI_WARP_LANES], a[LKVI_WARP_LANES / 8];
    for (uint32_t l = 0; l < LKVI_WARP_LANES; l++)
        p[l] = _mm256_setzero_ps();
    for (uint32_t i = 0; i < n; i += 8) {
        __m256 x = _mm256_loadu_ps(row + i);
        p[i / 8 % LKVI_WARP_LANES] = _mm256_add_ps(p[i / 8 % LKVI_WARP_LANES], _mm256_mul_ps(x, x));
    }
    for (uint32_t v = 0; v < LKVI_WARP_LANES / 8; v++)
        a[v] = sum_each(p + 8 * v);
    __m256 sum = _mm256_add_ps(_mm256_add_ps(a[0], a[2]), _mm256_add_ps(a[1], a[3]));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

static void rms_norm(float *row, uint32_t n, const float *weight, float eps)
{
    float inverse = 1.0f / sqrtf(sum_of_squares(row, n) / (float)n + eps);
    const __m256 r = _mm256_set1_ps(inverse);
    for (uint32_t i = 0; i < n; i += 8) {
        __m256 x = _mm256_mul_ps(_mm256_loadu_ps(row + i), r);
        _mm256_storeu_ps(row + i, _mm256_mul_ps(x, _mm256_loadu_ps(weight + i)));
    }
}

/* Stages 1, 2 and 4 inside one vector: the partner's place gets its sign turned, then one add:
 * (a, b) -> (a + b, -b + a). */
static __m256 hadamard_8(__m256 x)
{
    const __m256 odd1 = _mm256_setr_ps(0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f);
    const __m256 odd2 = _mm256_setr_ps(0.0f, 0.0f, -0.0f, -0.0f, 0.0f, 0.0f, -0.0f, -0.0f);
    const __m256 odd4 = _mm256_setr_ps(0.0f, 0.0f, 0.0f, 0.0f, -0.0f, -0.0f, -0.0f, -0.0f);
    x = _mm256_add_ps(_mm256_permute_ps(x, 0xB1), _mm256_xor_ps(x, odd1));
    x = _mm256_add_ps(_mm256_permute_ps(x, 0x4E), _mm256_xor_ps(x, odd2));
    return _mm256_add_ps(_mm256_permute2f128_ps(x, x, 1), _mm256_xor_ps(x, odd4));
}

static void butterfly(float *a, float *b)
{
    __m256 x = _mm256_loadu_ps(a), y = _mm256_loadu_ps(b);
    _mm256_storeu_ps(a, _mm256_add_ps(x, y));
    _mm256_storeu_ps(b, _mm256_sub_ps(x, y));
}

/* Two stages h and 2h in one pass over memory. */
static void butterfly_4(float *row, uint32_t h)
{
    __m256 a = _mm256_loadu_ps(row), b = _mm256_loadu_ps(row + h);
    __m256 c = _mm256_loadu_ps(row + 2 * h), d = _mm256_loadu_ps(row + 3 * h);
    __m256 ab = _mm256_add_ps(a, b), ba = _mm256_sub_ps(a, b);
    __m256 cd = _mm256_add_ps(c, d), dc = _mm256_sub_ps(c, d);
    _mm256_storeu_ps(row, _mm256_add_ps(ab, cd));
    _mm256_storeu_ps(row + h, _mm256_add_ps(ba, dc));
    _mm256_storeu_ps(row + 2 * h, _mm256_sub_ps(ab, cd));
    _mm256_storeu_ps(row + 3 * h, _mm256_sub_ps(ba, dc));
}

static void hadamard(float *row, uint32_t n)
{
    uint32_t h = 8;
    for (uint32_t i = 0; i < n; i += 8)
        _mm256_storeu_ps(row + i, hadamard_8(_mm256_loadu_ps(row + i)));
    for (; 4 * h <= n; h *= 4)
        for (uint32_t i = 0; i < n; i += 4 * h)
            for (uint32_t j = i; j < i + h; j += 8)
                butterfly_4(row + j, h);
    for (uint32_t j = 0; h < n && j < h; j += 8)
        butterfly(row + j, row + j + h);
    const __m256 scale = _mm256_set1_ps(lkvi_hadamard_scale(n));
    for (uint32_t i = 0; i < n; i += 8)
        _mm256_storeu_ps(row + i, _mm256_mul_ps(_mm256_loadu_ps(row + i), scale));
}

static void rope_encode(const float *row, uint32_t n, uint8_t *bytes)
{
    uint32_t whole = n & ~15u;
    for (uint32_t i = 0; i < whole; i += 16) {
        __m256i codes = bf16_from_f32x16(_mm256_loadu_ps(row + i), _mm256_loadu_ps(row + i + 8), 1);
        _mm256_storeu_si256((__m256i *)(bytes + 2 * i), codes);
    }
    if (whole < n)
        lkvi_row_ops_scalar.rope_encode(row + whole, n - whole, bytes + 2 * whole);
}

static void rope_decode(const uint8_t *bytes, uint32_t n, float *row)
{
    uint32_t whole = n & ~7u;
    for (uint32_t i = 0; i < whole; i += 8)
        _mm256_storeu_ps(row + i, f32_from_bf16x8(bytes + 2 * i));
    if (whole < n)
        lkvi_row_ops_scalar.rope_decode(bytes + 2 * whole, n - whole, row + whole);
}

const struct lkvi_row_ops lkvi_row_ops_avx2 = {
    load, store, repair, rms_norm, hadamard, rope_encode, rope_decode,
};
#endif
