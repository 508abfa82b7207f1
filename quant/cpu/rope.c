/* Rows before RoPE -> rows after it, fp32 arithmetic whatever the dtype; in may be out. Positions
 * are checked before anything is written. */
#include "core/status.h"
#include "quant/cpu/cpu.h"
#include "quant/cpu/rows.h"

struct job {
    const struct lkvi_rope_params *p;
    const struct lkvi_row_ops *ops;
};

static void rope_token(const struct job *job, uint64_t token)
{
    const struct lkvi_rope_params *p = job->p;
    float row[LKVI_MAX_ROPE] __attribute__((aligned(64)));
    uint64_t at = (uint64_t)p->positions[token] * (p->dim / 2);
    for (uint32_t head = 0; head < p->num_heads; head++) {
        int64_t in = (int64_t)token * p->in.stride + head * p->in_head_stride;
        int64_t out = (int64_t)token * p->out.stride + head * p->out_head_stride;
        job->ops->load(lkvi_row_at(&p->in, in), p->in.dtype, p->dim, row);
        lkvi_rope_turn(row, p->dim, p->cos + at, p->sin + at, p->style);
        job->ops->store(row, p->dim, p->out.dtype, lkvi_row_at(&p->out, out));
    }
}

static void rope_task(void *arg, uint64_t index, uint32_t worker)
{
    const struct job *job = arg;
    (void)worker;
    uint64_t begin = index * LKVI_ROWS_A_TASK, end = lkvi_rows_end(begin, job->p->num_tokens);
    for (uint64_t token = begin; token < end; token++)
        rope_token(job, token);
}

static lkv_status check_positions(const struct lkvi_rope_params *p)
{
    for (uint64_t t = 0; t < p->num_tokens; t++)
        if (p->positions[t] < 0 || (uint64_t)p->positions[t] >= p->num_positions)
            return lkvi_fail(LKV_E_INVALID, "positions[%llu] is %d; the table holds 0..%lld",
                             (unsigned long long)t, p->positions[t],
                             (long long)p->num_positions - 1);
    return LKV_OK;
}

lkv_status lkvi_cpu_rope(void *state, const struct lkvi_rope_params *p, void *stream)
{
    struct lkv_context *ctx = state;
    struct job job = {.p = p, .ops = lkvi_row_ops_get(ctx->isa)};
    (void)stream;
    LKV_TRY(check_positions(p));
    lkvi_rows_run(ctx, p->num_tokens, rope_task, &job);
    return LKV_OK;
}
