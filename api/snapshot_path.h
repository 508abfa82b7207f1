/* Files that are replaced whole or not at all. */
#ifndef LKVI_API_SNAPSHOT_PATH_H
#define LKVI_API_SNAPSHOT_PATH_H

#include <stdint.h>
#include "latentkv/latentkv.h"

struct lkvi_new_file {
    char *path, *temporary; /* path is borrowed */
    int fd;
    int reserved;
};

/* An empty file beside path, locked against other writers. */
lkv_status lkvi_new_file_open(struct lkvi_new_file *f, const char *path);
/* The bytes, then the name, are on the disk; path is the new file. */
lkv_status lkvi_new_file_commit(struct lkvi_new_file *f);
/* Always; without a commit before, the temporary file goes. */
void lkvi_new_file_close(struct lkvi_new_file *f);

/* A regular file for reading, and its length. */
lkv_status lkvi_old_file_open(const char *path, int *fd, uint64_t *bytes);

#endif
