/* In: bytes. Out: their SHA-256. mbedTLS does the work: its static archive brings two small objects
 * and no constructor. (OpenSSL's libcrypto.a was tried first: its .init reads OPENSSL_ia32cap from
 * the environment when the library is loaded, which this library must not do.) */
#include "core/sha256.h"

#include <mbedtls/sha256.h>
#include <mbedtls/version.h>
#include <string.h>

#if MBEDTLS_VERSION_MAJOR < 3 /* the same functions under the names of 2.x */
#define mbedtls_sha256_starts mbedtls_sha256_starts_ret
#define mbedtls_sha256_update mbedtls_sha256_update_ret
#define mbedtls_sha256_finish mbedtls_sha256_finish_ret
#endif

_Static_assert(sizeof(mbedtls_sha256_context) <= sizeof(struct lkvi_sha256),
               "struct lkvi_sha256 is too small for this mbedTLS");

static mbedtls_sha256_context *context_of(struct lkvi_sha256 *s)
{
    return (mbedtls_sha256_context *)(void *)s->state;
}

/* The calls below can only fail in builds of mbedTLS with a hardware engine. */
void lkvi_sha256_init(struct lkvi_sha256 *s)
{
    mbedtls_sha256_init(context_of(s));
    (void)!mbedtls_sha256_starts(context_of(s), 0);
}

void lkvi_sha256_update(struct lkvi_sha256 *s, const void *data, size_t bytes)
{
    (void)!mbedtls_sha256_update(context_of(s), data, bytes);
}

void lkvi_sha256_final(struct lkvi_sha256 *s, uint8_t digest[32])
{
    (void)!mbedtls_sha256_finish(context_of(s), digest);
    mbedtls_sha256_free(context_of(s));
}
