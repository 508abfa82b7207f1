/* lkv bench: the second table of commands, and the machine that the attention benches run on. */
#include <stdio.h>
#include <string.h>

#include "tools/bench/bench.h"
#include "tools/bench/peak.h"
#include "tools/command.h"
#include "tools/common/out.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *what;
} benches[] = {
    {"append", bench_append, "latents into records"},
    {"decode", bench_decode, "attention over a filled cache"},
    {"blocks", bench_blocks, "the block manager's operations"},
    {"fallback", bench_fallback, "fallback slots while KV is full: the guarantee and its time"},
    {"frag", bench_frag, "memory fragmentation: blocks and metadata"},
};
enum { NUM_BENCHES = sizeof benches / sizeof *benches };

/* "... plan: NAME, ..." is how a backend says which kernel it chose. */
static void on_log(void *user, int32_t level, const char *text)
{
    struct bench *b = user;
    const char *name = strstr(text, "plan: ");
    (void)level;
    if (name)
        snprintf(b->kernel, sizeof b->kernel, "%.*s", (int)strcspn(name + 6, ","), name + 6);
}

void bench_open(struct bench *b, const struct bench_options *o)
{
    *b = (struct bench){.options = o, .rows = json_array()};
    const lkv_context_desc desc = {.size = sizeof desc,
                                   .device = o->device,
                                   .num_threads = o->threads,
                                   .isa = o->isa,
                                   .log = on_log,
                                   .log_user = b};
    b->model.size = sizeof b->model;
    b->info.size = sizeof b->info;
    out_must(lkv_model_preset(o->preset, &b->model), "--preset");
    b->device = device_open(o->device);
    if (!b->device)
        out_die("--device: %s", device_error());
    out_must(lkv_context_create(&desc, &b->ctx), "the context");
    out_must(lkv_context_query(b->ctx, &b->info), "the context");
    if (!device_is_cuda(b->device))
        b->fma_tflops = peak_fma_tflops(b->info.num_threads, b->info.isa);
}

void bench_close(struct bench *b)
{
    if (!b->options->json || strcmp(b->options->json, "-") != 0) {
        printf("%s, %s, read ceiling %.1f GB/s", device_label(b->device), b->info.name,
               device_read_gbps(b->device, b->options->threads));
        if (b->fma_tflops > 0)
            printf(", fp32 multiply-add ceiling %.3f TFLOP/s", b->fma_tflops);
        printf("\n");
        bench_print_rows(b->rows);
    }
    out_json(json_pack("{s:s,s:s,s:o}", "device", device_label(b->device), "name", b->info.name,
                       "rows", b->rows),
             b->options->json);
    lkv_context_release(b->ctx);
    device_close(b->device);
}

static void print_usage(FILE *to)
{
    fputs("Usage: lkv bench WHAT [OPTION...]\n\n", to);
    for (size_t i = 0; i < NUM_BENCHES; i++)
        fprintf(to, "  %-10s%s\n", benches[i].name, benches[i].what);
    fputs("\n'lkv bench WHAT --help' lists its options.\n", to);
}

int command_bench(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    if (!strcmp(name, "--help") || !strcmp(name, "-h")) {
        print_usage(stdout);
        return EXIT_DONE;
    }
    for (size_t i = 0; i < NUM_BENCHES; i++) {
        char title[64];
        if (strcmp(name, benches[i].name) != 0)
            continue;
        snprintf(title, sizeof title, "lkv bench %s", name);
        argv[1] = title;
        return benches[i].run(argc - 1, argv + 1);
    }
    if (*name)
        fprintf(stderr, "lkv bench: '%s' is not a bench\n", name);
    print_usage(stderr);
    return EXIT_USAGE;
}
