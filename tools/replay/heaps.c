/* In: a finished replay and another build of the library. Out: metadata on both heaps. The same
 * command line runs again in a process of its own, in which the loader takes the other library: one
 * process would mix two heaps, and a heap's past shows in what it keeps. The harness allocates the
 * same in both, from libc; the kernel's figure holds that too. */
#include "tools/replay/heaps.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/common/out.h"
#include "tools/replay/compare.h"

int64_t compare_rss_bytes(void)
{
    char line[128];
    long long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %lld", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib * 1024;
}

static _Noreturn void become_other(const char *library, char **args)
{
    if (freopen("/dev/null", "w", stdout) && setenv("LD_PRELOAD", library, 1) == 0)
        execv("/proc/self/exe", args);
    _exit(127);
}

/* The options as given, then those that count because they are the last ones. */
static char **other_args(int argc, char *const *argv, char *json)
{
    char **args = out_alloc((size_t)argc + 6, sizeof *args);
    int n = 0;
    args[n++] = "lkv";
    args[n++] = "replay";
    for (int i = 1; i < argc; i++)
        args[n++] = argv[i];
    args[n++] = "--compare=none";
    args[n++] = "--json";
    args[n++] = json;
    return args;
}

void compare_malloc(struct replay *r, int argc, char *const *argv)
{
    char path[] = "/tmp/lkv-heaps-XXXXXX";
    const int fd = mkstemp(path);
    int status = 0;
    if (fd < 0)
        out_die("%s: %s", path, strerror(errno));
    close(fd);
    char **args = other_args(argc, argv, path);
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0)
        become_other(r->options.library, args);
    if (child < 0 || waitpid(child, &status, 0) < 0 || status != 0)
        out_die("--library %s: the replay with it failed", r->options.library);
    r->result.other_heap = json_load_file(path, 0, NULL);
    unlink(path);
    free(args);
    if (!r->result.other_heap)
        out_die("--library %s: the replay with it wrote no result", r->options.library);
}

/* A library that cannot tell what its arena holds is one on libc. */
static json_t *row_of(const json_t *result)
{
    static const char *const keys[] = {"metadata_bytes",          "metadata_active_bytes",
                                       "metadata_resident_bytes", "rss_growth_bytes",
                                       "manager_cpu_s",           "over_time"};
    const int libc = json_is_null(json_object_get(result, "metadata_resident_bytes"));
    json_t *row = json_pack("{s:s}", "heap", libc ? "libc" : "arena");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        json_object_set(row, keys[i], json_object_get(result, keys[i]));
    return row;
}

json_t *heaps_json(const struct replay *r, const json_t *own)
{
    return json_pack("{s:s,s:[o,o]}", "with", "malloc", "rows", row_of(own),
                     row_of(r->result.other_heap));
}

void heaps_print(const json_t *compare)
{
    static const char *const heads[] = {"metadata on", "allocated",       "active",
                                        "resident",    "process grew by", "manager CPU s"};
    struct out_table *t = out_table_new(sizeof heads / sizeof *heads, heads);
    size_t i;
    json_t *row, *value;
    const char *key;
    json_array_foreach(json_object_get(compare, "rows"), i, row)
    {
        json_object_foreach(row, key, value)
        {
            if (!strcmp(key, "over_time"))
                continue;
            if (json_is_string(value))
                out_cell(t, "%s", json_string_value(value));
            else if (json_is_null(value))
                out_cell(t, "-");
            else
                out_cell(t, json_is_integer(value) ? "%.0f" : "%.3f", json_number_value(value));
        }
    }
    out_table_print(t, stdout);
}
