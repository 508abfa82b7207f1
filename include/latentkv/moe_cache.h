/* latentkv: routing and fallback experts beside the attention path. Part of the stable ABI; the
 * rules of latentkv.h hold here too.
 *
 * Read top to bottom, the declarations follow a token:
 *
 *   router (which experts) -> gate (is it uncertain?) -> fallback (which other expert) -> combine
 *   slots: what fallback experts keep, in the pool's headroom
 *
 * None of it touches the attention path: the gate takes the entropies that lkv_attend returns, or
 * those of the router. CPU contexts only in this release: on a CUDA context lkv_router_create and
 * every call with a context is LKV_E_UNSUPPORTED. docs/moe-cache.md has the definitions, the
 * tables and what was measured.
 *
 * Where formulas come from: sigmoid scores with a bias for selection only, groups and scaling,
 * DeepSeek-V3 (arXiv 2412.19437); FNV-1a, the hash of Fowler, Noll and Vo. */
#ifndef LATENTKV_MOE_CACHE_H
#define LATENTKV_MOE_CACHE_H

#include "latentkv/latentkv.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- router: hidden state -> experts ---- */

/* Weights of one router on one device. Immutable, shareable between threads. */
typedef struct lkv_router lkv_router;

enum {
    /* concat(x, layer) -> linear [M] -> GELU (erf) -> linear [E]; p = softmax(logits / T); the one
     * expert with the largest p, weight p. */
    LKV_ROUTER_TRACE = 1,
    /* s = sigmoid(w x); the top_k of s + bias, inside the topk_groups best of num_groups groups (a
     * group's score: the sum of its two best with a bias, its best without); weight s. */
    LKV_ROUTER_V3 = 2
};
enum {
    /* V3: weights are divided by their sum before routed_scale. */
    LKV_ROUTER_NORMALISE = 1
};

typedef struct lkv_router_desc {
    size_t size;
    uint32_t kind;        /* LKV_ROUTER_* */
    uint32_t flags;       /* LKV_ROUTER_NORMALISE */
    uint32_t hidden_dim;  /* D: multiple of 16, at most 65536; 0: logits are given, no weights */
    uint32_t num_experts; /* E: 1..1024 */
    uint32_t top_k;       /* K: V3 1..32; TRACE 0 or 1 */
    uint32_t num_groups;  /* V3: divides E; 0: 1 */
    uint32_t topk_groups; /* V3: their experts are K or more; 0: num_groups */
    uint32_t trace_dim;   /* M, TRACE: multiple of 16, at most 1024; 0: 256 */
    double temperature;   /* T, TRACE: above 0; 0: 1.2 */
    double routed_scale;  /* V3; 0: 1 */
    /* Host, fp32, finite, row-major, copied. TRACE: trace_weight [M, D + 1] (the last column is the
     * layer's), trace_bias [M], weight [E, M], bias [E]. V3: weight [E, D], bias [E] or NULL. */
    const float *trace_weight;
    const float *trace_bias;
    const float *weight;
    const float *bias;
} lkv_router_desc;

LKV_API lkv_status lkv_router_create(lkv_context *ctx, const lkv_router_desc *desc,
                                     lkv_router **out);
LKV_API void lkv_router_release(lkv_router *router);

typedef struct lkv_route_args {
    size_t size;
    /* Device: [T, D] F32 or BF16, or NULL: logits are read instead of written. */
    const lkv_tensor *x;
    /* Device, fp32 [T, E]: before sigmoid or softmax. With x: out, may be NULL. */
    const lkv_tensor *logits;
    int32_t *experts;    /* device, out [T, K]: by falling score */
    float *weights;      /* device, out [T, K]; may be NULL */
    float *entropy;      /* device, out [T], nats, of the whole distribution; may be NULL */
    uint64_t *load;      /* device, in and out [E]: counts of experts are added; may be NULL */
    uint64_t num_tokens; /* T */
    uint32_t layer;      /* TRACE with x */
    uint32_t flags;      /* 0 */
} lkv_route_args;

/* Routes T tokens. Equal scores: the lowest index. A NaN logit counts as the least number, infinite
 * ones as the largest and the least: every token gets K different experts. Entropy is that of
 * softmax(logits / T), or of the sigmoids divided by their sum. Same inputs give bitwise same
 * outputs on every CPU instruction set. Allocates nothing. */
LKV_API lkv_status lkv_route(const lkv_router *router, const lkv_route_args *args, void *stream);

/* ---- gate: is this token uncertain? ---- */

/* A threshold on entropies that follows their statistics. Host only; shareable between threads
 * (steps run one after the other). One object has one threshold; callers may hold one a layer. */
typedef struct lkv_gate lkv_gate;

enum { LKV_GATE_MEAN = 0, LKV_GATE_MAX = 1 };

typedef struct lkv_gate_desc {
    size_t size;
    uint32_t reduce;       /* LKV_GATE_*: over the heads of an attention entropy */
    uint32_t window_steps; /* 0: 1000 */
    double threshold;      /* nats, until the first window is full; 0: 2.1 */
    double stddevs;        /* the next one: mean + stddevs * standard deviation; 0: 0.5 */
    double hysteresis;     /* nats, not negative: a token that was triggered stays so above
                              threshold - hysteresis; 0: none */
    uint32_t frozen;       /* 1: the threshold stays; lkv_gate_freeze changes it */
    uint32_t flags;        /* 0 */
} lkv_gate_desc;

LKV_API lkv_status lkv_gate_create(const lkv_gate_desc *desc, lkv_gate **out);
LKV_API void lkv_gate_release(lkv_gate *gate);

typedef struct lkv_gate_args {
    size_t size;
    /* Host, fp32: [T, H] of lkv_attend, reduced over the heads, or [T], of lkv_route. */
    const lkv_tensor *entropy;
    const uint8_t *active;  /* [T] host, 0: a padding row, left out; NULL: all count */
    uint8_t *triggered;     /* [T] host, out 0 or 1; with hysteresis in: the row's last answer */
    float *reduced;         /* [T] host, out: what was compared; may be NULL */
    uint64_t num_triggered; /* out */
    uint64_t num_skipped;   /* out: active rows whose entropy is not finite; not triggered */
} lkv_gate_args;

/* One step: triggers where the entropy is above the threshold, then adds the values to the window.
 * The step that fills the window moves the threshold, for the steps after it, to mean + stddevs *
 * population standard deviation of all values of the window, and empties the window. A window
 * without a value leaves the threshold; so does a frozen gate, whose windows run on. */
LKV_API lkv_status lkv_gate_step(lkv_gate *gate, lkv_gate_args *args);
LKV_API lkv_status lkv_gate_freeze(lkv_gate *gate, uint32_t frozen);

/* All that a gate knows: plain numbers, to be stored and restored. */
typedef struct lkv_gate_state {
    size_t size;
    uint64_t steps;     /* in the window */
    uint64_t count;     /* values in the window */
    uint64_t total;     /* active values since creation */
    uint64_t triggered; /* of them */
    uint64_t skipped;   /* not finite, since creation */
    uint64_t windows;   /* that moved the threshold */
    double mean;        /* of the window */
    double m2;          /* sum of squared distances from mean */
    double threshold;
    uint32_t frozen;
    uint32_t reserved; /* 0 */
} lkv_gate_state;
LKV_API lkv_status lkv_gate_save(lkv_gate *gate, lkv_gate_state *state);
/* A state of a gate with as long a window goes on as if nothing had happened. Numbers that no gate
 * can have are refused. */
LKV_API lkv_status lkv_gate_load(lkv_gate *gate, const lkv_gate_state *state);

/* ---- fallback: which other expert? ---- */

enum {
    LKV_FALLBACK_NONE = 0,
    /* FNV-1a over the 4 little-endian bytes of the primary's index, mod E */
    LKV_FALLBACK_FNV1A = 1,
    /* (index * 16777619 + 1000000007) mod E in 64 bits: what the source document prints under the
     * name of FNV-1a */
    LKV_FALLBACK_LCG = 2,
    LKV_FALLBACK_BUDDY = 3, /* table[primary]; a row of heavy experts is a cost class */
    LKV_FALLBACK_SHARED = 4 /* one expert for all, which may lie outside 0..E-1 */
};

typedef struct lkv_fallback_args {
    size_t size;
    uint32_t policy;          /* LKV_FALLBACK_* */
    uint32_t num_experts;     /* E: 1..65535 */
    const int32_t *primary;   /* [T] host, 0..E-1; -1: none, gets none */
    const uint8_t *triggered; /* [T] host, 0: gets none; NULL: all are */
    const int32_t *buddy;     /* BUDDY: [E] host, 0..E-1 or -1 */
    const uint8_t *resident;  /* [E] host, 0: not loaded, gets none; NULL: all are */
    int32_t *fallback;        /* [T] host, out */
    uint64_t num_tokens;      /* T */
    int32_t shared_expert;    /* SHARED: 0..65534; resident is not asked where it is E or more */
    uint32_t flags;           /* 0 */
    uint64_t num_chosen;      /* out: not -1 */
    uint64_t num_absent;      /* out: not resident */
} lkv_fallback_args;

/* The second expert of each triggered token, -1 for none. Never the primary: a hash that gives it
 * takes the next index (E = 1: none), a table or shared expert that gives it gives none. */
LKV_API lkv_status lkv_fallback_choose(lkv_fallback_args *args);

/* ---- combine ---- */

enum {
    LKV_COMBINE_ADD = 1,        /* out = primary + weight * fallback */
    LKV_COMBINE_SUBSTITUTE = 2, /* out = weight * fallback */
    LKV_COMBINE_STAT_ONLY = 3   /* out = primary: the fallback is only counted */
};

typedef struct lkv_combine_args {
    size_t size;
    const lkv_tensor *primary;  /* [T, D], F32 or BF16 */
    const lkv_tensor *fallback; /* [T, D], the same dtype; STAT_ONLY: NULL */
    const lkv_tensor *out;      /* [T, D], the same dtype; may be primary's memory */
    const int32_t *chosen;      /* [T], negative: the row is primary's */
    const float *weight;        /* [T]; NULL: 1 */
    uint32_t mode;              /* LKV_COMBINE_* */
    uint32_t flags;             /* 0 */
    uint64_t num_combined;      /* out: rows with a fallback */
} lkv_combine_args;

/* Joins the outputs of primary and fallback experts. fp32 arithmetic. Fallback rows that are not
 * chosen are not read. */
LKV_API lkv_status lkv_combine(lkv_context *ctx, lkv_combine_args *args, void *stream);

typedef struct lkv_token_scale_args {
    size_t size;
    const lkv_tensor *x; /* [T, D], F32 or BF16 */
    float *scale; /* [T], out: clamp(|x| / mean, low, high); a row that is not finite: of 1 */
    double low;   /* 0 <= low <= high */
    double high;
    /* Of the running mean, 0 < decay <= 1: mean += decay * (mean of this call - mean); 0: the mean
     * of all rows so far. */
    double decay;
    double mean;    /* in and out: of the norms of earlier calls */
    uint64_t count; /* in and out: rows in it; 0: none, the call compares with its own mean */
} lkv_token_scale_args;

/* Token-aware normalisation: each row's Euclidean norm against the running mean of norms before
 * this call, as a weight for lkv_combine. */
LKV_API lkv_status lkv_token_scale(lkv_context *ctx, lkv_token_scale_args *args, void *stream);

/* ---- slots: payloads in the headroom ----
 *
 * A store of equal payloads (fallback activations, expert weights, whatever the engine keys) inside
 * blocks that it borrows from a pool's headroom one at a time: KV never loses a block to it, and
 * what it gives back is cache again. The budget is a number of blocks and is never passed.
 *
 * A payload is written once, by the caller who got its slot as NEW, and never moves. TOKEN keys
 * live with their KV block: sequences that share the block share the payload; a block that is
 * copied (forks, partial hits) or swapped keeps the payloads of its tokens; truncated or rewritten
 * tokens lose theirs; when the block is evicted or freed they are gone. Snapshots do not hold them.
 * FREE keys stay until they are evicted.
 *
 * Any thread; calls take the pool's short lock. */
typedef struct lkv_slots lkv_slots;

enum {
    LKV_SLOTS_LRU = 0,
    LKV_SLOTS_LFU = 1, /* uses count up to 63; equal ones LRU */
    /* First payloads that this step has not used, those whose layer comes round latest first. */
    LKV_SLOTS_LEAST_STALE = 2
};
enum {
    LKV_SLOT_KEY_TOKEN = 1, /* token `index` of KV block `block`; its token must be known */
    LKV_SLOT_KEY_FREE = 2   /* any block and index, e.g. 0 and the expert */
};

/* Frozen. */
typedef struct lkv_slot_key {
    uint32_t kind;  /* LKV_SLOT_KEY_* */
    uint32_t layer; /* less than num_layers */
    uint32_t block; /* TOKEN: an id of a block table */
    uint32_t index; /* TOKEN: less than tokens_per_block */
} lkv_slot_key;

enum {
    LKV_SLOT_MISS = 0,
    LKV_SLOT_READY = 1,
    LKV_SLOT_FILLING = 2, /* somebody got it as NEW and has not committed it */
    LKV_SLOT_NEW = 3,     /* yours to write and to commit */
    LKV_SLOT_REFUSED = 4  /* to be created, but there is no room, or the KV block is gone */
};

/* Frozen. */
typedef struct lkv_slot {
    uint64_t handle; /* READY, NEW; else 0 */
    /* Device, 16-byte aligned, payload_bytes; NULL in METADATA_ONLY pools. Stays while the slot is
     * pinned or NEW; after that until the next call that may evict. */
    void *address;
    uint32_t state;        /* LKV_SLOT_* */
    int32_t block;         /* where it lies: a headroom block, */
    uint32_t layer;        /* the layer of the pool whose part of the block it is in, */
    uint32_t offset_bytes; /* and the bytes from that part's start */
} lkv_slot;

/* Writes one payload; anything but LKV_OK gives the slot up. */
typedef lkv_status (*lkv_slot_fill_fn)(void *user, const lkv_slot_key *key, void *address,
                                       uint64_t payload_bytes);

typedef struct lkv_slots_desc {
    size_t size;
    uint64_t payload_bytes; /* up to lkv_block_info.block_bytes; kept at a multiple of 16 */
    uint64_t max_blocks;    /* the budget; 0: the pool's headroom */
    uint32_t policy;        /* LKV_SLOTS_* */
    uint32_t num_layers;    /* of keys, at most 4096; 0: the pool's */
    lkv_slot_fill_fn fill;  /* for LKV_SLOTS_FILL; may be NULL */
    void *fill_user;
} lkv_slots_desc;

/* For a LIBRARY pool with headroom, which it holds. All memory is taken now, at most 2^26 slots. */
LKV_API lkv_status lkv_slots_create(lkv_pool *pool, const lkv_slots_desc *desc, lkv_slots **out);
/* Gives every block back. Handles and addresses end. */
LKV_API void lkv_slots_release(lkv_slots *slots);

enum {
    LKV_SLOTS_PIN = 1,    /* READY and NEW ones stay until lkv_slots_unpin */
    LKV_SLOTS_CREATE = 2, /* what is missing becomes NEW, evicting others where it must */
    LKV_SLOTS_FILL = 4    /* with CREATE: NEW ones are filled by the callback, and READY then */
};
typedef struct lkv_slots_args {
    size_t size;
    const lkv_slot_key *keys; /* [num_keys] host */
    lkv_slot *slots;          /* [num_keys] host, out */
    uint64_t num_keys;
    uint64_t step;      /* of the engine, for LEAST_STALE; a lower one than before has no effect */
    uint32_t flags;     /* LKV_SLOTS_* */
    uint32_t reserved;  /* 0 */
    uint64_t num_ready; /* out; these five add up to num_keys */
    uint64_t num_filling; /* out */
    uint64_t num_new;     /* out; 0 with FILL */
    uint64_t num_refused; /* out */
    uint64_t num_missed;  /* out */
} lkv_slots_args;

/* Looks keys up, and creates what is missing if asked to. No payload is copied. With FILL the
 * callback runs outside all locks; where it fails, this and the NEW slots behind it are given up
 * (MISS), its status is returned, and the struct is filled. */
LKV_API lkv_status lkv_slots_get(lkv_slots *slots, lkv_slots_args *args);
/* Ends the filling of NEW slots, all of the handles or none (LKV_E_NOT_FOUND). ready 1: their
 * payloads are written, or will be before anything that reads them on the device; 0: given up. */
LKV_API lkv_status lkv_slots_commit(lkv_slots *slots, const uint64_t *handles, uint64_t n,
                                    uint32_t ready);
/* Takes one pin off each, all or none: whoever read the payload is done. */
LKV_API lkv_status lkv_slots_unpin(lkv_slots *slots, const uint64_t *handles, uint64_t n);
/* Forgets READY payloads by key; *erased counts them. Pinned ones stay readable until unpinned. */
LKV_API lkv_status lkv_slots_erase(lkv_slots *slots, const lkv_slot_key *keys, uint64_t n,
                                   uint64_t *erased);

typedef struct lkv_slots_stats {
    size_t size;
    uint64_t payload_bytes; /* of a slot, rounded up */
    uint64_t budget_bytes;  /* what blocks_max blocks hold, all layers */
    uint64_t held_bytes;    /* of blocks borrowed now */
    uint64_t used_bytes;    /* of slots in use: ready and filling */
    uint64_t blocks_max;
    uint64_t blocks_held;
    uint64_t slots_total; /* in blocks_max blocks */
    uint64_t slots_ready;
    uint64_t slots_filling;
    uint64_t slots_pinned;
    uint64_t entries;       /* keys; more than slots where KV blocks were copied */
    uint64_t token_entries; /* of them, TOKEN keys */
    uint64_t token_users;   /* TOKEN keys, each as often as its KV block is referred to */
    uint64_t hits;          /* sums since creation */
    uint64_t misses;
    uint64_t created;
    uint64_t refused;
    uint64_t evicted;     /* payloads that went for room */
    uint64_t dropped;     /* TOKEN keys that went with their tokens */
    uint64_t copied;      /* TOKEN keys that a copied block got */
    uint64_t copies_lost; /* for which there was no entry */
    uint64_t token_idle;  /* of token_entries, those whose KV block is cached and nobody's */
} lkv_slots_stats;
LKV_API lkv_status lkv_slots_query(lkv_slots *slots, lkv_slots_stats *stats);

/* ---- routing trace: which experts a token took, beside its KV block ----
 *
 * A side plane of the pool (lkv_plane_desc, tag 1) of at least tokens_per_block * num_layers *
 * top_k * 2 bytes a block: uint16 entries [token][layer][k], 0xFFFF none. It is copied on write,
 * swapped, snapshotted and evicted with the block, so a prefix hit brings the trace of its tokens.
 * As with records, what was never written for a token is undefined. */
typedef struct lkv_trace_args {
    size_t size;
    const int64_t *slots; /* [T] host, as for lkv_append; negative: skipped, or read as none */
    int32_t *experts;     /* [T, K] host; written from, or read into; -1: none, else 0..65534 */
    uint64_t num_tokens;  /* T */
    uint32_t plane;       /* index of the plane: on the host, or of a CPU context */
    uint32_t layer;       /* less than num_layers */
    uint32_t num_layers;  /* of the trace, 1..4096 */
    uint32_t top_k;       /* K, 1..32 */
} lkv_trace_args;

/* Synchronous; all rows or, on an error, none. The rule of lkv_append: nobody reads what is being
 * written. */
LKV_API lkv_status lkv_trace_write(lkv_pool *pool, const lkv_trace_args *args);
LKV_API lkv_status lkv_trace_read(lkv_pool *pool, const lkv_trace_args *args);

/* ---- signals ---- */

typedef struct lkv_moe_args {
    size_t size;
    const uint64_t *load; /* [E] host, tokens an expert got (lkv_route_args.load); NULL: none */
    lkv_gate *gate;       /* NULL: its fields are 0; likewise slots and pool */
    lkv_slots *slots;
    lkv_pool *pool;         /* LIBRARY */
    uint32_t num_experts;   /* E: 1..65535, with load */
    uint32_t flags;         /* 0 */
    double overload_factor; /* an expert is overloaded above this times the mean; 0: 1.8 */
    double utilisation_low; /* healthy band in nats; both 0: 1.8 and 2.3 */
    double utilisation_high;
    double trigger_low; /* healthy band; both 0: 0.12 and 0.18 */
    double trigger_high;
} lkv_moe_args;

enum { /* lkv_moe_stats.outside: what is out of its band */
       LKV_MOE_UTILISATION_LOW = 1,
       LKV_MOE_UTILISATION_HIGH = 2,
       LKV_MOE_TRIGGER_LOW = 4,
       LKV_MOE_TRIGGER_HIGH = 8,
       LKV_MOE_OVERLOADED = 16
};

/* Without tokens entropies, ratios and rates are 0 and nothing is outside. */
typedef struct lkv_moe_stats {
    size_t size;
    uint64_t experts;
    uint64_t experts_used; /* that got a token */
    uint64_t experts_overloaded;
    uint64_t routed;         /* sum of load */
    double utilisation_nats; /* -sum p ln p of the loads */
    double utilisation_bits;
    double utilisation_share; /* of ln E; 1 for one expert */
    double load_cv;           /* standard deviation / mean */
    double load_peak;         /* largest / mean */
    double threshold;         /* of the gate, nats */
    double trigger_rate;      /* triggered / active values */
    uint64_t gate_tokens;
    uint64_t gate_triggered;
    uint64_t gate_skipped;
    uint64_t gate_windows;
    uint64_t slots_total;
    uint64_t slots_ready;
    uint64_t slot_hits;
    uint64_t slot_misses;
    uint64_t slot_refused;
    uint64_t slot_evicted;
    uint64_t slot_dropped;
    uint64_t headroom_blocks; /* of the pool */
    uint64_t lent_blocks;     /* of them, lent: to slots and others */
    uint64_t slot_blocks;     /* of them, to these slots */
    double dedup_ratio;       /* token_users without a key of their own / token_users */
    uint64_t outside;         /* LKV_MOE_* */
} lkv_moe_stats;
LKV_API lkv_status lkv_moe_measure(const lkv_moe_args *args, lkv_moe_stats *stats);
/* The same but for the bits as Prometheus text, names latentkv_moe_*, with a counter an expert
 * where load is given; the rest as for lkv_pool_metrics_text. */
LKV_API lkv_status lkv_moe_metrics_text(const lkv_moe_args *args, const char *labels, char *buffer,
                                        size_t capacity, size_t *needed);

#ifdef __cplusplus
}
#endif
#endif
