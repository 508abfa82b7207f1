/* The functions of the public headers that the engine uses, bound by name with dlopen and dlsym. */
#ifndef LKV_TOOLS_ENGINE_API_H
#define LKV_TOOLS_ENGINE_API_H

#include "tools/engine/error.h"
#include "latentkv/moe_cache.h"

#define ENGINE_API(X)                                                                              \
    X(lkv_version)                                                                                 \
    X(lkv_last_error)                                                                              \
    X(lkv_status_name)                                                                             \
    X(lkv_context_create)                                                                          \
    X(lkv_context_release)                                                                         \
    X(lkv_pool_create)                                                                             \
    X(lkv_pool_release)                                                                            \
    X(lkv_pool_check)                                                                              \
    X(lkv_pool_faults)                                                                             \
    X(lkv_block_query)                                                                             \
    X(lkv_seq_admit)                                                                               \
    X(lkv_seq_append)                                                                              \
    X(lkv_seq_commit)                                                                              \
    X(lkv_seq_free)                                                                                \
    X(lkv_pool_step)                                                                               \
    X(lkv_weights_create)                                                                          \
    X(lkv_weights_release)                                                                         \
    X(lkv_rope_create)                                                                             \
    X(lkv_rope_release)                                                                            \
    X(lkv_rope_apply)                                                                              \
    X(lkv_append)                                                                                  \
    X(lkv_plan_create)                                                                             \
    X(lkv_plan_release)                                                                            \
    X(lkv_plan_workspace)                                                                          \
    X(lkv_plan_update)                                                                             \
    X(lkv_attend)                                                                                  \
    X(lkv_gate_create)                                                                             \
    X(lkv_gate_release)                                                                            \
    X(lkv_gate_step)                                                                               \
    X(lkv_gate_save)

struct engine_api {
    void *library;
#define ENGINE_API_FIELD(name) __typeof__(&name) name;
    ENGINE_API(ENGINE_API_FIELD)
#undef ENGINE_API_FIELD
};

/* path NULL: liblatentkv.so.0 beside the running program, then by the loader's search path. */
int engine_api_open(struct engine_api *api, const char *path, struct engine_error *error);
void engine_api_close(struct engine_api *api);
/* Turns a status into a sentence: 0 for LKV_OK, else -1 with what, the code's name and
 * lkv_last_error. */
int engine_api_check(const struct engine_api *api, lkv_status status, const char *what,
                     struct engine_error *error);

#endif
