/* The stable 256-bit name of a cached block: the same in every process, for events and snapshots.
 * digest = SHA-256(parent's digest | u32 token count | tokens as u32 | serialised keys), all little
 * endian; the parent of a first block is the pool's identity. */
#ifndef LKVI_BLOCK_MANAGER_DIGEST_H
#define LKVI_BLOCK_MANAGER_DIGEST_H

#include <stdint.h>

enum { LKVI_DIGEST_BYTES = 32 };

void lkvi_digest(const uint8_t *parent, const int32_t *tokens, uint32_t num_tokens,
                 const uint8_t *keys, uint32_t keys_bytes, uint8_t *out);

#endif
