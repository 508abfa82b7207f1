/* Device memory that is filled on the host: on the CPU both are the same bytes. */
#ifndef LKVI_API_STAGING_H
#define LKVI_API_STAGING_H

#include "core/context.h"

struct lkvi_staging {
    void *host;   /* write here */
    void *device; /* the result's address; the caller owns it after a successful close */
    uint64_t bytes;
};

lkv_status lkvi_staging_open(struct lkv_context *ctx, uint64_t bytes, struct lkvi_staging *out);
/* Uploads and gives the host side back. On failure the device side is freed too. May synchronise.
 */
lkv_status lkvi_staging_close(struct lkv_context *ctx, struct lkvi_staging *staging);
/* Host view of device memory for reading: on the CPU the memory itself, else a copy that
 * lkvi_staging_forget frees. */
lkv_status lkvi_staging_fetch(struct lkv_context *ctx, const void *device, uint64_t bytes,
                              struct lkvi_staging *out);
void lkvi_staging_forget(struct lkv_context *ctx, struct lkvi_staging *staging);

#endif
