/* In: a path. Out: a file there that is always a whole one. The bytes go to path.tmp and reach the
 * disk before the name does: rename() swaps the two in one step, so whoever is killed leaves the
 * old file or the new. The temporary name is fixed, so that crashes leave one file behind, not
 * many; a lock on it keeps two writers apart. */
#define _GNU_SOURCE
#include "api/snapshot_path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "core/alloc.h"
#include "core/status.h"

static lkv_status refuse(const char *path, const char *what)
{
    lkv_status status = errno == ENOENT ? LKV_E_NOT_FOUND : LKV_E_IO;
    return lkvi_fail(status, "%s cannot be %s: %s", path, what, strerror(errno));
}

/* Between our open and our lock the former writer may have renamed the file away: then the lock is
 * on what is a snapshot by now. */
static int is_still_named(int fd, const char *path)
{
    struct stat open_one, named;
    return !fstat(fd, &open_one) && !lstat(path, &named) && S_ISREG(open_one.st_mode) &&
           open_one.st_dev == named.st_dev && open_one.st_ino == named.st_ino;
}

static lkv_status open_locked(struct lkvi_new_file *f)
{
    f->fd = open(f->temporary, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (f->fd < 0)
        return refuse(f->temporary, "made");
    if (flock(f->fd, LOCK_EX | LOCK_NB) || !is_still_named(f->fd, f->temporary)) {
        close(f->fd);
        f->fd = -1;
        return lkvi_fail(LKV_E_BUSY, "%s is being written by somebody else, or is no plain file",
                         f->temporary);
    }
    return ftruncate(f->fd, 0) ? refuse(f->temporary, "emptied") : LKV_OK;
}

lkv_status lkvi_new_file_open(struct lkvi_new_file *f, const char *path)
{
    size_t bytes = strlen(path) + sizeof ".tmp";
    *f = (struct lkvi_new_file){.path = (char *)(uintptr_t)path, .fd = -1};
    f->temporary = lkvi_alloc(NULL, bytes);
    if (!f->temporary)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for a path of %zu bytes", bytes);
    snprintf(f->temporary, bytes, "%s.tmp", path);
    return open_locked(f);
}

/* The folder that holds path, so that the new name itself is on the disk. */
static lkv_status sync_folder(struct lkvi_new_file *f)
{
    char *slash = strrchr(f->temporary, '/');
    const char *folder = slash == f->temporary ? "/" : slash ? f->temporary : ".";
    if (slash)
        *slash = 0;
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int failed = fd < 0 || fsync(fd);
    lkv_status status = failed ? refuse(folder, "synchronised") : LKV_OK;
    if (fd >= 0)
        close(fd);
    return status;
}

lkv_status lkvi_new_file_commit(struct lkvi_new_file *f)
{
    if (fsync(f->fd))
        return refuse(f->temporary, "synchronised");
    if (rename(f->temporary, f->path))
        return refuse(f->path, "replaced");
    lkv_status status = sync_folder(f);
    lkvi_free(NULL, f->temporary);
    f->temporary = NULL;
    return status;
}

void lkvi_new_file_close(struct lkvi_new_file *f)
{
    if (f->temporary && f->fd >= 0)
        unlink(f->temporary);
    if (f->fd >= 0)
        close(f->fd);
    lkvi_free(NULL, f->temporary);
}

lkv_status lkvi_old_file_open(const char *path, int *fd, uint64_t *bytes)
{
    struct stat info;
    *fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (*fd < 0)
        return refuse(path, "opened");
    if (!fstat(*fd, &info) && S_ISREG(info.st_mode)) {
        *bytes = (uint64_t)info.st_size;
        return LKV_OK;
    }
    close(*fd);
    return lkvi_fail(LKV_E_INVALID, "%s is no plain file; need a snapshot", path);
}
