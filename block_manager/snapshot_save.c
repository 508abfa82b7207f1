/* In: a live pool. Out: its cached blocks in a file, those used last first, parents before
 * children. A cached block does not change while it is cached, so the lock is held for a chunk at a
 * time: a block is copied while its generation still holds and left out otherwise. Children leave
 * the cache before their parents, so what is written is always a whole tree. */
#include "block_manager/snapshot.h"

#include "block_manager/state.h"

enum { CHUNK_BYTES = 4 << 20 };

struct listed {
    uint32_t block, generation;
};

struct save {
    struct lkvi_manager *m;
    struct lkvi_snapshot *s;
    struct listed *list; /* [num_listed] in the order of the file */
    uint64_t num_listed, next;
    uint32_t *place;  /* [M + 1] from 1: in the list while it is made, then in the file */
    uint8_t *digests; /* [num_listed][32] of written blocks */
    uint64_t num_written;
    uint8_t *chunk;
    uint64_t chunk_bytes, used;
    uint64_t at; /* bytes of the file so far */
    struct lkvi_sealer body;
};

/* ---- the order */

/* b behind its ancestors: climbs to one that is listed, then turns the new part round. */
static void list_chain(struct save *v, uint32_t b)
{
    uint64_t begin = v->num_listed;
    for (; b && !v->place[b]; b = v->m->blocks[b].parent) {
        v->place[b] = 1;
        v->list[v->num_listed++] = (struct listed){b, v->m->blocks[b].generation};
    }
    for (uint64_t i = begin, k = v->num_listed; i + 1 < k; i++) {
        struct listed swap = v->list[--k];
        v->list[k] = v->list[i];
        v->list[i] = swap;
    }
}

/* From the newest; of the host's blocks those that are cached there alone. */
static void list_order(struct save *v, const struct lkvi_lru *lru)
{
    for (uint64_t at = lru->tail; at > lru->head; at--) {
        uint32_t b = lru->slots[(at - 1) & lru->mask];
        if (b && (v->m->blocks[b].flags & LKVI_INDEXED))
            list_chain(v, b);
    }
}

static void list_all(struct save *v)
{
    const struct lkvi_manager *m = v->m;
    for (uint32_t b = 1; b <= m->num_blocks; b++)
        if ((m->blocks[b].flags & LKVI_INDEXED) && m->blocks[b].state != LKVI_IDLE)
            list_chain(v, b);
    for (uint32_t p = LKVI_PRIORITY_MAX; p; p--)
        for (uint32_t b = m->order.classes[p].tail; b; b = m->order.ranks[b].previous)
            list_chain(v, b);
    list_order(v, &m->lru);
    list_order(v, &m->host.lru);
    memset(v->place, 0, ((size_t)m->num_ids + 1) * sizeof *v->place);
}

static lkv_status make_list(struct save *v)
{
    struct lkvi_manager *m = v->m;
    uint64_t most = m->counts.cached + m->host.cached + 1; /* never nothing */
    v->place = lkvi_zalloc(NULL, (size_t)m->num_ids + 1, sizeof *v->place);
    v->list = lkvi_zalloc(NULL, most, sizeof *v->list);
    v->digests = lkvi_zalloc(NULL, most, LKVI_DIGEST_BYTES);
    if (!v->place || !v->list || !v->digests)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory to list %llu blocks",
                         (unsigned long long)most);
    list_all(v);
    return LKV_OK;
}

/* ---- a chunk */

static int can_write(const struct save *v, const struct listed *l)
{
    const struct lkvi_block *block = &v->m->blocks[l->block];
    return lkvi_holds(v->m, l->block, l->generation) && !(block->flags & LKVI_COPY_TARGET) &&
           (!block->parent || v->place[block->parent]);
}

/* Room for bytes more; a chunk takes at least one record, however long its keys are. */
static lkv_status make_room(struct save *v, uint64_t bytes, int *full)
{
    *full = v->used && bytes > v->chunk_bytes - v->used;
    if (*full || bytes <= v->chunk_bytes - v->used)
        return LKV_OK;
    uint64_t want = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
    uint8_t *grown = lkvi_realloc(NULL, v->chunk, want);
    if (!grown)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for %llu bytes of a snapshot",
                         (unsigned long long)want);
    v->chunk = grown;
    v->chunk_bytes = want;
    return LKV_OK;
}

static lkv_status put_record(struct save *v, uint32_t b, uint64_t bytes)
{
    struct lkvi_manager *m = v->m;
    const struct lkvi_block *block = &m->blocks[b];
    const struct lkvi_keyset *keys = block->keyset ? &m->keysets.sets[block->keyset] : NULL;
    uint8_t *p = v->chunk + v->used;
    struct lkvi_snapshot_record record = {.parent = v->place[block->parent],
                                          .keys_bytes = keys ? keys->bytes : 0,
                                          .priority = block->priority,
                                          .priority_until =
                                              block->priority ? m->order.ranks[b].until : 0};
    memset(p, 0, bytes - v->s->head.payload_bytes);
    memcpy(p, &record, sizeof record);
    p += sizeof record;
    memcpy(p, lkvi_block_tokens(m, b), m->block_tokens * sizeof(int32_t));
    p += m->block_tokens * sizeof(int32_t);
    if (keys)
        memcpy(p, keys->data, keys->bytes);
    p = v->chunk + v->used + bytes;
    if (v->s->head.payload_bytes) {
        memset(p - 16, 0, 16); /* what rounding adds */
        LKV_TRY(v->s->io.fetch(v->s->io.user, b, p - v->s->head.payload_bytes));
    }
    v->place[b] = (uint32_t)++v->num_written;
    v->used += bytes;
    return LKV_OK;
}

/* Under the lock, until the copies are done. */
static lkv_status fill_chunk(struct save *v)
{
    int full = 0;
    v->used = 0;
    for (; v->next < v->num_listed; v->next++) {
        const struct listed *l = &v->list[v->next];
        if (!can_write(v, l))
            continue;
        uint32_t set = v->m->blocks[l->block].keyset;
        uint64_t bytes =
            lkvi_snapshot_record_bytes(&v->s->head, set ? v->m->keysets.sets[set].bytes : 0);
        LKV_TRY(make_room(v, bytes, &full));
        if (full)
            break;
        LKV_TRY(put_record(v, l->block, bytes));
    }
    return v->s->io.wait(v->s->io.user);
}

/* Digests and seals, which need no lock; `first` is the place of the chunk's first record. */
static void seal_chunk(struct save *v, uint64_t first)
{
    uint32_t tokens_bytes = v->m->block_tokens * (uint32_t)sizeof(int32_t);
    for (uint64_t at = 0; at < v->used; first++) {
        struct lkvi_snapshot_record record;
        memcpy(&record, v->chunk + at, sizeof record);
        uint8_t *tokens = v->chunk + at + sizeof record;
        uint64_t bytes = lkvi_snapshot_record_bytes(&v->s->head, record.keys_bytes);
        const uint8_t *parent =
            record.parent ? v->digests + (record.parent - 1) * LKVI_DIGEST_BYTES : v->m->identity;
        lkvi_digest(parent, (const int32_t *)(const void *)tokens, v->m->block_tokens,
                    tokens + tokens_bytes, record.keys_bytes, record.digest);
        memcpy(v->digests + (first - 1) * LKVI_DIGEST_BYTES, record.digest, LKVI_DIGEST_BYTES);
        memcpy(v->chunk + at, &record, sizeof record);
        lkvi_seal_record(v->chunk + at, bytes, &v->s->secret, record.seal);
        memcpy(v->chunk + at, &record, sizeof record);
        lkvi_seal_add(&v->body, record.seal, sizeof record.seal);
        at += bytes;
    }
}

static lkv_status write_chunk(struct save *v)
{
    uint64_t first = v->num_written + 1;
    lkvi_lock(v->m);
    LKV_TRY(lkvi_unlock(v->m, fill_chunk(v)));
    seal_chunk(v, first);
    LKV_TRY(lkvi_file_write(v->s->fd, v->chunk, v->used, v->at));
    v->at += v->used;
    return LKV_OK;
}

static lkv_status write_all(struct save *v)
{
    struct lkvi_snapshot_head *head = &v->s->head;
    lkvi_lock(v->m);
    LKV_TRY(lkvi_unlock(v->m, make_list(v)));
    lkvi_seal_begin(&v->body, &v->s->secret);
    v->at = sizeof *head;
    while (v->next < v->num_listed)
        LKV_TRY(write_chunk(v));
    memcpy(head->magic, LKVI_SNAPSHOT_MAGIC, sizeof head->magic);
    head->version = LKVI_SNAPSHOT_VERSION;
    head->flags = v->s->secret.data ? LKVI_SNAPSHOT_SEALED : 0;
    memcpy(head->identity, v->m->identity, sizeof head->identity);
    head->num_blocks = v->num_written;
    head->file_bytes = v->at;
    lkvi_seal_end(&v->body, head->body);
    lkvi_seal_head(head, &v->s->secret, head->seal);
    LKV_TRY(lkvi_file_write(v->s->fd, head, sizeof *head, 0));
    v->s->num_blocks = v->num_written;
    v->s->file_bytes = v->at;
    return LKV_OK;
}

lkv_status lkvi_snapshot_save(struct lkvi_manager *m, struct lkvi_snapshot *s)
{
    struct save v = {.m = m, .s = s};
    lkv_status status = write_all(&v);
    lkvi_free(NULL, v.place);
    lkvi_free(NULL, v.list);
    lkvi_free(NULL, v.digests);
    lkvi_free(NULL, v.chunk);
    return status;
}
