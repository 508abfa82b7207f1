/* In: sizes and device addresses. Out: memory that the host can write and that ends up on the
 * device, or that it can read. The CPU needs no second copy. */
#include "api/staging.h"

#include "core/status.h"

static int is_cpu(const struct lkv_context *ctx)
{
    return ctx->device == LKV_DEVICE_CPU;
}

lkv_status lkvi_staging_open(struct lkv_context *ctx, uint64_t bytes, struct lkvi_staging *out)
{
    struct lkvi_staging s = {.bytes = bytes};
    LKV_TRY(ctx->backend->allocate(ctx->backend_state, bytes, 0, &s.device));
    s.host = s.device;
    if (!is_cpu(ctx)) {
        lkv_status status = ctx->backend->allocate(ctx->backend_state, bytes, 1, &s.host);
        if (status != LKV_OK) {
            ctx->backend->release(ctx->backend_state, s.device, 0);
            return status;
        }
    }
    *out = s;
    return LKV_OK;
}

lkv_status lkvi_staging_close(struct lkv_context *ctx, struct lkvi_staging *s)
{
    if (is_cpu(ctx))
        return LKV_OK;
    lkv_status status = ctx->backend->copy(ctx->backend_state, s->device, s->host, s->bytes,
                                           LKVI_COPY_TO_DEVICE, NULL);
    if (status == LKV_OK)
        status = ctx->backend->wait(ctx->backend_state, NULL);
    ctx->backend->release(ctx->backend_state, s->host, 1);
    if (status != LKV_OK)
        ctx->backend->release(ctx->backend_state, s->device, 0);
    return status;
}

lkv_status lkvi_staging_fetch(struct lkv_context *ctx, const void *device, uint64_t bytes,
                              struct lkvi_staging *out)
{
    *out = (struct lkvi_staging){.host = (void *)device, .bytes = bytes};
    if (is_cpu(ctx) || !device)
        return LKV_OK;
    LKV_TRY(ctx->backend->allocate(ctx->backend_state, bytes, 1, &out->host));
    lkv_status status =
        ctx->backend->copy(ctx->backend_state, out->host, device, bytes, LKVI_COPY_TO_HOST, NULL);
    if (status == LKV_OK)
        status = ctx->backend->wait(ctx->backend_state, NULL);
    if (status != LKV_OK)
        ctx->backend->release(ctx->backend_state, out->host, 1);
    return status;
}

void lkvi_staging_forget(struct lkv_context *ctx, struct lkvi_staging *s)
{
    if (!is_cpu(ctx) && s->host)
        ctx->backend->release(ctx->backend_state, s->host, 1);
}
