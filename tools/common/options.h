/* The options of a command as a table: each row names the option, its kind and where its value
 * goes. Wrong text ends the command through argp_error, as do arguments that are no options. */
#ifndef TOOLS_COMMON_OPTIONS_H
#define TOOLS_COMMON_OPTIONS_H

#include <argp.h>
#include <stddef.h>
#include <stdint.h>

enum option_kind {
    OPTION_TEXT, /* to: const char * */
    OPTION_FLAG, /* to: int, becomes 1; no argument */
    OPTION_U32,  /* to: uint32_t, from least to most */
    OPTION_U64,  /* to: uint64_t; most 0: no limit */
    OPTION_REAL, /* to: double */
    OPTION_OWN   /* parse does it */
};

struct option_row {
    const char *name, *arg, *doc;
    enum option_kind kind;
    void *to;
    double least, most;
    void (*parse)(struct argp_state *state, const char *text, void *to);
    int group; /* of --help */
};

/* The rows that nearly every command has. */
#define OPTION_JSON(to_)                                                                           \
    {                                                                                              \
        .name = "json", .arg = "FILE", .doc = "write the result as JSON; - is stdout",             \
        .kind = OPTION_TEXT, .to = (to_)                                                           \
    }
#define OPTION_SEED(to_)                                                                           \
    {                                                                                              \
        .name = "seed", .arg = "N", .doc = "of all that is drawn; default 1", .kind = OPTION_U64,  \
        .to = (to_)                                                                                \
    }

/* check (may be NULL) is called after the last option. */
void options_parse(int argc, char **argv, const char *doc, const struct option_row *rows,
                   size_t num_rows, void (*check)(struct argp_state *state, void *input),
                   void *input);

#endif
