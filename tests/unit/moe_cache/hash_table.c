/* Prints what the two hashes give for the expert counts of real models, as docs/moe-cache.md shows
 * it. With that file as argument: fails unless the file holds exactly this text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "moe_cache/fallback.h"

static const uint32_t sizes[] = {8, 16, 64, 160, 256, 384};
enum { NUM_SIZES = sizeof sizes / sizeof sizes[0], CAPACITY = 1 << 16 };

static char text[CAPACITY];
static size_t length;

#define PRINT(...) (length += (size_t)snprintf(text + length, CAPACITY - length, __VA_ARGS__))

static int32_t fallback(uint32_t policy, uint32_t n, uint32_t primary)
{
    lkv_fallback_args a = {.policy = policy, .num_experts = n};
    return lkvi_fallback_of(&a, (int32_t)primary);
}

static void coverage(uint32_t policy, const char *name, uint32_t n)
{
    uint32_t count[384] = {0}, reached = 0, most = 0, own = 0;
    for (uint32_t e = 0; e < n; e++) {
        uint64_t raw =
            policy == LKV_FALLBACK_FNV1A ? lkvi_fnv1a(e) : (uint64_t)e * 16777619u + 1000000007u;
        own += raw % n == e;
        count[fallback(policy, n, e)]++;
    }
    for (uint32_t e = 0; e < n; e++) {
        reached += count[e] != 0;
        most = count[e] > most ? count[e] : most;
    }
    PRINT("| %u | %s | %u of %u | %u | %u |\n", n, name, reached, n, most, own);
}

static void list(uint32_t n)
{
    PRINT("\nE = %u\n\n```\n", n);
    for (uint32_t e = 0; e < n; e++)
        PRINT("%3d%s", fallback(LKV_FALLBACK_FNV1A, n, e), e % 32 == 31 || e + 1 == n ? "\n" : " ");
    PRINT("```\n");
}

static int stands_in(const char *path)
{
    FILE *file = fopen(path, "r");
    char *all = calloc(1, 1 << 20);
    size_t n = file && all ? fread(all, 1, (1 << 20) - 1, file) : 0;
    int found = n && strstr(all, text) != NULL;
    if (file)
        fclose(file);
    free(all);
    return found;
}

int main(int argc, char **argv)
{
    PRINT("| E | hash | experts reached | most primaries on one | own index before the step |\n"
          "| --- | --- | --- | --- | --- |\n");
    for (int i = 0; i < NUM_SIZES; i++) {
        coverage(LKV_FALLBACK_FNV1A, "FNV-1a", sizes[i]);
        coverage(LKV_FALLBACK_LCG, "printed LCG", sizes[i]);
    }
    for (int i = 0; i < NUM_SIZES; i++)
        list(sizes[i]);
    if (argc < 2) {
        fputs(text, stdout);
        return 0;
    }
    int found = stands_in(argv[1]);
    printf("%s: %s\n", argv[1], found ? "as computed" : "differs; run this program and paste");
    return !found;
}
