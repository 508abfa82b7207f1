/* What the benches share: shapes from the command line, a filled cache, rows of results. */
#ifndef TOOLS_BENCH_BENCH_H
#define TOOLS_BENCH_BENCH_H

#include <argp.h>
#include <jansson.h>
#include <stdint.h>
#include "latentkv/latentkv.h"
#include "tools/common/device.h"
#include "tools/common/stats.h"

enum { MAX_ITEMS = 32 };

struct number_list {
    uint64_t items[MAX_ITEMS];
    size_t count;
};

struct bench_options {
    int32_t device;
    uint32_t formats[4], encode_flags;
    size_t num_formats;
    struct number_list heads, q_lens, batches, contexts;
    uint32_t threads, isa, repeats, block_tokens;
    double seconds; /* of one shape at most, after five runs */
    uint64_t seed;
    const char *preset, *json;
    int keep_caches; /* no flush between runs */
};

/* options.c: fills o (defaults already in it); which: "append" or "decode". */
void bench_parse(int argc, char **argv, const char *doc, struct bench_options *o);

/* bench.c: the machine of a bench. */
struct bench {
    const struct bench_options *options;
    struct device *device;
    lkv_context *ctx;
    lkv_context_info info;
    lkv_model_desc model;
    double fma_tflops; /* ceiling of the CPU; 0 on a GPU */
    char kernel[64];   /* what the last plan said it would run */
    json_t *rows;
};
void bench_open(struct bench *b, const struct bench_options *o);
void bench_close(struct bench *b); /* prints the rows and writes the JSON */

struct bench_shape {
    uint32_t format;
    uint64_t heads, q_len, batch, context;
};

/* table.c: the shapes that a GPU is measured at, and the best bf16 peer's time, quoted. */
struct bench_table_row {
    uint64_t heads, q_len, batch, context;
    const char *peer;
    double peer_us;
};
extern const struct bench_table_row bench_table[];
extern const size_t bench_table_rows;
/* Puts a peer beside the last row added. */
void bench_add_peer(struct bench *b, const struct bench_table_row *peer);

/* cache.c: an engine-owned pool with `batch` sequences of `context` tokens in shuffled blocks. */
struct bench_cache {
    lkv_pool *pool;
    lkv_block_info block;
    int32_t *block_table; /* device [batch, width] */
    int32_t *seq_lens;    /* device [batch] */
    int32_t *q_indptr;    /* device [batch + 1] */
    int64_t *slots;       /* host [batch * context] */
    void *latent, *rope;  /* device bf16 [CACHE_ROWS, L], [CACHE_ROWS, R] */
    uint32_t width;
};
enum { CACHE_ROWS = 4096 };
void cache_open(struct bench *b, const struct bench_shape *shape, int fill, struct bench_cache *c);
void cache_close(struct bench *b, struct bench_cache *c);
/* Device memory; a failure ends the command. */
void *bench_alloc(struct bench *b, size_t bytes);
void bench_write(struct bench *b, void *to, const void *from, size_t bytes);
void *bench_upload(struct bench *b, const void *from, size_t bytes);
/* n normal numbers as bf16 in device memory */
void *bench_normals(struct bench *b, uint64_t n, uint64_t seed);
lkv_tensor bench_tensor(void *data, uint32_t dtype, uint32_t ndim, int64_t n0, int64_t n1,
                        int64_t n2);

/* rows.c */
/* Warm-up, then timed runs with flushed caches. */
void bench_measure(struct bench *b, void (*run)(void *), void *arg, struct series *us);
/* Adds a row; 0 in the shape becomes null. bytes and flops: of one run. */
void bench_add_row(struct bench *b, const char *kernel, const struct bench_shape *shape,
                   struct series *us, double bytes, double flops);
void bench_print_rows(const json_t *rows);

int bench_append(int argc, char **argv);
int bench_decode(int argc, char **argv);
int bench_blocks(int argc, char **argv);
int bench_fallback(int argc, char **argv);
int bench_frag(int argc, char **argv);

#endif
