/* The way into quant/: record codecs and row arithmetic, one table entry a format and an
 * instruction set. In: fp32 rows; out: record bytes, and back. Every instruction set gives the same
 * bytes and the same fp32 bits, so a caller may mix them freely; docs/formats.md is the rule,
 * the scalar codecs are its text in C. Nothing here allocates or fails; rows are fp32,
 * L = record.latent_dim, R = record.rope_dim. */
#ifndef LKVI_QUANT_CODEC_H
#define LKVI_QUANT_CODEC_H

#include <stdint.h>
#include "quant/params.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Largest row that the operations hold on the stack: L <= 4096, R <= 256 (record.c refuses more).
 */
enum { LKVI_MAX_LATENT = 4096, LKVI_MAX_ROPE = 256 };

/* What the non-finite rule did to one row. */
struct lkvi_repair {
    uint32_t count; /* values replaced */
    uint32_t first; /* index of the first, meaningful where count > 0 */
};

struct lkvi_codec {
    /* Writes the codes and scales sections of one record from row [L]. Values that are not finite
     * are first replaced in row itself and reported in *repair (added to what is there). The rope
     * section is not touched. */
    void (*encode)(const struct lkvi_record *record, float fixed_outer, float *row, uint8_t *bytes,
                   struct lkvi_repair *repair);
    /* row [L] gets the dequantised latent in the stored basis (rotated pools: still rotated). */
    void (*decode)(const struct lkvi_record *record, const uint8_t *bytes, float *row);
};

/* Arithmetic on fp32 rows that has a stated order of operations (docs/formats.md). */
struct lkvi_row_ops {
    /* n values of dtype (F32, F16, BF16) <-> fp32; stores round to nearest even */
    void (*load)(const void *from, uint32_t dtype, uint32_t n, float *row);
    void (*store)(const float *row, uint32_t n, uint32_t dtype, void *to);
    /* the non-finite rule over groups of `group` values (the last may be short) */
    void (*repair)(float *row, uint32_t n, uint32_t group, struct lkvi_repair *repair);
    /* row = (row * (1 / sqrt(sum(row^2) / n + eps))) * weight, sum in the stated order;
     * n a multiple of 16 */
    void (*rms_norm)(float *row, uint32_t n, const float *weight, float eps);
    /* orthonormal Hadamard rotation in place, its own inverse; n a power of two >= 16 */
    void (*hadamard)(float *row, uint32_t n);
    /* rope section: fp32 [n] -> bf16, finite values saturate; n even */
    void (*rope_encode)(const float *row, uint32_t n, uint8_t *bytes);
    void (*rope_decode)(const uint8_t *bytes, uint32_t n, float *row);
};

/* format LKV_FORMAT_*, isa LKV_ISA_SCALAR, _AVX2 or _AVX512; an isa that this build lacks gives the
 * scalar entry. Never NULL for a known format. */
const struct lkvi_codec *lkvi_codec_get(uint32_t format, uint32_t isa);
const struct lkvi_row_ops *lkvi_row_ops_get(uint32_t isa);

/* The non-finite rule's group of a format: 16 for NVFP4, 128 for FP8, L otherwise. */
uint32_t lkvi_codec_group(const struct lkvi_record *record);

/* Turns row [n] in place by one position's cos and sin [n / 2]; style LKV_ROPE_*. Same bits on
 * every instruction set: one multiply, one multiply, one add or subtract, no contraction. */
void lkvi_rope_turn(float *row, uint32_t n, const float *cos, const float *sin, uint32_t style);

/* Tile decoder for attention: tokens [begin, begin + count) of the block at `block`
 * (= store->base + id * store->block_stride) to fp32 rows, latent in the stored basis (a rotated
 * pool's weights and queries carry the rotation). Row j is rows + j * stride floats: the latent,
 * then the rope part. Exactly the values that lkv_gather gives with LKV_GATHER_STORED_BASIS. */
void lkvi_decode_rows(const struct lkvi_store *store, uint32_t isa, const uint8_t *block,
                      uint32_t begin, uint32_t count, float *rows, uint64_t stride);

#ifdef __cplusplus
}
#endif
#endif
