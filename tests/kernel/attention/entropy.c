/* Entropies over splits. The keys of one context are cut into parts at random places; lkv_attend
 * sees each part alone (the other keys have a bias of -infinity) and lkv_merge joins them. The
 * joint entropy is that of lkv_attend over all keys at once to 1e-6, absolute, or relative above 1
 * nat; and that of float64 to 1e-5, which is what fp32 scores allow. Prints the largest
 * differences. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/kernel/attention/world.h"

enum { HEADS = 4, TOKENS = 3000, L = 512, R = 64, MOST_PARTS = 32 };

struct parts {
    float *outs; /* [MOST_PARTS, HEADS, L] */
    float lses[MOST_PARTS * HEADS], entropies[MOST_PARTS * HEADS];
};

struct worst {
    double direct, truth;
};

static double off(double found, double wanted)
{
    return fabs(found - wanted) / fmax(1, fabs(wanted));
}

static lkv_tensor tensor(void *data, uint32_t parts, uint32_t dim)
{
    lkv_tensor t = {.data = data, .dtype = LKV_DTYPE_F32, .ndim = 3};
    const int64_t shape[3] = {parts, 1, HEADS}, stride[3] = {HEADS, HEADS, 1};
    memcpy(t.shape, shape, sizeof shape);
    memcpy(t.stride, stride, sizeof stride);
    if (!dim)
        return t;
    t.ndim = 4;
    t.shape[3] = dim;
    for (int i = 0; i < 3; i++)
        t.stride[i] *= dim;
    t.stride[3] = 1;
    return t;
}

static lkv_tensor flat(lkv_tensor t)
{
    for (uint32_t i = 0; i + 1 < t.ndim; i++) {
        t.shape[i] = t.shape[i + 1];
        t.stride[i] = t.stride[i + 1];
    }
    t.ndim--;
    t.shape[t.ndim] = t.stride[t.ndim] = 0;
    return t;
}

static void merge(const struct world *w, struct parts *p, uint32_t n, float *entropy)
{
    float *out = malloc(sizeof(float) * HEADS * L), lse[HEADS];
    const lkv_tensor outs = tensor(p->outs, n, L), lses = tensor(p->lses, n, 0),
                     entropies = tensor(p->entropies, n, 0);
    const lkv_tensor to = flat(tensor(out, 1, L)), to_lse = flat(tensor(lse, 1, 0)),
                     to_entropy = flat(tensor(entropy, 1, 0));
    const lkv_merge_args args = {.size = sizeof args,
                                 .outs = &outs,
                                 .lses = &lses,
                                 .entropies = &entropies,
                                 .out = &to,
                                 .lse = &to_lse,
                                 .entropy = &to_entropy};
    must(lkv_merge(w->ctx, &args, NULL), "merge");
    free(out);
}

/* Part p of n: tokens from cut[p] to cut[p + 1]. */
static void attend_part(const struct world *w, struct run *run, const uint32_t cut[2],
                        struct parts *to, uint32_t p)
{
    float *bias = malloc(TOKENS * sizeof *bias);
    struct output part;
    for (uint32_t k = 0; k < TOKENS; k++)
        bias[k] = k >= cut[0] && k < cut[1] ? 0 : -INFINITY;
    run->bias = bias;
    must(world_attend(w, run, &part), "attend");
    run->bias = NULL;
    memcpy(to->outs + (size_t)p * HEADS * L, part.out, sizeof(float) * HEADS * L);
    memcpy(to->lses + p * HEADS, part.lse, sizeof(float) * HEADS);
    memcpy(to->entropies + p * HEADS, part.entropy, sizeof(float) * HEADS);
    output_free(&part);
    free(bias);
}

static double true_entropy(const struct world *w, const struct run *run, uint32_t head)
{
    double q[L + R], out[L];
    for (uint32_t i = 0; i < L; i++)
        q[i] = run->q[head * L + i];
    for (uint32_t i = 0; i < R; i++)
        q[L + i] = run->q_rope[head * R + i];
    return ref_attend(&w->context[0], TOKENS, q, run->scale, out).entropy;
}

static void check_parts(const struct world *w, struct run *run, uint32_t n, struct rng *r,
                        struct worst *worst)
{
    struct parts p = {.outs = malloc(sizeof(float) * MOST_PARTS * HEADS * L)};
    uint32_t at = 0;
    float entropy[HEADS];
    struct output whole;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t left = TOKENS - at - (n - i - 1);
        const uint32_t end = i + 1 == n ? TOKENS : at + 1 + (uint32_t)rng_below(r, left / 2 + 1);
        attend_part(w, run, (uint32_t[]){at, end}, &p, i);
        at = end;
    }
    merge(w, &p, n, entropy);
    must(world_attend(w, run, &whole), "attend");
    for (uint32_t h = 0; h < HEADS; h++) {
        worst->direct = fmax(worst->direct, off(entropy[h], whole.entropy[h]));
        worst->truth = fmax(worst->truth, off(entropy[h], true_entropy(w, run, h)));
    }
    output_free(&whole);
    free(p.outs);
}

static struct worst check_isa(uint32_t isa, uint32_t format, double scale)
{
    static const uint32_t counts[] = {2, 3, 7, 16, MOST_PARTS};
    const uint32_t tokens = TOKENS;
    const int32_t seq_len = TOKENS;
    const struct world_shape shape = {.format = format,
                                      .isa = isa,
                                      .latent = L,
                                      .rope = R,
                                      .block = 64,
                                      .num_seqs = 1,
                                      .tokens = &tokens,
                                      .seed = 17 + format};
    struct worst worst = {0, 0};
    struct rng r = rng_seed(format * 100 + isa);
    struct world w;
    world_open(&w, &shape);
    float *q = random_rows(18, HEADS * L, 1, LKV_DTYPE_F32);
    float *q_rope = random_rows(19, HEADS * R, 1, LKV_DTYPE_F32);
    struct run run = {.num_seqs = 1,
                      .seq_lens = &seq_len,
                      .heads = HEADS,
                      .q_dtype = LKV_DTYPE_F32,
                      .out_dtype = LKV_DTYPE_F32,
                      .scale = scale,
                      .q = q,
                      .q_rope = q_rope,
                      .bias_width = TOKENS};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        check_parts(&w, &run, counts[i], &r, &worst);
    free(q);
    free(q_rope);
    world_close(&w);
    return worst;
}

int main(void)
{
    static const double scales[] = {0.01, 0.07, 0.2}; /* nearly even; the model's; peaked */
    uint32_t isas[3], num = isas_present(isas);
    int failures = 0;
    for (uint32_t i = 0; i < num; i++)
        for (uint32_t format = LKV_FORMAT_BF16; format <= LKV_FORMAT_NVFP4; format++)
            for (int s = 0; s < 3; s++) {
                const struct worst x = check_isa(isas[i], format, scales[s]);
                const int good = x.direct <= 1e-6 && x.truth <= 1e-5;
                printf("%-7s %-5s scale %.2f: 2 to %d parts against all at once %.1e, against "
                       "float64 %.1e%s\n",
                       isa_name(isas[i]), format_name(format), scales[s], MOST_PARTS, x.direct,
                       x.truth, good ? "" : "  FAILED");
                failures += !good;
            }
    return failures != 0;
}
