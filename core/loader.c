/* In: nothing. Out: the operation table of liblatentkv_cuda.so. The one idea: the file is taken
 * from the folder that holds the core library and from nowhere else, so no search path and no
 * environment decides what code runs. It stays loaded: unmapping code under a live CUDA context is
 * not safe. */
#define _GNU_SOURCE
#include "core/loader.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "core/context.h"
#include "core/status.h"

#define CUDA_LIBRARY "liblatentkv_cuda.so"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static const struct lkvi_backend *loaded;
static const struct lkvi_host host = {lkvi_fail, lkvi_log};

static lkv_status library_path(char path[PATH_MAX])
{
    Dl_info info;
    if (!dladdr((const void *)&loaded, &info) || !info.dli_fname)
        return lkvi_fail(LKV_E_UNSUPPORTED, "the folder of liblatentkv.so is not known");
    const char *slash = strrchr(info.dli_fname, '/');
    int folder = slash ? (int)(slash - info.dli_fname) + 1 : 0;
    if (folder + sizeof CUDA_LIBRARY + 2 > PATH_MAX)
        return lkvi_fail(LKV_E_UNSUPPORTED, "the path of liblatentkv.so has %d bytes; need %d",
                         folder, PATH_MAX);
    /* ./ keeps dlopen from searching when the core library has no folder in its name */
    snprintf(path, PATH_MAX, "%s%.*s%s", folder ? "" : "./", folder, info.dli_fname, CUDA_LIBRARY);
    return LKV_OK;
}

static lkv_status load(const struct lkvi_backend **out)
{
    char path[PATH_MAX];
    LKV_TRY(library_path(path));
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) {
        const char *why = dlerror();
        return lkvi_fail(LKV_E_UNSUPPORTED, "a CUDA context needs %s beside liblatentkv.so: %s",
                         CUDA_LIBRARY, why ? why : "it cannot be loaded");
    }
    lkvi_backend_open_fn open;
    void *symbol = dlsym(library, LKVI_BACKEND_OPEN_SYMBOL);
    memcpy(&open, &symbol, sizeof open);
    const struct lkvi_backend *backend = open ? open(&host) : NULL;
    if (!backend || backend->abi != LKVI_BACKEND_ABI) {
        dlclose(library);
        return lkvi_fail(LKV_E_UNSUPPORTED,
                         "%s has backend ABI %u; need %u: it is of another release", CUDA_LIBRARY,
                         backend ? backend->abi : 0, (unsigned)LKVI_BACKEND_ABI);
    }
    *out = backend;
    return LKV_OK;
}

lkv_status lkvi_loader_cuda(const struct lkvi_backend **out)
{
    pthread_mutex_lock(&mutex);
    lkv_status status = loaded ? LKV_OK : load(&loaded);
    if (status == LKV_OK)
        *out = loaded;
    pthread_mutex_unlock(&mutex);
    return status;
}
