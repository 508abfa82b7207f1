/* In: a fuzz target linked without libFuzzer. Out: exit 0 after it has survived seeded random input
 * for a few seconds, or the files named on the command line (a crash that libFuzzer wrote down).
 * The seed of each input is its number, so a failure is repeated by "--only N". */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { INPUT_BYTES_MAX = 4096, NUM_INPUTS = 20000, SECONDS_MAX = 5 };

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Bytes are small numbers half of the time: counts and kinds are what targets read first. The copy
 * is exactly as long as the input, so that a sanitizer sees a read past its end. */
static void run_random(uint64_t seed)
{
    uint64_t state = seed;
    size_t bytes = next_random(&state) % INPUT_BYTES_MAX;
    uint8_t *data = malloc(bytes ? bytes : 1);
    if (!data)
        exit(1);
    for (size_t i = 0; i < bytes; i++) {
        uint64_t r = next_random(&state);
        data[i] = (uint8_t)(r & 256 ? r % 8 : r);
    }
    LLVMFuzzerTestOneInput(data, bytes);
    free(data);
}

static void run_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END)) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(2);
    }
    size_t bytes = (size_t)ftell(f);
    uint8_t *data = malloc(bytes ? bytes : 1);
    rewind(f);
    if (!data || fread(data, 1, bytes, f) != bytes)
        exit(2);
    fclose(f);
    LLVMFuzzerTestOneInput(data, bytes);
    free(data);
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--only")) {
        run_random(strtoull(argv[2], NULL, 10));
        return 0;
    }
    for (int i = 1; i < argc; i++)
        run_file(argv[i]);
    if (argc > 1)
        return 0;
    time_t end = time(NULL) + SECONDS_MAX;
    uint64_t seed = 0;
    for (; seed < NUM_INPUTS && time(NULL) < end; seed++) {
        fprintf(stderr, "\rinput %llu", (unsigned long long)seed);
        run_random(seed);
    }
    fprintf(stderr, "\r%llu inputs\n", (unsigned long long)seed);
    return 0;
}
