/* What a pool descriptor means in bytes and blocks, without a device. */
#ifndef LKVI_API_POOL_SHAPE_H
#define LKVI_API_POOL_SHAPE_H

#include "api/objects.h"

/* Checks every field of an admitted descriptor but its pointers, and lays the pool out. */
lkv_status lkvi_pool_shape(const lkv_pool_desc *desc, struct lkvi_pool_shape *out);
/* DESIGN "Pool identity": two pools may exchange blocks only if these 32 bytes are equal. */
void lkvi_pool_identity(const lkv_pool_desc *desc, uint8_t digest[32]);

#endif
