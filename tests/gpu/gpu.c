/* See gpu.h. */
#include "tests/gpu/gpu.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "core/status.h"
#include "quant/codec.h"

int failures;

void must(lkv_status status, const char *what)
{
    if (status == LKV_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, lkv_status_name(status), lkv_last_error());
    exit(1);
}

void must_cuda(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

static const struct lkvi_backend *load_table(void)
{
    static const struct lkvi_host host = {lkvi_fail, lkvi_log};
    const char *folder = getenv("LKV_CUDA_DIR");
    char path[4096];
    snprintf(path, sizeof path, "%s/liblatentkv_cuda.so", folder ? folder : ".");
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    lkvi_backend_open_fn open = NULL;
    if (library)
        *(void **)&open = dlsym(library, LKVI_BACKEND_OPEN_SYMBOL);
    if (!open) {
        fprintf(stderr, "skipped: %s\n", dlerror());
        exit(77);
    }
    return open(&host);
}

void gpu_open(struct gpu *g)
{
    lkv_context_desc desc = {.size = sizeof desc, .device = LKV_DEVICE_CPU};
    must(lkv_context_create(&desc, &g->ctx), "CPU context");
    g->cpu = &lkvi_backend_cpu;
    g->cuda = load_table();
    if (g->cuda->open(g->ctx, 0, &g->state) != LKV_OK) {
        fprintf(stderr, "skipped: %s\n", lkv_last_error());
        exit(77);
    }
}

int gpu_close(struct gpu *g, const char *name)
{
    must(g->cuda->wait(g->state, NULL), "wait");
    check(cudaGetLastError() == cudaSuccess, "an error was left behind");
    g->cuda->close(g->state);
    lkv_context_release(g->ctx);
    printf("%s: %s (%d failures)\n", name, failures ? "FAILED" : "ok", failures);
    return failures != 0;
}

void *to_device(const void *from, uint64_t bytes)
{
    void *p = NULL;
    must_cuda(cudaMalloc(&p, bytes ? bytes : 1), "cudaMalloc");
    if (from)
        must_cuda(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice), "copy to the device");
    else
        must_cuda(cudaMemset(p, 0xFF, bytes), "cudaMemset");
    must_cuda(cudaDeviceSynchronize(), "synchronise");
    return p;
}

void from_device(void *to, const void *from, uint64_t bytes)
{
    must_cuda(cudaDeviceSynchronize(), "the kernels");
    must_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "copy to the host");
}

int check(int ok, const char *format, ...)
{
    va_list args;
    if (ok)
        return 1;
    if (failures++ < 20) {
        va_start(args, format);
        vfprintf(stderr, format, args);
        va_end(args);
        fputc('\n', stderr);
    }
    return 0;
}

uint32_t dtype_size(uint32_t dtype)
{
    return dtype == LKV_DTYPE_F32 ? 4 : 2;
}

void narrow(const float *from, uint64_t n, uint32_t dtype, void *to)
{
    const struct lkvi_row_ops *ops = lkvi_row_ops_get(LKV_ISA_SCALAR);
    for (uint64_t at = 0; at < n; at += 1 << 20)
        ops->store(from + at, (uint32_t)(n - at < 1 << 20 ? n - at : 1 << 20), dtype,
                   (uint8_t *)to + at * dtype_size(dtype));
}

void widen(const void *from, uint64_t n, uint32_t dtype, float *to)
{
    const struct lkvi_row_ops *ops = lkvi_row_ops_get(LKV_ISA_SCALAR);
    for (uint64_t at = 0; at < n; at += 1 << 20)
        ops->load((const uint8_t *)from + at * dtype_size(dtype), dtype,
                  (uint32_t)(n - at < 1 << 20 ? n - at : 1 << 20), to + at);
}

const char *format_name(uint32_t format)
{
    static const char *const names[] = {"?", "bf16", "fp8", "int8", "nvfp4"};
    return names[format <= LKV_FORMAT_NVFP4 ? format : 0];
}

struct lkvi_record layout(uint32_t format, uint32_t flags, uint32_t latent, uint32_t rope)
{
    lkv_pool_desc desc = {.size = sizeof desc,
                          .format = format,
                          .encode_flags = flags,
                          .tokens_per_block = 64,
                          .latent_dim = latent,
                          .rope_dim = rope};
    struct lkvi_record record;
    must(lkvi_record_layout(&desc, &record), "layout");
    return record;
}
