/* Statistics as Prometheus text (exposition format 0.0.4): those of a pool, names latentkv_pool_*,
 * and whatever another folder has a table for. */
#ifndef LKVI_BLOCK_MANAGER_PROMETHEUS_H
#define LKVI_BLOCK_MANAGER_PROMETHEUS_H

#include <stddef.h>
#include <stdint.h>
#include "latentkv/latentkv.h"

struct lkvi_metric {
    const char *name, *type, *help, *label; /* label: of this sample alone, or NULL */
    size_t offset;                          /* of the field in the struct of statistics */
    int is_real;                            /* a double; else a uint64_t */
};

/* Samples of one name that differ in one label, 0, 1, ...; after those of the table. */
struct lkvi_series {
    const char *name, *type, *help, *label;
    const uint64_t *values;
    uint32_t num; /* 0: not written */
};

struct lkvi_metrics {
    const struct lkvi_metric *table;
    size_t num;
    struct lkvi_series series;
};

/* stats is the struct that the table's offsets are of; the rest as below. */
lkv_status lkvi_metrics_text(const struct lkvi_metrics *metrics, const void *stats,
                             const char *labels, char *buffer, size_t capacity, size_t *needed);

/* labels: name="value" pairs with commas between them, put on every sample; NULL or "": none.
 * *needed: bytes with the closing zero; capacity 0 only asks for it. */
lkv_status lkvi_stats_text(const lkv_pool_stats *stats, const char *labels, char *buffer,
                           size_t capacity, size_t *needed);

#endif
