/* The context object: one device, its backend, its threads. Every other object holds a reference to
 * it. */
#ifndef LKVI_CORE_CONTEXT_H
#define LKVI_CORE_CONTEXT_H

#include <stdatomic.h>
#include <stdint.h>
#include "core/backend.h"
#include "core/threads.h"
#include "latentkv/latentkv.h"

struct lkv_context {
    uint32_t magic; /* LKVI_MAGIC_CONTEXT while alive */
    uint32_t isa;   /* LKV_ISA_* in use */
    atomic_uint refs;
    int32_t device;
    int64_t owner_pid; /* after fork() the child's calls are refused */
    struct lkvi_threads *threads;
    const struct lkvi_backend *backend;
    void *backend_state;
    lkv_log_fn log;
    void *log_user;
};

enum {
    LKVI_MAGIC_CONTEXT = 0x4c4b5643,
    LKVI_MAGIC_POOL = 0x4c4b5650,
    LKVI_MAGIC_PLAN = 0x4c4b564c,
    LKVI_MAGIC_WEIGHTS = 0x4c4b5657,
    LKVI_MAGIC_ROPE = 0x4c4b5652,
    LKVI_MAGIC_DEAD = 0x44454144
};

/* LKV_E_INVALID with a sentence for NULL, a released object, or another process. */
lkv_status lkvi_context_check(const struct lkv_context *ctx);
void lkvi_context_retain(struct lkv_context *ctx);
void lkvi_log(const struct lkv_context *ctx, int32_t level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Best ISA of this processor, LKV_ISA_*. AVX512 means F, BW, DQ, VL, VBMI, VNNI and BF16; AVX2
 * means AVX2, FMA, F16C, BMI2. */
uint32_t lkvi_cpu_isa(void);

#endif
