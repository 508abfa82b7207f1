/* The entropy gate over a model's own attention: one step a token, whose rows are its layers. */
#ifndef LKV_TOOLS_ENGINE_UNCERTAIN_H
#define LKV_TOOLS_ENGINE_UNCERTAIN_H

#include <jansson.h>
#include <stdint.h>
#include "tools/engine/api.h"
#include "tools/engine/model.h"

struct uncertain;
/* api is borrowed; the gate has the library's defaults. A failure ends the command. */
struct uncertain *uncertain_new(const struct engine_api *api, const struct model_config *model,
                                uint32_t max_chunk);
/* For session_options.entropy. */
float *uncertain_room(struct uncertain *u);
/* The first n rows of the room are the next n tokens. */
void uncertain_ask(struct uncertain *u, uint32_t n);
/* Writes what each token had and got to path, frees, and returns the gate's figures. */
json_t *uncertain_end(struct uncertain *u, const char *path);

#endif
