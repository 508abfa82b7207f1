/* In: a step that finds no block, and a headroom. Out: who gives way and how (its tokens are
 * computed again, or its blocks wait on the host), and fallback slots that come
 * and go between the steps while KV runs. Lends may take idle cache and must never take a sequence:
 * a preemption while KV is within its base would be one, and is counted. */
#include <stdlib.h>

#include "tools/common/clock.h"
#include "tools/common/out.h"
#include "tools/common/rng.h"
#include "tools/replay/scheduler.h"

enum { LEASE_MOST = 64, LEAST_STEPS = 50, LEASES_A_STEP = 4 };

struct lender {
    uint64_t state; /* of the random numbers */
    uint64_t most, lent, target, steps;
    uint64_t target_steps; /* between two draws: about two leases a step reach what was drawn */
    lkv_lease *leases;
    uint32_t *sizes;
    uint64_t num_leases;
};

/* ---- preemption */

/* By the pool's own figures, not by the verdict that is looked at. */
static int is_within_base(const struct scheduler *s, const lkv_admission *refused)
{
    lkv_pool_stats t = {.size = sizeof t};
    out_must(lkv_pool_query(s->r->pool.pool, &t), "pool statistics");
    return t.blocks_in_use + t.blocks_pending + t.blocks_reserved + refused->needed <=
           t.blocks_base;
}

/* 0: the host has no room for it. */
static int swap_out(struct scheduler *s, const struct running *n)
{
    lkv_admission result = {.size = sizeof result};
    if (!s->r->options.swap)
        return 0;
    const struct stopwatch begin = manager_begin();
    const lkv_status status = lkv_seq_swap_out(s->r->pool.pool, n->seq, 0, &result);
    manager_end(s->r, begin);
    if (status == LKV_E_NO_HOST_SPACE) {
        s->r->result.host.refused++;
        return 0;
    }
    out_must(status, "swap out");
    s->r->result.host.swapped_out++;
    replay_settle_copies(s->r);
    return 1;
}

void pressure_preempt(struct scheduler *s, const lkv_admission *refused)
{
    const struct running n = s->running[s->num_running - 1];
    struct waiting w = {.request = n.request, .produced = n.produced, .counted = 1};
    s->r->result.preempted++;
    s->r->result.lend.preempted_for += (uint64_t)is_within_base(s, refused);
    if (swap_out(s, &n)) {
        w.swapped = n;
        s->num_running--;
    } else {
        scheduler_drop(s, s->num_running - 1);
    }
    scheduler_push_front(s, w);
    s->stuck = STUCK_STEPS; /* or it would be back at once, and out again */
}

int pressure_swap_in(struct scheduler *s)
{
    const struct running n = s->waiting[s->head].swapped;
    const uint64_t blocks = n.length / s->r->options.block_tokens + 1;
    lkv_admission result = {.size = sizeof result};
    lkv_pool_stats t = {.size = sizeof t};
    out_must(lkv_pool_query(s->r->pool.pool, &t), "pool statistics");
    if (s->num_running && t.blocks_base - t.blocks_in_use < blocks + s->num_running + 1)
        return 0; /* it would soon be out again */
    const struct stopwatch begin = manager_begin();
    const lkv_status status = lkv_seq_swap_in(s->r->pool.pool, n.seq, &result);
    manager_end(s->r, begin);
    if (s->num_running && status == LKV_E_NO_BLOCKS)
        return 0;
    out_must(status, "swap in");
    s->r->result.host.swapped_in++;
    replay_settle_copies(s->r);
    s->running[s->num_running++] = n;
    scheduler_pop_front(s);
    return 1;
}

/* As many as the next step may evict. */
void pressure_demote(struct scheduler *s)
{
    const struct replay_options *o = &s->r->options;
    uint64_t queued = 0;
    if (!o->demote)
        return;
    const struct stopwatch begin = manager_begin();
    out_must(
        lkv_pool_demote(s->r->pool.pool, o->chunk / o->block_tokens + s->num_running + 1, &queued),
        "demotion");
    manager_end(s->r, begin);
    if (queued)
        replay_settle_copies(s->r);
}

/* ---- fallback slots */

void pressure_open(struct scheduler *s)
{
    const struct replay_options *o = &s->r->options;
    lkv_pool_stats t = {.size = sizeof t};
    if (!(o->lend_share > 0))
        return;
    out_must(lkv_pool_query(s->r->pool.pool, &t), "pool statistics");
    s->lender = out_alloc(1, sizeof *s->lender);
    s->lender->state = mix64(o->seed + 77);
    s->lender->most = (uint64_t)(o->lend_share * (double)(t.blocks_total - t.blocks_base));
    s->lender->target_steps = LEAST_STEPS + s->lender->most / LEASE_MOST;
    s->lender->leases = out_alloc(s->lender->most + 1, sizeof *s->lender->leases);
    s->lender->sizes = out_alloc(s->lender->most + 1, sizeof *s->lender->sizes);
}

static void release(struct scheduler *s, uint64_t i)
{
    struct lender *l = s->lender;
    out_must(lkv_lease_release(s->r->pool.pool, l->leases[i], 0), "the lease");
    l->lent -= l->sizes[i];
    if (s->beside)
        lru_return(s->beside, l->sizes[i]);
    l->leases[i] = l->leases[--l->num_leases];
    l->sizes[i] = l->sizes[l->num_leases];
}

static void lend(struct scheduler *s, uint32_t n)
{
    struct lender *l = s->lender;
    struct lend_result *x = &s->r->result.lend;
    int32_t blocks[LEASE_MOST];
    const uint64_t begin = clock_ns();
    const lkv_status status = lkv_lease_lend(s->r->pool.pool, n, blocks, &l->leases[l->num_leases]);
    series_add(&x->us, (double)(clock_ns() - begin) * 1e-3);
    x->lends++;
    x->failures += status != LKV_OK;
    if (status != LKV_OK)
        return;
    l->sizes[l->num_leases++] = n;
    l->lent += n;
    x->peak_blocks = l->lent > x->peak_blocks ? l->lent : x->peak_blocks;
    if (s->beside)
        lru_lend(s->beside, n);
}

/* Towards a level that is drawn anew now and then; one in four is all of the headroom. */
void pressure_lend(struct scheduler *s)
{
    struct lender *l = s->lender;
    if (!l)
        return;
    if (l->steps++ % l->target_steps == 0)
        l->target = rng_below(&l->state, 4) ? rng_below(&l->state, l->most + 1) : l->most;
    for (int i = 0; i < LEASES_A_STEP && l->lent < l->target; i++) {
        uint64_t n = 1 + rng_below(&l->state, LEASE_MOST);
        n = n < l->target - l->lent ? n : l->target - l->lent;
        lend(s, (uint32_t)n);
    }
    for (int i = 0; i < LEASES_A_STEP && l->lent > l->target; i++)
        release(s, rng_below(&l->state, l->num_leases));
}

void pressure_close(struct scheduler *s)
{
    if (!s->lender)
        return;
    while (s->lender->num_leases)
        release(s, s->lender->num_leases - 1);
    free(s->lender->leases);
    free(s->lender->sizes);
    free(s->lender);
}
