/* A bar on stderr for long work, drawn at most ten times a second and only on a terminal. */
#ifndef TOOLS_COMMON_PROGRESS_H
#define TOOLS_COMMON_PROGRESS_H

#include <stdint.h>

struct progress {
    const char *label;
    uint64_t total, drawn_ns;
    int on;
};

void progress_start(struct progress *p, const char *label, uint64_t total);
void progress_show(struct progress *p, uint64_t done);
void progress_end(struct progress *p); /* wipes the line */

#endif
