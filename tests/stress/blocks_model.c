/* In: --steps N, --seed S, --hash-bits B. Out: exit 0, or the seed and step where the manager and
 * its plain twin part. A new pool every 2,000 steps. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/stress/blocks_ops.h"

enum { STEPS_PER_POOL = 2000 };

static uint32_t next(void *user, uint32_t n)
{
    uint64_t *s = user;
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return (uint32_t)((*s >> 20) % n);
}

static int run(uint64_t seed, uint64_t steps, uint32_t hash_bits, struct ops_sums *sums)
{
    uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
    struct ops *o = ops_create(next, &state, hash_bits);
    if (!o)
        return 1;
    for (uint64_t i = 0; i < steps; i++) {
        const char *wrong = ops_step(o);
        if (!wrong)
            continue;
        fprintf(stderr, "seed %llu step %llu: %s\n", (unsigned long long)seed,
                (unsigned long long)i, wrong);
        ops_destroy(o, NULL);
        return 1;
    }
    ops_destroy(o, sums);
    return 0;
}

int main(int argc, char **argv)
{
    uint64_t steps = 100000, seed = 1, hash_bits = 0;
    struct ops_sums sums = {.published = 0};
    for (int i = 1; i + 1 < argc; i += 2) {
        uint64_t value = strtoull(argv[i + 1], NULL, 0);
        if (!strcmp(argv[i], "--steps"))
            steps = value;
        else if (!strcmp(argv[i], "--seed"))
            seed = value;
        else if (!strcmp(argv[i], "--hash-bits"))
            hash_bits = value;
    }
    for (uint64_t done = 0; done < steps; done += STEPS_PER_POOL, seed++) {
        uint64_t left = steps - done;
        if (run(seed, left < STEPS_PER_POOL ? left : STEPS_PER_POOL, (uint32_t)hash_bits, &sums))
            return 1;
    }
    printf("%llu steps, no difference\nblocks: ", (unsigned long long)steps);
    printf("%llu published, %llu evicted, %llu expired, %llu copied, ",
           (unsigned long long)sums.published, (unsigned long long)sums.evicted,
           (unsigned long long)sums.expired, (unsigned long long)sums.copied);
    printf("%llu demoted, %llu promoted, %llu swapped out, %llu in\n",
           (unsigned long long)sums.demoted, (unsigned long long)sums.promoted,
           (unsigned long long)sums.swapped_out, (unsigned long long)sums.swapped_in);
    return 0;
}
