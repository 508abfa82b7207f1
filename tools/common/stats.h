/* A growing list of measurements and what is reported of it. */
#ifndef TOOLS_COMMON_STATS_H
#define TOOLS_COMMON_STATS_H

#include <jansson.h>
#include <stddef.h>

struct series {
    double *values;
    size_t count, capacity;
    int sorted;
};

void series_add(struct series *s, double value);
/* Nearest-rank percentile, share in 0..1; NaN when empty. Sorts the list. */
double series_percentile(struct series *s, double share);
double series_mean(const struct series *s);
void series_free(struct series *s);
/* {"p50": x, "p99": y} */
json_t *series_p50_p99(struct series *s);

#endif
