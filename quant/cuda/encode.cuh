/* One warp's row to the codes and scales of one record, and back: quant/codec_*.c in the warp's
 * layout. The non-finite rule comes first. Every byte of both sections is written. */
#ifndef LKVI_QUANT_CUDA_ENCODE_CUH
#define LKVI_QUANT_CUDA_ENCODE_CUH

#include "quant/cuda/row.cuh"

namespace lkvi
{

struct Repair {
    uint32_t count, first;
};

/* ---- reductions over all lanes, or over aligned runs of `lanes` lanes; min and max have no order
 */

__device__ __forceinline__ float max_over(float x, int lanes)
{
    for (int i = lanes / 2; i >= 1; i /= 2)
        x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, i));
    return x;
}

__device__ __forceinline__ float min_over(float x, int lanes)
{
    for (int i = lanes / 2; i >= 1; i /= 2)
        x = fminf(x, __shfl_xor_sync(kAllLanes, x, i));
    return x;
}

__device__ __forceinline__ float largest8(const float x[kLaneWidth])
{
    float amax = 0.0f;
#pragma unroll
    for (int e = 0; e < (int)kLaneWidth; e++)
        amax = fmaxf(amax, fabsf(x[e]));
    return amax;
}

template <int K> __device__ __forceinline__ float largest_of(const Row<K> &row)
{
    float amax = 0.0f;
#pragma unroll
    for (int k = 0; k < K; k++)
        amax = fmaxf(amax, largest8(row.x[k]));
    return max_over(amax, 32);
}

/* ---- the non-finite rule */

struct Extremes {
    float smallest, largest; /* finite ones; smallest > largest: there is none */
};

__device__ __forceinline__ void widen(Extremes &m, const float x[kLaneWidth], bool inside)
{
#pragma unroll
    for (int e = 0; e < (int)kLaneWidth; e++)
        if (inside && lkvi_is_finite(x[e])) {
            m.smallest = fminf(m.smallest, x[e]);
            m.largest = fmaxf(m.largest, x[e]);
        }
}

__device__ __forceinline__ float repaired(float x, Extremes m)
{
    if (isnan(x) || m.smallest > m.largest)
        return 0.0f;
    return (x > 0 ? m.largest : m.smallest) + 0.0f; /* + 0 gives a zero its plus sign */
}

__device__ __forceinline__ void repair8(float x[kLaneWidth], uint32_t first, Extremes m, Repair &r)
{
#pragma unroll
    for (int e = 0; e < (int)kLaneWidth; e++)
        if (!lkvi_is_finite(x[e])) {
            r.first = min(r.first, first + e);
            r.count++;
            x[e] = repaired(x[e], m);
        }
}

__device__ __forceinline__ Repair sum_repairs(Repair r)
{
    r.count = __reduce_add_sync(kAllLanes, r.count);
    r.first = __reduce_min_sync(kAllLanes, r.first);
    return r;
}

/* group: 16, 128 or, for anything else, the whole row of n. */
template <int K>
__device__ __forceinline__ Repair repair_broken(Row<K> &row, uint32_t n, uint32_t group)
{
    Repair r = {0, 0xFFFFFFFFu};
    const int lanes = group == 16 ? 2 : group == 128 ? 16 : 32;
    Extremes all = {FLT_MAX, -FLT_MAX};
    Extremes m[K];
#pragma unroll
    for (int k = 0; k < K; k++) {
        m[k] = {FLT_MAX, -FLT_MAX};
        widen(m[k], row.x[k], first_of(k) < n);
        m[k].smallest = min_over(m[k].smallest, lanes);
        m[k].largest = max_over(m[k].largest, lanes);
        all.smallest = fminf(all.smallest, m[k].smallest);
        all.largest = fmaxf(all.largest, m[k].largest);
    }
#pragma unroll
    for (int k = 0; k < K; k++)
        repair8(row.x[k], first_of(k), lanes == 32 ? all : m[k], r);
    return sum_repairs(r);
}

template <int K> __device__ __forceinline__ Repair repair(Row<K> &row, uint32_t n, uint32_t group)
{
    bool broken = false;
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int e = 0; e < (int)kLaneWidth; e++)
            broken |= !lkvi_is_finite(row.x[k][e]);
    if (!__any_sync(kAllLanes, broken))
        return {0, 0xFFFFFFFFu};
    return repair_broken(row, n, group);
}

__device__ __forceinline__ uint16_t saturated(float x)
{
    return lkvi_bf16_saturate(x);
}

/* ---- BF16 */

template <int K>
__device__ __forceinline__ void encode_bf16(const struct lkvi_record &record, const Row<K> &row,
                                            uint8_t *bytes)
{
#pragma unroll
    for (int k = 0; k < K; k++) {
        if (first_of(k) >= record.latent_dim)
            continue;
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[i] = saturated(row.x[k][2 * i]) | (uint32_t)saturated(row.x[k][2 * i + 1]) << 16;
        *(uint4 *)(bytes + record.codes_offset + 2 * first_of(k)) =
            make_uint4(w[0], w[1], w[2], w[3]);
    }
}

/* ---- FP8: a group of 128 is 16 lanes of one segment */

template <int K>
__device__ __forceinline__ void encode_fp8(const struct lkvi_record &record, const Row<K> &row,
                                           uint8_t *bytes)
{
    uint8_t *scales = bytes + record.scales_offset;
    uint32_t groups = (record.latent_dim + 127) / 128;
    if (lane_id() >= groups && lane_id() < record.scales_bytes / 4) /* padding */
        ((float *)scales)[lane_id()] = 0.0f;
#pragma unroll
    for (int k = 0; k < K; k++) {
        float s = __fdiv_rn(max_over(largest8(row.x[k]), 16), 448.0f);
        s = s < FLT_MIN ? 0.0f : s;
        if (first_of(k) >= record.latent_dim)
            continue;
        if (lane_id() % 16 == 0)
            ((float *)scales)[first_of(k) / 128] = s;
        uint32_t w[2] = {0, 0};
#pragma unroll
        for (int e = 0; e < (int)kLaneWidth; e++) {
            uint32_t code = s == 0.0f ? 0u : lkvi_e4m3_from_f32(__fdiv_rn(row.x[k][e], s));
            w[e / 4] |= code << 8 * (e % 4);
        }
        *(uint2 *)(bytes + record.codes_offset + first_of(k)) = make_uint2(w[0], w[1]);
    }
}

/* ---- INT8 */

__device__ __forceinline__ float2 int8_choose(float min, float max, uint32_t symmetric)
{
    float amax = fmaxf(fabsf(min), fabsf(max));
    float scale = __fdiv_rn(__fsub_rn(max, min), 255.0f);
    if (!lkvi_is_finite(scale))
        scale = __fsub_rn(__fdiv_rn(max, 255.0f), __fdiv_rn(min, 255.0f));
    if (symmetric || scale < FLT_MIN || scale < __fmul_rn(0x1p-16f, amax)) {
        float s = __fdiv_rn(amax, 127.0f);
        return make_float2(s > FLT_MIN ? s : FLT_MIN, 0.0f);
    }
    return make_float2(scale, __fsub_rn(-128.0f, __fdiv_rn(min, scale)));
}

__device__ __forceinline__ uint32_t int8_code(float x, float2 s)
{
    float q = __fadd_rn(__fdiv_rn(x, s.x), s.y);
    q = __fsub_rn(__fadd_rn(q, 0x1.8p23f), 0x1.8p23f); /* nearest even */
    return (uint32_t)(int)(q < -128.0f ? -128.0f : q > 127.0f ? 127.0f : q) & 0xFF;
}

template <int K>
__device__ __forceinline__ void encode_int8(const struct lkvi_record &record, const Row<K> &row,
                                            uint8_t *bytes)
{
    Extremes m = {FLT_MAX, -FLT_MAX};
#pragma unroll
    for (int k = 0; k < K; k++)
        widen(m, row.x[k], first_of(k) < record.latent_dim);
    float2 s = int8_choose(min_over(m.smallest, 32), max_over(m.largest, 32),
                           record.encode_flags & LKV_ENCODE_INT8_SYMMETRIC);
    if (lane_id() == 0)
        *(float4 *)(bytes + record.scales_offset) = make_float4(s.x, s.y, 0.0f, 0.0f);
#pragma unroll
    for (int k = 0; k < K; k++) {
        if (first_of(k) >= record.latent_dim)
            continue;
        uint32_t w[2] = {0, 0};
#pragma unroll
        for (int e = 0; e < (int)kLaneWidth; e++)
            w[e / 4] |= int8_code(row.x[k][e], s) << 8 * (e % 4);
        *(uint2 *)(bytes + record.codes_offset + first_of(k)) = make_uint2(w[0], w[1]);
    }
}

/* ---- NVFP4: a group of 16 is two lanes */

struct Group {
    uint32_t scale; /* e4m3 */
    uint32_t codes; /* this lane's 8 e2m1, low nibble first */
};

__device__ __forceinline__ Group encode_group(const float x[kLaneWidth], float amax, float top,
                                              float outer)
{
    Group g = {lkvi_e4m3_from_f32(__fdiv_rn(__fdiv_rn(amax, top), outer)), 0};
    float s = __fmul_rn(lkvi_f32_from_e4m3((uint8_t)g.scale), outer);
#pragma unroll
    for (int e = 0; e < (int)kLaneWidth; e++)
        if (g.scale != 0)
            g.codes |= (uint32_t)lkvi_e2m1_from_f32(__fdiv_rn(x[e], s)) << 4 * e;
    return g;
}

__device__ __forceinline__ float squared_error(const float x[kLaneWidth], Group g, float outer)
{
    float d[kLaneWidth], s = __fmul_rn(lkvi_f32_from_e4m3((uint8_t)g.scale), outer);
#pragma unroll
    for (int e = 0; e < (int)kLaneWidth; e++) {
        float value = lkvi_f32_from_e2m1((uint8_t)(g.codes >> 4 * e & 15));
        d[e] = __fsub_rn(x[e], __fmul_rn(value, s));
        d[e] = __fmul_rn(d[e], d[e]);
    }
    float half = __fadd_rn(__fadd_rn(__fadd_rn(d[0], d[1]), __fadd_rn(d[2], d[3])),
                           __fadd_rn(__fadd_rn(d[4], d[5]), __fadd_rn(d[6], d[7])));
    return __fadd_rn(half, __shfl_xor_sync(kAllLanes, half, 1));
}

__device__ __forceinline__ Group choose_group(const struct lkvi_record &record,
                                              const float x[kLaneWidth], float outer)
{
    float amax = max_over(largest8(x), 2);
    Group six = encode_group(x, amax, 6.0f, outer);
    if (!(record.encode_flags & LKV_ENCODE_NVFP4_FOUR_OVER_SIX))
        return six;
    Group four = encode_group(x, amax, 4.0f, outer);
    return squared_error(x, four, outer) < squared_error(x, six, outer) ? four : six;
}

template <int K>
__device__ __forceinline__ float nvfp4_outer(const struct lkvi_record &record, const Row<K> &row,
                                             float fixed_outer)
{
    if (record.encode_flags & LKV_ENCODE_NVFP4_FIXED_OUTER)
        return fixed_outer;
    float outer = __fdiv_rn(largest_of(row), 2688.0f);
    return outer < FLT_MIN ? 0.0f : outer;
}

/* Padding of codes and scales, and the outer scale. */
__device__ __forceinline__ void nvfp4_frame(const struct lkvi_record &record, float outer,
                                            uint8_t *bytes)
{
    uint32_t used = record.latent_dim / 2, groups = record.latent_dim / 16;
    if (lane_id() == 0 && used < record.codes_bytes)
        *(uint2 *)(bytes + record.codes_offset + used) = make_uint2(0, 0);
    uint8_t *scales = bytes + record.scales_offset;
    uint32_t end = record.scales_bytes - 16;
    if (lane_id() < 16 && groups + lane_id() < end)
        scales[groups + lane_id()] = 0;
    if (lane_id() == 0)
        *(float4 *)(scales + end) = make_float4(0.0f, outer, 0.0f, 0.0f);
}

template <int K>
__device__ __forceinline__ void encode_nvfp4(const struct lkvi_record &record, const Row<K> &row,
                                             float fixed_outer, uint8_t *bytes)
{
    float outer = nvfp4_outer(record, row, fixed_outer);
    nvfp4_frame(record, outer, bytes);
#pragma unroll
    for (int k = 0; k < K; k++) {
        Group g = {0, 0};
        if (outer != 0.0f)
            g = choose_group(record, row.x[k], outer);
        if (first_of(k) >= record.latent_dim)
            continue;
        if (lane_id() % 2 == 0)
            bytes[record.scales_offset + first_of(k) / 16] = (uint8_t)g.scale;
        *(uint32_t *)(bytes + record.codes_offset + first_of(k) / 2) = g.codes;
    }
}

/* ---- decoding: 8 values of a lane */

__device__ __forceinline__ void decode_fp8(const struct lkvi_record &record, const uint8_t *bytes,
                                           uint32_t at, float x[kLaneWidth])
{
    uint2 w = *(const uint2 *)(bytes + record.codes_offset + at);
    float s = *(const float *)(bytes + record.scales_offset + at / 128 * 4);
#pragma unroll
    for (int e = 0; e < (int)kLaneWidth; e++)
        x[e] = __fmul_rn(lkvi_f32_from_e4m3((uint8_t)((e < 4 ? w.x : w.y) >> 8 * (e % 4))), s);
}

__device__ __forceinline__ void decode_int8(const struct lkvi_record &record, const uint8_t *bytes,
                                            uint32_t at, float x[kLaneWidth])
{
    uint2 w = *(const uint2 *)(bytes + record.codes_offset + at);
    float2 s = *(const float2 *)(bytes + record.scales_offset);
#pragma unroll
    for (int e = 0; e < (int)kLaneWidth; e++) {
        float q = (float)(int8_t)((e < 4 ? w.x : w.y) >> 8 * (e % 4));
        float v = __fmul_rn(s.x, __fsub_rn(q, s.y));
        v = v > FLT_MAX ? FLT_MAX : v;
        x[e] = v < -FLT_MAX ? -FLT_MAX : v;
    }
}

__device__ __forceinline__ void decode_nvfp4(const struct lkvi_record &record, const uint8_t *bytes,
                                             uint32_t at, float x[kLaneWidth])
{
    uint32_t w = *(const uint32_t *)(bytes + record.codes_offset + at / 2);
    const uint8_t *scales = bytes + record.scales_offset;
    float outer = *(const float *)(scales + record.scales_bytes - 12);
    float s = __fmul_rn(lkvi_f32_from_e4m3(scales[at / 16]), outer);
#pragma unroll
    for (int e = 0; e < (int)kLaneWidth; e++)
        x[e] = __fmul_rn(lkvi_f32_from_e2m1((uint8_t)(w >> 4 * e & 15)), s);
}

template <int K>
__device__ __forceinline__ void decode_row(const struct lkvi_record &record, const uint8_t *bytes,
                                           Row<K> &row)
{
    if (record.format == LKV_FORMAT_BF16) {
        load_row(row, bytes + record.codes_offset, LKV_DTYPE_BF16, record.latent_dim);
        return;
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
        uint32_t at =
            min(first_of(k), record.latent_dim - kLaneWidth); /* lanes past L: any value */
        if (record.format == LKV_FORMAT_FP8)
            decode_fp8(record, bytes, at, row.x[k]);
        else if (record.format == LKV_FORMAT_INT8)
            decode_int8(record, bytes, at, row.x[k]);
        else
            decode_nvfp4(record, bytes, at, row.x[k]);
    }
}

} // namespace lkvi
#endif
