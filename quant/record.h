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
    uint32_t bytes;
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

#ifdef __cplusplus
}
#endif
#endif
