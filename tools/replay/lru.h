/* Plain block LRU, the yardstick of `lkv replay`: a simulator that knows nothing of the library.
 * Blocks are names, a prompt is a chain of them, and the oldest block that nobody uses goes. It can
 * be driven through the same admissions, commits, frees and lends as the manager. */
#ifndef TOOLS_REPLAY_LRU_H
#define TOOLS_REPLAY_LRU_H

#include <stdint.h>
#include "tools/replay/trace.h"

struct lru;
struct lru *lru_new(uint64_t num_blocks, uint32_t block_tokens);
void lru_free(struct lru *l);

/* A running sequence of the trace. */
struct lru_seq;
/* Takes blocks for the first num_tokens tokens (prompt, then what it generated); *hit_tokens are
 * those found in whole blocks. Never refused: blocks beyond the cache's size are simply made. */
struct lru_seq *lru_admit(struct lru *l, const struct trace *t, uint64_t request,
                          uint64_t num_tokens, uint64_t *hit_tokens);
void lru_grow(struct lru *l, struct lru_seq *seq, uint64_t num_tokens);
void lru_commit(struct lru *l, struct lru_seq *seq, uint64_t num_tokens); /* names whole blocks */
void lru_drop(struct lru *l, struct lru_seq *seq);
/* Blocks go to somebody else, or come back. */
void lru_lend(struct lru *l, uint64_t num_blocks);
void lru_return(struct lru *l, uint64_t num_blocks);

/* Admits, publishes and frees a request of the trace; gives the prompt tokens found in whole
 * blocks. UINT64_MAX: the prompt is larger than the cache, which is left alone. */
uint64_t lru_request(struct lru *l, const struct trace *t, uint64_t request);

#endif
