/* Random lifetimes: sequences that are admitted, forked, cut, swapped and freed, payloads of their
 * tokens and of free keys between them. The model is what every payload must say: a TOKEN key's is
 * the hash of all tokens up to it, so that a payload which outlives its token, or follows a copy
 * too far, is found at the next hit; a pinned one must not change. After every call: the budget;
 * every 64 calls: every invariant of pool and slots. ARGS: steps, first seed, seeds. */
#include "tests/support/rng.h"
#include "tests/unit/moe_cache/slots_world.h"

enum { MAX_SEQS = 7, MAX_LENGTH = 120, MAX_PINS = 12, MAX_FILLING = 6, FREE_KEYS = 40 };

struct seq {
    lkv_seq handle;
    int32_t tokens[MAX_LENGTH + 32];
    uint64_t length;
    int live, swapped;
};

struct held { /* a pinned payload, or one being filled */
    lkv_slot slot;
    uint64_t value;
};

struct model {
    struct rng r;
    uint64_t seed, step, fence, max_blocks;
    lkv_context *ctx;
    lkv_pool *pool;
    lkv_slots *slots;
    struct seq seqs[MAX_SEQS];
    struct held pins[MAX_PINS], filling[MAX_FILLING];
    uint32_t num_pins, num_filling;
    uint64_t token_hits, free_hits, created, refused, shared;
};

static uint64_t below(struct model *m, uint64_t n)
{
    return rng_below(&m->r, n);
}

static void broken(const struct model *m, const char *what, uint64_t found, uint64_t want)
{
    fprintf(stderr, "seed %llu step %llu: %s: %#llx, want %#llx\n", (unsigned long long)m->seed,
            (unsigned long long)m->step, what, (unsigned long long)found, (unsigned long long)want);
    exit(1);
}

/* ---- payloads */

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 29;
}

static uint64_t token_value(const struct seq *s, uint32_t layer, uint64_t position)
{
    uint64_t h = mix(1, layer);
    for (uint64_t i = 0; i <= position; i++)
        h = mix(h, (uint64_t)(uint32_t)s->tokens[i]);
    return h;
}

static void write_payload(void *address, uint64_t value)
{
    uint64_t *p = address;
    for (int i = 0; i < SW_PAYLOAD / 8; i++)
        p[i] = value + (uint64_t)i;
}

static void read_payload(const struct model *m, const void *address, uint64_t value,
                         const char *what)
{
    const uint64_t *p = address;
    for (int i = 0; i < SW_PAYLOAD / 8; i++)
        if (p[i] != value + (uint64_t)i)
            broken(m, what, p[i], value + (uint64_t)i);
}

/* Ready: compared. New: written now, later or never. */
static void touch(struct model *m, lkv_slot_key key, uint64_t value, uint64_t *hits)
{
    uint32_t pin = m->num_pins < MAX_PINS && !below(m, 6) ? LKV_SLOTS_PIN : 0;
    uint32_t create = below(m, 3) ? LKV_SLOTS_CREATE : 0;
    lkv_slot slot = sw_get(m->slots, key, pin | create, m->step / 20);
    m->refused += slot.state == LKV_SLOT_REFUSED;
    if (slot.state == LKV_SLOT_READY) {
        read_payload(m, slot.address, value, key.kind == LKV_SLOT_KEY_TOKEN ? "token" : "free");
        ++*hits;
    } else if (slot.state == LKV_SLOT_NEW) {
        m->created++;
        if (m->num_filling < MAX_FILLING && !below(m, 8)) {
            m->filling[m->num_filling++] = (struct held){slot, value};
            m->filling[m->num_filling - 1].slot.state = pin;
            return;
        }
        write_payload(slot.address, value);
        SW_MUST(lkv_slots_commit(m->slots, &slot.handle, 1, 1));
    } else {
        return;
    }
    if (pin)
        m->pins[m->num_pins++] = (struct held){slot, value};
}

/* state of a slot in filling: whether it stays pinned. */
static void end_filling(struct model *m)
{
    if (!m->num_filling)
        return;
    uint32_t i = (uint32_t)below(m, m->num_filling), ready = below(m, 4) != 0;
    struct held h = m->filling[i];
    if (h.slot.state && m->num_pins == MAX_PINS)
        ready = 0;
    m->filling[i] = m->filling[--m->num_filling];
    write_payload(h.slot.address, h.value);
    SW_MUST(lkv_slots_commit(m->slots, &h.slot.handle, 1, ready));
    if (h.slot.state && ready)
        m->pins[m->num_pins++] = h;
}

static void unpin(struct model *m)
{
    if (!m->num_pins)
        return;
    uint32_t i = (uint32_t)below(m, m->num_pins);
    read_payload(m, m->pins[i].slot.address, m->pins[i].value, "pinned");
    SW_MUST(lkv_slots_unpin(m->slots, &m->pins[i].slot.handle, 1));
    m->pins[i] = m->pins[--m->num_pins];
}

static void touch_token(struct model *m)
{
    struct seq *s = &m->seqs[below(m, MAX_SEQS)];
    if (!s->live || s->swapped || !s->length)
        return;
    for (int i = 0; i < 6; i++) {
        uint64_t position = below(m, s->length);
        uint32_t layer = (uint32_t)below(m, SW_LAYERS);
        touch(m, sw_token(m->pool, s->handle, layer, position), token_value(s, layer, position),
              &m->token_hits);
    }
}

static void touch_free(struct model *m)
{
    uint32_t layer = (uint32_t)below(m, SW_LAYERS), index = (uint32_t)below(m, FREE_KEYS);
    lkv_slot_key key = sw_free(layer, index);
    uint64_t erased;
    if (below(m, 10))
        touch(m, key, mix(mix(77, layer), index), &m->free_hits);
    else
        SW_MUST(lkv_slots_erase(m->slots, &key, 1, &erased));
}

/* ---- sequences */

static int32_t token(struct model *m)
{
    return (int32_t)below(m, 2);
}

static void admit(struct model *m)
{
    struct seq *s = m->seqs;
    while (s < m->seqs + MAX_SEQS && s->live)
        s++;
    if (s == m->seqs + MAX_SEQS)
        return;
    const struct seq *model = &m->seqs[below(m, MAX_SEQS)];
    uint64_t common = below(m, 4) ? below(m, model->length + 1) : 0;
    s->length = common + 1 + below(m, 40);
    s->length = s->length < MAX_LENGTH ? s->length : MAX_LENGTH;
    memmove(s->tokens, model->tokens, common * sizeof *s->tokens);
    for (uint64_t i = common; i < s->length; i++)
        s->tokens[i] = token(m);
    lkv_prompt p = {.size = sizeof p, .tokens = s->tokens, .num_tokens = s->length};
    s->live = lkv_seq_admit(m->pool, &p, NULL, NULL, &s->handle) == LKV_OK;
    s->swapped = 0;
}

static void append(struct model *m, struct seq *s)
{
    uint64_t n = 1 + below(m, 20);
    if (s->length + n > MAX_LENGTH)
        return;
    for (uint64_t i = 0; i < n; i++)
        s->tokens[s->length + i] = token(m);
    if (lkv_seq_append(m->pool, s->handle, s->tokens + s->length, n, NULL) == LKV_OK)
        s->length += n;
}

/* The short way of a decode step. */
static void decode(struct model *m, struct seq *s)
{
    uint32_t one = 1;
    lkv_step step = {.size = sizeof step,
                     .num_seqs = 1,
                     .seqs = &s->handle,
                     .num_new = &one,
                     .tokens = s->tokens + s->length};
    if (s->length == MAX_LENGTH)
        return;
    s->tokens[s->length] = token(m);
    s->length += lkv_pool_step(m->pool, &step, NULL) == LKV_OK;
}

static void fork_one(struct model *m, const struct seq *s)
{
    for (int i = 0; i < MAX_SEQS; i++) {
        struct seq *c = &m->seqs[i];
        if (c->live)
            continue;
        lkv_seq child;
        if (lkv_seq_fork(m->pool, s->handle, &child) != LKV_OK)
            return;
        *c = *s;
        c->handle = child;
        return;
    }
}

static void swap(struct model *m, struct seq *s)
{
    SW_MUST(lkv_pool_apply_copies(m->pool, 0, NULL));
    if (s->swapped)
        s->swapped = lkv_seq_swap_in(m->pool, s->handle, NULL) != LKV_OK;
    else
        s->swapped = lkv_seq_swap_out(m->pool, s->handle, 0, NULL) == LKV_OK;
    SW_MUST(lkv_pool_apply_copies(m->pool, 0, NULL));
}

static void change_seq(struct model *m)
{
    struct seq *s = &m->seqs[below(m, MAX_SEQS)];
    uint64_t what = below(m, 16), fence = below(m, 3) ? 0 : m->fence + 1 + below(m, 3);
    if (!s->live)
        return;
    if (what == 0 || (s->swapped && what > 4)) {
        swap(m, s);
    } else if (what < 3) {
        SW_MUST(lkv_seq_free(m->pool, s->handle, fence));
        s->live = s->swapped = 0;
    } else if (s->swapped) {
        return;
    } else if (what < 6) {
        append(m, s);
    } else if (what < 9) {
        decode(m, s);
    } else if (what < 11) {
        s->length = below(m, s->length + 1);
        SW_MUST(lkv_seq_truncate(m->pool, s->handle, s->length, fence));
    } else if (what < 13) {
        fork_one(m, s);
    } else {
        SW_MUST(lkv_seq_commit(m->pool, s->handle, s->length));
    }
}

static void change_pool(struct model *m)
{
    uint64_t n;
    uint64_t what = below(m, 200);
    if (what == 0)
        SW_MUST(lkv_pool_reset(m->pool, LKV_RESET_FORCE));
    else if (what < 10)
        SW_MUST(lkv_pool_evict(m->pool, below(m, 3), &n));
    else if (what < 70)
        SW_MUST(lkv_pool_demote(m->pool, below(m, 6), &n));
    else if (what < 140)
        SW_MUST(lkv_pool_pass_fence(m->pool, ++m->fence));
    else
        SW_MUST(lkv_pool_apply_copies(m->pool, 0, NULL));
}

/* ---- the run */

static void look(struct model *m)
{
    lkv_slots_stats s = sw_stats(m->slots);
    lkv_pool_stats p = sw_pool_stats(m->pool);
    if (s.blocks_held > m->max_blocks || s.used_bytes > s.held_bytes ||
        s.held_bytes > s.budget_bytes)
        broken(m, "blocks held", s.blocks_held, m->max_blocks);
    if (p.blocks_lent != s.blocks_held)
        broken(m, "blocks lent", p.blocks_lent, s.blocks_held);
    m->shared += s.token_users > s.slots_ready;
    if (m->step % 64 == 0)
        SW_MUST(lkv_pool_check(m->pool));
}

static void run_step(struct model *m)
{
    uint64_t what = below(m, 100);
    if (what < 12)
        admit(m);
    else if (what < 40)
        change_seq(m);
    else if (what < 46)
        change_pool(m);
    else if (what < 76)
        touch_token(m);
    else if (what < 88)
        touch_free(m);
    else if (what < 94)
        unpin(m);
    else
        end_filling(m);
    look(m);
}

static void finish(struct model *m)
{
    while (m->num_filling)
        end_filling(m);
    while (m->num_pins)
        unpin(m);
    SW_MUST(lkv_pool_check(m->pool));
    lkv_slots_stats s = sw_stats(m->slots);
    printf("seed %llu policy %llu: %llu token hits, %llu free hits, %llu created, %llu refused, "
           "%llu evicted, %llu dropped, %llu copied\n",
           (unsigned long long)m->seed, (unsigned long long)(m->seed % 3),
           (unsigned long long)m->token_hits, (unsigned long long)m->free_hits,
           (unsigned long long)m->created, (unsigned long long)m->refused,
           (unsigned long long)s.evicted, (unsigned long long)s.dropped,
           (unsigned long long)s.copied);
    lkv_pool_release(m->pool); /* the slots hold it */
    lkv_slots_release(m->slots);
    lkv_context_release(m->ctx);
}

static void run(uint64_t seed, uint64_t steps)
{
    struct model m = {.r = rng_seed(seed), .seed = seed, .max_blocks = 1 + seed % 9};
    m.ctx = sw_context();
    m.pool = sw_pool(m.ctx, 39, 12);
    m.slots = sw_slots(m.pool, m.max_blocks, (uint32_t)(seed % 3), SW_PAYLOAD);
    for (m.step = 1; m.step <= steps; m.step++)
        run_step(&m);
    if (!m.token_hits || !m.free_hits || !m.shared)
        broken(&m, "hits of tokens, of which some are shared", m.token_hits, m.free_hits);
    finish(&m);
}

int main(int argc, char **argv)
{
    uint64_t steps = argc > 1 ? strtoull(argv[1], NULL, 10) : 20000;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    uint64_t seeds = argc > 3 ? strtoull(argv[3], NULL, 10) : 6;
    for (uint64_t i = 0; i < seeds; i++)
        run(seed + i, steps);
    return 0;
}
