/* The vectors of FIPS 180-4's examples, in one piece and in every split. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include "core/sha256.h"

static void digest_of(const char *text, size_t cut, char hex[65])
{
    struct lkvi_sha256 s;
    uint8_t digest[32];
    lkvi_sha256_init(&s);
    lkvi_sha256_update(&s, text, cut);
    lkvi_sha256_update(&s, text + cut, strlen(text) - cut);
    lkvi_sha256_final(&s, digest);
    for (int i = 0; i < 32; i++)
        sprintf(hex + 2 * i, "%02x", digest[i]);
}

Test(sha256, published_vectors)
{
    static const struct {
        const char *text, *hex;
    } rows[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    char hex[65];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (size_t cut = 0; cut <= strlen(rows[i].text); cut++) {
            digest_of(rows[i].text, cut, hex);
            cr_assert_str_eq(hex, rows[i].hex, "row %zu cut at %zu", i, cut);
        }
}
