/* In: entropies of a batch. Out: which rows are above the threshold; the next threshold.
 * A call's values are summed around the first of them and merged into the window's mean and squared
 * distances (Chan, Golub, LeVeque 1979): one division a call, not one a value, and no cancellation
 * however long the window is. Equal values give a deviation of exactly 0. */
#include "moe_cache/gate.h"

#include <math.h>

struct sums {
    double origin, sum, squares;
    uint64_t count;
};

enum { LANES = 16 };

/* Partial sums, so that the chain of additions is short and the compiler has lanes. */
static float sum_of(const float *h, uint32_t n)
{
    float sum[LANES] = {0};
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t k = 0; k < LANES; k++)
            sum[k] += h[i + k];
    for (; i < n; i++)
        sum[0] += h[i];
    for (uint32_t k = 1; k < LANES; k++)
        sum[0] += sum[k];
    return sum[0];
}

static float max_of(const float *h, uint32_t n)
{
    float max[LANES];
    uint32_t i = 0;
    for (uint32_t k = 0; k < LANES; k++)
        max[k] = h[0];
    for (; i + LANES <= n; i += LANES)
        for (uint32_t k = 0; k < LANES; k++)
            max[k] = h[i + k] > max[k] ? h[i + k] : max[k];
    for (; i < n; i++)
        max[0] = h[i] > max[0] ? h[i] : max[0];
    for (uint32_t k = 1; k < LANES; k++)
        max[0] = max[k] > max[0] ? max[k] : max[0];
    return max[0];
}

/* One value that is not finite makes the sum so, and the answer. */
static float reduce(const float *h, uint32_t n, uint32_t how)
{
    float sum = sum_of(h, n);
    if (how == LKV_GATE_MAX && isfinite(sum))
        return max_of(h, n);
    return sum / (float)n;
}

static void add(struct sums *s, double value)
{
    if (!s->count++)
        s->origin = value;
    value -= s->origin;
    s->sum += value;
    s->squares += value * value;
}

static void merge(lkv_gate_state *state, const struct sums *s)
{
    if (!s->count)
        return;
    double n = (double)s->count, mean = s->origin + s->sum / n;
    double m2 = s->squares - s->sum * s->sum / n, distance = mean - state->mean;
    double before = (double)state->count, after = before + n;
    if (!state->count) {
        state->mean = mean;
        state->m2 = fmax(m2, 0);
    } else {
        state->mean += distance * (n / after);
        state->m2 += fmax(m2, 0) + distance * distance * (before * n / after);
    }
    state->count += s->count;
}

static void end_step(const lkv_gate_desc *desc, lkv_gate_state *state)
{
    if (++state->steps < desc->window_steps)
        return;
    if (state->count && !state->frozen) {
        state->threshold = state->mean + desc->stddevs * sqrt(state->m2 / (double)state->count);
        state->windows++;
    }
    state->steps = state->count = 0;
    state->mean = state->m2 = 0;
}

void lkvi_gate_step(const lkv_gate_desc *desc, lkv_gate_state *state, struct lkvi_gate_rows *rows)
{
    struct sums s = {0, 0, 0, 0};
    double on = state->threshold, stay = on - desc->hysteresis;
    rows->num_triggered = rows->num_skipped = 0;
    for (uint64_t t = 0; t < rows->num_rows; t++) {
        float h = 0;
        uint8_t answer = 0;
        if (!rows->active || rows->active[t]) {
            h = reduce(rows->entropy + t * rows->row_stride, rows->num_heads, desc->reduce);
            if (isfinite(h)) {
                double limit = desc->hysteresis > 0 && rows->triggered[t] ? stay : on;
                answer = (double)h > limit;
                add(&s, h);
            } else {
                rows->num_skipped++;
            }
        }
        rows->triggered[t] = answer;
        rows->num_triggered += answer;
        if (rows->reduced)
            rows->reduced[t] = h;
    }
    state->total += s.count;
    state->triggered += rows->num_triggered;
    state->skipped += rows->num_skipped;
    merge(state, &s);
    end_step(desc, state);
}
