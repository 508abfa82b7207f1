/* In: hashes of prefixes. Out: router logits that are the same for the same prefix on every run and
 * machine, with experts that are more or less popular. */
#include <math.h>
#include <stdlib.h>

#include "tools/common/out.h"
#include "tools/common/rng.h"
#include "tools/replay/moe.h"

enum { ROWS = 256, TABLES = 3 };

struct moe_source {
    uint32_t experts;
    float *popular; /* [E] */
    float *tables;  /* [TABLES, ROWS, E] */
};

struct moe_source *moe_source_new(const struct moe_options *o, uint64_t seed)
{
    struct moe_source *s = out_alloc(1, sizeof *s);
    uint64_t state = mix64(seed ^ 0x6d6f65);
    const size_t n = (size_t)TABLES * ROWS * o->experts;
    s->experts = o->experts;
    s->popular = out_alloc(o->experts, sizeof *s->popular);
    s->tables = out_alloc(n, sizeof *s->tables);
    for (uint32_t e = 0; e < o->experts; e++)
        s->popular[e] = (float)(o->skew * rng_normal(&state));
    for (size_t i = 0; i < n; i++)
        s->tables[i] = (float)(o->spread * 0.57735026918962576 * rng_normal(&state));
    return s;
}

static const float *row_of(const struct moe_source *s, uint32_t table, uint64_t row)
{
    return s->tables + ((size_t)table * ROWS + (row & (ROWS - 1))) * s->experts;
}

void moe_source_logits(const struct moe_source *s, const uint64_t *chain, uint64_t n, float *logits)
{
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t h = mix64(chain[i]); /* of layer 0, the only one */
        const float *x = row_of(s, 0, h), *y = row_of(s, 1, h >> 8), *z = row_of(s, 2, h >> 16);
        float *to = logits + i * s->experts;
        for (uint32_t e = 0; e < s->experts; e++)
            to[e] = s->popular[e] + ((x[e] + y[e]) + z[e]);
    }
}

void moe_source_free(struct moe_source *s)
{
    free(s->popular);
    free(s->tables);
    free(s);
}
