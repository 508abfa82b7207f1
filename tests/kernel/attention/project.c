/* Projections, RoPE and merge against their float64 twins, through the ABI. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include "tests/kernel/attention/world.h"
#include "tests/reference/ref_rope.h"
#include "tests/support/compare.h"

static const uint32_t dtypes[3] = {LKV_DTYPE_F32, LKV_DTYPE_F16, LKV_DTYPE_BF16};

static double bound_of(uint32_t dtype)
{
    return dtype == LKV_DTYPE_F32 ? 1e-6 : dtype == LKV_DTYPE_F16 ? 5e-4 : 3e-3;
}

static lkv_tensor tensor3(void *data, uint32_t dtype, uint64_t a, uint64_t b, uint64_t c)
{
    return (lkv_tensor){.data = data,
                        .dtype = dtype,
                        .ndim = 3,
                        .shape = {(int64_t)a, (int64_t)b, (int64_t)c},
                        .stride = {(int64_t)(b * c), (int64_t)c, 1}};
}

static lkv_tensor tensor2(void *data, uint64_t a, uint64_t b)
{
    return (lkv_tensor){.data = data,
                        .dtype = LKV_DTYPE_F32,
                        .ndim = 2,
                        .shape = {(int64_t)a, (int64_t)b},
                        .stride = {(int64_t)b, 1}};
}

static void *room(uint64_t bytes)
{
    return aligned_alloc(256, (bytes + 511) / 256 * 256);
}

struct shape {
    uint32_t tokens, heads, latent, nope, value;
};

static void check_projection(const struct world *w, const struct run *run, const struct shape *s,
                             uint32_t to_value, uint32_t dtype)
{
    uint64_t rows = (uint64_t)s->tokens * s->heads, L = s->latent;
    uint64_t in_dim = to_value ? L : s->nope, out_dim = to_value ? s->value : L;
    float *x = random_rows(51 + to_value, rows * in_dim, 1, dtype), *y;
    void *in = room(rows * in_dim * 4), *out = room(rows * out_dim * 4), *workspace;
    double *a = malloc(in_dim * sizeof *a), *b = malloc(out_dim * sizeof *b);
    size_t bytes;
    (void)w;
    y = malloc(rows * out_dim * sizeof *y);
    put_values(x, rows * in_dim, dtype, in);
    lkv_tensor ti = tensor3(in, dtype, s->tokens, s->heads, in_dim);
    lkv_tensor to = tensor3(out, dtype, s->tokens, s->heads, out_dim);
    must(lkv_project_workspace(run->weights, s->tokens, &bytes), "project workspace");
    workspace = room(bytes);
    must((to_value ? lkv_project_out : lkv_project_q)(run->weights, &ti, &to, workspace, bytes,
                                                      NULL),
         "project");
    get_values(out, rows * out_dim, dtype, y);
    for (uint64_t r = 0; r < rows; r++) {
        uint64_t h = r % s->heads;
        char label[96];
        for (uint64_t i = 0; i < in_dim; i++)
            a[i] = x[r * in_dim + i];
        if (to_value)
            ref_value(a, run->uv + h * s->value * L, s->value, s->latent, b);
        else
            ref_absorb(a, run->uk + h * s->nope * L, s->nope, s->latent, b);
        snprintf(label, sizeof label, "T %u H %u to_value %u dtype %u row %llu", s->tokens,
                 s->heads, to_value, dtype, (unsigned long long)r);
        cr_assert(close_l2(label, y + r * out_dim, b, out_dim, bound_of(dtype)));
    }
    free(x), free(y), free(in), free(out), free(workspace), free(a), free(b);
}

Test(attention, projections)
{
    static const struct shape shapes[] = {{1, 16, 512, 128, 128},
                                          {5, 3, 256, 64, 64},
                                          {64, 2, 512, 128, 192},
                                          {65, 4, 48, 20, 24},
                                          {130, 1, 512, 192, 256}};
    uint32_t isas[3], num_isas = isas_present(isas), none = 0;
    for (uint32_t i = 0; i < num_isas; i++)
        for (uint32_t k = 0; k < 5; k++) {
            const struct shape *s = &shapes[k];
            struct world_shape ws = {.format = LKV_FORMAT_BF16,
                                     .isa = isas[i],
                                     .latent = s->latent,
                                     .rope = 16,
                                     .block = 16,
                                     .num_seqs = 1,
                                     .tokens = &none,
                                     .seed = 1};
            struct run run = {.heads = s->heads, .nope = s->nope, .value = s->value};
            struct world w;
            world_open(&w, &ws);
            random_weights(&w, &run, 50 + k, 0.05);
            for (uint32_t d = 0; d < 3; d++)
                for (uint32_t to_value = 0; to_value < 2; to_value++)
                    check_projection(&w, &run, s, to_value, dtypes[d]);
            free_weights(&run);
            world_close(&w);
        }
}

static void check_rope(lkv_context *ctx, const lkv_model_desc *model, const char *name)
{
    enum { TOKENS = 9, HEADS = 3 };
    uint32_t R = model->rope_dim;
    int32_t positions[TOKENS] = {0, 1, 2, 63, 64, 1000, 4095, 4096, 20000};
    float *x = random_rows(61, TOKENS * HEADS * R, 1, LKV_DTYPE_F32);
    float *y = malloc(TOKENS * HEADS * R * sizeof *y);
    double *want = malloc(R * sizeof *want);
    lkv_tensor ti = tensor3(x, LKV_DTYPE_F32, TOKENS, HEADS, R);
    lkv_tensor to = tensor3(y, LKV_DTYPE_F32, TOKENS, HEADS, R);
    lkv_rope *rope;
    must(lkv_rope_create(ctx, model, 20001, &rope), "rope");
    must(lkv_rope_apply(rope, &ti, &to, positions, NULL), "apply");
    for (uint32_t r = 0; r < TOKENS * HEADS; r++) {
        for (uint32_t i = 0; i < R; i++)
            want[i] = x[r * R + i];
        ref_rope_turn(model, positions[r / HEADS], want);
        cr_assert(close_l2(name, y + r * R, want, R, 1e-6), "position %d", positions[r / HEADS]);
    }
    lkv_rope_release(rope);
    free(x), free(y), free(want);
}

/* Presets bring yarn; both orders of pairs; longrope factors. */
Test(attention, rope_tables)
{
    static const double factors[32] = {1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
                                       1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    lkv_context_desc desc = {.size = sizeof desc, .device = LKV_DEVICE_CPU};
    lkv_context *ctx;
    must(lkv_context_create(&desc, &ctx), "context");
    for (uint32_t i = 0; lkv_model_preset_name(i); i++)
        for (uint32_t style = LKV_ROPE_INTERLEAVED; style <= LKV_ROPE_HALF; style++) {
            lkv_model_desc model = {.size = sizeof model};
            must(lkv_model_preset(lkv_model_preset_name(i), &model), "preset");
            model.rope_style = style;
            check_rope(ctx, &model, lkv_model_preset_name(i));
            model.rope_factors = factors;
            check_rope(ctx, &model, "with rope_factors");
        }
    lkv_context_release(ctx);
}

/* Parts whose lse spans many magnitudes, one part that saw nothing, and rows that saw nothing. */
static void check_merge(lkv_context *ctx, uint32_t parts, uint32_t dim, uint32_t dtype)
{
    enum { TOKENS = 4, HEADS = 3, ROWS = TOKENS * HEADS };
    uint64_t values = (uint64_t)parts * ROWS * dim;
    float *x = random_rows(81, values, 1, dtype), lse[ROWS], entropy[ROWS];
    float *lses = random_rows(82, parts * ROWS, 8, LKV_DTYPE_F32);
    float *entropies = random_rows(83, parts * ROWS, 1, LKV_DTYPE_F32);
    float *y = malloc(ROWS * dim * sizeof *y);
    double *outs = malloc(parts * dim * sizeof *outs), *want = malloc(dim * sizeof *want);
    void *in = room(values * 4), *out = room(ROWS * dim * 4);
    for (uint32_t p = 0; p < parts; p++)
        lses[p * ROWS + 5] = -INFINITY;
    lses[(parts - 1) * ROWS + 7] = -INFINITY;
    put_values(x, values, dtype, in);
    lkv_tensor ti = {.data = in,
                     .dtype = dtype,
                     .ndim = 4,
                     .shape = {parts, TOKENS, HEADS, dim},
                     .stride = {(int64_t)ROWS * dim, (int64_t)HEADS * dim, dim, 1}};
    lkv_tensor tl = tensor3(lses, LKV_DTYPE_F32, parts, TOKENS, HEADS);
    lkv_tensor te = tensor3(entropies, LKV_DTYPE_F32, parts, TOKENS, HEADS);
    lkv_tensor to = tensor3(out, dtype, TOKENS, HEADS, dim);
    lkv_tensor ol = tensor2(lse, TOKENS, HEADS), oe = tensor2(entropy, TOKENS, HEADS);
    lkv_merge_args args = {.size = sizeof args,
                           .outs = &ti,
                           .lses = &tl,
                           .entropies = &te,
                           .out = &to,
                           .lse = &ol,
                           .entropy = &oe};
    must(lkv_merge(ctx, &args, NULL), "merge");
    get_values(out, ROWS * dim, dtype, y);
    for (uint32_t r = 0; r < ROWS; r++) {
        double l[8], e[8];
        char label[64];
        for (uint32_t p = 0; p < parts; p++) {
            l[p] = lses[p * ROWS + r];
            e[p] = entropies[p * ROWS + r];
            for (uint32_t i = 0; i < dim; i++)
                outs[p * dim + i] = x[((uint64_t)p * ROWS + r) * dim + i];
        }
        struct ref_result result = ref_merge(parts, dim, outs, l, e, want);
        snprintf(label, sizeof label, "parts %u dim %u dtype %u row %u", parts, dim, dtype, r);
        cr_assert(close_l2(label, y + r * dim, want, dim, bound_of(dtype)));
        cr_assert(lse[r] == (float)result.lse || fabs(lse[r] - result.lse) <= 1e-5,
                  "%s: lse %.9g want %.9g", label, lse[r], result.lse);
        cr_assert(fabs(entropy[r] - result.entropy) <= 1e-5, "%s: entropy %.9g want %.9g", label,
                  entropy[r], result.entropy);
    }
    free(x), free(lses), free(entropies), free(y), free(outs), free(want), free(in), free(out);
}

Test(attention, merge)
{
    static const uint32_t parts[3] = {1, 2, 7}, dims[3] = {16, 512, 1040};
    lkv_context_desc desc = {.size = sizeof desc, .device = LKV_DEVICE_CPU};
    lkv_context *ctx;
    must(lkv_context_create(&desc, &ctx), "context");
    for (uint32_t p = 0; p < 3; p++)
        for (uint32_t i = 0; i < 3; i++)
            for (uint32_t d = 0; d < 3; d++)
                check_merge(ctx, parts[p], dims[i], dtypes[d]);
    lkv_context_release(ctx);
}

/* Attention over all keys is the merge of attentions over the parts: the keys of each part are left
 * in by a bias of 0 and taken out by -infinity. */
Test(attention, merge_of_parts_is_the_whole)
{
    enum { HEADS = 16, TOKENS = 500, L = 512 };
    uint32_t isas[3], num_isas = isas_present(isas), tokens = TOKENS;
    for (uint32_t i = 0; i < num_isas; i++) {
        struct world_shape shape = {.format = LKV_FORMAT_INT8,
                                    .isa = isas[i],
                                    .latent = L,
                                    .rope = 64,
                                    .block = 64,
                                    .num_seqs = 1,
                                    .tokens = &tokens,
                                    .seed = 91};
        int32_t seq_len = TOKENS;
        float *q = random_rows(92, HEADS * L, 1, LKV_DTYPE_F32), bias[TOKENS];
        float *q_rope = random_rows(93, HEADS * 64, 1, LKV_DTYPE_F32);
        float *outs = room(2 * HEADS * L * 4), *out = room(HEADS * L * 4);
        float lses[2 * HEADS], entropies[2 * HEADS], lse[HEADS], entropy[HEADS];
        struct run run = {.num_seqs = 1,
                          .seq_lens = &seq_len,
                          .heads = HEADS,
                          .q_dtype = LKV_DTYPE_F32,
                          .out_dtype = LKV_DTYPE_F32,
                          .scale = 0.07,
                          .q = q,
                          .q_rope = q_rope,
                          .bias_width = TOKENS};
        struct output whole = {.out = out, .lse = lse, .entropy = entropy, .dim = L};
        struct world w;
        world_open(&w, &shape);
        for (uint32_t p = 0; p < 2; p++) {
            struct output part;
            for (uint32_t k = 0; k < TOKENS; k++)
                bias[k] = (k < 180) == (p == 0) ? 0 : -INFINITY;
            run.bias = bias;
            must(world_attend(&w, &run, &part), "attend");
            memcpy(outs + p * HEADS * L, part.out, HEADS * L * 4);
            memcpy(lses + p * HEADS, part.lse, sizeof lse);
            memcpy(entropies + p * HEADS, part.entropy, sizeof entropy);
            output_free(&part);
        }
        lkv_tensor ti = {.data = outs,
                         .dtype = LKV_DTYPE_F32,
                         .ndim = 4,
                         .shape = {2, 1, HEADS, L},
                         .stride = {HEADS * L, HEADS * L, L, 1}};
        lkv_tensor tl = tensor3(lses, LKV_DTYPE_F32, 2, 1, HEADS);
        lkv_tensor te = tensor3(entropies, LKV_DTYPE_F32, 2, 1, HEADS);
        lkv_tensor to = tensor3(out, LKV_DTYPE_F32, 1, HEADS, L);
        lkv_tensor ol = tensor2(lse, 1, HEADS), oe = tensor2(entropy, 1, HEADS);
        lkv_merge_args args = {.size = sizeof args,
                               .outs = &ti,
                               .lses = &tl,
                               .entropies = &te,
                               .out = &to,
                               .lse = &ol,
                               .entropy = &oe};
        must(lkv_merge(w.ctx, &args, NULL), "merge");
        run.bias = NULL;
        cr_assert(world_check(&w, &run, &whole, 1e-5, isa_name(isas[i])));
        free(q), free(q_rope), free(outs), free(out);
        world_close(&w);
    }
}
