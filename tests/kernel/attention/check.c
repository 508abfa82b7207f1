/* Rows of a run against the oracle, and weights for the head forms. See world.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/kernel/attention/world.h"
#include "tests/support/compare.h"

struct want {
    double *q, *out;
    struct ref_result r;
};

static void query_of(const struct world *w, const struct run *run, uint64_t row, double *q)
{
    uint32_t L = w->shape.latent, R = w->shape.rope, head = (uint32_t)(row % run->heads);
    double *nope = malloc((run->nope + 1) * sizeof *nope);
    for (uint32_t i = 0; i < run->nope; i++)
        nope[i] = run->q_form == LKV_Q_HEAD ? run->q[row * run->nope + i] : 0;
    if (run->q_form == LKV_Q_HEAD)
        ref_absorb(nope, run->uk + (uint64_t)head * run->nope * L, run->nope, L, q);
    for (uint32_t i = 0; i < L && run->q_form == LKV_Q_LATENT; i++)
        q[i] = run->q[row * L + i];
    for (uint32_t i = 0; i < R; i++)
        q[L + i] = run->q_rope[row * R + i];
    free(nope);
}

/* What the oracle gives for one row. */
static void want_of(const struct world *w, const struct run *run, uint32_t i, uint32_t j,
                    uint64_t row, struct want *want)
{
    uint32_t L = w->shape.latent, head = (uint32_t)(row % run->heads);
    struct ref_context context = w->context[run->seqs ? run->seqs[i] : i];
    int64_t q_len = run->q_indptr ? run->q_indptr[i + 1] - run->q_indptr[i] : 1;
    int64_t seen = q_len > run->seq_lens[i] ? 0 : run->seq_lens[i] - q_len + j + 1;
    const float *bias = run->oracle_bias ? run->oracle_bias : run->bias;
    context.bias = bias ? bias + (uint64_t)i * run->bias_width : NULL;
    query_of(w, run, row, want->q);
    double *latent = malloc(L * sizeof *latent);
    want->r = ref_attend(&context, seen, want->q, run->scale, latent);
    if (run->out_form == LKV_OUT_HEAD)
        ref_value(latent, run->uv + (uint64_t)head * run->value * L, run->value, L, want->out);
    else
        memcpy(want->out, latent, L * sizeof *latent);
    free(latent);
}

static int near(double found, double wanted)
{
    return found == wanted || fabs(found - wanted) <= 1e-5 * fmax(1, fabs(wanted));
}

static int row_is_right(const struct output *out, uint64_t row, const struct want *want,
                        double bound, const char *label)
{
    char text[256];
    const float *found = out->out + row * out->dim;
    snprintf(text, sizeof text, "%s row %llu", label, (unsigned long long)row);
    if (!close_l2(text, found, want->out, out->dim, bound))
        return 0;
    if (near(out->lse[row], want->r.lse) && near(out->entropy[row], want->r.entropy))
        return 1;
    fprintf(stderr, "%s: lse %.9g want %.9g, entropy %.9g want %.9g\n", text, out->lse[row],
            want->r.lse, out->entropy[row], want->r.entropy);
    return 0;
}

int world_check(const struct world *w, const struct run *run, const struct output *out,
                double bound, const char *label)
{
    struct want want = {.q = malloc((w->shape.latent + w->shape.rope) * sizeof(double)),
                        .out = malloc(out->dim * sizeof(double))};
    int good = 1;
    for (uint32_t i = 0; i < run->num_seqs && good; i++) {
        uint32_t first = run->q_indptr ? (uint32_t)run->q_indptr[i] : i;
        uint32_t q_len = run->q_indptr ? (uint32_t)run->q_indptr[i + 1] - first : 1;
        for (uint32_t j = 0; j < q_len && good; j++)
            for (uint32_t h = 0; h < run->heads && good; h++) {
                uint64_t row = (uint64_t)(first + j) * run->heads + h;
                want_of(w, run, i, j, row, &want);
                good = row_is_right(out, row, &want, bound, label);
            }
    }
    free(want.q);
    free(want.out);
    return good;
}

void random_weights(const struct world *w, struct run *run, uint64_t seed, double sigma)
{
    uint64_t L = w->shape.latent, N = run->nope, V = run->value, H = run->heads;
    float *uk = random_rows(seed, H * N * L, sigma, LKV_DTYPE_F32);
    float *uv = random_rows(seed + 1, H * V * L, sigma, LKV_DTYPE_F32);
    float *all = malloc(H * (N + V) * L * sizeof *all);
    lkv_weights *weights;
    for (uint64_t h = 0; h < H; h++) {
        memcpy(all + h * (N + V) * L, uk + h * N * L, N * L * sizeof *all);
        memcpy(all + (h * (N + V) + N) * L, uv + h * V * L, V * L * sizeof *all);
    }
    lkv_tensor t = {.data = all,
                    .dtype = LKV_DTYPE_F32,
                    .ndim = 2,
                    .shape = {(int64_t)(H * (N + V)), (int64_t)L},
                    .stride = {(int64_t)L, 1}};
    lkv_model_desc model = {.size = sizeof model};
    must(lkv_model_preset("v3", &model), "preset");
    model.num_heads = (uint32_t)H;
    model.latent_dim = (uint32_t)L;
    model.rope_dim = w->shape.rope;
    model.nope_dim = (uint32_t)N;
    model.v_dim = (uint32_t)V;
    lkv_weights_desc desc = {.size = sizeof desc, .kv_b_proj = &t};
    must(lkv_weights_create(w->ctx, &model, &desc, &weights), "weights");
    free(all);
    run->weights = weights;
    run->uk = uk;
    run->uv = uv;
}

void free_weights(struct run *run)
{
    lkv_weights_release((lkv_weights *)run->weights);
    free((void *)run->uk);
    free((void *)run->uv);
}
