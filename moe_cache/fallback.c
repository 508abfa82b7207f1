/* In: primary experts. Out: a second expert each, never the primary, or -1.
 * A hash needs no state: every node and every restart gives the same answer. It is fixed by its
 * definition, not by a table, so docs/moe-cache.md can print what it covers. */
#include "moe_cache/fallback.h"

uint32_t lkvi_fnv1a(uint32_t x)
{
    uint32_t hash = 2166136261u;
    for (int byte = 0; byte < 4; byte++) {
        hash ^= x >> (8 * byte) & 0xFF;
        hash *= 16777619u;
    }
    return hash;
}

static int32_t not_primary(uint32_t candidate, uint32_t primary, uint32_t n)
{
    if (n == 1)
        return -1;
    return (int32_t)(candidate == primary ? (candidate + 1) % n : candidate);
}

int32_t lkvi_fallback_of(const lkv_fallback_args *args, int32_t primary)
{
    uint32_t p = (uint32_t)primary, n = args->num_experts;
    int32_t choice = -1;
    switch (args->policy) {
    case LKV_FALLBACK_FNV1A:
        return not_primary(lkvi_fnv1a(p) % n, p, n);
    case LKV_FALLBACK_LCG:
        return not_primary((uint32_t)(((uint64_t)p * 16777619u + 1000000007u) % n), p, n);
    case LKV_FALLBACK_BUDDY:
        choice = args->buddy[p];
        break;
    case LKV_FALLBACK_SHARED:
        choice = args->shared_expert;
        break;
    default:
        break;
    }
    return choice == primary ? -1 : choice;
}

void lkvi_fallback_choose(lkv_fallback_args *args)
{
    args->num_chosen = args->num_absent = 0;
    for (uint64_t t = 0; t < args->num_tokens; t++) {
        int32_t choice = -1;
        if (args->primary[t] >= 0 && (!args->triggered || args->triggered[t]))
            choice = lkvi_fallback_of(args, args->primary[t]);
        if (choice >= 0 && args->resident && (uint32_t)choice < args->num_experts &&
            !args->resident[choice]) {
            args->num_absent++;
            choice = -1;
        }
        args->fallback[t] = choice;
        args->num_chosen += choice >= 0;
    }
}
