/* The options of `lkv replay`, which other commands that run a replay take too. */
#ifndef TOOLS_REPLAY_COMMAND_LINE_H
#define TOOLS_REPLAY_COMMAND_LINE_H

#include "tools/common/options.h"
#include "tools/replay/replay.h"

/* Fills *o with defaults, then from the command line; own: further rows of the command. Wrong text
 * ends the command. */
void replay_parse(int argc, char **argv, const char *doc, struct replay_options *o,
                  const struct option_row *own, size_t num_own);

#endif
