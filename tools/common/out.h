/* How a command speaks: failure sentences on stderr, one JSON object to a file or stdout, aligned
 * tables. A command may exit; the library may not. Exit codes: 0 done, 1 failed, 2 wrong usage. */
#ifndef TOOLS_COMMON_OUT_H
#define TOOLS_COMMON_OUT_H

#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include "latentkv/latentkv.h"

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

_Noreturn void out_die(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Dies with the library's own sentence unless status is LKV_OK. */
void out_must(lkv_status status, const char *what);
void *out_alloc(size_t count, size_t bytes); /* zeroed; dies instead of NULL */
void *out_grow(void *p, size_t bytes);       /* realloc; dies instead of NULL */

/* JSON: the number, null where it is not finite */
json_t *out_number(double x);
/* Writes root to path ("-" is stdout) and drops the reference. path NULL: only drops it. */
void out_json(json_t *root, const char *path);

/* A table for people: cells are printf text, numbers are right-aligned. */
struct out_table;
struct out_table *out_table_new(size_t num_columns, const char *const *heads);
void out_cell(struct out_table *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void out_table_print(struct out_table *t, FILE *to); /* and frees it */

#endif
