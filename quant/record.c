/* The layout rule: from a pool's format and dimensions to byte offsets inside one record.
 *
 *   | codes, padded to 16 | scales, padded to 16 | rope as bf16, padded to 16 |
 *
 * In: the descriptor's format, flags and dimensions, which are checked here. Out: struct
 * lkvi_record, the one place from which every codec and kernel takes its offsets. */
#include "quant/record.h"
#include "quant/codec.h"
#include "core/status.h"

enum { SECTION_ALIGN = 16, FP8_GROUP = 128, NVFP4_GROUP = 16, OUTER_BYTES = 16 };

static uint32_t pad(uint32_t bytes)
{
    return (bytes + SECTION_ALIGN - 1) / SECTION_ALIGN * SECTION_ALIGN;
}

static uint32_t codes_bytes(uint32_t format, uint32_t latent)
{
    switch (format) {
    case LKV_FORMAT_BF16:
        return latent * 2;
    case LKV_FORMAT_NVFP4:
        return pad(latent / 2);
    default:
        return latent;
    }
}

static uint32_t scales_bytes(uint32_t format, uint32_t latent)
{
    switch (format) {
    case LKV_FORMAT_FP8:
        return pad((latent + FP8_GROUP - 1) / FP8_GROUP * 4);
    case LKV_FORMAT_INT8:
        return SECTION_ALIGN;
    case LKV_FORMAT_NVFP4:
        return pad(latent / NVFP4_GROUP) + OUTER_BYTES;
    default:
        return 0;
    }
}

static uint32_t allowed_flags(uint32_t format)
{
    switch (format) {
    case LKV_FORMAT_INT8:
        return LKV_ENCODE_ROTATE | LKV_ENCODE_INT8_SYMMETRIC;
    case LKV_FORMAT_NVFP4:
        return LKV_ENCODE_ROTATE | LKV_ENCODE_NVFP4_FIXED_OUTER | LKV_ENCODE_NVFP4_FOUR_OVER_SIX;
    default:
        return LKV_ENCODE_ROTATE;
    }
}

static lkv_status check_dims(const lkv_pool_desc *desc)
{
    uint32_t latent = desc->latent_dim;
    if (latent == 0 || latent % 16 != 0 || latent > LKVI_MAX_LATENT)
        return lkvi_fail(LKV_E_INVALID, "latent_dim is %u; need a multiple of 16, at most %d",
                         latent, LKVI_MAX_LATENT);
    if (desc->rope_dim % 2 != 0 || desc->rope_dim > LKVI_MAX_ROPE)
        return lkvi_fail(LKV_E_INVALID, "rope_dim is %u; need an even number, at most %d",
                         desc->rope_dim, LKVI_MAX_ROPE);
    if (desc->rope_style > LKV_ROPE_HALF)
        return lkvi_fail(LKV_E_INVALID, "rope_style is %u; need 0, 1 or 2 (LKV_ROPE_*)",
                         desc->rope_style);
    if ((desc->encode_flags & LKV_ENCODE_ROTATE) && (latent & (latent - 1)) != 0)
        return lkvi_fail(LKV_E_INVALID, "latent_dim is %u; LKV_ENCODE_ROTATE needs a power of two",
                         latent);
    return LKV_OK;
}

static lkv_status check_format(const lkv_pool_desc *desc)
{
    if (desc->format < LKV_FORMAT_BF16 || desc->format > LKV_FORMAT_NVFP4)
        return lkvi_fail(LKV_E_INVALID, "format is %u; need 1..4 (LKV_FORMAT_*)", desc->format);
    uint32_t refused = desc->encode_flags & ~allowed_flags(desc->format);
    if (refused)
        return lkvi_fail(LKV_E_INVALID, "encode_flags has 0x%x; format %u takes only flags of 0x%x",
                         refused, desc->format, allowed_flags(desc->format));
    if (desc->kind == LKV_KIND_LATENT_GQA)
        return lkvi_fail(LKV_E_UNSUPPORTED,
                         "kind is LKV_KIND_LATENT_GQA; this release stores LKV_KIND_MLA records");
    if (desc->kind != LKV_KIND_MLA)
        return lkvi_fail(LKV_E_INVALID, "kind is %u; need LKV_KIND_MLA (0)", desc->kind);
    if (desc->num_kv_heads > 1)
        return lkvi_fail(LKV_E_INVALID, "num_kv_heads is %u; LKV_KIND_MLA needs 0 or 1",
                         desc->num_kv_heads);
    return LKV_OK;
}

lkv_status lkvi_record_layout(const lkv_pool_desc *desc, struct lkvi_record *out)
{
    LKV_TRY(check_format(desc));
    LKV_TRY(check_dims(desc));
    struct lkvi_record r = {.format = desc->format,
                            .encode_flags = desc->encode_flags,
                            .latent_dim = desc->latent_dim,
                            .rope_dim = desc->rope_dim,
                            .codes_bytes = codes_bytes(desc->format, desc->latent_dim),
                            .scales_bytes = scales_bytes(desc->format, desc->latent_dim),
                            .rope_bytes = pad(desc->rope_dim * 2)};
    r.scales_offset = r.codes_offset + r.codes_bytes;
    r.rope_offset = r.scales_offset + r.scales_bytes;
    r.bytes = r.rope_offset + r.rope_bytes;
    *out = r;
    return LKV_OK;
}
