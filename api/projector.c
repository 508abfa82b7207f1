/* In: the matrices of a projector. Out: weights in the device's compute form.
 *
 *   memory   | key_up [G, N, L] | value_up [G, V, L_v] | key_down, value_down, if given, likewise |
 *
 * A rotated pool stores R c: the rows of the up matrices are rotated here, as those of W_UK and
 * W_UV are (weights.c); append rotates what the down matrices give by itself. */
#include "api/projector.h"
#include "api/check.h"
#include "api/staging.h"
#include "core/status.h"
#include "quant/codec.h"

enum { MAX_LATENT = 1024 };

struct matrix {
    const lkv_tensor *from;
    uint32_t dim, latent, rotate;
};

static lkv_status matrix_check(const lkv_context *ctx, const lkv_tensor *t, const char *name,
                               const int64_t shape[3])
{
    struct lkvi_want want = {name, LKVI_FLOATS, 3, {shape[0], shape[1], shape[2]}};
    return lkvi_tensor_check(ctx, t, &want);
}

static lkv_status shapes_check(const lkv_context *ctx, const lkv_model_desc *m,
                               const lkv_weights_desc *d)
{
    int64_t key[3] = {-1, m->nope_dim, m->latent_dim}, value[3] = {-1, m->v_dim, -1};
    LKV_TRY(matrix_check(ctx, d->key_up, "key_up", key));
    key[0] = value[0] = d->key_up->shape[0];
    if (!key[0] || m->num_heads % key[0])
        return lkvi_fail(LKV_E_INVALID, "key_up has %lld KV heads; need a divisor of num_heads, %u",
                         (long long)key[0], m->num_heads);
    LKV_TRY(matrix_check(ctx, d->value_up, "value_up", value));
    value[2] = d->value_up->shape[2];
    if (!value[2] || value[2] % 16 || value[2] > MAX_LATENT)
        return lkvi_fail(LKV_E_INVALID,
                         "value_up has shape[2] %lld; need a multiple of 16, at "
                         "most %d",
                         (long long)value[2], MAX_LATENT);
    if (!d->key_down && !d->value_down)
        return LKV_OK;
    LKV_TRY(matrix_check(ctx, d->key_down, "key_down", key));
    return matrix_check(ctx, d->value_down, "value_down", value);
}

lkv_status lkvi_projector_check(const lkv_context *ctx, const lkv_model_desc *m,
                                const lkv_weights_desc *d)
{
    if (!ctx->backend->append_heads)
        return lkvi_fail(LKV_E_UNSUPPORTED,
                         "key_up is given; this release has projectors on CPU contexts only");
    if (d->kv_b_proj || d->scales)
        return lkvi_fail(LKV_E_INVALID, "key_up is given with kv_b_proj or scales; need one kind");
    if (m->rope_dim)
        return lkvi_fail(LKV_E_INVALID, "rope_dim is %u; a projector needs 0", m->rope_dim);
    if (m->latent_dim > MAX_LATENT)
        return lkvi_fail(LKV_E_INVALID, "latent_dim is %u; a projector needs at most %d",
                         m->latent_dim, MAX_LATENT);
    LKV_TRY(shapes_check(ctx, m, d));
    int64_t value = d->value_up->shape[2];
    if ((d->flags & LKV_WEIGHTS_ROTATE) &&
        ((m->latent_dim & (m->latent_dim - 1)) || (value & (value - 1))))
        return lkvi_fail(LKV_E_INVALID,
                         "latents have %u and %lld dimensions; LKV_WEIGHTS_ROTATE needs powers of "
                         "two",
                         m->latent_dim, (long long)value);
    return LKV_OK;
}

static uint64_t matrix_bytes(const struct lkvi_weights_view *v, const struct matrix *m)
{
    return (uint64_t)v->num_matrices * m->dim * m->latent * lkvi_dtype_bytes(v->dtype);
}

static void convert_row(const struct lkv_weights *w, const struct matrix *m, const uint8_t *from,
                        uint8_t *to)
{
    const struct lkvi_row_ops *ops = lkvi_row_ops_get(w->ctx->isa);
    float row[MAX_LATENT] __attribute__((aligned(64)));
    double wide[MAX_LATENT];
    ops->load(from, m->from->dtype, m->latent, row);
    if (m->rotate) {
        for (uint32_t i = 0; i < m->latent; i++)
            wide[i] = row[i];
        lkvi_rotate_wide(wide, m->latent);
        for (uint32_t i = 0; i < m->latent; i++)
            row[i] = (float)wide[i];
    }
    ops->store(row, m->latent, w->view.dtype, to);
}

/* One matrix tensor into host memory at `to`. */
static lkv_status convert(const struct lkv_weights *w, const struct matrix *m, uint8_t *to)
{
    const lkv_tensor *t = m->from;
    const uint64_t bytes = lkvi_dtype_bytes(t->dtype), heads = w->view.num_matrices;
    const uint64_t last =
        (heads - 1) * (uint64_t)t->stride[0] + (m->dim - 1) * (uint64_t)t->stride[1] + m->latent;
    struct lkvi_staging from;
    LKV_TRY(lkvi_staging_fetch(w->ctx, t->data, last * bytes, &from));
    for (uint64_t r = 0; r < heads * m->dim; r++) {
        uint64_t at = r / m->dim * (uint64_t)t->stride[0] + r % m->dim * (uint64_t)t->stride[1];
        convert_row(w, m, (uint8_t *)from.host + at * bytes,
                    to + r * m->latent * lkvi_dtype_bytes(w->view.dtype));
    }
    lkvi_staging_forget(w->ctx, &from);
    return LKV_OK;
}

lkv_status lkvi_projector_build(struct lkv_weights *w, const lkv_weights_desc *d)
{
    struct lkvi_weights_view *v = &w->view;
    v->num_matrices = (uint32_t)d->key_up->shape[0];
    v->value_latent = (uint32_t)d->value_up->shape[2];
    const struct matrix all[4] = {{d->key_up, v->nope_dim, v->latent_dim, w->rotated},
                                  {d->value_up, v->v_dim, v->value_latent, w->rotated},
                                  {d->key_down, v->nope_dim, v->latent_dim, 0},
                                  {d->value_down, v->v_dim, v->value_latent, 0}};
    const void **const places[4] = {&v->w_uk, &v->w_uv, &v->key_down, &v->value_down};
    struct lkvi_staging to;
    uint64_t total = 0, at = 0;
    lkv_status status = LKV_OK;
    for (uint32_t i = 0; i < 4 && all[i].from; i++)
        total += matrix_bytes(v, &all[i]);
    LKV_TRY(lkvi_staging_open(w->ctx, total, &to));
    for (uint32_t i = 0; i < 4 && all[i].from && status == LKV_OK; i++) {
        status = convert(w, &all[i], (uint8_t *)to.host + at);
        at += matrix_bytes(v, &all[i]);
    }
    lkv_status closed = lkvi_staging_close(w->ctx, &to);
    LKV_TRY(closed);
    w->memory = to.device; /* released with the weights, whatever the status */
    at = 0;
    for (uint32_t i = 0; i < 4 && all[i].from; i++) {
        *places[i] = (uint8_t *)w->memory + at;
        at += matrix_bytes(v, &all[i]);
    }
    return status;
}
