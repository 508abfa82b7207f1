/* In: bytes of a file that anybody may have written. Out: a verdict, before any of it is used.
 * Lengths are compared with the file's before they are added or allocated for. */
#include "block_manager/snapshot_file.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>
#include "core/sha256.h"
#include "core/status.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { HMAC_BLOCK = 64 };

/* ---- seals */

union seal_state {
    XXH3_state_t fast;
    struct lkvi_sha256 keyed;
};
_Static_assert(sizeof(union seal_state) + 64 <= sizeof((struct lkvi_sealer){{0}, {0}, 0}.state) &&
                   _Alignof(union seal_state) <= 64,
               "struct lkvi_sealer is too small");

/* XXH3's state wants 64-byte alignment, the struct gives 8: place it inside. */
static union seal_state *state_of(struct lkvi_sealer *s)
{
    return (union seal_state *)(((uintptr_t)s->state + 63) & ~(uintptr_t)63);
}

static void hmac_begin(struct lkvi_sealer *s, const struct lkvi_secret *secret)
{
    uint8_t key[HMAC_BLOCK] = {0}, inner[HMAC_BLOCK];
    struct lkvi_sha256 *hash = &state_of(s)->keyed;
    if (secret->bytes > HMAC_BLOCK) {
        lkvi_sha256_init(hash);
        lkvi_sha256_update(hash, secret->data, secret->bytes);
        lkvi_sha256_final(hash, key);
    } else {
        memcpy(key, secret->data, secret->bytes);
    }
    for (int i = 0; i < HMAC_BLOCK; i++) {
        inner[i] = key[i] ^ 0x36;
        s->outer[i] = key[i] ^ 0x5c;
    }
    lkvi_sha256_init(hash);
    lkvi_sha256_update(hash, inner, sizeof inner);
}

void lkvi_seal_begin(struct lkvi_sealer *s, const struct lkvi_secret *secret)
{
    s->keyed = secret->data != NULL;
    if (s->keyed)
        hmac_begin(s, secret);
    else
        XXH3_128bits_reset(&state_of(s)->fast);
}

void lkvi_seal_add(struct lkvi_sealer *s, const void *data, uint64_t bytes)
{
    if (s->keyed)
        lkvi_sha256_update(&state_of(s)->keyed, data, bytes);
    else
        XXH3_128bits_update(&state_of(s)->fast, data, bytes);
}

void lkvi_seal_end(struct lkvi_sealer *s, uint8_t *seal)
{
    if (!s->keyed) {
        XXH128_canonical_t canonical;
        XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state_of(s)->fast));
        memset(seal, 0, LKVI_SEAL_BYTES);
        memcpy(seal, canonical.digest, sizeof canonical.digest);
        return;
    }
    struct lkvi_sha256 *hash = &state_of(s)->keyed;
    lkvi_sha256_final(hash, seal);
    lkvi_sha256_init(hash);
    lkvi_sha256_update(hash, s->outer, sizeof s->outer);
    lkvi_sha256_update(hash, seal, LKVI_SEAL_BYTES);
    lkvi_sha256_final(hash, seal);
}

int lkvi_seal_equal(const uint8_t *a, const uint8_t *b)
{
    uint8_t differ = 0;
    for (int i = 0; i < LKVI_SEAL_BYTES; i++)
        differ |= a[i] ^ b[i];
    return !differ;
}

void lkvi_seal_head(const struct lkvi_snapshot_head *head, const struct lkvi_secret *secret,
                    uint8_t *seal)
{
    struct lkvi_sealer s;
    lkvi_seal_begin(&s, secret);
    lkvi_seal_add(&s, head, offsetof(struct lkvi_snapshot_head, seal));
    lkvi_seal_end(&s, seal);
}

void lkvi_seal_record(const void *record, uint64_t bytes, const struct lkvi_secret *secret,
                      uint8_t *seal)
{
    const size_t head = sizeof(struct lkvi_snapshot_record);
    struct lkvi_sealer s;
    lkvi_seal_begin(&s, secret);
    lkvi_seal_add(&s, record, offsetof(struct lkvi_snapshot_record, seal));
    lkvi_seal_add(&s, (const uint8_t *)record + head, bytes - head);
    lkvi_seal_end(&s, seal);
}

/* ---- verdicts */

static lkv_status check_kind(const struct lkvi_snapshot_head *head,
                             const struct lkvi_secret *secret, uint64_t file_bytes)
{
    uint8_t seal[LKVI_SEAL_BYTES];
    if (memcmp(head->magic, LKVI_SNAPSHOT_MAGIC, sizeof head->magic))
        return lkvi_fail(LKV_E_INVALID, "the file is not a snapshot of latentkv");
    if (head->version != LKVI_SNAPSHOT_VERSION)
        return lkvi_fail(LKV_E_VERSION, "the snapshot has version %u; need %d", head->version,
                         LKVI_SNAPSHOT_VERSION);
    if (!(head->flags & LKVI_SNAPSHOT_SEALED) != !secret->data)
        return lkvi_fail(LKV_E_INVALID, "the snapshot was saved %s a secret; need the same here",
                         head->flags & LKVI_SNAPSHOT_SEALED ? "with" : "without");
    lkvi_seal_head(head, secret, seal);
    if (!lkvi_seal_equal(seal, head->seal))
        return lkvi_fail(LKV_E_INVALID, "the snapshot's head is broken%s",
                         secret->data ? ", or sealed with another secret" : "");
    if (head->file_bytes != file_bytes)
        return lkvi_fail(LKV_E_INVALID, "the snapshot has %llu bytes; its head says %llu",
                         (unsigned long long)file_bytes, (unsigned long long)head->file_bytes);
    return LKV_OK;
}

static lkv_status check_same(const struct lkvi_snapshot_head *head,
                             const struct lkvi_snapshot_head *own)
{
#define SAME(field)                                                                                \
    if (head->field != own->field)                                                                 \
    return lkvi_fail(LKV_E_INVALID,                                                                \
                     "the snapshot is of another pool: " #field " is %llu there and %llu here",    \
                     (unsigned long long)head->field, (unsigned long long)own->field)
    SAME(kind);
    SAME(format);
    SAME(format_version);
    SAME(encode_flags);
    SAME(latent_dim);
    SAME(rope_dim);
    SAME(rope_style);
    SAME(num_layers);
    SAME(tokens_per_block);
    SAME(num_planes);
    for (int i = 0; i < 8; i++)
        SAME(plane_bytes[i]);
    SAME(payload_bytes);
#undef SAME
    if (memcmp(head->identity, own->identity, sizeof own->identity))
        return lkvi_fail(LKV_E_INVALID,
                         "the snapshot is of another pool: model_fingerprint differs");
    return LKV_OK;
}

uint64_t lkvi_snapshot_record_bytes(const struct lkvi_snapshot_head *head, uint64_t keys_bytes)
{
    return sizeof(struct lkvi_snapshot_record) + head->tokens_per_block * sizeof(int32_t) +
           ((keys_bytes + 15) & ~(uint64_t)15) + head->payload_bytes;
}

lkv_status lkvi_snapshot_head_check(const struct lkvi_snapshot_head *head,
                                    const struct lkvi_snapshot_head *own,
                                    const struct lkvi_secret *secret, uint64_t file_bytes)
{
    LKV_TRY(check_kind(head, secret, file_bytes));
    LKV_TRY(check_same(head, own));
    if (head->num_blocks > (file_bytes - sizeof *head) / lkvi_snapshot_record_bytes(own, 0))
        return lkvi_fail(LKV_E_INVALID,
                         "the snapshot says %llu blocks; %llu bytes cannot hold them",
                         (unsigned long long)head->num_blocks, (unsigned long long)file_bytes);
    return LKV_OK;
}

/* ---- whole reads and writes */

lkv_status lkvi_file_write(int fd, const void *data, uint64_t bytes, uint64_t at)
{
    while (bytes) {
        ssize_t n = pwrite(fd, data, bytes, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return lkvi_fail(LKV_E_IO, "the snapshot cannot be written at byte %llu: %s",
                             (unsigned long long)at, strerror(errno));
        data = (const char *)data + n;
        bytes -= (uint64_t)n;
        at += (uint64_t)n;
    }
    return LKV_OK;
}

lkv_status lkvi_file_read(int fd, void *data, uint64_t bytes, uint64_t at)
{
    while (bytes) {
        ssize_t n = pread(fd, data, bytes, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return lkvi_fail(LKV_E_IO, "the snapshot cannot be read at byte %llu: %s",
                             (unsigned long long)at, strerror(errno));
        if (!n)
            return lkvi_fail(LKV_E_INVALID, "the snapshot ends at byte %llu; %llu more are missing",
                             (unsigned long long)at, (unsigned long long)bytes);
        data = (char *)data + n;
        bytes -= (uint64_t)n;
        at += (uint64_t)n;
    }
    return LKV_OK;
}
