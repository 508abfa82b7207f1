/* What a pool gives back of keys and values: projected, stored in a format, gathered, expanded. */
#ifndef LKV_TOOLS_FIT_STORED_H
#define LKV_TOOLS_FIT_STORED_H

#include "tools/fit/fit.h"

/* ||x - x'|| / ||x|| over the held-out samples that f kept, all layers: all heads together, the
 * best head and the worst. Dies with the library's sentence where it refuses. */
struct truncation stored_error(const struct fit *f, const struct projector *p, uint32_t format,
                               uint32_t part);

#endif
