/* Mixture of experts beside a replay (--moe): every token that runs is routed in one layer, the
 * gate asks whether it is uncertain, a second expert's payload goes into a slot of the headroom,
 * and the choice is traced beside the KV block. No model stands behind it: logits are those of
 * moe_source.c, and a payload is the mark of its token, so that one which comes back for another
 * prefix shows. */
#ifndef TOOLS_REPLAY_MOE_H
#define TOOLS_REPLAY_MOE_H

#include <jansson.h>
#include <stdint.h>
#include "latentkv/moe_cache.h"

struct replay;
struct attend_seq;
struct attend_asked;

struct moe_options {
    uint32_t experts; /* E; 0: no routing */
    uint32_t router, top_k, fallback, slot_policy, gate_window;
    uint64_t payload_bytes;
    double spread, skew, gate_stddevs, check_rate;
};

/* At the start of a payload. */
struct moe_mark {
    uint64_t chain; /* of all tokens up to its own */
    int32_t primary, fallback;
};

/* Payloads in slots, each moment weighted by the steps it stands for. Without sharing every
 * sequence that refers to a token would hold its payload itself. */
struct moe_sharing {
    double weight;                        /* steps */
    double with, without;                 /* payloads, summed over the steps */
    double running_with, running_without; /* likewise, of running sequences alone */
    uint64_t peak_with, peak_without;     /* of running sequences, when `without` was largest */
};

struct moe_result {
    uint64_t fallbacks;                     /* triggered tokens with a second expert */
    uint64_t created, refused;              /* their payloads */
    uint64_t refused_with_room;             /* refused below the budget: must be 0 */
    uint64_t blocks_peak;                   /* of headroom, held by slots */
    uint64_t trace_written, trace_read;     /* tokens; read: on prefix hits */
    uint64_t trace_checked, trace_wrong;    /* of those read: routed again; not the same */
    uint64_t payloads_found, payloads_gone; /* of prefix hits: in a slot; evicted or refused */
    uint64_t payloads_wrong;                /* found, but another token's */
    struct moe_sharing sharing;
    lkv_moe_stats stats; /* at the end, as all below */
    lkv_slots_stats slots;
    lkv_gate_state gate;
};

/* ---- moe_source.c: logits without a model. Of the hash h of all tokens up to one and of the
 * layer: skew * a[e] + spread * (x[h0][e] + y[h1][e] + z[h2][e]) / sqrt(3), where a, x, y, z are
 * seeded tables of standard normal numbers and h0, h1, h2 are bytes of h. */
struct moe_source;
struct moe_source *moe_source_new(const struct moe_options *o, uint64_t seed);
void moe_source_logits(const struct moe_source *s, const uint64_t *chain, uint64_t n,
                       float *logits);
void moe_source_free(struct moe_source *s);

/* ---- moe.c */
struct moe;
struct moe *moe_new(struct replay *r);
void moe_free(struct moe *m);

/* A step that lkv_pool_step filled and whose rows are known: chains [num_seqs], and, where
 * attention ran, what it was asked. */
void moe_step(struct moe *m, const lkv_step *step, const struct attend_seq *seqs,
              const struct attend_asked *asked);
/* The signals as they are now; arguments for lkv_moe_metrics_text. */
lkv_moe_args moe_args(struct moe *m);
void moe_measure(struct moe *m); /* into the result */

/* ---- moe_hits.c: what a prefix hit brings back is read, and compared with what it should be. */
struct moe_hit {
    lkv_seq seq;
    const uint64_t *chain; /* [tokens] */
    uint64_t tokens, request;
};
void moe_hit(struct moe *m, const struct moe_hit *hit);

/* ---- moe_result.c */
void moe_print(const struct replay *r);
json_t *moe_json(const struct replay *r);
uint64_t moe_failures(const struct moe_result *x);

#endif
