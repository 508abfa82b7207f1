/* In: a context descriptor. Out: a device with its backend and threads, held by every object made
 * on it. The one idea: what an instruction set or a device can do is decided here, once. */
#include "core/context.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "core/cpu.h"
#include "core/loader.h"
#include "core/status.h"

lkv_status lkvi_context_check(const struct lkv_context *ctx)
{
    return lkvi_object_check((const struct lkvi_object *)ctx, LKVI_KIND_CONTEXT);
}

void lkvi_context_retain(struct lkv_context *ctx)
{
    lkvi_object_retain(&ctx->object);
}

static void context_destroy(struct lkv_context *ctx)
{
    if (ctx->backend_state)
        ctx->backend->close(ctx->backend_state);
    lkvi_threads_destroy(ctx->threads);
    lkvi_object_recycle(&ctx->object);
}

void lkvi_context_drop(struct lkv_context *ctx)
{
    if (lkvi_object_drop(&ctx->object))
        context_destroy(ctx);
}

void lkvi_log(const struct lkv_context *ctx, int32_t level, const char *format, ...)
{
    if (!ctx->log)
        return;
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    ctx->log(ctx->log_user, level, text);
}

static lkv_status desc_check(const lkv_context_desc *desc)
{
    if (desc->device < LKV_DEVICE_CPU)
        return lkvi_fail(LKV_E_INVALID, "device is %d; need %d (CPU) or a CUDA ordinal",
                         desc->device, (int)LKV_DEVICE_CPU);
    if (desc->num_threads > 256)
        return lkvi_fail(LKV_E_INVALID, "num_threads is %u; need at most 256", desc->num_threads);
    if (desc->isa > LKV_ISA_AVX512)
        return lkvi_fail(LKV_E_INVALID, "isa is %u; need LKV_ISA_AUTO to LKV_ISA_AVX512",
                         desc->isa);
    if (desc->flags)
        return lkvi_fail(LKV_E_INVALID, "context flags are 0x%x; need 0", desc->flags);
    return LKV_OK;
}

static lkv_status context_open(struct lkv_context *ctx, const lkv_context_desc *desc)
{
    uint32_t best = lkvi_cpu_isa();
    ctx->device = desc->device;
    ctx->isa = desc->isa && desc->isa < best ? desc->isa : best;
    ctx->log = desc->log;
    ctx->log_user = desc->log_user;
    if (desc->device == LKV_DEVICE_CPU)
        ctx->backend = &lkvi_backend_cpu;
    else
        LKV_TRY(lkvi_loader_cuda(&ctx->backend));
    LKV_TRY(lkvi_threads_create(desc->num_threads, &ctx->threads));
    return ctx->backend->open(ctx, desc->device, &ctx->backend_state);
}

lkv_status lkv_context_create(const lkv_context_desc *given, lkv_context **out)
{
    lkv_context_desc desc;
    LKV_TRY(lkvi_admit(&desc, sizeof desc, given, "lkv_context_desc"));
    if (!out)
        return lkvi_fail(LKV_E_INVALID, "out is NULL; need a place for the context");
    LKV_TRY(desc_check(&desc));
    struct lkv_context *ctx = lkvi_object_create(LKVI_KIND_CONTEXT, sizeof *ctx);
    if (!ctx)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for a context of %zu bytes", sizeof *ctx);
    lkv_status status = context_open(ctx, &desc);
    if (status != LKV_OK) {
        context_destroy(ctx);
        return status;
    }
    lkvi_object_publish(&ctx->object);
    lkvi_log(ctx, LKV_LOG_INFO, "context on %s: device %d, isa %u, %u threads", ctx->backend->name,
             ctx->device, ctx->isa, lkvi_threads_count(ctx->threads));
    *out = ctx;
    return LKV_OK;
}

void lkv_context_release(lkv_context *ctx)
{
    if (lkvi_object_withdraw((struct lkvi_object *)ctx, LKVI_KIND_CONTEXT))
        lkvi_context_drop(ctx);
}

lkv_status lkv_context_query(const lkv_context *ctx, lkv_context_info *given)
{
    LKV_TRY(lkvi_context_check(ctx));
    LKV_TRY(lkvi_admit_out(given, "lkv_context_info"));
    lkv_context_info info = {.size = sizeof info,
                             .device = ctx->device,
                             .num_threads = lkvi_threads_count(ctx->threads),
                             .isa = ctx->isa};
    if (ctx->device == LKV_DEVICE_CPU)
        lkvi_cpu_name(info.name, sizeof info.name);
    LKV_TRY(ctx->backend->query(ctx->backend_state, &info));
    lkvi_give(given, &info, sizeof info);
    return LKV_OK;
}
