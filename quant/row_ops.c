/* Arithmetic on fp32 rows, scalar: loads and stores, the non-finite rule, RMSNorm, the Hadamard
 * rotation, the rope section, the RoPE turn. The order of every fp32 operation is part of the
 * format (docs/formats.md): vector and GPU versions give the same bits. */
#include <math.h>
#include "quant/scalar.h"

static void load(const void *from, uint32_t dtype, uint32_t n, float *row)
{
    const uint16_t *half = from;
    if (dtype == LKV_DTYPE_F32)
        memcpy(row, from, n * sizeof *row);
    else if (dtype == LKV_DTYPE_F16)
        for (uint32_t i = 0; i < n; i++)
            row[i] = lkvi_f32_from_f16(half[i]);
    else
        for (uint32_t i = 0; i < n; i++)
            row[i] = lkvi_f32_from_bf16(half[i]);
}

static void store(const float *row, uint32_t n, uint32_t dtype, void *to)
{
    uint16_t *half = to;
    if (dtype == LKV_DTYPE_F32)
        memcpy(to, row, n * sizeof *row);
    else if (dtype == LKV_DTYPE_F16)
        for (uint32_t i = 0; i < n; i++)
            half[i] = lkvi_f16_from_f32(row[i]);
    else
        for (uint32_t i = 0; i < n; i++)
            half[i] = lkvi_bf16_from_f32(row[i]);
}

static void repair_group(float *x, uint32_t n, uint32_t index, struct lkvi_repair *repair)
{
    float largest = -FLT_MAX, smallest = FLT_MAX;
    uint32_t finite = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!lkvi_is_finite(x[i]))
            continue;
        finite++;
        largest = x[i] > largest ? x[i] : largest;
        smallest = x[i] < smallest ? x[i] : smallest;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (lkvi_is_finite(x[i]))
            continue;
        if (repair->count++ == 0)
            repair->first = index + i;
        if (isnan(x[i]) || finite == 0)
            x[i] = 0.0f;
        else /* adding +0 gives a zero its plus sign */
            x[i] = (x[i] > 0 ? largest : smallest) + 0.0f;
    }
}

void lkvi_repair(float *row, uint32_t n, uint32_t group, struct lkvi_repair *repair)
{
    uint32_t broken = 0;
    for (uint32_t i = 0; i < n; i++)
        broken |= !lkvi_is_finite(row[i]);
    for (uint32_t begin = 0; broken && begin < n; begin += group)
        repair_group(row + begin, n - begin < group ? n - begin : group, begin, repair);
}

float lkvi_warp_sum(float *sum)
{
    for (uint32_t width = LKVI_WARP_FOLD / 2; width >= LKVI_WARP_LANES; width /= 2)
        for (uint32_t i = 0; i < width; i++)
            sum[i] = sum[2 * i] + sum[2 * i + 1];
    for (uint32_t half = LKVI_WARP_LANES / 2; half >= 1; half /= 2)
        for (uint32_t i = 0; i < half; i++)
            sum[i] = sum[i] + sum[i + half];
    return sum[0];
}

static float sum_of_squares(const float *row, uint32_t n)
{
    float sum[LKVI_WARP_FOLD] = {0};
    for (uint32_t i = 0; i < n; i++)
        sum[i % LKVI_WARP_FOLD] += row[i] * row[i];
    return lkvi_warp_sum(sum);
}

static void rms_norm(float *row, uint32_t n, const float *weight, float eps)
{
    float inverse = 1.0f / sqrtf(sum_of_squares(row, n) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++)
        row[i] = row[i] * inverse * weight[i];
}

static void hadamard(float *row, uint32_t n)
{
    for (uint32_t h = 1; h < n; h *= 2)
        for (uint32_t i = 0; i < n; i += 2 * h)
            for (uint32_t j = i; j < i + h; j++) {
                float a = row[j], b = row[j + h];
                row[j] = a + b;
                row[j + h] = a - b;
            }
    float scale = lkvi_hadamard_scale(n);
    for (uint32_t i = 0; i < n; i++)
        row[i] *= scale;
}

static void rope_encode(const float *row, uint32_t n, uint8_t *bytes)
{
    for (uint32_t i = 0; i < n; i++) {
        uint16_t code = lkvi_bf16_saturate(row[i]);
        memcpy(bytes + 2 * i, &code, sizeof code);
    }
}

static void rope_decode(const uint8_t *bytes, uint32_t n, float *row)
{
    for (uint32_t i = 0; i < n; i++) {
        uint16_t code;
        memcpy(&code, bytes + 2 * i, sizeof code);
        row[i] = lkvi_f32_from_bf16(code);
    }
}

void lkvi_rope_turn(float *row, uint32_t n, const float *cos, const float *sin, uint32_t style)
{
    if (style == LKV_ROPE_NONE)
        return;
    uint32_t pairs = n / 2, step = style == LKV_ROPE_HALF ? 1 : 2;
    uint32_t far = style == LKV_ROPE_HALF ? pairs : 1;
    for (uint32_t i = 0; i < pairs; i++) {
        float *x = row + i * step, a = x[0], b = x[far];
        x[0] = a * cos[i] - b * sin[i];
        x[far] = b * cos[i] + a * sin[i];
    }
}

const struct lkvi_row_ops lkvi_row_ops_scalar = {
    load, store, lkvi_repair, rms_norm, hadamard, rope_encode, rope_decode,
};
