/* The two rows of `lkv replay --compare malloc`. */
#ifndef TOOLS_REPLAY_HEAPS_H
#define TOOLS_REPLAY_HEAPS_H

#include "tools/replay/replay.h"

/* own: the finished object of this process */
json_t *heaps_json(const struct replay *r, const json_t *own);
void heaps_print(const json_t *compare);

#endif
