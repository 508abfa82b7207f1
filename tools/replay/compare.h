/* `lkv replay --compare`: lru and memory, the manager at shares of the working set beside plain
 * block LRU; malloc, its metadata in the private arena beside another build's heap. */
#ifndef TOOLS_REPLAY_COMPARE_H
#define TOOLS_REPLAY_COMPARE_H

#include "tools/replay/replay.h"

/* Runs the trace of r, sorted by arrival, once a share; the working set is known in r->result.
 * lru: prompts one at a time; memory: the scheduler. */
void compare_shares(struct replay *r);
/* Runs the same command line in a process of its own with r->options.library. */
void compare_malloc(struct replay *r, int argc, char *const *argv);
/* Resident anonymous memory of this process. */
int64_t compare_rss_bytes(void);
void compare_print(struct replay *r);
/* null without --compare; own: the object that it will be part of */
json_t *compare_json(const struct replay *r, const json_t *own);

#endif
