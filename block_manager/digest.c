/* In: what identifies a block. Out: its chain digest. Tokens and lengths are hashed as they lie in
 * memory, which is the little-endian form: every machine that the library builds for has it. */
#include "block_manager/digest.h"

#include "core/sha256.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "digests and snapshots need it");

void lkvi_digest(const uint8_t *parent, const int32_t *tokens, uint32_t num_tokens,
                 const uint8_t *keys, uint32_t keys_bytes, uint8_t *out)
{
    struct lkvi_sha256 hash;
    lkvi_sha256_init(&hash);
    lkvi_sha256_update(&hash, parent, LKVI_DIGEST_BYTES);
    lkvi_sha256_update(&hash, &num_tokens, sizeof num_tokens);
    lkvi_sha256_update(&hash, tokens, num_tokens * sizeof *tokens);
    if (keys_bytes)
        lkvi_sha256_update(&hash, keys, keys_bytes);
    lkvi_sha256_final(&hash, out);
}
