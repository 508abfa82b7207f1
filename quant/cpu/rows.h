/* What append, gather, rotate and rope share: row addresses, slots, and splitting rows over the
 * context's threads. */
#ifndef LKVI_QUANT_CPU_ROWS_H
#define LKVI_QUANT_CPU_ROWS_H

#include "core/context.h"
#include "core/threads.h"
#include "quant/codec.h"

enum { LKVI_ROWS_A_TASK = 16 }; /* tens of microseconds: long against a wake-up, short at the end */

static inline uint32_t lkvi_dtype_bytes(uint32_t dtype)
{
    return dtype == LKV_DTYPE_F32 ? 4 : 2;
}

/* Element `offset` of a row-major view. */
static inline void *lkvi_row_at(const struct lkvi_rows *rows, int64_t offset)
{
    return (uint8_t *)rows->data + offset * (int64_t)lkvi_dtype_bytes(rows->dtype);
}

static inline int lkvi_slot_is_valid(const struct lkvi_store *store, int64_t slot)
{
    uint64_t s = (uint64_t)slot, per_block = store->tokens_per_block;
    return slot >= 0 && s / per_block >= store->first_block && s / per_block < store->num_blocks;
}

static inline uint8_t *lkvi_slot_bytes(const struct lkvi_store *store, int64_t slot)
{
    uint64_t s = (uint64_t)slot, per_block = store->tokens_per_block;
    return store->base + s / per_block * store->block_stride + s % per_block * store->record.bytes;
}

/* Runs task over ceil(num_rows / LKVI_ROWS_A_TASK) indices; task i owns rows
 * [i * LKVI_ROWS_A_TASK, ...). */
static inline void lkvi_rows_run(struct lkv_context *ctx, uint64_t num_rows, lkvi_task_fn task,
                                 void *arg)
{
    uint64_t tasks = num_rows / LKVI_ROWS_A_TASK + (num_rows % LKVI_ROWS_A_TASK != 0);
    lkvi_threads_run(ctx->threads, tasks, task, arg);
}

static inline uint64_t lkvi_rows_end(uint64_t begin, uint64_t num_rows)
{
    return num_rows - begin < LKVI_ROWS_A_TASK ? num_rows : begin + LKVI_ROWS_A_TASK;
}

#endif
