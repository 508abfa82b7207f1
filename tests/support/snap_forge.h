/* A forger's tool for snapshots without a secret: makes every seal of changed bytes right again, as
 * far as the file can be walked, so that what lies behind the seals is reached. */
#ifndef LKVT_SUPPORT_SNAP_FORGE_H
#define LKVT_SUPPORT_SNAP_FORGE_H

#include <stdint.h>
#include <string.h>
#include "block_manager/snapshot_file.h"

static inline void forge_seals(uint8_t *file, size_t bytes)
{
    const struct lkvi_secret none = {NULL, 0, 0};
    struct lkvi_snapshot_head head;
    struct lkvi_snapshot_record record;
    struct lkvi_sealer body;
    if (bytes < sizeof head)
        return;
    memcpy(&head, file, sizeof head);
    lkvi_seal_begin(&body, &none);
    for (uint64_t at = sizeof head, i = 0; i < head.num_blocks; i++) {
        if (bytes - at < sizeof record)
            break;
        memcpy(&record, file + at, sizeof record);
        uint64_t length = lkvi_snapshot_record_bytes(&head, record.keys_bytes);
        if (length > bytes - at)
            break;
        lkvi_seal_record(file + at, length, &none, record.seal);
        memcpy(file + at, &record, sizeof record);
        lkvi_seal_add(&body, record.seal, sizeof record.seal);
        at += length;
    }
    lkvi_seal_end(&body, head.body);
    lkvi_seal_head(&head, &none, head.seal);
    memcpy(file, &head, sizeof head);
}

#endif
