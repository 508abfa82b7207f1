/* Plan, update and attend of the CUDA backend. In: a plan's maxima. Out: the first kernel row that
 * fits, and a workspace
 *
 *   | the row's own | q after W_UK, fp32 | output before W_UV, fp32 | projections' scratch |
 *
 * whose last three parts exist with the HEAD forms only. Rows see latent forms: attend projects
 * before and after them. */
#include <string.h>
#include "attention/cuda/kernel.h"
#include "attention/cuda/sm80/rows.h"
#include "attention/cuda/state.h"

struct layout {
    uint64_t q, out, project, bytes;
};

static const struct lkvi_cuda_kernel *row_at(uint32_t i)
{
    if (i < lkvi_sm90_num_kernels)
        return &lkvi_sm90_kernels[i];
    i -= lkvi_sm90_num_kernels;
    return i < lkvi_sm80_num_kernels ? &lkvi_sm80_kernels[i] : NULL;
}

static int row_fits(const struct lkvi_cuda_kernel *k, const struct lkvi_plan_params *p,
                    const struct lkvi_cuda_launch *launch)
{
    return launch->arch >= k->arch_min && launch->arch <= k->arch_max &&
           p->record.format == k->format && p->num_heads >= k->heads_min &&
           p->num_heads <= k->heads_max && k->supported(p, launch);
}

static uint64_t rounded(uint64_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static struct lkvi_project_params projection(const struct lkvi_plan_params *p, uint32_t to_value)
{
    return (struct lkvi_project_params){.weights = {.dtype = LKV_DTYPE_F32, /* the widest */
                                                    .num_heads = p->num_heads,
                                                    .nope_dim = p->nope_dim,
                                                    .v_dim = p->v_dim,
                                                    .latent_dim = p->record.latent_dim},
                                        .num_tokens = p->max_tokens,
                                        .to_value = to_value};
}

static void layout_of(const struct lkvi_plan_params *p, uint64_t row_bytes, struct layout *l)
{
    uint64_t latent = rounded(4ull * p->max_tokens * p->num_heads * p->record.latent_dim);
    size_t project[2] = {0, 0};
    struct lkvi_project_params q = projection(p, 0), out = projection(p, 1);
    if (p->q_form == LKV_Q_HEAD)
        (void)lkvi_cuda_project_scratch(NULL, &q, &project[0]);
    if (p->out_form == LKV_OUT_HEAD)
        (void)lkvi_cuda_project_scratch(NULL, &out, &project[1]);
    l->q = rounded(row_bytes);
    l->out = l->q + (p->q_form == LKV_Q_HEAD ? latent : 0);
    l->project = l->out + (p->out_form == LKV_OUT_HEAD ? latent : 0);
    l->bytes = l->project + (project[0] > project[1] ? project[0] : project[1]);
}

lkv_status lkvi_cuda_plan(void *opaque, struct lkvi_plan_params *p)
{
    struct lkvi_cuda_state *state = opaque;
    const struct lkvi_cuda_kernel *k;
    struct layout l;
    uint32_t first = p->flags & LKVI_PLAN_GENERIC_ROWS ? lkvi_sm90_num_kernels : 0;
    const uint32_t only = LKVI_PLAN_ROW_OF(p->flags);
    if (only && !row_at(only - 1))
        return lkvi_cuda_host->fail(LKV_E_INVALID, "kernel row %u is behind the table's end",
                                    only - 1);
    for (uint32_t i = first; (k = row_at(i)) != NULL; i++) {
        if ((only && i != only - 1) || !row_fits(k, p, &state->launch))
            continue;
        p->kernel_row = i;
        layout_of(p, k->scratch(p, &state->launch), &l);
        p->workspace_bytes = l.bytes;
        lkvi_cuda_host->log(state->ctx, LKV_LOG_DEBUG,
                            "cuda plan: %s, at most %u splits, %llu "
                            "bytes of workspace",
                            k->name, p->num_splits_max, (unsigned long long)l.bytes);
        return LKV_OK;
    }
    return lkvi_cuda_host->fail(LKV_E_UNSUPPORTED,
                                "no CUDA kernel for format %u, latent %u, rope %u on sm_%u; need "
                                "latent <= 512 and rope <= 64",
                                p->record.format, p->record.latent_dim, p->record.rope_dim,
                                state->launch.arch);
}

lkv_status lkvi_cuda_plan_update(void *opaque, const struct lkvi_plan_params *plan,
                                 const struct lkvi_batch_view *batch, void *workspace, void *stream)
{
    struct lkvi_cuda_state *state = opaque;
    return row_at(plan->kernel_row)->update(plan, batch, workspace, &state->launch, stream);
}

static struct lkvi_heads latent_rows(const struct lkvi_plan_params *p, void *data)
{
    return (struct lkvi_heads){.data = data,
                               .token_stride = (int64_t)p->num_heads * p->record.latent_dim,
                               .head_stride = p->record.latent_dim,
                               .dtype = LKV_DTYPE_F32};
}

static lkv_status project(struct lkvi_cuda_state *state, const struct lkvi_attend_params *p,
                          const struct lkvi_project_params *job, const struct layout *l,
                          void *stream)
{
    if (p->plan.flags & LKV_PLAN_BATCH_INVARIANT) {
        LKVI_CUDA(lkvi_cuda_project_rows(job, stream));
        return LKV_OK;
    }
    return lkvi_cuda_project(state, job, (uint8_t *)p->workspace + l->project,
                             l->bytes - l->project, stream);
}

lkv_status lkvi_cuda_attend(void *opaque, const struct lkvi_attend_params *given, void *stream)
{
    struct lkvi_cuda_state *state = opaque;
    struct lkvi_attend_params p = *given;
    const struct lkvi_cuda_kernel *k = row_at(p.plan.kernel_row);
    struct lkvi_plan_params scratch = p.plan;
    struct layout l;
    uint8_t *workspace = p.workspace;
    layout_of(&p.plan, k->scratch(&scratch, &state->launch), &l);
    if (p.plan.q_form == LKV_Q_HEAD) {
        p.q = latent_rows(&p.plan, workspace + l.q);
        struct lkvi_project_params job = {
            .weights = p.weights, .num_tokens = p.batch.num_tokens, .in = given->q, .out = p.q};
        LKVI_TRY(project(state, &p, &job, &l, stream));
    }
    if (p.plan.out_form == LKV_OUT_HEAD)
        p.out = latent_rows(&p.plan, workspace + l.out);
    LKVI_TRY(k->attend(&p, &state->launch, stream));
    if (p.plan.out_form != LKV_OUT_HEAD)
        return LKV_OK;
    struct lkvi_project_params job = {.weights = p.weights,
                                      .num_tokens = p.batch.num_tokens,
                                      .in = p.out,
                                      .out = given->out,
                                      .to_value = 1};
    return project(state, &p, &job, &l, stream);
}
