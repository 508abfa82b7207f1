/* Real latents of a trained model (shared/models/tiny-mla): queries at positions 1008..1023 over
 * 1024 tokens, 8 heads, 4 layers. First the float64 twin on the stored latents against the golden
 * values (1e-5), then the library through each format against the twin on the dequantised records,
 * within the bounds of the output dtype; last, what the format itself costs, for the log. Left out,
 * with a line that says so, where the shared input is not there. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include "tests/kernel/attention/world.h"
#include "tests/support/compare.h"
#include "tests/support/shared.h"

enum { LAYERS = 4, TOKENS = 1024, ROWS = 16, HEADS = 8, L = 512, R = 64, FIRST = 1008 };
static const double scale = 0.07216878364870322; /* 192^-0.5 */

/* One safetensors file in memory. */
struct file {
    char *bytes;
    size_t header; /* bytes of it */
    json_t *json;
};

static void file_open(struct file *f, const char *path)
{
    FILE *in = fopen(path, "rb");
    cr_assert(in, "cannot open %s", path);
    fseek(in, 0, SEEK_END);
    size_t size = (size_t)ftell(in);
    rewind(in);
    f->bytes = malloc(size);
    cr_assert_eq(fread(f->bytes, 1, size, in), size);
    fclose(in);
    uint64_t header;
    memcpy(&header, f->bytes, 8);
    f->header = header;
    f->json = json_loadb(f->bytes + 8, f->header, 0, NULL);
    cr_assert(f->json, "%s: bad header", path);
}

static void file_close(struct file *f)
{
    json_decref(f->json);
    free(f->bytes);
}

/* n values of layers.<layer>.<name> as fp32. */
static float *values_of(const struct file *f, int layer, const char *name, uint64_t n)
{
    char key[64];
    snprintf(key, sizeof key, "layers.%d.%s", layer, name);
    json_t *entry = json_object_get(f->json, key);
    cr_assert(entry, "no tensor %s", key);
    const char *type = json_string_value(json_object_get(entry, "dtype"));
    uint32_t dtype = !strcmp(type, "F32")   ? LKV_DTYPE_F32
                     : !strcmp(type, "F16") ? LKV_DTYPE_F16
                                            : LKV_DTYPE_BF16;
    json_t *offsets = json_object_get(entry, "data_offsets");
    uint64_t begin = (uint64_t)json_integer_value(json_array_get(offsets, 0));
    uint64_t end = (uint64_t)json_integer_value(json_array_get(offsets, 1));
    cr_assert_eq(end - begin, n * (dtype == LKV_DTYPE_F32 ? 4 : 2), "%s has another size", key);
    void *raw = malloc(end - begin);
    float *x = malloc(n * sizeof *x);
    memcpy(raw, f->bytes + 8 + f->header + begin, end - begin);
    get_values(raw, n, dtype, x);
    free(raw);
    return x;
}

struct layer {
    float *c_kv, *k_pe, *q, *q_pe, *out, *lse;
};

static int layers_load(struct layer layers[LAYERS])
{
    char latents[512], cases[512];
    struct file a, b;
    if (!shared_path("models/tiny-mla/golden/real_latents.safetensors", latents, sizeof latents) ||
        !shared_path("models/tiny-mla/golden/attention_cases.safetensors", cases, sizeof cases)) {
        fprintf(stderr, "SKIPPED: golden attention cases, no shared/models/tiny-mla beside the "
                        "checkout (or LKV_SHARED)\n");
        return 0;
    }
    file_open(&a, latents);
    file_open(&b, cases);
    for (int i = 0; i < LAYERS; i++) {
        layers[i].c_kv = values_of(&a, i, "c_kv", (uint64_t)TOKENS * L);
        layers[i].k_pe = values_of(&a, i, "k_pe", (uint64_t)TOKENS * R);
        layers[i].q = values_of(&b, i, "q_latent", (uint64_t)ROWS * HEADS * L);
        layers[i].q_pe = values_of(&b, i, "q_pe", (uint64_t)ROWS * HEADS * R);
        layers[i].out = values_of(&b, i, "o_latent", (uint64_t)ROWS * HEADS * L);
        layers[i].lse = values_of(&b, i, "lse", ROWS * HEADS);
    }
    file_close(&a);
    file_close(&b);
    return 1;
}

static void layers_free(struct layer layers[LAYERS])
{
    for (int i = 0; i < LAYERS; i++) {
        free(layers[i].c_kv), free(layers[i].k_pe), free(layers[i].q);
        free(layers[i].q_pe), free(layers[i].out), free(layers[i].lse);
    }
}

Test(golden, twin_on_the_stored_latents)
{
    struct layer layers[LAYERS];
    double worst = 0, worst_lse = 0;
    if (!layers_load(layers))
        return;
    double *rows = malloc((uint64_t)TOKENS * (L + R) * sizeof *rows), q[L + R], out[L];
    for (int i = 0; i < LAYERS; i++) {
        const struct layer *layer = &layers[i];
        struct ref_context c = ref_absorbed(layer->c_kv, layer->k_pe, TOKENS, L, R, rows);
        for (uint32_t r = 0; r < ROWS * HEADS; r++) {
            char label[64];
            for (uint32_t k = 0; k < L + R; k++)
                q[k] = k < L ? layer->q[r * L + k] : layer->q_pe[r * R + k - L];
            struct ref_result result = ref_attend(&c, FIRST + 1 + r / HEADS, q, scale, out);
            snprintf(label, sizeof label, "layer %d row %u", i, r);
            worst = fmax(worst, relative_l2(layer->out + r * L, out, L));
            worst_lse = fmax(worst_lse, fabs(result.lse - layer->lse[r]));
            cr_assert(close_l2(label, layer->out + r * L, out, L, 1e-5));
            cr_assert(fabs(result.lse - layer->lse[r]) <= 1e-5, "%s: lse %.9g, golden %.9g", label,
                      result.lse, layer->lse[r]);
        }
    }
    fprintf(stderr, "twin on the stored latents: rel-L2 <= %.1e, lse <= %.1e\n", worst, worst_lse);
    free(rows);
    layers_free(layers);
}

/* A world of one sequence whose tokens are the layer's. */
static void world_of_layer(struct world *w, const struct layer *layer, uint32_t format,
                           uint32_t isa)
{
    static const uint32_t tokens = TOKENS;
    struct world_shape shape = {.format = format,
                                .isa = isa,
                                .latent = L,
                                .rope = R,
                                .block = 64,
                                .num_seqs = 1,
                                .tokens = &tokens,
                                .seed = 3,
                                .given_latent = layer->c_kv,
                                .given_rope = layer->k_pe};
    world_open(w, &shape);
}

static double cost_of(const struct output *out, const struct layer *layer)
{
    double *golden = malloc(ROWS * HEADS * L * sizeof *golden);
    for (uint32_t i = 0; i < ROWS * HEADS * L; i++)
        golden[i] = layer->out[i];
    double e = relative_l2(out->out, golden, ROWS * HEADS * L);
    free(golden);
    return e;
}

Test(golden, library_through_each_format)
{
    struct layer layers[LAYERS];
    uint32_t isas[3], num_isas = isas_present(isas);
    if (!layers_load(layers))
        return;
    for (uint32_t format = LKV_FORMAT_BF16; format <= LKV_FORMAT_NVFP4; format++)
        for (uint32_t i = 0; i < num_isas; i++)
            for (int n = 0; n < LAYERS; n++)
                for (uint32_t half = 0; half < 2; half++) {
                    int32_t seq_len = TOKENS, indptr[2] = {0, ROWS};
                    struct run run = {.num_seqs = 1,
                                      .seq_lens = &seq_len,
                                      .q_indptr = indptr,
                                      .heads = HEADS,
                                      .q_dtype = LKV_DTYPE_BF16,
                                      .out_dtype = half ? LKV_DTYPE_BF16 : LKV_DTYPE_F32,
                                      .scale = scale,
                                      .q = layers[n].q,
                                      .q_rope = layers[n].q_pe};
                    struct world w;
                    struct output out;
                    char label[96];
                    snprintf(label, sizeof label, "%s %s layer %d out %s", format_name(format),
                             isa_name(isas[i]), n, half ? "bf16" : "fp32");
                    world_of_layer(&w, &layers[n], format, isas[i]);
                    must(world_attend(&w, &run, &out), "attend");
                    cr_assert(world_check(&w, &run, &out, half ? 3e-3 : 1e-5, label));
                    if (!half && i + 1 == num_isas)
                        fprintf(stderr, "%s: against the unquantised golden output %.2e\n", label,
                                cost_of(&out, &layers[n]));
                    output_free(&out);
                    world_close(&w);
                }
    layers_free(layers);
}
