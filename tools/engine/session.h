/* One sequence running through the model over a latentkv pool of one format. */
#ifndef LKV_TOOLS_ENGINE_SESSION_H
#define LKV_TOOLS_ENGINE_SESSION_H

#include <stdint.h>
#include "tools/engine/api.h"
#include "tools/engine/model.h"
#include "tools/engine/projector.h"

/* Keys and values of every head, once a layer and chunk. Lent for the call. */
struct session_tap {
    uint32_t layer, first, count; /* tokens [first, first + count) of the sequence */
    const float *keys, *values;   /* [count, heads, nope + rope], [count, heads, v] */
};

struct session_options {
    uint32_t format;       /* LKV_FORMAT_* */
    uint32_t encode_flags; /* LKV_ENCODE_* */
    int32_t device;        /* LKV_DEVICE_CPU or a CUDA ordinal */
    /* NULL, or host [num_layers, max_chunk, num_heads]: entropies in nats of the rows of the last
     * session_run. CPU only. */
    float *entropy;
    uint32_t num_threads;
    uint32_t tokens_per_block;
    uint32_t max_tokens; /* of the sequence */
    uint32_t max_chunk;  /* tokens of one session_run */
    /* NULL: the model's own MLA cache. Else keys and values of every head, projected, in a
     * LATENT_GQA cache. Borrowed. CPU only. */
    const struct projector *projector;
    void (*tap)(void *user, const struct session_tap *tap);
    void *tap_user; /* tap NULL: none. CPU only. */
};

struct session;

/* api and model are borrowed and must outlive the session. */
int session_create(const struct engine_api *api, const struct model *model,
                   const struct session_options *options, struct session **out,
                   struct engine_error *error);
void session_free(struct session *session);

/* Feeds n tokens behind those already there and writes logits [n, vocab]. On failure the session
 * can only be freed. */
int session_run(struct session *session, const int32_t *tokens, uint32_t n, float *logits,
                struct engine_error *error);
/* Walks the pool's invariants and reads its fault record: anything found is an error. */
int session_check(struct session *session, struct engine_error *error);
/* Bytes a cached token takes over all layers. */
uint64_t session_token_bytes(const struct session *session);

#endif
