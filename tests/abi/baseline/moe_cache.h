/* Written by tests/abi/regenerate: the released header, comments left out. */
#ifndef LATENTKV_MOE_CACHE_H
#define LATENTKV_MOE_CACHE_H
#include "latentkv.h"
#ifdef __cplusplus
extern "C" {
#endif
typedef struct lkv_router lkv_router;
enum { LKV_ROUTER_TRACE = 1, LKV_ROUTER_V3 = 2 };
enum { LKV_ROUTER_NORMALISE = 1 };
typedef struct lkv_router_desc {
    size_t size;
    uint32_t kind;
    uint32_t flags;
    uint32_t hidden_dim;
    uint32_t num_experts;
    uint32_t top_k;
    uint32_t num_groups;
    uint32_t topk_groups;
    uint32_t trace_dim;
    double temperature;
    double routed_scale;
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
    const lkv_tensor *x;
    const lkv_tensor *logits;
    int32_t *experts;
    float *weights;
    float *entropy;
    uint64_t *load;
    uint64_t num_tokens;
    uint32_t layer;
    uint32_t flags;
} lkv_route_args;
LKV_API lkv_status lkv_route(const lkv_router *router, const lkv_route_args *args, void *stream);
typedef struct lkv_gate lkv_gate;
enum { LKV_GATE_MEAN = 0, LKV_GATE_MAX = 1 };
typedef struct lkv_gate_desc {
    size_t size;
    uint32_t reduce;
    uint32_t window_steps;
    double threshold;
    double stddevs;
    double hysteresis;
    uint32_t frozen;
    uint32_t flags;
} lkv_gate_desc;
LKV_API lkv_status lkv_gate_create(const lkv_gate_desc *desc, lkv_gate **out);
LKV_API void lkv_gate_release(lkv_gate *gate);
typedef struct lkv_gate_args {
    size_t size;
    const lkv_tensor *entropy;
    const uint8_t *active;
    uint8_t *triggered;
    float *reduced;
    uint64_t num_triggered;
    uint64_t num_skipped;
} lkv_gate_args;
LKV_API lkv_status lkv_gate_step(lkv_gate *gate, lkv_gate_args *args);
LKV_API lkv_status lkv_gate_freeze(lkv_gate *gate, uint32_t frozen);
typedef struct lkv_gate_state {
    size_t size;
    uint64_t steps;
    uint64_t count;
    uint64_t total;
    uint64_t triggered;
    uint64_t skipped;
    uint64_t windows;
    double mean;
    double m2;
    double threshold;
    uint32_t frozen;
    uint32_t reserved;
} lkv_gate_state;
LKV_API lkv_status lkv_gate_save(lkv_gate *gate, lkv_gate_state *state);
LKV_API lkv_status lkv_gate_load(lkv_gate *gate, const lkv_gate_state *state);
enum {
    LKV_FALLBACK_NONE = 0,
    LKV_FALLBACK_FNV1A = 1,
    LKV_FALLBACK_LCG = 2,
    LKV_FALLBACK_BUDDY = 3,
    LKV_FALLBACK_SHARED = 4
};
typedef struct lkv_fallback_args {
    size_t size;
    uint32_t policy;
    uint32_t num_experts;
    const int32_t *primary;
    const uint8_t *triggered;
    const int32_t *buddy;
    const uint8_t *resident;
    int32_t *fallback;
    uint64_t num_tokens;
    int32_t shared_expert;
    uint32_t flags;
    uint64_t num_chosen;
    uint64_t num_absent;
} lkv_fallback_args;
LKV_API lkv_status lkv_fallback_choose(lkv_fallback_args *args);
enum { LKV_COMBINE_ADD = 1, LKV_COMBINE_SUBSTITUTE = 2, LKV_COMBINE_STAT_ONLY = 3 };
typedef struct lkv_combine_args {
    size_t size;
    const lkv_tensor *primary;
    const lkv_tensor *fallback;
    const lkv_tensor *out;
    const int32_t *chosen;
    const float *weight;
    uint32_t mode;
    uint32_t flags;
    uint64_t num_combined;
} lkv_combine_args;
LKV_API lkv_status lkv_combine(lkv_context *ctx, lkv_combine_args *args, void *stream);
typedef struct lkv_token_scale_args {
    size_t size;
    const lkv_tensor *x;
    float *scale;
    double low;
    double high;
    double decay;
    double mean;
    uint64_t count;
} lkv_token_scale_args;
LKV_API lkv_status lkv_token_scale(lkv_context *ctx, lkv_token_scale_args *args, void *stream);
typedef struct lkv_slots lkv_slots;
enum { LKV_SLOTS_LRU = 0, LKV_SLOTS_LFU = 1, LKV_SLOTS_LEAST_STALE = 2 };
enum { LKV_SLOT_KEY_TOKEN = 1, LKV_SLOT_KEY_FREE = 2 };
typedef struct lkv_slot_key {
    uint32_t kind;
    uint32_t layer;
    uint32_t block;
    uint32_t index;
} lkv_slot_key;
enum {
    LKV_SLOT_MISS = 0,
    LKV_SLOT_READY = 1,
    LKV_SLOT_FILLING = 2,
    LKV_SLOT_NEW = 3,
    LKV_SLOT_REFUSED = 4
};
typedef struct lkv_slot {
    uint64_t handle;
    void *address;
    uint32_t state;
    int32_t block;
    uint32_t layer;
    uint32_t offset_bytes;
} lkv_slot;
typedef lkv_status (*lkv_slot_fill_fn)(void *user, const lkv_slot_key *key, void *address,
                                       uint64_t payload_bytes);
typedef struct lkv_slots_desc {
    size_t size;
    uint64_t payload_bytes;
    uint64_t max_blocks;
    uint32_t policy;
    uint32_t num_layers;
    lkv_slot_fill_fn fill;
    void *fill_user;
} lkv_slots_desc;
LKV_API lkv_status lkv_slots_create(lkv_pool *pool, const lkv_slots_desc *desc, lkv_slots **out);
LKV_API void lkv_slots_release(lkv_slots *slots);
enum { LKV_SLOTS_PIN = 1, LKV_SLOTS_CREATE = 2, LKV_SLOTS_FILL = 4 };
typedef struct lkv_slots_args {
    size_t size;
    const lkv_slot_key *keys;
    lkv_slot *slots;
    uint64_t num_keys;
    uint64_t step;
    uint32_t flags;
    uint32_t reserved;
    uint64_t num_ready;
    uint64_t num_filling;
    uint64_t num_new;
    uint64_t num_refused;
    uint64_t num_missed;
} lkv_slots_args;
LKV_API lkv_status lkv_slots_get(lkv_slots *slots, lkv_slots_args *args);
LKV_API lkv_status lkv_slots_commit(lkv_slots *slots, const uint64_t *handles, uint64_t n,
                                    uint32_t ready);
LKV_API lkv_status lkv_slots_unpin(lkv_slots *slots, const uint64_t *handles, uint64_t n);
LKV_API lkv_status lkv_slots_erase(lkv_slots *slots, const lkv_slot_key *keys, uint64_t n,
                                   uint64_t *erased);
typedef struct lkv_slots_stats {
    size_t size;
    uint64_t payload_bytes;
    uint64_t budget_bytes;
    uint64_t held_bytes;
    uint64_t used_bytes;
    uint64_t blocks_max;
    uint64_t blocks_held;
    uint64_t slots_total;
    uint64_t slots_ready;
    uint64_t slots_filling;
    uint64_t slots_pinned;
    uint64_t entries;
    uint64_t token_entries;
    uint64_t token_users;
    uint64_t hits;
    uint64_t misses;
    uint64_t created;
    uint64_t refused;
    uint64_t evicted;
    uint64_t dropped;
    uint64_t copied;
    uint64_t copies_lost;
    uint64_t token_idle;
} lkv_slots_stats;
LKV_API lkv_status lkv_slots_query(lkv_slots *slots, lkv_slots_stats *stats);
typedef struct lkv_trace_args {
    size_t size;
    const int64_t *slots;
    int32_t *experts;
    uint64_t num_tokens;
    uint32_t plane;
    uint32_t layer;
    uint32_t num_layers;
    uint32_t top_k;
} lkv_trace_args;
LKV_API lkv_status lkv_trace_write(lkv_pool *pool, const lkv_trace_args *args);
LKV_API lkv_status lkv_trace_read(lkv_pool *pool, const lkv_trace_args *args);
typedef struct lkv_moe_args {
    size_t size;
    const uint64_t *load;
    lkv_gate *gate;
    lkv_slots *slots;
    lkv_pool *pool;
    uint32_t num_experts;
    uint32_t flags;
    double overload_factor;
    double utilisation_low;
    double utilisation_high;
    double trigger_low;
    double trigger_high;
} lkv_moe_args;
enum {
    LKV_MOE_UTILISATION_LOW = 1,
    LKV_MOE_UTILISATION_HIGH = 2,
    LKV_MOE_TRIGGER_LOW = 4,
    LKV_MOE_TRIGGER_HIGH = 8,
    LKV_MOE_OVERLOADED = 16
};
typedef struct lkv_moe_stats {
    size_t size;
    uint64_t experts;
    uint64_t experts_used;
    uint64_t experts_overloaded;
    uint64_t routed;
    double utilisation_nats;
    double utilisation_bits;
    double utilisation_share;
    double load_cv;
    double load_peak;
    double threshold;
    double trigger_rate;
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
    uint64_t headroom_blocks;
    uint64_t lent_blocks;
    uint64_t slot_blocks;
    double dedup_ratio;
    uint64_t outside;
} lkv_moe_stats;
LKV_API lkv_status lkv_moe_measure(const lkv_moe_args *args, lkv_moe_stats *stats);
LKV_API lkv_status lkv_moe_metrics_text(const lkv_moe_args *args, const char *labels, char *buffer,
                                        size_t capacity, size_t *needed);
#ifdef __cplusplus
}
#endif
#endif
