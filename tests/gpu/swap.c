/* The host tier of a pool on the GPU, through the public ABI: sequences swapped out and in, cached
 * blocks demoted and promoted; every byte of records and planes must come back after the device's
 * blocks were poisoned, and padding must stay. Prints the time of a swap beside that of plain
 * copies of the same bytes. Exit 1 on a failure, 77 without a device. */
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "latentkv/latentkv.h"

enum { PLANES = 2, MAX_BLOCKS = 512 };

struct world {
    lkv_context *ctx;
    lkv_pool *pool;
    lkv_pool_desc desc;
    uint64_t block_bytes, plane_bytes[PLANES];
    cudaStream_t stream;
};

static int failures;

static void must(lkv_status status, const char *what)
{
    if (status == LKV_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, lkv_status_name(status), lkv_last_error());
    exit(1);
}

static void must_cuda(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static const lkv_plane_desc planes[PLANES] = {{48, LKV_PLANE_DEVICE, 1}, {33, LKV_PLANE_HOST, 2}};

static struct world open_world(uint32_t layers, uint64_t num_blocks, uint64_t padding)
{
    struct world w = {.desc = {.size = sizeof w.desc,
                               .format = LKV_FORMAT_INT8,
                               .tokens_per_block = 64,
                               .latent_dim = 512,
                               .rope_dim = 64,
                               .num_layers = layers,
                               .num_blocks = num_blocks,
                               .host_blocks = num_blocks,
                               .planes = planes,
                               .num_planes = PLANES}};
    lkv_context_desc context = {.size = sizeof context, .device = 0, .num_threads = 1};
    lkv_block_info info = {.size = sizeof info};
    if (lkv_context_create(&context, &w.ctx) != LKV_OK) {
        fprintf(stderr, "skipped: %s\n", lkv_last_error());
        exit(77);
    }
    must(lkv_block_query(&w.desc, &info), "query");
    w.block_bytes = info.block_bytes;
    w.desc.block_stride_bytes = info.block_bytes + padding;
    must(lkv_pool_create(w.ctx, &w.desc, &w.pool), "pool");
    must_cuda(cudaStreamCreateWithFlags(&w.stream, cudaStreamNonBlocking), "stream");
    return w;
}

static void close_world(struct world *w)
{
    must_cuda(cudaStreamDestroy(w->stream), "stream");
    lkv_pool_release(w->pool);
    lkv_context_release(w->ctx);
}

/* ---- bytes: each part of a block follows from its number in the sequence */

static uint8_t *part(struct world *w, int32_t block, uint32_t i, uint64_t *bytes)
{
    lkv_pool_layout layout = {.size = sizeof layout};
    void *base;
    if (i < w->desc.num_layers) {
        must(lkv_pool_layer(w->pool, i, &layout), "layer");
        *bytes = w->block_bytes; /* nothing is behind the last block */
        if ((uint64_t)block < w->desc.num_blocks)
            *bytes = w->desc.block_stride_bytes;
        return (uint8_t *)layout.base + (uint64_t)block * w->desc.block_stride_bytes;
    }
    must(lkv_pool_plane(w->pool, i - w->desc.num_layers, &base, bytes), "plane");
    return (uint8_t *)base + (uint64_t)block * *bytes;
}

/* Bytes of block `what`; behind the block's own, padding, the same in every block. */
static void expected(struct world *w, uint32_t what, uint32_t i, uint64_t bytes, uint8_t *out)
{
    for (uint64_t k = 0; k < bytes; k++)
        out[k] = i < w->desc.num_layers && k >= w->block_bytes
                     ? 0xA5
                     : (uint8_t)((what * 2654435761u + i * 40503u + k * 2246822519u) >> 13);
}

static void write_block(struct world *w, int32_t block, uint32_t what)
{
    uint64_t bytes;
    for (uint32_t i = 0; i < w->desc.num_layers + PLANES; i++) {
        uint8_t *at = part(w, block, i, &bytes), *from = malloc(bytes);
        expected(w, what, i, bytes, from);
        must_cuda(cudaMemcpy(at, from, bytes, cudaMemcpyDefault), "write");
        free(from);
    }
}

static void compare_block(struct world *w, int32_t block, uint32_t what, const char *when)
{
    uint64_t bytes;
    for (uint32_t i = 0; i < w->desc.num_layers + PLANES; i++) {
        uint8_t *at = part(w, block, i, &bytes), *found = malloc(bytes), *want = malloc(bytes);
        expected(w, what, i, bytes, want);
        must_cuda(cudaMemcpy(found, at, bytes, cudaMemcpyDefault), "read");
        for (uint64_t k = 0; k < bytes; k++) {
            if (found[k] == want[k])
                continue;
            fprintf(stderr, "%s: block %d part %u byte %llu is %u, want %u\n", when, block, i,
                    (unsigned long long)k, found[k], want[k]);
            failures++;
            break;
        }
        free(found);
        free(want);
    }
}

static lkv_seq admit(struct world *w, uint64_t blocks, int32_t *table)
{
    int32_t *tokens = malloc(blocks * 64 * sizeof *tokens);
    lkv_seq seq;
    uint64_t num;
    for (uint64_t i = 0; i < blocks * 64; i++)
        tokens[i] = (int32_t)i;
    lkv_prompt prompt = {.size = sizeof prompt, .tokens = tokens, .num_tokens = blocks * 64};
    prompt.flags = LKV_PROMPT_NO_PARTIAL;
    must(lkv_seq_admit(w->pool, &prompt, NULL, NULL, &seq), "admit");
    must(lkv_seq_table(w->pool, seq, table, MAX_BLOCKS, &num), "table");
    free(tokens);
    return seq;
}

static void run_copies(struct world *w, uint64_t fence)
{
    must(lkv_pool_apply_copies(w->pool, fence, w->stream), "copies");
    must_cuda(cudaStreamSynchronize(w->stream), "synchronise");
    must(lkv_pool_pass_fence(w->pool, fence), "fence");
    must(lkv_pool_check(w->pool), "check");
}

static void poison(struct world *w)
{
    for (int32_t b = 1; b <= (int32_t)w->desc.num_blocks; b++)
        write_block(w, b, 999);
}

static void bytes_come_back(void)
{
    struct world w = open_world(3, 8, 112);
    int32_t table[MAX_BLOCKS];
    uint64_t num;
    lkv_seq seq = admit(&w, 4, table);
    for (uint32_t i = 0; i < 4; i++)
        write_block(&w, table[i], i);
    must(lkv_seq_swap_out(w.pool, seq, 0, NULL), "swap out");
    run_copies(&w, 1);
    poison(&w);
    must(lkv_seq_swap_in(w.pool, seq, NULL), "swap in");
    run_copies(&w, 2);
    must(lkv_seq_table(w.pool, seq, table, MAX_BLOCKS, &num), "table");
    for (uint32_t i = 0; i < 4; i++)
        compare_block(&w, table[i], i, "swap");
    must(lkv_seq_commit(w.pool, seq, 4 * 64), "commit");
    must(lkv_seq_free(w.pool, seq, 0), "free");
    must(lkv_pool_demote(w.pool, 8, &num), "demote");
    run_copies(&w, 3);
    must(lkv_pool_evict(w.pool, 8, &num), "evict");
    poison(&w);
    seq = admit(&w, 4, table);
    run_copies(&w, 4);
    for (uint32_t i = 0; i < 3; i++) /* the last block must run again */
        compare_block(&w, table[i], i, "promotion");
    must(lkv_seq_free(w.pool, seq, 0), "free");
    close_world(&w);
}

/* One way of a swap: host time to enqueue, time until it is done. */
static void timed(struct world *w, uint64_t blocks, uint64_t fence, const char *name)
{
    double begin = seconds(), bytes = (double)blocks * (double)w->desc.num_layers;
    bytes *= (double)w->block_bytes;
    must(lkv_pool_apply_copies(w->pool, fence, w->stream), "copies");
    double queued = seconds();
    must_cuda(cudaStreamSynchronize(w->stream), "synchronise");
    double done = seconds();
    must(lkv_pool_pass_fence(w->pool, fence), "fence");
    printf("%-28s %4llu blocks of %u layers, %.0f MB: enqueued in %.2f ms, done in %.2f ms, %.1f "
           "GB/s\n",
           name, (unsigned long long)blocks, w->desc.num_layers, bytes / 1e6,
           1e3 * (queued - begin), 1e3 * (done - begin), bytes / 1e9 / (done - begin));
}

/* The same bytes as one copy, and as one 2-D copy a block: what a swap is measured against. */
static void plain(struct world *w, uint64_t blocks)
{
    lkv_pool_layout layout = {.size = sizeof layout};
    uint64_t stride = (w->desc.num_blocks + 1) * w->desc.block_stride_bytes;
    uint64_t row = w->desc.num_layers * w->block_bytes, bytes = blocks * row;
    uint8_t *host;
    must(lkv_pool_layer(w->pool, 0, &layout), "layer");
    must_cuda(cudaHostAlloc((void **)&host, bytes, cudaHostAllocDefault), "pinned memory");
    for (int round = 0; round < 2; round++) {
        double begin = seconds();
        must_cuda(cudaMemcpyAsync(host, layout.base, bytes, cudaMemcpyDeviceToHost, w->stream),
                  "copy");
        must_cuda(cudaStreamSynchronize(w->stream), "synchronise");
        double one = seconds();
        for (uint64_t b = 0; b < blocks; b++)
            must_cuda(cudaMemcpy2DAsync(
                          host + b * row, w->block_bytes,
                          (uint8_t *)layout.base + (b + 1) * w->desc.block_stride_bytes, stride,
                          w->block_bytes, w->desc.num_layers, cudaMemcpyDeviceToHost, w->stream),
                      "2-D copy");
        double queued = seconds();
        must_cuda(cudaStreamSynchronize(w->stream), "synchronise");
        double rows = seconds();
        if (round)
            printf("one copy %.2f ms, %.1f GB/s; 2-D copies enqueued in %.2f ms, done in %.2f ms, "
                   "%.1f GB/s\n",
                   1e3 * (one - begin), (double)bytes / 1e9 / (one - begin), 1e3 * (queued - one),
                   1e3 * (rows - one), (double)bytes / 1e9 / (rows - one));
    }
    must_cuda(cudaFreeHost(host), "pinned memory");
}

static void times(void)
{
    struct world w = open_world(61, 170, 0);
    int32_t table[MAX_BLOCKS];
    lkv_seq seq = admit(&w, 157, table); /* 10,000 tokens of V3 */
    for (uint64_t round = 0; round < 3; round++) {
        must(lkv_seq_swap_out(w.pool, seq, 0, NULL), "swap out");
        timed(&w, 157, 2 * round + 1, "swap out");
        must(lkv_seq_swap_in(w.pool, seq, NULL), "swap in");
        timed(&w, 157, 2 * round + 2, "swap in");
    }
    plain(&w, 157);
    close_world(&w);
}

int main(void)
{
    bytes_come_back();
    times();
    printf("swap: %d failures\n", failures);
    return failures != 0;
}
