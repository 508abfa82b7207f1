/* lkv_append and lkv_gather of a LATENT_GQA pool, behind the checks that every pool has in common.
 */
#ifndef LKVI_API_HEADS_H
#define LKVI_API_HEADS_H

#include "api/objects.h"

lkv_status lkvi_append_heads(const lkv_pool *pool, const lkv_append_args *args, void *stream);
lkv_status lkvi_gather_heads(const lkv_pool *pool, const lkv_gather_args *args, void *stream);

#endif
