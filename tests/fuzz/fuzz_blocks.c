/* In: bytes, read as the choices of a random walk over the block manager. Out: a crash if the
 * manager and its plain twin part. When the bytes end, every further choice is 0. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
/* One target, one program: their only other user is the model. */
#include "tests/stress/blocks_ops.c"
#include "tests/stress/blocks_ops_host.c"
#include "tests/stress/blocks_ops_seqs.c"

enum { STEPS_MAX = 2000 };

struct bytes {
    const uint8_t *at, *end;
};

static uint32_t next(void *user, uint32_t n)
{
    struct bytes *b = user;
    if (b->at == b->end)
        return 0;
    return *b->at++ % n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bytes b = {data, data + size};
    struct ops *o = ops_create(next, &b, 8);
    if (!o)
        return 0;
    for (int i = 0; i < STEPS_MAX && b.at < b.end; i++) {
        const char *wrong = ops_step(o);
        if (!wrong)
            continue;
        fprintf(stderr, "step %d: %s\n", i, wrong);
        abort();
    }
    ops_destroy(o, NULL);
    return 0;
}
