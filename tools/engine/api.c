/* Binding by name. In: a path or nothing. Out: a table of function pointers whose types come from
 * the header itself, so that a changed signature is a compile error here. */
#include "tools/engine/api.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int engine_fail(struct engine_error *error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
    return -1;
}

static void *open_beside_program(void)
{
    static const char name[] = "liblatentkv.so.0";
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - sizeof name - 1);
    if (n <= 0)
        return NULL;
    path[n] = 0;
    char *slash = strrchr(path, '/');
    memcpy(slash + 1, name, sizeof name);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static void *open_library(const char *path)
{
    if (path)
        return dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *library = open_beside_program();
    return library ? library : dlopen("liblatentkv.so.0", RTLD_NOW | RTLD_LOCAL);
}

static int bind(void *library, const char *name, void *slot, struct engine_error *error)
{
    void *symbol = dlsym(library, name);
    if (!symbol)
        return engine_fail(error, "liblatentkv has no symbol %s: %s", name, dlerror());
    memcpy(slot, &symbol, sizeof symbol);
    return 0;
}

int engine_api_open(struct engine_api *api, const char *path, struct engine_error *error)
{
    memset(api, 0, sizeof *api);
    api->library = open_library(path);
    if (!api->library)
        return engine_fail(error, "cannot load liblatentkv: %s", dlerror());
#define ENGINE_API_BIND(name)                                                                      \
    if (bind(api->library, #name, &api->name, error)) {                                            \
        engine_api_close(api);                                                                     \
        return -1;                                                                                 \
    }
    ENGINE_API(ENGINE_API_BIND)
#undef ENGINE_API_BIND
    return 0;
}

void engine_api_close(struct engine_api *api)
{
    if (api->library)
        dlclose(api->library);
    api->library = NULL;
}

int engine_api_check(const struct engine_api *api, lkv_status status, const char *what,
                     struct engine_error *error)
{
    if (status == LKV_OK)
        return 0;
    return engine_fail(error, "%s: %s: %s", what, api->lkv_status_name(status),
                       api->lkv_last_error());
}
