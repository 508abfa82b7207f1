/* In: the trace by arrival. Out: continuous batching over it. A step of fixed simulated length runs
 * one token of every decoding sequence and up to `chunk` prompt tokens. When a decode finds no
 * block, the youngest sequence is freed and waits again, to be recomputed with what it had
 * generated.
 *
 *   arrivals -> waiting -> admit -> [prefill chunks -> decode ...] -> free
 *                  ^------------- preempted -------------'                     */
#include "tools/replay/scheduler.h"

#include <stdlib.h>
#include <string.h>

#include "tools/common/out.h"
#include "tools/common/rng.h"

enum { PRIORITY = 50 };

static const struct trace_request *request_of(const struct scheduler *s, uint64_t request)
{
    return &s->r->trace.requests[request];
}

static void push_back(struct scheduler *s, struct waiting w)
{
    s->waiting[(s->head + s->num_waiting++) % s->ring] = w;
}

void scheduler_push_front(struct scheduler *s, struct waiting w)
{
    s->head = (s->head + s->ring - 1) % s->ring;
    s->waiting[s->head] = w;
    s->num_waiting++;
}

void scheduler_pop_front(struct scheduler *s)
{
    s->head = (s->head + 1) % s->ring;
    s->num_waiting--;
}

static void take_arrivals(struct scheduler *s)
{
    const struct trace *t = &s->r->trace;
    if (!s->num_running && !s->num_waiting && s->next_arrival < t->num_requests &&
        t->requests[s->next_arrival].arrival_s > s->now_s)
        s->now_s = t->requests[s->next_arrival].arrival_s;
    while (s->next_arrival < t->num_requests && t->requests[s->next_arrival].arrival_s <= s->now_s)
        push_back(s, (struct waiting){.request = s->next_arrival++});
}

/* ---- admission */

/* Prompt and what was generated before a preemption. */
static uint64_t known_tokens(struct scheduler *s, const struct waiting *w)
{
    const uint64_t input = request_of(s, w->request)->input_length;
    const uint64_t total = input + w->produced;
    if (total > s->known_capacity) {
        s->known_capacity = total + total / 2;
        s->known = out_grow(s->known, s->known_capacity * sizeof *s->known);
    }
    memcpy(s->known, expand_prompt(&s->r->expander, w->request), input * sizeof *s->known);
    for (uint32_t j = 0; j < w->produced; j++)
        s->known[input + j] = expand_output(&s->r->expander, w->request, j);
    return total;
}

static void start_running(struct scheduler *s, const struct waiting *w, lkv_seq seq, uint64_t total,
                          uint64_t hits)
{
    struct running *n = &s->running[s->num_running++];
    const struct trace_request *q = request_of(s, w->request);
    *n = (struct running){.seq = seq,
                          .request = w->request,
                          .length = total,
                          .computed = hits,
                          .produced = w->produced};
    if (s->beside) {
        uint64_t found;
        n->beside = lru_admit(s->beside, &s->r->trace, w->request, total, &found);
        s->r->result.lru_hit_tokens += w->counted ? 0 : found;
    }
    if (!s->attender && !s->moe)
        return;
    n->chain = out_alloc(q->input_length + q->output_length + 1, sizeof *n->chain);
    for (uint64_t i = 0; i < total; i++)
        n->chain[i] = attend_chain(i ? n->chain[i - 1] : 0, s->known[i]);
}

/* Milliseconds of the simulated clock. */
static uint64_t ticks(double time_s)
{
    return (uint64_t)(time_s * 1e3) + 1;
}

/* A share of the sessions; where the trace has no sessions, of the requests. */
static int has_priority(const struct scheduler *s, const struct trace_request *q)
{
    const uint64_t who =
        s->r->trace.num_spaces > 1 ? q->space : (uint64_t)(q - s->r->trace.requests);
    const double drawn = (double)(mix64(who ^ s->r->options.seed << 40) >> 11) * 0x1p-53;
    return drawn < s->r->options.priority_share;
}

static lkv_status admit(struct scheduler *s, const struct waiting *w, uint64_t total,
                        lkv_admission *admission)
{
    const struct trace_request *q = request_of(s, w->request);
    const lkv_prompt prompt = {.size = sizeof prompt, .tokens = s->known, .num_tokens = total};
    lkv_match match = {.size = sizeof match};
    lkv_admit_args args = {.size = sizeof args,
                           .match = &match,
                           .max_tokens = (uint64_t)q->input_length + q->output_length};
    /* a block for each running sequence stays free, or admission would soon be undone */
    if (!s->r->options.eager)
        args.watermark_blocks = s->num_running + 1;
    if (has_priority(s, q)) {
        args.priority = PRIORITY;
        args.priority_until = ticks(s->now_s + s->r->options.priority_s);
    }
    const struct stopwatch begin = manager_begin();
    out_must(lkv_seq_match(s->r->pool.pool, &prompt, &match), "match");
    lkv_seq seq;
    const lkv_status status = lkv_seq_admit(s->r->pool.pool, &prompt, &args, admission, &seq);
    const double us = 1e6 * manager_end(s->r, begin);
    if (status != LKV_OK)
        return status;
    series_add(&s->r->result.match_admit_us, us);
    start_running(s, w, seq, total, admission->hit_tokens);
    return LKV_OK;
}

static void count_hits(struct scheduler *s, const struct waiting *w, uint64_t total,
                       const lkv_admission *admission)
{
    struct replay_result *x = &s->r->result;
    replay_count_hits(s->r, total, admission);
    if (!has_priority(s, request_of(s, w->request)))
        return;
    x->priority_requests++;
    x->priority_prompt_tokens += total;
    x->priority_hit_tokens += admission->hit_tokens;
}

/* The sequence admitted last; its copies are done. */
static void read_hit(struct scheduler *s, const struct waiting *w, uint64_t hit_tokens)
{
    const struct running *n = &s->running[s->num_running - 1];
    moe_hit(s->moe, &(struct moe_hit){n->seq, n->chain, hit_tokens, w->request});
}

/* 1: go on with the next one; 0: it has to wait. */
static int admit_first(struct scheduler *s)
{
    struct waiting w = s->waiting[s->head];
    lkv_admission admission = {.size = sizeof admission};
    if (w.swapped.seq)
        return pressure_swap_in(s);
    const uint64_t total = known_tokens(s, &w);
    const lkv_status status = admit(s, &w, total, &admission);
    if (s->num_running && (status == LKV_E_NO_BLOCKS || status == LKV_E_WAIT_PENDING))
        return 0;
    scheduler_pop_front(s);
    if (status == LKV_E_NEVER_FITS) {
        s->r->result.never_fits++;
        return 1;
    }
    out_must(status, "admission");
    if (!w.counted)
        count_hits(s, &w, total, &admission);
    if (admission.partial_hit_tokens || admission.host_hit_blocks)
        replay_settle_copies(s->r);
    if (s->moe)
        read_hit(s, &w, admission.hit_tokens);
    return 1;
}

/* Whoever had to wait is asked again when a sequence has ended, or now and then: others may have
 * published what it hits. */
static void admit_waiting(struct scheduler *s)
{
    if (s->stuck && --s->stuck)
        return;
    while (s->num_waiting && s->num_running < s->r->options.max_running) {
        if (!admit_first(s)) {
            s->stuck = STUCK_STEPS;
            return;
        }
    }
}

/* ---- one step */

/* Row of a sequence: a decode appends the token produced last; a prefill runs a chunk. */
static uint32_t plan_row(struct scheduler *s, uint32_t i, uint64_t *budget, uint32_t *num_tokens)
{
    const struct running *n = &s->running[i];
    s->seqs[i] = n->seq;
    s->row_begin[i] = n->computed;
    s->num_new[i] = n->computed == n->length;
    s->num_rows[i] = 1;
    if (s->num_new[i]) {
        s->tokens[(*num_tokens)++] = expand_output(&s->r->expander, n->request, n->produced - 1);
        return 1;
    }
    const uint64_t left = n->length - n->computed;
    s->num_rows[i] = (uint32_t)(left < *budget ? left : *budget);
    *budget -= s->num_rows[i];
    if (!s->num_rows[i])
        s->seqs[i] = 0; /* a padding row: its turn comes in a later step */
    return s->num_rows[i];
}

static void plan_step(struct scheduler *s)
{
    uint64_t budget = s->r->options.chunk;
    uint32_t num_tokens = 0;
    for (uint32_t i = 0; i < s->num_running; i++)
        plan_row(s, i, &budget, &num_tokens);
    s->step.num_seqs = s->num_running;
}

void scheduler_drop(struct scheduler *s, uint32_t i)
{
    out_must(lkv_seq_free(s->r->pool.pool, s->running[i].seq, 0), "free");
    free(s->running[i].chain);
    if (s->running[i].beside)
        lru_drop(s->beside, s->running[i].beside);
    memmove(&s->running[i], &s->running[i + 1], (s->num_running - i - 1) * sizeof *s->running);
    s->num_running--;
    s->stuck = 0;
}

static void run_step(struct scheduler *s)
{
    lkv_admission result = {.size = sizeof result};
    const struct stopwatch begin = manager_begin();
    for (;;) {
        plan_step(s);
        const lkv_status status = lkv_pool_step(s->r->pool.pool, &s->step, &result);
        if (status == LKV_OK)
            break;
        if (status != LKV_E_NO_BLOCKS || s->num_running < 2)
            out_must(status, "step");
        pressure_preempt(s, &result);
    }
    series_add(&s->r->result.step_us, 1e6 * manager_end(s->r, begin));
}

/* ---- what a step leaves behind */

static void advance(struct scheduler *s, struct running *n, uint32_t i)
{
    if (s->num_new[i]) {
        const int32_t token = expand_output(&s->r->expander, n->request, n->produced - 1);
        if (n->chain)
            n->chain[n->length] = attend_chain(n->chain[n->length - 1], token);
        n->length++;
        if (n->beside)
            lru_grow(s->beside, n->beside, n->length);
    }
    n->computed += s->num_rows[i];
}

static void commit(struct scheduler *s, const struct running *n, uint32_t num_rows)
{
    const uint32_t block = s->r->options.block_tokens;
    if (n->computed / block != (n->computed - num_rows) / block) /* whole blocks are published */
        out_must(lkv_seq_commit(s->r->pool.pool, n->seq, n->computed), "commit");
    if (n->beside)
        lru_commit(s->beside, n->beside, n->computed);
}

static void finish_step(struct scheduler *s)
{
    const struct stopwatch begin = manager_begin();
    for (uint32_t i = s->num_running; i-- > 0;) {
        struct running *n = &s->running[i];
        const uint32_t wanted = request_of(s, n->request)->output_length;
        commit(s, n, s->num_rows[i]);
        if (n->computed != n->length)
            continue;
        if (n->produced < wanted) {
            n->produced++;
            s->r->result.output_tokens++;
        }
        if (n->produced >= wanted)
            scheduler_drop(s, i);
    }
    manager_end(s->r, begin);
}

/* What the model does with the rows of a step. */
static void model_step(struct scheduler *s)
{
    struct attend_asked asked;
    if (!s->attender && !s->moe)
        return;
    for (uint32_t i = 0; i < s->num_running; i++)
        s->chains[i] = (struct attend_seq){.chain = s->running[i].chain};
    if (s->attender) {
        attender_step(s->attender, &(struct attend_batch){.step = &s->step, .seqs = s->chains});
        asked = attender_asked(s->attender);
    }
    if (s->moe)
        moe_step(s->moe, &s->step, s->chains, s->attender ? &asked : NULL);
}

static void one_step(struct scheduler *s)
{
    if (s->num_running) {
        run_step(s);
        for (uint32_t i = 0; i < s->num_running; i++)
            if (s->num_rows[i])
                advance(s, &s->running[i], i);
        model_step(s);
        finish_step(s);
    }
    s->now_s += s->r->options.step_ms * 1e-3;
    if (s->r->options.priority_share > 0)
        out_must(lkv_pool_tick(s->r->pool.pool, ticks(s->now_s)), "the clock");
    pressure_lend(s);
    pressure_demote(s);
    replay_count_step(s->r);
    replay_sample(s->r, s->now_s, s->num_running, s->num_waiting);
    if (s->r->watch)
        s->r->watch(s->r, s->moe, s->now_s, 0);
}

/* ---- life */

static void open_arrays(struct scheduler *s)
{
    const uint32_t n = s->r->options.max_running, width = s->r->pool.table_width;
    const uint64_t rows = (uint64_t)n + s->r->options.chunk;
    const int with_table = !s->r->options.no_tables;
    s->running = out_alloc(n, sizeof *s->running);
    s->ring = s->r->trace.num_requests + n + 1;
    s->waiting = out_alloc(s->ring, sizeof *s->waiting);
    s->seqs = out_alloc(n, sizeof *s->seqs);
    s->num_new = out_alloc(n, sizeof *s->num_new);
    s->num_rows = out_alloc(n, sizeof *s->num_rows);
    s->row_begin = out_alloc(n, sizeof *s->row_begin);
    s->tokens = out_alloc(n, sizeof *s->tokens);
    s->chains = out_alloc(n, sizeof *s->chains);
    s->step =
        (lkv_step){.size = sizeof s->step,
                   .seqs = s->seqs,
                   .num_new = s->num_new,
                   .tokens = s->tokens,
                   .row_begin = s->row_begin,
                   .num_rows = s->num_rows,
                   .block_table = with_table ? out_alloc((size_t)n * width, sizeof(int32_t)) : NULL,
                   .seq_lens = out_alloc(n, sizeof(int32_t)),
                   .q_indptr = out_alloc(n + 1, sizeof(int32_t)),
                   .slots = out_alloc(rows, sizeof(int64_t)),
                   .positions = out_alloc(rows, sizeof(int32_t)),
                   .slots_capacity = rows,
                   .table_width = width};
}

static void close_arrays(struct scheduler *s)
{
    free(s->running);
    free(s->waiting);
    free(s->seqs);
    free(s->num_new);
    free(s->num_rows);
    free(s->row_begin);
    free(s->tokens);
    free(s->chains);
    free(s->known);
    free(s->step.block_table);
    free(s->step.seq_lens);
    free(s->step.q_indptr);
    free(s->step.slots);
    free(s->step.positions);
}

void replay_schedule(struct replay *r)
{
    replay_schedule_beside(r, NULL);
}

void replay_schedule_beside(struct replay *r, struct lru *lru)
{
    struct scheduler s = {.r = r, .beside = lru};
    trace_sort(&r->trace);
    s.now_s = r->trace.requests[0].arrival_s;
    open_arrays(&s);
    pressure_open(&s);
    if (r->options.attend_rate > 0)
        s.attender = attender_new(r);
    if (r->options.moe.experts)
        s.moe = moe_new(r);
    progress_start(&r->progress, "replay", r->trace.num_requests);
    while (s.num_running || s.num_waiting || s.next_arrival < r->trace.num_requests) {
        take_arrivals(&s);
        admit_waiting(&s);
        one_step(&s);
        progress_show(&r->progress, s.next_arrival - s.num_waiting - s.num_running);
    }
    progress_end(&r->progress);
    r->result.simulated_s = s.now_s - r->trace.requests[0].arrival_s;
    attender_free(s.attender);
    if (s.moe)
        moe_measure(s.moe);
    if (r->watch)
        r->watch(r, s.moe, s.now_s, 1);
    moe_free(s.moe);
    pressure_close(&s);
    close_arrays(&s);
}
