/* kill -9 at random moments of a process that saves snapshots without end. After each, the file
 * must load, and be exactly one of the two versions that it may be: the last whose save returned,
 * or the one after it. Prints how many kills met a save at work. Arguments: --kills N (200), --seed
 * S (1). */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "tests/support/rng.h"
#include "tests/unit/block_manager/snap_world.h"

enum { NUM_PROMPTS = 12, BLOCKS = NUM_PROMPTS * SNAP_TOKENS_MAX / SNAP_BLOCK };

static char folder[64], path[96], temporary[128];

static struct snap_prompt prompt_of(uint32_t version, int i)
{
    return (struct snap_prompt){(int32_t)(version * 10000 + (uint32_t)i * 500), (uint32_t)i % 3,
                                SNAP_TOKENS_MAX};
}

static void fill(struct snap_pool *p, uint32_t version)
{
    snap_must(lkv_pool_reset(p->pool, 0), "reset");
    for (int i = 0; i < NUM_PROMPTS; i++) {
        struct snap_prompt prompt = prompt_of(version, i);
        snap_cache(p, &prompt);
    }
}

/* Saves version after version, and tells each through the pipe. Ends by being killed. */
static void child(int out, uint32_t version)
{
    lkv_pool_desc desc = snap_desc(BLOCKS, 1, 0);
    struct snap_pool p = snap_open(&desc);
    for (;; version++) {
        fill(&p, version);
        snap_must(snap_save(&p, path, NULL), "save");
        if (write(out, &version, sizeof version) != sizeof version)
            _exit(5);
    }
}

static int holds(struct snap_pool *p, uint32_t version)
{
    for (int i = 0; i < NUM_PROMPTS; i++) {
        struct snap_prompt prompt = prompt_of(version, i);
        if (snap_match(p, &prompt) != SNAP_TOKENS_MAX - SNAP_BLOCK)
            return 0;
        snap_verify(p, &prompt);
    }
    return 1;
}

/* The version in the file; the program ends if there is none, or two. */
static uint32_t read_back(uint32_t last, int kill_number)
{
    lkv_pool_desc desc = snap_desc(BLOCKS, 1, 1);
    struct snap_pool p = snap_open(&desc);
    lkv_snapshot_info info = {.size = sizeof info};
    snap_must(snap_load(&p, path, &info), "load after a kill");
    int old = holds(&p, last), new = holds(&p, last + 1);
    if (info.blocks != BLOCKS || info.blocks_loaded != BLOCKS || old == new) {
        fprintf(stderr, "kill %d: %llu blocks; version %u %d, version %u %d\n", kill_number,
                (unsigned long long)info.blocks, last, old, last + 1, new);
        exit(6);
    }
    snap_close(&p);
    return last + (uint32_t) new;
}

static void sleep_us(uint64_t us)
{
    struct timespec t = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000 * 1000)};
    while (nanosleep(&t, &t) && errno == EINTR)
        continue;
}

struct tally {
    int at_work, newer;
};

static void one_kill(struct rng *rng, int number, uint64_t period_us, struct tally *t)
{
    int ends[2], status;
    uint32_t version, last = 0;
    if (pipe(ends))
        exit(7);
    pid_t pid = fork();
    if (!pid) {
        close(ends[0]);
        child(ends[1], (uint32_t)number * 100 + 1);
    }
    close(ends[1]);
    if (pid < 0 || read(ends[0], &last, sizeof last) != sizeof last) /* the first is there */
        exit(8);
    sleep_us(rng_below(rng, 2 * period_us));
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    if (!WIFSIGNALED(status))
        exit(9);
    while (read(ends[0], &version, sizeof version) == sizeof version)
        last = version;
    close(ends[0]);
    t->at_work += !access(temporary, F_OK);
    t->newer += read_back(last, number) != last;
}

/* One fill and save, so that kills spread over about two rounds of the child. */
static uint64_t measure_us(void)
{
    struct timespec begin, end;
    lkv_pool_desc desc = snap_desc(BLOCKS, 1, 0);
    struct snap_pool p = snap_open(&desc);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    fill(&p, 0);
    snap_must(snap_save(&p, path, NULL), "save");
    clock_gettime(CLOCK_MONOTONIC, &end);
    snap_close(&p);
    return (uint64_t)((end.tv_sec - begin.tv_sec) * 1000000 +
                      (end.tv_nsec - begin.tv_nsec) / 1000) +
           1;
}

int main(int argc, char **argv)
{
    int kills = argc > 2 && !strcmp(argv[1], "--kills") ? atoi(argv[2]) : 200;
    uint64_t seed = argc > 4 && !strcmp(argv[3], "--seed") ? strtoull(argv[4], NULL, 10) : 1;
    struct rng rng = rng_seed(seed);
    struct tally t = {0, 0};
    strcpy(folder, "snapshot-kill.XXXXXX");
    if (!mkdtemp(folder))
        return 2;
    snprintf(path, sizeof path, "%s/pool.snap", folder);
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    uint64_t period_us = measure_us();
    for (int i = 1; i <= kills; i++)
        one_kill(&rng, i, period_us, &t);
    printf("seed %llu: %d kills, %d while a save was at work, %d behind a rename that was not yet "
           "told; every snapshot loaded whole\n",
           (unsigned long long)seed, kills, t.at_work, t.newer);
    unlink(temporary);
    unlink(path);
    return rmdir(folder) || (kills >= 100 && !t.at_work);
}
