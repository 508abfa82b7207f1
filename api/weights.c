/* In: kv_b_proj of one layer as the checkpoint has it. Out: W_UK and W_UV in the device's compute
 * form.
 *
 *   kv_b_proj  | head 0: nope rows, v rows | head 1: ... |     each row [L]
 *   memory     | W_UK [H, nope, L]         | W_UV [H, v, L] |
 *
 * The rotation is folded in here: a pool with LKV_ENCODE_ROTATE stores R c, and R is its own
 * inverse and symmetric, so w . c = (R w) . (R c): each row is rotated, in float64. */
#include <math.h>
#include <string.h>
#include "api/check.h"
#include "api/objects.h"
#include "api/projector.h"
#include "api/staging.h"
#include "core/status.h"
#include "quant/codec.h"
#include "quant/float_bits.h"

enum { SCALE_TILE = 128 };

lkv_status lkvi_weights_live(const struct lkv_weights *weights)
{
    return lkvi_object_check((const struct lkvi_object *)weights, LKVI_KIND_WEIGHTS);
}

static void weights_destroy(struct lkv_weights *weights)
{
    if (weights->memory)
        weights->ctx->backend->release(weights->ctx->backend_state, weights->memory, 0);
    lkvi_context_drop(weights->ctx);
    lkvi_object_recycle(&weights->object);
}

void lkv_weights_release(lkv_weights *weights)
{
    if (lkvi_object_withdraw((struct lkvi_object *)weights, LKVI_KIND_WEIGHTS) &&
        lkvi_object_drop(&weights->object))
        weights_destroy(weights);
}

struct convert_job {
    const struct lkvi_weights_view *view;
    const struct lkvi_row_ops *ops;
    const uint8_t *from;          /* host */
    const float *scales;          /* host, F8E4M3 */
    int64_t stride, scale_stride; /* elements */
    uint32_t from_dtype, rotate;
    uint8_t *to; /* host */
};

void lkvi_rotate_wide(double *x, uint32_t n)
{
    for (uint32_t step = 1; step < n; step *= 2)
        for (uint32_t i = 0; i < n; i += 2 * step)
            for (uint32_t j = i; j < i + step; j++) {
                double a = x[j], b = x[j + step];
                x[j] = a + b;
                x[j + step] = a - b;
            }
    double norm = 1 / sqrt((double)n);
    for (uint32_t i = 0; i < n; i++)
        x[i] *= norm;
}

static void load_row(const struct convert_job *job, uint64_t r, float *row)
{
    uint32_t n = job->view->latent_dim;
    const uint8_t *from = job->from + (int64_t)r * job->stride * lkvi_dtype_bytes(job->from_dtype);
    if (job->from_dtype != LKV_DTYPE_F8E4M3) {
        job->ops->load(from, job->from_dtype, n, row);
        return;
    }
    const float *scales = job->scales + (int64_t)(r / SCALE_TILE) * job->scale_stride;
    for (uint32_t i = 0; i < n; i++)
        row[i] = lkvi_f32_from_e4m3(from[i]) * scales[i / SCALE_TILE];
}

/* Row r of kv_b_proj goes to row r' of [W_UK, W_UV]. */
static uint64_t target_row(const struct lkvi_weights_view *v, uint64_t r)
{
    uint64_t head_rows = v->nope_dim + v->v_dim, head = r / head_rows, i = r % head_rows;
    if (i < v->nope_dim)
        return head * v->nope_dim + i;
    return (uint64_t)v->num_heads * v->nope_dim + head * v->v_dim + (i - v->nope_dim);
}

static void convert_task(void *arg, uint64_t head, uint32_t worker)
{
    const struct convert_job *job = arg;
    const struct lkvi_weights_view *v = job->view;
    uint64_t head_rows = v->nope_dim + v->v_dim;
    uint32_t n = v->latent_dim;
    float row[LKVI_MAX_LATENT] __attribute__((aligned(64)));
    double wide[LKVI_MAX_LATENT];
    (void)worker;
    for (uint64_t r = head * head_rows; r < (head + 1) * head_rows; r++) {
        load_row(job, r, row);
        if (job->rotate) {
            for (uint32_t i = 0; i < n; i++)
                wide[i] = row[i];
            lkvi_rotate_wide(wide, n);
            for (uint32_t i = 0; i < n; i++)
                row[i] = (float)wide[i];
        }
        job->ops->store(row, n, v->dtype,
                        job->to + target_row(v, r) * n * lkvi_dtype_bytes(v->dtype));
    }
}

static uint64_t span_bytes(const lkv_tensor *t)
{
    return ((uint64_t)(t->shape[0] - 1) * (uint64_t)t->stride[0] + (uint64_t)t->shape[1]) *
           lkvi_dtype_bytes(t->dtype);
}

/* Converts out of host views into fresh device memory. */
static lkv_status weights_convert(struct lkv_weights *w, struct convert_job *job)
{
    struct lkvi_weights_view *v = &w->view;
    struct lkvi_staging to;
    uint64_t rows = (uint64_t)v->num_heads * (v->nope_dim + v->v_dim);
    LKV_TRY(lkvi_staging_open(w->ctx, rows * v->latent_dim * lkvi_dtype_bytes(v->dtype), &to));
    job->to = to.host;
    lkvi_threads_run(w->ctx->threads, v->num_heads, convert_task, job);
    LKV_TRY(lkvi_staging_close(w->ctx, &to));
    w->memory = to.device;
    v->w_uk = w->memory;
    v->w_uv = (uint8_t *)w->memory +
              (uint64_t)v->num_heads * v->nope_dim * v->latent_dim * lkvi_dtype_bytes(v->dtype);
    return LKV_OK;
}

static lkv_status weights_build(struct lkv_weights *w, const lkv_weights_desc *d)
{
    struct lkvi_staging from, scales = {0};
    LKV_TRY(lkvi_staging_fetch(w->ctx, d->kv_b_proj->data, span_bytes(d->kv_b_proj), &from));
    lkv_status status = LKV_OK;
    if (d->scales)
        status = lkvi_staging_fetch(w->ctx, d->scales->data, span_bytes(d->scales), &scales);
    if (status == LKV_OK) {
        struct convert_job job = {.view = &w->view,
                                  .ops = lkvi_row_ops_get(w->ctx->isa),
                                  .from = from.host,
                                  .scales = scales.host,
                                  .stride = d->kv_b_proj->stride[0],
                                  .scale_stride = d->scales ? d->scales->stride[0] : 0,
                                  .from_dtype = d->kv_b_proj->dtype,
                                  .rotate = w->rotated};
        status = weights_convert(w, &job);
        lkvi_staging_forget(w->ctx, &scales);
    }
    lkvi_staging_forget(w->ctx, &from);
    return status;
}

static lkv_status tensors_check(const lkv_context *ctx, const lkv_model_desc *m,
                                const lkv_weights_desc *d)
{
    int64_t rows = (int64_t)m->num_heads * (m->nope_dim + m->v_dim), latent = m->latent_dim;
    struct lkvi_want want = {"kv_b_proj", LKVI_WEIGHT_TYPES, 2, {rows, latent}};
    struct lkvi_want tiles = {
        "scales",
        LKVI_F32_LOOSE,
        2,
        {(rows + SCALE_TILE - 1) / SCALE_TILE, (latent + SCALE_TILE - 1) / SCALE_TILE}};
    LKV_TRY(lkvi_tensor_check(ctx, d->kv_b_proj, &want));
    if (d->kv_b_proj->dtype == LKV_DTYPE_F8E4M3)
        return lkvi_tensor_check(ctx, d->scales, &tiles);
    if (d->scales)
        return lkvi_fail(LKV_E_INVALID, "scales is given with kv_b_proj of %s; need NULL",
                         lkvi_dtype_name(d->kv_b_proj->dtype));
    return LKV_OK;
}

static lkv_status compute_dtype(const lkv_context *ctx, uint32_t asked, uint32_t *out)
{
    int cpu = ctx->device == LKV_DEVICE_CPU;
    *out = asked ? asked : cpu ? LKV_DTYPE_F32 : LKV_DTYPE_BF16;
    if (*out > 31 || !(LKVI_FLOATS >> *out & 1))
        return lkvi_fail(LKV_E_INVALID, "compute_dtype is %u; need F32, F16 or BF16", asked);
    if (cpu && *out != LKV_DTYPE_F32)
        return lkvi_fail(LKV_E_UNSUPPORTED, "compute_dtype is %s; the CPU computes in F32",
                         lkvi_dtype_name(*out));
    return LKV_OK;
}

static lkv_status weights_check(const lkv_context *ctx, const lkv_model_desc *m,
                                const lkv_weights_desc *d)
{
    LKV_TRY(lkvi_model_check(m));
    LKV_TRY(lkvi_flags_check(d->flags, LKV_WEIGHTS_ROTATE, "weights flags"));
    if (d->key_up)
        return lkvi_projector_check(ctx, m, d);
    if (d->value_up || d->key_down || d->value_down)
        return lkvi_fail(LKV_E_INVALID, "key_up is NULL with another matrix of a projector; "
                                        "need key_up and value_up");
    if ((d->flags & LKV_WEIGHTS_ROTATE) && (m->latent_dim & (m->latent_dim - 1)))
        return lkvi_fail(LKV_E_INVALID, "latent_dim is %u; LKV_WEIGHTS_ROTATE needs a power of two",
                         m->latent_dim);
    return tensors_check(ctx, m, d);
}

lkv_status lkv_weights_create(lkv_context *ctx, const lkv_model_desc *given_model,
                              const lkv_weights_desc *given, lkv_weights **out)
{
    lkv_model_desc model;
    lkv_weights_desc desc;
    uint32_t dtype;
    LKV_TRY(lkvi_context_check(ctx));
    LKV_TRY(lkvi_admit(&model, sizeof model, given_model, "lkv_model_desc"));
    LKV_TRY(lkvi_admit(&desc, sizeof desc, given, "lkv_weights_desc"));
    LKV_TRY(lkvi_array_check(out, 1, sizeof(void *), "out"));
    LKV_TRY(weights_check(ctx, &model, &desc));
    LKV_TRY(compute_dtype(ctx, desc.compute_dtype, &dtype));
    struct lkv_weights *w = lkvi_object_create(LKVI_KIND_WEIGHTS, sizeof *w);
    if (!w)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for weights of %zu bytes", sizeof *w);
    lkvi_context_retain(ctx);
    w->ctx = ctx;
    w->rotated = desc.flags & LKV_WEIGHTS_ROTATE;
    w->view = (struct lkvi_weights_view){.dtype = dtype,
                                         .num_heads = model.num_heads,
                                         .nope_dim = model.nope_dim,
                                         .v_dim = model.v_dim,
                                         .latent_dim = model.latent_dim,
                                         .num_matrices = model.num_heads,
                                         .value_latent = model.latent_dim};
    lkv_status status = desc.key_up ? lkvi_projector_build(w, &desc) : weights_build(w, &desc);
    if (status != LKV_OK) {
        weights_destroy(w);
        return status;
    }
    lkvi_object_publish(&w->object);
    *out = w;
    return LKV_OK;
}
