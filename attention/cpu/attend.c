/* One attend on the CPU. In: checked parameters and lengths. Out: every row of the batch written.
 * Sequences go one by one into units; a wave runs when the workspace is full. Rows that see nothing
 * and tables that name no block are dealt with here, before any task starts. */
#include <math.h>
#include <string.h>
#include "attention/cpu/absorbed.h"
#include "attention/cpu/backend.h"
#include "core/status.h"
#include "quant/cpu/fault.h"

lkv_status lkvi_cpu_plan(void *state, struct lkvi_plan_params *p)
{
    const struct lkv_context *ctx = state;
    struct lkvi_cpu_layout layout;
    lkvi_cpu_layout(p, lkvi_threads_count(ctx->threads), &layout);
    p->kernel_row = ctx->isa;
    p->num_splits_max = lkvi_cpu_split(1, p->max_seq_len, 1).num_splits;
    p->workspace_bytes = layout.total;
    lkvi_log(ctx, LKV_LOG_DEBUG, "cpu plan: %s, %u slots of %u rows, %llu bytes of workspace",
             lkvi_micro_get(ctx->isa)->name, layout.num_slots, layout.group_rows,
             (unsigned long long)layout.total);
    return LKV_OK;
}

/* Lengths are at hand when attend runs, so there is nothing to prepare. */
lkv_status lkvi_cpu_plan_update(void *state, const struct lkvi_plan_params *plan,
                                const struct lkvi_batch_view *batch, void *workspace, void *stream)
{
    (void)state, (void)plan, (void)batch, (void)workspace, (void)stream;
    return LKV_OK;
}

/* Rows without a key: out 0, lse -infinity, entropy 0. */
static void clear_rows(const struct lkvi_attend_params *p, uint64_t first, uint32_t count)
{
    uint32_t latent = p->store.record.value_dim, heads = p->plan.num_heads;
    uint64_t dim = p->plan.out_form == LKV_OUT_HEAD ? p->plan.v_dim : latent;
    for (uint64_t row = 0; row < (uint64_t)count * heads; row++) {
        uint64_t token = first + row / heads;
        uint32_t head = (uint32_t)(row % heads);
        memset((void *)lkvi_head_row(&p->out, token, head), 0,
               dim * (p->out.dtype == LKV_DTYPE_F32 ? 4 : 2));
        lkvi_row_finish(p, token, head, -INFINITY, 0, 0);
    }
}

/* Ids of the sequence's table up to its length: negative ones are holes, ones past the pool are
 * faults; both are skipped by the tiles. */
static void check_table(const struct lkvi_attend_params *p, const struct lkvi_cpu_unit *seq,
                        struct lkvi_fault_sink *sink)
{
    const int32_t *table = p->batch.block_table + seq->seq * p->batch.block_table_stride;
    uint32_t per_block = p->store.tokens_per_block;
    for (uint64_t i = 0; i * per_block < seq->seq_len; i++)
        if (table[i] >= 0 && (uint64_t)table[i] >= p->store.num_blocks)
            lkvi_fault_note(sink, LKV_FAULT_BLOCK, seq->first_token, table[i], 1);
}

static void add_unit(struct lkvi_wave *wave, const struct lkvi_cpu_unit *unit)
{
    if (wave->num_items + unit->num_splits > wave->env->layout.num_slots)
        lkvi_wave_run(wave);
    uint32_t index = wave->num_units++;
    wave->units[index] = *unit;
    wave->units[index].slot = wave->num_items;
    for (uint32_t s = 0; s < unit->num_splits; s++)
        wave->items[wave->num_items++] = (struct lkvi_cpu_item){index, s};
}

static void add_sequence(struct lkvi_wave *wave, struct lkvi_cpu_unit unit)
{
    const struct lkvi_plan_params *plan = &wave->env->p->plan;
    uint32_t heads = lkvi_plan_heads(plan);
    struct lkvi_cpu_split split = lkvi_cpu_split(unit.q_len, unit.seq_len, heads);
    uint64_t rows = (uint64_t)unit.q_len * heads;
    unit.num_splits = split.num_splits;
    unit.split_keys = split.keys;
    for (unit.kv_head = 0; unit.kv_head < plan->record.kv_heads; unit.kv_head++)
        for (uint64_t row = 0; row < rows; row += LKVI_GROUP_ROWS) {
            unit.first_row = row;
            unit.num_rows = (uint32_t)(rows - row < LKVI_GROUP_ROWS ? rows - row : LKVI_GROUP_ROWS);
            add_unit(wave, &unit);
        }
}

static void attend_sequence(struct lkvi_wave *wave, uint32_t seq, struct lkvi_fault_sink *sink)
{
    const struct lkvi_attend_params *p = wave->env->p;
    struct lkvi_cpu_unit unit = {.seq = seq, .seq_len = (uint32_t)p->batch.seq_lens[seq]};
    unit.q_len = lkvi_batch_rows(&p->batch, seq, &unit.first_token);
    if (!unit.q_len)
        return;
    if (unit.q_len > unit.seq_len) {
        if (unit.seq_len)
            lkvi_fault_note(sink, LKV_FAULT_LENGTH, unit.first_token, seq, unit.q_len);
        clear_rows(p, unit.first_token, unit.q_len);
        return;
    }
    check_table(p, &unit, sink);
    if (lkvi_plan_decompresses(&p->plan, unit.q_len))
        lkvi_decompressed_run(wave->env, &unit);
    else
        add_sequence(wave, unit);
}

lkv_status lkvi_cpu_attend(void *state, const struct lkvi_attend_params *p, void *stream)
{
    const struct lkv_context *ctx = state;
    struct lkvi_attend_env env = {
        .p = p, .ctx = ctx, .micro = lkvi_micro_get(ctx->isa), .ops = lkvi_row_ops_get(ctx->isa)};
    struct lkvi_fault_sink sink = LKVI_FAULT_SINK;
    (void)stream;
    lkvi_cpu_layout(&p->plan, lkvi_threads_count(ctx->threads), &env.layout);
    uint8_t *workspace = p->workspace;
    struct lkvi_wave wave = {.env = &env,
                             .units = (void *)(workspace + env.layout.units_at),
                             .items = (void *)(workspace + env.layout.items_at)};
    for (uint32_t seq = 0; seq < p->batch.num_seqs; seq++)
        attend_sequence(&wave, seq, &sink);
    lkvi_wave_run(&wave);
    return lkvi_fault_close(&sink, p->store.faults, p->checked, "attend");
}
