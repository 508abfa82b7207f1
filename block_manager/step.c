/* In: one scheduler step: sequences, new tokens, row ranges. Out: the caller's table, lengths,
 * slots and positions, filled in one call under one lock.
 * First every row is planned (handles, room, widths), then every row is grown and written; a row
 * that cannot be served is named in failed_row and nothing has happened. Most rows of a decode step
 * are plain: one token into a tail that nobody else reads. They have a short way through both.
 * Where threads meet, decode steps run beside one another: each claims its sequences under the
 * shared lock, and takes what blocks it needs under a mutex. Whatever is not a plain decode step
 * with enough room waits for the whole lock, where nobody has claimed anything. */
#include "block_manager/state.h"

struct row {
    struct lkvi_seq *s; /* NULL: padding */
    uint64_t begin;     /* first position that runs */
    uint32_t num_new, num_rows;
};

/* Drafts (reserved room without tokens) stop at the final length; their slots are masked. */
static uint64_t draft_room(const struct lkvi_seq *s, uint64_t n)
{
    uint64_t left = s->max_tokens ? s->max_tokens - s->length : UINT64_MAX;
    return n < left ? n : left;
}

static void row_of(const lkv_step *step, uint32_t i, struct lkvi_seq *s, struct row *row)
{
    row->s = s;
    row->begin = row->num_new = row->num_rows = 0;
    if (!s)
        return;
    row->num_new = step->num_new ? step->num_new[i] : 0;
    row->num_rows = step->num_rows ? step->num_rows[i] : row->num_new;
    row->begin = step->row_begin ? step->row_begin[i] : s->length;
}

/* A hit may find it, or somebody holds it: also where a drop or a forced reset took it out of the
 * cache. A tail that this step copies first is the sequence's own. */
static int others_read(const struct lkvi_manager *m, const struct lkvi_seq *s, uint64_t k)
{
    const struct lkvi_block *block = &m->blocks[s->table[k]];
    if (s->plan_copy && k == s->length >> m->block_shift)
        return 0;
    return (block->flags & LKVI_INDEXED) || block->refs > 1;
}

/* Rows may end inside the room, or beyond it where the final length cuts drafts off. */
static lkv_status check_range(const struct lkvi_manager *m, const lkv_step *step,
                              const struct row *row, uint64_t room_blocks)
{
    const struct lkvi_seq *s = row->s;
    uint64_t end = row->begin + row->num_rows, room = room_blocks << m->block_shift;
    int masked = !step->tokens && s->max_tokens && s->length + row->num_new > s->max_tokens;
    if (end < row->begin || end > INT32_MAX || (end > room && !masked))
        return lkvi_fail(LKV_E_INVALID, "rows [%llu, +%u) of a sequence with room for %llu tokens",
                         (unsigned long long)row->begin, row->num_rows, (unsigned long long)room);
    if (step->block_table && room_blocks > step->table_width)
        return lkvi_fail(LKV_E_INVALID, "table_width is %u; need %llu blocks", step->table_width,
                         (unsigned long long)room_blocks);
    if (!row->num_rows || row->begin >= s->committed)
        return LKV_OK;
    for (uint64_t k = row->begin >> m->block_shift; k << m->block_shift < s->committed; k++)
        if (k << m->block_shift < end && others_read(m, s, k))
            return lkvi_fail(LKV_E_INVALID,
                             "rows [%llu, +%u) would write block %d, which is published or shared",
                             (unsigned long long)row->begin, row->num_rows, s->table[k]);
    return LKV_OK;
}

/* Does the step give each row one new token, which is the one that runs? */
static int is_decode(const lkv_step *step, uint32_t i)
{
    return step->tokens && step->num_new && step->num_new[i] == 1 && !step->row_begin &&
           (!step->num_rows || step->num_rows[i] == 1);
}

/* The sequence of a row that needs no room and no copy, planned; NULL: plan_row has to look. */
static struct lkvi_seq *plan_plain(struct lkvi_manager *m, const lkv_step *step, uint32_t i)
{
    const uint32_t slot = (uint32_t)step->seqs[i];
    if (!slot || slot > m->max_seqs || !is_decode(step, i))
        return NULL;
    struct lkvi_seq *s = &m->seqs[slot - 1];
    const uint64_t k = s->length >> m->block_shift;
    if (!s->live || s->swapped || s->generation != step->seqs[i] >> 32 ||
        s->plan_serial == m->plan_serial || k >= s->num_blocks || s->length >= INT32_MAX ||
        (step->block_table && s->num_blocks > step->table_width))
        return NULL;
    const struct lkvi_block *tail = &m->blocks[s->table[k]];
    if (tail->refs != 1 || (tail->flags & LKVI_INDEXED) ||
        (s->max_tokens && s->length >= s->max_tokens))
        return NULL;
    s->plan_serial = m->plan_serial;
    s->plan_fresh = s->plan_copy = 0;
    return s;
}

static lkv_status plan_row(struct lkvi_manager *m, const lkv_step *step, uint32_t i,
                           struct lkvi_growth *total, lkv_admission *result)
{
    struct lkvi_seq *s;
    struct row row;
    if (!step->seqs[i] || plan_plain(m, step, i))
        return LKV_OK;
    LKV_TRY(lkvi_seq_resident(m, step->seqs[i], &s));
    row_of(step, i, s, &row);
    if (row.s->plan_serial == m->plan_serial)
        return lkvi_fail(LKV_E_INVALID, "sequence %#llx stands twice in the step",
                         (unsigned long long)step->seqs[i]);
    row.s->plan_serial = m->plan_serial;
    uint64_t n = step->tokens ? row.num_new : draft_room(row.s, row.num_new);
    LKV_TRY(lkvi_grow_plan(m, row.s, n, total, result));
    return check_range(m, step, &row, row.s->num_blocks + row.s->plan_fresh);
}

static uint64_t rows_of(const lkv_step *step, uint32_t i)
{
    if (!step->seqs[i])
        return 0;
    return step->num_rows ? step->num_rows[i] : step->num_new ? step->num_new[i] : 0;
}

/* Rows to come, or NULL: handles are not checked yet, so only their slot is believed. */
static const struct lkvi_seq *ahead(const struct lkvi_manager *m, const lkv_step *step, uint64_t i)
{
    uint32_t slot = i < step->num_seqs ? (uint32_t)step->seqs[i] : 0;
    return slot && slot <= m->max_seqs ? &m->seqs[slot - 1] : NULL;
}

/* Each row touches its record, the end of its table, its tail's record and tokens, in this order;
 * each of them is fetched a few rows after the one that names it. */
static void prefetch_rows(const struct lkvi_manager *m, const lkv_step *step, uint64_t i)
{
    const struct lkvi_seq *s = ahead(m, step, i + 30);
    if (s)
        __builtin_prefetch(s, 1);
    s = ahead(m, step, i + 20);
    if (s && s->num_blocks)
        __builtin_prefetch(&s->table[s->num_blocks - 1]);
    s = ahead(m, step, i + 10);
    if (s && s->num_blocks) {
        uint32_t tail = (uint32_t)s->table[s->num_blocks - 1];
        __builtin_prefetch(&m->blocks[tail], 1);
        __builtin_prefetch(lkvi_block_tokens(m, tail) + (s->length & (m->block_tokens - 1)), 1);
    }
}

static lkv_status plan(struct lkvi_manager *m, lkv_step *step, lkv_admission *result)
{
    struct lkvi_growth total = {0, 0, 0};
    uint64_t num_rows = 0;
    m->plan_serial++;
    lkvi_room(m, 0, 0, 0, result);
    for (uint32_t i = 0; i < step->num_seqs; i++) {
        step->failed_row = i;
        prefetch_rows(m, step, i);
        LKV_TRY(plan_row(m, step, i, &total, result));
        num_rows += rows_of(step, i);
        if ((step->slots || step->positions) && num_rows > step->slots_capacity)
            return lkvi_fail(LKV_E_INVALID, "slots_capacity is %llu; need at least %llu rows",
                             (unsigned long long)step->slots_capacity,
                             (unsigned long long)num_rows);
        if (num_rows > INT32_MAX)
            return lkvi_fail(LKV_E_INVALID, "%llu rows in one step; need at most 2^31 - 1",
                             (unsigned long long)num_rows);
    }
    LKV_TRY(lkvi_copies_ensure(m, total.copies));
    result->num_blocks = total.fresh + total.copies;
    return LKV_OK;
}

static void write_table(const lkv_step *step, uint32_t i, struct lkvi_seq *s)
{
    uint32_t stride = step->table_stride ? step->table_stride : step->table_width;
    int32_t *to = step->block_table + (uint64_t)i * stride;
    uint32_t num = s ? s->num_blocks : 0, from = 0, end = step->table_width;
    if (s && (step->flags & LKV_STEP_TABLE_TAIL)) {
        from = s->dirty_from;
        end = s->emitted > num ? s->emitted : num;
    }
    if (num > from)
        memcpy(to + from, s->table + from, (num - from) * sizeof *to);
    if (end > num)
        memset(to + num, 0, (end - num) * sizeof *to);
    if (s)
        s->dirty_from = s->emitted = num;
}

static int64_t slot_of(const struct lkvi_manager *m, int32_t block, uint32_t at)
{
    return ((int64_t)block << m->block_shift) + at;
}

static void write_slots(const struct lkvi_manager *m, int64_t *slots, const struct row *row)
{
    uint64_t position = row->begin, left = row->num_rows;
    uint64_t room = (uint64_t)row->s->num_blocks << m->block_shift;
    if (row->s->max_tokens && room > row->s->max_tokens)
        room = row->s->max_tokens;
    while (left && position < room) {
        uint32_t at = (uint32_t)(position & (m->block_tokens - 1)), n = m->block_tokens - at;
        int64_t first = slot_of(m, row->s->table[position >> m->block_shift], at);
        if (n > left)
            n = (uint32_t)left;
        if (n > room - position)
            n = (uint32_t)(room - position);
        for (uint32_t j = 0; j < n; j++)
            *slots++ = first + j;
        position += n;
        left -= n;
    }
    while (left--)
        *slots++ = -1;
}

static void write_row(struct lkvi_manager *m, const lkv_step *step, uint32_t i,
                      const struct row *row, uint64_t first)
{
    uint64_t end = row->begin + row->num_rows;
    if (step->block_table)
        write_table(step, i, row->s);
    if (step->seq_lens) {
        uint64_t limit = row->s && row->s->max_tokens ? row->s->max_tokens : end;
        step->seq_lens[i] = (int32_t)(end < limit ? end : limit);
    }
    if (step->q_indptr)
        step->q_indptr[i + 1] = (int32_t)(first + row->num_rows);
    if (step->positions)
        for (uint32_t j = 0; j < row->num_rows; j++)
            step->positions[first + j] = (int32_t)(row->begin + j);
    if (step->slots && row->num_rows)
        write_slots(m, step->slots + first, row);
}

static void execute_plain(struct lkvi_manager *m, const lkv_step *step, uint32_t i,
                          struct lkvi_seq *s, int32_t token, uint64_t first)
{
    const uint32_t at = (uint32_t)(s->length & (m->block_tokens - 1));
    const uint32_t b = (uint32_t)s->table[s->length >> m->block_shift];
    lkvi_block_tokens(m, b)[at] = token;
    if (m->sides)
        lkvi_side_written(m, b, at, at + 1);
    if (step->block_table && (!(step->flags & LKV_STEP_TABLE_TAIL) ||
                              s->dirty_from != s->num_blocks || s->emitted != s->num_blocks))
        write_table(step, i, s);
    if (step->positions)
        step->positions[first] = (int32_t)s->length;
    if (step->slots)
        step->slots[first] = slot_of(m, (int32_t)b, at);
    s->length++;
    if (step->seq_lens)
        step->seq_lens[i] = (int32_t)s->length;
    if (step->q_indptr)
        step->q_indptr[i + 1] = (int32_t)(first + 1);
    __atomic_store_n(&s->stepping, 0, __ATOMIC_RELEASE); /* claimed, or 0 already */
}

static void execute(struct lkvi_manager *m, const lkv_step *step)
{
    const int32_t *tokens = step->tokens;
    uint64_t first = 0, plain = 0;
    if (step->q_indptr)
        step->q_indptr[0] = 0;
    for (uint32_t i = 0; i < step->num_seqs; i++) {
        struct row row;
        uint32_t slot = (uint32_t)step->seqs[i]; /* planned, so alive */
        struct lkvi_seq *s = slot ? &m->seqs[slot - 1] : NULL;
        if (s && !s->plan_fresh && !s->plan_copy && is_decode(step, i)) {
            execute_plain(m, step, i, s, *tokens++, first++);
            plain++;
            continue;
        }
        row_of(step, i, s, &row);
        if (row.s)
            lkvi_grow(m, row.s, tokens, tokens ? row.num_new : 0);
        if (tokens && step->num_new)
            tokens += step->num_new[i];
        write_row(m, step, i, &row, first);
        first += row.num_rows;
    }
    __atomic_fetch_add(&m->sums.tokens_live, plain, __ATOMIC_RELAXED);
}

static lkv_status step_locked(struct lkvi_manager *m, lkv_step *step, lkv_admission *result)
{
    if (step->num_seqs && !step->seqs)
        return lkvi_fail(LKV_E_INVALID, "seqs is NULL; need %u handles", step->num_seqs);
    if (step->flags & ~(uint32_t)LKV_STEP_TABLE_TAIL)
        return lkvi_fail(LKV_E_INVALID, "step flags are %#x; known are %#x", step->flags,
                         LKV_STEP_TABLE_TAIL);
    if (step->table_stride && step->table_stride < step->table_width)
        return lkvi_fail(LKV_E_INVALID, "table_stride is %u; need at least table_width %u",
                         step->table_stride, step->table_width);
    LKV_TRY(plan(m, step, result));
    step->failed_row = 0;
    execute(m, step);
    return LKV_OK;
}

/* ---- steps beside one another */

/* Looks like a decode step whose errors, if any, are errors of rows. */
static int may_run_beside(const lkv_step *step)
{
    return step->num_seqs && step->seqs && is_decode(step, 0) &&
           !(step->flags & ~(uint32_t)LKV_STEP_TABLE_TAIL) &&
           (!step->table_stride || step->table_stride >= step->table_width) &&
           (!(step->slots || step->positions) || step->slots_capacity >= step->num_seqs);
}

static struct lkvi_seq *claimed(struct lkvi_manager *m, const lkv_step *step, uint32_t i)
{
    return &m->seqs[(uint32_t)step->seqs[i] - 1];
}

/* From here to its release no other step touches the sequence. 0: another one has it, or it is no
 * row of a decode step. */
static int claim(struct lkvi_manager *m, const lkv_step *step, uint32_t i)
{
    const lkv_seq handle = step->seqs[i];
    const uint32_t slot = (uint32_t)handle;
    if (!slot || slot > m->max_seqs || !is_decode(step, i))
        return 0;
    struct lkvi_seq *s = &m->seqs[slot - 1];
    return s->live && !s->swapped && s->generation == handle >> 32 &&
           !__atomic_exchange_n(&s->stepping, 1, __ATOMIC_ACQUIRE);
}

static void release_rows(struct lkvi_manager *m, const lkv_step *step, uint32_t num)
{
    for (uint32_t i = 0; i < num; i++)
        __atomic_store_n(&claimed(m, step, i)->stepping, 0, __ATOMIC_RELEASE);
}

/* Claims all rows, or none. Of sequences that are not claimed yet only the address is used. */
static int claim_rows(struct lkvi_manager *m, const lkv_step *step)
{
    for (uint32_t i = 0; i < step->num_seqs; i++) {
        const struct lkvi_seq *later = ahead(m, step, (uint64_t)i + 10);
        if (later)
            __builtin_prefetch(later, 1);
        if (!claim(m, step, i)) {
            release_rows(m, step, i);
            return 0;
        }
    }
    return 1;
}

/* Plans a claimed row: plan_fresh is 1 where the token needs a block. 0: not a plain row. */
static int plan_claimed(const struct lkvi_manager *m, const lkv_step *step, struct lkvi_seq *s)
{
    const uint64_t k = s->length >> m->block_shift;
    s->plan_fresh = k >= s->num_blocks;
    s->plan_copy = 0;
    if (s->length >= INT32_MAX || (s->max_tokens && s->length >= s->max_tokens) ||
        (step->block_table && s->num_blocks + s->plan_fresh > step->table_width))
        return 0;
    if (s->plan_fresh)
        return 1;
    const struct lkvi_block *tail = &m->blocks[s->table[k]];
    return tail->refs == 1 && !(tail->flags & LKVI_INDEXED);
}

/* Of the claimed rows, those that need a block: num of them, all in [begin, end). */
struct fresh_rows {
    uint32_t num, begin, end;
};

static int plan_claimed_rows(struct lkvi_manager *m, const lkv_step *step, struct fresh_rows *fresh)
{
    *fresh = (struct fresh_rows){0, 0, 0};
    for (uint32_t i = 0; i < step->num_seqs; i++) {
        prefetch_rows(m, step, i);
        struct lkvi_seq *s = claimed(m, step, i);
        if (!plan_claimed(m, step, s))
            return 0;
        if (!s->plan_fresh)
            continue;
        fresh->begin = fresh->num++ ? fresh->begin : i;
        fresh->end = i + 1;
    }
    return 1;
}

/* Blocks for the rows that need one: all or none. */
static int take_for_rows(struct lkvi_manager *m, const lkv_step *step,
                         const struct fresh_rows *fresh, lkv_admission *result)
{
    struct lkvi_growth total = {0, 0, 0};
    for (uint32_t i = fresh->begin; i < fresh->end; i++) {
        struct lkvi_seq *s = claimed(m, step, i);
        if (s->plan_fresh && lkvi_grow_plan(m, s, 1, &total, result) != LKV_OK)
            return 0;
    }
    for (uint32_t i = fresh->begin; i < fresh->end; i++) {
        struct lkvi_seq *s = claimed(m, step, i);
        if (s->plan_fresh)
            lkvi_grow(m, s, NULL, 0);
        s->plan_fresh = 0;
    }
    return 1;
}

static int room_for_rows(struct lkvi_manager *m, const lkv_step *step,
                         const struct fresh_rows *fresh, lkv_admission *result)
{
    pthread_mutex_lock(&m->blocks_mutex);
    lkvi_room(m, 0, 0, 0, result);
    const int done = take_for_rows(m, step, fresh, result);
    pthread_mutex_unlock(&m->blocks_mutex);
    result->num_blocks = fresh->num;
    return done;
}

/* Under the shared lock. 0: nothing has happened. */
static int step_beside(struct lkvi_manager *m, lkv_step *step, lkv_admission *result)
{
    struct fresh_rows fresh;
    if (m->sides || !claim_rows(m, step))
        return 0;
    if (!plan_claimed_rows(m, step, &fresh) || !room_for_rows(m, step, &fresh, result)) {
        release_rows(m, step, step->num_seqs);
        return 0;
    }
    step->failed_row = 0;
    execute(m, step); /* every row is plain now, and is released when it is done */
    return 1;
}

enum { BUSY_ROWS = 1 << 20 }; /* 40 ms of one thread */

/* 1: has the whole lock. 0: others are, or were lately, inside, and the step may run beside them.
 * Alone, claims would only cost time. */
static int lock_whole(struct lkvi_manager *m, const lkv_step *step)
{
    const int32_t busy = __atomic_load_n(&m->busy, __ATOMIC_RELAXED);
    if (!busy && !pthread_rwlock_trywrlock(&m->lock))
        return 1;
    if (!may_run_beside(step)) {
        lkvi_lock(m);
        return 1;
    }
    const int32_t left = busy > (int32_t)step->num_seqs ? busy - (int32_t)step->num_seqs : 0;
    __atomic_store_n(&m->busy, busy ? left : BUSY_ROWS, __ATOMIC_RELAXED);
    return 0;
}

lkv_status lkvi_manager_step(struct lkvi_manager *m, lkv_step *step, lkv_admission *result)
{
    lkv_admission unwanted = {.size = sizeof unwanted};
    if (!result)
        result = &unwanted;
    if (!lock_whole(m, step)) {
        pthread_rwlock_rdlock(&m->lock);
        const int done = step_beside(m, step, result);
        pthread_rwlock_unlock(&m->lock);
        if (done)
            return LKV_OK;
        lkvi_lock(m);
    }
    return lkvi_unlock(m, step_locked(m, step, result));
}
