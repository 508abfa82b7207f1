/* In: a model's positional constants. Out: cos and sin tables, and rows turned by them. The one
 * idea: angles are float64, position times frequency, so that position 10^6 is as right as
 * position 1; only the finished cosine is rounded to fp32. Frequencies of pair i of R / 2:
 *
 *   plain     f_i = theta^(-2i / R)                  longrope  f_i / factor_i
 *   yarn      f_i * ((1 - r_i) + r_i / factor),  r_i rising from 0 to 1 between the pairs that turn
 *             beta_fast and beta_slow times over the original positions (arXiv 2309.00071, with the
 *             rounding of the two bounds that DeepSeek-V2's and V3's published code has) */
#include <math.h>
#include "api/check.h"
#include "api/objects.h"
#include "api/staging.h"
#include "core/status.h"

enum { MAX_PAIRS = 128, POSITIONS_A_TASK = 256 };
#define MAX_POSITIONS ((uint64_t)1 << 24)
static const double two_pi = 6.283185307179586476925286766559;

lkv_status lkvi_rope_live(const struct lkv_rope *rope)
{
    return lkvi_object_check((const struct lkvi_object *)rope, LKVI_KIND_ROPE);
}

static void rope_destroy(struct lkv_rope *rope)
{
    if (rope->memory)
        rope->ctx->backend->release(rope->ctx->backend_state, rope->memory, 0);
    lkvi_context_drop(rope->ctx);
    lkvi_object_recycle(&rope->object);
}

void lkv_rope_release(lkv_rope *rope)
{
    if (lkvi_object_withdraw((struct lkvi_object *)rope, LKVI_KIND_ROPE) &&
        lkvi_object_drop(&rope->object))
        rope_destroy(rope);
}

/* The pair that turns `turns` times over the original positions, as a real number. */
static double pair_of_turns(const lkv_model_desc *m, double turns)
{
    return m->rope_dim * log(m->yarn_original_positions / (turns * two_pi)) /
           (2 * log(m->rope_theta));
}

static double mscale(double factor, double weight)
{
    return factor > 1 ? 0.1 * weight * log(factor) + 1 : 1;
}

static void frequencies(const lkv_model_desc *m, double f[MAX_PAIRS])
{
    int yarn = m->yarn_factor > 0;
    double low = 0, high = 0;
    if (yarn) {
        low = fmax(floor(pair_of_turns(m, m->yarn_beta_fast)), 0);
        high = fmin(ceil(pair_of_turns(m, m->yarn_beta_slow)), m->rope_dim - 1);
        if (low == high)
            high += 0.001; /* a step, not a division by zero */
    }
    for (uint32_t i = 0; i < m->rope_dim / 2; i++) {
        f[i] = pow(m->rope_theta, -2.0 * i / m->rope_dim);
        if (m->rope_factors)
            f[i] /= m->rope_factors[i];
        if (yarn) {
            double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
            f[i] *= (1 - ramp) + ramp / m->yarn_factor;
        }
    }
}

struct table_job {
    float *cos, *sin; /* [num_positions, num_pairs] */
    uint64_t num_positions;
    uint32_t num_pairs;
    double amplitude;
    double frequency[MAX_PAIRS];
};

static void table_task(void *arg, uint64_t index, uint32_t worker)
{
    struct table_job *job = arg;
    uint64_t begin = index * POSITIONS_A_TASK, end = begin + POSITIONS_A_TASK;
    (void)worker;
    for (uint64_t p = begin; p < end && p < job->num_positions; p++)
        for (uint32_t i = 0; i < job->num_pairs; i++) {
            double angle = (double)p * job->frequency[i];
            job->cos[p * job->num_pairs + i] = (float)(cos(angle) * job->amplitude);
            job->sin[p * job->num_pairs + i] = (float)(sin(angle) * job->amplitude);
        }
}

static lkv_status table_build(struct lkv_rope *rope, const lkv_model_desc *m)
{
    struct lkvi_staging staging;
    uint64_t entries = rope->num_positions * (rope->dim / 2);
    LKV_TRY(lkvi_staging_open(rope->ctx, 2 * entries * sizeof(float), &staging));
    struct table_job job = {.cos = staging.host,
                            .sin = (float *)staging.host + entries,
                            .num_positions = rope->num_positions,
                            .num_pairs = rope->dim / 2,
                            .amplitude = mscale(m->yarn_factor, m->yarn_mscale) /
                                         mscale(m->yarn_factor, m->yarn_mscale_all_dim)};
    frequencies(m, job.frequency);
    uint64_t tasks = (rope->num_positions + POSITIONS_A_TASK - 1) / POSITIONS_A_TASK;
    lkvi_threads_run(rope->ctx->threads, tasks, table_task, &job);
    LKV_TRY(lkvi_staging_close(rope->ctx, &staging));
    rope->memory = staging.device;
    return LKV_OK;
}

static lkv_status rope_check(const lkv_model_desc *m, uint64_t num_positions)
{
    LKV_TRY(lkvi_model_check(m));
    if (m->rope_style == LKV_ROPE_NONE || !m->rope_dim)
        return lkvi_fail(LKV_E_INVALID,
                         "rope_style is %u with rope_dim %u; a table needs a style "
                         "and a dimension",
                         m->rope_style, m->rope_dim);
    if (!isfinite(m->rope_theta) || m->rope_theta <= 1)
        return lkvi_fail(LKV_E_INVALID, "rope_theta is %g; need a finite value above 1",
                         m->rope_theta);
    if (num_positions < 1 || num_positions > MAX_POSITIONS)
        return lkvi_fail(LKV_E_INVALID, "num_positions is %llu; need 1 to %llu",
                         (unsigned long long)num_positions, (unsigned long long)MAX_POSITIONS);
    LKV_TRY(lkvi_array_check(m->rope_factors, m->rope_factors ? 1 : 0, 8, "rope_factors"));
    for (uint32_t i = 0; m->rope_factors && i < m->rope_dim / 2; i++)
        if (!isfinite(m->rope_factors[i]) || m->rope_factors[i] <= 0)
            return lkvi_fail(LKV_E_INVALID, "rope_factors[%u] is %g; need a finite value above 0",
                             i, m->rope_factors[i]);
    return LKV_OK;
}

lkv_status lkv_rope_create(lkv_context *ctx, const lkv_model_desc *given, uint64_t num_positions,
                           lkv_rope **out)
{
    lkv_model_desc model;
    LKV_TRY(lkvi_context_check(ctx));
    LKV_TRY(lkvi_admit(&model, sizeof model, given, "lkv_model_desc"));
    LKV_TRY(lkvi_array_check(out, 1, sizeof(void *), "out"));
    LKV_TRY(rope_check(&model, num_positions));
    struct lkv_rope *rope = lkvi_object_create(LKVI_KIND_ROPE, sizeof *rope);
    if (!rope)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for a table of %zu bytes", sizeof *rope);
    lkvi_context_retain(ctx);
    rope->ctx = ctx;
    rope->num_positions = num_positions;
    rope->dim = model.rope_dim;
    rope->style = model.rope_style;
    lkv_status status = table_build(rope, &model);
    if (status != LKV_OK) {
        rope_destroy(rope);
        return status;
    }
    lkvi_object_publish(&rope->object);
    *out = rope;
    return LKV_OK;
}

/* [T, R] is [T, 1, R]. */
static lkv_status rope_params(const lkv_rope *rope, const lkv_tensor *in, const lkv_tensor *out,
                              struct lkvi_rope_params *p)
{
    uint32_t ndim = lkvi_tensor_ndim(in) == 3 ? 3 : 2;
    struct lkvi_want want = {"in", LKVI_FLOATS, ndim, {-1, -1, rope->dim}};
    if (ndim == 2) {
        want.shape[1] = rope->dim;
        want.shape[2] = 0;
    }
    LKV_TRY(lkvi_tensor_check(rope->ctx, in, &want));
    want.name = "out";
    want.shape[0] = in->shape[0];
    want.shape[1] = in->shape[1];
    LKV_TRY(lkvi_tensor_check(rope->ctx, out, &want));
    *p = (struct lkvi_rope_params){.num_tokens = (uint64_t)in->shape[0],
                                   .num_heads = ndim == 3 ? (uint32_t)in->shape[1] : 1,
                                   .dim = rope->dim,
                                   .in = lkvi_rows_of(in),
                                   .out = lkvi_rows_of(out),
                                   .in_head_stride = ndim == 3 ? in->stride[1] : 0,
                                   .out_head_stride = ndim == 3 ? out->stride[1] : 0,
                                   .cos = rope->memory,
                                   .sin = rope->memory + rope->num_positions * (rope->dim / 2),
                                   .num_positions = rope->num_positions,
                                   .style = rope->style};
    return LKV_OK;
}

lkv_status lkv_rope_apply(const lkv_rope *rope, const lkv_tensor *in, const lkv_tensor *out,
                          const int32_t *positions, void *stream)
{
    struct lkvi_rope_params p;
    LKV_TRY(lkvi_rope_live(rope));
    LKV_TRY(lkvi_stream_check(rope->ctx, stream));
    LKV_TRY(rope_params(rope, in, out, &p));
    LKV_TRY(lkvi_array_check(positions, p.num_tokens, 4, "positions"));
    p.positions = positions;
    if (!p.num_tokens || !p.num_heads)
        return LKV_OK;
    return rope->ctx->backend->rope(rope->ctx->backend_state, &p, stream);
}
