/* In: nothing. Out: exit 0 if every call of the backend may fail, once each, and nothing is lost.
 * A script of pool calls that copy, swap, demote, promote and save is run with the n-th allocate,
 * copy or wait of the backend failing, for n = 1, 2, ... until none fails any more. A call that
 * fails must hand the status through, leave a pool that checks clean, and succeed when repeated; at
 * the end every byte is where its token is. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "api/objects.h"
#include "core/status.h"

enum { B = 16, LAYERS = 2, TOKENS = 3 * B + 5, NUM_BLOCKS = 8, HOST_BLOCKS = 8 };

static struct lkvi_backend faulty; /* the CPU's, which counts and fails */
static int64_t countdown;
static int failed_calls, failed_copies;

static lkv_status trip(const char *what)
{
    return countdown > 0 && --countdown == 0 ? lkvi_fail(LKV_E_CUDA, "%s fails on purpose", what)
                                             : LKV_OK;
}

static lkv_status allocate(void *state, uint64_t bytes, uint32_t on_host, void **out)
{
    LKV_TRY(trip("allocate"));
    return lkvi_backend_cpu.allocate(state, bytes, on_host, out);
}

static lkv_status copy(void *state, void *to, const void *from, uint64_t bytes, uint32_t kind,
                       void *stream)
{
    lkv_status status = trip("copy");
    failed_copies += status != LKV_OK;
    LKV_TRY(status);
    return lkvi_backend_cpu.copy(state, to, from, bytes, kind, stream);
}

static lkv_status wait(void *state, void *stream)
{
    LKV_TRY(trip("wait"));
    return lkvi_backend_cpu.wait(state, stream);
}

struct world {
    lkv_context *ctx;
    lkv_pool *pool;
    int32_t tokens[TOKENS];
    lkv_seq seq, child, back;
    char path[64];
};

/* ---- bytes: every part of a block follows from its first token and its number of tokens */

static uint8_t *part(const struct world *w, int32_t block, uint32_t i, uint64_t *bytes)
{
    const struct lkv_pool *pool = w->pool;
    if (i < LAYERS) {
        *bytes = pool->shape.block_bytes;
        return pool->layers[i] + (uint64_t)block * pool->shape.block_stride;
    }
    *bytes = pool->planes[i - LAYERS].bytes_per_block;
    return pool->planes[i - LAYERS].base + (uint64_t)block * *bytes;
}

static uint8_t byte_of(uint32_t what, uint32_t i, uint64_t k)
{
    return (uint8_t)((what * 2654435761u + i * 40503u + k * 2246822519u) >> 13);
}

/* Writes, or compares: the number of bytes that differ. */
static uint64_t visit(const struct world *w, lkv_seq seq, uint64_t num_blocks, int write)
{
    int32_t table[16];
    uint64_t num = 0, bytes, wrong = 0;
    if (lkv_seq_table(w->pool, seq, table, 16, &num) != LKV_OK || num < num_blocks)
        return 1;
    for (uint32_t k = 0; k < num_blocks; k++)
        for (uint32_t i = 0; i < LAYERS + 2; i++) {
            uint8_t *at = part(w, table[k], i, &bytes);
            for (uint64_t j = 0; j < bytes; j++) {
                if (write)
                    at[j] = byte_of(k, i, j);
                wrong += at[j] != byte_of(k, i, j);
            }
        }
    return wrong;
}

static void poison(const struct world *w)
{
    uint64_t bytes;
    for (int32_t b = 1; b <= NUM_BLOCKS; b++)
        for (uint32_t i = 0; i < LAYERS + 2; i++) {
            uint8_t *at = part(w, b, i, &bytes);
            memset(at, 0xEE, bytes);
        }
}

static lkv_status wrong_bytes(const char *where)
{
    return lkvi_fail(LKV_E_INTERNAL, "%s: bytes are not where they belong", where);
}

/* ---- the script */

static lkv_status call_create(struct world *w)
{
    static const lkv_plane_desc planes[2] = {{24, LKV_PLANE_HOST, 1}, {37, LKV_PLANE_DEVICE, 2}};
    lkv_pool_desc desc = {.size = sizeof desc,
                          .format = LKV_FORMAT_INT8,
                          .tokens_per_block = B,
                          .latent_dim = 32,
                          .rope_dim = 16,
                          .num_layers = LAYERS,
                          .num_blocks = NUM_BLOCKS,
                          .host_blocks = HOST_BLOCKS,
                          .planes = planes,
                          .num_planes = 2};
    return lkv_pool_create(w->ctx, &desc, &w->pool);
}

static lkv_status admit(struct world *w, uint64_t n, lkv_seq *out)
{
    lkv_prompt prompt = {.size = sizeof prompt, .tokens = w->tokens, .num_tokens = n};
    return lkv_seq_admit(w->pool, &prompt, NULL, NULL, out);
}

static lkv_status call_apply(struct world *w)
{
    return lkv_pool_apply_copies(w->pool, 0, NULL);
}

static lkv_status call_admit(struct world *w)
{
    lkv_status status = admit(w, TOKENS, &w->seq);
    return status == LKV_OK && visit(w, w->seq, 4, 1) ? wrong_bytes("fill") : status;
}

static lkv_status call_fork(struct world *w)
{
    LKV_TRY(lkv_seq_fork(w->pool, w->seq, &w->child));
    return lkv_seq_append(w->pool, w->child, w->tokens, 1, NULL);
}

/* The child's own tail is a copy; then it goes. */
static lkv_status call_child(struct world *w)
{
    if (visit(w, w->child, 4, 0))
        return wrong_bytes("copy on write");
    return lkv_seq_free(w->pool, w->child, 0);
}

static lkv_status call_swap_out(struct world *w)
{
    return lkv_seq_swap_out(w->pool, w->seq, 0, NULL);
}

static lkv_status call_swap_in(struct world *w)
{
    poison(w);
    return lkv_seq_swap_in(w->pool, w->seq, NULL);
}

static lkv_status call_cache(struct world *w)
{
    if (visit(w, w->seq, 4, 0))
        return wrong_bytes("swap");
    LKV_TRY(lkv_seq_commit(w->pool, w->seq, TOKENS));
    return lkv_seq_free(w->pool, w->seq, 0);
}

static lkv_status call_demote(struct world *w)
{
    uint64_t queued;
    LKV_TRY(lkv_pool_demote(w->pool, NUM_BLOCKS, &queued));
    return queued == 3 ? LKV_OK : wrong_bytes("demote");
}

static lkv_status call_evict(struct world *w)
{
    uint64_t evicted;
    LKV_TRY(lkv_pool_evict(w->pool, 2, &evicted)); /* one stays here, two are on the host alone */
    return LKV_OK;
}

static lkv_status call_hit(struct world *w)
{
    return admit(w, 3 * B + 1, &w->back);
}

static lkv_status call_verify(struct world *w)
{
    if (visit(w, w->back, 3, 0))
        return wrong_bytes("promotion");
    return lkv_seq_free(w->pool, w->back, 0);
}

static lkv_snapshot_args file_of(const struct world *w)
{
    return (lkv_snapshot_args){.size = sizeof(lkv_snapshot_args), .path = w->path};
}

static lkv_status call_save(struct world *w)
{
    lkv_snapshot_args args = file_of(w);
    return lkv_pool_snapshot_save(w->pool, &args, NULL, NULL);
}

static lkv_status call_reset(struct world *w)
{
    poison(w);
    return lkv_pool_reset(w->pool, 0);
}

static lkv_status call_load(struct world *w)
{
    lkv_snapshot_args args = file_of(w);
    return lkv_pool_snapshot_load(w->pool, &args, NULL, NULL);
}

/* 0 fine, 1 the call broke a rule. */
static int run_call(struct world *w, lkv_status (*call)(struct world *), int index, int64_t armed)
{
    lkv_status status = call(w);
    if (status == LKV_OK)
        return 0;
    failed_calls++;
    countdown = 0;
    int clean = status == LKV_E_CUDA && strstr(lkv_last_error(), "on purpose");
    if (clean && w->pool && lkv_pool_check(w->pool) != LKV_OK)
        clean = 0;
    if (clean)
        clean = call(w) == LKV_OK;
    if (!clean)
        fprintf(stderr, "call %d, backend call %lld: status %d, %s\n", index, (long long)armed,
                status, lkv_last_error());
    return !clean;
}

static int run_script(int64_t armed)
{
    static lkv_status (*const calls[])(struct world *) = {
        call_create, call_admit,   call_fork,  call_apply,  call_child,  call_swap_out,
        call_apply,  call_swap_in, call_apply, call_cache,  call_demote, call_apply,
        call_evict,  call_hit,     call_apply, call_verify, call_save,   call_reset,
        call_load,   call_hit,     call_apply, call_verify};
    lkv_context_desc context = {.size = sizeof context, .device = LKV_DEVICE_CPU, .num_threads = 1};
    struct world w = {.pool = NULL};
    int wrong = lkv_context_create(&context, &w.ctx) != LKV_OK;
    snprintf(w.path, sizeof w.path, "/tmp/lkv-faults-%ld", (long)getpid());
    for (int i = 0; i < TOKENS; i++)
        w.tokens[i] = i;
    w.ctx->backend = &faulty;
    countdown = armed;
    for (int i = 0; i < (int)(sizeof calls / sizeof *calls) && !wrong; i++)
        wrong = run_call(&w, calls[i], i, armed);
    countdown = 0;
    wrong = wrong || lkv_pool_check(w.pool) != LKV_OK;
    lkv_pool_release(w.pool);
    lkv_context_release(w.ctx);
    unlink(w.path);
    return wrong;
}

int main(void)
{
    faulty = lkvi_backend_cpu;
    faulty.allocate = allocate;
    faulty.copy = copy;
    faulty.wait = wait;
    for (int64_t armed = 1;; armed++) {
        int before = failed_calls;
        if (run_script(armed))
            return 1;
        if (failed_calls == before)
            break;
    }
    printf("%d calls of the backend failed once each, %d of them copies\n", failed_calls,
           failed_copies);
    return failed_copies < 50;
}
