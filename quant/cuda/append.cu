/* Latent and rope rows -> records, one warp a token; docs/formats.md section 4 is the order of
 * steps. In: [T, L] and [T, R] rows of F32, F16 or BF16. Out: every byte of each named record, the
 * same bytes as the CPU's. Rows with a wrong slot or position write nothing and are counted. */
#include <cuda_runtime.h>
#include "quant/cuda/cuda.h"
#include "quant/cuda/encode.cuh"

namespace lkvi
{

constexpr int kRopePairs = 4; /* of one lane: R <= 256 */

__device__ __forceinline__ void add(Repair &sum, Repair more)
{
    if (sum.count == 0)
        sum.first = more.first;
    sum.count += more.count;
}

__device__ __forceinline__ uint32_t group_of(uint32_t format)
{
    return format == LKV_FORMAT_NVFP4 ? 16 : format == LKV_FORMAT_FP8 ? 128 : 0;
}

template <int K>
__device__ __forceinline__ Repair append_latent(const struct lkvi_append_params &p, uint64_t token,
                                                uint8_t *bytes)
{
    const struct lkvi_record &record = p.store.record;
    const uint32_t n = record.latent_dim, group = group_of(record.format);
    Row<K> row;
    Repair r = {0, 0};
    load_row(row, row_of(p.latent, token), p.latent.dtype, n);
    if (p.norm_weight || (record.encode_flags & LKV_ENCODE_ROTATE))
        add(r, repair(row, n, group));
    if (p.norm_weight)
        rms_norm(row, n, p.norm_weight, p.norm_eps);
    if (record.encode_flags & LKV_ENCODE_ROTATE)
        hadamard(row, n);
    add(r, repair(row, n, group));
    if (record.format == LKV_FORMAT_BF16)
        encode_bf16(record, row, bytes);
    else if (record.format == LKV_FORMAT_FP8)
        encode_fp8(record, row, bytes);
    else if (record.format == LKV_FORMAT_INT8)
        encode_int8(record, row, bytes);
    else
        encode_nvfp4(record, row, p.store.fixed_outer, bytes);
    return r;
}

/* ---- rope: lane l holds pairs l, l + 32, ... */

struct RopeRow {
    float2 pair[kRopePairs];
};

__device__ __forceinline__ bool pair_broken(float2 v)
{
    return !lkvi_is_finite(v.x) || !lkvi_is_finite(v.y);
}

__device__ __forceinline__ void widen1(Extremes &m, float x)
{
    if (lkvi_is_finite(x)) {
        m.smallest = fminf(m.smallest, x);
        m.largest = fmaxf(m.largest, x);
    }
}

__device__ __forceinline__ void repair1(float &x, uint32_t index, Extremes m, Repair &r)
{
    if (lkvi_is_finite(x))
        return;
    r.first = min(r.first, index);
    r.count++;
    x = repaired(x, m);
}

__device__ __forceinline__ Repair repair_rope(RopeRow &row, uint32_t n, uint32_t style)
{
    Extremes m = {FLT_MAX, -FLT_MAX};
    Repair r = {0, 0xFFFFFFFFu};
    bool broken = false;
#pragma unroll
    for (int j = 0; j < kRopePairs; j++)
        if (lane_id() + 32 * j < n / 2) {
            broken |= pair_broken(row.pair[j]);
            widen1(m, row.pair[j].x);
            widen1(m, row.pair[j].y);
        }
    if (!__any_sync(kAllLanes, broken))
        return {0, 0};
    m.smallest = min_over(m.smallest, 32);
    m.largest = max_over(m.largest, 32);
#pragma unroll
    for (int j = 0; j < kRopePairs; j++)
        if (lane_id() + 32 * j < n / 2) {
            uint2 at = pair_of(lane_id() + 32 * j, n, style);
            repair1(row.pair[j].x, at.x, m, r);
            repair1(row.pair[j].y, at.y, m, r);
        }
    return sum_repairs(r);
}

__device__ __forceinline__ void store_rope(const struct lkvi_append_params &p, const RopeRow &row,
                                           uint8_t *bytes)
{
    const struct lkvi_record &record = p.store.record;
    uint16_t *section = (uint16_t *)(bytes + record.rope_offset);
#pragma unroll
    for (int j = 0; j < kRopePairs; j++)
        if (lane_id() + 32 * j < record.rope_dim / 2) {
            uint2 at = pair_of(lane_id() + 32 * j, record.rope_dim, p.rope_style);
            section[at.x] = saturated(row.pair[j].x);
            section[at.y] = saturated(row.pair[j].y);
        }
    if (lane_id() < record.rope_bytes / 2 - record.rope_dim)
        section[record.rope_dim + lane_id()] = 0;
}

__device__ __forceinline__ Repair append_rope(const struct lkvi_append_params &p, uint64_t token,
                                              uint8_t *bytes)
{
    const uint32_t n = p.store.record.rope_dim;
    const char *from = row_of(p.rope, token);
    RopeRow row;
    Repair r = {0, 0};
#pragma unroll
    for (int j = 0; j < kRopePairs; j++)
        if (lane_id() + 32 * j < n / 2) {
            uint2 at = pair_of(lane_id() + 32 * j, n, p.rope_style);
            row.pair[j].x = load1(from, p.rope.dtype, at.x);
            row.pair[j].y = load1(from, p.rope.dtype, at.y);
        }
    add(r, repair_rope(row, n, p.rope_style));
    if (p.rope_cos) {
        uint64_t base = (uint64_t)p.positions[token] * (n / 2);
#pragma unroll
        for (int j = 0; j < kRopePairs; j++)
            if (lane_id() + 32 * j < n / 2 && p.rope_style != LKV_ROPE_NONE) {
                uint64_t at = base + lane_id() + 32 * j;
                row.pair[j] =
                    turn_pair(row.pair[j].x, row.pair[j].y, p.rope_cos[at], p.rope_sin[at]);
            }
        add(r, repair_rope(row, n, p.rope_style));
    }
    store_rope(p, row, bytes);
    return r;
}

__device__ __forceinline__ bool position_is_valid(const struct lkvi_append_params &p,
                                                  uint64_t token)
{
    if (!p.rope_cos)
        return true;
    int32_t position = p.positions[token];
    if (position >= 0 && (uint64_t)position < p.num_positions)
        return true;
    if (lane_id() == 0)
        fault(p.store.faults, LKV_FAULT_LENGTH, 1, token, position);
    return false;
}

template <int K>
__global__ void __launch_bounds__(32 * kWarps)
    append_kernel(const __grid_constant__ struct lkvi_append_params p)
{
    const uint64_t token = (uint64_t)blockIdx.x * kWarps + threadIdx.x / 32;
    if (token >= p.num_tokens)
        return;
    uint8_t *bytes = record_of(p.store, p.slots[token], token);
    if (!bytes || !position_is_valid(p, token))
        return;
    Repair latent = append_latent<K>(p, token, bytes), rope = {0, 0};
    if (p.store.record.rope_dim)
        rope = append_rope(p, token, bytes);
    if (latent.count + rope.count && lane_id() == 0)
        fault(p.store.faults, LKV_FAULT_NON_FINITE, latent.count + rope.count, token,
              latent.count ? latent.first : p.store.record.latent_dim + rope.first);
}

template <int K> cudaError_t load_append()
{
    cudaFuncAttributes facts;
    return cudaFuncGetAttributes(&facts, append_kernel<K>);
}

} // namespace lkvi

using namespace lkvi;

cudaError_t lkvi_cuda_append(const struct lkvi_append_params *p, cudaStream_t stream)
{
    if (p->num_tokens == 0)
        return cudaSuccess;
    const uint32_t grid = (uint32_t)((p->num_tokens + kWarps - 1) / kWarps);
    return with_segments(p->store.record.latent_dim, [&](auto k) {
        append_kernel<decltype(k)::value><<<grid, 32 * kWarps, 0, stream>>>(*p);
        return cudaGetLastError();
    });
}

cudaError_t lkvi_cuda_quant_load(void)
{
    for (uint32_t n = kSegment; n <= 4 * kSegment; n *= 2) {
        cudaError_t error = with_segments(n, [](auto k) { return load_append<k.value>(); });
        if (error != cudaSuccess)
            return error;
    }
    return lkvi_cuda_gather_load();
}
