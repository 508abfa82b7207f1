/* P attentions over disjoint keys -> the attention over all of them. In: normalised outputs with
 * lse, and entropies if wanted. The weight of part p is exp(lse_p - lse); entropy comes back from
 * the parts' mean scores, lse_p - H_p. A part that saw no key (lse -infinity) has weight 0 and its
 * output is not read. */
#include <math.h>
#include <string.h>
#include "attention/cpu/backend.h"
#include "attention/cpu/tile.h"

enum { PIECE = 512 }; /* output dims summed at a time on the stack */

struct job {
    const struct lkvi_merge_params *p;
    const struct lkvi_row_ops *ops;
};

static float part_lse(const struct lkvi_merge_params *p, uint64_t part, uint64_t token,
                      uint32_t head)
{
    return p
        ->lses[(int64_t)part * p->lse_part_stride + (int64_t)token * p->lse_token_stride + head];
}

static double joint_lse(const struct lkvi_merge_params *p, uint64_t token, uint32_t head)
{
    double max = -INFINITY, sum = 0;
    for (uint64_t i = 0; i < p->num_parts; i++)
        max = fmax(max, part_lse(p, i, token, head));
    if (max == -INFINITY)
        return max;
    for (uint64_t i = 0; i < p->num_parts; i++)
        sum += exp(part_lse(p, i, token, head) - max);
    return max + log(sum);
}

static double joint_entropy(const struct lkvi_merge_params *p, uint64_t token, uint32_t head,
                            double lse)
{
    double entropy = 0;
    for (uint64_t i = 0; i < p->num_parts; i++) {
        double part = part_lse(p, i, token, head), weight = exp(part - lse);
        int64_t at = (int64_t)i * p->entropy_part_stride + (int64_t)token * p->entropy_token_stride;
        if (weight > 0)
            entropy += weight * (p->entropies[at + head] + lse - part);
    }
    return entropy;
}

static void merge_piece(const struct job *job, uint64_t token, uint32_t head, uint32_t first,
                        uint32_t n, double lse)
{
    const struct lkvi_merge_params *p = job->p;
    float sum[PIECE] = {0}, row[PIECE];
    uint64_t bytes = p->outs.dtype == LKV_DTYPE_F32 ? 4 : 2;
    uint64_t to_bytes = p->out.dtype == LKV_DTYPE_F32 ? 4 : 2;
    for (uint64_t i = 0; i < p->num_parts && lse != -INFINITY; i++) {
        float weight = (float)exp(part_lse(p, i, token, head) - lse);
        if (!(weight > 0))
            continue;
        int64_t at = (int64_t)i * p->outs_part_stride + first;
        const uint8_t *from = lkvi_head_row(&p->outs, token, head);
        job->ops->load(from + at * (int64_t)bytes, p->outs.dtype, n, row);
        for (uint32_t d = 0; d < n; d++)
            sum[d] += weight * row[d];
    }
    uint8_t *to = (uint8_t *)lkvi_head_row(&p->out, token, head);
    job->ops->store(sum, n, p->out.dtype, to + first * to_bytes);
}

static void merge_task(void *arg, uint64_t index, uint32_t worker)
{
    const struct job *job = arg;
    const struct lkvi_merge_params *p = job->p;
    uint64_t token = index;
    (void)worker;
    for (uint32_t head = 0; head < p->num_heads; head++) {
        double lse = joint_lse(p, token, head), entropy = 0;
        if (p->entropy && lse != -INFINITY)
            entropy = joint_entropy(p, token, head, lse);
        for (uint32_t first = 0; first < p->dim; first += PIECE)
            merge_piece(job, token, head, first, p->dim - first < PIECE ? p->dim - first : PIECE,
                        lse);
        if (p->lse)
            p->lse[(int64_t)token * p->out_lse_stride + head] = (float)lse;
        if (p->entropy)
            p->entropy[(int64_t)token * p->out_entropy_stride + head] = (float)entropy;
    }
}

lkv_status lkvi_cpu_merge(void *state, const struct lkvi_merge_params *p, void *stream)
{
    const struct lkv_context *ctx = state;
    struct job job = {.p = p, .ops = lkvi_row_ops_get(ctx->isa)};
    (void)stream;
    lkvi_threads_run(ctx->threads, p->num_tokens, merge_task, &job);
    return LKV_OK;
}
