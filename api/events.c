/* In: a pool with LKV_POOL_EVENTS. Out: what happened to its prefix cache since a sequence number.
 */
#include "api/check.h"
#include "api/objects.h"
#include "core/status.h"

lkv_status lkv_pool_events(lkv_pool *pool, lkv_event_batch *given)
{
    struct lkvi_manager *manager;
    lkv_event_batch batch;
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    LKV_TRY(lkvi_admit(&batch, sizeof batch, given, "lkv_event_batch"));
    LKV_TRY(lkvi_array_check(batch.events, batch.capacity, sizeof(uint64_t), "events"));
    LKV_TRY(lkvi_array_check(batch.data, batch.data_capacity, sizeof(uint64_t), "data"));
    LKV_TRY(lkvi_events_read(manager, &batch));
    lkvi_give(given, &batch, sizeof batch);
    return LKV_OK;
}
