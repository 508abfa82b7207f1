/* core/alloc.h: sizes, alignment, the fail hook, and that an arena's end is the end of its memory.
 */
#include <criterion/criterion.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "core/alloc.h"

static struct lkvi_arena *make_arena(void)
{
    struct lkvi_arena *arena = NULL;
    cr_assert_eq(lkvi_arena_create(&arena), LKV_OK);
    cr_assert_not_null(arena);
    return arena;
}

static const size_t kSizes[] = {0, 1, 8, 15, 16, 17, 63, 64, 65, 4095, 4096, 100000, 3000000};
enum { NUM_SIZES = sizeof kSizes / sizeof kSizes[0] };

Test(alloc, sizes_and_alignment)
{
    struct lkvi_arena *arenas[] = {NULL, make_arena()};
    for (int a = 0; a < 2; a++)
        for (int i = 0; i < NUM_SIZES; i++) {
            char *p = lkvi_alloc(arenas[a], kSizes[i]);
            unsigned char *z = lkvi_zalloc(arenas[a], kSizes[i], 1);
            cr_assert(p && z, "size %zu", kSizes[i]);
            cr_assert_eq((uintptr_t)p % 16, 0, "alloc of %zu at %p", kSizes[i], (void *)p);
            cr_assert_eq((uintptr_t)z % 64, 0, "zalloc of %zu at %p", kSizes[i], (void *)z);
            for (size_t b = 0; b < kSizes[i]; b++)
                cr_assert_eq(z[b], 0, "size %zu byte %zu is %d", kSizes[i], b, z[b]);
            memset(p, 0xA5, kSizes[i]);
            memset(z, 0x5A, kSizes[i]);
            lkvi_free(arenas[a], p);
            lkvi_free(arenas[a], z);
        }
    lkvi_arena_destroy(arenas[1]);
}

Test(alloc, zalloc_zeroes_reused_memory)
{
    struct lkvi_arena *arena = make_arena();
    for (int round = 0; round < 100; round++) {
        unsigned char *p = lkvi_zalloc(arena, 10, 100);
        for (int i = 0; i < 1000; i++)
            cr_assert_eq(p[i], 0, "round %d byte %d is %d", round, i, p[i]);
        memset(p, 0xFF, 1000);
        lkvi_free(arena, p);
    }
    lkvi_arena_destroy(arena);
}

Test(alloc, realloc_keeps_the_content)
{
    struct lkvi_arena *arena = make_arena();
    unsigned char *p = lkvi_realloc(arena, NULL, 1);
    p[0] = 7;
    size_t held = 1;
    for (int i = 1; i < NUM_SIZES; i++) {
        p = lkvi_realloc(arena, p, kSizes[i]);
        cr_assert_not_null(p);
        cr_assert_eq((uintptr_t)p % 16, 0);
        for (size_t b = 0; b < held && b < kSizes[i]; b++)
            cr_assert_eq(p[b], (unsigned char)(b + 7), "size %zu byte %zu", kSizes[i], b);
        held = kSizes[i];
        for (size_t b = 0; b < held; b++)
            p[b] = (unsigned char)(b + 7);
    }
    p = lkvi_realloc(arena, p, 5);
    for (size_t b = 0; b < 5; b++)
        cr_assert_eq(p[b], (unsigned char)(b + 7));
    lkvi_arena_destroy(arena);
}

Test(alloc, what_cannot_be_had_is_null)
{
    struct lkvi_arena *arena = make_arena();
    void *p = lkvi_alloc(arena, 100);
    cr_assert_null(lkvi_alloc(arena, SIZE_MAX));
    cr_assert_null(lkvi_zalloc(arena, SIZE_MAX / 2, 3));
    cr_assert_null(lkvi_zalloc(arena, SIZE_MAX, SIZE_MAX));
    cr_assert_null(lkvi_realloc(arena, p, SIZE_MAX));
    memset(p, 1, 100); /* still ours */
    lkvi_free(arena, p);
    lkvi_free(arena, NULL);
    lkvi_arena_destroy(arena);
    lkvi_arena_destroy(NULL);
}

Test(alloc, fail_hook_fails_once)
{
    struct lkvi_arena *arena = make_arena();
    for (int64_t n = 1; n <= 4; n++) {
        lkvi_alloc_fail_after(n);
        for (int64_t i = 1; i <= 6; i++) {
            void *p = i % 2 ? lkvi_alloc(arena, 10) : lkvi_zalloc(arena, 1, 10);
            cr_assert_eq(p == NULL, i == n, "fail after %d, call %d", (int)n, (int)i);
            lkvi_free(arena, p);
        }
    }
    lkvi_alloc_fail_after(1);
    lkvi_alloc_fail_after(0);
    void *p = lkvi_alloc(arena, 10);
    cr_assert_not_null(p);
    lkvi_alloc_fail_after(1);
    cr_assert_null(lkvi_realloc(arena, p, 20));
    lkvi_free(arena, p);
    struct lkvi_arena *other = NULL;
    lkvi_alloc_fail_after(1);
    cr_assert_eq(lkvi_arena_create(&other), LKV_E_NO_MEMORY);
    cr_assert_null(other);
    lkvi_arena_destroy(arena);
}

/* Memory of destroyed arenas comes back: 80 rounds of 16 MiB touched would need 1.2 GiB otherwise
 * (ASan keeps 256 MiB for a while). */
static uint64_t resident_kib(void)
{
    unsigned long long size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    cr_assert_not_null(f);
    cr_assert_eq(fscanf(f, "%llu %llu", &size, &resident), 2);
    fclose(f);
    return resident * 4;
}

Test(alloc, destroy_frees_what_was_left)
{
    uint64_t before = resident_kib();
    for (int round = 0; round < 80; round++) {
        struct lkvi_arena *arena = make_arena();
        for (int i = 0; i < 4096; i++)
            memset(lkvi_alloc(arena, 4000), round, 4000);
        memset(lkvi_zalloc(arena, 1, 1000000), 1, 1000000);
        lkvi_arena_destroy(arena);
    }
    uint64_t grown = resident_kib() - before;
    cr_assert_lt((int64_t)grown, 600 * 1024, "resident set grew by %d KiB", (int)grown);
}

Test(alloc, statistics_follow_one_arena)
{
    struct lkvi_arena *mine = make_arena(), *other = make_arena();
    struct lkvi_arena_stats before, with, after;
    lkvi_arena_query(mine, &before);
    void *p[100];
    for (int i = 0; i < 100; i++)
        p[i] = lkvi_alloc(mine, 10000);
    lkvi_arena_query(mine, &with);
    struct lkvi_arena_stats others;
    lkvi_arena_query(other, &others);
    for (int i = 0; i < 100; i++)
        lkvi_free(mine, p[i]);
    lkvi_arena_query(mine, &after);
    cr_assert_geq(with.allocated_bytes, before.allocated_bytes + 1000000);
    cr_assert_lt(with.allocated_bytes, before.allocated_bytes + 1300000);
    cr_assert_eq(after.allocated_bytes, before.allocated_bytes);
    cr_assert_lt(others.allocated_bytes, 100000);
#ifdef LKVI_JEMALLOC
    cr_assert_geq(with.active_bytes, with.allocated_bytes);
    cr_assert_geq(with.resident_bytes, with.active_bytes);
#endif
    lkvi_arena_destroy(mine);
    lkvi_arena_destroy(other);
}
