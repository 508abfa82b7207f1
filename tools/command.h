/* The table of subcommands. A command gets argv[0] = "lkv NAME", parses the rest with argp (wrong
 * text exits with EXIT_USAGE), and returns an EXIT_* code. Every command has --help and
 * --json FILE|-. */
#ifndef TOOLS_COMMAND_H
#define TOOLS_COMMAND_H

int command_info(int argc, char **argv);
int command_make_trace(int argc, char **argv);
int command_replay(int argc, char **argv);
int command_serve_metrics(int argc, char **argv);
int command_ppl(int argc, char **argv); /* tools/ppl.c */
int command_fit_projector(int argc, char **argv);
int command_bench(int argc, char **argv);

#endif
