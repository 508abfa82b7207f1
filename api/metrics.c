/* In: a LIBRARY pool. Out: its statistics as text for a scraper. The library runs no server: the
 * engine puts the text beside its own. */
#include "api/check.h"
#include "api/objects.h"
#include "block_manager/prometheus.h"
#include "core/status.h"

lkv_status lkv_pool_metrics_text(lkv_pool *pool, const char *labels, char *buffer, size_t capacity,
                                 size_t *needed)
{
    struct lkvi_manager *manager;
    lkv_pool_stats stats = {.size = sizeof stats};
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    LKV_TRY(lkvi_array_check(buffer, capacity, 1, "buffer"));
    LKV_TRY(lkvi_array_check(needed, 1, sizeof *needed, "needed"));
    LKV_TRY(lkvi_manager_query(manager, &stats));
    return lkvi_stats_text(&stats, labels, buffer, capacity, needed);
}
