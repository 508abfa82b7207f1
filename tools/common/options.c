/* In: a command line and the rows it may use. Out: the rows' values, or the end of the command. */
#include "tools/common/options.h"

#include <stdlib.h>

#include "tools/common/out.h"
#include "tools/common/parse.h"

enum { FIRST_KEY = 0x100 }; /* above all characters: options have no short form */

struct parse {
    const struct option_row *rows;
    int num_rows;
    void (*check)(struct argp_state *state, void *input);
    void *input;
};

static uint64_t most_of(const struct option_row *row)
{
    if (row->most > 0)
        return (uint64_t)row->most;
    return row->kind == OPTION_U32 ? UINT32_MAX : UINT64_MAX;
}

static void set(struct argp_state *state, const struct option_row *row, char *arg)
{
    char what[64];
    snprintf(what, sizeof what, "--%s", row->name);
    switch (row->kind) {
    case OPTION_TEXT:
        *(const char **)row->to = arg;
        return;
    case OPTION_FLAG:
        *(int *)row->to = 1;
        return;
    case OPTION_U32:
        *(uint32_t *)row->to =
            (uint32_t)parse_uint(state, what, arg, (uint64_t)row->least, most_of(row));
        return;
    case OPTION_U64:
        *(uint64_t *)row->to = parse_uint(state, what, arg, (uint64_t)row->least, most_of(row));
        return;
    case OPTION_REAL:
        *(double *)row->to = parse_real(state, what, arg, row->least, row->most);
        return;
    case OPTION_OWN:
        row->parse(state, arg, row->to);
        return;
    }
}

static error_t parse_one(int key, char *arg, struct argp_state *state)
{
    const struct parse *p = state->input;
    if (key >= FIRST_KEY && key < FIRST_KEY + p->num_rows) {
        set(state, &p->rows[key - FIRST_KEY], arg);
        return 0;
    }
    if (key == ARGP_KEY_ARG)
        argp_error(state, "'%s' is one argument too many", arg);
    if (key == ARGP_KEY_END && p->check)
        p->check(state, p->input);
    return key == ARGP_KEY_ARG || key == ARGP_KEY_END ? 0 : ARGP_ERR_UNKNOWN;
}

void options_parse(int argc, char **argv, const char *doc, const struct option_row *rows,
                   size_t num_rows, void (*check)(struct argp_state *state, void *input),
                   void *input)
{
    struct argp_option *table = out_alloc(num_rows + 1, sizeof *table);
    struct parse p = {rows, (int)num_rows, check, input};
    for (size_t i = 0; i < num_rows; i++)
        table[i] = (struct argp_option){.name = rows[i].name,
                                        .key = FIRST_KEY + (int)i,
                                        .arg = rows[i].arg,
                                        .doc = rows[i].doc,
                                        .group = rows[i].group};
    const struct argp parser = {.options = table, .parser = parse_one, .doc = doc};
    argp_parse(&parser, argc, argv, 0, NULL, &p);
    free(table);
}
