/* In: the core's struct lkvi_host. Out: the operation table of a CUDA device. The one idea: each
 * entry is enter, one call, leave: the device is switched only here, and what CUDA remembers of a
 * failure is cleared here, so the caller's own CUDA code never sees this library. */
#include <stdlib.h>
#include <string.h>
#include "attention/cuda/state.h"
#include "quant/cuda/cuda.h"

const struct lkvi_host *lkvi_cuda_host;

lkv_status lkvi_cuda_fail(cudaError_t error, const char *what)
{
    (void)cudaGetLastError();
    if (error == cudaErrorMemoryAllocation)
        return lkvi_cuda_host->fail(LKV_E_NO_MEMORY, "%s: %s", what, cudaGetErrorString(error));
    return lkvi_cuda_host->fail(LKV_E_CUDA, "%s: %s (%s)", what, cudaGetErrorString(error),
                                cudaGetErrorName(error));
}

lkv_status lkvi_cublas_fail(cublasStatus_t status, const char *what)
{
    (void)cudaGetLastError();
    return lkvi_cuda_host->fail(LKV_E_CUBLAS, "%s: %s", what, cublasGetStatusString(status));
}

static lkv_status enter(const struct lkvi_cuda_state *state, int *before)
{
    LKVI_CUDA(cudaGetDevice(before));
    if (*before != state->device)
        LKVI_CUDA(cudaSetDevice(state->device));
    return LKV_OK;
}

static void leave(const struct lkvi_cuda_state *state, int before)
{
    if (before != state->device)
        (void)cudaSetDevice(before);
}

/* ---- life */

static lkv_status find_device(int32_t device)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return lkvi_cuda_host->fail(LKV_E_UNSUPPORTED, "no CUDA device can be used: %s",
                                    cudaGetErrorString(error));
    }
    if (device >= count)
        return lkvi_cuda_host->fail(
            LKV_E_UNSUPPORTED, "CUDA device %d is not there; the driver shows %d", device, count);
    return LKV_OK;
}

static lkv_status read_facts(struct lkvi_cuda_state *state)
{
    struct cudaDeviceProp prop;
    LKVI_CUDA(cudaGetDeviceProperties(&prop, state->device));
    state->compute_capability = (uint32_t)(prop.major * 10 + prop.minor);
    if (state->compute_capability < 80)
        return lkvi_cuda_host->fail(LKV_E_UNSUPPORTED,
                                    "CUDA device %d (%s) has compute capability %d.%d; need 8.0",
                                    state->device, prop.name, prop.major, prop.minor);
    state->num_sms = (uint32_t)prop.multiProcessorCount;
    state->l2_bytes = (uint32_t)prop.l2CacheSize;
    state->memory_bytes = prop.totalGlobalMem;
    state->smem_bytes_per_block = prop.sharedMemPerBlockOptin;
    memcpy(state->name, prop.name, sizeof state->name - 1);
    return LKV_OK;
}

/* Tensor maps are made by the driver's own function; a driver without it has no Hopper rows. */
static void *find_encode_tiled(void)
{
    void *entry = NULL;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault,
                                         &found) != cudaSuccess)
        (void)cudaGetLastError();
    return found == cudaDriverEntryPointSuccess ? entry : NULL;
}

static lkv_status open_device(struct lkvi_cuda_state *state)
{
    LKVI_TRY(read_facts(state));
    state->launch = (struct lkvi_cuda_launch){
        .host = lkvi_cuda_host,
        .encode_tiled = find_encode_tiled(),
        .device = state->device,
        .arch = state->compute_capability,
        .num_sms = state->num_sms,
        .smem_bytes_per_block = (uint32_t)state->smem_bytes_per_block,
    };
    LKVI_CUDA(cudaFree(NULL)); /* makes the context now, not in somebody's capture */
    LKVI_CUDA(lkvi_cuda_quant_load());
    LKVI_CUDA(lkvi_cuda_attention_load());
    LKVI_CUBLAS(cublasCreate(&state->blas));
    return LKV_OK;
}

static void cuda_close(void *opaque)
{
    struct lkvi_cuda_state *state = opaque;
    int before;
    if (enter(state, &before) == LKV_OK) {
        if (state->blas)
            (void)cublasDestroy(state->blas);
        (void)cudaGetLastError();
        leave(state, before);
    }
    pthread_mutex_destroy(&state->blas_lock);
    free(state);
}

static lkv_status cuda_open(lkv_context *ctx, int32_t device, void **out)
{
    LKVI_TRY(find_device(device));
    struct lkvi_cuda_state *state = calloc(1, sizeof *state);
    if (!state)
        return lkvi_cuda_host->fail(LKV_E_NO_MEMORY, "no memory for %zu bytes of device state",
                                    sizeof *state);
    state->ctx = ctx;
    state->device = device;
    pthread_mutex_init(&state->blas_lock, NULL);
    int before = device;
    lkv_status status = enter(state, &before);
    if (status == LKV_OK) {
        status = open_device(state);
        leave(state, before);
    }
    if (status != LKV_OK) {
        cuda_close(state);
        return status;
    }
    *out = state;
    return LKV_OK;
}

static lkv_status cuda_query(void *opaque, lkv_context_info *info)
{
    const struct lkvi_cuda_state *state = opaque;
    info->compute_capability = state->compute_capability;
    info->num_sms = state->num_sms;
    info->l2_bytes = state->l2_bytes;
    info->memory_bytes = state->memory_bytes;
    info->smem_bytes_per_block = state->smem_bytes_per_block;
    memcpy(info->name, state->name, sizeof info->name);
    return LKV_OK;
}

/* ---- memory */

static lkv_status allocate_host(uint64_t bytes, void **out)
{
    void *p = NULL;
    LKVI_CUDA(cudaHostAlloc(&p, bytes, cudaHostAllocPortable));
    memset(p, 0, bytes);
    *out = p;
    return LKV_OK;
}

static lkv_status zero(void *p, uint64_t bytes)
{
    LKVI_CUDA(cudaMemsetAsync(p, 0, bytes, cudaStreamPerThread));
    LKVI_CUDA(cudaStreamSynchronize(cudaStreamPerThread));
    return LKV_OK;
}

static lkv_status allocate_device(uint64_t bytes, void **out)
{
    void *p = NULL;
    cudaError_t error = cudaMalloc(&p, bytes);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return lkvi_cuda_host->fail(error == cudaErrorMemoryAllocation ? LKV_E_NO_MEMORY
                                                                       : LKV_E_CUDA,
                                    "the device has no %llu bytes: %s", (unsigned long long)bytes,
                                    cudaGetErrorString(error));
    }
    lkv_status status = zero(p, bytes);
    if (status != LKV_OK)
        (void)cudaFree(p);
    else
        *out = p;
    return status;
}

static lkv_status cuda_allocate(void *opaque, uint64_t bytes, uint32_t on_host, void **out)
{
    int before;
    LKVI_TRY(enter(opaque, &before));
    lkv_status status = on_host ? allocate_host(bytes, out) : allocate_device(bytes, out);
    leave(opaque, before);
    return status;
}

static void cuda_release(void *opaque, void *p, uint32_t on_host)
{
    int before;
    if (!p || enter(opaque, &before) != LKV_OK)
        return;
    (void)(on_host ? cudaFreeHost(p) : cudaFree(p));
    (void)cudaGetLastError();
    leave(opaque, before);
}

static lkv_status copy(void *to, const void *from, uint64_t bytes, uint32_t kind, void *stream)
{
    static const enum cudaMemcpyKind kinds[] = {
        [LKVI_COPY_TO_DEVICE] = cudaMemcpyHostToDevice,
        [LKVI_COPY_TO_HOST] = cudaMemcpyDeviceToHost,
        [LKVI_COPY_ON_DEVICE] = cudaMemcpyDeviceToDevice,
    };
    LKVI_CUDA(cudaMemcpyAsync(to, from, bytes, kinds[kind], stream));
    return LKV_OK;
}

static lkv_status cuda_copy(void *opaque, void *to, const void *from, uint64_t bytes, uint32_t kind,
                            void *stream)
{
    int before;
    if (bytes == 0)
        return LKV_OK;
    LKVI_TRY(enter(opaque, &before));
    lkv_status status = copy(to, from, bytes, kind, stream);
    leave(opaque, before);
    return status;
}

/* No stream means all of them: the default stream alone would not wait for non-blocking ones. */
static lkv_status wait_for(void *stream)
{
    LKVI_CUDA(stream ? cudaStreamSynchronize(stream) : cudaDeviceSynchronize());
    return LKV_OK;
}

static lkv_status cuda_wait(void *opaque, void *stream)
{
    int before;
    LKVI_TRY(enter(opaque, &before));
    lkv_status status = wait_for(stream);
    leave(opaque, before);
    return status;
}

/* ---- operations */

#define LAUNCH(what, call)                                                                         \
    do {                                                                                           \
        int before_;                                                                               \
        LKVI_TRY(enter(state, &before_));                                                          \
        cudaError_t error_ = (call);                                                               \
        leave(state, before_);                                                                     \
        return error_ == cudaSuccess ? LKV_OK : lkvi_cuda_fail(error_, what);                      \
    } while (0)
#define RUN(call)                                                                                  \
    do {                                                                                           \
        int before_;                                                                               \
        LKVI_TRY(enter(state, &before_));                                                          \
        lkv_status status_ = (call);                                                               \
        leave(state, before_);                                                                     \
        return status_;                                                                            \
    } while (0)

static lkv_status check_latent(uint32_t dim)
{
    if (dim > LKVI_CUDA_MAX_LATENT)
        return lkvi_cuda_host->fail(LKV_E_UNSUPPORTED,
                                    "latent_dim is %u; the CUDA record kernels take at most %d",
                                    dim, LKVI_CUDA_MAX_LATENT);
    return LKV_OK;
}

static lkv_status cuda_append(void *state, const struct lkvi_append_params *p, void *stream)
{
    LKVI_TRY(check_latent(p->store.record.latent_dim));
    LAUNCH("append", lkvi_cuda_append(p, stream));
}

static lkv_status cuda_gather(void *state, const struct lkvi_gather_params *p, void *stream)
{
    LKVI_TRY(check_latent(p->store.record.latent_dim));
    LAUNCH("gather", lkvi_cuda_gather(p, stream));
}

static lkv_status cuda_rotate(void *state, const struct lkvi_rotate_params *p, void *stream)
{
    LKVI_TRY(check_latent(p->dim));
    LAUNCH("rotate", lkvi_cuda_rotate(p, stream));
}

static lkv_status cuda_rope(void *state, const struct lkvi_rope_params *p, void *stream)
{
    LAUNCH("rope", lkvi_cuda_rope(p, stream));
}

static lkv_status cuda_merge(void *state, const struct lkvi_merge_params *p, void *stream)
{
    LAUNCH("merge", lkvi_cuda_merge(p, stream));
}

static lkv_status cuda_project(void *state, const struct lkvi_project_params *p, void *scratch,
                               size_t bytes, void *stream)
{
    RUN(lkvi_cuda_project(state, p, scratch, bytes, stream));
}

static lkv_status cuda_plan(void *state, struct lkvi_plan_params *p)
{
    RUN(lkvi_cuda_plan(state, p));
}

static lkv_status cuda_plan_update(void *state, const struct lkvi_plan_params *plan,
                                   const struct lkvi_batch_view *batch, void *workspace,
                                   void *stream)
{
    RUN(lkvi_cuda_plan_update(state, plan, batch, workspace, stream));
}

static lkv_status cuda_attend(void *state, const struct lkvi_attend_params *p, void *stream)
{
    RUN(lkvi_cuda_attend(state, p, stream));
}

static const struct lkvi_backend table = {
    .abi = LKVI_BACKEND_ABI,
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .query = cuda_query,
    .allocate = cuda_allocate,
    .release = cuda_release,
    .copy = cuda_copy,
    .wait = cuda_wait,
    .append = cuda_append,
    .gather = cuda_gather,
    .rotate = cuda_rotate,
    .rope = cuda_rope,
    .project_scratch = lkvi_cuda_project_scratch,
    .project = cuda_project,
    .plan = cuda_plan,
    .plan_update = cuda_plan_update,
    .attend = cuda_attend,
    .merge = cuda_merge,
};

__attribute__((visibility("default"))) const struct lkvi_backend *
lkvi_backend_open(const struct lkvi_host *host)
{
    lkvi_cuda_host = host;
    return &table;
}
