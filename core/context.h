/* The context object: one device, its backend, its threads. Every other object holds a reference to
 * it. */
#ifndef LKVI_CORE_CONTEXT_H
#define LKVI_CORE_CONTEXT_H

#include <stdint.h>
#include "core/backend.h"
#include "core/object.h"
#include "core/threads.h"
#include "latentkv/latentkv.h"

struct lkv_context {
    struct lkvi_object object;
    int32_t device;
    uint32_t isa; /* LKV_ISA_* in use */
    struct lkvi_threads *threads;
    const struct lkvi_backend *backend;
    void *backend_state;
    lkv_log_fn log;
    void *log_user;
};

/* LKV_E_INVALID with a sentence for NULL, a released object, or another process. */
lkv_status lkvi_context_check(const struct lkv_context *ctx);
/* A child's reference and its end. */
void lkvi_context_retain(struct lkv_context *ctx);
void lkvi_context_drop(struct lkv_context *ctx);
void lkvi_log(const struct lkv_context *ctx, int32_t level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Best ISA of this processor, LKV_ISA_*. AVX512 means F, BW, DQ, VL, VBMI, VNNI and BF16; AVX2
 * means AVX2, FMA, F16C, BMI2. */
uint32_t lkvi_cpu_isa(void);

#endif
