/* In: the partials of each (range, sequence): running maximum, sum, entropy sum, output that is not
 * normalised. Out: out, lse, entropy of each (token, head). A CTA makes 128 or all dims of one row,
 * a warp 128; the warps of the same dims share out the partials in an order that depends on the
 * split alone, so the result is the same bits every time. Few rows: many narrow CTAs, for the
 * parallel reads; many rows: wide ones, so that all are resident at once. */
#include "attention/cuda/common/common.h"
#include "attention/cuda/common/fault.cuh"
#include "attention/cuda/common/ptx.cuh"

namespace
{
constexpr int kWarps = 8, kThreads = 32 * kWarps, kDims = 128;
constexpr int kStage = 256; /* partials whose weights lie in shared memory at a time */
constexpr uint64_t kManyRows = 256;
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
    int chunks; /* of 128 dims, a CTA */
};

__device__ void store4(const lkvi_heads &out, int64_t at, float4 v)
{
    if (out.dtype == LKV_DTYPE_F32) {
        *(float4 *)((float *)out.data + at) = v;
    } else if (out.dtype == LKV_DTYPE_F16) {
        __half2 x[2] = {__floats2half2_rn(v.x, v.y), __floats2half2_rn(v.z, v.w)};
        *(uint2 *)((__half *)out.data + at) = *(uint2 *)x;
    } else {
        __nv_bfloat162 x[2] = {__floats2bfloat162_rn(v.x, v.y), __floats2bfloat162_rn(v.z, v.w)};
        *(uint2 *)((__nv_bfloat16 *)out.data + at) = *(uint2 *)x;
    }
}

struct row_parts { /* the ranges that hold a sequence */
    int first, count, seq;
    uint32_t row, row_tile;
};

__device__ row_parts find_parts(const combine_args &a, int token, int head)
{
    lkvi_split_token t = a.split.tokens[token];
    uint32_t row = (uint32_t)(token - t.first_row) * a.num_heads + head;
    return {t.range, t.num_parts, t.seq, row % a.shape.rows, row / a.shape.rows};
}

__device__ int64_t part_at(const combine_args &a, const row_parts &p, int i)
{
    int64_t slot = p.first + i + p.seq;
    return (slot * a.shape.row_tiles + p.row_tile) * a.shape.rows + p.row;
}

/* Nobody wrote a partial for a range without tiles of this sequence. */
__device__ bool part_empty(const combine_args &a, const row_parts &p, int i)
{
    lkvi_split_range r = a.split.ranges[p.first + i];
    return r.tile >= r.tile_end;
}

__device__ float block_max(float x, float *shared)
{
    for (int d = 16; d > 0; d /= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, d));
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = shared[0];
    for (int i = 1; i < kWarps; i++)
        x = fmaxf(x, shared[i]);
    __syncthreads();
    return x;
}

__device__ float block_sum(float x, float *shared)
{
    for (int d = 16; d > 0; d /= 2)
        x += __shfl_xor_sync(~0u, x, d);
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int i = 0; i < kWarps; i++)
        x += shared[i];
    __syncthreads();
    return x;
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

/* A partial of weight 0 may never have been written: it is not read. */
__device__ __forceinline__ void add_parts(const combine_args &a, const row_parts &p, int base,
                                          int n, const float *weight, float4 &acc, int dim)
{
    const float *from = a.split.partial_out + dim;
    const int groups = kWarps / a.chunks;
#pragma unroll 4
    for (int k = threadIdx.x / 32 / a.chunks; k < n; k += groups) {
        float w = weight[k];
        float4 o = make_float4(0, 0, 0, 0);
        if (w > 0)
            o = *(const float4 *)(from + part_at(a, p, base + k) * LKVI_PARTIAL_FLOATS);
        acc.x = fmaf(w, o.x, acc.x);
        acc.y = fmaf(w, o.y, acc.y);
        acc.z = fmaf(w, o.z, acc.z);
        acc.w = fmaf(w, o.w, acc.w);
    }
}

/* Maximum, sum and slope of a partial, sum 0 for one nobody wrote. Both loads at once: whether it
 * was written is only then known, and a trip to memory is most of this kernel. */
__device__ __forceinline__ float4 part_stats(const combine_args &a, const row_parts &p, int i)
{
    float4 s = *(const float4 *)(a.split.partial_stats + 4 * part_at(a, p, i));
    if (part_empty(a, p, i) || !(s.y > 0))
        s = make_float4(-INFINITY, 0, 0, 0);
    return s;
}

__device__ __forceinline__ void store_row(const combine_args &a, const row_parts &p, int token,
                                          int head, float top, float sum, float slope)
{
    if (head == 0)
        note_length(a, p.seq, token);
    if (a.lse)
        a.lse[token * a.lse_stride + head] = sum > 0 ? (top + log2f(sum)) * kLn2 : -INFINITY;
    if (a.entropy)
        a.entropy[token * a.entropy_stride + head] =
            sum > 0 ? kLn2 * (log2f(sum) - slope / sum) : 0.f;
}

__global__ void __launch_bounds__(kThreads) combine_kernel(const __grid_constant__ combine_args a)
{
    __shared__ float weight[kStage];
    __shared__ float reduce[kWarps];
    __shared__ float4 sums[kWarps][32];
    const int token = blockIdx.x / a.num_heads, head = blockIdx.x % a.num_heads;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int dim = (blockIdx.y * a.chunks + warp % a.chunks) * kDims + 4 * lane;
    const row_parts p = find_parts(a, token, head); /* the split is older than the decode */
    lkvi::wait_for_predecessor();
    if (p.seq < 0)
        return;
    float top = -INFINITY, sum = 0, slope = 0;
    for (int i = threadIdx.x; i < p.count; i += kThreads)
        top = fmaxf(top, part_stats(a, p, i).x);
    top = block_max(top, reduce);
    float4 acc = make_float4(0, 0, 0, 0);
    for (int base = 0; base < p.count; base += kStage) {
        int i = base + threadIdx.x;
        if (i < p.count) {
            float4 s = part_stats(a, p, i);
            float w = s.y > 0 ? exp2f(s.x - top) : 0.f;
            if (s.y > 0) {
                sum += w * s.y;
                slope += w * (s.z + s.y * (s.x - top));
            }
            weight[threadIdx.x] = w;
        }
        __syncthreads();
        add_parts(a, p, base, min(kStage, p.count - base), weight, acc, dim);
        __syncthreads();
    }
    sum = block_sum(sum, reduce);
    slope = block_sum(slope, reduce);
    sums[warp][lane] = acc;
    __syncthreads();
    if (warp < a.chunks) {
        float inverse = sum > 0 ? 1.f / sum : 0;
        for (int i = warp + a.chunks; i < kWarps; i += a.chunks) {
            float4 o = sums[i][lane];
            acc.x += o.x;
            acc.y += o.y;
            acc.z += o.z;
            acc.w += o.w;
        }
        int64_t at = token * a.out.token_stride + head * a.out.head_stride;
        store4(a.out, at + dim,
               make_float4(acc.x * inverse, acc.y * inverse, acc.z * inverse, acc.w * inverse));
    }
    if (threadIdx.x == 0 && blockIdx.y == 0)
        store_row(a, p, token, head, top, sum, slope);
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
    bool wide = !shape->chunk_tiles && (uint64_t)shape->num_tokens * a.num_heads >= kManyRows;
    a.chunks = wide ? LKVI_PARTIAL_FLOATS / kDims : 1;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((uint32_t)p->batch.num_tokens * a.num_heads,
                          LKVI_PARTIAL_FLOATS / kDims / (uint32_t)a.chunks);
    config.blockDim = dim3(kThreads);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    if (config.gridDim.x == 0)
        return cudaSuccess;
    return cudaLaunchKernelEx(&config, combine_kernel, a);
}
