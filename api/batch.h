/* A caller's batch, checked against a plan; shared by plan.c and attend.c. */
#ifndef LKVI_API_BATCH_H
#define LKVI_API_BATCH_H

#include "api/objects.h"

/* Admits and checks what needs no look into device arrays. */
lkv_status lkvi_batch_view(const struct lkv_plan *plan, const lkv_batch *given,
                           struct lkvi_batch_view *out);
/* CPU only: the arrays themselves. checked adds q_len <= seq_len, which is a fault otherwise. */
lkv_status lkvi_batch_lengths(const struct lkv_plan *plan, const struct lkvi_batch_view *batch,
                              uint32_t checked);

#endif
