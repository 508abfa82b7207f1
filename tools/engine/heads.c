/* In: rows of kv_a_proj and turned rope parts. Out: key = [W_UK c | rope], value = W_UV c of every
 * head, c the normalised latent: the decompressed form of MLA, in float32. */
#include "tools/engine/heads.h"

#include <stdlib.h>
#include <string.h>

#include "tools/engine/gemm.h"

static int floats(float **out, size_t count, struct engine_error *error)
{
    *out = aligned_alloc(64, (count * sizeof **out + 63) / 64 * 64);
    return *out ? 0 : engine_fail(error, "out of memory: %zu floats", count);
}

int heads_create(struct heads *h, const struct model_config *c, uint32_t chunk,
                 struct engine_error *error)
{
    const size_t n = chunk, heads = c->num_heads;
    memset(h, 0, sizeof *h);
    return floats(&h->latents, n * c->latent_dim, error) ||
                   floats(&h->rope, n * c->rope_dim, error) ||
                   floats(&h->expanded, n * heads * (c->nope_dim + c->v_dim), error) ||
                   floats(&h->keys, n * heads * (c->nope_dim + c->rope_dim), error) ||
                   floats(&h->values, n * heads * c->v_dim, error)
               ? -1
               : 0;
}

void heads_free(struct heads *h)
{
    free(h->latents);
    free(h->rope);
    free(h->expanded);
    free(h->keys);
    free(h->values);
    memset(h, 0, sizeof *h);
}

/* One token's heads out of its row of kv_b_proj. */
static void split_row(const struct heads *h, const struct model_config *c, uint32_t token)
{
    const size_t nope = c->nope_dim, rope = c->rope_dim, value = c->v_dim;
    for (size_t head = 0; head < c->num_heads; head++) {
        const size_t at = (size_t)token * c->num_heads + head;
        const float *from = h->expanded + at * (nope + value);
        float *key = h->keys + at * (nope + rope);
        memcpy(key, from, nope * sizeof *key);
        memcpy(key + nope, h->rope + token * rope, rope * sizeof *key);
        memcpy(h->values + at * value, from + nope, value * sizeof *from);
    }
}

void heads_expand(struct heads *h, const struct model *model, uint32_t layer, const float *kv,
                  uint32_t n, uint32_t num_threads)
{
    const struct model_config *c = &model->config;
    const struct layer_weights *w = &model->layers[layer];
    const size_t latent = c->latent_dim, row = latent + c->rope_dim;
    for (size_t i = 0; i < n; i++)
        memcpy(h->latents + i * latent, kv + i * row, latent * sizeof *kv);
    rms_norm(h->latents, w->kv_a_norm, h->latents, n, latent, c->rms_eps);
    struct gemm g = {.x = h->latents, .w = w->kv_b_proj, .y = h->expanded, .m = n};
    g.n = (size_t)c->num_heads * (c->nope_dim + c->v_dim);
    g.k = g.x_stride = latent;
    gemm_run(&g, num_threads);
    for (uint32_t i = 0; i < n; i++)
        split_row(h, c, i);
}
