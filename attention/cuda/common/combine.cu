/* In: the partials of each (range, sequence): running maximum, sum, entropy sum, output that is not
 * normalised. Out: out, lse, entropy of each (token, head). A CTA makes some dims of one row; its
 * teams of lanes share out the partials in an order that depends on the plan and the split alone,
 * so the result is the same bits every time. The one idea: a trip to memory is most of this kernel,
 * so statistics and each team's first partials are asked for together, before any weight is known;
 * few rows are cut into many CTAs, for the parallel reads, many rows into few. */
#include "attention/cuda/common/common.h"
#include "attention/cuda/common/fault.cuh"
#include "attention/cuda/common/ptx.cuh"

namespace
{
constexpr uint64_t kFewRows = 32, kManyRows = 256;
constexpr float kLn2 = 0.69314718055994531f;

struct combine_args {
    lkvi_split split;
    lkvi_split_shape shape;
    lkvi_batch_view batch;
    lkvi_heads out;
    lkvi_fault_record *faults;
    float *lse, *entropy;
    int64_t lse_stride, entropy_stride;
    uint32_t num_heads, tokens_per_block;
};

__device__ __forceinline__ void store1(const lkvi_heads &out, int64_t at, float v)
{
    if (out.dtype == LKV_DTYPE_F32)
        ((float *)out.data)[at] = v;
    else if (out.dtype == LKV_DTYPE_F16)
        ((__half *)out.data)[at] = __float2half_rn(v);
    else
        ((__nv_bfloat16 *)out.data)[at] = __float2bfloat16_rn(v);
}

struct row_parts { /* the ranges that hold a sequence */
    int first, count, seq;
    uint32_t row, row_tile;
};

__device__ __forceinline__ row_parts find_parts(const combine_args &a, int token, int head)
{
    lkvi_split_token t = a.split.tokens[token];
    uint32_t row = (uint32_t)(token - t.first_row) * a.num_heads + head;
    return {t.range, t.num_parts, t.seq, row % a.shape.rows, row / a.shape.rows};
}

__device__ __forceinline__ int64_t part_at(const combine_args &a, const row_parts &p, int i)
{
    int64_t slot = p.first + i + p.seq;
    return (slot * a.shape.row_tiles + p.row_tile) * a.shape.rows + p.row;
}

/* Nobody wrote a partial for a range without tiles of this sequence. */
__device__ __forceinline__ bool part_empty(const combine_args &a, const row_parts &p, int i)
{
    const lkvi_split_range &r = a.split.ranges[p.first + i];
    return r.tile >= r.tile_end;
}

__device__ void note_length(const combine_args &a, int seq, int token)
{
    int first = a.batch.q_indptr ? a.batch.q_indptr[seq] : seq;
    int rows = a.batch.q_indptr ? a.batch.q_indptr[seq + 1] - first : 1;
    int64_t room = (int64_t)a.batch.table_width * a.tokens_per_block;
    int length = a.batch.seq_lens[seq];
    if (length != 0 && (length < rows || length > room))
        lkvi::note_fault(a.faults, LKV_FAULT_LENGTH, token, seq);
}

__device__ __forceinline__ void store_row(const combine_args &a, int token, int head, float top,
                                          float sum, float slope)
{
    if (a.lse)
        a.lse[token * a.lse_stride + head] = sum > 0 ? (top + log2f(sum)) * kLn2 : -INFINITY;
    if (a.entropy)
        a.entropy[token * a.entropy_stride + head] =
            sum > 0 ? kLn2 * (log2f(sum) - slope / sum) : 0.f;
}

/* Largest of the CTA, in every thread. */
template <int threads> __device__ __forceinline__ float cta_max(float x, float *shared)
{
    for (int d = 16; d > 0; d /= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, d));
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = shared[0];
#pragma unroll
    for (int i = 1; i < threads / 32; i++)
        x = fmaxf(x, shared[i]);
    return x;
}

__device__ __forceinline__ float warp_sum(float x)
{
    for (int d = 16; d > 0; d /= 2)
        x += __shfl_xor_sync(~0u, x, d);
    return x;
}

/* dims of one row a CTA, four a lane. A partial of weight 0 may never have been written: whatever
 * was read is left out. */
template <int dims, int threads, int kAhead>
__global__ void __launch_bounds__(threads) combine_kernel(const __grid_constant__ combine_args a)
{
    constexpr int kTeam = dims / 4, kTeams = threads / kTeam, kWarps = threads / 32,
                  kTeamsJoined = kTeam < 32 ? 32 / kTeam : 1;
    static_assert(kTeam >= 16, "two teams a warp at most");
    __shared__ float weight[threads];
    __shared__ float most[kWarps];
    __shared__ float2 sums[kWarps];
    __shared__ float4 partial[kTeams / kTeamsJoined][kTeam];
    const int token = blockIdx.x / a.num_heads, head = blockIdx.x % a.num_heads;
    const int team = threadIdx.x / kTeam, lane = threadIdx.x % kTeam;
    const row_parts p = find_parts(a, token, head); /* the split is older than the decode */
    const int mine = threadIdx.x;
    bool there = p.seq >= 0 && mine < p.count && !part_empty(a, p, mine);
    /* Partials of one row lie a slot apart. */
    const uint32_t slot_rows = a.shape.row_tiles * a.shape.rows;
    const int64_t first = part_at(a, p, 0);
    const float4 *stats = (const float4 *)a.split.partial_stats + first;
    const float *from =
        a.split.partial_out + first * LKVI_PARTIAL_FLOATS + blockIdx.y * dims + 4 * lane;
    const uint64_t step = (uint64_t)slot_rows * LKVI_PARTIAL_FLOATS;
    if (p.seq >= 0 && head == 0 && blockIdx.y == 0 && threadIdx.x == 0)
        note_length(a, p.seq, token);
    lkvi::wait_for_predecessor();
    if (p.seq < 0)
        return;
    float top = -INFINITY, sum = 0, slope = 0;
    float4 acc = make_float4(0, 0, 0, 0);
    for (int base = 0; base < p.count; base += threads) {
        const int n = min(threads, p.count - base);
        float4 s = make_float4(-INFINITY, 0, 0, 0), x[kAhead];
        if (base > 0)
            there = base + mine < p.count && !part_empty(a, p, base + mine);
        if (there)
            s = stats[(uint64_t)(base + mine) * slot_rows];
#pragma unroll
        for (int j = 0; j < kAhead; j++)
            if (team + j * kTeams < n)
                x[j] = *(const float4 *)(from + (base + team + j * kTeams) * step);
        const bool seen = s.y > 0;
        const float before = top;
        top = fmaxf(top, cta_max<threads>(seen ? s.x : -INFINITY, most));
        const float w = seen ? exp2f(s.x - top) : 0.f;
        const float down = before > -INFINITY ? exp2f(before - top) : 0.f;
        if (before > -INFINITY)
            slope = down * (slope + sum * (before - top));
        sum *= down;
        if (seen) {
            sum += w * s.y;
            slope += w * (s.z + s.y * (s.x - top));
        }
        weight[mine] = w;
        __syncthreads();
        acc.x *= down, acc.y *= down, acc.z *= down, acc.w *= down;
        for (int k = team; k < n; k += kAhead * kTeams) {
            if (k > team)
#pragma unroll
                for (int j = 0; j < kAhead; j++)
                    if (k + j * kTeams < n)
                        x[j] = *(const float4 *)(from + (base + k + j * kTeams) * step);
#pragma unroll
            for (int j = 0; j < kAhead; j++) {
                const float v = k + j * kTeams < n ? weight[k + j * kTeams] : 0.f;
                if (v > 0) {
                    acc.x = fmaf(v, x[j].x, acc.x);
                    acc.y = fmaf(v, x[j].y, acc.y);
                    acc.z = fmaf(v, x[j].z, acc.z);
                    acc.w = fmaf(v, x[j].w, acc.w);
                }
            }
        }
        if (base + threads < p.count)
            __syncthreads();
    }
    sum = warp_sum(sum);
    slope = warp_sum(slope);
    if (threadIdx.x % 32 == 0)
        sums[threadIdx.x / 32] = make_float2(sum, slope);
    if (kTeam < 32) { /* the teams of a warp first */
        acc.x += __shfl_xor_sync(~0u, acc.x, 16);
        acc.y += __shfl_xor_sync(~0u, acc.y, 16);
        acc.z += __shfl_xor_sync(~0u, acc.z, 16);
        acc.w += __shfl_xor_sync(~0u, acc.w, 16);
    }
    if (team % kTeamsJoined == 0)
        partial[team / kTeamsJoined][lane] = acc;
    __syncthreads();
    sum = slope = 0;
#pragma unroll
    for (int i = 0; i < kWarps; i++) {
        sum += sums[i].x;
        slope += sums[i].y;
    }
    const float inverse = sum > 0 ? 1.f / sum : 0;
    const int64_t at = token * a.out.token_stride + head * a.out.head_stride + blockIdx.y * dims;
    for (int d = threadIdx.x; d < dims; d += threads) {
        float o = 0;
#pragma unroll
        for (int i = 0; i < kTeams / kTeamsJoined; i++)
            o += ((const float *)partial[i])[d];
        store1(a.out, at + d, o * inverse);
    }
    if (threadIdx.x == 0 && blockIdx.y == 0)
        store_row(a, token, head, top, sum, slope);
}

template <int dims, int threads, int ahead>
cudaError_t launch(const combine_args &a, uint32_t rows, cudaStream_t stream)
{
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(rows, LKVI_PARTIAL_FLOATS / dims);
    config.blockDim = dim3(threads);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return rows ? cudaLaunchKernelEx(&config, combine_kernel<dims, threads, ahead>, a)
                : cudaSuccess;
}
} // namespace

cudaError_t lkvi_cuda_combine(const struct lkvi_split_shape *shape,
                              const struct lkvi_attend_params *p, cudaStream_t stream)
{
    combine_args a = {};
    lkvi_split_place(shape, p->workspace, &a.split);
    a.shape = *shape;
    a.batch = p->batch;
    a.out = p->out;
    a.faults = p->store.faults;
    a.lse = p->lse;
    a.entropy = p->entropy;
    a.lse_stride = p->lse_stride;
    a.entropy_stride = p->entropy_stride;
    a.num_heads = p->plan.num_heads;
    a.tokens_per_block = p->plan.tokens_per_block;
    /* Fixed by the plan, and one way only where results must not depend on the batch. */
    const uint64_t most = (uint64_t)shape->num_tokens * a.num_heads;
    const uint32_t rows = (uint32_t)p->batch.num_tokens * a.num_heads;
    if (shape->chunk_tiles || (most > kFewRows && most < kManyRows))
        return launch<128, 256, 5>(a, rows, stream);
    return most <= kFewRows ? launch<64, 512, 9>(a, rows, stream)
                            : launch<512, 128, 4>(a, rows, stream);
}
