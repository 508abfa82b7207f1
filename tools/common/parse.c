/* In: option text. Out: checked numbers. Lists are comma separated; an empty item is an error. */
#include "tools/common/parse.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "latentkv/latentkv.h"

static const char *const format_names[] = {
    [LKV_FORMAT_BF16] = "bf16",
    [LKV_FORMAT_FP8] = "fp8",
    [LKV_FORMAT_INT8] = "int8",
    [LKV_FORMAT_NVFP4] = "nvfp4",
};
enum { NUM_FORMATS = sizeof format_names / sizeof *format_names };

const char *format_name(uint32_t format)
{
    return format > 0 && format < NUM_FORMATS ? format_names[format] : "unknown";
}

uint64_t parse_uint(struct argp_state *state, const char *what, const char *text, uint64_t least,
                    uint64_t most)
{
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end || errno || v < least || v > most)
        argp_error(state, "%s is '%s'; need a whole number from %llu to %llu", what, text,
                   (unsigned long long)least, (unsigned long long)most);
    return v;
}

double parse_real(struct argp_state *state, const char *what, const char *text, double least,
                  double most)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !(v >= least && v <= most))
        argp_error(state, "%s is '%s'; need a number from %g to %g", what, text, least, most);
    return v;
}

uint64_t parse_bytes(struct argp_state *state, const char *what, const char *text)
{
    static const char units[] = "KMGT";
    char *end;
    double v = strtod(text, &end);
    const char *unit = *end ? strchr(units, *end) : NULL;
    const char *rest = unit ? end + 1 : end;
    if (unit && (!strcmp(rest, "iB") || !strcmp(rest, "i")))
        rest = "";
    if (unit)
        v = ldexp(v, 10 * (int)(unit - units + 1));
    if (end == text || *rest || !(v >= 1 && v <= 0x1p62))
        argp_error(state, "%s is '%s'; need a size such as 8GiB or 512MiB", what, text);
    return (uint64_t)v;
}

size_t parse_list(struct argp_state *state, const char *what, const char *text, uint64_t *out,
                  size_t capacity)
{
    char *copy = strdup(text), *rest = copy, *item;
    size_t n = 0;
    while ((item = strsep(&rest, ","))) {
        if (n == capacity)
            argp_error(state, "%s has more than %zu items", what, capacity);
        else
            out[n++] = parse_uint(state, what, item, 0, UINT32_MAX);
    }
    free(copy);
    return n;
}

uint32_t parse_format(struct argp_state *state, const char *text)
{
    for (uint32_t f = 1; f < NUM_FORMATS; f++)
        if (!strcmp(text, format_names[f]))
            return f;
    argp_error(state, "format is '%s'; need bf16, fp8, int8 or nvfp4", text);
    return 0;
}

size_t parse_formats(struct argp_state *state, const char *text, uint32_t *out, size_t capacity)
{
    char *copy = strdup(text), *rest = copy, *item;
    size_t n = 0;
    while ((item = strsep(&rest, ",")) && n < capacity)
        out[n++] = parse_format(state, item);
    free(copy);
    return n;
}

int32_t parse_device(struct argp_state *state, const char *text)
{
    if (!strcmp(text, "cpu"))
        return LKV_DEVICE_CPU;
    if (!strcmp(text, "cuda"))
        return 0;
    if (strncmp(text, "cuda:", 5))
        argp_error(state, "device is '%s'; need cpu, cuda or cuda:N", text);
    return (int32_t)parse_uint(state, "device", text + 5, 0, 1023);
}
