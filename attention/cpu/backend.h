/* The attention operations of the CPU backend, as core/backend.h wants them; state is the struct
 * lkv_context itself. */
#ifndef LKVI_ATTENTION_CPU_BACKEND_H
#define LKVI_ATTENTION_CPU_BACKEND_H

#include "attention/params.h"
#include "core/backend.h"

lkv_status lkvi_cpu_project_scratch(void *state, const struct lkvi_project_params *p,
                                    size_t *bytes);
lkv_status lkvi_cpu_project(void *state, const struct lkvi_project_params *p, void *scratch,
                            size_t bytes, void *stream);
lkv_status lkvi_cpu_plan(void *state, struct lkvi_plan_params *p);
lkv_status lkvi_cpu_plan_update(void *state, const struct lkvi_plan_params *plan,
                                const struct lkvi_batch_view *batch, void *workspace, void *stream);
lkv_status lkvi_cpu_attend(void *state, const struct lkvi_attend_params *p, void *stream);
lkv_status lkvi_cpu_merge(void *state, const struct lkvi_merge_params *p, void *stream);
lkv_status lkvi_cpu_append_heads(void *state, const struct lkvi_append_heads_params *p,
                                 void *stream);
lkv_status lkvi_cpu_gather_heads(void *state, const struct lkvi_gather_heads_params *p,
                                 void *stream);

#endif
