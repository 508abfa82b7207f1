/* Projections of the CPU: rows of fp32, F16 or BF16 in and out, fp32 products. A task is one head
 * and up to 64 tokens, so a head's weights are read once for 64 rows. */
#include "attention/cpu/project.h"

#include "attention/cpu/backend.h"
#include "attention/cpu/plan.h"
#include "attention/cpu/tile.h"

/* W_UK[head] or W_UV[head]; query heads of one KV head share a projector's. The CPU's compute form
 * is fp32, always. */
static const float *head_weights(const struct lkvi_weights_view *w, uint32_t head,
                                 uint32_t to_value)
{
    uint64_t matrix = head / (w->num_heads / w->num_matrices);
    if (to_value)
        return (const float *)w->w_uv + matrix * w->v_dim * w->value_latent;
    return (const float *)w->w_uk + matrix * w->nope_dim * w->latent_dim;
}

void lkvi_project_latent(const struct lkvi_project *job, uint32_t head, uint32_t n,
                         const float *nope, float *latent, uint64_t latent_stride)
{
    const struct lkvi_weights_view *w = job->weights;
    struct lkvi_gemm g = {.rows = n,
                          .cols = w->latent_dim,
                          .depth = w->nope_dim,
                          .a = nope,
                          .a_row = w->nope_dim,
                          .a_depth = 1,
                          .b = head_weights(w, head, 0),
                          .b_depth = w->latent_dim,
                          .b_panel = LKVI_PANEL,
                          .c = latent,
                          .c_row = latent_stride};
    job->micro->gemm(&g);
}

/* The rows are the lanes here: W_UV is read as it lies, row by row. */
void lkvi_project_value(const struct lkvi_project *job, uint32_t head, uint32_t n,
                        const float *latent, uint64_t latent_stride, float *value)
{
    const struct lkvi_weights_view *w = job->weights;
    uint64_t cols = lkvi_round16(n), dims = w->value_latent;
    float *packed = job->scratch, *turned = packed + cols * dims;
    for (uint64_t i = 0; i < cols; i++)
        for (uint64_t k = 0; k < dims; k++)
            packed[lkvi_packed_at(dims, k, i)] = i < n ? latent[i * latent_stride + k] : 0.0f;
    struct lkvi_gemm g = {.rows = w->v_dim,
                          .cols = (uint32_t)cols,
                          .depth = w->value_latent,
                          .a = head_weights(w, head, 1),
                          .a_row = w->value_latent,
                          .a_depth = 1,
                          .b = packed,
                          .b_depth = LKVI_PANEL,
                          .b_panel = dims * LKVI_PANEL,
                          .c = turned,
                          .c_row = cols};
    job->micro->gemm(&g);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t v = 0; v < w->v_dim; v++)
            value[(uint64_t)i * w->v_dim + v] = turned[v * cols + i];
}

/* ---- the operation */

struct job {
    const struct lkvi_project_params *p;
    const struct lkv_context *ctx;
    float *scratch;
    uint64_t worker_floats;
    uint64_t blocks;
};

static uint64_t worker_floats(const struct lkvi_weights_view *w)
{
    uint32_t latent = w->latent_dim > w->value_latent ? w->latent_dim : w->value_latent;
    uint64_t wide = latent + (w->nope_dim > w->v_dim ? w->nope_dim : w->v_dim);
    return lkvi_round16(lkvi_project_floats(latent, w->nope_dim, w->v_dim) + LKVI_TILE_KEYS * wide);
}

static void project_task(void *arg, uint64_t index, uint32_t worker)
{
    const struct job *job = arg;
    const struct lkvi_project_params *p = job->p;
    const struct lkvi_weights_view *w = &p->weights;
    uint32_t head = (uint32_t)(index / job->blocks);
    uint64_t first = index % job->blocks * LKVI_TILE_KEYS, left = p->num_tokens - first;
    uint32_t n = left < LKVI_TILE_KEYS ? (uint32_t)left : LKVI_TILE_KEYS;
    uint32_t in_dim = p->to_value ? w->value_latent : w->nope_dim;
    uint32_t out_dim = p->to_value ? w->v_dim : w->latent_dim;
    float *in = job->scratch + worker * job->worker_floats, *out = in + (uint64_t)n * in_dim;
    const struct lkvi_row_ops *ops = lkvi_row_ops_get(job->ctx->isa);
    struct lkvi_project project = {lkvi_micro_get(job->ctx->isa), w, out + (uint64_t)n * out_dim};
    for (uint32_t i = 0; i < n; i++)
        ops->load(lkvi_head_row(&p->in, first + i, head), p->in.dtype, in_dim,
                  in + (uint64_t)i * in_dim);
    if (p->to_value)
        lkvi_project_value(&project, head, n, in, in_dim, out);
    else
        lkvi_project_latent(&project, head, n, in, out, out_dim);
    for (uint32_t i = 0; i < n; i++)
        ops->store(out + (uint64_t)i * out_dim, out_dim, p->out.dtype,
                   (void *)lkvi_head_row(&p->out, first + i, head));
}

lkv_status lkvi_cpu_project_scratch(void *state, const struct lkvi_project_params *p, size_t *bytes)
{
    const struct lkv_context *ctx = state;
    *bytes = lkvi_threads_count(ctx->threads) * worker_floats(&p->weights) * sizeof(float);
    return LKV_OK;
}

lkv_status lkvi_cpu_project(void *state, const struct lkvi_project_params *p, void *scratch,
                            size_t bytes, void *stream)
{
    const struct lkv_context *ctx = state;
    struct job job = {.p = p,
                      .ctx = ctx,
                      .scratch = scratch,
                      .worker_floats = worker_floats(&p->weights),
                      .blocks = (p->num_tokens + LKVI_TILE_KEYS - 1) / LKVI_TILE_KEYS};
    (void)bytes;
    (void)stream;
    lkvi_threads_run(ctx->threads, job.blocks * p->weights.num_heads, project_task, &job);
    return LKV_OK;
}
