/* In: sizes and an arena. Out: host memory that the arena's end returns.
 * Two heaps behind one interface. jemalloc (LKVI_JEMALLOC): one jemalloc arena per lkvi_arena, no
 * thread caches, because an arena can only be destroyed when no cache still holds its memory, and
 * the callers hold the manager's lock anyway. libc: each allocation carries a 64-byte header that
 * links it into its arena's list. The process-wide arena is NULL in both. */
#include "core/alloc.h"

#include <stdatomic.h>
#include <string.h>
#include "core/status.h"

#ifdef LKVI_JEMALLOC
#include <stdio.h>
#include <jemalloc/jemalloc.h>
#else
#include <pthread.h>
#include <stdlib.h>
#endif

static atomic_int_fast64_t fail_countdown; /* 0: off */

void lkvi_alloc_fail_after(int64_t n)
{
    atomic_store(&fail_countdown, n);
}

/* Counts down only while armed, so that the common case is one relaxed load. */
static int must_fail(size_t bytes)
{
    if (bytes > PTRDIFF_MAX / 2)
        return 1;
    if (atomic_load_explicit(&fail_countdown, memory_order_relaxed) <= 0)
        return 0;
    return atomic_fetch_sub(&fail_countdown, 1) == 1;
}

#ifdef LKVI_JEMALLOC

struct lkvi_arena {
    unsigned index;
    int flags; /* MALLOCX_* that route to this arena */
};

/* scripts/jemalloc renames jemalloc's secure_getenv to this: no environment is read. */
char *lkvi_no_environment(const char *name);
char *lkvi_no_environment(const char *name)
{
    (void)name;
    return NULL;
}

static void no_message(void *user, const char *text)
{
    (void)user;
    (void)text;
}

lkv_status lkvi_arena_create(struct lkvi_arena **out)
{
    lkv_je_malloc_message = no_message; /* the library never prints */
    struct lkvi_arena *arena = lkvi_alloc(NULL, sizeof *arena);
    if (!arena)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for an arena of %zu bytes", sizeof *arena);
    size_t bytes = sizeof arena->index;
    int error = lkv_je_mallctl("arenas.create", &arena->index, &bytes, NULL, 0);
    if (error) {
        lkvi_free(NULL, arena);
        return lkvi_fail(LKV_E_NO_MEMORY, "jemalloc cannot create an arena: error %d", error);
    }
    arena->flags = MALLOCX_ARENA(arena->index) | MALLOCX_TCACHE_NONE;
    *out = arena;
    return LKV_OK;
}

void lkvi_arena_destroy(struct lkvi_arena *arena)
{
    if (!arena)
        return;
    char name[40];
    snprintf(name, sizeof name, "arena.%u.destroy", arena->index);
    lkv_je_mallctl(name, NULL, NULL, NULL, 0);
    lkvi_free(NULL, arena);
}

static uint64_t arena_stat(const struct lkvi_arena *arena, const char *leaf)
{
    char name[64];
    size_t value = 0, bytes = sizeof value;
    snprintf(name, sizeof name, "stats.arenas.%u.%s", arena->index, leaf);
    return lkv_je_mallctl(name, &value, &bytes, NULL, 0) ? 0 : value;
}

void lkvi_arena_query(struct lkvi_arena *arena, struct lkvi_arena_stats *stats)
{
    uint64_t epoch = 1;
    size_t page = 0, bytes = sizeof page;
    memset(stats, 0, sizeof *stats);
    if (!arena)
        return;
    lkv_je_mallctl("epoch", NULL, NULL, &epoch, sizeof epoch);
    lkv_je_mallctl("arenas.page", &page, &bytes, NULL, 0);
    stats->allocated_bytes =
        arena_stat(arena, "small.allocated") + arena_stat(arena, "large.allocated");
    stats->active_bytes = arena_stat(arena, "pactive") * page;
    stats->resident_bytes = arena_stat(arena, "resident");
}

static int route(const struct lkvi_arena *arena)
{
    return arena ? arena->flags : 0;
}

static void *heap_alloc(struct lkvi_arena *arena, size_t bytes, int align_log2, int zero)
{
    return lkv_je_mallocx(bytes,
                          route(arena) | MALLOCX_LG_ALIGN(align_log2) | (zero ? MALLOCX_ZERO : 0));
}

static void *heap_realloc(struct lkvi_arena *arena, void *p, size_t bytes)
{
    return lkv_je_rallocx(p, bytes, route(arena) | MALLOCX_LG_ALIGN(4));
}

uint64_t lkvi_alloc_size(uint64_t bytes)
{
    return bytes && bytes < PTRDIFF_MAX ? lkv_je_nallocx(bytes, MALLOCX_LG_ALIGN(6)) : bytes;
}

static void heap_free(struct lkvi_arena *arena, void *p)
{
    lkv_je_dallocx(p, arena ? MALLOCX_TCACHE_NONE : 0);
}

#else

/* A ring through the arena; memory outside any arena is in no ring. */
struct header {
    struct header *next, *previous;
    size_t bytes;
};
enum { HEADER_BYTES = 64 };

struct lkvi_arena {
    pthread_mutex_t mutex;
    struct header ring;
    uint64_t allocated_bytes;
};

lkv_status lkvi_arena_create(struct lkvi_arena **out)
{
    struct lkvi_arena *arena = lkvi_zalloc(NULL, 1, sizeof *arena);
    if (!arena)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for an arena of %zu bytes", sizeof *arena);
    pthread_mutex_init(&arena->mutex, NULL);
    arena->ring.next = arena->ring.previous = &arena->ring;
    *out = arena;
    return LKV_OK;
}

void lkvi_arena_destroy(struct lkvi_arena *arena)
{
    if (!arena)
        return;
    for (struct header *h = arena->ring.next, *next; h != &arena->ring; h = next) {
        next = h->next;
        free(h);
    }
    pthread_mutex_destroy(&arena->mutex);
    lkvi_free(NULL, arena);
}

void lkvi_arena_query(struct lkvi_arena *arena, struct lkvi_arena_stats *stats)
{
    memset(stats, 0, sizeof *stats);
    if (!arena)
        return;
    pthread_mutex_lock(&arena->mutex);
    stats->allocated_bytes = arena->allocated_bytes;
    pthread_mutex_unlock(&arena->mutex);
}

uint64_t lkvi_alloc_size(uint64_t bytes)
{
    return bytes + HEADER_BYTES;
}

static struct header *header_of(void *p)
{
    return (struct header *)((char *)p - HEADER_BYTES);
}

static void ring_insert(struct lkvi_arena *arena, struct header *h)
{
    if (!arena)
        return;
    pthread_mutex_lock(&arena->mutex);
    h->next = arena->ring.next;
    h->previous = &arena->ring;
    h->next->previous = arena->ring.next = h;
    arena->allocated_bytes += h->bytes;
    pthread_mutex_unlock(&arena->mutex);
}

static void ring_remove(struct lkvi_arena *arena, struct header *h)
{
    if (!arena)
        return;
    pthread_mutex_lock(&arena->mutex);
    h->next->previous = h->previous;
    h->previous->next = h->next;
    arena->allocated_bytes -= h->bytes;
    pthread_mutex_unlock(&arena->mutex);
}

static void *heap_alloc(struct lkvi_arena *arena, size_t bytes, int align_log2, int zero)
{
    void *raw;
    (void)align_log2; /* always 64 bytes */
    if (posix_memalign(&raw, HEADER_BYTES, HEADER_BYTES + bytes))
        return NULL;
    char *p = (char *)raw + HEADER_BYTES;
    if (zero)
        memset(p, 0, bytes);
    header_of(p)->bytes = bytes;
    ring_insert(arena, header_of(p));
    return p;
}

static void heap_free(struct lkvi_arena *arena, void *p)
{
    ring_remove(arena, header_of(p));
    free(header_of(p));
}

static void *heap_realloc(struct lkvi_arena *arena, void *p, size_t bytes)
{
    size_t old_bytes = header_of(p)->bytes;
    void *grown = heap_alloc(arena, bytes, 4, 0);
    if (!grown)
        return NULL;
    memcpy(grown, p, old_bytes < bytes ? old_bytes : bytes);
    heap_free(arena, p);
    return grown;
}

#endif

void *lkvi_alloc(struct lkvi_arena *arena, size_t bytes)
{
    if (must_fail(bytes))
        return NULL;
    return heap_alloc(arena, bytes ? bytes : 1, 4, 0);
}

void *lkvi_zalloc(struct lkvi_arena *arena, size_t count, size_t bytes)
{
    size_t total;
    if (__builtin_mul_overflow(count, bytes, &total) || must_fail(total))
        return NULL;
    return heap_alloc(arena, total ? total : 1, 6, 1);
}

void *lkvi_realloc(struct lkvi_arena *arena, void *p, size_t bytes)
{
    if (!p)
        return lkvi_alloc(arena, bytes);
    if (must_fail(bytes))
        return NULL;
    return heap_realloc(arena, p, bytes ? bytes : 1);
}

void lkvi_free(struct lkvi_arena *arena, void *p)
{
    if (p)
        heap_free(arena, p);
}
