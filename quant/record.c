/* The layout rule: from a pool's format and dimensions to byte offsets inside one record.
 *
 *   | codes, padded to 16 | scales, padded to 16 | rope as bf16, padded to 16 |
 *
 * and, of a LATENT_GQA token, two such records without rope a KV head, in a row.
 *
 * In: the descriptor's format, flags and dimensions, which are checked here. Out: struct
 * lkvi_record, the one place from which every codec and kernel takes its offsets. */
#include "quant/record.h"
#include "quant/codec.h"
#include "core/status.h"

enum { SECTION_ALIGN = 16, FP8_GROUP = 128, NVFP4_GROUP = 16, OUTER_BYTES = 16 };
enum { MAX_KV_HEADS = 256, MAX_HEAD_LATENT = 1024 };

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
    return LKV_OK;
}

static lkv_status check_head_latent(const lkv_pool_desc *desc, const char *name, uint32_t latent)
{
    if (latent == 0 || latent % 16 != 0 || latent > MAX_HEAD_LATENT)
        return lkvi_fail(LKV_E_INVALID,
                         "%s is %u; LKV_KIND_LATENT_GQA needs a multiple of 16, at most %d", name,
                         latent, MAX_HEAD_LATENT);
    if ((desc->encode_flags & LKV_ENCODE_ROTATE) && (latent & (latent - 1)) != 0)
        return lkvi_fail(LKV_E_INVALID, "%s is %u; LKV_ENCODE_ROTATE needs a power of two", name,
                         latent);
    return LKV_OK;
}

static lkv_status check_kind(const lkv_pool_desc *desc)
{
    if (desc->kind > LKV_KIND_LATENT_GQA)
        return lkvi_fail(LKV_E_INVALID,
                         "kind is %u; need LKV_KIND_MLA (0) or LKV_KIND_LATENT_GQA (1)",
                         desc->kind);
    if (desc->kind == LKV_KIND_MLA && desc->num_kv_heads > 1)
        return lkvi_fail(LKV_E_INVALID, "num_kv_heads is %u; LKV_KIND_MLA needs 0 or 1",
                         desc->num_kv_heads);
    if (desc->kind == LKV_KIND_MLA && desc->value_latent_dim)
        return lkvi_fail(LKV_E_INVALID, "value_latent_dim is %u; LKV_KIND_MLA needs 0",
                         desc->value_latent_dim);
    if (desc->kind == LKV_KIND_MLA)
        return LKV_OK;
    if (desc->num_kv_heads < 1 || desc->num_kv_heads > MAX_KV_HEADS)
        return lkvi_fail(LKV_E_INVALID, "num_kv_heads is %u; LKV_KIND_LATENT_GQA needs 1 to %d",
                         desc->num_kv_heads, MAX_KV_HEADS);
    if (desc->rope_dim)
        return lkvi_fail(LKV_E_INVALID, "rope_dim is %u; LKV_KIND_LATENT_GQA needs 0",
                         desc->rope_dim);
    LKV_TRY(check_head_latent(desc, "latent_dim", desc->latent_dim));
    return desc->value_latent_dim
               ? check_head_latent(desc, "value_latent_dim", desc->value_latent_dim)
               : LKV_OK;
}

/* The sections of one latent, from its first byte. */
static void set_latent(struct lkvi_record *r, uint32_t latent)
{
    r->latent_dim = latent;
    r->codes_bytes = codes_bytes(r->format, latent);
    r->scales_bytes = scales_bytes(r->format, latent);
    r->scales_offset = r->codes_offset + r->codes_bytes;
    r->rope_offset = r->scales_offset + r->scales_bytes;
}

lkv_status lkvi_record_layout(const lkv_pool_desc *desc, struct lkvi_record *out)
{
    LKV_TRY(check_format(desc));
    LKV_TRY(check_kind(desc));
    LKV_TRY(check_dims(desc));
    struct lkvi_record r = {.format = desc->format,
                            .encode_flags = desc->encode_flags,
                            .rope_dim = desc->rope_dim,
                            .rope_bytes = pad(desc->rope_dim * 2),
                            .kind = desc->kind,
                            .kv_heads = 1,
                            .value_dim = desc->latent_dim};
    set_latent(&r, desc->latent_dim);
    r.head_bytes = r.rope_offset + r.rope_bytes;
    if (desc->kind == LKV_KIND_LATENT_GQA) {
        r.kv_heads = desc->num_kv_heads;
        r.value_dim = desc->value_latent_dim ? desc->value_latent_dim : desc->latent_dim;
        r.value_offset = r.head_bytes;
        r.head_bytes +=
            codes_bytes(desc->format, r.value_dim) + scales_bytes(desc->format, r.value_dim);
    }
    r.bytes = r.kv_heads * r.head_bytes;
    *out = r;
    return LKV_OK;
}

struct lkvi_store lkvi_store_part(const struct lkvi_store *store, uint32_t kv_head,
                                  uint32_t is_value)
{
    struct lkvi_store part = *store;
    part.base += (uint64_t)kv_head * store->record.head_bytes;
    if (is_value) {
        part.base += store->record.value_offset;
        set_latent(&part.record, store->record.value_dim);
    }
    return part;
}
