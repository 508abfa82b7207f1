/* The single definition of the record's byte layout (DESIGN 3 and 8, docs/formats.md). Plain C,
 * also compiled by nvcc. */
#ifndef LKVI_QUANT_RECORD_H
#define LKVI_QUANT_RECORD_H

#include <stdint.h>
#include "latentkv/latentkv.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LKVI_FORMAT_VERSION = 1 };

/* One token of one layer. All offsets and sizes in bytes; each section starts and ends on 16. */
struct lkvi_record {
    uint32_t format;       /* LKV_FORMAT_* */
    uint32_t encode_flags; /* LKV_ENCODE_* */
    uint32_t latent_dim;   /* L */
    uint32_t rope_dim;     /* R */
    uint32_t codes_offset, codes_bytes;
    uint32_t scales_offset, scales_bytes;
    uint32_t rope_offset, rope_bytes;
    uint32_t bytes; /* from token to token */
    uint32_t kind;  /* LKV_KIND_* */
    /* LATENT_GQA: | head 0: key, value | head 1: ... |, each a record without a rope part; the
     * fields above are head 0's key. MLA: one head, whose value is the latent. */
    uint32_t kv_heads;
    uint32_t value_dim;    /* L_v */
    uint32_t value_offset; /* from a head's key to its value */
    uint32_t head_bytes;
};
lkv_status lkvi_record_layout(const lkv_pool_desc *desc, struct lkvi_record *out);

/* Where the first fault of a pool is kept; lives in device memory for CUDA. Updated with atomics.
 */
struct lkvi_fault_record {
    uint64_t count;
    uint64_t first_token;
    int64_t first_index;
    uint32_t first_kind; /* LKV_FAULT_*, 0 none: claimed by compare-and-swap */
    uint32_t reserved;
};

/* One layer of a pool as append, gather and attend see it. Device pointers. */
struct lkvi_store {
    struct lkvi_record record;
    uint32_t tokens_per_block;
    uint32_t first_block;  /* writes to blocks below it are refused: 1 in LIBRARY pools, 0 in ENGINE
                              pools */
    uint64_t num_blocks;   /* memory blocks: ids 0..num_blocks-1 exist */
    uint64_t block_stride; /* bytes */
    uint8_t *base;         /* of this layer */
    struct lkvi_fault_record *faults;
    float fixed_outer; /* with LKV_ENCODE_NVFP4_FIXED_OUTER */
    uint32_t reserved;
};
/* The key latents, or the value latents, of one KV head as a store of their own: what codecs and
 * row loops of a single latent work on. */
struct lkvi_store lkvi_store_part(const struct lkvi_store *store, uint32_t kv_head,
                                  uint32_t is_value);

#ifdef __cplusplus
}
#endif
#endif
