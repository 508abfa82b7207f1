/* Eight threads on one pool and one store of slots: two run sequences, the others look keys up,
 * fill, pin and read. A payload holds the hash of its key, so every hit can be told from a mix-up;
 * TSan sees the rest. ARGS: rounds. */
#include <pthread.h>
#include "tests/support/rng.h"
#include "tests/unit/moe_cache/slots_world.h"

enum { THREADS = 8, KEYS = 60 };

struct shared {
    lkv_pool *pool;
    lkv_slots *slots;
    uint64_t rounds;
};

struct worker {
    struct shared *shared;
    uint64_t seed, hits, failures;
};

static uint64_t value_of(const lkv_slot_key *key)
{
    return ((uint64_t)key->layer << 32 | key->index) * 0x9E3779B97F4A7C15u + 1;
}

static lkv_status fill(void *user, const lkv_slot_key *key, void *address, uint64_t bytes)
{
    uint64_t *p = address;
    (void)user;
    for (uint64_t i = 0; i < bytes / 8; i++)
        p[i] = value_of(key);
    return key->index % 13 == 12 ? LKV_E_IO : LKV_OK;
}

static void read_one(struct worker *w, const lkv_slot_key *key, const lkv_slot *slot)
{
    const uint64_t *p = slot->address;
    for (int i = 0; i < SW_PAYLOAD / 8; i++)
        w->failures += p[i] != value_of(key);
    w->hits++;
    w->failures += lkv_slots_unpin(w->shared->slots, &slot->handle, 1) != LKV_OK;
}

static void look_up(struct worker *w, struct rng *r)
{
    lkv_slot_key keys[4];
    lkv_slot slots[4];
    lkv_slots_args a = {.size = sizeof a,
                        .keys = keys,
                        .slots = slots,
                        .num_keys = 4,
                        .flags = LKV_SLOTS_PIN | LKV_SLOTS_CREATE | LKV_SLOTS_FILL};
    for (int i = 0; i < 4; i++)
        keys[i] = sw_free((uint32_t)rng_below(r, SW_LAYERS), (uint32_t)rng_below(r, KEYS));
    lkv_status status = lkv_slots_get(w->shared->slots, &a);
    w->failures += status != LKV_OK && status != LKV_E_IO;
    for (int i = 0; i < 4; i++)
        if (slots[i].state == LKV_SLOT_READY)
            read_one(w, &keys[i], &slots[i]);
}

/* A sequence with payloads of its own tokens, which nobody else touches; then its end. */
static void live(struct worker *w, struct rng *r)
{
    int32_t tokens[64];
    lkv_seq seq;
    lkv_prompt p = {.size = sizeof p, .tokens = tokens, .num_tokens = 1 + rng_below(r, 64)};
    for (int i = 0; i < 64; i++)
        tokens[i] = (int32_t)(rng_below(r, 1 << 20) * 8 + w->seed);
    if (lkv_seq_admit(w->shared->pool, &p, NULL, NULL, &seq) != LKV_OK)
        return;
    lkv_slot_key key = sw_token(w->shared->pool, seq, 0, p.num_tokens - 1);
    lkv_slot slot = sw_get(w->shared->slots, key, LKV_SLOTS_CREATE | LKV_SLOTS_PIN, 0);
    if (slot.state == LKV_SLOT_NEW) {
        fill(NULL, &key, slot.address, SW_PAYLOAD);
        w->failures += lkv_slots_commit(w->shared->slots, &slot.handle, 1, 1) != LKV_OK;
        read_one(w, &key, &slot);
    } else {
        w->failures += slot.state != LKV_SLOT_REFUSED;
    }
    w->failures += lkv_seq_commit(w->shared->pool, seq, p.num_tokens) != LKV_OK;
    w->failures += lkv_seq_free(w->shared->pool, seq, 0) != LKV_OK;
}

static void *work(void *arg)
{
    struct worker *w = arg;
    struct rng r = rng_seed(w->seed);
    for (uint64_t i = 0; i < w->shared->rounds; i++) {
        if (w->seed < 2)
            live(w, &r);
        else
            look_up(w, &r);
        if (w->seed == 2 && i % 100 == 0)
            w->failures += lkv_pool_check(w->shared->pool) != LKV_OK;
        if (w->seed == 3)
            w->failures += sw_stats(w->shared->slots).blocks_held > 3;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    struct shared s = {.rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 1500};
    struct worker workers[THREADS];
    pthread_t threads[THREADS];
    lkv_context *ctx = sw_context();
    uint64_t hits = 0, failures = 0;
    s.pool = sw_pool(ctx, 39, 0);
    lkv_slots_desc d = {
        .size = sizeof d, .payload_bytes = SW_PAYLOAD, .max_blocks = 3, .fill = fill};
    SW_MUST(lkv_slots_create(s.pool, &d, &s.slots));
    for (uint64_t i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){&s, i, 0, 0};
        if (pthread_create(&threads[i], NULL, work, &workers[i]))
            return 2;
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        hits += workers[i].hits;
        failures += workers[i].failures;
    }
    SW_MUST(lkv_pool_check(s.pool));
    printf("%d threads, %llu rounds each: %llu hits, %llu failures\n", THREADS,
           (unsigned long long)s.rounds, (unsigned long long)hits, (unsigned long long)failures);
    lkv_slots_release(s.slots);
    lkv_pool_release(s.pool);
    lkv_context_release(ctx);
    return failures || !hits;
}
