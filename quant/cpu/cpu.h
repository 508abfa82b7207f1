/* The record operations of the CPU backend, as core/backend.h wants them. state is the struct
 * lkv_context itself: its isa chooses the codec, its threads run the tokens. Results depend on
 * neither. */
#ifndef LKVI_QUANT_CPU_CPU_H
#define LKVI_QUANT_CPU_CPU_H

#include "quant/params.h"

lkv_status lkvi_cpu_append(void *state, const struct lkvi_append_params *p, void *stream);
lkv_status lkvi_cpu_gather(void *state, const struct lkvi_gather_params *p, void *stream);
lkv_status lkvi_cpu_rotate(void *state, const struct lkvi_rotate_params *p, void *stream);
lkv_status lkvi_cpu_rope(void *state, const struct lkvi_rope_params *p, void *stream);

#endif
