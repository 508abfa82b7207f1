/* The way into block_manager/: which block holds which token, for pools whose blocks latentkv owns.
 * Knows tokens, keys and block ids; knows nothing of records, devices or memory. Functions mirror
 * lkv_seq_*, lkv_lease_* and lkv_pool_* of latentkv.h, whose comments are the contract; api/ has
 * admitted every struct and checked every pointer before calling here, so structs here have the
 * library's full size. All functions take the manager's lock; any thread. */
#ifndef LKVI_BLOCK_MANAGER_MANAGER_H
#define LKVI_BLOCK_MANAGER_MANAGER_H

#include <stdint.h>
#include "latentkv/latentkv.h"

struct lkvi_manager;

struct lkvi_manager_config {
    uint64_t num_blocks; /* N: ids 1..N */
    uint64_t base_blocks;
    uint64_t host_blocks; /* of the host tier: ids N + 1 and up; 0: none */
    uint32_t tokens_per_block;
    uint32_t max_seqs;
    uint32_t flags;       /* LKV_POOL_NO_CACHE, LKV_POOL_NO_PARTIAL */
    uint32_t hash_bits;   /* 0: all; tests cut the index hash to this many bits */
    uint32_t event_slots; /* of the ring; 0: no events */
    uint8_t identity[32]; /* digest of the pool's identity: enters every root key */
};

lkv_status lkvi_manager_create(const struct lkvi_manager_config *config, struct lkvi_manager **out);
void lkvi_manager_destroy(struct lkvi_manager *m);

lkv_status lkvi_seq_match(struct lkvi_manager *m, const lkv_prompt *prompt, lkv_match *out);
lkv_status lkvi_seq_admit(struct lkvi_manager *m, const lkv_prompt *prompt,
                          const lkv_admit_args *args, lkv_admission *result, lkv_seq *out);
lkv_status lkvi_seq_append(struct lkvi_manager *m, lkv_seq seq, const int32_t *tokens, uint64_t n,
                           lkv_admission *result);
lkv_status lkvi_seq_reserve(struct lkvi_manager *m, lkv_seq seq, uint64_t n, lkv_admission *result);
lkv_status lkvi_seq_commit(struct lkvi_manager *m, lkv_seq seq, uint64_t upto);
lkv_status lkvi_seq_truncate(struct lkvi_manager *m, lkv_seq seq, uint64_t length, uint64_t fence);
lkv_status lkvi_seq_fork(struct lkvi_manager *m, lkv_seq seq, lkv_seq *child);
lkv_status lkvi_seq_free(struct lkvi_manager *m, lkv_seq seq, uint64_t fence);
lkv_status lkvi_seq_query(struct lkvi_manager *m, lkv_seq seq, lkv_seq_info *info);
lkv_status lkvi_seq_table(struct lkvi_manager *m, lkv_seq seq, int32_t *blocks, uint64_t capacity,
                          uint64_t *num_blocks);
lkv_status lkvi_seq_common(struct lkvi_manager *m, const lkv_seq *seqs, uint64_t num_seqs,
                           uint64_t *num_blocks);
lkv_status lkvi_seq_swap_out(struct lkvi_manager *m, lkv_seq seq, uint64_t fence,
                             lkv_admission *result);
lkv_status lkvi_seq_swap_in(struct lkvi_manager *m, lkv_seq seq, lkv_admission *result);
lkv_status lkvi_manager_step(struct lkvi_manager *m, lkv_step *step, lkv_admission *result);

/* Copies that wait: peek writes the first min(capacity, waiting) in order and sets *num to how many
 * wait (pairs may be NULL with capacity 0). issue does the same and says that the written ones are
 * being run: they cannot be taken back until settle, which declares the first num of them enqueued
 * (sources held until fence) and the others waiting again. api/ serialises issue and settle. */
lkv_status lkvi_manager_peek_copies(struct lkvi_manager *m, int32_t *pairs, uint64_t capacity,
                                    uint64_t *num);
lkv_status lkvi_manager_issue_copies(struct lkvi_manager *m, int32_t *pairs, uint64_t capacity,
                                     uint64_t *num);
lkv_status lkvi_manager_settle_copies(struct lkvi_manager *m, uint64_t num, uint64_t fence);
lkv_status lkvi_manager_pass_fence(struct lkvi_manager *m, uint64_t fence);

lkv_status lkvi_manager_tick(struct lkvi_manager *m, uint64_t now);

lkv_status lkvi_lease_pin(struct lkvi_manager *m, const int32_t *blocks, uint64_t num_blocks,
                          lkv_lease *out);
lkv_status lkvi_lease_lend(struct lkvi_manager *m, uint64_t num_blocks, int32_t *blocks,
                           lkv_lease *out);
lkv_status lkvi_lease_release(struct lkvi_manager *m, lkv_lease lease, uint64_t fence);

lkv_status lkvi_manager_demote(struct lkvi_manager *m, uint64_t n, uint64_t *queued);
lkv_status lkvi_manager_evict(struct lkvi_manager *m, uint64_t n, uint64_t *evicted);
lkv_status lkvi_manager_drop(struct lkvi_manager *m, const lkv_key *key, uint64_t *dropped);
lkv_status lkvi_manager_reset(struct lkvi_manager *m, uint32_t flags);
lkv_status lkvi_manager_query(struct lkvi_manager *m, lkv_pool_stats *stats);
/* Fills the out fields; in a failed call none. */
lkv_status lkvi_events_read(struct lkvi_manager *m, lkv_event_batch *batch);
lkv_status lkvi_manager_check(struct lkvi_manager *m);

#endif
