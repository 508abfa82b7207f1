/* The state of the scheduler, shared by scheduler.c (arrivals, admission, steps) and pressure.c
 * (preemption, fallback slots). */
#ifndef TOOLS_REPLAY_SCHEDULER_H
#define TOOLS_REPLAY_SCHEDULER_H

#include "tools/replay/attend.h"
#include "tools/replay/lru.h"
#include "tools/replay/replay.h"

struct running {
    lkv_seq seq;
    uint64_t request;
    uint64_t length;        /* known to the pool */
    uint64_t computed;      /* rows that have run */
    uint32_t produced;      /* output tokens; the last of them is appended by the next step */
    uint64_t *chain;        /* with --attend or --moe: [input + output] */
    struct lru_seq *beside; /* the same in plain LRU, if there is one */
};

struct waiting {
    uint64_t request;
    uint32_t produced;
    int counted;            /* its hits were counted at its first admission */
    struct running swapped; /* seq 0: it has to be computed again */
};

struct scheduler {
    struct replay *r;
    struct running *running; /* oldest first */
    uint32_t num_running;
    struct waiting *waiting; /* a ring; preempted ones return to its head */
    uint64_t head, num_waiting, ring;
    uint64_t next_arrival;
    double now_s;
    uint32_t stuck; /* steps until the head of the queue is asked again */
    int32_t *known; /* prompt and generated tokens of one request */
    uint64_t known_capacity;
    struct attender *attender;
    struct moe *moe;
    struct lru *beside; /* plain LRU that does the same, or NULL */
    struct lender *lender;
    lkv_step step;
    lkv_seq *seqs;
    uint32_t *num_new, *num_rows;
    uint64_t *row_begin;
    int32_t *tokens;
    struct attend_seq *chains;
};

enum { STUCK_STEPS = 16 };

/* Waiting requests: a preempted one goes to the head. */
void scheduler_push_front(struct scheduler *s, struct waiting w);
void scheduler_pop_front(struct scheduler *s);
/* Ends the sequence of running[i]. */
void scheduler_drop(struct scheduler *s, uint32_t i);

/* ---- pressure.c */
void pressure_open(struct scheduler *s);
void pressure_close(struct scheduler *s);
/* The youngest sequence gives its blocks up; refused: what the step was told. */
void pressure_preempt(struct scheduler *s, const lkv_admission *refused);
/* The head of the queue comes back from the host; 0: it has to wait. */
int pressure_swap_in(struct scheduler *s);
/* Copies the next victims to the host, if that is asked for. */
void pressure_demote(struct scheduler *s);
/* Between two steps fallback slots come and go. */
void pressure_lend(struct scheduler *s);

#endif
