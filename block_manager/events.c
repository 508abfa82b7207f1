/* In: blocks entering and leaving the prefix index. Out: events with sequence numbers.
 * An event copies what it tells (digests, tokens), because its block may be another one when it is
 * read; keys are interned already, so a reference is a copy. A reader that fell behind is told how
 * many events it lost, and never gets half of one. */
#include "block_manager/events.h"

#include "block_manager/state.h"

lkv_status lkvi_events_create(struct lkvi_manager *m, uint32_t capacity)
{
    struct lkvi_events *e = &m->events;
    e->next = 1;
    if (!capacity)
        return LKV_OK;
    e->ring = lkvi_zalloc(m->arena, capacity, sizeof *e->ring);
    e->tokens = lkvi_zalloc(m->arena, capacity, m->block_tokens * sizeof *e->tokens);
    e->digests = lkvi_zalloc(m->arena, (size_t)m->num_ids + 1, LKVI_DIGEST_BYTES);
    if (!e->ring || !e->tokens || !e->digests)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for a ring of %u events", capacity);
    memcpy(e->digests, m->identity, LKVI_DIGEST_BYTES);
    e->capacity = capacity;
    return LKV_OK;
}

static uint8_t *digest_of(struct lkvi_manager *m, uint32_t b)
{
    return m->events.digests + (size_t)b * LKVI_DIGEST_BYTES;
}

static struct lkvi_event *push(struct lkvi_manager *m, uint32_t kind)
{
    struct lkvi_event *event = &m->events.ring[m->events.next++ % m->events.capacity];
    lkvi_keyset_release(&m->keysets, event->keyset); /* of the event that it overwrites */
    memset(event, 0, sizeof *event);
    event->kind = kind;
    return event;
}

/* b has the identity; its digest is known. */
static void tell_stored(struct lkvi_manager *m, uint32_t b, uint32_t tier)
{
    const struct lkvi_block *block = &m->blocks[b];
    uint64_t slot = m->events.next % m->events.capacity;
    struct lkvi_event *event = push(m, LKV_EVENT_STORED);
    event->tier = (uint16_t)tier;
    memcpy(event->parent, digest_of(m, block->parent), LKVI_DIGEST_BYTES);
    memcpy(event->digest, digest_of(m, b), LKVI_DIGEST_BYTES);
    memcpy(m->events.tokens + slot * m->block_tokens, lkvi_block_tokens(m, b),
           m->block_tokens * sizeof(int32_t));
    event->keyset = block->keyset;
    lkvi_keyset_retain(&m->keysets, event->keyset);
    m->events.stored[tier]++;
}

static void tell_removed(struct lkvi_manager *m, uint32_t b, uint32_t tier, uint32_t remaining)
{
    uint32_t reason = m->events.reason;
    if (!reason)
        reason = m->blocks[b].state == LKVI_IDLE || (tier == LKV_TIER_HOST && remaining)
                     ? LKV_REMOVED_EVICTED
                     : LKV_REMOVED_DETACHED;
    struct lkvi_event *event = push(m, LKV_EVENT_REMOVED);
    event->reason = reason;
    event->tier = (uint16_t)tier;
    event->remaining = (uint16_t)remaining;
    memcpy(event->digest, digest_of(m, b), LKVI_DIGEST_BYTES);
    m->events.stored[tier]--;
}

void lkvi_events_stored(struct lkvi_manager *m, uint32_t b)
{
    const struct lkvi_block *block = &m->blocks[b];
    const struct lkvi_keyset *keys = block->keyset ? &m->keysets.sets[block->keyset] : NULL;
    if (!m->events.capacity)
        return;
    lkvi_digest(digest_of(m, block->parent), lkvi_block_tokens(m, b), m->block_tokens,
                keys ? keys->data : NULL, keys ? keys->bytes : 0, digest_of(m, b));
    tell_stored(m, b, LKV_TIER_DEVICE);
}

static int has_copy(const struct lkvi_manager *m, uint32_t b)
{
    uint32_t h = m->host.num_blocks ? m->host.copy_of[b] : 0;
    return h && (m->blocks[h].flags & LKVI_HOST_COPY);
}

void lkvi_events_removed(struct lkvi_manager *m, uint32_t b)
{
    if (!m->events.capacity)
        return;
    if (lkvi_on_host(m, b))
        tell_removed(m, b, LKV_TIER_HOST, 0);
    else
        tell_removed(m, b, LKV_TIER_DEVICE, (uint32_t)has_copy(m, b));
}

void lkvi_events_moving(struct lkvi_manager *m, uint32_t from, uint32_t to)
{
    if (!m->events.capacity)
        return;
    memcpy(digest_of(m, to), digest_of(m, from), LKVI_DIGEST_BYTES);
    if (lkvi_on_host(m, from))
        tell_stored(m, from, LKV_TIER_DEVICE);
    else
        tell_removed(m, from, LKV_TIER_DEVICE, 1);
}

void lkvi_events_copied(struct lkvi_manager *m, uint32_t b)
{
    if (m->events.capacity)
        tell_stored(m, b, LKV_TIER_HOST);
}

void lkvi_events_copy_removed(struct lkvi_manager *m, uint32_t b, uint32_t remaining)
{
    if (m->events.capacity)
        tell_removed(m, b, LKV_TIER_HOST, remaining);
}

void lkvi_events_cleared(struct lkvi_manager *m)
{
    if (!m->events.capacity)
        return;
    push(m, LKV_EVENT_CLEARED);
    m->events.stored[LKV_TIER_DEVICE] = m->events.stored[LKV_TIER_HOST] = 0;
}

uint64_t lkvi_events_keysets(const struct lkvi_manager *m)
{
    uint64_t held = 0;
    for (uint32_t i = 0; i < m->events.capacity; i++)
        held += m->events.ring[i].keyset != 0;
    return held;
}

/* ---- reading */

static lkv_event describe(const struct lkvi_event *event, uint64_t seq)
{
    lkv_event out = {.seq = seq,
                     .kind = event->kind,
                     .tier = event->tier,
                     .reason = event->reason,
                     .remaining_copies = event->remaining};
    memcpy(out.parent, event->parent, LKVI_DIGEST_BYTES);
    memcpy(out.digest, event->digest, LKVI_DIGEST_BYTES);
    return out;
}

/* Tokens, then keys, then up to 7 bytes so that the next tokens are aligned; the bytes in all. */
static uint64_t place_data(const struct lkvi_manager *m, const struct lkvi_event *event,
                           uint64_t at, lkv_event *out)
{
    if (event->kind != LKV_EVENT_STORED)
        return 0;
    out->num_tokens = m->block_tokens;
    out->keys_bytes = event->keyset ? m->keysets.sets[event->keyset].bytes : 0;
    out->tokens_offset = at;
    out->keys_offset = at + m->block_tokens * sizeof(int32_t);
    return (m->block_tokens * sizeof(int32_t) + out->keys_bytes + 7) & ~(uint64_t)7;
}

static void copy_data(const struct lkvi_manager *m, const struct lkvi_event *event,
                      const lkv_event *out, uint8_t *data)
{
    if (!out->num_tokens)
        return;
    uint64_t slot = out->seq % m->events.capacity;
    memcpy(data + out->tokens_offset, m->events.tokens + slot * m->block_tokens,
           m->block_tokens * sizeof(int32_t));
    if (out->keys_bytes)
        memcpy(data + out->keys_offset, m->keysets.sets[event->keyset].data, out->keys_bytes);
}

static lkv_status check_from(const struct lkvi_events *e, uint64_t from)
{
    if (!e->capacity)
        return lkvi_fail(LKV_E_INVALID, "pool has no events; need LKV_POOL_EVENTS at creation");
    if (from > e->next)
        return lkvi_fail(LKV_E_INVALID, "from_seq is %llu; need at most %llu, the next event",
                         (unsigned long long)from, (unsigned long long)e->next);
    return LKV_OK;
}

static uint64_t first_seq(const struct lkvi_events *e, lkv_event_batch *batch)
{
    uint64_t oldest = e->next > e->capacity ? e->next - e->capacity : 1;
    uint64_t from = batch->from_seq ? batch->from_seq : 1;
    batch->lost = from < oldest ? oldest - from : 0;
    return from < oldest ? oldest : from;
}

static lkv_status read_locked(struct lkvi_manager *m, lkv_event_batch *batch)
{
    const struct lkvi_events *e = &m->events;
    uint64_t used = 0, num = 0;
    LKV_TRY(check_from(e, batch->from_seq));
    uint64_t seq = first_seq(e, batch);
    for (; seq < e->next && num < batch->capacity; seq++, num++) {
        const struct lkvi_event *event = &e->ring[seq % e->capacity];
        lkv_event out = describe(event, seq);
        uint64_t bytes = batch->data ? place_data(m, event, used, &out) : 0;
        if (bytes > batch->data_capacity - used) {
            if (num)
                break;
            return lkvi_fail(LKV_E_INVALID, "data_capacity is %llu bytes; event %llu needs %llu",
                             (unsigned long long)batch->data_capacity, (unsigned long long)seq,
                             (unsigned long long)bytes);
        }
        copy_data(m, event, &out, batch->data);
        batch->events[num] = out;
        used += bytes;
    }
    batch->num_events = num;
    batch->data_bytes = used;
    batch->next_seq = seq;
    return LKV_OK;
}

lkv_status lkvi_events_read(struct lkvi_manager *m, lkv_event_batch *batch)
{
    lkvi_lock(m);
    return lkvi_unlock(m, read_locked(m, batch));
}
