/* Everything the manager keeps, and what its files offer one another. Entered only from inside
 * block_manager/ and by white-box tests; everybody else includes manager.h.
 * One idea: a block is an index; 1..N are on the device, N + 1 and up are the host tier. Its hot
 * record is half a cache line (identity, references), its
 * cold one a quarter; its tokens lie beside them, so a hit can be compared, not believed. All
 * calls run in two phases: plan (may fail, changes nothing observable) and execute (cannot fail).
 */
#ifndef LKVI_BLOCK_MANAGER_STATE_H
#define LKVI_BLOCK_MANAGER_STATE_H

#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include "block_manager/events.h"
#include "block_manager/host.h"
#include "block_manager/index.h"
#include "block_manager/keys.h"
#include "block_manager/lru.h"
#include "block_manager/manager.h"
#include "block_manager/order.h"
#include "core/alloc.h"
#include "core/status.h"

enum lkvi_block_state {
    LKVI_RESERVED = 0, /* block 0 alone: the root of every chain */
    LKVI_FREE,
    LKVI_IDLE,    /* in the index, nobody uses it: may be evicted */
    LKVI_IN_USE,  /* refs > 0 */
    LKVI_PENDING, /* refs = 0, a fence has not passed */
    LKVI_LENT,    /* belongs to a lease of the headroom, or to its last fence */
    LKVI_NUM_STATES
};

enum {
    LKVI_INDEXED = 1,     /* in the prefix index, with generation as part of its handle */
    LKVI_PARKED = 2,      /* idle, oldest, but it has children: waits outside the order */
    LKVI_QUEUED = 4,      /* linked in a fence bucket through place */
    LKVI_COPY_TARGET = 8, /* a waiting copy will write it */
    LKVI_MARK = 16,       /* scratch of one call; clear between calls */
    LKVI_BORROWED = 32,   /* a copy to the host took it out of the order: it goes back in front */
    LKVI_HOST_COPY = 64,  /* of a host block: its bytes are those of the device block it is for */
    LKVI_HASHED = 128     /* indexed and in the hash table: it has, or had, a sibling */
};

struct lkvi_block {       /* 32 bytes: what matching and reference counting touch */
    uint32_t parent;      /* indexed: the block before it in the chain; 0 is the root */
    uint32_t generation;  /* grows when the block leaves the index: old tickets stop holding */
    uint32_t refs;        /* table entries + pins + copies that read it */
    uint32_t first_child; /* on the device: the child hit or published last; 0 none */
    uint32_t next_sibling, previous_sibling;
    uint32_t keyset; /* extra keys of its identity; 0 none */
    uint8_t state, flags, priority, reserved;
};

struct lkvi_cold {  /* 16 bytes: what only leaving and entering a list touches */
    uint64_t fence; /* the last fence that work on this block waits for */
    uint32_t hash;  /* of its identity, while LKVI_HASHED */
    uint32_t place; /* where it is in the order, the parked list or its bucket (next block) */
};

struct lkvi_bucket { /* blocks whose first unpassed fence is >= fence */
    uint64_t fence;
    uint32_t head, tail;
};
enum { LKVI_NUM_BUCKETS = 64 };

struct lkvi_seq { /* two cache lines; a decode step touches only the first */
    _Alignas(64) int32_t *table;
    uint64_t length, committed, max_tokens;
    uint64_t plan_serial;
    uint32_t generation, num_blocks;
    uint32_t dirty_from, emitted; /* of the caller's table row, for LKV_STEP_TABLE_TAIL */
    uint32_t plan_fresh;
    uint8_t plan_copy, live, whole, swapped;
    uint8_t stepping;       /* a step that runs beside others has it; 0 under the whole lock */
    struct lkvi_keys *keys; /* spans of extra keys, shared with forks; NULL none */
    uint64_t hit_tokens, priority_until;
    uint32_t capacity;
    uint32_t reserved_blocks;           /* promised by LKV_ADMIT_WHOLE, not taken yet */
    uint32_t epoch;                     /* of admission: after a forced reset it never publishes */
    uint32_t published;                 /* blocks that commit has dealt with */
    uint32_t anchor, anchor_generation; /* the indexed block that stands for block published-1 */
    uint32_t next_free;
    uint8_t no_publish, priority;
};

enum {                      /* why a block is copied */
       LKVI_COPY_BLOCK = 0, /* copy on write, partial reuse */
       LKVI_COPY_DEMOTE,    /* a cached block to the host */
       LKVI_COPY_PROMOTE,   /* a hit on the host to the device */
       LKVI_COPY_SWAP_OUT,
       LKVI_COPY_SWAP_IN,
       LKVI_NUM_COPY_REASONS
};

struct lkvi_copy {
    uint32_t from, to, why, reserved;
    uint64_t after; /* the fence that it waited for */
};

enum { LKVI_LENT_TO_SIDE = 2 }; /* of lent: no handle of it was given to anybody */

struct lkvi_lease {
    uint32_t *blocks; /* pinned or lent ids, one per reference */
    uint64_t num_blocks;
    uint32_t generation, next_free;
    uint8_t live, lent, spare[6];
};

struct lkvi_counts {
    uint64_t state[LKVI_NUM_STATES];
    uint64_t reserved, cached;
};

struct lkvi_sums {
    uint64_t hit_tokens, partial_hit_tokens, prompt_tokens;
    uint64_t evicted, published;
    uint64_t copied[LKVI_NUM_COPY_REASONS]; /* blocks */
    uint64_t tokens_live, room_live, seqs_live, seqs_swapped;
};

struct lkvi_manager {
    /* Held shared by steps that run beside others (step.c), else whole. */
    pthread_rwlock_t lock;
    pthread_mutex_t blocks_mutex; /* under the shared lock: for all but claimed sequences */
    int32_t busy;                 /* atomic: rows until a step tries the whole lock first again */
    /* Lines of their own: what every step writes, and what all of them only read. */
    _Alignas(64) struct lkvi_arena *arena;
    uint32_t num_blocks, base_blocks; /* N and what KV may use */
    uint32_t num_ids;                 /* N and the host tier's blocks: M */
    uint32_t block_tokens, block_shift;
    uint32_t flags, max_seqs, epoch;
    struct lkvi_block *blocks; /* [M + 1] */
    struct lkvi_cold *cold;    /* [M + 1] */
    int32_t *tokens;           /* [M + 1][block_tokens] */
    uint32_t *stack;           /* [N]: free ids from the bottom, parked idle ids from the top */
    uint32_t num_parked;
    struct lkvi_lru lru;
    struct lkvi_lru_ahead far, near; /* victims to come whose memory is on its way */
    struct lkvi_order order;
    struct lkvi_index index;
    struct lkvi_keysets keysets;
    _Alignas(64) struct lkvi_counts counts;
    struct lkvi_sums sums;
    _Alignas(64) struct lkvi_bucket buckets[LKVI_NUM_BUCKETS]; /* ascending */
    uint32_t num_buckets;
    uint64_t passed_fence;
    struct lkvi_seq *seqs; /* [max_seqs] */
    uint32_t free_seq;     /* index + 1 */
    uint64_t plan_serial;
    struct lkvi_copy *copies; /* in the order they must run */
    uint64_t num_copies, copies_capacity;
    uint64_t num_issued; /* of them, being run right now: they cannot be taken back */
    struct lkvi_host_tier host;
    struct lkvi_lease *leases;
    uint32_t num_leases, leases_capacity, free_lease;
    uint8_t identity[32]; /* of the pool: parent digest of every first block */
    struct lkvi_events events;
    struct lkvi_side *sides; /* who wants to know what happens to blocks; NULL: nobody */
};

static inline void lkvi_pause(void)
{
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
}

enum { LKVI_LOCK_TRIES = 100 };

/* The whole lock. Sections are short: who waits tries a little before it sleeps. */
static inline void lkvi_lock(struct lkvi_manager *m)
{
    for (int i = 0; i < LKVI_LOCK_TRIES; i++) {
        if (!pthread_rwlock_trywrlock(&m->lock))
            return;
        lkvi_pause();
    }
    pthread_rwlock_wrlock(&m->lock);
}

/* Unlocks and hands the status through, so that a public call is one line. */
static inline lkv_status lkvi_unlock(struct lkvi_manager *m, lkv_status status)
{
    pthread_rwlock_unlock(&m->lock);
    return status;
}

static inline int32_t *lkvi_block_tokens(const struct lkvi_manager *m, uint32_t b)
{
    return m->tokens + ((uint64_t)b << m->block_shift);
}

static inline uint64_t lkvi_blocks_for(const struct lkvi_manager *m, uint64_t num_tokens)
{
    return (num_tokens >> m->block_shift) + ((num_tokens & (m->block_tokens - 1)) != 0);
}

static inline int lkvi_holds(const struct lkvi_manager *m, uint32_t b, uint32_t generation)
{
    return b <= m->num_ids && (m->blocks[b].flags & LKVI_INDEXED) &&
           m->blocks[b].generation == generation;
}

static inline int lkvi_on_host(const struct lkvi_manager *m, uint32_t b)
{
    return b > m->num_blocks;
}

/* Blocks by state, of b's tier. */
static inline uint64_t *lkvi_states(struct lkvi_manager *m, uint32_t b)
{
    return lkvi_on_host(m, b) ? m->host.state : m->counts.state;
}

/* The child of b used last, wherever it is. */
static inline uint32_t lkvi_any_child(const struct lkvi_manager *m, uint32_t b)
{
    uint32_t child = m->blocks[b].first_child;
    return child || !m->host.num_blocks ? child : m->host.first_child[b];
}

/* ---- pool.c: states, references, room */
uint64_t lkvi_free_now(const struct lkvi_manager *m); /* blocks that KV may take now */
void lkvi_take_blocks(struct lkvi_manager *m, uint32_t *out, uint64_t n, uint8_t state);
void lkvi_claim(struct lkvi_manager *m, uint32_t b); /* one more reference to an existing block */
void lkvi_drop(struct lkvi_manager *m, uint32_t b, uint64_t fence);
void lkvi_settle_unused(struct lkvi_manager *m, uint32_t b); /* of a block in no state */
void lkvi_return_lent(struct lkvi_manager *m, uint32_t b, uint64_t fence);
uint64_t lkvi_evict_idle(struct lkvi_manager *m, uint64_t n);
void lkvi_detach_below(struct lkvi_manager *m, uint32_t top); /* its descendants, leaves first */
void lkvi_detach_tree(struct lkvi_manager *m, uint32_t top);  /* out of the cache, leaves first */
void lkvi_make_free(struct lkvi_manager *m, uint32_t b);  /* of a block in no list and no state */
void lkvi_rest_idle(struct lkvi_manager *m, uint32_t b);  /* idle block into the eviction order */
void lkvi_leave_idle(struct lkvi_manager *m, uint32_t b); /* and out of it */
void lkvi_hold(struct lkvi_manager *m, uint32_t b, uint8_t state); /* of a block in no state */
void lkvi_unpark(struct lkvi_manager *m, uint32_t b);
void lkvi_pass(struct lkvi_manager *m, uint64_t fence);
/* The verdict on taking `needed` blocks, of which `claimed` pending ones would be hits. */
lkv_status lkvi_room(const struct lkvi_manager *m, uint64_t needed, uint64_t own_reserve,
                     uint64_t claimed, lkv_admission *result);

/* ---- prefix.c: identity of blocks */
uint32_t lkvi_child(const struct lkvi_manager *m, uint32_t parent, const int32_t *tokens,
                    uint32_t keyset);
/* The child of parent that shares the most leading tokens (at least 1), with the count. */
uint32_t lkvi_partial_child(const struct lkvi_manager *m, uint32_t parent, const int32_t *tokens,
                            uint32_t limit, uint32_t keyset, uint32_t *shared);
void lkvi_publish(struct lkvi_manager *m, uint32_t b, uint32_t parent, uint32_t keyset);
void lkvi_unpublish(struct lkvi_manager *m, uint32_t b);   /* it has no children */
void lkvi_touch_child(struct lkvi_manager *m, uint32_t b); /* becomes its parent's first child */
void lkvi_forget_all(struct lkvi_manager *m);              /* empties the index */
/* The identity of `from` passes to `to`, which has none: same place in the tree, same tokens. */
void lkvi_move_identity(struct lkvi_manager *m, uint32_t from, uint32_t to);
uint32_t lkvi_identity_hash(const struct lkvi_manager *m, uint32_t parent, const int32_t *tokens,
                            uint32_t keyset);
int lkvi_same(const struct lkvi_manager *m, uint32_t b, uint32_t parent, const int32_t *tokens,
              uint32_t keyset);

/* ---- lease.c, side.c */
struct lkvi_side;
lkv_status lkvi_lease_open(struct lkvi_manager *m, uint64_t num_blocks, struct lkvi_lease **out);
void lkvi_lease_close(struct lkvi_manager *m, uint32_t slot, uint64_t fence);
void lkvi_side_dropped(struct lkvi_manager *m, uint32_t b);
void lkvi_side_copied(struct lkvi_manager *m, uint32_t from, uint32_t to, uint64_t num_tokens);
void lkvi_side_moved(struct lkvi_manager *m, uint32_t from, uint32_t to);
void lkvi_side_written(struct lkvi_manager *m, uint32_t b, uint64_t begin, uint64_t end);
lkv_status lkvi_side_check(struct lkvi_manager *m);

/* ---- copies.c */
lkv_status lkvi_copies_ensure(struct lkvi_manager *m, uint64_t more);
/* Holds from: the caller's reference to it is the copy's now. */
void lkvi_copies_add(struct lkvi_manager *m, uint32_t from, uint32_t to, uint32_t why);
/* The same of copies that begin once the fence `after` has passed; needs both ensured. */
lkv_status lkvi_held_ensure(struct lkvi_manager *m, uint64_t more);
void lkvi_held_add(struct lkvi_manager *m, uint32_t from, uint32_t to, uint32_t why,
                   uint64_t after);
void lkvi_held_pass(struct lkvi_manager *m);
/* Takes back the copy into `to`; the caller drops the source that it returns. 0: it is running. */
uint32_t lkvi_copies_cancel(struct lkvi_manager *m, uint32_t to);

/* ---- sequences.c: handles */
lkv_status lkvi_seq_find(struct lkvi_manager *m, lkv_seq handle, struct lkvi_seq **out);
/* The same of one that is not swapped out. */
lkv_status lkvi_seq_resident(struct lkvi_manager *m, lkv_seq handle, struct lkvi_seq **out);
lkv_status lkvi_seq_open(struct lkvi_manager *m, struct lkvi_seq **out); /* not live yet */
lkv_seq lkvi_seq_start(struct lkvi_manager *m, struct lkvi_seq *s);      /* live, has a handle */
void lkvi_seq_close(struct lkvi_manager *m, struct lkvi_seq *s);
lkv_status lkvi_seq_ensure(struct lkvi_manager *m, struct lkvi_seq *s, uint64_t num_blocks);
/* Drops the blocks of the table from `from` on. */
void lkvi_seq_cut(struct lkvi_manager *m, struct lkvi_seq *s, uint32_t from, uint64_t fence);

/* ---- match.c: prompt -> hits */
struct lkvi_hits {
    uint64_t blocks;  /* whole ones */
    uint64_t on_host; /* of them, the last ones: they are on the host alone */
    uint32_t last;    /* the last of them, 0 none */
    uint32_t partial; /* the block to copy from, 0 none */
    uint32_t partial_tokens;
};
/* Follows the index; writes the ids to table unless it is NULL. */
lkv_status lkvi_walk(struct lkvi_manager *m, const lkv_prompt *prompt, const struct lkvi_keys *keys,
                     int32_t *table, struct lkvi_hits *hits);
/* The same from a ticket: every token is compared again, so a ticket is a hint, not a right. */
lkv_status lkvi_redeem(struct lkvi_manager *m, const lkv_prompt *prompt,
                       const struct lkvi_keys *keys, const lkv_match *match, int32_t *table,
                       struct lkvi_hits *hits);
lkv_status lkvi_prompt_check(const lkv_prompt *prompt);

/* ---- grow.c: the one way in which a sequence gets more room */
struct lkvi_growth { /* running totals of one planned call over its rows */
    uint64_t fresh, copies, from_reserve;
};
lkv_status lkvi_grow_plan(struct lkvi_manager *m, struct lkvi_seq *s, uint64_t n,
                          struct lkvi_growth *total, lkv_admission *result);
void lkvi_grow(struct lkvi_manager *m, struct lkvi_seq *s, const int32_t *tokens, uint64_t n);

#endif
