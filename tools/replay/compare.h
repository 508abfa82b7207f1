/* `lkv replay --compare lru`: the manager at shares of the working set beside plain block LRU. */
#ifndef TOOLS_REPLAY_COMPARE_H
#define TOOLS_REPLAY_COMPARE_H

#include "tools/replay/replay.h"

/* Runs the trace of r, sorted by arrival, once for each share. Needs the working set in r->result.
 */
void compare_run(struct replay *r);
void compare_print(const struct replay *r);
/* null without --compare */
json_t *compare_json(const struct replay *r);

#endif
