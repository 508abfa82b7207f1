/* Events of the prefix cache. The one property: replaying them gives exactly the index of each tier
 * (I6), for random traffic with evictions, demotions, resets, detached prefixes and extra keys; and
 * every removal tells how many copies remain. And what a reader that is late, small or wrong is
 * told. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include "block_manager/state.h"
#include "tests/support/rng.h"

enum { BLOCK = 16, MAX_KEYS = 4096, LENGTH = 8 * BLOCK };

static struct lkvi_manager *manager_create(uint64_t num_blocks, uint64_t host_blocks,
                                           uint32_t event_slots)
{
    struct lkvi_manager_config config = {.num_blocks = num_blocks,
                                         .base_blocks = num_blocks,
                                         .host_blocks = host_blocks,
                                         .tokens_per_block = BLOCK,
                                         .max_seqs = 16,
                                         .event_slots = event_slots,
                                         .identity = "an identity of thirty-two bytes"};
    struct lkvi_manager *m;
    cr_assert_eq(lkvi_manager_create(&config, &m), LKV_OK, "%s", lkv_last_error());
    return m;
}

/* ---- a router's view */

struct tier {
    uint8_t keys[MAX_KEYS][32];
    size_t num;
};

struct view {
    struct tier tiers[2];
    uint64_t next, reasons[4], remaining[2][2]; /* [tier][copies elsewhere] */
};

static size_t find(const struct tier *t, const uint8_t *digest)
{
    size_t i = 0;
    while (i < t->num && memcmp(t->keys[i], digest, 32))
        i++;
    return i;
}

static int has(const struct tier *t, const uint8_t *digest)
{
    return find(t, digest) < t->num;
}

static void apply(struct view *v, const struct lkvi_manager *m, const lkv_event *e,
                  const uint8_t *data)
{
    uint8_t digest[32];
    cr_assert(e->tier <= LKV_TIER_HOST);
    struct tier *here = &v->tiers[e->tier], *there = &v->tiers[!e->tier];
    size_t at = find(here, e->digest);
    if (e->kind == LKV_EVENT_CLEARED) {
        here->num = there->num = 0;
    } else if (e->kind == LKV_EVENT_REMOVED) {
        uint32_t copies = (uint32_t)has(there, e->digest);
        cr_assert(at < here->num, "event %llu removes what is not there",
                  (unsigned long long)e->seq);
        cr_assert(e->reason >= LKV_REMOVED_EVICTED && e->reason <= LKV_REMOVED_DROPPED);
        cr_assert_eq(e->remaining_copies, copies, "event %llu: %u copies remain, want %u",
                     (unsigned long long)e->seq, e->remaining_copies, copies);
        v->reasons[e->reason]++;
        v->remaining[e->tier][copies]++;
        memcpy(here->keys[at], here->keys[--here->num], 32);
    } else {
        cr_assert_eq(e->kind, LKV_EVENT_STORED);
        cr_assert_eq(at, here->num, "event %llu stores a key twice", (unsigned long long)e->seq);
        cr_assert(has(here, e->parent) || has(there, e->parent) ||
                      !memcmp(e->parent, m->identity, 32),
                  "event %llu: its parent is not stored", (unsigned long long)e->seq);
        lkvi_digest(e->parent, (const int32_t *)(data + e->tokens_offset), e->num_tokens,
                    data + e->keys_offset, e->keys_bytes, digest);
        cr_assert_arr_eq(digest, e->digest, 32, "event %llu: tokens and keys give another digest",
                         (unsigned long long)e->seq);
        memcpy(here->keys[here->num++], e->digest, 32);
    }
}

static void catch_up(struct view *v, struct lkvi_manager *m)
{
    lkv_event events[7];
    uint64_t data[200];
    lkv_event_batch batch = {.size = sizeof batch,
                             .events = events,
                             .capacity = 7,
                             .data = data,
                             .data_capacity = sizeof data};
    do {
        batch.from_seq = v->next;
        cr_assert_eq(lkvi_events_read(m, &batch), LKV_OK, "%s", lkv_last_error());
        cr_assert_eq(batch.lost, 0);
        for (uint64_t i = 0; i < batch.num_events; i++) {
            cr_assert_eq(events[i].seq, (v->next ? v->next : 1) + i);
            apply(v, m, &events[i], (uint8_t *)data);
        }
        v->next = batch.next_seq;
    } while (batch.num_events);
}

/* The digest of an indexed block from the tokens up its chain, without the events' own table. */
static void digest_of(const struct lkvi_manager *m, uint32_t b, uint8_t *out)
{
    const struct lkvi_keyset *keys = &m->keysets.sets[m->blocks[b].keyset];
    uint8_t parent[32];
    memcpy(parent, m->identity, 32);
    if (m->blocks[b].parent)
        digest_of(m, m->blocks[b].parent, parent);
    lkvi_digest(parent, lkvi_block_tokens(m, b), BLOCK, m->blocks[b].keyset ? keys->data : NULL,
                m->blocks[b].keyset ? keys->bytes : 0, out);
}

static void view_equals_index(const struct view *v, const struct lkvi_manager *m)
{
    uint8_t digest[32];
    size_t cached[2] = {0, 0};
    for (uint32_t b = 1; b <= m->num_ids; b++) {
        int host = b > m->num_blocks;
        uint32_t known = m->blocks[b].flags & LKVI_HOST_COPY ? m->host.copy_of[b] : b;
        if (!(m->blocks[known].flags & LKVI_INDEXED))
            continue;
        digest_of(m, known, digest);
        cr_assert(has(&v->tiers[host], digest), "block %u is cached; no event says so", b);
        cached[host]++;
    }
    for (int host = 0; host < 2; host++)
        cr_assert_eq(cached[host], v->tiers[host].num,
                     "tier %d: %zu keys by the events, %zu cached", host, v->tiers[host].num,
                     cached[host]);
}

/* ---- traffic */

struct traffic {
    struct lkvi_manager *m;
    struct rng rng;
    lkv_seq seqs[12];
    uint64_t lengths[12];
};

static const lkv_key adapter = {
    .data = "adapter1", .end = UINT64_MAX, .tag = LKV_KEY_ADAPTER, .bytes = 8};

static void start(struct traffic *t, int i)
{
    int32_t tokens[LENGTH];
    uint64_t n = 1 + rng_below(&t->rng, LENGTH), fork = rng_below(&t->rng, LENGTH);
    const lkv_key keys[] = {
        adapter, {.data = "image", .begin = 20, .end = 40, .tag = LKV_KEY_MULTIMODAL, .bytes = 5}};
    for (uint64_t k = 0; k < LENGTH; k++)
        tokens[k] = (int32_t)(k < fork ? k : k + 1000 * rng_below(&t->rng, 2));
    lkv_prompt prompt = {.size = sizeof prompt,
                         .tokens = tokens,
                         .num_tokens = n,
                         .keys = keys,
                         .num_keys = (uint32_t)rng_below(&t->rng, 3),
                         .flags = rng_below(&t->rng, 4) ? 0 : LKV_PROMPT_NO_MATCH};
    if (lkvi_seq_admit(t->m, &prompt, NULL, NULL, &t->seqs[i]) == LKV_OK)
        t->lengths[i] = n;
}

static void act(struct traffic *t)
{
    int i = (int)rng_below(&t->rng, 12);
    uint64_t evicted, waiting;
    switch (rng_below(&t->rng, 16)) {
    case 0:
        lkvi_manager_evict(t->m, rng_below(&t->rng, 6), &evicted);
        if (t->m->host.num_blocks)
            lkvi_manager_demote(t->m, rng_below(&t->rng, 10), &evicted);
        break;
    case 1:
        lkvi_manager_peek_copies(t->m, NULL, 0, &waiting);
        lkvi_manager_settle_copies(t->m, waiting, 0);
        if (!rng_below(&t->rng, 60))
            lkvi_manager_reset(t->m, LKV_RESET_FORCE);
        if (!rng_below(&t->rng, 20))
            lkvi_manager_drop(t->m, &adapter, &evicted);
        break;
    case 2:
    case 3:
    case 4:
        if (t->seqs[i])
            lkvi_seq_free(t->m, t->seqs[i], 0);
        t->seqs[i] = 0;
        break;
    default:
        if (t->seqs[i])
            lkvi_seq_commit(t->m, t->seqs[i], 1 + rng_below(&t->rng, t->lengths[i]));
        else
            start(t, i);
    }
}

Test(events, replay_equals_the_index)
{
    static struct view view;
    uint64_t reasons[4] = {0}, remaining[2][2] = {{0}};
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct traffic t = {.m = manager_create(12 + 6 * seed, seed % 4 * 10, 256),
                            .rng = rng_seed(seed)};
        memset(&view, 0, sizeof view);
        for (int step = 0; step < 30000; step++) {
            act(&t);
            if (rng_below(&t.rng, 4))
                continue;
            catch_up(&view, t.m);
            view_equals_index(&view, t.m);
            cr_assert_eq(lkvi_manager_check(t.m), LKV_OK, "seed %llu step %d: %s",
                         (unsigned long long)seed, step, lkv_last_error());
        }
        cr_assert_gt(view.next, 500, "seed %llu: only %llu events", (unsigned long long)seed,
                     (unsigned long long)view.next);
        for (int i = 0; i < 4; i++)
            reasons[i] += view.reasons[i], remaining[i / 2][i % 2] += view.remaining[i / 2][i % 2];
        lkvi_manager_destroy(t.m);
    }
    cr_assert_gt(reasons[LKV_REMOVED_EVICTED], 0);
    cr_assert_gt(reasons[LKV_REMOVED_DETACHED], 0);
    cr_assert_gt(reasons[LKV_REMOVED_DROPPED], 0);
    for (int i = 0; i < 4; i++)
        cr_assert_gt(remaining[i / 2][i % 2], 0, "no key of tier %d removed with %d copies left",
                     i / 2, i % 2);
}

/* ---- readers */

static void cache(struct lkvi_manager *m, int32_t first, uint64_t blocks)
{
    int32_t tokens[LENGTH];
    lkv_seq seq;
    for (uint64_t i = 0; i < blocks * BLOCK; i++)
        tokens[i] = first + (int32_t)i;
    lkv_prompt prompt = {.size = sizeof prompt, .tokens = tokens, .num_tokens = blocks * BLOCK};
    cr_assert_eq(lkvi_seq_admit(m, &prompt, NULL, NULL, &seq), LKV_OK);
    cr_assert_eq(lkvi_seq_commit(m, seq, blocks * BLOCK), LKV_OK);
    cr_assert_eq(lkvi_seq_free(m, seq, 0), LKV_OK);
}

Test(events, a_late_reader_is_told_what_it_lost)
{
    struct lkvi_manager *m = manager_create(32, 0, 4);
    lkv_event events[16];
    lkv_event_batch batch = {.size = sizeof batch, .events = events, .capacity = 16};
    cache(m, 0, 7);
    cr_assert_eq(lkvi_events_read(m, &batch), LKV_OK);
    cr_assert_eq(batch.lost, 3);
    cr_assert_eq(batch.num_events, 4);
    cr_assert_eq(events[0].seq, 4);
    cr_assert_eq(events[0].num_tokens, 0, "no room for tokens was given");
    cr_assert_eq(batch.next_seq, 8);
    cr_assert_eq(lkvi_manager_reset(m, 0), LKV_OK);
    batch.from_seq = 8;
    cr_assert_eq(lkvi_events_read(m, &batch), LKV_OK);
    cr_assert_eq(batch.lost, 0);
    cr_assert_eq(batch.num_events, 1);
    cr_assert_eq(events[0].kind, LKV_EVENT_CLEARED);
    lkvi_manager_destroy(m);
}

Test(events, a_small_buffer_gets_whole_events)
{
    struct lkvi_manager *m = manager_create(32, 0, 64);
    lkv_event events[16];
    uint64_t data[BLOCK * 4 / 8 * 2 + 1];
    lkv_event_batch batch = {.size = sizeof batch, .events = events, .capacity = 16, .data = data};
    cache(m, 100, 5);
    batch.data_capacity = BLOCK * 4 - 1;
    batch.next_seq = 77;
    cr_assert_eq(lkvi_events_read(m, &batch), LKV_E_INVALID);
    cr_assert_eq(batch.next_seq, 77);
    batch.data_capacity = sizeof data;
    cr_assert_eq(lkvi_events_read(m, &batch), LKV_OK);
    cr_assert_eq(batch.num_events, 2);
    cr_assert_eq(batch.data_bytes, 2 * BLOCK * 4);
    cr_assert_eq(((int32_t *)data)[BLOCK], 100 + BLOCK);
    cr_assert_eq(batch.next_seq, 3);
    batch.from_seq = 7;
    cr_assert_eq(lkvi_events_read(m, &batch), LKV_E_INVALID, "5 events, the next is 6");
    lkvi_manager_destroy(m);
    m = manager_create(4, 0, 0);
    batch.from_seq = 0;
    cr_assert_eq(lkvi_events_read(m, &batch), LKV_E_INVALID);
    lkvi_manager_destroy(m);
}
