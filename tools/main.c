/* lkv: looks the first word up in the table of subcommands and hands it the rest. */
#include <argp.h>
#include <stdio.h>
#include <string.h>

#include "tools/command.h"
#include "tools/common/out.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *what;
} commands[] = {
    {"info", command_info, "version, devices, bytes of each format, memory table of a model"},
    {"make-trace", command_make_trace, "write a synthetic workload"},
    {"replay", command_replay, "run a workload through the block manager and, if asked, attention"},
    {"serve-metrics", command_serve_metrics, "a replay whose signals Prometheus can scrape"},
    {"ppl", command_ppl, "perplexity of a model over the quantised cache"},
    {"fit-projector", command_fit_projector,
     "fit the projector of LATENT_GQA pools to keys and values"},
    {"bench", command_bench, "measure append, decode, the block manager, fragmentation"},
};
enum { NUM_COMMANDS = sizeof commands / sizeof *commands };

static void print_usage(FILE *to)
{
    fputs("Usage: lkv COMMAND [OPTION...]\n\n", to);
    for (size_t i = 0; i < NUM_COMMANDS; i++)
        fprintf(to, "  %-15s%s\n", commands[i].name, commands[i].what);
    fputs("\n'lkv COMMAND --help' lists a command's options.\n", to);
}

int main(int argc, char **argv)
{
    argp_err_exit_status = EXIT_USAGE;
    const char *name = argc > 1 ? argv[1] : "";
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help")) {
        print_usage(stdout);
        return EXIT_DONE;
    }
    for (size_t i = 0; i < NUM_COMMANDS; i++) {
        char title[64];
        if (strcmp(name, commands[i].name) != 0)
            continue;
        snprintf(title, sizeof title, "lkv %s", name);
        argv[1] = title;
        return commands[i].run(argc - 1, argv + 1);
    }
    if (*name)
        fprintf(stderr, "lkv: '%s' is not a command\n", name);
    print_usage(stderr);
    return EXIT_USAGE;
}
