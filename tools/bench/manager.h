/* Block manager benches: a pool without record memory and prompts of seeded tokens. */
#ifndef TOOLS_BENCH_MANAGER_H
#define TOOLS_BENCH_MANAGER_H

#include <stdint.h>
#include "latentkv/latentkv.h"

enum { MANAGER_BLOCK = 64 };

struct manager {
    lkv_context *ctx;
    lkv_pool *pool;
};
struct manager manager_open(uint64_t num_blocks, uint32_t max_seqs, double headroom);
void manager_close(struct manager *m);
lkv_pool_stats manager_stats(const struct manager *m);

/* n tokens; different seeds give different ones within the first two. */
void fill_tokens(int32_t *tokens, uint64_t n, uint64_t seed);
lkv_seq manager_admit(struct manager *m, const int32_t *tokens, uint64_t n, lkv_admission *result);
void manager_commit(struct manager *m, lkv_seq seq, uint64_t n);
void manager_free(struct manager *m, lkv_seq seq);
/* Admits, commits and frees: the prompt's whole blocks are cached and idle afterwards. */
void manager_cache(struct manager *m, const int32_t *tokens, uint64_t n);

/* operations.c: the rows of the table */
double measure_match_admit(uint32_t repeats);
double measure_step(uint32_t repeats, int whole_tables);
double measure_cold_prompt(uint32_t repeats);
struct evict_cost {
    double small_us, large_us; /* a block */
    double metadata_bytes;     /* a block, of the larger pool when it is full */
};
struct evict_cost measure_evict(uint64_t small_blocks, uint64_t large_blocks);
/* Step calls a second of eight threads together to those of one: on one pool, and, what the cores
 * give at most, on a pool each. */
struct threads_ratio {
    double one_pool, own_pools;
};
struct threads_ratio measure_threads_ratio(void);

#endif
