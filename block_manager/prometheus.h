/* Statistics of a pool as Prometheus text (exposition format 0.0.4), names latentkv_pool_*. */
#ifndef LKVI_BLOCK_MANAGER_PROMETHEUS_H
#define LKVI_BLOCK_MANAGER_PROMETHEUS_H

#include <stddef.h>
#include "latentkv/latentkv.h"

/* labels: name="value" pairs with commas between them, put on every sample; NULL or "": none.
 * *needed: bytes with the closing zero; capacity 0 only asks for it. */
lkv_status lkvi_stats_text(const lkv_pool_stats *stats, const char *labels, char *buffer,
                           size_t capacity, size_t *needed);

#endif
