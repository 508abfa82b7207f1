/* The format's rule (numpy.lib.format): "\x93NUMPY", two bytes of version, the header's length (2
 * bytes in version 1, 4 from 2 on), a Python dictionary with descr, fortran_order and shape, raw
 * data. Every number is checked against the file's size before it is used. */
#include "tools/fit/npy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_MAX = 65536 };

struct header {
    char text[HEADER_MAX + 1];
    uint32_t element_bytes;
};

static int read_text(FILE *f, const char *path, struct header *h, struct engine_error *error)
{
    unsigned char lead[12];
    if (fread(lead, 1, 10, f) != 10 || memcmp(lead, "\x93NUMPY", 6) != 0 || lead[6] < 1 ||
        lead[6] > 3)
        return engine_fail(error, "%s is no .npy file of version 1 to 3", path);
    uint64_t n = lead[8] | (uint64_t)lead[9] << 8;
    if (lead[6] > 1) {
        if (fread(lead + 10, 1, 2, f) != 2)
            return engine_fail(error, "%s ends inside its header", path);
        n |= (uint64_t)lead[10] << 16 | (uint64_t)lead[11] << 24;
    }
    if (n > HEADER_MAX || fread(h->text, 1, n, f) != n)
        return engine_fail(error, "%s: a header of %llu bytes; at most %d, all there", path,
                           (unsigned long long)n, HEADER_MAX);
    h->text[n] = 0;
    return 0;
}

/* What stands behind 'key': */
static const char *value_of(const struct header *h, const char *key)
{
    char quoted[32];
    snprintf(quoted, sizeof quoted, "'%s':", key);
    const char *at = strstr(h->text, quoted);
    return at ? at + strlen(quoted) + strspn(at + strlen(quoted), " ") : "";
}

static int read_shape(const struct header *h, const char *path, struct npy *out,
                      struct engine_error *error)
{
    const char *at = value_of(h, "shape");
    if (*at++ != '(')
        return engine_fail(error, "%s: the header has no shape", path);
    for (;;) {
        char *end;
        at += strspn(at, " ,");
        if (*at == ')')
            return 0;
        unsigned long long n = strtoull(at, &end, 10);
        if (end == at || out->ndim == NPY_MAX_DIMS || n < 1 || n > INT32_MAX)
            return engine_fail(error, "%s: shape %.40s; need 1 to %d extents from 1 to 2^31 - 1",
                               path, value_of(h, "shape"), NPY_MAX_DIMS);
        out->shape[out->ndim++] = n;
        at = end;
    }
}

static int read_header(FILE *f, const char *path, struct header *h, struct npy *out,
                       struct engine_error *error)
{
    if (read_text(f, path, h, error))
        return -1;
    const char *descr = value_of(h, "descr");
    int known =
        !strncmp(descr, "'<f2'", 5) || !strncmp(descr, "'<f4'", 5) || !strncmp(descr, "'<f8'", 5);
    if (!known)
        return engine_fail(error, "%s: descr %.20s; need '<f2', '<f4' or '<f8'", path, descr);
    h->element_bytes = (uint32_t)(descr[3] - '0');
    if (strncmp(value_of(h, "fortran_order"), "False", 5) != 0)
        return engine_fail(error, "%s: fortran_order %.10s; need False", path,
                           value_of(h, "fortran_order"));
    return read_shape(h, path, out, error);
}

static float widen_half(const unsigned char *p)
{
    int bits = p[0] | p[1] << 8, e = bits >> 10 & 31, m = bits & 1023;
    float x = e == 31 ? (m ? NAN : INFINITY)
              : e     ? ldexpf((float)(1024 + m), e - 25)
                      : ldexpf((float)m, -24);
    return bits & 0x8000 ? -x : x;
}

static float widen(const unsigned char *p, uint32_t bytes)
{
    float x;
    double wide;
    if (bytes == 2)
        return widen_half(p);
    if (bytes == 4) {
        memcpy(&x, p, sizeof x);
        return x;
    }
    memcpy(&wide, p, sizeof wide);
    return (float)wide;
}

static int read_data(FILE *f, const char *path, uint32_t element_bytes, struct npy *out,
                     struct engine_error *error)
{
    uint64_t count = 1;
    for (uint32_t i = 0; i < out->ndim; i++)
        if (__builtin_mul_overflow(count, out->shape[i], &count) || count > (uint64_t)1 << 40)
            return engine_fail(error, "%s: more than 2^40 values", path);
    out->data = malloc(count * sizeof *out->data);
    if (!out->data)
        return engine_fail(error, "out of memory for %llu values", (unsigned long long)count);
    unsigned char buffer[8192];
    for (uint64_t at = 0; at < count;) {
        uint64_t n = sizeof buffer / element_bytes;
        n = count - at < n ? count - at : n;
        if (fread(buffer, element_bytes, n, f) != n)
            return engine_fail(error, "%s ends after %llu of %llu values", path,
                               (unsigned long long)at, (unsigned long long)count);
        for (uint64_t i = 0; i < n; i++)
            out->data[at++] = widen(buffer + i * element_bytes, element_bytes);
    }
    return 0;
}

int npy_read(const char *path, struct npy *out, struct engine_error *error)
{
    struct header *h = calloc(1, sizeof *h);
    FILE *f = fopen(path, "rb");
    memset(out, 0, sizeof *out);
    int status = h && f ? 0 : engine_fail(error, "cannot open %s", path);
    if (!status)
        status = read_header(f, path, h, out, error);
    if (!status)
        status = read_data(f, path, h->element_bytes, out, error);
    if (f)
        fclose(f);
    free(h);
    if (status) {
        free(out->data);
        memset(out, 0, sizeof *out);
    }
    return status;
}
