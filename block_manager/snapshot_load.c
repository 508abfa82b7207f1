/* In: a file that anybody may have written. Out: its blocks in the prefix cache, or nothing at all.
 * Staged blocks are taken off the free stack, and put back as they lay if anything fails; nothing
 * can be hit before the last byte is checked. Tokens and keys of the file become the identity, and
 * must hash to the digest that the file claims. */
#include "block_manager/snapshot.h"

#include "block_manager/state.h"

enum { BUFFER_BYTES = 4 << 20, KEYS_BYTES_MAX = 1 << 29 };

struct entry {
    uint32_t block;  /* 0: left out */
    uint32_t parent; /* place in the file from 1; 0: none */
    uint32_t keyset; /* of a staged block: holds a reference */
    uint8_t staged, priority, spare[2];
    uint64_t priority_until;
};

struct load {
    struct lkvi_manager *m;
    struct lkvi_snapshot *s;
    struct lkvi_snapshot_head head;
    struct entry *entries; /* [head.num_blocks] */
    uint8_t *digests;      /* [head.num_blocks][32] */
    uint64_t num;          /* entries read */
    uint8_t *buffer;
    uint64_t capacity, begin, end; /* of the buffer; unread bytes */
    uint64_t at;                   /* of the file, behind the buffer's end */
    struct lkvi_sealer body;
};

/* ---- bytes */

static lkv_status grow_buffer(struct load *v, uint64_t bytes)
{
    uint64_t want = bytes > BUFFER_BYTES ? bytes : BUFFER_BYTES;
    if (want <= v->capacity)
        return LKV_OK;
    uint8_t *grown = lkvi_realloc(NULL, v->buffer, want);
    if (!grown)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for %llu bytes of a snapshot",
                         (unsigned long long)want);
    v->buffer = grown;
    v->capacity = want;
    return LKV_OK;
}

/* At least bytes unread ones in a row. Moving them waits for the copies out of the buffer. */
static lkv_status need(struct load *v, uint64_t bytes)
{
    if (v->end - v->begin >= bytes)
        return LKV_OK;
    if (bytes - (v->end - v->begin) > v->head.file_bytes - v->at)
        return lkvi_fail(LKV_E_INVALID, "the snapshot ends inside block %llu",
                         (unsigned long long)v->num + 1);
    LKV_TRY(v->s->io.wait(v->s->io.user));
    LKV_TRY(grow_buffer(v, bytes));
    v->end -= v->begin;
    memmove(v->buffer, v->buffer + v->begin, v->end);
    v->begin = 0;
    uint64_t room = v->capacity - v->end, left = v->head.file_bytes - v->at;
    uint64_t n = room < left ? room : left;
    LKV_TRY(lkvi_file_read(v->s->fd, v->buffer + v->end, n, v->at));
    v->end += n;
    v->at += n;
    return LKV_OK;
}

/* ---- one record */

static lkv_status broken(const struct load *v, const char *what)
{
    return lkvi_fail(LKV_E_INVALID, "block %llu of the snapshot is broken: %s",
                     (unsigned long long)v->num + 1, what);
}

static lkv_status check_record(struct load *v, const struct lkvi_snapshot_record *record,
                               const uint8_t *p, uint64_t bytes)
{
    uint32_t num_tokens = v->m->block_tokens;
    const int32_t *tokens = (const int32_t *)(const void *)(p + sizeof *record);
    const uint8_t *keys = (const uint8_t *)(tokens + num_tokens), *parent = v->m->identity;
    uint8_t seal[LKVI_SEAL_BYTES], *digest = v->digests + v->num * LKVI_DIGEST_BYTES;
    lkvi_seal_record(p, bytes, &v->s->secret, seal);
    if (!lkvi_seal_equal(seal, record->seal))
        return broken(v, "its seal does not match");
    if (record->parent > v->num)
        return broken(v, "its parent stands behind it");
    if (record->priority > LKVI_PRIORITY_MAX)
        return broken(v, "its priority is above 100");
    if (record->priority)
        LKV_TRY(lkvi_order_ensure(v->m));
    if (!lkvi_keyset_well_formed(keys, record->keys_bytes))
        return broken(v, "its keys are not whole");
    if (record->parent)
        parent = v->digests + (record->parent - (uint64_t)1) * LKVI_DIGEST_BYTES;
    lkvi_digest(parent, tokens, num_tokens, keys, record->keys_bytes, digest);
    if (memcmp(digest, record->digest, LKVI_DIGEST_BYTES))
        return broken(v, "its digest does not match");
    lkvi_seal_add(&v->body, record->seal, sizeof record->seal);
    return LKV_OK;
}

/* Finds the block on the device, or stages it, or leaves it out; takes over the key set. What is on
 * the host alone is staged too: what hangs under it in the file may be new. */
static lkv_status place_block(struct load *v, struct entry *e, const int32_t *tokens,
                              const uint8_t *payload)
{
    struct lkvi_manager *m = v->m;
    const struct entry *parent = e->parent ? &v->entries[e->parent - 1] : NULL;
    if (parent && !parent->block)
        return LKV_OK;
    if (!parent || !parent->staged)
        e->block = lkvi_child(m, parent ? parent->block : 0, tokens, e->keyset);
    if (lkvi_on_host(m, e->block))
        e->block = 0;
    if (e->block || !m->counts.state[LKVI_FREE])
        return LKV_OK;
    e->block = m->stack[--m->counts.state[LKVI_FREE]];
    e->staged = 1;
    memcpy(lkvi_block_tokens(m, e->block), tokens, m->block_tokens * sizeof *tokens);
    return v->head.payload_bytes ? v->s->io.store(v->s->io.user, e->block, payload) : LKV_OK;
}

static lkv_status read_record(struct load *v)
{
    struct lkvi_snapshot_record record;
    struct entry *e = &v->entries[v->num];
    LKV_TRY(need(v, sizeof record));
    memcpy(&record, v->buffer + v->begin, sizeof record);
    if (record.keys_bytes > KEYS_BYTES_MAX)
        return broken(v, "it has too many keys");
    uint64_t bytes = lkvi_snapshot_record_bytes(&v->head, record.keys_bytes);
    LKV_TRY(need(v, bytes));
    const uint8_t *p = v->buffer + v->begin;
    const int32_t *tokens = (const int32_t *)(const void *)(p + sizeof record);
    LKV_TRY(check_record(v, &record, p, bytes));
    LKV_TRY(lkvi_keyset_intern_bytes(&v->m->keysets, (const uint8_t *)(tokens + v->m->block_tokens),
                                     record.keys_bytes, &e->keyset));
    v->num++; /* from here on a failure undoes it */
    e->parent = record.parent;
    e->priority = (uint8_t)record.priority;
    e->priority_until = record.priority_until;
    LKV_TRY(place_block(v, e, tokens, p + bytes - v->head.payload_bytes));
    v->begin += bytes;
    if (!e->staged) {
        lkvi_keyset_release(&v->m->keysets, e->keyset);
        e->keyset = LKVI_KEYSET_NONE;
    }
    return LKV_OK;
}

/* ---- the whole */

static lkv_status read_head(struct load *v)
{
    struct lkvi_snapshot_head own = v->s->head;
    memcpy(own.identity, v->m->identity, sizeof own.identity);
    LKV_TRY(lkvi_file_read(v->s->fd, &v->head, sizeof v->head, 0));
    LKV_TRY(lkvi_snapshot_head_check(&v->head, &own, &v->s->secret, v->s->file_bytes));
    v->entries = lkvi_zalloc(NULL, v->head.num_blocks + 1, sizeof *v->entries);
    v->digests = lkvi_zalloc(NULL, v->head.num_blocks + 1, LKVI_DIGEST_BYTES);
    if (!v->entries || !v->digests)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory to load %llu blocks",
                         (unsigned long long)v->head.num_blocks);
    v->at = sizeof v->head;
    lkvi_seal_begin(&v->body, &v->s->secret);
    return LKV_OK;
}

static lkv_status read_all(struct load *v)
{
    uint8_t body[LKVI_SEAL_BYTES];
    LKV_TRY(read_head(v));
    while (v->num < v->head.num_blocks)
        LKV_TRY(read_record(v));
    lkvi_seal_end(&v->body, body);
    if (!lkvi_seal_equal(body, v->head.body) || v->begin != v->end || v->at != v->head.file_bytes)
        return lkvi_fail(LKV_E_INVALID, "the snapshot's blocks are not those that its head counts");
    return v->s->io.wait(v->s->io.user);
}

/* Cannot fail. The file may hold one identity twice: the second stands for the first. */
static void publish(struct load *v)
{
    struct lkvi_manager *m = v->m;
    for (uint64_t i = 0; i < v->num; i++) {
        struct entry *e = &v->entries[i];
        if (!e->staged)
            continue;
        uint32_t parent = e->parent ? v->entries[e->parent - 1].block : 0;
        uint32_t twin = lkvi_child(m, parent, lkvi_block_tokens(m, e->block), e->keyset);
        if (twin && lkvi_on_host(m, twin)) {
            lkvi_keyset_release(&m->keysets, e->keyset);
            lkvi_host_promote(m, twin, e->block);
            v->s->num_loaded++;
            continue;
        }
        if (twin) {
            lkvi_keyset_release(&m->keysets, e->keyset);
            lkvi_make_free(m, e->block);
            e->block = twin;
            e->staged = 0;
            continue;
        }
        m->blocks[e->block].priority = 0;
        lkvi_publish(m, e->block, parent, e->keyset);
        v->s->num_loaded++;
    }
    for (uint64_t i = v->num; i-- > 0;) /* the file's first becomes the newest */
        if (v->entries[i].staged) {
            const struct entry *e = &v->entries[i];
            lkvi_order_raise(m, e->block, e->priority, e->priority_until);
            lkvi_rest_idle(m, e->block);
        }
}

static void undo(struct load *v)
{
    (void)!v->s->io.wait(v->s->io.user); /* copies into staged blocks */
    for (uint64_t i = v->num; i-- > 0;) {
        const struct entry *e = &v->entries[i];
        lkvi_keyset_release(&v->m->keysets, e->keyset);
        if (e->staged)
            lkvi_make_free(v->m, e->block);
    }
}

static lkv_status load_locked(struct load *v)
{
    if (v->m->flags & LKV_POOL_NO_CACHE)
        return lkvi_fail(LKV_E_INVALID, "pool is LKV_POOL_NO_CACHE; a snapshot is a cache");
    lkv_status status = read_all(v);
    if (status == LKV_OK)
        publish(v);
    else
        undo(v);
    v->s->num_blocks = v->num;
    return status;
}

lkv_status lkvi_snapshot_load(struct lkvi_manager *m, struct lkvi_snapshot *s)
{
    struct load v = {.m = m, .s = s};
    s->num_loaded = 0;
    lkvi_lock(m);
    lkv_status status = lkvi_unlock(m, load_locked(&v));
    lkvi_free(NULL, v.entries);
    lkvi_free(NULL, v.digests);
    lkvi_free(NULL, v.buffer);
    return status;
}
