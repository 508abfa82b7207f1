/* Trace ids into tokens. Equal (space, id) gives equal tokens, different ones differ within their
 * first three tokens, so the manager finds exactly the prefixes that the trace has. */
#ifndef TOOLS_REPLAY_EXPAND_H
#define TOOLS_REPLAY_EXPAND_H

#include <stdint.h>
#include "tools/replay/trace.h"

struct expander {
    const struct trace *trace;
    uint64_t seed;
    int32_t *tokens; /* of the last request expanded */
    uint64_t capacity, length;
    const struct trace_request *last;
};

/* The prompt's tokens, input_length of them; valid until the next call. Tokens that consecutive
 * requests of one space share are not written again. */
const int32_t *expand_prompt(struct expander *e, uint64_t request);
/* Token j of what request generates: unlike any prompt. */
int32_t expand_output(const struct expander *e, uint64_t request, uint64_t j);
void expand_free(struct expander *e);

#endif
