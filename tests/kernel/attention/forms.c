/* Queries and outputs per head: W_UK and W_UV inside attend. The absorbed path against the oracle,
 * the decompressed path against the oracle and against the absorbed path, long queries.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include "tests/kernel/attention/world.h"
#include "tests/support/compare.h"

struct form_shape {
    uint32_t heads, nope, value, q_len, context, latent, rope;
};

struct scene {
    struct world w;
    struct run run;
    int32_t seq_len, indptr[2];
    uint32_t tokens;
    float *q, *q_rope;
};

static void scene_open(struct scene *s, const struct form_shape *f, uint32_t format, uint32_t isa,
                       double sigma)
{
    s->tokens = f->context + f->q_len;
    struct world_shape shape = {.format = format,
                                .isa = isa,
                                .latent = f->latent,
                                .rope = f->rope,
                                .block = 64,
                                .num_seqs = 1,
                                .tokens = &s->tokens,
                                .seed = 71};
    uint64_t rows = (uint64_t)f->q_len * f->heads;
    world_open(&s->w, &shape);
    s->seq_len = (int32_t)s->tokens;
    s->indptr[0] = 0;
    s->indptr[1] = (int32_t)f->q_len;
    s->q = random_rows(72, rows * f->nope, 1, LKV_DTYPE_F32);
    s->q_rope = random_rows(73, rows * f->rope, 1, LKV_DTYPE_F32);
    s->run = (struct run){.num_seqs = 1,
                          .seq_lens = &s->seq_len,
                          .q_indptr = s->indptr,
                          .heads = f->heads,
                          .q_dtype = LKV_DTYPE_F32,
                          .out_dtype = LKV_DTYPE_F32,
                          .q_form = LKV_Q_HEAD,
                          .out_form = LKV_OUT_HEAD,
                          .threshold = UINT32_MAX,
                          .nope = f->nope,
                          .value = f->value,
                          .scale = 1 / sqrt(f->nope + f->rope),
                          .q = s->q,
                          .q_rope = s->q_rope};
    random_weights(&s->w, &s->run, 74, sigma);
}

static void scene_close(struct scene *s)
{
    free_weights(&s->run);
    free(s->q);
    free(s->q_rope);
    world_close(&s->w);
}

Test(attention, head_forms_against_the_oracle)
{
    static const struct form_shape shapes[] = {{16, 128, 128, 1, 600, 512, 64},
                                               {5, 128, 128, 9, 70, 512, 64},
                                               {40, 64, 64, 3, 65, 256, 32},
                                               {3, 20, 24, 70, 3, 48, 10},
                                               {1, 192, 256, 130, 1, 512, 64}};
    uint32_t isas[3], num_isas = isas_present(isas);
    for (uint32_t f = 0; f < 5; f++)
        for (uint32_t i = 0; i < num_isas; i++)
            for (uint32_t decompressed = 0; decompressed < 2; decompressed++) {
                struct scene s;
                struct output out;
                char label[96];
                scene_open(&s, &shapes[f], LKV_FORMAT_INT8, isas[i], 0.06);
                s.run.threshold = decompressed ? 1 : UINT32_MAX;
                must(world_attend(&s.w, &s.run, &out), "attend");
                snprintf(label, sizeof label, "seed 71 shape %u %s %s", f, isa_name(isas[i]),
                         decompressed ? "decompressed" : "absorbed");
                cr_assert(world_check(&s.w, &s.run, &out, 1e-5, label));
                output_free(&out);
                scene_close(&s);
            }
}

/* 128 heads over 2048 keys, latents N(0, 1), weights N(0, 1/512). */
Test(attention, absorbed_equals_decompressed)
{
    static const struct form_shape shape = {128, 128, 128, 32, 2016, 512, 64};
    uint32_t isas[3], num_isas = isas_present(isas);
    for (uint32_t i = 0; i < num_isas; i++) {
        struct scene s;
        struct output a, b;
        double dot = 0, aa = 0, bb = 0, most = 0;
        scene_open(&s, &shape, LKV_FORMAT_BF16, isas[i], sqrt(1.0 / 512));
        must(world_attend(&s.w, &s.run, &a), "absorbed");
        s.run.threshold = 1;
        must(world_attend(&s.w, &s.run, &b), "decompressed");
        for (uint64_t k = 0; k < 32ull * 128 * 128; k++) {
            dot += (double)a.out[k] * b.out[k];
            aa += (double)a.out[k] * a.out[k];
            bb += (double)b.out[k] * b.out[k];
            most = fmax(most, fabs((double)a.out[k] - b.out[k]));
        }
        double cosine = dot / sqrt(aa * bb);
        fprintf(stderr,
                "absorbed vs decompressed, %s, S 2048, H 128: 1 - cos %.2e, max error %.2e\n",
                isa_name(isas[i]), 1 - cosine, most);
        cr_assert(cosine >= 0.999999 && most <= 2e-4, "cos %.9f, max error %g", cosine, most);
        for (uint64_t k = 0; k < 32ull * 128; k++)
            cr_assert(fabsf(a.lse[k] - b.lse[k]) <= 2e-5f &&
                          fabsf(a.entropy[k] - b.entropy[k]) <= 5e-5f,
                      "row %llu: lse %.9g and %.9g, entropy %.9g and %.9g", (unsigned long long)k,
                      a.lse[k], b.lse[k], a.entropy[k], b.entropy[k]);
        output_free(&a);
        output_free(&b);
        scene_close(&s);
    }
}

/* More query tokens than one task takes: two query tiles, several groups of rows. */
Test(attention, long_decompressed_prefill)
{
    static const struct form_shape shape = {2, 32, 16, 1100, 77, 64, 16};
    uint32_t isas[3], num_isas = isas_present(isas);
    for (uint32_t i = 0; i < num_isas; i++) {
        struct scene s;
        struct output out;
        scene_open(&s, &shape, LKV_FORMAT_BF16, isas[i], 0.12);
        s.run.threshold = 0; /* the default, 256 */
        must(world_attend(&s.w, &s.run, &out), "attend");
        cr_assert(world_check(&s.w, &s.run, &out, 1e-5, isa_name(isas[i])));
        output_free(&out);
        scene_close(&s);
    }
}

/* More slots than the workspace has: the batch runs in several waves. */
Test(attention, many_waves)
{
    static const struct form_shape shape = {128, 16, 16, 200, 40, 64, 16};
    uint32_t isas[3], num_isas = isas_present(isas);
    for (uint32_t i = 0; i < num_isas; i++) {
        struct scene s;
        struct output out;
        scene_open(&s, &shape, LKV_FORMAT_INT8, isas[i], 0.12);
        must(world_attend(&s.w, &s.run, &out), "attend");
        cr_assert(world_check(&s.w, &s.run, &out, 1e-5, isa_name(isas[i])));
        output_free(&out);
        scene_close(&s);
    }
}
