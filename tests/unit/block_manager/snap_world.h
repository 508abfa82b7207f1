/* Pools with records and planes whose every byte follows from the prompt, so that what comes out of
 * a snapshot can be told from what should. */
#ifndef TESTS_UNIT_BLOCK_MANAGER_SNAP_WORLD_H
#define TESTS_UNIT_BLOCK_MANAGER_SNAP_WORLD_H

#include <stdint.h>
#include "latentkv/latentkv.h"

enum { SNAP_BLOCK = 16, SNAP_LAYERS = 3, SNAP_LATENT = 32, SNAP_ROPE = 16, SNAP_TOKENS_MAX = 256 };

struct snap_pool {
    lkv_context *ctx;
    lkv_pool *pool;
};

/* A prompt: tokens first, first + 1, ...; keys: 0 none, 1 an adapter, 2 an image over [20, 40). */
struct snap_prompt {
    int32_t first;
    uint32_t keys;
    uint64_t num_tokens;
};

/* planes, an odd size among them; block_major: layers of a block beside each other. */
lkv_pool_desc snap_desc(uint64_t num_blocks, int planes, int block_major);
struct snap_pool snap_open(const lkv_pool_desc *desc);
void snap_close(struct snap_pool *p);

/* Admitted, every record and plane byte written, committed and freed. */
void snap_cache(struct snap_pool *p, const struct snap_prompt *prompt);
uint64_t snap_match(struct snap_pool *p, const struct snap_prompt *prompt); /* hit tokens */
/* Admits the prompt; every byte of its hit blocks must be its own. The hit tokens. */
uint64_t snap_verify(struct snap_pool *p, const struct snap_prompt *prompt);

lkv_status snap_save(struct snap_pool *p, const char *path, lkv_snapshot_info *info);
lkv_status snap_load(struct snap_pool *p, const char *path, lkv_snapshot_info *info);
/* Ends the program with the sentence. */
void snap_must(lkv_status status, const char *what);

#endif
