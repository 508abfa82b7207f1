/* Eight threads on one pool through the public ABI: admissions that share prefixes, forks, steps,
 * appends, attends on plans of their own, evictions, demotions, swaps. Token t's latent is t
 * everywhere and queries are zero, so every output must be the mean of the sequence's tokens: a
 * wrong block, a lost copy or a torn record shows as a number, a missing lock under TSan as a race.
 */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "latentkv/latentkv.h"

enum { THREADS = 8, ROUNDS = 60, L = 32, R = 16, H = 2, LAYERS = 2, BLOCK = 16, MAX_LEN = 100 };
enum { WIDTH = (MAX_LEN + BLOCK - 1) / BLOCK };

struct shared {
    lkv_context *ctx;
    lkv_pool *pool;
    atomic_uint_fast64_t attended, hits, host_hits, refused, swapped;
    atomic_uint errors;
};

struct thread {
    struct shared *shared;
    pthread_t id;
    uint64_t random;
    lkv_plan *plan;
    void *workspace;
    size_t workspace_bytes;
    int32_t tokens[MAX_LEN], table[WIDTH], seq_len, positions[MAX_LEN];
    int64_t slots[MAX_LEN];
    float latent[MAX_LEN][L], rope[MAX_LEN][R], q[H][L], q_rope[H][R], out[H][L], lse[H];
};

static uint64_t draw(struct thread *t, uint64_t below)
{
    t->random = t->random * 6364136223846793005u + 1442695040888963407u;
    return (t->random >> 33) % below;
}

static int must(struct thread *t, lkv_status status, const char *what)
{
    if (status == LKV_OK)
        return 1;
    fprintf(stderr, "%s: %s: %s\n", what, lkv_status_name(status), lkv_last_error());
    atomic_fetch_add(&t->shared->errors, 1);
    return 0;
}

/* Writes positions [begin, end) of a sequence whose slots the last step gave. */
static int write_rows(struct thread *t, uint32_t begin, uint32_t end)
{
    lkv_tensor latent = {t->latent, LKV_DTYPE_F32, 2, {end - begin, L}, {L, 1}};
    lkv_tensor rope = {t->rope, LKV_DTYPE_F32, 2, {end - begin, R}, {R, 1}};
    lkv_append_args args = {.size = sizeof args,
                            .latent = &latent,
                            .rope = &rope,
                            .slots = t->slots,
                            .flags = LKV_APPEND_CHECKED};
    for (uint32_t i = begin; i < end; i++)
        for (int j = 0; j < L; j++)
            t->latent[i - begin][j] = (float)t->tokens[i];
    for (args.layer = 0; args.layer < LAYERS; args.layer++)
        if (!must(t, lkv_append(t->shared->pool, &args, NULL), "append"))
            return 0;
    return 1;
}

/* Attends with the newest token over all `length` ones. */
static int attend(struct thread *t, uint32_t length)
{
    lkv_tensor q = {t->q, LKV_DTYPE_F32, 3, {1, H, L}, {H * L, L, 1}};
    lkv_tensor q_rope = {t->q_rope, LKV_DTYPE_F32, 3, {1, H, R}, {H * R, R, 1}};
    lkv_tensor out = {t->out, LKV_DTYPE_F32, 3, {1, H, L}, {H * L, L, 1}};
    lkv_tensor lse = {t->lse, LKV_DTYPE_F32, 2, {1, H}, {H, 1}};
    lkv_batch batch = {.size = sizeof batch,
                       .num_seqs = 1,
                       .max_blocks_per_seq = WIDTH,
                       .block_table = t->table,
                       .seq_lens = &t->seq_len,
                       .num_tokens = 1};
    lkv_attend_args args = {.size = sizeof args,
                            .q = &q,
                            .q_rope = &q_rope,
                            .out = &out,
                            .lse = &lse,
                            .workspace = t->workspace,
                            .workspace_bytes = t->workspace_bytes,
                            .scale = 0.1,
                            .layer = (uint32_t)draw(t, LAYERS),
                            .flags = LKV_ATTEND_CHECKED};
    double mean = 0;
    for (uint32_t i = 0; i < length; i++)
        mean += t->tokens[i] / (double)length;
    if (!must(t, lkv_plan_update(t->plan, &batch, t->workspace, t->workspace_bytes, NULL),
              "plan_update") ||
        !must(t, lkv_attend(t->plan, t->shared->pool, &batch, &args, NULL), "attend"))
        return 0;
    atomic_fetch_add(&t->shared->attended, 1);
    if (fabs(t->out[H - 1][L - 1] - mean) < 1e-4 * mean && fabs(t->lse[0] - log(length)) < 1e-5)
        return 1;
    fprintf(stderr, "length %u: out %.9g, want %.9g; lse %.9g, want %.9g\n", length,
            t->out[H - 1][L - 1], mean, t->lse[0], log(length));
    atomic_fetch_add(&t->shared->errors, 1);
    return 0;
}

static int refused(struct thread *t, lkv_status status)
{
    int yes =
        status == LKV_E_NO_BLOCKS || status == LKV_E_WAIT_PENDING || status == LKV_E_NO_HOST_SPACE;
    atomic_fetch_add(&t->shared->refused, (uint64_t)yes);
    return yes;
}

/* One step: `fresh` new tokens at the end, rows from `begin` on written, then attended. */
static int run(struct thread *t, lkv_seq seq, uint32_t begin, uint32_t length, uint32_t fresh)
{
    uint32_t rows = length - begin;
    uint64_t from = begin;
    lkv_step step = {.size = sizeof step,
                     .num_seqs = 1,
                     .seqs = &seq,
                     .num_new = &fresh,
                     .tokens = t->tokens + length - fresh,
                     .row_begin = &from,
                     .num_rows = &rows,
                     .block_table = t->table,
                     .seq_lens = &t->seq_len,
                     .slots = t->slots,
                     .positions = t->positions,
                     .slots_capacity = MAX_LEN,
                     .table_width = WIDTH};
    lkv_status status = lkv_pool_step(t->shared->pool, &step, NULL);
    if (refused(t, status)) /* the others hold them; a real engine would preempt */
        return 0;
    return must(t, status, "step") &&
           must(t, lkv_pool_apply_copies(t->shared->pool, 0, NULL), "apply_copies") &&
           write_rows(t, begin, length) &&
           must(t, lkv_seq_commit(t->shared->pool, seq, length), "commit") && attend(t, length);
}

/* A child over the same blocks, one other token, then its end. */
static void fork_and_diverge(struct thread *t, lkv_seq seq, uint32_t length)
{
    lkv_seq child;
    lkv_status status = lkv_seq_fork(t->shared->pool, seq, &child);
    if (refused(t, status) || !must(t, status, "fork"))
        return;
    int32_t kept = t->tokens[length];
    t->tokens[length] = 5000 + (int32_t)draw(t, 1000);
    run(t, child, length, length + 1, 1);
    t->tokens[length] = kept;
    must(t, lkv_seq_free(t->shared->pool, child, 0), "free of a child");
}

/* Out and in again; every row must be there for the step that follows. */
static void swap(struct thread *t, lkv_seq seq, uint32_t length)
{
    lkv_pool *pool = t->shared->pool;
    lkv_status status = lkv_seq_swap_out(pool, seq, 0, NULL);
    if (refused(t, status) || !must(t, status, "swap out") ||
        !must(t, lkv_pool_apply_copies(pool, 0, NULL), "apply_copies"))
        return;
    status = lkv_seq_swap_in(pool, seq, NULL);
    if (refused(t, status) || !must(t, status, "swap in"))
        return;
    if (run(t, seq, length, length + 1, 1))
        atomic_fetch_add(&t->shared->swapped, 1);
}

static void request(struct thread *t)
{
    uint32_t length = 20 + (uint32_t)draw(t, 40), shared_part = (uint32_t)draw(t, 50);
    int32_t family = 100 * (1 + (int32_t)draw(t, 4));
    for (uint32_t i = 0; i < MAX_LEN; i++)
        t->tokens[i] = i < shared_part ? family + (int32_t)i : 1000 + (int32_t)draw(t, 1000);
    lkv_prompt prompt = {.size = sizeof prompt, .tokens = t->tokens, .num_tokens = length};
    lkv_admission admission = {.size = sizeof admission};
    lkv_seq seq;
    lkv_status status = lkv_seq_admit(t->shared->pool, &prompt, NULL, &admission, &seq);
    if (refused(t, status) || !must(t, status, "admit"))
        return;
    atomic_fetch_add(&t->shared->hits, admission.hit_tokens);
    atomic_fetch_add(&t->shared->host_hits, admission.host_hit_blocks);
    if (run(t, seq, (uint32_t)admission.hit_tokens, length, 0)) {
        for (int i = 0; i < 5 && run(t, seq, length, length + 1, 1); i++)
            length++;
        fork_and_diverge(t, seq, length);
        if (draw(t, 3) == 0)
            swap(t, seq, length);
    }
    must(t, lkv_seq_free(t->shared->pool, seq, 0), "free");
}

static void *thread_main(void *arg)
{
    struct thread *t = arg;
    uint64_t evicted, queued;
    lkv_pool_stats stats = {.size = sizeof stats};
    for (int i = 0; i < ROUNDS; i++) {
        request(t);
        must(t, lkv_pool_demote(t->shared->pool, 8, &queued), "demote");
        must(t, lkv_pool_apply_copies(t->shared->pool, 0, NULL), "apply_copies");
        if (draw(t, 8) == 0)
            must(t, lkv_pool_evict(t->shared->pool, draw(t, 4), &evicted), "evict");
        if (draw(t, 8) == 0)
            must(t, lkv_pool_query(t->shared->pool, &stats), "query");
        if (draw(t, 16) == 0)
            must(t, lkv_pool_check(t->shared->pool), "check");
    }
    return NULL;
}

static void start(struct shared *shared, struct thread *t, uint64_t seed)
{
    lkv_plan_desc desc = {.size = sizeof desc,
                          .pool = shared->pool,
                          .num_heads = H,
                          .max_seqs = 1,
                          .max_tokens = 1,
                          .max_q_len = 1,
                          .max_seq_len = MAX_LEN,
                          .q_dtype = LKV_DTYPE_F32,
                          .out_dtype = LKV_DTYPE_F32};
    t->shared = shared;
    t->random = seed * 0x9E3779B97F4A7C15u;
    if (!must(t, lkv_plan_create(shared->ctx, &desc, &t->plan), "plan") ||
        !must(t, lkv_plan_workspace(t->plan, &t->workspace_bytes), "workspace"))
        exit(2);
    t->workspace = aligned_alloc(256, (t->workspace_bytes | 255) + 1);
    if (pthread_create(&t->id, NULL, thread_main, t))
        exit(2);
}

int main(void)
{
    static struct thread threads[THREADS];
    struct shared s = {0};
    struct thread *first = &threads[0];
    lkv_context_desc ctx = {.size = sizeof ctx, .device = LKV_DEVICE_CPU, .num_threads = 2};
    lkv_pool_desc pool = {.size = sizeof pool,
                          .format = LKV_FORMAT_INT8,
                          .tokens_per_block = BLOCK,
                          .latent_dim = L,
                          .rope_dim = R,
                          .num_layers = LAYERS,
                          .num_blocks = 40,
                          .host_blocks = 30,
                          .fallback_headroom = 0.1};
    lkv_pool_stats stats = {.size = sizeof stats};
    first->shared = &s;
    if (!must(first, lkv_context_create(&ctx, &s.ctx), "context") ||
        !must(first, lkv_pool_create(s.ctx, &pool, &s.pool), "pool"))
        return 2;
    for (int i = 0; i < THREADS; i++)
        start(&s, &threads[i], (uint64_t)i + 1);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i].id, NULL);
        lkv_plan_release(threads[i].plan);
        free(threads[i].workspace);
    }
    must(first, lkv_pool_check(s.pool), "check");
    must(first, lkv_pool_query(s.pool, &stats), "query");
    printf("%llu blocks hit on the host, %llu demoted, %llu swaps\n",
           (unsigned long long)s.host_hits, (unsigned long long)stats.demoted_blocks,
           (unsigned long long)s.swapped);
    printf("%llu attended, %llu hit tokens, %llu refused, %llu evicted, %llu copied, %u errors\n",
           (unsigned long long)s.attended, (unsigned long long)s.hits,
           (unsigned long long)s.refused, (unsigned long long)stats.evicted_blocks,
           (unsigned long long)stats.copied_blocks, s.errors);
    lkv_pool_release(s.pool);
    lkv_context_release(s.ctx);
    return s.errors || stats.blocks_in_use || stats.host_blocks_in_use || !s.attended || !s.hits ||
           !s.host_hits || !s.swapped;
}
