/* Health of routing as numbers and as text. */
#ifndef LKVI_MOE_CACHE_SIGNALS_H
#define LKVI_MOE_CACHE_SIGNALS_H

#include <stddef.h>
#include "latentkv/moe_cache.h"

/* The fields of the load, of args with defaults filled in. */
void lkvi_signals_load(const lkv_moe_args *args, lkv_moe_stats *stats);
/* outside, once all other fields are there. */
void lkvi_signals_judge(const lkv_moe_args *args, lkv_moe_stats *stats);
lkv_status lkvi_signals_text(const lkv_moe_args *args, const lkv_moe_stats *stats,
                             const char *labels, char *buffer, size_t capacity, size_t *needed);

#endif
