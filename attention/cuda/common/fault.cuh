/* Counts a fault in the pool's record; the first one also leaves its kind and place. */
#ifndef LKVI_ATTENTION_CUDA_FAULT_CUH
#define LKVI_ATTENTION_CUDA_FAULT_CUH

#include "quant/record.h"

namespace lkvi
{
__device__ __forceinline__ void note_fault(lkvi_fault_record *record, uint32_t kind, uint64_t token,
                                           int64_t index)
{
    if (!record)
        return;
    atomicAdd(reinterpret_cast<unsigned long long *>(&record->count), 1ull);
    if (atomicCAS(&record->first_kind, (uint32_t)LKV_FAULT_NONE, kind) == LKV_FAULT_NONE) {
        record->first_token = token;
        record->first_index = index;
    }
}
} // namespace lkvi
#endif
