/* What the parts of `lkv replay` share: the options, the pool, what is counted. */
#ifndef TOOLS_REPLAY_REPLAY_H
#define TOOLS_REPLAY_REPLAY_H

#include <stdint.h>
#include "latentkv/latentkv.h"
#include "tools/common/progress.h"
#include "tools/common/stats.h"
#include "tools/replay/expand.h"
#include "tools/replay/moe.h"
#include "tools/replay/trace.h"

enum { COMPARE_NONE, COMPARE_LRU, COMPARE_MEMORY, COMPARE_MALLOC };

struct replay_amount { /* of memory; both 0: not given */
    uint64_t bytes;    /* over all layers of the model */
    double share;      /* of the trace's working set */
};

struct replay_options {
    const char *trace, *json, *report, *preset;
    uint32_t format, encode_flags, block_tokens, max_running, chunk, layers, heads, threads;
    uint32_t check_every, over_time;
    uint64_t blocks, limit, seed;
    struct replay_amount memory;
    double headroom, attend_rate, step_ms, session_gap_s, until_s;
    double lend_share, priority_share, priority_s;
    struct replay_amount host;
    int infinite, no_partial, continue_tails, eager, swap, demote, no_tables;
    uint32_t compare;    /* COMPARE_* */
    const char *library; /* with COMPARE_MALLOC: the other liblatentkv */
    struct moe_options moe;
};

struct replay_pool {
    lkv_context *ctx;
    lkv_pool *pool;
    lkv_model_desc model;
    lkv_block_info block;    /* of the pool as created */
    uint64_t num_blocks;     /* N */
    uint64_t kv_block_bytes; /* one block of all layers of the model */
    uint32_t table_width;    /* blocks of the longest request */
    int32_t *copies;         /* METADATA_ONLY: pairs taken from the pool */
    uint64_t max_copies, host_blocks;
    int has_memory;         /* not METADATA_ONLY: one layer of records, and planes */
    uint64_t payload_bytes; /* --moe: of a slot in this pool */
};

/* A point of the plots. */
struct sample {
    double time_s;
    double in_use, idle; /* shares of N */
    double waste;        /* of the tokens that in-use blocks can hold */
    double hit_ratio;    /* so far */
    double running, waiting;
    int64_t allocated, active, resident, rss_growth; /* bytes of metadata; of the process */
};

struct timeline { /* at most 2 * TIMELINE_POINTS samples: it thins itself */
    struct sample *samples;
    uint64_t count, stride, seen;
};
enum { TIMELINE_POINTS = 1024 };

struct attend_result {
    uint64_t steps, rows;     /* attended; compared with the oracle */
    double max_rel_l2;        /* attention against float64 on the dequantised records */
    double max_latent_rel_l2; /* dequantised records against the latents that were appended */
    uint64_t failures;        /* rows or records beyond their bound */
};

/* The host tier. */
struct host_result {
    uint64_t swapped_out, swapped_in, refused; /* sequences; refused: computed again instead */
    uint64_t hit_tokens;                       /* of the hits, on the host alone */
};

/* Fallback slots between the steps. */
struct lend_result {
    uint64_t lends, failures; /* failures: of lends within the headroom */
    uint64_t peak_blocks;
    uint64_t preempted_for; /* preemptions while KV was within its base: must be 0 */
    struct series us;
};

struct replay_result {
    uint64_t requests, prompt_tokens, hit_tokens, partial_hit_tokens, output_tokens;
    uint64_t preempted, never_fits, steps, checks, check_failures, blocks_peak;
    uint64_t working_set_blocks;
    double simulated_s, wall_s;
    double manager_s, manager_cpu_s; /* inside the library's block manager */
    struct series match_admit_us, step_us;
    struct timeline timeline;
    struct attend_result attend;
    struct lend_result lend;
    struct host_result host;
    struct moe_result moe;
    uint64_t lru_hit_tokens; /* of plain LRU driven through the same steps */
    uint64_t priority_requests, priority_prompt_tokens, priority_hit_tokens;
    json_t *compare; /* rows of --compare lru and memory */
    int64_t
        rss_growth_bytes; /* anonymous memory of the process: at the end, less before the pool */
    json_t *other_heap;   /* --compare malloc: what the other library's process wrote */
    lkv_pool_stats stats; /* at the end */
};

struct replay {
    struct replay_options options;
    struct trace trace;
    struct expander expander;
    struct replay_pool pool;
    struct replay_result result;
    struct progress progress;
    int64_t rss_before; /* there was a pool */
    /* Of a command that looks on: called after every step, and once when the trace has run; moe may
     * be NULL. */
    void (*watch)(struct replay *r, struct moe *moe, double now_s, int last);
    void *watcher;
};

/* ../replay.c: the trace and the pool; the run; what came out and whether it is right. */
void replay_begin(struct replay *r);
void replay_run(struct replay *r);
int replay_end(struct replay *r); /* an exit code; closes */

/* setup.c: sizes the pool by the options, creates context and pool; and the reverse. */
void replay_open(struct replay *r);
void replay_close(struct replay *r);

/* infinite.c, scheduler.c: run the whole trace. */
void replay_infinite(struct replay *r);
void replay_schedule(struct replay *r);

struct lru;
/* The same, with plain LRU beside it; its hits are counted in the result. */
void replay_schedule_beside(struct replay *r, struct lru *lru);

/* check.c */
/* The manager's time: wall and CPU, between begin and end; end gives the wall's seconds. */
struct stopwatch {
    uint64_t wall_ns, cpu_ns;
};
struct stopwatch manager_begin(void);
double manager_end(struct replay *r, struct stopwatch begin);
/* Counts a step; every check_every of them walks the invariants. */
void replay_count_step(struct replay *r);
void replay_check(struct replay *r);
/* Copies that admission asked for: done on a real pool, taken from a METADATA_ONLY one. */
void replay_settle_copies(struct replay *r);
/* Adds a sample if the timeline wants one now. */
void replay_sample(struct replay *r, double time_s, uint64_t running, uint64_t waiting);
/* An admitted request of the trace: its hits are counted once. */
void replay_count_hits(struct replay *r, uint64_t prompt_tokens, const lkv_admission *a);

/* synthetic.c */
enum synthetic_kind { SYNTHETIC_CHAT, SYNTHETIC_AGENT };
void synthetic_make(struct trace *t, enum synthetic_kind kind, uint64_t seed, uint64_t requests);

/* result.c, report.c */
void replay_print(const struct replay *r);
json_t *replay_json(struct replay *r);
void replay_report(const struct replay *r, const char *path);

#endif
