/* The oracle of RoPE. See ref_rope.h. */
#include "tests/reference/ref_rope.h"

#include <math.h>

static const double two_pi = 6.283185307179586476925;

/* The pair that turns `turns` times over the original context, as a real number. */
static double pair_with_turns(const lkv_model_desc *m, double turns)
{
    double ratio = m->yarn_original_positions / (turns * two_pi);
    return m->rope_dim * log(ratio) / (2 * log(m->rope_theta));
}

double ref_rope_frequency(const lkv_model_desc *m, uint32_t i)
{
    double f = pow(m->rope_theta, -2.0 * i / m->rope_dim), low, high, blend;
    if (m->rope_factors)
        f /= m->rope_factors[i];
    if (m->yarn_factor <= 1 || !m->yarn_original_positions)
        return f;
    low = fmax(floor(pair_with_turns(m, m->yarn_beta_fast)), 0);
    high = fmin(ceil(pair_with_turns(m, m->yarn_beta_slow)), m->rope_dim - 1);
    if (high == low)
        high += 0.001;
    blend = fmin(fmax((i - low) / (high - low), 0), 1); /* 0: as trained, 1: stretched */
    return f * (1 - blend) + f / m->yarn_factor * blend;
}

static double stretch(double factor, double mscale)
{
    return factor > 1 ? 0.1 * mscale * log(factor) + 1 : 1;
}

double ref_rope_amplitude(const lkv_model_desc *m)
{
    if (m->yarn_factor <= 1 || !m->yarn_original_positions)
        return 1;
    return stretch(m->yarn_factor, m->yarn_mscale) /
           stretch(m->yarn_factor, m->yarn_mscale_all_dim);
}

void ref_rope_turn(const lkv_model_desc *m, int32_t position, double *x)
{
    uint32_t pairs = m->rope_dim / 2;
    double amplitude = ref_rope_amplitude(m);
    if (m->rope_style == LKV_ROPE_NONE)
        return;
    for (uint32_t i = 0; i < pairs; i++) {
        uint32_t a = m->rope_style == LKV_ROPE_INTERLEAVED ? 2 * i : i;
        uint32_t b = m->rope_style == LKV_ROPE_INTERLEAVED ? 2 * i + 1 : i + pairs;
        double angle = position * ref_rope_frequency(m, i);
        double c = cos(angle) * amplitude, s = sin(angle) * amplitude, xa = x[a], xb = x[b];
        x[a] = xa * c - xb * s;
        x[b] = xb * c + xa * s;
    }
}
