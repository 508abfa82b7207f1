/* See stored.h. The library's own append and gather do the rounding; what is added here is up times
 * latent, in float64. */
#include "tools/fit/stored.h"

#include <math.h>
#include <stdlib.h>

#include "tools/common/out.h"

enum { BLOCK_TOKENS = 64 };

/* A pool for one layer's kept samples, and its projector. */
struct store {
    const struct fit *fit;
    const struct projector *p;
    lkv_context *ctx;
    lkv_pool *pool;
    lkv_weights *weights;
    uint32_t layer;
    uint64_t count;
    float *latents[NUM_PARTS]; /* [count, heads, L] */
};

static lkv_tensor cube(void *data, uint64_t a, uint64_t b, uint64_t c)
{
    return (lkv_tensor){.data = data,
                        .dtype = LKV_DTYPE_F32,
                        .ndim = 3,
                        .shape = {(int64_t)a, (int64_t)b, (int64_t)c},
                        .stride = {(int64_t)(b * c), (int64_t)c, 1}};
}

static void open_pool(struct store *s, uint32_t format)
{
    const struct projector *p = s->p;
    const lkv_pool_desc desc = {.size = sizeof desc,
                                .kind = LKV_KIND_LATENT_GQA,
                                .format = format,
                                .owner = LKV_OWNER_ENGINE,
                                .tokens_per_block = BLOCK_TOKENS,
                                .latent_dim = p->latent[PART_KEY],
                                .value_latent_dim = p->latent[PART_VALUE],
                                .num_kv_heads = p->num_heads,
                                .num_layers = 1,
                                .num_blocks = (s->count + BLOCK_TOKENS - 1) / BLOCK_TOKENS};
    const lkv_context_desc cpu = {.size = sizeof cpu, .device = LKV_DEVICE_CPU};
    out_must(lkv_context_create(&cpu, &s->ctx), "context");
    out_must(lkv_pool_create(s->ctx, &desc, &s->pool), "pool");
}

static void open_weights(struct store *s)
{
    const struct projector *p = s->p;
    const struct projector_layer *l = &p->layers[s->layer];
    const lkv_model_desc model = {.size = sizeof model,
                                  .num_layers = 1,
                                  .num_heads = p->num_heads,
                                  .latent_dim = p->latent[PART_KEY],
                                  .nope_dim = p->dim[PART_KEY],
                                  .v_dim = p->dim[PART_VALUE]};
    lkv_tensor t[2 * NUM_PARTS];
    for (uint32_t i = 0; i < 2 * NUM_PARTS; i++)
        t[i] = cube(i % 2 ? l->up[i / 2] : l->down[i / 2], p->num_heads, p->dim[i / 2],
                    p->latent[i / 2]);
    const lkv_weights_desc desc = {.size = sizeof desc,
                                   .key_down = &t[0],
                                   .key_up = &t[1],
                                   .value_down = &t[2],
                                   .value_up = &t[3]};
    out_must(lkv_weights_create(s->ctx, &model, &desc, &s->weights), "projector");
}

/* In and out again. */
static void round_trip(struct store *s)
{
    const struct projector *p = s->p;
    int64_t *slots = out_alloc(s->count, sizeof *slots);
    lkv_tensor in[NUM_PARTS], out[NUM_PARTS];
    for (uint64_t i = 0; i < s->count; i++)
        slots[i] = (int64_t)i;
    for (uint32_t part = 0; part < NUM_PARTS; part++) {
        s->latents[part] = out_alloc(s->count * p->num_heads * p->latent[part], sizeof(float));
        in[part] = cube(s->fit->kept[part][s->layer], s->count, p->num_heads, p->dim[part]);
        out[part] = cube(s->latents[part], s->count, p->num_heads, p->latent[part]);
    }
    const lkv_append_args append = {.size = sizeof append,
                                    .latent = &in[PART_KEY],
                                    .value = &in[PART_VALUE],
                                    .weights = s->weights,
                                    .slots = slots,
                                    .flags = LKV_APPEND_CHECKED};
    const lkv_gather_args gather = {
        .size = sizeof gather, .latent = &out[PART_KEY], .value = &out[PART_VALUE], .slots = slots};
    out_must(lkv_append(s->pool, &append, NULL), "append");
    out_must(lkv_gather(s->pool, &gather, NULL), "gather");
    free(slots);
}

/* Squares of what is missing of one row, and of the row. */
static void add_row(const struct store *s, uint32_t part, uint32_t head, uint64_t row,
                    double sums[2])
{
    const uint32_t dim = s->p->dim[part], latent = s->p->latent[part];
    const float *up = s->p->layers[s->layer].up[part] + (size_t)head * dim * latent;
    const float *x = s->fit->kept[part][s->layer] + row * dim;
    const float *z = s->latents[part] + row * latent;
    for (uint32_t d = 0; d < dim; d++) {
        double sum = x[d];
        for (uint32_t k = 0; k < latent; k++)
            sum -= (double)up[(size_t)d * latent + k] * z[k];
        sums[0] += sum * sum;
        sums[1] += (double)x[d] * x[d];
    }
}

static void measure(const struct store *s, uint32_t part, double all[2], struct truncation *t)
{
    for (uint32_t head = 0; head < s->p->num_heads; head++) {
        double sums[2] = {0};
        for (uint64_t i = 0; i < s->count; i++)
            add_row(s, part, head, i * s->p->num_heads + head, sums);
        const double error = sqrt(sums[0] / sums[1]);
        t->least = error < t->least ? error : t->least;
        t->most = error > t->most ? error : t->most;
        all[0] += sums[0];
        all[1] += sums[1];
    }
}

struct truncation stored_error(const struct fit *f, const struct projector *p, uint32_t format,
                               uint32_t part)
{
    struct truncation t = {.fit = NAN, .least = INFINITY};
    double all[2] = {0};
    for (uint32_t layer = 0; layer < p->num_layers; layer++) {
        struct store s = {.fit = f, .p = p, .layer = layer, .count = f->num_kept[layer]};
        open_pool(&s, format);
        open_weights(&s);
        round_trip(&s);
        measure(&s, part, all, &t);
        for (uint32_t i = 0; i < NUM_PARTS; i++)
            free(s.latents[i]);
        lkv_weights_release(s.weights);
        lkv_pool_release(s.pool);
        lkv_context_release(s.ctx);
    }
    t.held_out = sqrt(all[0] / all[1]);
    return t;
}
