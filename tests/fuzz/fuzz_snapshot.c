/* In: bytes, read as a snapshot file, or as changes to a right one whose seals are then made right
 * again. Out: a crash if loading crashes, gives an unexpected status, breaks an invariant, changes
 * a block that was cached before, or puts a prompt into the cache that no file names. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "tests/support/snap_forge.h"
#include "tests/unit/block_manager/snap_world.h"

enum { FILE_BYTES_MAX = 1 << 18, RAW_BYTES_MAX = 1 << 12 };

static const struct snap_prompt in_file[] = {{0, 0, 50}, {0, 1, 40}, {3000, 2, 50}};
static const struct snap_prompt kept = {7000, 1, 40}, never = {88000, 0, 100};

static struct {
    struct snap_pool pool;
    char path[64];
    int fd;
    size_t bytes; /* of the right file */
    uint8_t right[FILE_BYTES_MAX], file[FILE_BYTES_MAX];
} world;

static void fail(const char *what)
{
    fprintf(stderr, "%s (%s)\n", what, lkv_last_error());
    abort();
}

/* A right snapshot, then an empty pool of the same identity and the way in. */
static void prepare(void)
{
    char path[] = "fuzz-snapshot.XXXXXX";
    lkv_pool_desc desc = snap_desc(24, 1, 0);
    struct snap_pool source = snap_open(&desc);
    for (int i = 0; i < 3; i++)
        snap_cache(&source, &in_file[i]);
    int named = mkstemp(path);
    snap_must(snap_save(&source, path, NULL), "save");
    snap_close(&source);
    close(named);
    FILE *f = fopen(path, "rb");
    world.bytes = f ? fread(world.right, 1, sizeof world.right, f) : 0;
    if (!world.bytes || fclose(f) || unlink(path))
        fail("no snapshot to start from");
    world.fd = memfd_create("snapshot", 0);
    snprintf(world.path, sizeof world.path, "/proc/self/fd/%d", world.fd);
    desc.flags = LKV_POOL_EVENTS;
    world.pool = snap_open(&desc);
}

static size_t take(const uint8_t **data, size_t *bytes, unsigned n)
{
    size_t value = 0;
    for (unsigned i = 0; i < n && *bytes; i++, (*data)++, (*bytes)--)
        value |= (size_t) * *data << 8 * i;
    return value;
}

/* Half of the places are in the head and the heads of records, where the lengths are. */
static size_t place(const uint8_t **data, size_t *bytes, size_t length)
{
    size_t where = take(data, bytes, 1), at = take(data, bytes, 3);
    struct lkvi_snapshot_head head;
    memcpy(&head, world.right, sizeof head);
    uint64_t record = lkvi_snapshot_record_bytes(&head, 0);
    if (where % 4 == 0)
        return at % sizeof head;
    if (where % 4 == 1)
        return (sizeof head + where / 4 % 9 * record + at % 96) % length;
    return at % length;
}

/* The changed file's length. */
static size_t mutate(const uint8_t *data, size_t bytes)
{
    size_t length = world.bytes, mode = take(&data, &bytes, 1);
    memcpy(world.file, world.right, length);
    for (size_t n = 1 + mode / 8 % 8; n && bytes; n--) {
        size_t at = place(&data, &bytes, length), width = 1u << take(&data, &bytes, 1) % 4;
        size_t value = take(&data, &bytes, (unsigned)width);
        if (at + width <= length)
            memcpy(world.file + at, &value, width);
    }
    if (mode % 4 == 3)
        length = take(&data, &bytes, 3) % (length + 1);
    if (mode % 8 != 4)
        forge_seals(world.file, length);
    return length;
}

static void load(size_t length)
{
    if (ftruncate(world.fd, 0) || pwrite(world.fd, world.file, length, 0) != (ssize_t)length)
        fail("cannot write the file");
    lkv_status status = snap_load(&world.pool, world.path, NULL);
    if (status != LKV_OK && status != LKV_E_INVALID && status != LKV_E_VERSION)
        fail("an unexpected status");
    if (lkv_pool_check(world.pool.pool) != LKV_OK)
        fail("an invariant is broken");
    if (snap_match(&world.pool, &never))
        fail("a prompt of no file is cached");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (!world.bytes)
        prepare();
    snap_must(lkv_pool_reset(world.pool.pool, 0), "reset");
    snap_cache(&world.pool, &kept);
    if (bytes && data[0] % 8 == 0) { /* raw */
        size_t length = bytes - 1 < RAW_BYTES_MAX ? bytes - 1 : RAW_BYTES_MAX;
        memcpy(world.file, data + 1, length);
        load(length);
    } else {
        load(mutate(data, bytes));
    }
    if (snap_verify(&world.pool, &kept) != 32)
        fail("a block that was cached before is not any more");
    return 0;
}
