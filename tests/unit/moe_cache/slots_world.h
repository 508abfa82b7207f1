/* A small pool with headroom and payload slots in it, for the tests of slots. */
#ifndef LKVT_UNIT_MOE_SLOTS_WORLD_H
#define LKVT_UNIT_MOE_SLOTS_WORLD_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "latentkv/moe_cache.h"

enum { SW_LAYERS = 2, SW_BLOCK = 16, SW_PAYLOAD = 200 };

static inline void sw_must(lkv_status status, const char *call, int line)
{
    if (status == LKV_OK)
        return;
    fprintf(stderr, "line %d: %s: %s: %s\n", line, call, lkv_status_name(status), lkv_last_error());
    abort();
}
#define SW_MUST(call) sw_must(call, #call, __LINE__)

static inline lkv_context *sw_context(void)
{
    lkv_context *ctx;
    lkv_context_desc d = {.size = sizeof d, .device = LKV_DEVICE_CPU, .num_threads = 1};
    SW_MUST(lkv_context_create(&d, &ctx));
    return ctx;
}

static inline lkv_pool *sw_pool(lkv_context *ctx, uint64_t blocks, uint64_t host_blocks)
{
    lkv_pool *pool;
    lkv_pool_desc d = {.size = sizeof d,
                       .format = LKV_FORMAT_INT8,
                       .tokens_per_block = SW_BLOCK,
                       .latent_dim = 64,
                       .rope_dim = 32,
                       .num_layers = SW_LAYERS,
                       .max_seqs = 32,
                       .num_blocks = blocks,
                       .fallback_headroom = 0.3,
                       .host_blocks = host_blocks};
    SW_MUST(lkv_pool_create(ctx, &d, &pool));
    return pool;
}

static inline lkv_slots *sw_slots(lkv_pool *pool, uint64_t max_blocks, uint32_t policy,
                                  uint64_t payload_bytes)
{
    lkv_slots *slots;
    lkv_slots_desc d = {.size = sizeof d,
                        .payload_bytes = payload_bytes,
                        .max_blocks = max_blocks,
                        .policy = policy};
    SW_MUST(lkv_slots_create(pool, &d, &slots));
    return slots;
}

static inline lkv_slots_stats sw_stats(lkv_slots *slots)
{
    lkv_slots_stats s = {.size = sizeof s};
    SW_MUST(lkv_slots_query(slots, &s));
    return s;
}

static inline lkv_pool_stats sw_pool_stats(lkv_pool *pool)
{
    lkv_pool_stats s = {.size = sizeof s};
    SW_MUST(lkv_pool_query(pool, &s));
    return s;
}

static inline lkv_slot sw_get(lkv_slots *slots, lkv_slot_key key, uint32_t flags, uint64_t step)
{
    lkv_slot slot = {0};
    lkv_slots_args a = {.size = sizeof a,
                        .keys = &key,
                        .slots = &slot,
                        .num_keys = 1,
                        .step = step,
                        .flags = flags};
    SW_MUST(lkv_slots_get(slots, &a));
    return slot;
}

/* Creates a payload of equal bytes; 0: refused. */
static inline int sw_put(lkv_slots *slots, lkv_slot_key key, int byte, uint64_t step)
{
    lkv_slot slot = sw_get(slots, key, LKV_SLOTS_CREATE, step);
    if (slot.state != LKV_SLOT_NEW)
        return 0;
    memset(slot.address, byte, SW_PAYLOAD);
    SW_MUST(lkv_slots_commit(slots, &slot.handle, 1, 1));
    return 1;
}

/* The payload's byte; -1: not ready. */
static inline int sw_look(lkv_slots *slots, lkv_slot_key key)
{
    lkv_slot slot = sw_get(slots, key, 0, 0);
    return slot.state == LKV_SLOT_READY ? *(uint8_t *)slot.address : -1;
}

static inline lkv_slot_key sw_free(uint32_t layer, uint32_t index)
{
    return (lkv_slot_key){LKV_SLOT_KEY_FREE, layer, 0, index};
}

static inline lkv_slot_key sw_token(lkv_pool *pool, lkv_seq seq, uint32_t layer, uint64_t position)
{
    int32_t table[256];
    uint64_t num;
    SW_MUST(lkv_seq_table(pool, seq, table, 256, &num));
    return (lkv_slot_key){LKV_SLOT_KEY_TOKEN, layer, (uint32_t)table[position / SW_BLOCK],
                          (uint32_t)(position % SW_BLOCK)};
}

static inline lkv_seq sw_admit(lkv_pool *pool, const int32_t *tokens, uint64_t n)
{
    lkv_seq seq;
    lkv_prompt p = {.size = sizeof p, .tokens = tokens, .num_tokens = n};
    SW_MUST(lkv_seq_admit(pool, &p, NULL, NULL, &seq));
    return seq;
}

#endif
