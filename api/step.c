/* In: one scheduler step of a caller. Out: the same step to the manager, every array checked. The
 * struct is in and out: failed_row is written back on a failure. */
#include <string.h>
#include "api/check.h"
#include "api/objects.h"
#include "core/status.h"

enum { MAX_STEP_SEQS = 1 << 20 };

/* How many entries the arrays of tokens and rows must hold. */
static lkv_status count_rows(const lkv_step *s, uint64_t *num_tokens, uint64_t *num_rows)
{
    *num_tokens = *num_rows = 0;
    for (uint32_t i = 0; i < s->num_seqs; i++) {
        uint32_t fresh = s->num_new ? s->num_new[i] : 0;
        *num_tokens += fresh;
        *num_rows += s->num_rows ? s->num_rows[i] : fresh;
    }
    if (*num_tokens > INT32_MAX || *num_rows > INT32_MAX)
        return lkvi_fail(LKV_E_INVALID, "the step has %llu tokens and %llu rows; need at most %d",
                         (unsigned long long)*num_tokens, (unsigned long long)*num_rows, INT32_MAX);
    return LKV_OK;
}

static lkv_status inputs_check(const lkv_step *s)
{
    LKV_TRY(lkvi_flags_check(s->flags, LKV_STEP_TABLE_TAIL, "step flags"));
    if (s->num_seqs > MAX_STEP_SEQS)
        return lkvi_fail(LKV_E_INVALID, "num_seqs is %u; need at most %d", s->num_seqs,
                         MAX_STEP_SEQS);
    LKV_TRY(lkvi_array_check(s->seqs, s->num_seqs, sizeof *s->seqs, "seqs"));
    LKV_TRY(lkvi_array_check(s->num_new, s->num_new ? s->num_seqs : 0, 4, "num_new"));
    LKV_TRY(lkvi_array_check(s->num_rows, s->num_rows ? s->num_seqs : 0, 4, "num_rows"));
    return lkvi_array_check(s->row_begin, s->row_begin ? s->num_seqs : 0, 8, "row_begin");
}

static lkv_status outputs_check(const lkv_step *s, uint64_t num_tokens, uint64_t num_rows)
{
    uint32_t n = s->num_seqs;
    LKV_TRY(lkvi_array_check(s->tokens, s->tokens ? num_tokens : 0, 4, "tokens"));
    LKV_TRY(lkvi_array_check(s->block_table, s->block_table ? n : 0, 4, "block_table"));
    LKV_TRY(lkvi_array_check(s->seq_lens, s->seq_lens ? n : 0, 4, "seq_lens"));
    LKV_TRY(lkvi_array_check(s->q_indptr, s->q_indptr ? n + 1ull : 0, 4, "q_indptr"));
    LKV_TRY(lkvi_array_check(s->slots, s->slots ? num_rows : 0, 8, "slots"));
    LKV_TRY(lkvi_array_check(s->positions, s->positions ? num_rows : 0, 4, "positions"));
    if ((s->slots || s->positions) && s->slots_capacity < num_rows)
        return lkvi_fail(LKV_E_INVALID, "slots_capacity is %llu; need %llu",
                         (unsigned long long)s->slots_capacity, (unsigned long long)num_rows);
    if (s->block_table && s->table_stride && s->table_stride < s->table_width)
        return lkvi_fail(LKV_E_INVALID, "table_stride is %u; need at least %u", s->table_stride,
                         s->table_width);
    return LKV_OK;
}

lkv_status lkv_pool_step(lkv_pool *pool, lkv_step *given, lkv_admission *given_result)
{
    struct lkvi_manager *manager;
    lkv_step step;
    uint64_t num_tokens, num_rows;
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    LKV_TRY(lkvi_admit(&step, sizeof step, given, "lkv_step"));
    if (given_result)
        LKV_TRY(lkvi_admit_out(given_result, "lkv_admission"));
    LKV_TRY(inputs_check(&step));
    LKV_TRY(count_rows(&step, &num_tokens, &num_rows));
    LKV_TRY(outputs_check(&step, num_tokens, num_rows));
    if (!step.table_stride)
        step.table_stride = step.table_width;
    lkv_admission result = {.size = sizeof result};
    lkv_status status = lkvi_manager_step(manager, &step, &result);
    if (status != LKV_OK && given->size > offsetof(lkv_step, failed_row))
        given->failed_row = step.failed_row;
    if (given_result)
        lkvi_give(given_result, &result, sizeof result);
    return status;
}
