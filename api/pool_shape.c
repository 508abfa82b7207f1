/* In: a pool descriptor. Out: its layout in memory and its identity.
 *
 *   layer-major:  | layer 0: block 0, block 1, ... | layer 1: block 0, ... |   layer stride >=
 * layer block-major:  | block 0: layer 0, layer 1, ... | block 1: layer 0, ... |   layer stride <
 * block
 *
 * base = floor(N / (1 + headroom)); the rest of N is what fallback experts may borrow. */
#include "api/pool_shape.h"

#include <math.h>
#include <string.h>
#include "core/sha256.h"
#include "core/status.h"

enum { STRIDE_ALIGNMENT = 16, MAX_LAYERS = 4096, MAX_SEQS = 1 << 20, MAX_EVENTS = 1 << 24 };
#define MAX_BLOCKS ((uint64_t)INT32_MAX - 1) /* ids are int32 and LIBRARY pools have one more */

static lkv_status check_counts(const lkv_pool_desc *d)
{
    uint32_t b = d->tokens_per_block;
    if (b != 16 && b != 32 && b != 64 && b != 128)
        return lkvi_fail(LKV_E_INVALID, "tokens_per_block is %u; need 16, 32, 64 or 128", b);
    if (d->num_layers < 1 || d->num_layers > MAX_LAYERS)
        return lkvi_fail(LKV_E_INVALID, "num_layers is %u; need 1 to %d", d->num_layers,
                         MAX_LAYERS);
    if (d->num_blocks < 1 || d->num_blocks > MAX_BLOCKS)
        return lkvi_fail(LKV_E_INVALID, "num_blocks is %llu; need 1 to %llu",
                         (unsigned long long)d->num_blocks, (unsigned long long)MAX_BLOCKS);
    if (d->host_blocks > MAX_BLOCKS - d->num_blocks)
        return lkvi_fail(LKV_E_INVALID, "host_blocks is %llu; need at most %llu with %llu blocks",
                         (unsigned long long)d->host_blocks,
                         (unsigned long long)(MAX_BLOCKS - d->num_blocks),
                         (unsigned long long)d->num_blocks);
    if (d->max_seqs > MAX_SEQS)
        return lkvi_fail(LKV_E_INVALID, "max_seqs is %u; need at most %d", d->max_seqs, MAX_SEQS);
    if (d->num_planes > LKVI_MAX_PLANES)
        return lkvi_fail(LKV_E_INVALID, "num_planes is %u; need at most %d", d->num_planes,
                         LKVI_MAX_PLANES);
    return LKV_OK;
}

/* Things that only make sense together. */
static lkv_status check_owner(const lkv_pool_desc *d)
{
    const uint32_t flags =
        LKV_POOL_METADATA_ONLY | LKV_POOL_NO_CACHE | LKV_POOL_NO_PARTIAL | LKV_POOL_EVENTS;
    if (d->owner > LKV_OWNER_ENGINE)
        return lkvi_fail(LKV_E_INVALID, "owner is %u; need LKV_OWNER_LIBRARY or LKV_OWNER_ENGINE",
                         d->owner);
    if (d->flags & ~flags)
        return lkvi_fail(LKV_E_INVALID, "pool flags are 0x%x; need bits of 0x%x", d->flags, flags);
    int metadata_only = d->flags & LKV_POOL_METADATA_ONLY;
    if (metadata_only && d->owner == LKV_OWNER_ENGINE)
        return lkvi_fail(LKV_E_INVALID,
                         "LKV_POOL_METADATA_ONLY with LKV_OWNER_ENGINE leaves nothing; need one");
    if (metadata_only && (d->memory || d->layer_memory))
        return lkvi_fail(LKV_E_INVALID, "LKV_POOL_METADATA_ONLY with memory; need one of them");
    if (d->memory && d->layer_memory)
        return lkvi_fail(LKV_E_INVALID, "memory and layer_memory are both given; need one");
    if (d->num_planes && (metadata_only || d->owner == LKV_OWNER_ENGINE))
        return lkvi_fail(LKV_E_INVALID,
                         "num_planes is %u; planes need record memory and LKV_OWNER_LIBRARY",
                         d->num_planes);
    if ((d->flags & LKV_POOL_EVENTS) && d->owner == LKV_OWNER_ENGINE)
        return lkvi_fail(LKV_E_INVALID, "LKV_POOL_EVENTS with LKV_OWNER_ENGINE; need LIBRARY");
    if (d->num_events > MAX_EVENTS || (d->num_events && !(d->flags & LKV_POOL_EVENTS)))
        return lkvi_fail(LKV_E_INVALID, "num_events is %llu; need at most %d, with LKV_POOL_EVENTS",
                         (unsigned long long)d->num_events, MAX_EVENTS);
    if (d->host_blocks && d->owner == LKV_OWNER_ENGINE)
        return lkvi_fail(LKV_E_INVALID, "host_blocks is %llu with LKV_OWNER_ENGINE; need LIBRARY",
                         (unsigned long long)d->host_blocks);
    if (!isfinite(d->fallback_headroom) || d->fallback_headroom < 0)
        return lkvi_fail(LKV_E_INVALID, "fallback_headroom is %g; need a finite value from 0",
                         d->fallback_headroom);
    return LKV_OK;
}

/* floor(N / (1 + headroom)); the nudge undoes the rounding of 1 + headroom (130 / 1.3 is 100). */
static uint64_t base_blocks(const lkv_pool_desc *d)
{
    if (d->owner == LKV_OWNER_ENGINE)
        return d->num_blocks;
    double exact = (double)d->num_blocks / (1 + d->fallback_headroom);
    return (uint64_t)floor(exact * (1 + 4e-16));
}

static lkv_status check_stride(const char *name, uint64_t stride, uint64_t least)
{
    if (stride < least || stride % STRIDE_ALIGNMENT || stride > (uint64_t)1 << 50)
        return lkvi_fail(LKV_E_INVALID, "%s is %llu; need a multiple of %d from %llu to 2^50", name,
                         (unsigned long long)stride, STRIDE_ALIGNMENT, (unsigned long long)least);
    return LKV_OK;
}

static lkv_status lay_out(const lkv_pool_desc *d, struct lkvi_pool_shape *s)
{
    uint64_t layers_apart;
    s->block_stride = d->block_stride_bytes ? d->block_stride_bytes : s->block_bytes;
    LKV_TRY(check_stride("block_stride_bytes", s->block_stride, s->block_bytes));
    if (__builtin_mul_overflow(s->memory_blocks - 1, s->block_stride, &s->layer_bytes) ||
        s->layer_bytes > (uint64_t)1 << 60)
        return lkvi_fail(LKV_E_INVALID, "num_blocks is %llu; need less than 2^60 bytes a layer",
                         (unsigned long long)d->num_blocks);
    s->layer_bytes += s->block_bytes;
    if (d->layer_memory && d->layer_stride_bytes)
        return lkvi_fail(LKV_E_INVALID, "layer_stride_bytes is %llu with layer_memory; need 0",
                         (unsigned long long)d->layer_stride_bytes);
    uint64_t packed = s->memory_blocks * s->block_stride;
    s->layer_stride = d->layer_stride_bytes ? d->layer_stride_bytes : packed;
    int block_major = s->layer_stride < s->block_stride;
    uint64_t least = block_major ? s->block_bytes : s->layer_bytes;
    if (d->layer_stride_bytes)
        LKV_TRY(check_stride("layer_stride_bytes", s->layer_stride, least));
    if (__builtin_mul_overflow((uint64_t)d->num_layers - 1, s->layer_stride, &layers_apart) ||
        layers_apart > (uint64_t)1 << 60)
        return lkvi_fail(LKV_E_INVALID, "num_layers is %u; need less than 2^60 bytes in all",
                         d->num_layers);
    if (block_major && layers_apart + s->block_bytes > s->block_stride)
        return lkvi_fail(
            LKV_E_INVALID, "block_stride_bytes is %llu; %u layers of %llu bytes need %llu",
            (unsigned long long)s->block_stride, d->num_layers, (unsigned long long)s->layer_stride,
            (unsigned long long)(layers_apart + s->block_bytes));
    s->total_bytes = layers_apart + s->layer_bytes;
    return LKV_OK;
}

lkv_status lkvi_pool_shape(const lkv_pool_desc *d, struct lkvi_pool_shape *out)
{
    struct lkvi_pool_shape s = {0};
    LKV_TRY(lkvi_record_layout(d, &s.record));
    LKV_TRY(check_counts(d));
    LKV_TRY(check_owner(d));
    s.base_blocks = base_blocks(d);
    if (!s.base_blocks)
        return lkvi_fail(LKV_E_INVALID,
                         "num_blocks is %llu with fallback_headroom %g: no block is left for KV",
                         (unsigned long long)d->num_blocks, d->fallback_headroom);
    s.block_bytes = (uint64_t)s.record.bytes * d->tokens_per_block;
    s.memory_blocks = d->num_blocks + (d->owner == LKV_OWNER_LIBRARY);
    LKV_TRY(lay_out(d, &s));
    if (d->flags & LKV_POOL_METADATA_ONLY)
        s.total_bytes = 0;
    *out = s;
    return LKV_OK;
}

static void put_u32(struct lkvi_sha256 *hash, uint32_t value)
{
    uint8_t bytes[4] = {(uint8_t)value, (uint8_t)(value >> 8), (uint8_t)(value >> 16),
                        (uint8_t)(value >> 24)};
    lkvi_sha256_update(hash, bytes, sizeof bytes);
}

void lkvi_pool_identity(const lkv_pool_desc *d, uint8_t digest[32])
{
    static const uint8_t none[32];
    const uint32_t fields[] = {
        d->kind,       d->format,          LKVI_FORMAT_VERSION, d->encode_flags,
        d->latent_dim, d->rope_dim,        d->rope_style,       1,
        d->num_layers, d->tokens_per_block};
    const uint32_t heads[] = {d->num_kv_heads,
                              d->value_latent_dim ? d->value_latent_dim : d->latent_dim};
    struct lkvi_sha256 hash;
    lkvi_sha256_init(&hash);
    lkvi_sha256_update(&hash, "latentkv pool 1", 16); /* with its zero */
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        put_u32(&hash, fields[i]);
    for (size_t i = 0; d->kind == LKV_KIND_LATENT_GQA && i < 2; i++)
        put_u32(&hash, heads[i]);
    lkvi_sha256_update(&hash, d->model_fingerprint ? d->model_fingerprint : none, 32);
    lkvi_sha256_final(&hash, digest);
}
