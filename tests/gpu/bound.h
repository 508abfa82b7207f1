/* How far lse and entropy may be from float64, from what a kernel rounds: see bound.c. */
#ifndef LKVT_GPU_BOUND_H
#define LKVT_GPU_BOUND_H

#include "tests/reference/ref_attention.h"

struct bound {
    double lse, entropy;
};

/* Of one row over keys 0 .. visible - 1; the first `latent` dims of q are the latent part, whose
 * operand depends on the format (LKV_FORMAT_*). */
struct bound bound_of(const struct ref_context *c, int64_t visible, const double *q,
                      uint32_t latent, double scale, uint32_t format);

#endif
