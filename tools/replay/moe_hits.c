/* In: a sequence whose prefix was found in the cache. Out: the traced experts of these tokens, read
 * back and compared with what routing gives again; their payloads, which must bear their marks. */
#include <string.h>

#include "tools/common/out.h"
#include "tools/common/rng.h"
#include "tools/replay/moe_state.h"

static void slots_of(const struct moe *m, const int32_t *table, uint64_t first, uint64_t n,
                     int64_t *slots)
{
    const uint32_t block = m->r->options.block_tokens;
    for (uint64_t i = 0; i < n; i++)
        slots[i] = (int64_t)table[(first + i) / block] * block + (int64_t)((first + i) % block);
}

/* The fallback of a token is traced where the gate was triggered: either none or the policy's. */
static void check_trace(struct moe *m, const uint64_t *chain, uint64_t n)
{
    struct moe_result *x = &m->r->result.moe;
    moe_route(m, chain, n, NULL, 0);
    moe_choose_fallback(m, n, NULL);
    for (uint64_t i = 0; i < n; i++) {
        const int32_t *read = m->traced + i * (m->top_k + 1);
        const int same = !memcmp(read, m->experts + i * m->top_k, m->top_k * sizeof *read) &&
                         (read[m->top_k] == -1 || read[m->top_k] == m->fallback[i]);
        x->trace_wrong += !same;
    }
    x->trace_checked += n;
}

static void check_payload(struct moe *m, const lkv_slot *slot, const uint64_t *chain, uint64_t i)
{
    const int32_t *read = m->traced + i * (m->top_k + 1);
    struct moe_mark mark;
    memcpy(&mark, slot->address, sizeof mark);
    m->r->result.moe.payloads_wrong +=
        mark.chain != chain[i] || mark.primary != read[0] || mark.fallback != read[m->top_k];
}

/* Nothing is evicted between the lookup and the comparison: addresses hold. */
static void find_payloads(struct moe *m, const int64_t *slots, const uint64_t *chain, uint64_t n)
{
    const uint32_t block = m->r->options.block_tokens;
    uint64_t num = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (m->traced[i * (m->top_k + 1) + m->top_k] < 0)
            continue;
        m->keys[num] = (lkv_slot_key){.kind = LKV_SLOT_KEY_TOKEN,
                                      .block = (uint32_t)(slots[i] / block),
                                      .index = (uint32_t)(slots[i] % block)};
        m->handles[num++] = i;
    }
    lkv_slots_args args = {.size = sizeof args,
                           .keys = m->keys,
                           .slots = m->places,
                           .num_keys = num,
                           .step = m->steps};
    out_must(lkv_slots_get(m->slots, &args), "the slots");
    for (uint64_t k = 0; k < num; k++)
        if (m->places[k].state == LKV_SLOT_READY)
            check_payload(m, &m->places[k], chain, m->handles[k]);
    m->r->result.moe.payloads_found += args.num_ready;
    m->r->result.moe.payloads_gone += num - args.num_ready;
}

/* A share of the requests is routed again; which ones does not depend on the order. */
static int is_checked(const struct moe *m, uint64_t request)
{
    const uint64_t drawn = mix64(request ^ m->r->options.seed << 32 ^ 0x636865636b);
    return (double)(drawn >> 11) * 0x1p-53 < m->r->options.moe.check_rate;
}

static void read_tile(struct moe *m, const int64_t *slots, const uint64_t *chain, uint64_t n,
                      int check)
{
    const lkv_trace_args args = moe_trace_args(m, slots, n);
    out_must(lkv_trace_read(m->r->pool.pool, &args), "the routing trace");
    m->r->result.moe.trace_read += n;
    if (check)
        check_trace(m, chain, n);
    if (m->slots)
        find_payloads(m, slots, chain, n);
}

void moe_hit(struct moe *m, const struct moe_hit *hit)
{
    const uint32_t width = m->r->pool.table_width;
    const int check = is_checked(m, hit->request);
    int64_t slots[MOE_TILE];
    uint64_t num;
    if (!hit->tokens)
        return;
    int32_t *table = out_alloc(width, sizeof *table);
    out_must(lkv_seq_table(m->r->pool.pool, hit->seq, table, width, &num), "a table");
    for (uint64_t at = 0; at < hit->tokens; at += MOE_TILE) {
        const uint64_t n = hit->tokens - at < MOE_TILE ? hit->tokens - at : MOE_TILE;
        slots_of(m, table, at, n, slots);
        read_tile(m, slots, hit->chain + at, n, check);
    }
    free(table);
}
