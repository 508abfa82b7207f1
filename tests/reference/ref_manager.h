/* The block manager's plain twin: arrays, scans, no index, no second phase. It is told what the
 * library did (status, ids taken, copies queued) and says NULL, or a sentence about the first
 * thing that the rules do not allow. Ids are the library's choice; which ids may be chosen is not:
 * free ones first, then of the lowest priority the idle block without children that rested
 * longest. */
#ifndef TESTS_REFERENCE_REF_MANAGER_H
#define TESTS_REFERENCE_REF_MANAGER_H

#include <stdint.h>
#include "block_manager/manager.h"
#include "latentkv/latentkv.h"

enum { REF_BLOCKS = 512, REF_SEQS = 64, REF_TABLE = 256, REF_LEASES = 64, REF_KEYS = 16 };
enum { REF_FREE = 1, REF_IDLE, REF_IN_USE, REF_PENDING, REF_LENT };

struct ref_block {
    int state, indexed, queued, parent;
    int copy_of, is_copy; /* a host block and the cached device block that it is a copy of */
    int borrowed;         /* a copy to the host took it out of the order */
    int priority, parked, expired; /* parked: passed over, because it had children */
    uint32_t refs;
    int32_t tokens[128];
    char keys[REF_KEYS];
    uint64_t rested, fence, queue_fence, queue_order, until;
};

struct ref_seq {
    int live, whole, no_publish, epoch, swapped;
    int32_t table[REF_TABLE];
    uint32_t num_blocks, reserved;
    uint64_t published; /* blocks that commits have dealt with */
    uint64_t length, committed, max_tokens, until;
    int priority;
    char keys[REF_KEYS];
};

struct ref_lease {
    int live, lent;
    int32_t blocks[REF_BLOCKS];
    uint32_t num_blocks;
};

struct ref_copy {
    int32_t from, to;
    uint64_t after; /* it is held until this fence has passed */
};

struct ref_manager {
    uint32_t num_blocks, num_ids, base, block_tokens, flags; /* ids above num_blocks: the host */
    int epoch, ambiguous; /* set when only blocks with users below them were left to evict */
    struct ref_block blocks[REF_BLOCKS + 1];
    struct ref_seq seqs[REF_SEQS];
    struct ref_lease leases[REF_LEASES];
    struct ref_copy copies[REF_BLOCKS], held[REF_BLOCKS];
    uint32_t num_copies, num_held, num_issued;
    uint64_t clock, front, passed; /* stamps of rest: newest, oldest */
    uint64_t now;
    char text[256];
};

struct ref_counts {
    uint64_t state[REF_LENT + 1], host[REF_LENT + 1];
    uint64_t reserved, cached, host_cached, host_copies, tokens, seqs, swapped;
};

/* What the library answered to a call that takes blocks. */
struct ref_seen {
    lkv_status status;
    const lkv_admission *result;
    const int32_t *table; /* after the call */
    uint64_t num_blocks;
    const int32_t *copies; /* all waiting pairs after the call */
    uint64_t num_copies;
    int planned, copy; /* of a row of a step: copy was decided before the first row grew */
};

void ref_create(struct ref_manager *r, const struct lkvi_manager_config *config);
void ref_count(const struct ref_manager *r, struct ref_counts *counts);

/* Whole blocks of the prompt that are cached; keys is the adapter's name or "". */
uint32_t ref_hits(const struct ref_manager *r, const int32_t *tokens, uint64_t n, const char *keys,
                  int32_t *table);
const char *ref_match(struct ref_manager *r, const int32_t *tokens, uint64_t n, const char *keys,
                      const lkv_match *match);
const char *ref_admit(struct ref_manager *r, uint32_t seq, const lkv_prompt *prompt,
                      const char *keys, const lkv_admit_args *args, const struct ref_seen *seen);
/* Would growth copy its tail now? A step decides so for all its rows before the first one grows:
 * what a row evicts may end the sharing of another one's tail, which is copied all the same. */
int ref_shared_tail(const struct ref_manager *r, uint32_t seq);
const char *ref_grow(struct ref_manager *r, uint32_t seq, const int32_t *tokens, uint64_t n,
                     const struct ref_seen *seen);
void ref_commit(struct ref_manager *r, uint32_t seq, uint64_t upto);
void ref_truncate(struct ref_manager *r, uint32_t seq, uint64_t length, uint64_t fence);
void ref_fork(struct ref_manager *r, uint32_t seq, uint32_t child);
void ref_free(struct ref_manager *r, uint32_t seq, uint64_t fence);
const char *ref_settle(struct ref_manager *r, uint32_t num, uint64_t fence);
void ref_pass(struct ref_manager *r, uint64_t fence);
const char *ref_swap_out(struct ref_manager *r, uint32_t seq, uint64_t fence,
                         const struct ref_seen *seen);
const char *ref_swap_in(struct ref_manager *r, uint32_t seq, const struct ref_seen *seen);
/* seen->copies: the waiting pairs after it. */
const char *ref_demote(struct ref_manager *r, uint64_t n, uint64_t queued,
                       const struct ref_seen *seen);
/* May rows [begin, end) be written? */
int ref_may_write(const struct ref_manager *r, uint32_t seq, uint64_t begin, uint64_t end);
const char *ref_pin(struct ref_manager *r, uint32_t lease, const int32_t *blocks, uint32_t n,
                    lkv_status status);
const char *ref_lend(struct ref_manager *r, uint32_t lease, const int32_t *blocks, uint32_t n,
                     lkv_status status);
void ref_release(struct ref_manager *r, uint32_t lease, uint64_t fence);
/* The caller says in which order those that it marks `expired` came to rest. */
void ref_tick(struct ref_manager *r, uint64_t now);
uint64_t ref_evict(struct ref_manager *r, uint64_t n);
void ref_drop_namespace(struct ref_manager *r, const char *keys);
void ref_reset(struct ref_manager *r);

#endif
