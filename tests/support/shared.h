/* Where the project's shared input lies (models, traces, cases): LKV_SHARED if it is set, else the
 * folder `shared` beside the checkout. A test that needs a file asks shared_path and says what it
 * skipped when the answer is NULL. */
#ifndef LKVT_SUPPORT_SHARED_H
#define LKVT_SUPPORT_SHARED_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#ifndef LKV_SOURCE_DIR
#define LKV_SOURCE_DIR "."
#endif

/* buffer gets the path of `name` below the shared folder; NULL if nothing readable is there. */
static inline const char *shared_path(const char *name, char *buffer, size_t bytes)
{
    const char *root = getenv("LKV_SHARED");
    int n = root ? snprintf(buffer, bytes, "%s/%s", root, name)
                 : snprintf(buffer, bytes, "%s/../shared/%s", LKV_SOURCE_DIR, name);
    return n > 0 && (size_t)n < bytes && access(buffer, R_OK) == 0 ? buffer : NULL;
}

#endif
