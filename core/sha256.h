/* SHA-256 (FIPS 180-4) by a library; the stable digests of pools and prefixes. */
#ifndef LKVI_CORE_SHA256_H
#define LKVI_CORE_SHA256_H

#include <stddef.h>
#include <stdint.h>

struct lkvi_sha256 {
    uint64_t state[24]; /* opaque */
};

void lkvi_sha256_init(struct lkvi_sha256 *s);
void lkvi_sha256_update(struct lkvi_sha256 *s, const void *data, size_t bytes);
void lkvi_sha256_final(struct lkvi_sha256 *s, uint8_t digest[32]);

#endif
