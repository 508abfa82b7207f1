/* The CPU's operation table. Its state is the context: threads and instruction set live there.
 * Record memory is mapped, so that a fresh pool is zero without being touched; every call is
 * synchronous, so wait has nothing to do. */
#define _GNU_SOURCE
#include "attention/cpu/backend.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "core/context.h"
#include "core/status.h"
#include "quant/cpu/cpu.h"

enum { HEAD_BYTES = 4096 }; /* before the memory given out: its length, and page alignment kept */

static lkv_status backend_open(lkv_context *ctx, int32_t device, void **state)
{
    (void)device;
    *state = ctx;
    return LKV_OK;
}

static void backend_close(void *state)
{
    (void)state;
}

static uint64_t system_value(int name)
{
    long n = sysconf(name);
    return n > 0 ? (uint64_t)n : 0;
}

static lkv_status backend_query(void *state, lkv_context_info *info)
{
    (void)state;
    info->memory_bytes = system_value(_SC_PHYS_PAGES) * system_value(_SC_PAGESIZE);
    info->l2_bytes = (uint32_t)system_value(_SC_LEVEL2_CACHE_SIZE);
    return LKV_OK;
}

static lkv_status backend_allocate(void *state, uint64_t bytes, uint32_t on_host, void **out)
{
    (void)state, (void)on_host;
    void *p = MAP_FAILED;
    if (bytes <= SIZE_MAX / 2)
        p = mmap(NULL, bytes + HEAD_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                 0);
    if (p == MAP_FAILED)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for %llu bytes of host memory",
                         (unsigned long long)bytes);
    *(uint64_t *)p = bytes + HEAD_BYTES;
    *out = (uint8_t *)p + HEAD_BYTES;
    return LKV_OK;
}

static void backend_release(void *state, void *p, uint32_t on_host)
{
    (void)state, (void)on_host;
    if (!p)
        return;
    uint64_t *head = (uint64_t *)((uint8_t *)p - HEAD_BYTES);
    munmap(head, *head);
}

static lkv_status backend_copy(void *state, void *to, const void *from, uint64_t bytes,
                               uint32_t kind, void *stream)
{
    (void)state, (void)kind, (void)stream;
    if (bytes)
        memmove(to, from, bytes);
    return LKV_OK;
}

static lkv_status backend_wait(void *state, void *stream)
{
    (void)state, (void)stream;
    return LKV_OK;
}

const struct lkvi_backend lkvi_backend_cpu = {
    .abi = LKVI_BACKEND_ABI,
    .name = "cpu",
    .open = backend_open,
    .close = backend_close,
    .query = backend_query,
    .allocate = backend_allocate,
    .release = backend_release,
    .copy = backend_copy,
    .wait = backend_wait,
    .append = lkvi_cpu_append,
    .gather = lkvi_cpu_gather,
    .rotate = lkvi_cpu_rotate,
    .rope = lkvi_cpu_rope,
    .project_scratch = lkvi_cpu_project_scratch,
    .project = lkvi_cpu_project,
    .plan = lkvi_cpu_plan,
    .plan_update = lkvi_cpu_plan_update,
    .attend = lkvi_cpu_attend,
    .merge = lkvi_cpu_merge,
    .append_heads = lkvi_cpu_append_heads,
    .gather_heads = lkvi_cpu_gather_heads,
};
