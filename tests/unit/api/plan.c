/* Plans as an engine uses them: its own wide block table, attend without saying the batch again,
 * and what a plan and a pool say that they are. */
#include <criterion/criterion.h>
#include <string.h>
#include "tests/unit/api/world.h"

enum { ROWS = W_T * W_HEADS * W_V, WIDE = 37 };

/* Updates with `batch`, attends with `again`, keeps the output. */
static void attend(struct world *w, const lkv_batch *batch, const lkv_batch *again, float *out)
{
    memset(w->t.out.data, 0xff, ROWS * sizeof *out);
    cr_assert_eq(lkv_plan_update(w->plan, batch, w->workspace, w->workspace_bytes, NULL), LKV_OK,
                 "%s", lkv_last_error());
    cr_assert_eq(lkv_attend(w->plan, w->pool, again, &w->attend, NULL), LKV_OK, "%s",
                 lkv_last_error());
    memcpy(out, w->t.out.data, ROWS * sizeof *out);
}

/* A block table as wide as the engine's longest sequence, whose further entries are no blocks. */
Test(plan, a_wider_table_gives_the_same)
{
    struct world *w = world_create();
    float want[ROWS], got[ROWS];
    int32_t table[WIDE];
    memset(table, 0x7f, sizeof table);
    memcpy(table, w->table, 3 * sizeof *table);
    attend(w, &w->batch, &w->batch, want);
    lkv_batch wide = w->batch;
    wide.block_table = table, wide.max_blocks_per_seq = WIDE;
    for (uint64_t stride = 0; stride <= WIDE; stride += WIDE) {
        wide.block_table_stride = stride;
        attend(w, &wide, &wide, got);
        for (int i = 0; i < ROWS; i++)
            cr_assert_eq(got[i], want[i], "stride %d, element %d: %.9g, want %.9g", (int)stride, i,
                         got[i], want[i]);
    }
    world_destroy(w);
}

Test(plan, attend_without_a_batch_takes_the_last_update)
{
    struct world *w = world_create();
    float want[ROWS], got[ROWS];
    attend(w, &w->batch, &w->batch, want);
    attend(w, &w->batch, NULL, got);
    cr_expect_eq(memcmp(got, want, sizeof got), 0);
    lkv_status status = lkv_attend(w->fresh_plan, w->pool, NULL, &w->attend, NULL);
    cr_expect_eq(status, LKV_E_INVALID, "without an update: status %d", status);
    world_destroy(w);
}

Test(plan, describe_gives_an_object_like_it)
{
    struct world *w = world_create();
    lkv_plan_desc plan = {.size = sizeof plan}, again = plan;
    lkv_pool_desc pool = {.size = sizeof pool};
    lkv_plan *twin = NULL;
    cr_assert_eq(lkv_plan_describe(w->plan, &plan), LKV_OK, "%s", lkv_last_error());
    cr_expect(plan.pool == w->pool && plan.max_seq_len == 64 && plan.absorb_threshold == 256);
    cr_expect_eq(plan.max_blocks_per_seq, (64 + W_BLOCK - 1) / W_BLOCK);
    cr_assert_eq(lkv_plan_create(w->ctx, &plan, &twin), LKV_OK, "%s", lkv_last_error());
    cr_assert_eq(lkv_plan_describe(twin, &again), LKV_OK);
    cr_expect_eq(memcmp(&plan, &again, sizeof plan), 0);
    lkv_plan_release(twin);

    cr_assert_eq(lkv_pool_describe(w->pool, &pool), LKV_OK, "%s", lkv_last_error());
    cr_expect(pool.format == w->pool_desc.format && pool.latent_dim == W_LATENT &&
              pool.num_layers == W_LAYERS && pool.num_blocks == w->pool_desc.num_blocks);
    cr_expect(pool.block_stride_bytes && !pool.memory && !pool.planes && !pool.model_fingerprint);
    world_destroy(w);
}
