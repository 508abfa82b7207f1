/* In: rows of primary and fallback experts, or rows to be measured. Out: joined rows, or a scale a
 * row. Rows are independent; the running mean of norms is summed in row order after all of them, so
 * threads never change a result. */
#include "moe_cache/combine.h"

#include <math.h>
#include <string.h>

static float from_bf16(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Nearest even; a NaN stays one. */
static uint16_t to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (isnan(x))
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* out = a * p + w * f with a 1 or 0; a 0 does not read p. */
static void join_f32(float *out, const float *p, const float *f, float w, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = p ? p[i] + w * f[i] : w * f[i];
}

static void join_bf16(uint16_t *out, const uint16_t *p, const uint16_t *f, float w, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = to_bf16((p ? from_bf16(p[i]) : 0) + w * from_bf16(f[i]));
}

static void combine_row(void *arg, uint64_t t, uint32_t worker)
{
    const struct lkvi_combine *c = arg;
    const void *primary = c->primary.data + t * c->primary.stride_bytes;
    const void *fallback = c->fallback.data + t * c->fallback.stride_bytes;
    void *out = c->out.data + t * c->out.stride_bytes;
    float w = c->weight ? c->weight[t] : 1;
    (void)worker;
    if (c->chosen[t] < 0 || c->mode == LKV_COMBINE_STAT_ONLY) {
        if (out != primary)
            memmove(out, primary, (uint64_t)c->dim * (c->is_bf16 ? 2 : 4));
        return;
    }
    if (c->mode == LKV_COMBINE_SUBSTITUTE)
        primary = NULL;
    if (c->is_bf16)
        join_bf16(out, primary, fallback, w, c->dim);
    else
        join_f32(out, primary, fallback, w, c->dim);
}

void lkvi_combine(const struct lkvi_combine *c, struct lkvi_threads *threads)
{
    struct lkvi_combine args = *c;
    lkvi_threads_run(threads, c->num_rows, combine_row, &args);
}

/* ---- token-aware normalisation */

/* In double: no row of finite fp32 values overflows. The norm waits in scale[t]. */
static void norm_row(void *arg, uint64_t t, uint32_t worker)
{
    const struct lkvi_token_scale *s = arg;
    const void *row = s->x.data + t * s->x.stride_bytes;
    double sum = 0;
    (void)worker;
    for (uint32_t i = 0; i < s->dim; i++) {
        double v = s->is_bf16 ? from_bf16(((const uint16_t *)row)[i]) : ((const float *)row)[i];
        sum += v * v;
    }
    s->scale[t] = (float)sqrt(sum);
}

static void update_mean(struct lkvi_token_scale *s, double sum, uint64_t rows)
{
    if (!rows)
        return;
    double mean = sum / (double)rows;
    if (!s->count)
        s->mean = mean;
    else if (s->decay > 0)
        s->mean += s->decay * (mean - s->mean);
    else
        s->mean += (mean - s->mean) * ((double)rows / ((double)s->count + (double)rows));
    s->count += rows;
}

void lkvi_token_scale(struct lkvi_token_scale *s, struct lkvi_threads *threads)
{
    double sum = 0;
    uint64_t rows = 0;
    lkvi_threads_run(threads, s->num_rows, norm_row, s);
    for (uint64_t t = 0; t < s->num_rows; t++)
        if (isfinite(s->scale[t])) {
            sum += s->scale[t];
            rows++;
        }
    double mean = s->count ? s->mean : rows ? sum / (double)rows : 0;
    for (uint64_t t = 0; t < s->num_rows; t++) {
        double scale = isfinite(s->scale[t]) && mean > 0 ? s->scale[t] / mean : 1;
        s->scale[t] = (float)fmin(fmax(scale, s->low), s->high);
    }
    update_mean(s, sum, rows);
}
