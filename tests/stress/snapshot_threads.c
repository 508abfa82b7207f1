/* One thread saves snapshots while others admit, write, publish and evict in the same pool, which
 * is too small for all their prompts; blocks are large, so that a save takes the lock many times.
 * What a save writes must be whole and true whatever happened meanwhile: every file is loaded into
 * another pool and every byte of every hit compared. Arguments: --rounds N (12). */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tests/support/rng.h"
#include "tests/unit/block_manager/snap_world.h"

enum { NUM_THREADS = 3, NUM_PROMPTS = 12, BLOCKS = 90, LATENT = 4096 };

static struct snap_pool shared;
static atomic_int stop;

static struct snap_prompt prompt_of(uint64_t i)
{
    return (struct snap_prompt){(int32_t)(i / 2) * 500, (uint32_t)i % 2, 64 + 16 * (i % 8)};
}

static void *churn(void *seed)
{
    struct rng rng = rng_seed((uint64_t)(uintptr_t)seed);
    uint64_t evicted;
    while (!atomic_load(&stop)) {
        struct snap_prompt prompt = prompt_of(rng_below(&rng, NUM_PROMPTS));
        snap_cache(&shared, &prompt);
        if (!rng_below(&rng, 8))
            snap_must(lkv_pool_evict(shared.pool, rng_below(&rng, 30), &evicted), "evict");
        if (!rng_below(&rng, 200))
            snap_must(lkv_pool_reset(shared.pool, LKV_RESET_FORCE), "reset");
    }
    return NULL;
}

int main(int argc, char **argv)
{
    int rounds = argc > 2 && !strcmp(argv[1], "--rounds") ? atoi(argv[2]) : 12;
    lkv_pool_desc desc = snap_desc(BLOCKS, 1, 0);
    uint64_t hits = 0, blocks = 0, bytes = 0;
    char path[] = "snapshot-threads.XXXXXX";
    pthread_t threads[NUM_THREADS];
    int named = mkstemp(path);
    if (named < 0 || close(named))
        return 2;
    desc.latent_dim = LATENT;
    shared = snap_open(&desc);
    for (uint64_t i = 0; i < NUM_PROMPTS; i++) {
        struct snap_prompt prompt = prompt_of(i);
        snap_cache(&shared, &prompt);
    }
    for (uint64_t i = 0; i < NUM_THREADS; i++)
        if (pthread_create(&threads[i], NULL, churn, (void *)(uintptr_t)(i + 1)))
            return 3;
    for (int round = 0; round < rounds; round++) {
        lkv_snapshot_info info = {.size = sizeof info};
        struct snap_pool other = snap_open(&desc);
        snap_must(snap_save(&shared, path, &info), "save");
        blocks += info.blocks;
        bytes += info.file_bytes;
        snap_must(snap_load(&other, path, &info), "load");
        for (uint64_t i = 0; i < NUM_PROMPTS; i++) {
            struct snap_prompt prompt = prompt_of(i);
            hits += snap_verify(&other, &prompt) / SNAP_BLOCK;
        }
        snap_close(&other);
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < NUM_THREADS; i++)
        pthread_join(threads[i], NULL);
    snap_must(lkv_pool_check(shared.pool), "check");
    snap_close(&shared);
    unlink(path);
    printf("%d snapshots of %llu blocks, %llu MB; %llu hit blocks compared byte by byte\n", rounds,
           (unsigned long long)blocks, (unsigned long long)bytes >> 20, (unsigned long long)hits);
    return !hits;
}
