/* Faults of one CPU call: tasks note them from any thread, the end of the call adds them to the
 * pool's record. The idea: the fault that a call reports is that of its lowest token, whatever
 * thread met it first, so results do not depend on threads. */
#ifndef LKVI_QUANT_CPU_FAULT_H
#define LKVI_QUANT_CPU_FAULT_H

#include <stdatomic.h>
#include "quant/record.h"

struct lkvi_fault_sink {
    atomic_flag busy; /* guards the fields below; faults are rare, so a spin is enough */
    uint64_t count;
    uint64_t token;
    int64_t index;
    uint32_t kind; /* LKV_FAULT_*, NONE while count is 0 */
};

#define LKVI_FAULT_SINK                                                                            \
    {                                                                                              \
        .busy = ATOMIC_FLAG_INIT                                                                   \
    }

/* `count` faults of `kind` at row `token`; index as lkv_faults.first_index says. Any thread. */
void lkvi_fault_note(struct lkvi_fault_sink *sink, uint32_t kind, uint64_t token, int64_t index,
                     uint64_t count);
/* After the last note: adds the sink to record (may be NULL). With checked, a sink that is not
 * empty gives LKV_E_INVALID and a sentence that opens with `call`. */
lkv_status lkvi_fault_close(const struct lkvi_fault_sink *sink, struct lkvi_fault_record *record,
                            uint32_t checked, const char *call);

#endif
