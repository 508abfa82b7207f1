/* In: the caller's keys of a prompt. Out: key sets, numbers that are equal when the keys are.
 * Serialised form of one key: tag u8, length u32 LE, bytes; a key that does not span the whole
 * prompt puts its place relative to the block (begin i64, end u64 cut at the block) before its
 * bytes, so the same image one token later is another identity, and sets bit 31 of the length, so
 * no whole key whose bytes look like a place is taken for it. */
#include "block_manager/keys.h"

#include <string.h>
#include "core/status.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { KEY_BYTES_MAX = 65535, PLACE_BYTES = 16, HEAD_BYTES = 5, NUM_KEYS_MAX = 65536 };
static const uint32_t HAS_PLACE = 1u << 31; /* in a serialised length, which counts the place */

static int is_whole(uint64_t begin, uint64_t end)
{
    return begin == 0 && end == UINT64_MAX;
}

static lkv_status key_check(const lkv_key *key, uint32_t i)
{
    if (key->tag == 0 || key->tag > 255 ||
        (key->tag > LKV_KEY_MULTIMODAL && key->tag < LKV_KEY_USER))
        return lkvi_fail(LKV_E_INVALID, "keys[%u].tag is %u; need LKV_KEY_* or 16..255", i,
                         key->tag);
    if (key->bytes > KEY_BYTES_MAX || (key->bytes && !key->data))
        return lkvi_fail(LKV_E_INVALID, "keys[%u] has %u bytes at %p; need 0..65535 at an address",
                         i, key->bytes, key->data);
    if (key->begin >= key->end)
        return lkvi_fail(LKV_E_INVALID, "keys[%u] spans [%llu, %llu); need begin < end", i,
                         (unsigned long long)key->begin, (unsigned long long)key->end);
    if (key->tag <= LKV_KEY_SALT && !is_whole(key->begin, key->end))
        return lkvi_fail(LKV_E_INVALID,
                         "keys[%u] is an adapter or salt over [%llu, %llu); need [0, UINT64_MAX)",
                         i, (unsigned long long)key->begin, (unsigned long long)key->end);
    return LKV_OK;
}

static const uint8_t *span_data(const struct lkvi_keys *keys, const struct lkvi_span *span)
{
    return (const uint8_t *)keys + span->offset;
}

/* Whole keys first, then by place, tag and bytes: the caller's order does not matter. */
static int span_before(const struct lkvi_keys *keys, const struct lkvi_span *a,
                       const struct lkvi_span *b)
{
    int whole_a = is_whole(a->begin, a->end), whole_b = is_whole(b->begin, b->end);
    if (whole_a != whole_b)
        return whole_a;
    if (a->begin != b->begin)
        return a->begin < b->begin;
    if (a->end != b->end)
        return a->end < b->end;
    if (a->tag != b->tag)
        return a->tag < b->tag;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes;
    return memcmp(span_data(keys, a), span_data(keys, b), a->bytes) < 0;
}

static void span_insert(struct lkvi_keys *keys, struct lkvi_span span)
{
    uint32_t i = keys->num_spans++;
    for (; i && span_before(keys, &span, &keys->spans[i - 1]); i--)
        keys->spans[i] = keys->spans[i - 1];
    keys->spans[i] = span;
    keys->num_whole += (uint32_t)is_whole(span.begin, span.end);
}

static lkv_status ensure(struct lkvi_keysets *sets, void **buffer, uint64_t *have, uint64_t want)
{
    if (want <= *have)
        return LKV_OK;
    void *grown = lkvi_realloc(sets->arena, *buffer, want + want / 2);
    if (!grown)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for %llu bytes of extra keys",
                         (unsigned long long)want);
    *buffer = grown;
    *have = want + want / 2;
    return LKV_OK;
}

lkv_status lkvi_keys_parse(struct lkvi_keysets *sets, const lkv_prompt *prompt,
                           struct lkvi_keys **out)
{
    uint64_t bytes = sizeof(struct lkvi_keys) + prompt->num_keys * sizeof(struct lkvi_span);
    *out = NULL;
    if (!prompt->num_keys)
        return LKV_OK;
    if (prompt->num_keys > NUM_KEYS_MAX || !prompt->keys)
        return lkvi_fail(LKV_E_INVALID, "num_keys is %u at %p; need at most %d at an address",
                         prompt->num_keys, (const void *)prompt->keys, NUM_KEYS_MAX);
    uint64_t at = bytes;
    for (uint32_t i = 0; i < prompt->num_keys; i++) {
        LKV_TRY(key_check(&prompt->keys[i], i));
        bytes += prompt->keys[i].bytes;
    }
    LKV_TRY(ensure(sets, (void **)&sets->parsed, &sets->parsed_bytes, bytes));
    struct lkvi_keys *keys = sets->parsed;
    memset(keys, 0, sizeof *keys);
    keys->total_bytes = bytes;
    for (uint32_t i = 0; i < prompt->num_keys; i++) {
        const lkv_key *key = &prompt->keys[i];
        if (key->bytes)
            memcpy((uint8_t *)keys + at, key->data, key->bytes);
        span_insert(keys, (struct lkvi_span){key->begin, key->end, key->tag, key->bytes, at});
        at += key->bytes;
    }
    *out = keys;
    return lkvi_keyset_find(sets, keys, UINT64_MAX - 1, 1, &keys->whole_set);
}

static uint32_t keyset_place(const struct lkvi_keysets *sets, const uint8_t *data, uint64_t bytes)
{
    return (uint32_t)XXH3_64bits_withSecret(data, bytes, sets->secret, 192);
}

static int overlaps(const struct lkvi_span *span, uint64_t begin, uint32_t num_tokens)
{
    return span->begin < begin + num_tokens && span->end > begin;
}

static uint8_t *put_key(uint8_t *p, const struct lkvi_keys *keys, const struct lkvi_span *span,
                        uint64_t begin, uint32_t num_tokens)
{
    int whole = is_whole(span->begin, span->end);
    uint32_t length = whole ? span->bytes : (span->bytes + PLACE_BYTES) | HAS_PLACE;
    uint64_t place[2] = {span->begin - begin,
                         span->end - begin < num_tokens ? span->end - begin : num_tokens};
    *p++ = (uint8_t)span->tag;
    memcpy(p, &length, 4);
    p += 4;
    if (!whole) {
        memcpy(p, place, PLACE_BYTES);
        p += PLACE_BYTES;
    }
    memcpy(p, span_data(keys, span), span->bytes);
    return p + span->bytes;
}

/* Writes the keys that overlap the block into the scratch; *bytes 0: none do. Position
 * UINT64_MAX - 1 stands for a block that only whole-prompt keys overlap. */
static lkv_status serialise(struct lkvi_keysets *sets, const struct lkvi_keys *keys, uint64_t begin,
                            uint32_t num_tokens, uint64_t *bytes)
{
    uint32_t num = begin == UINT64_MAX - 1 ? keys->num_whole : keys->num_spans;
    uint64_t want = 0;
    for (uint32_t i = 0; i < num; i++)
        if (overlaps(&keys->spans[i], begin, num_tokens))
            want += HEAD_BYTES + PLACE_BYTES + (uint64_t)keys->spans[i].bytes;
    LKV_TRY(ensure(sets, (void **)&sets->scratch, &sets->scratch_bytes, want));
    uint8_t *p = sets->scratch;
    for (uint32_t i = 0; i < num; i++)
        if (overlaps(&keys->spans[i], begin, num_tokens))
            p = put_key(p, keys, &keys->spans[i], begin, num_tokens);
    *bytes = (uint64_t)(p - sets->scratch);
    return LKV_OK;
}

static int only_whole(const struct lkvi_keys *keys, uint64_t begin, uint32_t num_tokens)
{
    for (uint32_t i = keys->num_whole; i < keys->num_spans; i++)
        if (overlaps(&keys->spans[i], begin, num_tokens))
            return 0;
    return 1;
}

static uint32_t lookup(const struct lkvi_keysets *sets, uint32_t hash, uint64_t bytes)
{
    if (!sets->capacity)
        return LKVI_KEYSET_UNKNOWN;
    uint32_t set = sets->buckets[hash & (sets->capacity - 1)];
    for (; set; set = sets->sets[set].next)
        if (sets->sets[set].hash == hash && sets->sets[set].bytes == bytes &&
            !memcmp(sets->sets[set].data, sets->scratch, bytes))
            return set;
    return LKVI_KEYSET_UNKNOWN;
}

lkv_status lkvi_keyset_find(struct lkvi_keysets *sets, const struct lkvi_keys *keys, uint64_t begin,
                            uint32_t num_tokens, uint32_t *out)
{
    uint64_t bytes;
    *out = LKVI_KEYSET_NONE;
    if (!keys)
        return LKV_OK;
    if (begin != UINT64_MAX - 1 && only_whole(keys, begin, num_tokens)) {
        *out = keys->whole_set;
        return LKV_OK;
    }
    LKV_TRY(serialise(sets, keys, begin, num_tokens, &bytes));
    if (bytes)
        *out = lookup(sets, keyset_place(sets, sets->scratch, bytes), bytes);
    return LKV_OK;
}

/* Doubles the table. Both arrays are had before either is replaced. */
static lkv_status keysets_grow(struct lkvi_keysets *sets)
{
    uint32_t capacity = sets->capacity ? sets->capacity * 2 : 16;
    uint32_t *buckets = lkvi_zalloc(sets->arena, capacity, sizeof *buckets);
    if (!buckets)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for %u key sets", capacity);
    struct lkvi_keyset *grown =
        lkvi_realloc(sets->arena, sets->sets, capacity * sizeof *sets->sets);
    if (!grown) {
        lkvi_free(sets->arena, buckets);
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for %u key sets", capacity);
    }
    for (uint32_t set = 1; set < sets->num_used; set++) {
        if (!grown[set].data)
            continue;
        grown[set].next = buckets[grown[set].hash & (capacity - 1)];
        buckets[grown[set].hash & (capacity - 1)] = set;
    }
    lkvi_free(sets->arena, sets->buckets);
    if (!sets->num_used)
        sets->num_used = 1;
    sets->buckets = buckets;
    sets->sets = grown;
    sets->capacity = capacity;
    return LKV_OK;
}

static lkv_status keyset_make(struct lkvi_keysets *sets, uint32_t hash, uint64_t bytes,
                              uint32_t *out)
{
    if (!sets->free_set && (!sets->capacity || sets->num_used == sets->capacity))
        LKV_TRY(keysets_grow(sets));
    uint8_t *data = lkvi_alloc(sets->arena, bytes);
    if (!data)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for a key set of %llu bytes",
                         (unsigned long long)bytes);
    memcpy(data, sets->scratch, bytes);
    uint32_t set = sets->free_set;
    if (set)
        sets->free_set = sets->sets[set].next;
    else
        set = sets->num_used++;
    uint32_t *bucket = &sets->buckets[hash & (sets->capacity - 1)];
    sets->sets[set] = (struct lkvi_keyset){data, (uint32_t)bytes, 1, hash, *bucket};
    *bucket = set;
    sets->num_live++;
    *out = set;
    return LKV_OK;
}

static lkv_status intern_scratch(struct lkvi_keysets *sets, uint64_t bytes, uint32_t *out)
{
    *out = LKVI_KEYSET_NONE;
    if (!bytes)
        return LKV_OK;
    uint32_t hash = keyset_place(sets, sets->scratch, bytes);
    *out = lookup(sets, hash, bytes);
    if (*out == LKVI_KEYSET_UNKNOWN)
        return keyset_make(sets, hash, bytes, out);
    lkvi_keyset_retain(sets, *out);
    return LKV_OK;
}

lkv_status lkvi_keyset_intern(struct lkvi_keysets *sets, const struct lkvi_keys *keys,
                              uint64_t begin, uint32_t num_tokens, uint32_t *out)
{
    uint64_t bytes;
    *out = LKVI_KEYSET_NONE;
    if (!keys)
        return LKV_OK;
    if (only_whole(keys, begin, num_tokens))
        begin = UINT64_MAX - 1, num_tokens = 1;
    LKV_TRY(serialise(sets, keys, begin, num_tokens, &bytes));
    return intern_scratch(sets, bytes, out);
}

int lkvi_keyset_well_formed(const uint8_t *data, uint32_t bytes)
{
    while (bytes) {
        uint32_t length;
        if (bytes < HEAD_BYTES || !data[0])
            return 0;
        memcpy(&length, data + 1, sizeof length);
        const uint32_t place = length & HAS_PLACE ? PLACE_BYTES : 0;
        length &= ~HAS_PLACE;
        if (length < place || length > bytes - HEAD_BYTES)
            return 0;
        data += HEAD_BYTES + length;
        bytes -= HEAD_BYTES + length;
    }
    return 1;
}

lkv_status lkvi_keyset_intern_bytes(struct lkvi_keysets *sets, const uint8_t *data, uint32_t bytes,
                                    uint32_t *out)
{
    LKV_TRY(ensure(sets, (void **)&sets->scratch, &sets->scratch_bytes, bytes));
    if (bytes)
        memcpy(sets->scratch, data, bytes);
    return intern_scratch(sets, bytes, out);
}

/* data: what follows the tag and the length. */
static int key_is(const uint8_t *data, uint32_t length, const lkv_key *key)
{
    const uint32_t place = length & HAS_PLACE ? PLACE_BYTES : 0;
    return (length & ~HAS_PLACE) == key->bytes + place &&
           (!key->bytes || !memcmp(data + place, key->data, key->bytes));
}

int lkvi_keyset_has(const struct lkvi_keysets *sets, uint32_t set, const lkv_key *key)
{
    const uint8_t *p = sets->sets[set].data, *end = p + sets->sets[set].bytes;
    while (p < end) {
        uint32_t length;
        memcpy(&length, p + 1, sizeof length);
        if (*p == key->tag && key_is(p + HEAD_BYTES, length, key))
            return 1;
        p += HEAD_BYTES + (uint64_t)(length & ~HAS_PLACE);
    }
    return 0;
}

int lkvi_keys_have(const struct lkvi_keys *keys, const lkv_key *key)
{
    for (uint32_t i = 0; keys && i < keys->num_spans; i++) {
        const struct lkvi_span *span = &keys->spans[i];
        if (span->tag == key->tag && span->bytes == key->bytes &&
            (!key->bytes || !memcmp(span_data(keys, span), key->data, key->bytes)))
            return 1;
    }
    return 0;
}

void lkvi_keyset_retain(struct lkvi_keysets *sets, uint32_t set)
{
    if (set)
        sets->sets[set].refs++;
}

void lkvi_keyset_release(struct lkvi_keysets *sets, uint32_t set)
{
    if (!set || --sets->sets[set].refs)
        return;
    struct lkvi_keyset *dead = &sets->sets[set];
    uint32_t *link = &sets->buckets[dead->hash & (sets->capacity - 1)];
    while (*link != set)
        link = &sets->sets[*link].next;
    *link = dead->next;
    lkvi_free(sets->arena, dead->data);
    dead->data = NULL;
    dead->next = sets->free_set;
    sets->free_set = set;
    sets->num_live--;
}

lkv_status lkvi_keys_keep(struct lkvi_keysets *sets, const struct lkvi_keys *keys,
                          struct lkvi_keys **out)
{
    *out = NULL;
    if (!keys)
        return LKV_OK;
    struct lkvi_keys *kept = lkvi_alloc(sets->arena, keys->total_bytes);
    if (!kept)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for %llu bytes of extra keys",
                         (unsigned long long)keys->total_bytes);
    memcpy(kept, keys, keys->total_bytes);
    kept->refs = 1;
    lkv_status status = lkvi_keyset_intern(sets, kept, UINT64_MAX - 1, 1, &kept->whole_set);
    if (status != LKV_OK) {
        lkvi_free(sets->arena, kept);
        return status;
    }
    *out = kept;
    return LKV_OK;
}

void lkvi_keys_release(struct lkvi_keysets *sets, struct lkvi_keys *keys)
{
    if (!keys || --keys->refs)
        return;
    lkvi_keyset_release(sets, keys->whole_set);
    lkvi_free(sets->arena, keys);
}
