/* One random walk: the manager, its twin, what is alive. Between the walk (blocks_ops.c) and its
 * operations on sequences (blocks_ops_seqs.c) and tiers (blocks_ops_host.c). */
#ifndef TESTS_STRESS_BLOCKS_OPS_STATE_H
#define TESTS_STRESS_BLOCKS_OPS_STATE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "block_manager/state.h"
#include "tests/reference/ref_manager.h"
#include "tests/stress/blocks_ops.h"

enum { MAX_PROMPT = 128, NUM_TICKETS = 8, LIVE_SEQS = 12, LIVE_LEASES = 6 };

struct ticket {
    lkv_match match;
    int32_t tokens[MAX_PROMPT];
    uint64_t n;
    uint32_t adapter;
};

struct ops {
    ops_draw draw;
    void *user;
    struct lkvi_manager *m;
    struct ref_manager ref;
    lkv_seq seqs[LIVE_SEQS];
    lkv_lease leases[LIVE_LEASES];
    lkv_seq dead_seq;
    lkv_lease dead_lease;
    struct ticket tickets[NUM_TICKETS];
    uint64_t fence, tick, expired;
    uint32_t block_tokens;
    uint32_t issued; /* copies that are being run; 0: none */
    int32_t table[REF_TABLE], copies[2 * REF_BLOCKS];
    char text[400];
    const char *name;
};

#define FAIL(...) (snprintf(o->text, sizeof o->text, __VA_ARGS__), o->text)

static inline uint32_t draw(struct ops *o, uint32_t n)
{
    return o->draw(o->user, n);
}

static inline const char *named(struct ops *o, const char *wrong)
{
    return wrong ? FAIL("%s: %s", o->name, wrong) : NULL;
}

static inline uint64_t some_fence(struct ops *o)
{
    return draw(o, 2) ? 0 : o->fence + 1 + draw(o, 6);
}

/* A slot that holds a sequence (live) or none; any, if there is no such one. */
static inline uint32_t some_slot(struct ops *o, int live)
{
    uint32_t first = draw(o, LIVE_SEQS);
    for (uint32_t i = 0; i < LIVE_SEQS; i++)
        if ((o->seqs[(first + i) % LIVE_SEQS] != 0) == live)
            return (first + i) % LIVE_SEQS;
    return first;
}

/* Each is one operation: NULL or the first difference. */
const char *op_match(struct ops *o);
const char *op_admit(struct ops *o);
const char *op_grow(struct ops *o);
const char *op_step(struct ops *o);
const char *op_common(struct ops *o);
const char *op_commit(struct ops *o);
const char *op_truncate(struct ops *o);
const char *op_fork(struct ops *o);
const char *op_free(struct ops *o);
const char *op_serve(struct ops *o);
const char *op_load(struct ops *o);
const char *op_write(struct ops *o);

const char *op_swap_out(struct ops *o);
const char *op_swap_in(struct ops *o);
const char *op_demote(struct ops *o);
const char *op_issue(struct ops *o);
const char *op_settle(struct ops *o);

void ops_look(struct ops *o, lkv_seq seq, struct ref_seen *seen); /* table and waiting copies */
uint64_t ops_tokens(struct ops *o, int32_t *tokens, uint64_t max);
void ops_prompt(lkv_prompt *prompt, lkv_key *key, const int32_t *tokens, uint64_t n,
                uint32_t adapter);

#endif
