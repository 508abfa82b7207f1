/* The choice of a second expert. Pure functions. */
#ifndef LKVI_MOE_CACHE_FALLBACK_H
#define LKVI_MOE_CACHE_FALLBACK_H

#include <stdint.h>
#include "latentkv/moe_cache.h"

/* FNV-1a, 32 bits, over the 4 little-endian bytes of x. */
uint32_t lkvi_fnv1a(uint32_t x);
/* The fallback of one primary, -1 none; args are checked, residency is not looked at. */
int32_t lkvi_fallback_of(const lkv_fallback_args *args, int32_t primary);
void lkvi_fallback_choose(lkv_fallback_args *args);

#endif
