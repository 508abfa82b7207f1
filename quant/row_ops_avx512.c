/* Row operations with AVX-512: the bits of quant/row_ops.c, sixteen values at a time. bf16 is
 * rounded with integers, because vcvtneps2bf16 flushes subnormals. */
#if defined(__x86_64__)
#include <math.h>
#include "quant/avx512.h"

static __m512 f32_from_bf16x16(const void *from)
{
    __m512i h = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(h, 16));
}

static void load(const void *from, uint32_t dtype, uint32_t n, float *row)
{
    const uint16_t *half = from;
    uint32_t whole = dtype == LKV_DTYPE_F32 ? 0 : n & ~15u;
    for (uint32_t i = 0; i < whole; i += 16) {
        __m512 x = dtype == LKV_DTYPE_F16
                       ? _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(half + i)))
                       : f32_from_bf16x16(half + i);
        _mm512_storeu_ps(row + i, x);
    }
    if (whole < n)
        lkvi_row_ops_scalar.load(half + whole, dtype, n - whole, row + whole);
}

static __m256i bf16_from_f32x16(__m512 x)
{
    __m512i u = _mm512_castps_si512(x), code = round_off16(u, 16);
    __m512i quiet = _mm512_or_epi32(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x40));
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(code, nan, quiet));
}

static __m256i bf16_saturate_x16(__m512 x)
{
    __m512i code = round_off16(_mm512_castps_si512(x), 16);
    __m512i mag = _mm512_and_epi32(code, _mm512_set1_epi32(0x7FFF));
    __mmask16 over = _mm512_cmpeq_epi32_mask(mag, _mm512_set1_epi32(0x7F80));
    return _mm512_cvtepi32_epi16(_mm512_mask_sub_epi32(code, over, code, _mm512_set1_epi32(1)));
}

static void store(const float *row, uint32_t n, uint32_t dtype, void *to)
{
    uint16_t *half = to;
    uint32_t whole = dtype == LKV_DTYPE_F32 ? 0 : n & ~15u;
    for (uint32_t i = 0; i < whole; i += 16) {
        __m512 x = _mm512_loadu_ps(row + i);
        __m256i h = dtype == LKV_DTYPE_F16 ? _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)
                                           : bf16_from_f32x16(x);
        _mm256_storeu_si256((__m256i *)(half + i), h);
    }
    if (whole < n)
        lkvi_row_ops_scalar.store(row + whole, n - whole, dtype, half + whole);
}

static void repair(float *row, uint32_t n, uint32_t group, struct lkvi_repair *out)
{
    if (n % 16 != 0 || !all_finite(row, n))
        lkvi_repair(row, n, group, out);
}

static void rms_norm(float *row, uint32_t n, const float *weight, float eps)
{
    __m512 p[16]; /* 256 running sums */
    float sums[LKVI_WARP_FOLD];
    for (uint32_t v = 0; v < 16; v++)
        p[v] = _mm512_setzero_ps();
    for (uint32_t i = 0; i < n; i += 16) {
        __m512 x = _mm512_loadu_ps(row + i);
        p[i / 16 % 16] = _mm512_add_ps(p[i / 16 % 16], _mm512_mul_ps(x, x));
    }
    for (uint32_t v = 0; v < 16; v++)
        _mm512_storeu_ps(sums + 16 * v, p[v]);
    float sum = lkvi_warp_sum(sums);
    const __m512 r = _mm512_set1_ps(1.0f / sqrtf(sum / (float)n + eps));
    for (uint32_t i = 0; i < n; i += 16) {
        __m512 x = _mm512_mul_ps(_mm512_loadu_ps(row + i), r);
        _mm512_storeu_ps(row + i, _mm512_mul_ps(x, _mm512_loadu_ps(weight + i)));
    }
}

/* Stages 1, 2, 4 and 8 inside one vector: (a, b) -> (a + b, -b + a). */
static __m512 hadamard_16(__m512 x)
{
    x = _mm512_add_ps(_mm512_permute_ps(x, 0xB1), _mm512_xor_ps(x, sign_where(1)));
    x = _mm512_add_ps(_mm512_permute_ps(x, 0x4E), _mm512_xor_ps(x, sign_where(2)));
    x = _mm512_add_ps(_mm512_shuffle_f32x4(x, x, 0xB1), _mm512_xor_ps(x, sign_where(4)));
    return _mm512_add_ps(_mm512_shuffle_f32x4(x, x, 0x4E), _mm512_xor_ps(x, sign_where(8)));
}

static void hadamard(float *row, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16)
        _mm512_storeu_ps(row + i, hadamard_16(_mm512_loadu_ps(row + i)));
    for (uint32_t h = 16; h < n; h *= 2)
        for (uint32_t i = 0; i < n; i += 2 * h)
            for (uint32_t j = i; j < i + h; j += 16) {
                __m512 a = _mm512_loadu_ps(row + j), b = _mm512_loadu_ps(row + j + h);
                _mm512_storeu_ps(row + j, _mm512_add_ps(a, b));
                _mm512_storeu_ps(row + j + h, _mm512_sub_ps(a, b));
            }
    const __m512 scale = _mm512_set1_ps(lkvi_hadamard_scale(n));
    for (uint32_t i = 0; i < n; i += 16)
        _mm512_storeu_ps(row + i, _mm512_mul_ps(_mm512_loadu_ps(row + i), scale));
}

static void rope_encode(const float *row, uint32_t n, uint8_t *bytes)
{
    uint32_t whole = n & ~15u;
    for (uint32_t i = 0; i < whole; i += 16)
        _mm256_storeu_si256((__m256i *)(bytes + 2 * i),
                            bf16_saturate_x16(_mm512_loadu_ps(row + i)));
    if (whole < n)
        lkvi_row_ops_scalar.rope_encode(row + whole, n - whole, bytes + 2 * whole);
}

static void rope_decode(const uint8_t *bytes, uint32_t n, float *row)
{
    uint32_t whole = n & ~15u;
    for (uint32_t i = 0; i < whole; i += 16)
        _mm512_storeu_ps(row + i, f32_from_bf16x16(bytes + 2 * i));
    if (whole < n)
        lkvi_row_ops_scalar.rope_decode(bytes + 2 * whole, n - whole, row + whole);
}

const struct lkvi_row_ops lkvi_row_ops_avx512 = {
    load, store, repair, rms_norm, hadamard, rope_encode, rope_decode,
};
#endif
