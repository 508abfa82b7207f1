/* The routers' arithmetic for any processor: four registers of four lanes. */
#include <stdint.h>

#define LANES 4
typedef int32_t quad __attribute__((vector_size(16)));

static inline int mask_of(quad m)
{
    return (m[0] & 1) | (m[1] & 2) | (m[2] & 4) | (m[3] & 8);
}
#define MASK(m) mask_of(m)
#include "moe_cache/router_ops.inc"

const struct lkvi_route_ops lkvi_route_ops_portable = {"portable", linear, tame, sigmoid,
                                                       softmax,    best,   top2};
