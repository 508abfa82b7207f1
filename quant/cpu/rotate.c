/* Dense rows -> the same rows after the orthonormal Hadamard rotation; in may be out. */
#include "quant/cpu/cpu.h"
#include "quant/cpu/rows.h"

struct job {
    const struct lkvi_rotate_params *p;
    const struct lkvi_row_ops *ops;
};

static void rotate_task(void *arg, uint64_t index, uint32_t worker)
{
    const struct job *job = arg;
    const struct lkvi_rotate_params *p = job->p;
    float row[LKVI_MAX_LATENT] __attribute__((aligned(64)));
    (void)worker;
    uint64_t begin = index * LKVI_ROWS_A_TASK, end = lkvi_rows_end(begin, p->num_rows);
    for (uint64_t r = begin; r < end; r++) {
        job->ops->load(lkvi_row_at(&p->in, (int64_t)r * p->in.stride), p->in.dtype, p->dim, row);
        job->ops->hadamard(row, p->dim);
        job->ops->store(row, p->dim, p->out.dtype,
                        lkvi_row_at(&p->out, (int64_t)r * p->out.stride));
    }
}

lkv_status lkvi_cpu_rotate(void *state, const struct lkvi_rotate_params *p, void *stream)
{
    struct lkv_context *ctx = state;
    struct job job = {.p = p, .ops = lkvi_row_ops_get(ctx->isa)};
    (void)stream;
    lkvi_rows_run(ctx, p->num_rows, rotate_task, &job);
    return LKV_OK;
}
