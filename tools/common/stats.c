/* In: single measurements. Out: percentiles by nearest rank (an element of the list, never a blend
 * of two), means. */
#include "tools/common/stats.h"

#include <math.h>
#include <stdlib.h>
#include "tools/common/out.h"

void series_add(struct series *s, double value)
{
    if (s->count == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 256;
        s->values = out_grow(s->values, s->capacity * sizeof *s->values);
    }
    s->values[s->count++] = value;
    s->sorted = 0;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double series_percentile(struct series *s, double share)
{
    if (!s->count)
        return NAN;
    if (!s->sorted)
        qsort(s->values, s->count, sizeof *s->values, compare);
    s->sorted = 1;
    double rank = ceil(share * (double)s->count) - 1;
    return s->values[rank < 0 ? 0 : (size_t)rank];
}

double series_mean(const struct series *s)
{
    double sum = 0;
    for (size_t i = 0; i < s->count; i++)
        sum += s->values[i];
    return s->count ? sum / (double)s->count : NAN;
}

void series_free(struct series *s)
{
    free(s->values);
    *s = (struct series){0};
}

json_t *series_p50_p99(struct series *s)
{
    return json_pack("{s:o,s:o}", "p50", out_number(series_percentile(s, 0.5)), "p99",
                     out_number(series_percentile(s, 0.99)));
}
