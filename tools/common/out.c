/* In: sentences, JSON trees, table cells. Out: stderr, a file or stdout. Columns are as wide as
 * their widest cell; a column whose cells all start with a digit, sign or dot is right-aligned. */
#include "tools/common/out.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void out_die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fflush(stdout);
    fputs("lkv: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(EXIT_FAILED);
}

void out_must(lkv_status status, const char *what)
{
    if (status != LKV_OK)
        out_die("%s: %s: %s", what, lkv_status_name(status), lkv_last_error());
}

void *out_alloc(size_t count, size_t bytes)
{
    void *p = calloc(count ? count : 1, bytes ? bytes : 1);
    if (!p)
        out_die("out of memory: %zu x %zu bytes", count, bytes);
    return p;
}

void *out_grow(void *p, size_t bytes)
{
    void *q = realloc(p, bytes ? bytes : 1);
    if (!q)
        out_die("out of memory: %zu bytes", bytes);
    return q;
}

json_t *out_number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

void out_json(json_t *root, const char *path)
{
    const size_t flags = JSON_INDENT(2) | JSON_REAL_PRECISION(9);
    if (path) {
        FILE *to = strcmp(path, "-") ? fopen(path, "w") : stdout;
        if (!to)
            out_die("%s: %s", path, strerror(errno));
        int bad = json_dumpf(root, to, flags) != 0 || fputc('\n', to) == EOF;
        bad |= to == stdout ? fflush(to) : fclose(to);
        if (bad)
            out_die("%s: could not write the JSON", path);
    }
    json_decref(root);
}

struct out_table {
    size_t num_columns, num_cells, capacity;
    char **cells; /* the heads first */
};

static void table_push(struct out_table *t, char *text)
{
    if (t->num_cells == t->capacity) {
        t->capacity = t->capacity ? 2 * t->capacity : 64;
        t->cells = out_grow(t->cells, t->capacity * sizeof *t->cells);
    }
    t->cells[t->num_cells++] = text;
}

struct out_table *out_table_new(size_t num_columns, const char *const *heads)
{
    struct out_table *t = out_alloc(1, sizeof *t);
    t->num_columns = num_columns;
    for (size_t i = 0; i < num_columns; i++)
        table_push(t, strdup(heads[i]));
    return t;
}

void out_cell(struct out_table *t, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    table_push(t, strdup(text));
}

static int is_number(const char *s)
{
    return isdigit((unsigned char)*s) || *s == '-' || *s == '+' || *s == '.';
}

static void measure_column(const struct out_table *t, size_t column, int *width, int *right)
{
    *width = 0;
    *right = 1;
    for (size_t i = column; i < t->num_cells; i += t->num_columns) {
        int n = (int)strlen(t->cells[i]);
        *width = n > *width ? n : *width;
        *right &= i < t->num_columns || is_number(t->cells[i]);
    }
}

void out_table_print(struct out_table *t, FILE *to)
{
    int *width = out_alloc(t->num_columns, sizeof *width);
    int *right = out_alloc(t->num_columns, sizeof *right);
    for (size_t c = 0; c < t->num_columns; c++)
        measure_column(t, c, &width[c], &right[c]);
    for (size_t i = 0; i < t->num_cells; i++) {
        size_t c = i % t->num_columns;
        int last = c + 1 == t->num_columns || i + 1 == t->num_cells;
        fprintf(to, "%*s%s",
                right[c] ? width[c]
                : last   ? 0
                         : -width[c],
                t->cells[i], last ? "\n" : "  ");
        free(t->cells[i]);
    }
    free(width);
    free(right);
    free(t->cells);
    free(t);
}
