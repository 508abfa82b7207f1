/* latentkv: the stable C ABI. Paged attention over a quantised latent KV cache (Multi-head Latent
 * Attention).
 *
 * Read top to bottom, the declarations follow the data:
 *
 *   status -> context -> model -> pool -> sequences (request to blocks)
 *          -> weights and RoPE (project) -> append (quantise) -> plan, attend -> gather, merge
 *
 * Two ways in, one set of semantics. (1) The engine owns the blocks: it creates a pool with
 * LKV_OWNER_ENGINE over its own memory and passes block tables, lengths and slots. (2) latentkv
 * owns the blocks (LKV_OWNER_LIBRARY): lkv_seq_* and lkv_pool_step answer admission, tables and
 * slots. Append and attend are the same calls; they never ask who filled the table.
 *
 * Rules that hold everywhere
 *
 *   errors     Every function that can fail returns lkv_status; 0 is success. On failure outputs
 *              and objects are as before, unless the function says otherwise, and lkv_last_error()
 *              of the calling thread has a sentence with the value found and the value wanted.
 *   structs    Those that start with `size` grow at the end only: set size = sizeof(struct) and
 *              zero the rest. A longer struct from a newer caller is accepted when its unknown tail
 *              is zero, and refused with LKV_E_VERSION otherwise.
 *   ownership  Objects are created with one reference and released once, in any order (children
 *              hold their parents). release(NULL), a second release, and a release after fork() are
 *              no-ops. A released handle is refused with LKV_E_INVALID.
 *   memory     Pointers in arguments are borrowed until the call returns or, where marked
 *              "device", until the work on `stream` is done. For a CPU context device memory is
 *              host memory.
 *   streams    stream is a cudaStream_t for a CUDA context and NULL for a CPU context, where every
 *              call is synchronous. There is no hidden stream and no hidden synchronisation.
 *   threads    Each type says who may use it. Functions without an object: any thread.
 *   fork       Objects of the parent are refused in the child (LKV_E_INVALID); it makes its own.
 *   manners    The library never prints, exits, aborts or throws, reads no environment variable
 *              and does no work when it is loaded.
 *
 * Where formulas come from: Multi-head Latent Attention and its absorbed form, DeepSeek-V2 (arXiv
 * 2405.04434); yarn, arXiv 2309.00071; softmax with a running maximum and merging by log-sum-exp,
 * arXiv 2205.14135; record formats, docs/formats.md, which is normative.
 *
 * All items are "Since 0.1" unless they say otherwise. docs/abi.md is the promise. */
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

/* ---- status ---- */

/* LKV_OK or one of the codes below; values are frozen. 1-9: the caller, 10-19: resources, 20-29:
 * the device, 30-39: the block manager's state, 90: a bug in latentkv. */
typedef int32_t lkv_status;
enum {
    LKV_OK = 0,
    LKV_E_INVALID = 1,        /* an argument is wrong */
    LKV_E_UNSUPPORTED = 2,    /* right, but this build, device or version cannot do it */
    LKV_E_VERSION = 3,        /* a struct or a file says what this library does not know */
    LKV_E_NO_MEMORY = 10,     /* host or device memory, or threads */
    LKV_E_NO_BLOCKS = 11,     /* not enough blocks now; may succeed after a free */
    LKV_E_WORKSPACE = 12,     /* the workspace given is too small or NULL */
    LKV_E_NEVER_FITS = 13,    /* needs more blocks than the pool can ever give */
    LKV_E_WAIT_PENDING = 14,  /* enough blocks once fences have passed */
    LKV_E_NO_HOST_SPACE = 15, /* the host tier is full */
    LKV_E_IO = 16,            /* a file cannot be read or written; the sentence says why */
    LKV_E_CUDA = 20,          /* the CUDA runtime said no; the sentence has its words */
    LKV_E_CUBLAS = 21,        /* likewise cuBLAS */
    LKV_E_BUSY = 30,          /* live users stand in the way */
    LKV_E_STALE_HIT = 31,     /* the match ticket no longer holds: match again */
    LKV_E_NOT_FOUND = 32,     /* unknown or stale handle, unknown name, or no such file */
    LKV_E_INTERNAL = 90       /* a bug in latentkv */
};

/* major * 1000000 + minor * 1000 + patch of the library that was loaded. */
LKV_API uint32_t lkv_version(void);
/* "LKV_E_INVALID" for 1 and so on; "unknown status" for others. Static storage. */
LKV_API const char *lkv_status_name(lkv_status status);
/* The calling thread's last failure as a sentence; "" before the first. Valid until the thread's
 * next failure. Never NULL. */
LKV_API const char *lkv_last_error(void);

/* ---- numbers ---- */

enum { LKV_DTYPE_F32 = 1, LKV_DTYPE_F16 = 2, LKV_DTYPE_BF16 = 3, LKV_DTYPE_F8E4M3 = 4 };

/* A view of memory of the context's device. Frozen: no size field. Strides count elements; the
 * innermost is 1; outer dimensions may lie apart and may be permuted, but no two indices may share
 * an element. Unused entries of shape and stride are 0. data and, on CUDA, every outer stride are
 * multiples of 16 bytes for the wide tensors (latents, queries, outputs, weights); on the CPU, and
 * for lse, entropy and bias, alignment of an element is enough. */
typedef struct lkv_tensor {
    void *data;
    uint32_t dtype; /* LKV_DTYPE_* */
    uint32_t ndim;  /* 1..4 */
    int64_t shape[4];
    int64_t stride[4];
} lkv_tensor;

/* ---- context ---- */

/* One device and its threads. Shareable between threads. */
typedef struct lkv_context lkv_context;

enum { LKV_DEVICE_CPU = -1 };
enum { LKV_ISA_AUTO = 0, LKV_ISA_SCALAR = 1, LKV_ISA_AVX2 = 2, LKV_ISA_AVX512 = 3 };
enum { LKV_LOG_ERROR = 1, LKV_LOG_INFO = 2, LKV_LOG_DEBUG = 3 };

/* Called from any thread that calls the library with this context; must not call back into it. */
typedef void (*lkv_log_fn)(void *user, int32_t level, const char *text);

typedef struct lkv_context_desc {
    size_t size;
    /* LKV_DEVICE_CPU or a CUDA ordinal. */
    int32_t device;
    /* CPU threads, the caller included; 0: one per online core. At most 256. */
    uint32_t num_threads;
    /* Highest CPU instruction set to use, LKV_ISA_*; never above what the processor has. */
    uint32_t isa;
    uint32_t flags; /* 0 */
    lkv_log_fn log; /* may be NULL */
    void *log_user;
} lkv_context_desc;

typedef struct lkv_context_info {
    size_t size;
    int32_t device;
    uint32_t num_threads;
    uint32_t isa;                  /* the CPU instruction set in use, LKV_ISA_* */
    uint32_t compute_capability;   /* 90 for Hopper; 0 on the CPU */
    uint32_t num_sms;              /* 0 on the CPU */
    uint32_t l2_bytes;             /* 0 where unknown */
    uint64_t memory_bytes;         /* of the device */
    uint64_t smem_bytes_per_block; /* 0 on the CPU */
    char name[128];                /* the processor's or the GPU's name */
} lkv_context_info;

/* Opens a device. A missing driver, device or liblatentkv_cuda.so is LKV_E_UNSUPPORTED with the
 * reason. No CUDA call is made before this. */
LKV_API lkv_status lkv_context_create(const lkv_context_desc *desc, lkv_context **out);
LKV_API void lkv_context_release(lkv_context *ctx);
LKV_API lkv_status lkv_context_query(const lkv_context *ctx, lkv_context_info *info);

/* ---- model ---- */

enum {
    LKV_ROPE_NONE = 0,        /* no positional part is turned; the rope section holds it as given */
    LKV_ROPE_INTERLEAVED = 1, /* pairs (2i, 2i + 1) */
    LKV_ROPE_HALF = 2         /* pairs (i, i + rope_dim / 2) */
};

/* Dimensions and positional constants of one MLA model. H = num_heads of this rank, L = latent_dim,
 * R = rope_dim. Pair i turns by position * f_i, f_i = theta^(-2i / R) / rope_factors[i], stretched
 * by yarn where yarn_factor is not 0. With mscale(m) = 0.1 m ln(yarn_factor) + 1 (1 up to a factor
 * of 1), cos and sin are scaled by mscale(yarn_mscale) / mscale(yarn_mscale_all_dim), and
 * softmax_scale carries mscale(yarn_mscale_all_dim)^2. */
typedef struct lkv_model_desc {
    size_t size;
    uint32_t num_layers;
    uint32_t num_heads;               /* H: query heads on this rank, at most 256 */
    uint32_t latent_dim;              /* L: kv_lora_rank; multiple of 16, at most 4096 */
    uint32_t rope_dim;                /* R: qk_rope_head_dim; even, at most 256; may be 0 */
    uint32_t nope_dim;                /* qk_nope_head_dim */
    uint32_t v_dim;                   /* v_head_dim */
    uint32_t rope_style;              /* LKV_ROPE_* */
    uint32_t yarn_original_positions; /* original_max_position_embeddings; 0: no yarn */
    double rope_theta;
    double yarn_factor;         /* 0: no yarn */
    double yarn_beta_fast;      /* 32 where the model says nothing */
    double yarn_beta_slow;      /* 1 where the model says nothing */
    double yarn_mscale;         /* see above */
    double yarn_mscale_all_dim; /* see above */
    double softmax_scale;       /* (nope + rope)^-0.5, times the square above where yarn is on */
    const double *rope_factors; /* [R / 2] host, longrope; NULL: 1 everywhere */
} lkv_model_desc;

/* Fills desc for a named model: "v2-lite", "v3" (also "r1"), "k2", "glm-4.7-flash", "minicpm3",
 * "tiny-mla". Unknown: LKV_E_NOT_FOUND with the list of names. Models with sparse top-k attention
 * ("deepseek-v3.2", "glm-5") are refused by name: LKV_E_UNSUPPORTED. desc->size must be set;
 * pointers in desc are to static storage. */
LKV_API lkv_status lkv_model_preset(const char *name, lkv_model_desc *desc);
/* Name of preset i (0, 1, ...), NULL past the last. */
LKV_API const char *lkv_model_preset_name(uint32_t i);

/* ---- pool ---- */

/* Two kinds of pool.
 *   MLA         one latent a token: key and value are the same row, beside the key's rope part.
 *   LATENT_GQA  for each KV head, G of them, a key latent [L] and a value latent [L_v]: keys (after
 *               RoPE) and values of grouped-query attention, each projected by a matrix that is
 *               found offline (`lkv fit-projector`, docs/projector.md). Query head h reads KV head
 *               h / (H / G). CUDA contexts refuse such pools: LKV_E_UNSUPPORTED.
 * Low-rank caches of the second kind: Palu, arXiv 2407.21118. */
enum { LKV_KIND_MLA = 0, LKV_KIND_LATENT_GQA = 1 };

/* Latent blocks of one device and, if the library owns them, who holds which. Shareable between
 * threads; two appends at the same time must not name one slot, and nobody may read a slot that is
 * being written. */
typedef struct lkv_pool lkv_pool;

enum { LKV_FORMAT_BF16 = 1, LKV_FORMAT_FP8 = 2, LKV_FORMAT_INT8 = 3, LKV_FORMAT_NVFP4 = 4 };
enum {
    /* scale = amax / 127, zero = 0 */
    LKV_ENCODE_INT8_SYMMETRIC = 1,
    /* outer scale from fixed_outer[layer] instead of each token's amax / 2688 */
    LKV_ENCODE_NVFP4_FIXED_OUTER = 2,
    /* tries amax_g / 4 beside amax_g / 6, keeps the smaller squared error */
    LKV_ENCODE_NVFP4_FOUR_OVER_SIX = 4,
    /* latents are stored after an orthonormal Hadamard rotation; latent_dim a power of two */
    LKV_ENCODE_ROTATE = 8
};
enum { LKV_OWNER_LIBRARY = 0, LKV_OWNER_ENGINE = 1 };
enum {
    LKV_POOL_METADATA_ONLY = 1, /* no record memory: the block manager alone; LIBRARY only */
    LKV_POOL_NO_CACHE = 2,      /* no prefix cache */
    LKV_POOL_NO_PARTIAL = 4,    /* no reuse of a part of a block */
    LKV_POOL_EVENTS = 8         /* keeps events of the prefix cache, lkv_pool_events */
};
enum { LKV_PLANE_DEVICE = 0, LKV_PLANE_HOST = 1 };

/* Extra bytes that live beside each block: allocated, copied on write, swapped, snapshotted and
 * evicted with it. LIBRARY pools with record memory only. Frozen. */
typedef struct lkv_plane_desc {
    uint64_t bytes_per_block;
    uint32_t placement; /* LKV_PLANE_* */
    uint32_t tag;       /* the caller's name; 1: routing trace (uint16 an entry, 0xFFFF none) */
} lkv_plane_desc;

typedef struct lkv_pool_desc {
    size_t size;
    uint32_t kind;             /* LKV_KIND_* */
    uint32_t format;           /* LKV_FORMAT_* */
    uint32_t encode_flags;     /* LKV_ENCODE_* */
    uint32_t owner;            /* LKV_OWNER_* */
    uint32_t flags;            /* LKV_POOL_* */
    uint32_t tokens_per_block; /* 16, 32, 64 or 128 */
    uint32_t latent_dim;       /* L: multiple of 16, at most 4096; LATENT_GQA: 1024 */
    uint32_t rope_dim;         /* even, at most 256; may be 0; LATENT_GQA: 0 */
    uint32_t rope_style;       /* LKV_ROPE_*: part of the pool's identity */
    uint32_t num_kv_heads;     /* LATENT_GQA: G, 1 to 256; 0 or 1 for MLA */
    uint32_t num_layers;
    uint32_t max_seqs; /* LIBRARY: live sequences at most, 0: 1024; cannot grow */
    /* N, blocks that can hold tokens. LIBRARY pools use N + 1 (block 0 is the filler: zero, never
     * written); ENGINE pools N, ids 0..N-1. */
    uint64_t num_blocks;
    /* Share lent to fallback experts: base = floor(N / (1 + headroom)) blocks are for KV. Not
     * negative; the source document's value is 0.30. */
    double fallback_headroom;
    /* Device, borrowed, 256-byte aligned; NULL: latentkv allocates, unless METADATA_ONLY. */
    void *memory;
    uint64_t memory_bytes; /* of memory; lkv_block_info.total_bytes or more */
    /* 0: block_bytes. A multiple of 16. */
    uint64_t block_stride_bytes;
    /* 0: blocks * block stride (layer-major). A multiple of 16; smaller than the block stride for
     * block-major. */
    uint64_t layer_stride_bytes;
    /* [num_layers] of device pointers, borrowed, 16-byte aligned: one base a layer instead of
     * memory; NULL: not used. The array itself is host memory and copied. */
    void *const *layer_memory;
    const float *fixed_outer;         /* [num_layers] host, with NVFP4_FIXED_OUTER; copied */
    const lkv_plane_desc *planes;     /* [num_planes] host; copied */
    const uint8_t *model_fingerprint; /* [32] host, NULL: zeros. Enters every prefix key */
    uint32_t num_planes;              /* at most 8 */
    uint32_t value_latent_dim;        /* LATENT_GQA: L_v, as latent_dim; 0: L. MLA: 0 */
    uint64_t num_events;              /* of the ring, with POOL_EVENTS; 0: 16384. At most 2^24 */
    /* Blocks of the host tier, in pinned memory that latentkv allocates (with METADATA_ONLY: none):
     * swapped sequences and cached blocks that left the device. 0: no host tier. LIBRARY only. */
    uint64_t host_blocks;
} lkv_pool_desc;

/* What the layout rule of docs/formats.md gives for a pool. */
typedef struct lkv_block_info {
    size_t size;
    uint64_t record_bytes; /* one token, one layer (all KV heads) */
    uint64_t block_bytes;  /* tokens_per_block records */
    uint64_t total_bytes;  /* first to last byte of all layers, strides included */
    uint64_t codes_offset; /* bytes from a record's start, as the other offsets */
    uint64_t codes_bytes;  /* of the section, as the other sizes */
    uint64_t scales_offset;
    uint64_t scales_bytes;
    uint64_t rope_offset;
    uint64_t rope_bytes;
    uint64_t base_blocks;     /* what KV may use */
    uint64_t headroom_blocks; /* what can be lent */
    uint32_t alignment;       /* of memory, bytes */
    uint32_t format_version;
    /* LATENT_GQA: the sections above are those of the first KV head's key; its value begins
     * value_offset behind it, the next head's key head_bytes behind it. MLA: 0 and record_bytes. */
    uint64_t value_offset;
    uint64_t head_bytes;
} lkv_block_info;

/* Needs no context and allocates nothing. */
LKV_API lkv_status lkv_block_query(const lkv_pool_desc *desc, lkv_block_info *info);
LKV_API lkv_status lkv_pool_create(lkv_context *ctx, const lkv_pool_desc *desc, lkv_pool **out);
LKV_API void lkv_pool_release(lkv_pool *pool);
/* What the pool was made from, its strides filled in. Pointers come out NULL: they were borrowed or
 * copied (lkv_pool_layer says where the records are). */
LKV_API lkv_status lkv_pool_describe(const lkv_pool *pool, lkv_pool_desc *desc);

/* Where a layer's records lie, for an engine that reads them itself. The record of slot s is at
 * base + (s / tokens_per_block) * block_stride + (s % tokens_per_block) * record. */
typedef struct lkv_pool_layout {
    size_t size;
    void *base; /* device */
    uint64_t block_stride_bytes;
    uint64_t record_bytes;
    uint64_t memory_blocks; /* blocks that exist in memory: N + 1 or N */
} lkv_pool_layout;

/* Stays valid while the pool lives. */
LKV_API lkv_status lkv_pool_layer(const lkv_pool *pool, uint32_t layer, lkv_pool_layout *layout);
/* Base of a side plane (device or host as described) and its bytes per block; block b's bytes start
 * at base + b * bytes_per_block. */
LKV_API lkv_status lkv_pool_plane(const lkv_pool *pool, uint32_t plane, void **base,
                                  uint64_t *bytes_per_block);

/* Faults that append and attend meet in device data: they write nothing, count here, and never stop
 * a batch. NON_FINITE is the exception: the row is repaired (docs/formats.md) and written. */
enum {
    LKV_FAULT_NONE = 0,
    LKV_FAULT_NON_FINITE = 1,
    LKV_FAULT_SLOT = 2,
    LKV_FAULT_LENGTH = 3,
    LKV_FAULT_BLOCK = 4
};
typedef struct lkv_faults {
    size_t size;
    uint64_t count;       /* all kinds, since the last clear */
    uint32_t first_kind;  /* LKV_FAULT_* */
    uint32_t reserved;    /* 0 */
    uint64_t first_token; /* row of the call's batch */
    /* NON_FINITE: the element; SLOT: the slot; LENGTH: the sequence; BLOCK: the block id. */
    int64_t first_index;
} lkv_faults;

/* Reads (and, if clear is not 0, resets) the pool's fault record. Synchronises with the device. */
LKV_API lkv_status lkv_pool_faults(lkv_pool *pool, uint32_t clear, lkv_faults *faults);

/* ---- sequences: request -> blocks (LKV_OWNER_LIBRARY) ----
 *
 * States of a block: free, idle (cached, nobody uses it), in use, pending (behind a fence), lent.
 * Guarantee: in use + pending + leased + reserved <= base at all times, so lending up to N - base
 * blocks always succeeds at once by evicting idle blocks.
 *
 * A sequence has three lengths: committed <= length <= room. length counts known tokens; committed
 * those whose data is written; room is what its blocks can hold. Only committed whole blocks are
 * published for reuse.
 *
 * Fence: a number chosen by the caller that grows with the engine's steps. An id freed under fence
 * f returns to the pool when lkv_pool_pass_fence(pool, g) with g >= f has been called; fence 0
 * means that nothing on the device uses the block any more.
 *
 * Thread rule: any thread; calls on one pool take one short lock. `result` may be NULL. */

typedef uint64_t lkv_seq;   /* handle with a generation; 0: none. Stale: LKV_E_NOT_FOUND */
typedef uint64_t lkv_lease; /* likewise */

enum { LKV_KEY_ADAPTER = 1, LKV_KEY_SALT = 2, LKV_KEY_MULTIMODAL = 3, LKV_KEY_USER = 16 };

/* Part of the identity of tokens [begin, end) beside their ids: adapter id and version, cache salt,
 * image hash. A block is keyed by every key that overlaps it, with the key's offset to the block's
 * start; ADAPTER and SALT cover everything: 0 and UINT64_MAX. Frozen. */
typedef struct lkv_key {
    const void *data; /* [bytes] host */
    uint64_t begin;
    uint64_t end;
    uint32_t tag;   /* LKV_KEY_*, or from LKV_KEY_USER to 255 */
    uint32_t bytes; /* at most 65535 */
} lkv_key;

typedef struct lkv_prompt {
    size_t size;
    const int32_t *tokens; /* [num_tokens] host */
    const lkv_key *keys;   /* [num_keys] host, may be NULL */
    uint64_t num_tokens;
    uint32_t num_keys; /* at most 4096 */
    uint32_t flags;    /* LKV_PROMPT_* */
} lkv_prompt;
enum {
    LKV_PROMPT_NO_MATCH = 1,   /* take no hits */
    LKV_PROMPT_NO_PARTIAL = 2, /* whole blocks only */
    LKV_PROMPT_NO_PUBLISH = 4  /* its blocks never enter the prefix cache */
};

/* A ticket: what a match found. Plain data; copy it freely; it holds nothing. */
typedef struct lkv_match {
    size_t size;
    uint64_t hit_tokens;         /* whole blocks and the partial part; at most num_tokens - 1 */
    uint64_t partial_hit_tokens; /* of these, the part copied from inside one block */
    uint64_t hit_blocks;         /* whole blocks */
    uint64_t ticket[4];          /* opaque */
    uint64_t host_hit_blocks;    /* of hit_blocks, the last ones: they are on the host alone */
} lkv_match;

/* The longest cached prefix of prompt. Changes nothing. */
LKV_API lkv_status lkv_seq_match(lkv_pool *pool, const lkv_prompt *prompt, lkv_match *out);

/* Filled on success and on every failure behind the argument checks. */
typedef struct lkv_admission {
    size_t size;
    uint64_t needed;           /* blocks newly taken: fresh ones, and idle hits that are claimed */
    uint64_t free_now;         /* blocks that KV may take now */
    uint64_t free_after_fence; /* and once every pending fence has passed */
    uint64_t hit_tokens;
    uint64_t partial_hit_tokens;
    uint64_t num_blocks; /* in the sequence's table */
    /* Hits on the host alone: among `needed`, and copied by the next lkv_pool_apply_copies. */
    uint64_t host_hit_blocks;
} lkv_admission;

typedef struct lkv_admit_args {
    size_t size;
    /* Ticket of the same prompt: re-validated, LKV_E_STALE_HIT if it no longer holds. NULL: match
     * now. */
    const lkv_match *match;
    /* The sequence's final length at most; 0: unlimited. Needing more than base blocks is
     * LKV_E_NEVER_FITS. */
    uint64_t max_tokens;
    /* Blocks are taken for at least this many tokens; 0: num_tokens of the prompt. */
    uint64_t room_tokens;
    uint32_t flags;    /* LKV_ADMIT_* */
    uint32_t priority; /* 0..100, later eviction for its blocks; 0 the default */
    /* From this tick of lkv_pool_tick on the priority is 0; 0: it stays. */
    uint64_t priority_until;
    /* Blocks that KV could still take after this admission; fewer: LKV_E_NO_BLOCKS, or
     * LKV_E_WAIT_PENDING. Without a live sequence it does not count: what fits, runs. */
    uint64_t watermark_blocks;
} lkv_admit_args;
enum {
    /* Only if max_tokens fits now, counting what admitted sequences may still take. */
    LKV_ADMIT_WHOLE = 1
};

/* All or nothing: takes the hits and blocks for the rest. The hits are committed, the rest of the
 * prompt is known but not committed. args may be NULL: all zero. */
LKV_API lkv_status lkv_seq_admit(lkv_pool *pool, const lkv_prompt *prompt,
                                 const lkv_admit_args *args, lkv_admission *result, lkv_seq *out);
/* Adds n known tokens; takes blocks as needed; a block shared with a fork is copied first (see
 * lkv_pool_apply_copies). */
LKV_API lkv_status lkv_seq_append(lkv_pool *pool, lkv_seq seq, const int32_t *tokens, uint64_t n,
                                  lkv_admission *result);
/* Makes room for n tokens past length (drafts, tokens not sampled yet) without naming them. */
LKV_API lkv_status lkv_seq_reserve(lkv_pool *pool, lkv_seq seq, uint64_t n, lkv_admission *result);
/* Declares the data of tokens [0, upto) written (upto <= length); whole blocks are published. Lower
 * than before: no effect. */
LKV_API lkv_status lkv_seq_commit(lkv_pool *pool, lkv_seq seq, uint64_t upto);
/* Drops tokens from length on and blocks wholly beyond it; committed is lowered with it. Published
 * blocks stay cached. */
LKV_API lkv_status lkv_seq_truncate(lkv_pool *pool, lkv_seq seq, uint64_t length, uint64_t fence);
/* A second sequence over the same blocks; copy on write. */
LKV_API lkv_status lkv_seq_fork(lkv_pool *pool, lkv_seq seq, lkv_seq *child);
/* Ends a sequence. A second free of the same handle is LKV_E_NOT_FOUND and changes nothing. */
LKV_API lkv_status lkv_seq_free(lkv_pool *pool, lkv_seq seq, uint64_t fence);

typedef struct lkv_seq_info {
    size_t size;
    uint64_t length;
    uint64_t committed;
    uint64_t room;
    uint64_t num_blocks;
    uint64_t hit_tokens; /* at admission */
    uint64_t max_tokens;
    uint64_t host_blocks; /* of a sequence that is swapped out; 0: it is on the device */
} lkv_seq_info;
LKV_API lkv_status lkv_seq_query(lkv_pool *pool, lkv_seq seq, lkv_seq_info *info);
/* Copies the block table, at most capacity entries; *num_blocks is the full count. */
LKV_API lkv_status lkv_seq_table(lkv_pool *pool, lkv_seq seq, int32_t *blocks, uint64_t capacity,
                                 uint64_t *num_blocks);

/* How many leading blocks all these sequences share, by their tables and not by equal tokens: what
 * a cascade can attend once for all of them. Whole blocks of known tokens count. */
LKV_API lkv_status lkv_seq_common(lkv_pool *pool, const lkv_seq *seqs, uint64_t num_seqs,
                                  uint64_t *num_blocks);

/* One scheduler step for n sequences in one call, all or nothing: appends tokens and fills the
 * arrays that append and attend take. Row i runs positions [row_begin[i], row_begin[i] +
 * num_rows[i]) of seqs[i]; seq_lens[i] is the end of that range. Rows that lie in a published block
 * are refused, LKV_E_INVALID: their data may be another sequence's hit by now. Outputs may be NULL;
 * a failed call may have written to them. */
typedef struct lkv_step {
    size_t size;
    uint32_t num_seqs;
    uint32_t flags;            /* LKV_STEP_* */
    const lkv_seq *seqs;       /* [num_seqs]; 0 is a padding row: no rows, seq_len 0, table 0 */
    const uint32_t *num_new;   /* [num_seqs] tokens appended first; NULL: none */
    const int32_t *tokens;     /* [sum num_new]; NULL: room is reserved, length is kept */
    const uint64_t *row_begin; /* [num_seqs]; NULL: length before the append */
    const uint32_t *num_rows;  /* [num_seqs]; NULL: num_new */
    int32_t *block_table;      /* out [num_seqs, table_width]; unused entries 0 */
    int32_t *seq_lens;         /* out [num_seqs] */
    int32_t *q_indptr;         /* out [num_seqs + 1] */
    int64_t *slots;            /* out [sum num_rows] */
    int32_t *positions;        /* out [sum num_rows] */
    uint64_t slots_capacity;   /* entries of slots and positions */
    uint32_t table_width;
    uint32_t table_stride; /* entries from row to row; 0: table_width */
    uint32_t failed_row;   /* out: on failure the first row that could not be served */
    uint32_t reserved;     /* 0 */
} lkv_step;
enum {
    /* The caller kept the rows of its last step: only entries that may have changed are written. */
    LKV_STEP_TABLE_TAIL = 1
};
LKV_API lkv_status lkv_pool_step(lkv_pool *pool, lkv_step *step, lkv_admission *result);

/* Swaps a sequence out: its length's blocks go to the host tier, all or nothing, into blocks of its
 * own, so it always can come back; room beyond its length is given up. The copies are done by
 * lkv_pool_apply_copies, once `fence` has passed: the last step that still writes its blocks (0:
 * none, or none that the stream of the copies does not wait for). A device block returns to the
 * pool when the fence of its copy has passed. Until it is swapped in a sequence can be queried,
 * committed and freed, all else is LKV_E_INVALID. result counts host blocks: not enough of them is
 * LKV_E_NO_HOST_SPACE, or LKV_E_WAIT_PENDING where fences will do. Cached blocks of the host tier
 * make room. */
LKV_API lkv_status lkv_seq_swap_out(lkv_pool *pool, lkv_seq seq, uint64_t fence,
                                    lkv_admission *result);
/* Brings it back, all or nothing, with what LKV_ADMIT_WHOLE promised it; the next
 * lkv_pool_apply_copies copies. Its table is a new one. LKV_E_WAIT_PENDING, whatever the room,
 * while its copies out have not passed their fence. */
LKV_API lkv_status lkv_seq_swap_in(lkv_pool *pool, lkv_seq seq, lkv_admission *result);

/* Block copies that admission (partial reuse, hits on the host), copy on write, swaps and demotion
 * ask for: done, for every layer and plane, in order, on stream. Call it before the step that
 * writes or reads these blocks. The sources are held until fence has passed (0: until the call
 * returns). A copy that fails is asked for again by the next call. */
LKV_API lkv_status lkv_pool_apply_copies(lkv_pool *pool, uint64_t fence, void *stream);
/* The same for a METADATA_ONLY pool: hands out the pairs [n][2] = {from, to}; *num is the number of
 * pairs that waited. N + 1 + i names host block i. All or nothing: LKV_E_INVALID if capacity is
 * smaller. */
LKV_API lkv_status lkv_pool_take_copies(lkv_pool *pool, int32_t *pairs, uint64_t capacity,
                                        uint64_t fence, uint64_t *num);
/* Every fence <= fence has passed. */
LKV_API lkv_status lkv_pool_pass_fence(lkv_pool *pool, uint64_t fence);

/* Pins blocks of a sequence's table (a reader outside the manager, a transfer): they are not
 * evicted or reused while pinned. */
LKV_API lkv_status lkv_lease_pin(lkv_pool *pool, const int32_t *blocks, uint64_t num_blocks,
                                 lkv_lease *out);
/* Lends n blocks of the headroom (fallback slots); evicts idle blocks, never a sequence. Beyond the
 * headroom: LKV_E_NO_BLOCKS. */
LKV_API lkv_status lkv_lease_lend(lkv_pool *pool, uint64_t num_blocks, int32_t *blocks,
                                  lkv_lease *out);
LKV_API lkv_status lkv_lease_release(lkv_pool *pool, lkv_lease lease, uint64_t fence);

/* The pool's clock, in the caller's unit, for lkv_admit_args.priority_until. It starts at 0 and
 * never goes back: a lower `now` has no effect. Cached blocks whose priority ends become the newest
 * of priority 0. */
LKV_API lkv_status lkv_pool_tick(lkv_pool *pool, uint64_t now);
/* Of the next n cached blocks to be evicted, copies to the host tier those that have no copy there
 * yet (lkv_pool_apply_copies does it); *queued says how many, less where host blocks or room end.
 * Until its copy's fence has passed a block counts as used; then it is idle again, in its old
 * place, and eviction moves it to the host instead of losing it. Call it once a step, before
 * lkv_pool_apply_copies, with as many blocks as a step may evict. */
LKV_API lkv_status lkv_pool_demote(lkv_pool *pool, uint64_t n, uint64_t *queued);
/* Evicts up to n idle blocks, leaves first; *evicted says how many. */
LKV_API lkv_status lkv_pool_evict(lkv_pool *pool, uint64_t n, uint64_t *evicted);
/* Drops one namespace: every cached block whose prefix carries a key of key's tag and bytes (begin
 * and end are not looked at). Idle ones become free; those in use keep their data and cannot be hit
 * any more, and live sequences with the key publish nothing from now on. All others stay, in their
 * order. *dropped: blocks that left the cache. */
LKV_API lkv_status lkv_pool_drop(lkv_pool *pool, const lkv_key *key, uint64_t *dropped);
enum {
    /* Live sequences keep their blocks, but nothing of before can be hit again. */
    LKV_RESET_FORCE = 1
};
/* Drops the whole prefix cache. LKV_E_BUSY with the number of live blocks unless forced. */
LKV_API lkv_status lkv_pool_reset(lkv_pool *pool, uint32_t flags);

enum { LKV_EVENT_STORED = 1, LKV_EVENT_REMOVED = 2, LKV_EVENT_CLEARED = 3 };
enum { LKV_TIER_DEVICE = 0, LKV_TIER_HOST = 1 };
enum {
    LKV_REMOVED_EVICTED = 1,  /* idle, given up for room */
    LKV_REMOVED_DETACHED = 2, /* in use, but its prefix had to go: it cannot be hit any more */
    LKV_REMOVED_DROPPED = 3   /* its namespace was dropped */
};

/* The prefix cache changed. digest names a cached block in every process: SHA-256(parent | u32
 * token count | tokens as u32 | keys), little endian; parent of a first block: the pool's identity.
 * keys: u8 tag, u32 length, bytes each; a key that does not span the whole prompt begins with its
 * place in the block, i64 begin and u64 end, counted in length, whose bit 31 is then set. Frozen.
 */
typedef struct lkv_event {
    uint64_t seq;              /* 1, 2, ... */
    uint32_t kind;             /* LKV_EVENT_* */
    uint32_t tier;             /* LKV_TIER_* */
    uint32_t reason;           /* REMOVED: LKV_REMOVED_* */
    uint32_t remaining_copies; /* REMOVED: of the same key, in any tier */
    uint64_t tokens_offset;    /* STORED: bytes from lkv_event_batch.data; int32 */
    uint64_t keys_offset;      /* likewise */
    uint32_t num_tokens;       /* 0 where data is NULL, as keys_bytes */
    uint32_t keys_bytes;
    uint8_t parent[32]; /* STORED */
    uint8_t digest[32]; /* STORED, REMOVED */
} lkv_event;

typedef struct lkv_event_batch {
    size_t size;
    uint64_t from_seq; /* the first wanted; 0 and 1: from the start */
    lkv_event *events; /* out [capacity] */
    uint64_t capacity;
    void *data;             /* out [data_capacity], 8-byte aligned; NULL: no tokens and keys */
    uint64_t data_capacity; /* one event needs 4 * tokens_per_block + its keys, rounded up to 8 */
    uint64_t num_events;    /* out */
    uint64_t data_bytes;    /* out */
    uint64_t next_seq;      /* out: from_seq of the next call */
    uint64_t lost;          /* out: wanted, but the ring has forgotten them */
} lkv_event_batch;

/* Events from from_seq on, oldest first, as many as there are and as fit. Replaying all of them
 * gives exactly the keys of the prefix cache; a reader that lost some cannot know it any more, and
 * starts again after lkv_pool_reset. Pools with LKV_POOL_EVENTS. */
LKV_API lkv_status lkv_pool_events(lkv_pool *pool, lkv_event_batch *batch);

typedef struct lkv_snapshot_args {
    size_t size;
    const char *path;
    /* [secret_bytes] host, NULL: none. The file is sealed with it (HMAC-SHA-256): one that was not
     * written with the same secret is refused. Without it seals only find accidents. */
    const uint8_t *secret;
    uint32_t secret_bytes; /* 16 to 1024 */
    uint32_t flags;        /* 0 */
} lkv_snapshot_args;

typedef struct lkv_snapshot_info {
    size_t size;
    uint64_t file_bytes;
    uint64_t blocks;        /* in the file */
    uint64_t blocks_loaded; /* load: entered the pool; the others were there, or found no room */
} lkv_snapshot_info;

/* The cached blocks of a LIBRARY pool (tokens, keys, priorities, records, planes), of both tiers,
 * to a file. path is replaced by a rename once all bytes are on the disk: a crash at any moment
 * leaves the old file or the new one. path.tmp is used meanwhile; LKV_E_BUSY if another save is
 * writing it. LKV_E_NOT_FOUND: no such folder; LKV_E_IO: it is there and cannot be written to. Data
 * declared committed must have been enqueued on stream, or be written. Synchronises. info may be
 * NULL. */
LKV_API lkv_status lkv_pool_snapshot_save(lkv_pool *pool, const lkv_snapshot_args *args,
                                          lkv_snapshot_info *info, void *stream);
/* Adds a snapshot's blocks to the cache, as idle ones; takes free blocks only, never evicts. All
 * or nothing: a broken file, or one of a pool with another identity, is LKV_E_INVALID (another
 * format version: LKV_E_VERSION) and changes nothing. No file is LKV_E_NOT_FOUND, as at a first
 * start; LKV_E_IO is one that is there and cannot be read. Priorities count on in the pool's clock:
 * tick it first. Holds the pool's lock while it reads. */
LKV_API lkv_status lkv_pool_snapshot_load(lkv_pool *pool, const lkv_snapshot_args *args,
                                          lkv_snapshot_info *info, void *stream);

/* ENGINE pools fill blocks_total and blocks_base only. */
typedef struct lkv_pool_stats {
    size_t size;
    uint64_t blocks_total; /* N */
    uint64_t blocks_base;  /* what KV may use */
    uint64_t blocks_free;  /* the five states add up to blocks_total */
    uint64_t blocks_idle;
    uint64_t blocks_in_use;
    uint64_t blocks_pending;
    uint64_t blocks_lent;
    uint64_t blocks_reserved; /* promised to admitted sequences, not taken yet */
    uint64_t blocks_cached;   /* in the prefix index: idle or in use */
    uint64_t seqs_live;
    uint64_t tokens_live;  /* sum of lengths over sequences */
    uint64_t waste_tokens; /* sum over sequences of room that holds no known token */
    uint64_t hit_tokens;   /* sums since creation, over admissions */
    uint64_t partial_hit_tokens;
    uint64_t prompt_tokens;
    uint64_t evicted_blocks;
    uint64_t copied_blocks;
    uint64_t published_blocks;
    uint64_t metadata_allocated_bytes; /* of the manager's private arena */
    uint64_t metadata_active_bytes;
    uint64_t metadata_resident_bytes;
    uint64_t longest_free_run; /* ids in a row that are free or idle */
    uint64_t host_blocks_total;
    uint64_t host_blocks_free; /* the four states add up to host_blocks_total */
    uint64_t host_blocks_idle; /* cached, or copies of cached blocks */
    uint64_t host_blocks_in_use;
    uint64_t host_blocks_pending;
    uint64_t host_blocks_cached; /* in the prefix index: on the host alone */
    uint64_t host_blocks_copies; /* copies of blocks that are cached on the device */
    uint64_t seqs_swapped;
    uint64_t demoted_blocks; /* sums since creation: copied to the host, and so on */
    uint64_t promoted_blocks;
    uint64_t swapped_out_blocks;
    uint64_t swapped_in_blocks;
} lkv_pool_stats;
LKV_API lkv_status lkv_pool_query(lkv_pool *pool, lkv_pool_stats *stats);
/* Walks every invariant of the manager; LKV_E_INTERNAL with the first that is broken. For
 * production too: O(blocks) under the lock. */
LKV_API lkv_status lkv_pool_check(lkv_pool *pool);
/* The statistics as Prometheus text, names latentkv_pool_*. labels: name="value" pairs with commas
 * between them, put on every sample; NULL or "": none. *needed is the length with the closing zero;
 * capacity 0 only asks for it, a smaller one is LKV_E_INVALID. LIBRARY pools. */
LKV_API lkv_status lkv_pool_metrics_text(lkv_pool *pool, const char *labels, char *buffer,
                                         size_t capacity, size_t *needed);

/* ---- project: weights and RoPE ---- */

/* W_UK and W_UV of one layer, or for LATENT_GQA its projector, in the device's compute form.
 * Immutable, shareable between threads. */
typedef struct lkv_weights lkv_weights;
/* cos and sin tables, fp32. Immutable, shareable between threads. */
typedef struct lkv_rope lkv_rope;

typedef struct lkv_weights_desc {
    size_t size;
    /* Device, [H * (nope + v), L] row-major as in checkpoints: of each head first the nope rows
     * (W_UK), then the v rows (W_UV). F32, F16, BF16 or F8E4M3. Copied. NULL for a projector. */
    const lkv_tensor *kv_b_proj;
    /* Device, F8E4M3 only: fp32 [ceil(rows / 128), ceil(L / 128)] decode scales; else NULL. */
    const lkv_tensor *scales;
    uint32_t compute_dtype; /* LKV_DTYPE_*; 0: F32 on the CPU (its only one), BF16 on CUDA */
    uint32_t flags;         /* LKV_WEIGHTS_* */
    /* A projector for LATENT_GQA pools: the model's nope is a key's whole dimension, its rope 0.
     * Device, F32, F16 or BF16, copied: key_up [G, nope, L], value_up [G, v, L_v], and in the same
     * shapes key_down and value_down, with which lkv_append projects; both NULL where the engine
     * does. A key's latent is key . key_down; what it stands for is key_up . latent. */
    const lkv_tensor *key_up;
    const lkv_tensor *value_up;
    const lkv_tensor *key_down;
    const lkv_tensor *value_down;
} lkv_weights_desc;
enum {
    /* For pools with LKV_ENCODE_ROTATE: the rotation is folded into W_UK and W_UV, in float64. */
    LKV_WEIGHTS_ROTATE = 1
};

/* Synchronises with the device. */
LKV_API lkv_status lkv_weights_create(lkv_context *ctx, const lkv_model_desc *model,
                                      const lkv_weights_desc *desc, lkv_weights **out);
LKV_API void lkv_weights_release(lkv_weights *weights);

/* q_latent[t, h, :] = q_nope[t, h, :] . W_UK[h]          q_nope [T, H, nope], q_latent [T, H, L]
 * Of a projector W_UK[h] is key_up of the head's KV head. */
LKV_API lkv_status lkv_project_q(const lkv_weights *weights, const lkv_tensor *q_nope,
                                 const lkv_tensor *q_latent, void *workspace,
                                 size_t workspace_bytes, void *stream);
/* out[t, h, :] = W_UV[h] . o_latent[t, h, :]             o_latent [T, H, L], out [T, H, v]
 * Of a projector W_UV[h] is value_up of the head's KV head, and o_latent [T, H, L_v]. */
LKV_API lkv_status lkv_project_out(const lkv_weights *weights, const lkv_tensor *o_latent,
                                   const lkv_tensor *out, void *workspace, size_t workspace_bytes,
                                   void *stream);
/* Bytes of workspace (device, 256-byte aligned) that either call needs for up to num_tokens rows.
 */
LKV_API lkv_status lkv_project_workspace(const lkv_weights *weights, uint64_t num_tokens,
                                         size_t *bytes);

/* Tables for positions [0, num_positions), at most 2^24; angles in float64. May synchronise. */
LKV_API lkv_status lkv_rope_create(lkv_context *ctx, const lkv_model_desc *model,
                                   uint64_t num_positions, lkv_rope **out);
LKV_API void lkv_rope_release(lkv_rope *rope);
/* Turns x [T, R] or [T, H, R] (in and out may be the same memory) by positions [T], device. A
 * position out of the table: row untouched on CUDA, LKV_E_INVALID and nothing written on the CPU.
 * fp32 arithmetic whatever the dtype. */
LKV_API lkv_status lkv_rope_apply(const lkv_rope *rope, const lkv_tensor *in, const lkv_tensor *out,
                                  const int32_t *positions, void *stream);
/* Orthonormal Hadamard rotation of the last dimension (a power of two from 16 to 4096) of [rows, n]
 * or [T, H, n]: for engines that keep W_UK and W_UV themselves. in may be out. */
LKV_API lkv_status lkv_rotate(lkv_context *ctx, const lkv_tensor *in, const lkv_tensor *out,
                              void *stream);

/* ---- append: latent -> record ---- */

typedef struct lkv_append_args {
    size_t size;
    /* Device, [T, L]: c_kv after kv_a_layernorm, or before it with norm_weight. LATENT_GQA: key
     * latents [T, G, L]; with weights keys after RoPE, [T, G, nope]. */
    const lkv_tensor *latent;
    /* Device, [T, R]: k_pe after RoPE, or before it with rope_table. NULL if R is 0. */
    const lkv_tensor *rope;
    /* Device, [T]: block * tokens_per_block + offset. Negative: skipped; out of range: skipped and
     * counted. */
    const int64_t *slots;
    /* Device, [L], optional: fused RMSNorm x * rsqrt(mean(x^2) + eps) * w in fp32. */
    const float *norm_weight;
    const lkv_rope *rope_table; /* optional: fused RoPE, with positions */
    const int32_t *positions;   /* device, [T], with rope_table */
    float norm_eps;
    uint32_t layer;
    uint32_t flags;    /* LKV_APPEND_* */
    uint32_t reserved; /* 0 */
    /* LATENT_GQA, which takes no rope, norm_weight or rope_table: value latents [T, G, L_v]; with
     * weights values, [T, G, v]. */
    const lkv_tensor *value;
    /* LATENT_GQA: a projector with key_down and value_down; NULL: latents are given. */
    const lkv_weights *weights;
} lkv_append_args;
enum {
    /* CPU: a fault of this call is returned as LKV_E_INVALID; all good rows are written. */
    LKV_APPEND_CHECKED = 1
};

/* Quantises T tokens into their records; with weights projects them first, in fp32. Block 0 of a
 * LIBRARY pool is out of range. Two rows must not name one slot. */
LKV_API lkv_status lkv_append(lkv_pool *pool, const lkv_append_args *args, void *stream);

/* ---- attend ---- */

/* How batches of one shape run. Belongs to one thread and one stream at a time. */
typedef struct lkv_plan lkv_plan;

/* q is absorbed already, [T, H, L], or as projected, [T, H, nope] (needs weights). */
enum { LKV_Q_LATENT = 0, LKV_Q_HEAD = 1 };
/* out is [T, H, L] (LATENT_GQA: [T, H, L_v]), or after W_UV, [T, H, v] (needs weights). */
enum { LKV_OUT_LATENT = 0, LKV_OUT_HEAD = 1 };
enum {
    /* Results are bitwise independent of the other sequences of the batch. */
    LKV_PLAN_BATCH_INVARIANT = 1
};

typedef struct lkv_plan_desc {
    size_t size;
    const lkv_pool *pool;        /* format, block size and dimensions; the plan holds it */
    uint32_t num_heads;          /* H, 1..256; LATENT_GQA: a multiple of G */
    uint32_t max_seqs;           /* maxima over all batches that this plan will see */
    uint32_t max_tokens;         /* query rows T */
    uint32_t max_q_len;          /* of one sequence */
    uint32_t max_seq_len;        /* of one sequence */
    uint32_t max_blocks_per_seq; /* width of the block table; 0: from max_seq_len */
    uint32_t q_dtype;            /* LKV_DTYPE_F32, F16, BF16; of q and q_rope */
    uint32_t out_dtype;          /* LKV_DTYPE_F32, F16, BF16 */
    uint32_t q_form;             /* LKV_Q_* */
    uint32_t out_form;           /* LKV_OUT_* */
    /* q_len from which the decompressed path runs (MLA, Q_HEAD and OUT_HEAD); 0: 256; UINT32_MAX:
     * never. */
    uint32_t absorb_threshold;
    uint32_t flags;    /* LKV_PLAN_* */
    uint32_t nope_dim; /* with Q_HEAD */
    uint32_t v_dim;    /* with OUT_HEAD */
} lkv_plan_desc;

/* Host work from maxima: may allocate. Call it outside CUDA graph capture. */
LKV_API lkv_status lkv_plan_create(lkv_context *ctx, const lkv_plan_desc *desc, lkv_plan **out);
LKV_API void lkv_plan_release(lkv_plan *plan);
/* What the plan was made from: its pool and its maxima, with what 0 stood for filled in. */
LKV_API lkv_status lkv_plan_describe(const lkv_plan *plan, lkv_plan_desc *desc);
/* Bytes of workspace (device, 256-byte aligned) that lkv_plan_update and lkv_attend need; fixed at
 * creation. */
LKV_API lkv_status lkv_plan_workspace(const lkv_plan *plan, size_t *bytes);

/* Device arrays; a CPU context reads and checks them in the call. */
typedef struct lkv_batch {
    size_t size;
    uint32_t num_seqs;
    uint32_t max_blocks_per_seq; /* width of block_table; may be more than the plan's */
    const int32_t *block_table;  /* [num_seqs, width]; entries past seq_len are never read */
    const int32_t *seq_lens;     /* [num_seqs] total after this call's tokens; 0: padding row */
    const int32_t *q_indptr;     /* [num_seqs + 1] rows of i: q_indptr[i], ...; NULL: one each */
    uint64_t num_tokens;         /* T = q_indptr[num_seqs] */
    uint64_t block_table_stride; /* entries from row to row; 0: max_blocks_per_seq */
} lkv_batch;

/* Splits the batch's work from the device-resident lengths. Enqueue only: no allocation, no
 * synchronisation, safe inside CUDA graph capture. One update serves every layer's attend with the
 * same arrays and the same workspace. */
LKV_API lkv_status lkv_plan_update(lkv_plan *plan, const lkv_batch *batch, void *workspace,
                                   size_t workspace_bytes, void *stream);

typedef struct lkv_attend_args {
    size_t size;
    const lkv_tensor *q;        /* [T, H, L] or [T, H, nope], as q_form */
    const lkv_tensor *q_rope;   /* [T, H, R] after RoPE; NULL if R is 0 */
    const lkv_tensor *out;      /* [T, H, L] or [T, H, v], as out_form */
    const lkv_tensor *lse;      /* fp32 [T, H], natural log; may be NULL */
    const lkv_tensor *entropy;  /* fp32 [T, H], nats: lse - sum(p * s); may be NULL */
    const lkv_tensor *bias;     /* fp32 [num_seqs, >= longest seq_len]; may be NULL */
    const lkv_weights *weights; /* with Q_HEAD or OUT_HEAD */
    void *workspace;            /* device; the one of lkv_plan_update */
    size_t workspace_bytes;
    double scale;   /* softmax scale, above 0 */
    uint32_t layer; /* of the pool */
    uint32_t flags; /* LKV_ATTEND_* */
} lkv_attend_args;
enum {
    /* CPU: a fault of this call, q_len > seq_len included, is returned as LKV_E_INVALID. */
    LKV_ATTEND_CHECKED = 1
};

/* Row j of a sequence (its q_len rows are its last ones) sees keys 0 .. seq_len - q_len + j:
 *
 *   s = scale * (q . c + q_rope . k_rope) + bias     p = softmax(s)     out = sum p c
 *
 * LATENT_GQA: in s, c is the key latent of the head's KV head; in out, its value latent.
 * Empty sequence: out 0, lse -inf, entropy 0. q_len > seq_len: those rows give the same and count a
 * fault. Softmax in fp32. Same inputs give bitwise same outputs on one kind of device. The pool may
 * be another than the plan's if it stores the same records in blocks of the same size. batch is the
 * one of the last lkv_plan_update, or NULL, which means that one. */
LKV_API lkv_status lkv_attend(lkv_plan *plan, const lkv_pool *pool, const lkv_batch *batch,
                              const lkv_attend_args *args, void *stream);

/* ---- gather, merge ---- */

typedef struct lkv_gather_args {
    size_t size;
    /* Device, [T]; negative or out of range: a row of zeros (the latter counted). */
    const int64_t *slots;
    const lkv_tensor *latent; /* out [T, L], F32, F16 or BF16; may be NULL */
    const lkv_tensor *rope;   /* out [T, R], likewise */
    uint32_t layer;
    uint32_t flags; /* LKV_GATHER_* */
    /* LATENT_GQA: out [T, G, L_v], likewise; latent is [T, G, L] then, and rope NULL. */
    const lkv_tensor *value;
} lkv_gather_args;
enum {
    /* Rotated pools: do not rotate back. */
    LKV_GATHER_STORED_BASIS = 1
};

/* Dequantises records into dense rows. */
LKV_API lkv_status lkv_gather(const lkv_pool *pool, const lkv_gather_args *args, void *stream);

typedef struct lkv_merge_args {
    size_t size;
    const lkv_tensor *outs;      /* [P, T, H, D] */
    const lkv_tensor *lses;      /* fp32 [P, T, H] */
    const lkv_tensor *entropies; /* fp32 [P, T, H]; may be NULL */
    const lkv_tensor *out;       /* [T, H, D] */
    const lkv_tensor *lse;       /* fp32 [T, H]; may be NULL */
    const lkv_tensor *entropy;   /* fp32 [T, H]; may be NULL; needs entropies */
} lkv_merge_args;

/* Joins P attentions over disjoint parts of the keys (context parallel, cascades) into the
 * attention over all of them. */
LKV_API lkv_status lkv_merge(lkv_context *ctx, const lkv_merge_args *args, void *stream);

#ifdef __cplusplus
}
#endif
#endif
