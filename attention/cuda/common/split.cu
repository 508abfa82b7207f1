/* In: device-resident lengths. Out: the split (split.h) in the workspace. One CTA; scans the
 * sequences 1024 at a time, then places the ranges by binary search. Runs once a step and serves
 * all layers. */
#include "attention/cuda/common/common.h"

namespace
{
constexpr int kThreads = 1024;

__device__ int2 block_scan(int2 mine, int2 *warp_sums, int2 *total)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int2 x = mine;
    for (int d = 1; d < 32; d *= 2) {
        int a = __shfl_up_sync(~0u, x.x, d), b = __shfl_up_sync(~0u, x.y, d);
        if (lane >= d) {
            x.x += a;
            x.y += b;
        }
    }
    if (lane == 31)
        warp_sums[warp] = x;
    __syncthreads();
    int2 before = make_int2(0, 0), all = make_int2(0, 0);
    for (int i = 0; i < kThreads / 32; i++) {
        if (i == warp)
            before = all;
        all.x += warp_sums[i].x;
        all.y += warp_sums[i].y;
    }
    __syncthreads();
    *total = all;
    return make_int2(before.x + x.x - mine.x, before.y + x.y - mine.y);
}

__device__ int query_rows(const lkvi_batch_view &batch, int seq, int *first)
{
    *first = batch.q_indptr ? batch.q_indptr[seq] : seq;
    return batch.q_indptr ? batch.q_indptr[seq + 1] - *first : 1;
}

__device__ lkvi_split_range range_at(const lkvi_split &split, const lkvi_split_shape &shape, int n,
                                     int ranges, int2 total, int r)
{
    if (r >= ranges)
        return {total.x, total.x, n, 0, {0, 0, 0, 0}};
    int cost = shape.chunk_tiles ? r : lkvi_split_point(total.y, ranges, r);
    int seq = lkvi_split_find(split.cost_start, n, cost);
    int tile =
        lkvi_split_tile(cost, split.cost_start[seq], split.tile_start[seq], shape.chunk_tiles);
    return {tile, 0, seq, 0, {0, 0, 0, 0}};
}

/* Every range, the unused ones empty, so that a kernel need not know how many there are. */
__device__ void place_ranges(const lkvi_split &split, const lkvi_split_shape &shape, int n,
                             int ranges, int2 total)
{
    for (int r = threadIdx.x; r < (int)shape.num_ranges; r += kThreads) {
        lkvi_split_range here = range_at(split, shape, n, ranges, total, r);
        here.tile_end = range_at(split, shape, n, ranges, total, r + 1).tile;
        while (here.tile < here.tile_end && split.tile_start[here.seq + 1] <= here.tile)
            here.seq++;
        if (here.tile < here.tile_end)
            here.first = split.seqs[here.seq];
        split.ranges[r] = here;
    }
}

__device__ int range_of(const lkvi_split &split, int ranges, int tile)
{
    int low = 0, high = ranges;
    while (high - low > 1) {
        int mid = low + (high - low) / 2;
        if (split.ranges[mid].tile <= tile)
            low = mid;
        else
            high = mid;
    }
    return low;
}

__device__ void place_tokens(const lkvi_split &split, const lkvi_split_shape &shape, int n,
                             int ranges)
{
    for (int seq = threadIdx.x; seq < n; seq += kThreads) {
        lkvi_split_seq s = split.seqs[seq];
        int begin = split.tile_start[seq], end = split.tile_start[seq + 1], first = 0, parts = 0;
        if (begin < end) {
            first = range_of(split, ranges, begin);
            parts = range_of(split, ranges, end - 1) - first + 1;
        }
        for (int j = 0; j < s.q_len; j++)
            if ((uint32_t)(s.first_row + j) < shape.num_tokens)
                split.tokens[s.first_row + j] = {seq, s.first_row, first, parts};
    }
}

__global__ void __launch_bounds__(kThreads)
    split_kernel(lkvi_split split, lkvi_split_shape shape, lkvi_batch_view batch,
                 uint32_t tokens_per_block)
{
    __shared__ int2 warp_sums[kThreads / 32];
    const int n = batch.num_seqs;
    int2 base = make_int2(0, 0);
    for (uint32_t t = threadIdx.x; t < shape.num_tokens; t += kThreads)
        split.tokens[t].seq = -1;
    __syncthreads();
    for (int i = 0; i < n; i += kThreads) {
        int seq = i + threadIdx.x, tiles = 0, first = 0;
        if (seq < n) {
            int q_len = query_rows(batch, seq, &first);
            int length =
                lkvi_split_length(batch.seq_lens[seq], q_len, batch.table_width, tokens_per_block);
            split.seqs[seq] = {first, q_len, length, 0};
            tiles = (length + LKVI_TILE_TOKENS - 1) / LKVI_TILE_TOKENS;
        }
        int2 total, at = block_scan(make_int2(tiles, lkvi_split_cost(tiles, shape.chunk_tiles)),
                                    warp_sums, &total);
        if (seq < n) {
            split.seqs[seq].tile_start = split.tile_start[seq] = base.x + at.x;
            split.cost_start[seq] = base.y + at.y;
        }
        base.x += total.x;
        base.y += total.y;
    }
    int ranges = shape.chunk_tiles ? base.y : min(base.y, (int)shape.num_ranges);
    if (threadIdx.x == 0) {
        split.tile_start[n] = base.x;
        split.cost_start[n] = base.y;
    }
    __syncthreads();
    place_ranges(split, shape, n, ranges, base);
    __syncthreads();
    place_tokens(split, shape, n, ranges);
}
} // namespace

cudaError_t lkvi_cuda_split(const struct lkvi_split_shape *shape,
                            const struct lkvi_batch_view *batch, uint32_t tokens_per_block,
                            void *workspace, cudaStream_t stream)
{
    struct lkvi_split split;
    lkvi_split_place(shape, workspace, &split);
    split_kernel<<<1, kThreads, 0, stream>>>(split, *shape, *batch, tokens_per_block);
    return cudaGetLastError();
}
