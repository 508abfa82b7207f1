/* What moe.c and moe_hits.c share. */
#ifndef TOOLS_REPLAY_MOE_STATE_H
#define TOOLS_REPLAY_MOE_STATE_H

#include "tools/replay/moe.h"
#include "tools/replay/replay.h"

enum { MOE_TILE = 512 }; /* tokens that are routed at once: their logits stay in the L2 cache */

struct moe {
    struct replay *r;
    struct moe_source *source;
    lkv_router *router;
    lkv_gate *gate;
    lkv_slots *slots;
    uint32_t top_k;
    uint64_t capacity; /* rows of a step */
    float *logits;     /* [MOE_TILE, E] */
    int32_t *experts;  /* [capacity, K] */
    int32_t *traced;   /* [capacity, K + 1]: the last one is the fallback */
    int32_t *primary, *fallback;
    int32_t *buddy; /* [E] */
    float *entropy;
    uint64_t *chain;
    uint8_t *triggered, *answers; /* [capacity]; answers: to the rows that attention asked */
    lkv_slot_key *keys;
    lkv_slot *places;
    uint64_t *handles;
    uint64_t *load;            /* [E] */
    uint64_t steps, next_look; /* sharing is looked at now and then: the store is walked for it */
};

/* Experts [n, K] of tokens, and entropies [n] unless NULL; counts: adds to the load. */
void moe_route(struct moe *m, const uint64_t *chain, uint64_t n, float *entropy, int counts);
/* Second experts of the first n rows of m->experts. */
void moe_choose_fallback(struct moe *m, uint64_t n, const uint8_t *triggered);
lkv_trace_args moe_trace_args(const struct moe *m, const int64_t *slots, uint64_t n);

#endif
