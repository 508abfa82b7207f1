/* In: a model's name. Out: its attention dimensions and positional constants, as the model's own
 * config.json publishes them. Softmax scales are computed from them, not typed in. */
#include <math.h>
#include <string.h>
#include "core/status.h"
#include "latentkv/latentkv.h"

struct preset {
    const char *name;
    uint32_t num_layers, num_heads, latent_dim, rope_dim, nope_dim, v_dim, rope_style;
    uint32_t yarn_original_positions;
    double rope_theta, yarn_factor, yarn_beta_fast, yarn_beta_slow, yarn_mscale,
        yarn_mscale_all_dim;
    const double *rope_factors;
};

/* MiniCPM3-4B: longrope with the same list for short and long contexts, original 32768 = maximal
 * positions, so its attention factor is 1. */
static const double minicpm3_factors[16] = {
    1.0591234137867171, 1.1241891283591912, 1.2596935748670968, 1.5380380402321725,
    2.093982484148734,  3.1446935121267696, 4.937952647693647,  7.524541999994549,
    10.475458000005451, 13.062047352306353, 14.85530648787323,  15.906017515851266,
    16.461961959767827, 16.740306425132907, 16.87581087164081,  16.940876586213285};

/* Kimi-K2 is the first release; the 0905 weights differ by yarn_factor 64. */
static const struct preset presets[] = {
    {"v2-lite", 27, 16, 512, 64, 128, 128, LKV_ROPE_INTERLEAVED, 4096, 1e4, 40, 32, 1, 0.707, 0.707,
     NULL},
    {"v3", 61, 128, 512, 64, 128, 128, LKV_ROPE_INTERLEAVED, 4096, 1e4, 40, 32, 1, 1, 1, NULL},
    {"r1", 61, 128, 512, 64, 128, 128, LKV_ROPE_INTERLEAVED, 4096, 1e4, 40, 32, 1, 1, 1, NULL},
    {"k2", 61, 64, 512, 64, 128, 128, LKV_ROPE_INTERLEAVED, 4096, 5e4, 32, 1, 1, 1, 1, NULL},
    {"glm-4.7-flash", 47, 20, 512, 64, 192, 256, LKV_ROPE_INTERLEAVED, 0, 1e6, 0, 0, 0, 0, 0, NULL},
    {"minicpm3", 62, 40, 256, 32, 64, 64, LKV_ROPE_HALF, 0, 1e4, 0, 0, 0, 0, 0, minicpm3_factors},
    {"tiny-mla", 4, 8, 512, 64, 128, 128, LKV_ROPE_INTERLEAVED, 0, 1e4, 0, 0, 0, 0, 0, NULL},
};
enum { NUM_PRESETS = sizeof presets / sizeof presets[0] };

static const char *const sparse_models[] = {"deepseek-v3.2", "v3.2", "glm-5"};

const char *lkv_model_preset_name(uint32_t i)
{
    return i < NUM_PRESETS ? presets[i].name : NULL;
}

/* (N + R)^-0.5, times mscale^2 with mscale = 0.1 m ln(factor) + 1 where yarn stretches. */
static double softmax_scale(const struct preset *p)
{
    double mscale = p->yarn_factor > 1 ? 0.1 * p->yarn_mscale_all_dim * log(p->yarn_factor) + 1 : 1;
    return mscale * mscale / sqrt((double)p->nope_dim + p->rope_dim);
}

static void fill(lkv_model_desc *desc, const struct preset *p)
{
    *desc = (lkv_model_desc){.size = sizeof *desc,
                             .num_layers = p->num_layers,
                             .num_heads = p->num_heads,
                             .latent_dim = p->latent_dim,
                             .rope_dim = p->rope_dim,
                             .nope_dim = p->nope_dim,
                             .v_dim = p->v_dim,
                             .rope_style = p->rope_style,
                             .yarn_original_positions = p->yarn_original_positions,
                             .rope_theta = p->rope_theta,
                             .yarn_factor = p->yarn_factor,
                             .yarn_beta_fast = p->yarn_beta_fast,
                             .yarn_beta_slow = p->yarn_beta_slow,
                             .yarn_mscale = p->yarn_mscale,
                             .yarn_mscale_all_dim = p->yarn_mscale_all_dim,
                             .softmax_scale = softmax_scale(p),
                             .rope_factors = p->rope_factors};
}

lkv_status lkv_model_preset(const char *name, lkv_model_desc *given)
{
    LKV_TRY(lkvi_admit_out(given, "lkv_model_desc"));
    if (!name)
        return lkvi_fail(LKV_E_INVALID, "name is NULL; need a model's name");
    for (size_t i = 0; i < sizeof sparse_models / sizeof sparse_models[0]; i++)
        if (!strcmp(name, sparse_models[i]))
            return lkvi_fail(LKV_E_UNSUPPORTED,
                             "%s attends to a sparse top-k of its keys (DSA); latentkv has dense "
                             "attention only",
                             name);
    for (size_t i = 0; i < NUM_PRESETS; i++) {
        if (strcmp(name, presets[i].name))
            continue;
        lkv_model_desc desc;
        fill(&desc, &presets[i]);
        lkvi_give(given, &desc, sizeof desc);
        return LKV_OK;
    }
    return lkvi_fail(LKV_E_NOT_FOUND,
                     "no model is called \"%.64s\"; need v2-lite, v3, r1, k2, glm-4.7-flash, "
                     "minicpm3 or tiny-mla",
                     name);
}
