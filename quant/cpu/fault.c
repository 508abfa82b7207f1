/* The fault sink of a call and its way into the pool's record. See fault.h. */
#include "quant/cpu/fault.h"
#include "core/status.h"

void lkvi_fault_note(struct lkvi_fault_sink *sink, uint32_t kind, uint64_t token, int64_t index,
                     uint64_t count)
{
    while (atomic_flag_test_and_set_explicit(&sink->busy, memory_order_acquire))
        ;
    if (sink->count == 0 || token < sink->token) {
        sink->token = token;
        sink->index = index;
        sink->kind = kind;
    }
    sink->count += count;
    atomic_flag_clear_explicit(&sink->busy, memory_order_release);
}

static void add_to_record(const struct lkvi_fault_sink *sink, struct lkvi_fault_record *record)
{
    uint32_t none = LKV_FAULT_NONE;
    __atomic_fetch_add(&record->count, sink->count, __ATOMIC_RELAXED);
    if (!__atomic_compare_exchange_n(&record->first_kind, &none, sink->kind, 0, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED))
        return;
    __atomic_store_n(&record->first_token, sink->token, __ATOMIC_RELAXED);
    __atomic_store_n(&record->first_index, sink->index, __ATOMIC_RELEASE);
}

static const char *kind_text(uint32_t kind)
{
    switch (kind) {
    case LKV_FAULT_NON_FINITE:
        return "a value that is not finite, element";
    case LKV_FAULT_SLOT:
        return "a slot out of range, slot";
    case LKV_FAULT_LENGTH:
        return "a length or position out of range, found";
    default:
        return "a block id out of range, block";
    }
}

lkv_status lkvi_fault_close(const struct lkvi_fault_sink *sink, struct lkvi_fault_record *record,
                            uint32_t checked, const char *call)
{
    if (sink->count == 0)
        return LKV_OK;
    if (record)
        add_to_record(sink, record);
    if (!checked)
        return LKV_OK;
    return lkvi_fail(LKV_E_INVALID, "%s: row %llu has %s %lld; %llu faults in this call, want none",
                     call, (unsigned long long)sink->token, kind_text(sink->kind),
                     (long long)sink->index, (unsigned long long)sink->count);
}
