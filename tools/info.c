/* lkv info: what this library is, what it runs on, how many bytes a token takes, and how much
 * memory a serving load needs in each layout. In: the library's own answers; nothing is computed
 * twice except MHA and GQA, which the library does not store. */
#include <stdio.h>
#include <string.h>

#include "tools/command.h"
#include "tools/common/options.h"
#include "tools/common/out.h"
#include "tools/common/parse.h"

enum { BLOCK_TOKENS = 64, GQA_HEADS = 8, NUM_FORMATS = 4, MAX_DEVICES = 64 };

struct options {
    uint64_t context, sequences;
    const char *preset, *json;
    uint32_t layers;
    double headroom;
};

static void parse(int argc, char **argv, struct options *o)
{
    const struct option_row rows[] = {
        {"context", "N", "tokens a sequence: prints the memory table", OPTION_U64, &o->context, 1,
         UINT32_MAX, NULL, 0},
        {"sequences", "N", "sequences of that length; default 1", OPTION_U64, &o->sequences, 1,
         UINT32_MAX, NULL, 0},
        {"preset", "NAME", "the table's model; default v3", OPTION_TEXT, &o->preset, 0, 0, NULL, 0},
        {"layers", "N", "its layers, if not the preset's", OPTION_U32, &o->layers, 1, 4096, NULL,
         0},
        {"headroom", "H", "blocks for fallback slots on top; default 0", OPTION_REAL, &o->headroom,
         0, 10, NULL, 0},
        OPTION_JSON(&o->json)};
    options_parse(argc, argv,
                  "Version, devices, bytes of each format, and the memory table of a load.", rows,
                  sizeof rows / sizeof *rows, NULL, NULL);
}

/* ---- the machine */

static json_t *cpu_features(void)
{
    json_t *list = json_array();
#if defined(__x86_64__)
#define FEATURE(name)                                                                              \
    if (__builtin_cpu_supports(name))                                                              \
    json_array_append_new(list, json_string(name))
    FEATURE("avx2");
    FEATURE("fma");
    FEATURE("bmi2");
    FEATURE("avx512f");
    FEATURE("avx512bw");
    FEATURE("avx512dq");
    FEATURE("avx512vl");
    FEATURE("avx512vbmi");
    FEATURE("avx512vnni");
    FEATURE("avx512bf16");
#undef FEATURE
#endif
    return list;
}

static const char *isa_name(uint32_t isa)
{
    static const char *const names[] = {"cpu", "scalar", "avx2", "avx512"};
    return isa < 4 ? names[isa] : "unknown";
}

static json_t *describe_device(const lkv_context *ctx)
{
    lkv_context_info info = {.size = sizeof info};
    char label[32] = "cpu";
    out_must(lkv_context_query(ctx, &info), "the device");
    if (info.device >= 0)
        snprintf(label, sizeof label, "cuda:%d", info.device);
    return json_pack("{s:s,s:s,s:s,s:i,s:i,s:i,s:I,s:I,s:I}", "device", label, "name", info.name,
                     "isa", info.device < 0 ? isa_name(info.isa) : "", "threads",
                     (int)info.num_threads, "compute_capability", (int)info.compute_capability,
                     "num_sms", (int)info.num_sms, "l2_bytes", (json_int_t)info.l2_bytes,
                     "memory_bytes", (json_int_t)info.memory_bytes, "smem_bytes_per_block",
                     (json_int_t)info.smem_bytes_per_block);
}

/* The CPU, then CUDA ordinals until one is refused; *reason is why the first was, "" if it was not.
 */
static json_t *list_devices(json_t **reason)
{
    json_t *list = json_array();
    *reason = json_string("");
    for (int32_t device = LKV_DEVICE_CPU; device < MAX_DEVICES; device++) {
        const lkv_context_desc desc = {.size = sizeof desc, .device = device};
        lkv_context *ctx;
        if (lkv_context_create(&desc, &ctx) != LKV_OK) {
            if (device == 0)
                json_string_set(*reason, lkv_last_error());
            break;
        }
        json_array_append_new(list, describe_device(ctx));
        lkv_context_release(ctx);
    }
    return list;
}

/* ---- bytes */

static lkv_model_desc model_of(const char *preset)
{
    lkv_model_desc m = {.size = sizeof m};
    out_must(lkv_model_preset(preset, &m), "--preset");
    return m;
}

static uint64_t record_bytes(const lkv_model_desc *m, uint32_t format)
{
    const lkv_pool_desc desc = {.size = sizeof desc,
                                .format = format,
                                .tokens_per_block = BLOCK_TOKENS,
                                .latent_dim = m->latent_dim,
                                .rope_dim = m->rope_dim,
                                .rope_style = m->rope_style,
                                .num_layers = 1,
                                .num_blocks = 1};
    lkv_block_info info = {.size = sizeof info};
    out_must(lkv_block_query(&desc, &info), "the record's layout");
    return info.record_bytes;
}

static json_t *list_formats(void)
{
    json_t *rows = json_array();
    const char *preset;
    for (uint32_t i = 0; (preset = lkv_model_preset_name(i)); i++) {
        const lkv_model_desc m = model_of(preset);
        for (uint32_t f = 1; f <= NUM_FORMATS; f++) {
            const uint64_t bytes = record_bytes(&m, f);
            json_array_append_new(
                rows, json_pack("{s:s,s:s,s:i,s:i,s:I,s:i,s:I,s:i,s:I}", "preset", preset, "format",
                                format_name(f), "latent_dim", (int)m.latent_dim, "rope_dim",
                                (int)m.rope_dim, "record_bytes", (json_int_t)bytes, "block_tokens",
                                BLOCK_TOKENS, "block_bytes", (json_int_t)(bytes * BLOCK_TOKENS),
                                "layers", (int)m.num_layers, "bytes_per_token",
                                (json_int_t)(bytes * m.num_layers)));
        }
    }
    return rows;
}

/* K and V rows of `heads` heads in a format: fp8 with an fp32 scale a row, int8 with scale and
 * zero, nvfp4 with an e4m3 scale per 16 and an fp32 outer one a row. */
static double dense_bytes(uint32_t format, uint32_t heads, uint32_t key_dim, uint32_t value_dim)
{
    static const double element[] = {0, 2, 1, 1, 0.5 + 1.0 / 16}, row[] = {0, 0, 4, 8, 4};
    return heads * (element[format] * (key_dim + value_dim) + 2 * row[format]);
}

static void add_memory_row(json_t *rows, const struct options *o, const char *layout,
                           uint32_t format, double token_bytes, uint32_t layers)
{
    const double blocks = (double)((o->context + BLOCK_TOKENS - 1) / BLOCK_TOKENS);
    const double tokens = blocks * BLOCK_TOKENS * (double)o->sequences;
    const double bytes = tokens * token_bytes * layers * (1 + o->headroom);
    json_array_append_new(rows, json_pack("{s:s,s:s,s:f,s:f,s:f,s:b}", "layout", layout, "format",
                                          format_name(format), "bytes_per_token_layer", token_bytes,
                                          "bytes", bytes, "gib", bytes / 0x1p30, "fits_80gb",
                                          bytes <= 80e9));
}

static json_t *memory_table(const struct options *o)
{
    if (!o->context)
        return json_null();
    const lkv_model_desc m = model_of(o->preset);
    const uint32_t layers = o->layers ? o->layers : m.num_layers;
    json_t *rows = json_array();
    for (uint32_t f = 1; f <= NUM_FORMATS; f++)
        add_memory_row(rows, o, "mha", f, dense_bytes(f, m.num_heads, m.nope_dim, m.v_dim), layers);
    for (uint32_t f = 1; f <= NUM_FORMATS; f++)
        add_memory_row(rows, o, "gqa-8", f, dense_bytes(f, GQA_HEADS, m.nope_dim, m.v_dim), layers);
    for (uint32_t f = 1; f <= NUM_FORMATS; f++)
        add_memory_row(rows, o, "mla", f, (double)record_bytes(&m, f), layers);
    return json_pack("{s:s,s:I,s:I,s:i,s:f,s:o}", "preset", o->preset, "context",
                     (json_int_t)o->context, "sequences", (json_int_t)o->sequences, "layers",
                     (int)layers, "headroom", o->headroom, "rows", rows);
}

/* ---- for people */

static const char *text_of(const json_t *row, const char *key)
{
    return json_string_value(json_object_get(row, key));
}

static double number_of(const json_t *row, const char *key)
{
    return json_number_value(json_object_get(row, key));
}

static void print_machine(const json_t *root)
{
    size_t i;
    json_t *item;
    printf("latentkv %s, ABI %.0f\nCPU features:", text_of(root, "version"),
           number_of(root, "abi"));
    json_array_foreach(json_object_get(root, "cpu_features"), i, item)
        printf(" %s", json_string_value(item));
    printf("\n\n");
    json_array_foreach(json_object_get(root, "devices"), i, item)
    {
        printf("%-8s%s", text_of(item, "device"), text_of(item, "name"));
        if (*text_of(item, "isa"))
            printf(", %s, %.0f threads\n", text_of(item, "isa"), number_of(item, "threads"));
        else
            printf(", sm_%.0f, %.0f SMs, %.1f GiB\n", number_of(item, "compute_capability"),
                   number_of(item, "num_sms"), number_of(item, "memory_bytes") / 0x1p30);
    }
    if (*text_of(root, "cuda_reason"))
        printf("cuda    none: %s\n", text_of(root, "cuda_reason"));
    putchar('\n');
}

static void print_formats(const json_t *rows)
{
    static const char *const heads[] = {"preset",  "format", "L + R",    "record B",
                                        "block B", "layers", "B a token"};
    struct out_table *t = out_table_new(7, heads);
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row)
    {
        out_cell(t, "%s", text_of(row, "preset"));
        out_cell(t, "%s", text_of(row, "format"));
        out_cell(t, "%.0f + %.0f", number_of(row, "latent_dim"), number_of(row, "rope_dim"));
        out_cell(t, "%.0f", number_of(row, "record_bytes"));
        out_cell(t, "%.0f", number_of(row, "block_bytes"));
        out_cell(t, "%.0f", number_of(row, "layers"));
        out_cell(t, "%.0f", number_of(row, "bytes_per_token"));
    }
    out_table_print(t, stdout);
}

static void print_memory(const json_t *memory)
{
    static const char *const heads[] = {"layout", "format", "B a token and layer", "GiB",
                                        "one 80 GB card"};
    if (json_is_null(memory))
        return;
    printf("\n%s, %.0f layers, %.0f tokens x %.0f sequences, headroom %g\n",
           text_of(memory, "preset"), number_of(memory, "layers"), number_of(memory, "context"),
           number_of(memory, "sequences"), number_of(memory, "headroom"));
    struct out_table *t = out_table_new(5, heads);
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(memory, "rows"), i, row)
    {
        out_cell(t, "%s", text_of(row, "layout"));
        out_cell(t, "%s", text_of(row, "format"));
        out_cell(t, "%.0f", number_of(row, "bytes_per_token_layer"));
        out_cell(t, "%.1f", number_of(row, "gib"));
        out_cell(t, "%s", json_is_true(json_object_get(row, "fits_80gb")) ? "fits" : "too large");
    }
    out_table_print(t, stdout);
}

int command_info(int argc, char **argv)
{
    struct options o = {.sequences = 1, .preset = "v3"};
    parse(argc, argv, &o);
    const uint32_t v = lkv_version();
    char version[32];
    snprintf(version, sizeof version, "%u.%u.%u", v / 1000000, v / 1000 % 1000, v % 1000);
    json_t *reason, *devices = list_devices(&reason);
    json_t *root = json_pack("{s:s,s:i,s:o,s:o,s:o,s:o,s:o}", "version", version, "abi", LKV_ABI,
                             "cpu_features", cpu_features(), "devices", devices, "cuda_reason",
                             reason, "rows", list_formats(), "memory", memory_table(&o));
    if (!o.json || strcmp(o.json, "-") != 0) {
        print_machine(root);
        print_formats(json_object_get(root, "rows"));
        print_memory(json_object_get(root, "memory"));
    }
    out_json(root, o.json);
    return EXIT_DONE;
}
