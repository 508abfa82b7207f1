/* In: a LIBRARY pool and block counts. Out: leases, evictions, a reset. Thin over the manager. */
#include "api/check.h"
#include "api/objects.h"
#include "core/status.h"

/* A count that no pool can have is refused before anyone allocates for it. */
static lkv_status count_check(const struct lkv_pool *pool, uint64_t n)
{
    if (n > pool->desc.num_blocks)
        return lkvi_fail(LKV_E_INVALID, "num_blocks is %llu; need at most %llu",
                         (unsigned long long)n, (unsigned long long)pool->desc.num_blocks);
    return LKV_OK;
}

lkv_status lkv_lease_pin(lkv_pool *pool, const int32_t *blocks, uint64_t num_blocks, lkv_lease *out)
{
    struct lkvi_manager *manager;
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    LKV_TRY(count_check(pool, num_blocks));
    LKV_TRY(lkvi_array_check(blocks, num_blocks, sizeof *blocks, "blocks"));
    LKV_TRY(lkvi_array_check(out, 1, sizeof *out, "out"));
    return lkvi_lease_pin(manager, blocks, num_blocks, out);
}

lkv_status lkv_lease_lend(lkv_pool *pool, uint64_t num_blocks, int32_t *blocks, lkv_lease *out)
{
    struct lkvi_manager *manager;
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    LKV_TRY(lkvi_array_check(blocks, num_blocks, sizeof *blocks, "blocks"));
    LKV_TRY(lkvi_array_check(out, 1, sizeof *out, "out"));
    return lkvi_lease_lend(manager, num_blocks, blocks, out);
}

lkv_status lkv_lease_release(lkv_pool *pool, lkv_lease lease, uint64_t fence)
{
    struct lkvi_manager *manager;
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    return lkvi_lease_release(manager, lease, fence);
}

lkv_status lkv_pool_tick(lkv_pool *pool, uint64_t now)
{
    struct lkvi_manager *manager;
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    return lkvi_manager_tick(manager, now);
}

lkv_status lkv_pool_evict(lkv_pool *pool, uint64_t n, uint64_t *evicted)
{
    struct lkvi_manager *manager;
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    LKV_TRY(lkvi_array_check(evicted, 1, sizeof *evicted, "evicted"));
    return lkvi_manager_evict(manager, n, evicted);
}

lkv_status lkv_pool_drop(lkv_pool *pool, const lkv_key *key, uint64_t *dropped)
{
    struct lkvi_manager *manager;
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    LKV_TRY(lkvi_array_check(key, 1, _Alignof(lkv_key), "key"));
    LKV_TRY(lkvi_key_check(key, 0));
    LKV_TRY(lkvi_array_check(dropped, 1, sizeof *dropped, "dropped"));
    return lkvi_manager_drop(manager, key, dropped);
}

lkv_status lkv_pool_reset(lkv_pool *pool, uint32_t flags)
{
    struct lkvi_manager *manager;
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    LKV_TRY(lkvi_flags_check(flags, LKV_RESET_FORCE, "reset flags"));
    return lkvi_manager_reset(manager, flags);
}
