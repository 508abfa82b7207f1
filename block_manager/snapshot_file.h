/* The bytes of a snapshot, without a pool: head, seals, whole reads and writes. Little endian.
 *
 *   | head 256 | record | record | ...    parents before their children
 *   record: | head 96 | tokens 4 B | keys, padded to 16 | payload: layers, then planes |
 *
 * Payload is rounded up to 16, so that every record begins aligned. Every record carries the seal
 * of all its bytes, the head one over all record seals in order and one over itself: a flipped,
 * cut, mixed or repeated part is seen. A seal is XXH3-128, or, with a secret, HMAC-SHA-256: the
 * first sees accidents, the second forgers too. */
#ifndef LKVI_BLOCK_MANAGER_SNAPSHOT_FILE_H
#define LKVI_BLOCK_MANAGER_SNAPSHOT_FILE_H

#include <stddef.h>
#include <stdint.h>
#include "latentkv/latentkv.h"

enum { LKVI_SEAL_BYTES = 32, LKVI_SNAPSHOT_VERSION = 2, LKVI_SNAPSHOT_SEALED = 1 };
#define LKVI_SNAPSHOT_MAGIC "LKVSNAP" /* with its zero */

struct lkvi_snapshot_head {
    char magic[8];
    uint32_t version;
    uint32_t flags; /* LKVI_SNAPSHOT_SEALED: with a secret */
    /* the pool's identity in words, so that a refusal can name what differs */
    uint32_t kind, format, format_version, encode_flags;
    uint32_t latent_dim, rope_dim, rope_style, num_layers;
    uint32_t tokens_per_block, num_planes;
    uint8_t identity[32];
    uint64_t plane_bytes[8]; /* a block, of each plane */
    uint64_t payload_bytes;  /* a block, of all layers and planes, rounded up to 16 */
    uint64_t num_blocks, file_bytes;
    uint8_t body[LKVI_SEAL_BYTES]; /* of all records' seals */
    uint8_t reserved[16];
    uint8_t seal[LKVI_SEAL_BYTES];
};
_Static_assert(sizeof(struct lkvi_snapshot_head) == 256, "the head is part of the format");

struct lkvi_snapshot_record {
    uint32_t parent; /* its place in the file, from 1; 0: none */
    uint32_t keys_bytes;
    uint32_t priority; /* 0 to 100 */
    uint8_t reserved[12];
    uint64_t priority_until; /* in the caller's clock; 0: for ever */
    uint8_t digest[32];
    uint8_t seal[LKVI_SEAL_BYTES]; /* of the 64 bytes before and everything behind */
};
_Static_assert(sizeof(struct lkvi_snapshot_record) == 96, "a record's head is part of the format");

struct lkvi_secret {
    const uint8_t *data; /* NULL: none */
    uint32_t bytes;
    uint32_t reserved;
};

struct lkvi_sealer {
    uint64_t state[88]; /* opaque */
    uint8_t outer[64];  /* HMAC's second key */
    uint64_t keyed;
};

void lkvi_seal_begin(struct lkvi_sealer *s, const struct lkvi_secret *secret);
void lkvi_seal_add(struct lkvi_sealer *s, const void *data, uint64_t bytes);
void lkvi_seal_end(struct lkvi_sealer *s, uint8_t *seal);
int lkvi_seal_equal(const uint8_t *a, const uint8_t *b); /* in constant time */
void lkvi_seal_head(const struct lkvi_snapshot_head *head, const struct lkvi_secret *secret,
                    uint8_t *seal);
/* record: its head and `bytes` in all. */
void lkvi_seal_record(const void *record, uint64_t bytes, const struct lkvi_secret *secret,
                      uint8_t *seal);

/* Magic, version, secret, seal, sizes; then that it is a snapshot of a pool like `own`. */
lkv_status lkvi_snapshot_head_check(const struct lkvi_snapshot_head *head,
                                    const struct lkvi_snapshot_head *own,
                                    const struct lkvi_secret *secret, uint64_t file_bytes);
uint64_t lkvi_snapshot_record_bytes(const struct lkvi_snapshot_head *head, uint64_t keys_bytes);

lkv_status lkvi_file_write(int fd, const void *data, uint64_t bytes, uint64_t at);
lkv_status lkvi_file_read(int fd, void *data, uint64_t bytes, uint64_t at);

#endif
