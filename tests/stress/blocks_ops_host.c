/* In: a walk. Out: one operation on its copies and tiers, in the library and in the twin: swaps,
 * demotions, copies that are run while sequences come and go, fences in any order. */
#include "tests/stress/blocks_ops_state.h"

static const char *compare_copies(struct ops *o, uint64_t *num)
{
    lkvi_manager_peek_copies(o->m, o->copies, REF_BLOCKS, num);
    if (*num != o->ref.num_copies)
        return FAIL("settle: %llu copies wait, want %u", (unsigned long long)*num,
                    o->ref.num_copies);
    for (uint64_t i = 0; i < *num; i++)
        if (o->copies[2 * i] != o->ref.copies[i].from ||
            o->copies[2 * i + 1] != o->ref.copies[i].to)
            return FAIL("settle: copy %llu is %d -> %d, want %d -> %d", (unsigned long long)i,
                        o->copies[2 * i], o->copies[2 * i + 1], o->ref.copies[i].from,
                        o->ref.copies[i].to);
    return NULL;
}

/* Some of the copies that wait are being run: from now on they cannot be taken back. */
const char *op_issue(struct ops *o)
{
    uint64_t num;
    o->name = "issue";
    uint32_t most = draw(o, 3) ? REF_BLOCKS : draw(o, 8);
    lkvi_manager_issue_copies(o->m, o->copies, most, &num);
    o->issued = num < most ? (uint32_t)num : most;
    o->ref.num_issued = o->issued;
    return NULL;
}

/* Of those that are being run, or of all, the first are enqueued; the others failed. */
const char *op_settle(struct ops *o)
{
    uint64_t num, fence = some_fence(o);
    o->name = "settle";
    const char *wrong = compare_copies(o, &num);
    if (wrong)
        return wrong;
    uint32_t most = o->issued ? o->issued : (uint32_t)num;
    uint32_t some = draw(o, 3) ? most : draw(o, most + 1);
    o->issued = 0;
    if (lkvi_manager_settle_copies(o->m, some, fence) != LKV_OK)
        return FAIL("settle: %s", lkv_last_error());
    return named(o, ref_settle(&o->ref, some, fence));
}

const char *op_swap_out(struct ops *o)
{
    uint32_t slot = some_slot(o, 1);
    uint64_t fence = some_fence(o);
    lkv_admission result = {.size = sizeof result};
    struct ref_seen seen = {.result = &result};
    o->name = "swap out";
    if (!o->seqs[slot])
        return NULL;
    seen.status = lkvi_seq_swap_out(o->m, o->seqs[slot], fence, &result);
    ops_look(o, o->seqs[slot], &seen);
    return named(o, ref_swap_out(&o->ref, slot, fence, &seen));
}

const char *op_swap_in(struct ops *o)
{
    uint32_t slot = some_slot(o, 1), i = 0;
    lkv_admission result = {.size = sizeof result};
    struct ref_seen seen = {.result = &result};
    o->name = "swap in";
    for (; i < LIVE_SEQS && draw(o, 8) && !o->ref.seqs[slot].swapped; i++)
        slot = (slot + 1) % LIVE_SEQS;
    if (!o->seqs[slot])
        return NULL;
    seen.status = lkvi_seq_swap_in(o->m, o->seqs[slot], &result);
    ops_look(o, o->seqs[slot], &seen);
    return named(o, ref_swap_in(&o->ref, slot, &seen));
}

const char *op_demote(struct ops *o)
{
    uint64_t n = draw(o, 3) ? draw(o, 40) : draw(o, 4), queued = 0;
    struct ref_seen seen = {.table = o->table};
    o->name = "demote";
    seen.status = lkvi_manager_demote(o->m, n, &queued);
    if (seen.status == LKV_E_NO_HOST_SPACE && o->ref.num_ids == o->ref.num_blocks)
        return NULL;
    if (seen.status != LKV_OK)
        return FAIL("demote: status %d %s", seen.status, lkv_last_error());
    ops_look(o, 0, &seen);
    return named(o, ref_demote(&o->ref, n, queued, &seen));
}
