/* The cached blocks of a pool to a file and back. The manager knows tokens, keys and order; the
 * bytes of records and planes come through `io`, from whoever knows the device. */
#ifndef LKVI_BLOCK_MANAGER_SNAPSHOT_H
#define LKVI_BLOCK_MANAGER_SNAPSHOT_H

#include "block_manager/manager.h"
#include "block_manager/snapshot_file.h"

struct lkvi_snapshot_io {
    void *user;
    /* Enqueue the copy of one block's payload; `wait` ends when all of them have. */
    lkv_status (*fetch)(void *user, uint32_t block, uint8_t *to);
    lkv_status (*store)(void *user, uint32_t block, const uint8_t *from);
    lkv_status (*wait)(void *user);
};

struct lkvi_snapshot {
    struct lkvi_snapshot_head head; /* in: the pool's words, sizes and planes; the rest is made */
    struct lkvi_secret secret;
    struct lkvi_snapshot_io io;
    uint64_t file_bytes; /* load: of the file; save: out */
    uint64_t num_blocks; /* out: in the file */
    uint64_t num_loaded; /* out of load: entered the pool */
    int fd;
    int reserved;
};

/* Writes every cached block whose data is there. Takes the lock for a few MB at a time: what is
 * evicted meanwhile is left out, with everything below it. */
lkv_status lkvi_snapshot_save(struct lkvi_manager *m, struct lkvi_snapshot *s);
/* Reads and checks the whole file under the lock, and only then publishes: all or nothing. Takes
 * free blocks alone; what finds none is left out, the longest unused first. */
lkv_status lkvi_snapshot_load(struct lkvi_manager *m, struct lkvi_snapshot *s);

#endif
