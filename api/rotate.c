/* In: rows of a power-of-two length. Out: the rows after the orthonormal Hadamard rotation. */
#include "api/check.h"
#include "core/status.h"
#include "quant/codec.h"

static lkv_status rotate_check(const lkv_context *ctx, const lkv_tensor *in, const lkv_tensor *out)
{
    struct lkvi_want want = {"in", LKVI_FLOATS, lkvi_tensor_ndim(in) == 3 ? 3 : 2, {-1, -1, 0, 0}};
    if (want.ndim == 3)
        want.shape[2] = -1;
    LKV_TRY(lkvi_tensor_check(ctx, in, &want));
    want.name = "out";
    for (uint32_t i = 0; i < 3; i++)
        want.shape[i] = in->shape[i];
    LKV_TRY(lkvi_tensor_check(ctx, out, &want));
    int64_t dim = in->shape[in->ndim - 1];
    if (dim < 16 || dim > LKVI_MAX_LATENT || (dim & (dim - 1)))
        return lkvi_fail(LKV_E_INVALID,
                         "the last dimension is %lld; need a power of two from 16 "
                         "to %d",
                         (long long)dim, LKVI_MAX_LATENT);
    return LKV_OK;
}

/* Of a 3-D tensor each index of the middle dimension is one set of rows. */
lkv_status lkv_rotate(lkv_context *ctx, const lkv_tensor *in, const lkv_tensor *out, void *stream)
{
    LKV_TRY(lkvi_context_check(ctx));
    LKV_TRY(lkvi_stream_check(ctx, stream));
    LKV_TRY(rotate_check(ctx, in, out));
    int64_t heads = in->ndim == 3 ? in->shape[1] : 1;
    if (!in->shape[0])
        return LKV_OK;
    for (int64_t h = 0; h < heads; h++) {
        struct lkvi_rotate_params p = {.num_rows = (uint64_t)in->shape[0],
                                       .in = lkvi_rows_of(in),
                                       .out = lkvi_rows_of(out),
                                       .dim = (uint32_t)in->shape[in->ndim - 1]};
        p.in.data = (char *)in->data + h * in->stride[1] * lkvi_dtype_bytes(in->dtype);
        p.out.data = (char *)out->data + h * out->stride[1] * lkvi_dtype_bytes(out->dtype);
        LKV_TRY(ctx->backend->rotate(ctx->backend_state, &p, stream));
    }
    return LKV_OK;
}
