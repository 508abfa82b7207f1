/* Written by tests/abi/regenerate: the released header, comments left out. */
#ifndef LATENTKV_LATENTKV_H
#define LATENTKV_LATENTKV_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#if defined(LKV_BUILDING)
#define LKV_API __attribute__((visibility("default")))
#else
#define LKV_API
#endif
#define LKV_VERSION_MAJOR 0
#define LKV_VERSION_MINOR 1
#define LKV_VERSION_PATCH 0
typedef int32_t lkv_status;
enum {
    LKV_OK = 0,
    LKV_E_INVALID = 1,
    LKV_E_UNSUPPORTED = 2,
    LKV_E_VERSION = 3,
    LKV_E_NO_MEMORY = 10,
    LKV_E_NO_BLOCKS = 11,
    LKV_E_WORKSPACE = 12,
    LKV_E_NEVER_FITS = 13,
    LKV_E_WAIT_PENDING = 14,
    LKV_E_NO_HOST_SPACE = 15,
    LKV_E_IO = 16,
    LKV_E_CUDA = 20,
    LKV_E_CUBLAS = 21,
    LKV_E_BUSY = 30,
    LKV_E_STALE_HIT = 31,
    LKV_E_NOT_FOUND = 32,
    LKV_E_INTERNAL = 90
};
LKV_API uint32_t lkv_version(void);
LKV_API const char *lkv_status_name(lkv_status status);
LKV_API const char *lkv_last_error(void);
enum { LKV_DTYPE_F32 = 1, LKV_DTYPE_F16 = 2, LKV_DTYPE_BF16 = 3, LKV_DTYPE_F8E4M3 = 4 };
typedef struct lkv_tensor {
    void *data;
    uint32_t dtype;
    uint32_t ndim;
    int64_t shape[4];
    int64_t stride[4];
} lkv_tensor;
typedef struct lkv_context lkv_context;
enum { LKV_DEVICE_CPU = -1 };
enum { LKV_ISA_AUTO = 0, LKV_ISA_SCALAR = 1, LKV_ISA_AVX2 = 2, LKV_ISA_AVX512 = 3 };
enum { LKV_LOG_ERROR = 1, LKV_LOG_INFO = 2, LKV_LOG_DEBUG = 3 };
typedef void (*lkv_log_fn)(void *user, int32_t level, const char *text);
typedef struct lkv_context_desc {
    size_t size;
    int32_t device;
    uint32_t num_threads;
    uint32_t isa;
    uint32_t flags;
    lkv_log_fn log;
    void *log_user;
} lkv_context_desc;
typedef struct lkv_context_info {
    size_t size;
    int32_t device;
    uint32_t num_threads;
    uint32_t isa;
    uint32_t compute_capability;
    uint32_t num_sms;
    uint32_t l2_bytes;
    uint64_t memory_bytes;
    uint64_t smem_bytes_per_block;
    char name[128];
} lkv_context_info;
LKV_API lkv_status lkv_context_create(const lkv_context_desc *desc, lkv_context **out);
LKV_API void lkv_context_release(lkv_context *ctx);
LKV_API lkv_status lkv_context_query(const lkv_context *ctx, lkv_context_info *info);
enum { LKV_ROPE_NONE = 0, LKV_ROPE_INTERLEAVED = 1, LKV_ROPE_HALF = 2 };
typedef struct lkv_model_desc {
    size_t size;
    uint32_t num_layers;
    uint32_t num_heads;
    uint32_t latent_dim;
    uint32_t rope_dim;
    uint32_t nope_dim;
    uint32_t v_dim;
    uint32_t rope_style;
    uint32_t yarn_original_positions;
    double rope_theta;
    double yarn_factor;
    double yarn_beta_fast;
    double yarn_beta_slow;
    double yarn_mscale;
    double yarn_mscale_all_dim;
    double softmax_scale;
    const double *rope_factors;
} lkv_model_desc;
LKV_API lkv_status lkv_model_preset(const char *name, lkv_model_desc *desc);
LKV_API const char *lkv_model_preset_name(uint32_t i);
enum { LKV_KIND_MLA = 0, LKV_KIND_LATENT_GQA = 1 };
typedef struct lkv_pool lkv_pool;
enum { LKV_FORMAT_BF16 = 1, LKV_FORMAT_FP8 = 2, LKV_FORMAT_INT8 = 3, LKV_FORMAT_NVFP4 = 4 };
enum {
    LKV_ENCODE_INT8_SYMMETRIC = 1,
    LKV_ENCODE_NVFP4_FIXED_OUTER = 2,
    LKV_ENCODE_NVFP4_FOUR_OVER_SIX = 4,
    LKV_ENCODE_ROTATE = 8
};
enum { LKV_OWNER_LIBRARY = 0, LKV_OWNER_ENGINE = 1 };
enum {
    LKV_POOL_METADATA_ONLY = 1,
    LKV_POOL_NO_CACHE = 2,
    LKV_POOL_NO_PARTIAL = 4,
    LKV_POOL_EVENTS = 8
};
enum { LKV_PLANE_DEVICE = 0, LKV_PLANE_HOST = 1 };
typedef struct lkv_plane_desc {
    uint64_t bytes_per_block;
    uint32_t placement;
    uint32_t tag;
} lkv_plane_desc;
typedef struct lkv_pool_desc {
    size_t size;
    uint32_t kind;
    uint32_t format;
    uint32_t encode_flags;
    uint32_t owner;
    uint32_t flags;
    uint32_t tokens_per_block;
    uint32_t latent_dim;
    uint32_t rope_dim;
    uint32_t rope_style;
    uint32_t num_kv_heads;
    uint32_t num_layers;
    uint32_t max_seqs;
    uint64_t num_blocks;
    double fallback_headroom;
    void *memory;
    uint64_t memory_bytes;
    uint64_t block_stride_bytes;
    uint64_t layer_stride_bytes;
    void *const *layer_memory;
    const float *fixed_outer;
    const lkv_plane_desc *planes;
    const uint8_t *model_fingerprint;
    uint32_t num_planes;
    uint32_t value_latent_dim;
    uint64_t num_events;
    uint64_t host_blocks;
} lkv_pool_desc;
typedef struct lkv_block_info {
    size_t size;
    uint64_t record_bytes;
    uint64_t block_bytes;
    uint64_t total_bytes;
    uint64_t codes_offset;
    uint64_t codes_bytes;
    uint64_t scales_offset;
    uint64_t scales_bytes;
    uint64_t rope_offset;
    uint64_t rope_bytes;
    uint64_t base_blocks;
    uint64_t headroom_blocks;
    uint32_t alignment;
    uint32_t format_version;
    uint64_t value_offset;
    uint64_t head_bytes;
} lkv_block_info;
LKV_API lkv_status lkv_block_query(const lkv_pool_desc *desc, lkv_block_info *info);
LKV_API lkv_status lkv_pool_create(lkv_context *ctx, const lkv_pool_desc *desc, lkv_pool **out);
LKV_API void lkv_pool_release(lkv_pool *pool);
LKV_API lkv_status lkv_pool_describe(const lkv_pool *pool, lkv_pool_desc *desc);
typedef struct lkv_pool_layout {
    size_t size;
    void *base;
    uint64_t block_stride_bytes;
    uint64_t record_bytes;
    uint64_t memory_blocks;
} lkv_pool_layout;
LKV_API lkv_status lkv_pool_layer(const lkv_pool *pool, uint32_t layer, lkv_pool_layout *layout);
LKV_API lkv_status lkv_pool_plane(const lkv_pool *pool, uint32_t plane, void **base,
                                  uint64_t *bytes_per_block);
enum {
    LKV_FAULT_NONE = 0,
    LKV_FAULT_NON_FINITE = 1,
    LKV_FAULT_SLOT = 2,
    LKV_FAULT_LENGTH = 3,
    LKV_FAULT_BLOCK = 4
};
typedef struct lkv_faults {
    size_t size;
    uint64_t count;
    uint32_t first_kind;
    uint32_t reserved;
    uint64_t first_token;
    int64_t first_index;
} lkv_faults;
LKV_API lkv_status lkv_pool_faults(lkv_pool *pool, uint32_t clear, lkv_faults *faults);
typedef uint64_t lkv_seq;
typedef uint64_t lkv_lease;
enum { LKV_KEY_ADAPTER = 1, LKV_KEY_SALT = 2, LKV_KEY_MULTIMODAL = 3, LKV_KEY_USER = 16 };
typedef struct lkv_key {
    const void *data;
    uint64_t begin;
    uint64_t end;
    uint32_t tag;
    uint32_t bytes;
} lkv_key;
typedef struct lkv_prompt {
    size_t size;
    const int32_t *tokens;
    const lkv_key *keys;
    uint64_t num_tokens;
    uint32_t num_keys;
    uint32_t flags;
} lkv_prompt;
enum { LKV_PROMPT_NO_MATCH = 1, LKV_PROMPT_NO_PARTIAL = 2, LKV_PROMPT_NO_PUBLISH = 4 };
typedef struct lkv_match {
    size_t size;
    uint64_t hit_tokens;
    uint64_t partial_hit_tokens;
    uint64_t hit_blocks;
    uint64_t ticket[4];
    uint64_t host_hit_blocks;
} lkv_match;
LKV_API lkv_status lkv_seq_match(lkv_pool *pool, const lkv_prompt *prompt, lkv_match *out);
typedef struct lkv_admission {
    size_t size;
    uint64_t needed;
    uint64_t free_now;
    uint64_t free_after_fence;
    uint64_t hit_tokens;
    uint64_t partial_hit_tokens;
    uint64_t num_blocks;
    uint64_t host_hit_blocks;
} lkv_admission;
typedef struct lkv_admit_args {
    size_t size;
    const lkv_match *match;
    uint64_t max_tokens;
    uint64_t room_tokens;
    uint32_t flags;
    uint32_t priority;
    uint64_t priority_until;
    uint64_t watermark_blocks;
} lkv_admit_args;
enum { LKV_ADMIT_WHOLE = 1 };
LKV_API lkv_status lkv_seq_admit(lkv_pool *pool, const lkv_prompt *prompt,
                                 const lkv_admit_args *args, lkv_admission *result, lkv_seq *out);
LKV_API lkv_status lkv_seq_append(lkv_pool *pool, lkv_seq seq, const int32_t *tokens, uint64_t n,
                                  lkv_admission *result);
LKV_API lkv_status lkv_seq_reserve(lkv_pool *pool, lkv_seq seq, uint64_t n, lkv_admission *result);
LKV_API lkv_status lkv_seq_commit(lkv_pool *pool, lkv_seq seq, uint64_t upto);
LKV_API lkv_status lkv_seq_truncate(lkv_pool *pool, lkv_seq seq, uint64_t length, uint64_t fence);
LKV_API lkv_status lkv_seq_fork(lkv_pool *pool, lkv_seq seq, lkv_seq *child);
LKV_API lkv_status lkv_seq_free(lkv_pool *pool, lkv_seq seq, uint64_t fence);
typedef struct lkv_seq_info {
    size_t size;
    uint64_t length;
    uint64_t committed;
    uint64_t room;
    uint64_t num_blocks;
    uint64_t hit_tokens;
    uint64_t max_tokens;
    uint64_t host_blocks;
} lkv_seq_info;
LKV_API lkv_status lkv_seq_query(lkv_pool *pool, lkv_seq seq, lkv_seq_info *info);
LKV_API lkv_status lkv_seq_table(lkv_pool *pool, lkv_seq seq, int32_t *blocks, uint64_t capacity,
                                 uint64_t *num_blocks);
LKV_API lkv_status lkv_seq_common(lkv_pool *pool, const lkv_seq *seqs, uint64_t num_seqs,
                                  uint64_t *num_blocks);
typedef struct lkv_step {
    size_t size;
    uint32_t num_seqs;
    uint32_t flags;
    const lkv_seq *seqs;
    const uint32_t *num_new;
    const int32_t *tokens;
    const uint64_t *row_begin;
    const uint32_t *num_rows;
    int32_t *block_table;
    int32_t *seq_lens;
    int32_t *q_indptr;
    int64_t *slots;
    int32_t *positions;
    uint64_t slots_capacity;
    uint32_t table_width;
    uint32_t table_stride;
    uint32_t failed_row;
    uint32_t reserved;
} lkv_step;
enum { LKV_STEP_TABLE_TAIL = 1 };
LKV_API lkv_status lkv_pool_step(lkv_pool *pool, lkv_step *step, lkv_admission *result);
LKV_API lkv_status lkv_seq_swap_out(lkv_pool *pool, lkv_seq seq, uint64_t fence,
                                    lkv_admission *result);
LKV_API lkv_status lkv_seq_swap_in(lkv_pool *pool, lkv_seq seq, lkv_admission *result);
LKV_API lkv_status lkv_pool_apply_copies(lkv_pool *pool, uint64_t fence, void *stream);
LKV_API lkv_status lkv_pool_take_copies(lkv_pool *pool, int32_t *pairs, uint64_t capacity,
                                        uint64_t fence, uint64_t *num);
LKV_API lkv_status lkv_pool_pass_fence(lkv_pool *pool, uint64_t fence);
LKV_API lkv_status lkv_lease_pin(lkv_pool *pool, const int32_t *blocks, uint64_t num_blocks,
                                 lkv_lease *out);
LKV_API lkv_status lkv_lease_lend(lkv_pool *pool, uint64_t num_blocks, int32_t *blocks,
                                  lkv_lease *out);
LKV_API lkv_status lkv_lease_release(lkv_pool *pool, lkv_lease lease, uint64_t fence);
LKV_API lkv_status lkv_pool_tick(lkv_pool *pool, uint64_t now);
LKV_API lkv_status lkv_pool_demote(lkv_pool *pool, uint64_t n, uint64_t *queued);
LKV_API lkv_status lkv_pool_evict(lkv_pool *pool, uint64_t n, uint64_t *evicted);
LKV_API lkv_status lkv_pool_drop(lkv_pool *pool, const lkv_key *key, uint64_t *dropped);
enum { LKV_RESET_FORCE = 1 };
LKV_API lkv_status lkv_pool_reset(lkv_pool *pool, uint32_t flags);
enum { LKV_EVENT_STORED = 1, LKV_EVENT_REMOVED = 2, LKV_EVENT_CLEARED = 3 };
enum { LKV_TIER_DEVICE = 0, LKV_TIER_HOST = 1 };
enum { LKV_REMOVED_EVICTED = 1, LKV_REMOVED_DETACHED = 2, LKV_REMOVED_DROPPED = 3 };
typedef struct lkv_event {
    uint64_t seq;
    uint32_t kind;
    uint32_t tier;
    uint32_t reason;
    uint32_t remaining_copies;
    uint64_t tokens_offset;
    uint64_t keys_offset;
    uint32_t num_tokens;
    uint32_t keys_bytes;
    uint8_t parent[32];
    uint8_t digest[32];
} lkv_event;
typedef struct lkv_event_batch {
    size_t size;
    uint64_t from_seq;
    lkv_event *events;
    uint64_t capacity;
    void *data;
    uint64_t data_capacity;
    uint64_t num_events;
    uint64_t data_bytes;
    uint64_t next_seq;
    uint64_t lost;
} lkv_event_batch;
LKV_API lkv_status lkv_pool_events(lkv_pool *pool, lkv_event_batch *batch);
typedef struct lkv_snapshot_args {
    size_t size;
    const char *path;
    const uint8_t *secret;
    uint32_t secret_bytes;
    uint32_t flags;
} lkv_snapshot_args;
typedef struct lkv_snapshot_info {
    size_t size;
    uint64_t file_bytes;
    uint64_t blocks;
    uint64_t blocks_loaded;
} lkv_snapshot_info;
LKV_API lkv_status lkv_pool_snapshot_save(lkv_pool *pool, const lkv_snapshot_args *args,
                                          lkv_snapshot_info *info, void *stream);
LKV_API lkv_status lkv_pool_snapshot_load(lkv_pool *pool, const lkv_snapshot_args *args,
                                          lkv_snapshot_info *info, void *stream);
typedef struct lkv_pool_stats {
    size_t size;
    uint64_t blocks_total;
    uint64_t blocks_base;
    uint64_t blocks_free;
    uint64_t blocks_idle;
    uint64_t blocks_in_use;
    uint64_t blocks_pending;
    uint64_t blocks_lent;
    uint64_t blocks_reserved;
    uint64_t blocks_cached;
    uint64_t seqs_live;
    uint64_t tokens_live;
    uint64_t waste_tokens;
    uint64_t hit_tokens;
    uint64_t partial_hit_tokens;
    uint64_t prompt_tokens;
    uint64_t evicted_blocks;
    uint64_t copied_blocks;
    uint64_t published_blocks;
    uint64_t metadata_allocated_bytes;
    uint64_t metadata_active_bytes;
    uint64_t metadata_resident_bytes;
    uint64_t longest_free_run;
    uint64_t host_blocks_total;
    uint64_t host_blocks_free;
    uint64_t host_blocks_idle;
    uint64_t host_blocks_in_use;
    uint64_t host_blocks_pending;
    uint64_t host_blocks_cached;
    uint64_t host_blocks_copies;
    uint64_t seqs_swapped;
    uint64_t demoted_blocks;
    uint64_t promoted_blocks;
    uint64_t swapped_out_blocks;
    uint64_t swapped_in_blocks;
} lkv_pool_stats;
LKV_API lkv_status lkv_pool_query(lkv_pool *pool, lkv_pool_stats *stats);
LKV_API lkv_status lkv_pool_check(lkv_pool *pool);
LKV_API lkv_status lkv_pool_metrics_text(lkv_pool *pool, const char *labels, char *buffer,
                                         size_t capacity, size_t *needed);
typedef struct lkv_weights lkv_weights;
typedef struct lkv_rope lkv_rope;
typedef struct lkv_weights_desc {
    size_t size;
    const lkv_tensor *kv_b_proj;
    const lkv_tensor *scales;
    uint32_t compute_dtype;
    uint32_t flags;
    const lkv_tensor *key_up;
    const lkv_tensor *value_up;
    const lkv_tensor *key_down;
    const lkv_tensor *value_down;
} lkv_weights_desc;
enum { LKV_WEIGHTS_ROTATE = 1 };
LKV_API lkv_status lkv_weights_create(lkv_context *ctx, const lkv_model_desc *model,
                                      const lkv_weights_desc *desc, lkv_weights **out);
LKV_API void lkv_weights_release(lkv_weights *weights);
LKV_API lkv_status lkv_project_q(const lkv_weights *weights, const lkv_tensor *q_nope,
                                 const lkv_tensor *q_latent, void *workspace,
                                 size_t workspace_bytes, void *stream);
LKV_API lkv_status lkv_project_out(const lkv_weights *weights, const lkv_tensor *o_latent,
                                   const lkv_tensor *out, void *workspace, size_t workspace_bytes,
                                   void *stream);
LKV_API lkv_status lkv_project_workspace(const lkv_weights *weights, uint64_t num_tokens,
                                         size_t *bytes);
LKV_API lkv_status lkv_rope_create(lkv_context *ctx, const lkv_model_desc *model,
                                   uint64_t num_positions, lkv_rope **out);
LKV_API void lkv_rope_release(lkv_rope *rope);
LKV_API lkv_status lkv_rope_apply(const lkv_rope *rope, const lkv_tensor *in, const lkv_tensor *out,
                                  const int32_t *positions, void *stream);
LKV_API lkv_status lkv_rotate(lkv_context *ctx, const lkv_tensor *in, const lkv_tensor *out,
                              void *stream);
typedef struct lkv_append_args {
    size_t size;
    const lkv_tensor *latent;
    const lkv_tensor *rope;
    const int64_t *slots;
    const float *norm_weight;
    const lkv_rope *rope_table;
    const int32_t *positions;
    float norm_eps;
    uint32_t layer;
    uint32_t flags;
    uint32_t reserved;
    const lkv_tensor *value;
    const lkv_weights *weights;
} lkv_append_args;
enum { LKV_APPEND_CHECKED = 1 };
LKV_API lkv_status lkv_append(lkv_pool *pool, const lkv_append_args *args, void *stream);
typedef struct lkv_plan lkv_plan;
enum { LKV_Q_LATENT = 0, LKV_Q_HEAD = 1 };
enum { LKV_OUT_LATENT = 0, LKV_OUT_HEAD = 1 };
enum { LKV_PLAN_BATCH_INVARIANT = 1 };
typedef struct lkv_plan_desc {
    size_t size;
    const lkv_pool *pool;
    uint32_t num_heads;
    uint32_t max_seqs;
    uint32_t max_tokens;
    uint32_t max_q_len;
    uint32_t max_seq_len;
    uint32_t max_blocks_per_seq;
    uint32_t q_dtype;
    uint32_t out_dtype;
    uint32_t q_form;
    uint32_t out_form;
    uint32_t absorb_threshold;
    uint32_t flags;
    uint32_t nope_dim;
    uint32_t v_dim;
} lkv_plan_desc;
LKV_API lkv_status lkv_plan_create(lkv_context *ctx, const lkv_plan_desc *desc, lkv_plan **out);
LKV_API void lkv_plan_release(lkv_plan *plan);
LKV_API lkv_status lkv_plan_describe(const lkv_plan *plan, lkv_plan_desc *desc);
LKV_API lkv_status lkv_plan_workspace(const lkv_plan *plan, size_t *bytes);
typedef struct lkv_batch {
    size_t size;
    uint32_t num_seqs;
    uint32_t max_blocks_per_seq;
    const int32_t *block_table;
    const int32_t *seq_lens;
    const int32_t *q_indptr;
    uint64_t num_tokens;
    uint64_t block_table_stride;
} lkv_batch;
LKV_API lkv_status lkv_plan_update(lkv_plan *plan, const lkv_batch *batch, void *workspace,
                                   size_t workspace_bytes, void *stream);
typedef struct lkv_attend_args {
    size_t size;
    const lkv_tensor *q;
    const lkv_tensor *q_rope;
    const lkv_tensor *out;
    const lkv_tensor *lse;
    const lkv_tensor *entropy;
    const lkv_tensor *bias;
    const lkv_weights *weights;
    void *workspace;
    size_t workspace_bytes;
    double scale;
    uint32_t layer;
    uint32_t flags;
} lkv_attend_args;
enum { LKV_ATTEND_CHECKED = 1 };
LKV_API lkv_status lkv_attend(lkv_plan *plan, const lkv_pool *pool, const lkv_batch *batch,
                              const lkv_attend_args *args, void *stream);
typedef struct lkv_gather_args {
    size_t size;
    const int64_t *slots;
    const lkv_tensor *latent;
    const lkv_tensor *rope;
    uint32_t layer;
    uint32_t flags;
    const lkv_tensor *value;
} lkv_gather_args;
enum { LKV_GATHER_STORED_BASIS = 1 };
LKV_API lkv_status lkv_gather(const lkv_pool *pool, const lkv_gather_args *args, void *stream);
typedef struct lkv_merge_args {
    size_t size;
    const lkv_tensor *outs;
    const lkv_tensor *lses;
    const lkv_tensor *entropies;
    const lkv_tensor *out;
    const lkv_tensor *lse;
    const lkv_tensor *entropy;
} lkv_merge_args;
LKV_API lkv_status lkv_merge(lkv_context *ctx, const lkv_merge_args *args, void *stream);
#ifdef __cplusplus
}
#endif
#endif
