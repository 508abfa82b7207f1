/* Random operations on one manager and its plain twin, chosen by a stream of numbers: a generator
 * for the model test, the fuzzer's bytes for the fuzzer. */
#ifndef TESTS_STRESS_BLOCKS_OPS_H
#define TESTS_STRESS_BLOCKS_OPS_H

#include <stdint.h>

struct ops;
/* The next number below n; n >= 1. */
typedef uint32_t (*ops_draw)(void *user, uint32_t n);

struct ops *ops_create(ops_draw draw, void *user, uint32_t hash_bits);
/* What the walk did, added to sums; NULL: nobody wants to know. */
struct ops_sums {
    uint64_t published, evicted, expired, copied, demoted, promoted, swapped_out, swapped_in;
};
void ops_destroy(struct ops *o, struct ops_sums *sums);
/* One operation, then every comparison; NULL or the first difference. */
const char *ops_step(struct ops *o);

#endif
