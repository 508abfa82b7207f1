/* Extra keys of an identity: adapter, salt, image, the caller's own. A prompt's keys are parsed
 * once into sorted spans; the keys that overlap one block become an interned key set, so that
 * comparing the keys of two blocks is comparing two numbers. */
#ifndef LKVI_BLOCK_MANAGER_KEYS_H
#define LKVI_BLOCK_MANAGER_KEYS_H

#include <stdint.h>
#include "core/alloc.h"

struct lkvi_span {
    uint64_t begin, end;
    uint32_t tag, bytes;
    uint64_t offset; /* of the bytes, from the start of struct lkvi_keys */
};

/* One allocation: this, the spans in canonical order, their bytes. */
struct lkvi_keys {
    uint64_t total_bytes;
    uint32_t refs, num_spans;
    uint32_t whole_set; /* key set of a block that only whole-prompt keys overlap */
    uint32_t num_whole; /* of the spans, those over the whole prompt */
    struct lkvi_span spans[];
};

struct lkvi_keyset {
    uint8_t *data; /* tag, length, bytes of each key; NULL: this entry is free */
    uint32_t bytes, refs;
    uint32_t hash, next; /* chain of its bucket, or of free entries */
};

struct lkvi_keysets {
    struct lkvi_arena *arena;
    struct lkvi_keyset *sets; /* [capacity], 0 unused */
    uint32_t *buckets;        /* [capacity]: a power of two */
    uint32_t capacity, num_live, free_set, num_used;
    uint8_t *scratch; /* one block's serialised keys */
    uint64_t scratch_bytes;
    struct lkvi_keys *parsed; /* the prompt being looked at */
    uint64_t parsed_bytes;
    const uint8_t *secret;
};

enum { LKVI_KEYSET_NONE = 0, LKVI_KEYSET_UNKNOWN = UINT32_MAX };

/* Checks and parses into sets->parsed; *out is NULL for a prompt without keys. */
lkv_status lkvi_keys_parse(struct lkvi_keysets *sets, const lkv_prompt *prompt,
                           struct lkvi_keys **out);
/* A copy that a sequence keeps, refs 1, its whole_set interned. NULL keys give NULL. */
lkv_status lkvi_keys_keep(struct lkvi_keysets *sets, const struct lkvi_keys *keys,
                          struct lkvi_keys **out);
void lkvi_keys_release(struct lkvi_keysets *sets, struct lkvi_keys *keys);

/* Key set of tokens [begin, begin + num_tokens): LKVI_KEYSET_UNKNOWN if nothing is cached under
 * it. Adds no reference. LKV_E_NO_MEMORY if the scratch cannot grow. */
lkv_status lkvi_keyset_find(struct lkvi_keysets *sets, const struct lkvi_keys *keys, uint64_t begin,
                            uint32_t num_tokens, uint32_t *out);
/* The same, made if it is new, with one reference for the caller. */
lkv_status lkvi_keyset_intern(struct lkvi_keysets *sets, const struct lkvi_keys *keys,
                              uint64_t begin, uint32_t num_tokens, uint32_t *out);
/* Is this the serialised form of some key set? For bytes that come from a file. */
int lkvi_keyset_well_formed(const uint8_t *data, uint32_t bytes);
/* The same from the serialised form of a snapshot. */
lkv_status lkvi_keyset_intern_bytes(struct lkvi_keysets *sets, const uint8_t *data, uint32_t bytes,
                                    uint32_t *out);
/* Does the set hold a key of this tag and these bytes, over the whole prompt or a span? */
int lkvi_keyset_has(const struct lkvi_keysets *sets, uint32_t set, const lkv_key *key);
int lkvi_keys_have(const struct lkvi_keys *keys, const lkv_key *key);
void lkvi_keyset_retain(struct lkvi_keysets *sets, uint32_t set);
void lkvi_keyset_release(struct lkvi_keysets *sets, uint32_t set);

#endif
