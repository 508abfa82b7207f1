/* Plain block LRU, the yardstick of `lkv replay --compare lru`: a simulator that knows nothing of
 * the library. Blocks are names; a prompt is a chain of them. */
#ifndef TOOLS_REPLAY_LRU_H
#define TOOLS_REPLAY_LRU_H

#include <stdint.h>
#include "tools/replay/trace.h"

struct lru;
struct lru *lru_new(uint64_t num_blocks, uint32_t block_tokens);
void lru_free(struct lru *l);

/* Admits, publishes and frees a request of the trace; gives the prompt tokens found in whole
 * blocks. UINT64_MAX: the prompt is larger than the cache, which is left alone. */
uint64_t lru_request(struct lru *l, const struct trace *t, uint64_t request);

#endif
