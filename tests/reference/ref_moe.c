/* Float64 twins of moe_cache/: one token or one value at a time, sorting by looking for the best
 * again and again, the window's values kept as a list. */
#include "tests/reference/ref_moe.h"

#include <math.h>
#include <stdlib.h>

static double dot(const float *w, const double *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)w[i] * x[i];
    return sum;
}

static void trace_logits(const struct ref_router *r, const double *x, double *logits)
{
    double *hidden = malloc(r->trace_dim * sizeof *hidden);
    for (uint32_t m = 0; m < r->trace_dim; m++) {
        double h = dot(r->trace_weight + (uint64_t)m * (r->hidden + 1), x, r->hidden + 1) +
                   r->trace_bias[m];
        hidden[m] = 0.5 * h * (1 + erf(h / sqrt(2)));
    }
    for (uint32_t e = 0; e < r->experts; e++)
        logits[e] = dot(r->weight + (uint64_t)e * r->trace_dim, hidden, r->trace_dim) + r->bias[e];
    free(hidden);
}

void ref_router_logits(const struct ref_router *r, const float *x, uint32_t layer, double *logits)
{
    double *wide = malloc((r->hidden + 1) * sizeof *wide);
    for (uint32_t i = 0; i < r->hidden; i++)
        wide[i] = x[i];
    wide[r->hidden] = layer;
    if (r->trace)
        trace_logits(r, wide, logits);
    for (uint32_t e = 0; e < r->experts && !r->trace; e++)
        logits[e] = dot(r->weight + (uint64_t)e * r->hidden, wide, r->hidden);
    free(wide);
}

static int32_t largest(const double *x, uint32_t n)
{
    int32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = (int32_t)i;
    return best;
}

static double group_score(const double *x, uint32_t n, int two)
{
    double first = -INFINITY, second = -INFINITY;
    int32_t at = largest(x, n);
    first = x[at];
    for (uint32_t i = 0; i < n; i++)
        if ((int32_t)i != at)
            second = fmax(second, x[i]);
    return two && n > 1 ? first + second : first;
}

static void mask_groups(const struct ref_router *r, double *value)
{
    uint32_t width = r->experts / r->groups;
    double *score = malloc(r->groups * sizeof *score);
    uint8_t *keep = calloc(r->groups, 1);
    for (uint32_t g = 0; g < r->groups; g++)
        score[g] = group_score(value + g * width, width, r->bias != NULL);
    for (uint32_t i = 0; i < r->topk_groups; i++) {
        int32_t g = largest(score, r->groups);
        keep[g] = 1;
        score[g] = -INFINITY;
    }
    for (uint32_t e = 0; e < r->experts; e++)
        if (!keep[e / width])
            value[e] = -INFINITY;
    free(score);
    free(keep);
}

void ref_router_scores(const struct ref_router *r, const double *logits, double *score,
                       double *value)
{
    double max = logits[largest(logits, r->experts)], sum = 0;
    for (uint32_t e = 0; e < r->experts; e++) {
        score[e] = r->trace ? exp((logits[e] - max) / r->temperature) : 1 / (1 + exp(-logits[e]));
        sum += score[e];
    }
    for (uint32_t e = 0; e < r->experts; e++) {
        score[e] = r->trace ? score[e] / sum : score[e];
        value[e] = r->trace ? logits[e] : score[e] + (r->bias ? (double)r->bias[e] : 0);
    }
    if (!r->trace && r->topk_groups < r->groups)
        mask_groups(r, value);
}

static double entropy(const double *score, uint32_t n)
{
    double sum = 0, h = 0;
    for (uint32_t e = 0; e < n; e++)
        sum += score[e];
    for (uint32_t e = 0; e < n; e++)
        if (score[e] > 0)
            h -= score[e] / sum * log(score[e] / sum);
    return h;
}

double ref_router_choose(const struct ref_router *r, const double *logits, int32_t *chosen,
                         double *weights)
{
    double *score = malloc(r->experts * sizeof *score), *value = malloc(r->experts * sizeof *value);
    double sum = 0, h;
    ref_router_scores(r, logits, score, value);
    for (uint32_t k = 0; k < r->top_k; k++) {
        chosen[k] = largest(value, r->experts);
        value[chosen[k]] = -INFINITY;
        weights[k] = score[chosen[k]];
        sum += weights[k];
    }
    for (uint32_t k = 0; k < r->top_k && !r->trace; k++)
        weights[k] *= r->scale / (r->normalise ? sum : 1);
    h = entropy(score, r->experts);
    free(score);
    free(value);
    return h;
}

/* ---- gate */

static void keep(struct ref_gate *g, double value)
{
    if (g->count == g->capacity) {
        g->capacity = g->capacity * 2 + 64;
        g->values = realloc(g->values, g->capacity * sizeof *g->values);
    }
    g->values[g->count++] = value;
}

static void end_window(struct ref_gate *g)
{
    double mean = 0, squares = 0;
    for (uint64_t i = 0; i < g->count; i++)
        mean += g->values[i] / (double)g->count;
    for (uint64_t i = 0; i < g->count; i++)
        squares += (g->values[i] - mean) * (g->values[i] - mean);
    if (g->count && !g->frozen)
        g->threshold = mean + g->stddevs * sqrt(squares / (double)g->count);
    g->count = g->steps = 0;
}

void ref_gate_step(struct ref_gate *g, const double *values, uint64_t n, uint8_t *triggered)
{
    double threshold = g->threshold;
    for (uint64_t i = 0; i < n; i++) {
        double limit = g->hysteresis > 0 && triggered[i] ? threshold - g->hysteresis : threshold;
        triggered[i] = values[i] > limit;
        keep(g, values[i]);
    }
    if (++g->steps == g->window)
        end_window(g);
}

uint32_t ref_fnv1a(const uint8_t *bytes, uint64_t n)
{
    uint64_t hash = 2166136261u;
    for (uint64_t i = 0; i < n; i++)
        hash = (hash ^ bytes[i]) * 16777619u % ((uint64_t)1 << 32);
    return (uint32_t)hash;
}
