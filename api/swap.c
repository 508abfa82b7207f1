/* In: sequences and blocks that change tiers. Out: the manager's verdict; the bytes follow with the
 * next lkv_pool_apply_copies. Thin over the manager. */
#include "api/check.h"
#include "api/objects.h"
#include "core/status.h"

/* The result is written back on every status behind the checks, as an admission's is. */
static lkv_status give(lkv_status status, lkv_admission *given, const lkv_admission *result)
{
    if (given)
        lkvi_give(given, result, sizeof *result);
    return status;
}

lkv_status lkv_seq_swap_out(lkv_pool *pool, lkv_seq seq, uint64_t fence, lkv_admission *given)
{
    struct lkvi_manager *manager;
    lkv_admission result = {.size = sizeof result};
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    if (given)
        LKV_TRY(lkvi_admit_out(given, "lkv_admission"));
    return give(lkvi_seq_swap_out(manager, seq, fence, &result), given, &result);
}

lkv_status lkv_seq_swap_in(lkv_pool *pool, lkv_seq seq, lkv_admission *given)
{
    struct lkvi_manager *manager;
    lkv_admission result = {.size = sizeof result};
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    if (given)
        LKV_TRY(lkvi_admit_out(given, "lkv_admission"));
    return give(lkvi_seq_swap_in(manager, seq, &result), given, &result);
}

lkv_status lkv_pool_demote(lkv_pool *pool, uint64_t n, uint64_t *queued)
{
    struct lkvi_manager *manager;
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    LKV_TRY(lkvi_array_check(queued, 1, sizeof *queued, "queued"));
    return lkvi_manager_demote(manager, n, queued);
}
