/* Which codec runs: (format, instruction set) to a table entry; and the tile decoder that attention
 * reads blocks with. An instruction set that this build lacks falls back to the scalar entry. */
#include "quant/scalar.h"

enum { NUM_FORMATS = 4, NUM_ISAS = 3 };

static const struct lkvi_codec *const codecs[NUM_FORMATS][NUM_ISAS] = {
#if defined(__x86_64__)
    {&lkvi_codec_bf16_scalar, &lkvi_codec_bf16_avx2, &lkvi_codec_bf16_avx512},
    {&lkvi_codec_fp8_scalar, &lkvi_codec_fp8_avx2, &lkvi_codec_fp8_avx512},
    {&lkvi_codec_int8_scalar, &lkvi_codec_int8_avx2, &lkvi_codec_int8_avx512},
    {&lkvi_codec_nvfp4_scalar, &lkvi_codec_nvfp4_avx2, &lkvi_codec_nvfp4_avx512},
#else
    {&lkvi_codec_bf16_scalar, &lkvi_codec_bf16_scalar, &lkvi_codec_bf16_scalar},
    {&lkvi_codec_fp8_scalar, &lkvi_codec_fp8_scalar, &lkvi_codec_fp8_scalar},
    {&lkvi_codec_int8_scalar, &lkvi_codec_int8_scalar, &lkvi_codec_int8_scalar},
    {&lkvi_codec_nvfp4_scalar, &lkvi_codec_nvfp4_scalar, &lkvi_codec_nvfp4_scalar},
#endif
};

static const struct lkvi_row_ops *const row_ops[NUM_ISAS] = {
#if defined(__x86_64__)
    &lkvi_row_ops_scalar,
    &lkvi_row_ops_avx2,
    &lkvi_row_ops_avx512,
#else
    &lkvi_row_ops_scalar,
    &lkvi_row_ops_scalar,
    &lkvi_row_ops_scalar,
#endif
};

static uint32_t isa_column(uint32_t isa)
{
    return isa >= LKV_ISA_SCALAR && isa <= LKV_ISA_AVX512 ? isa - LKV_ISA_SCALAR : 0;
}

const struct lkvi_codec *lkvi_codec_get(uint32_t format, uint32_t isa)
{
    if (format < LKV_FORMAT_BF16 || format > LKV_FORMAT_NVFP4)
        return NULL;
    return codecs[format - LKV_FORMAT_BF16][isa_column(isa)];
}

const struct lkvi_row_ops *lkvi_row_ops_get(uint32_t isa)
{
    return row_ops[isa_column(isa)];
}

uint32_t lkvi_codec_group(const struct lkvi_record *record)
{
    if (record->format == LKV_FORMAT_NVFP4)
        return LKVI_NVFP4_GROUP;
    if (record->format == LKV_FORMAT_FP8)
        return LKVI_FP8_GROUP;
    return record->latent_dim;
}

void lkvi_decode_rows(const struct lkvi_store *store, uint32_t isa, const uint8_t *block,
                      uint32_t begin, uint32_t count, float *rows, uint64_t stride)
{
    const struct lkvi_record *record = &store->record;
    const struct lkvi_codec *codec = lkvi_codec_get(record->format, isa);
    const struct lkvi_row_ops *ops = lkvi_row_ops_get(isa);
    for (uint32_t j = 0; j < count; j++) {
        const uint8_t *bytes = block + (uint64_t)(begin + j) * record->bytes;
        float *row = rows + j * stride;
        codec->decode(record, bytes, row);
        if (record->rope_dim)
            ops->rope_decode(bytes + record->rope_offset, record->rope_dim,
                             row + record->latent_dim);
    }
}
