/* In: the shape of a pool. Out: the manager, its figures, its end.
 * All memory of the manager comes from one arena; destroying the arena is the whole of the end, so
 * a chain of a million blocks is freed without a walk. */
#include <sys/mman.h>
#include "block_manager/state.h"

enum { RUN_AT_A_TIME = 4096 };

/* Larger arrays are rather those of a mistake, or of a test, than of a pool that fits a device. */
static const uint64_t POPULATE_MOST = UINT64_C(1) << 30;

static lkv_status config_check(const struct lkvi_manager_config *config)
{
    if (config->num_blocks < 1 || config->num_blocks >= INT32_MAX ||
        config->host_blocks >= INT32_MAX - config->num_blocks)
        return lkvi_fail(
            LKV_E_INVALID, "num_blocks is %llu, host_blocks %llu; need 1 and 0, to 2^31 - 2 in all",
            (unsigned long long)config->num_blocks, (unsigned long long)config->host_blocks);
    if (config->base_blocks > config->num_blocks)
        return lkvi_fail(LKV_E_INVALID, "base_blocks is %llu; need at most num_blocks %llu",
                         (unsigned long long)config->base_blocks,
                         (unsigned long long)config->num_blocks);
    if (config->tokens_per_block != 16 && config->tokens_per_block != 32 &&
        config->tokens_per_block != 64 && config->tokens_per_block != 128)
        return lkvi_fail(LKV_E_INVALID, "tokens_per_block is %u; need 16, 32, 64 or 128",
                         config->tokens_per_block);
    return LKV_OK;
}

/* Random access over megabytes: huge pages save most of the page walks. And they are had now, or
 * the first admissions would wait, under the lock, for the kernel to clear 2 MB at a time. Advice
 * only: a kernel that knows neither does the same later. */
static void advise_huge(void *p, uint64_t bytes)
{
    const uintptr_t huge = 2u << 20;
    uintptr_t begin = ((uintptr_t)p + huge - 1) & ~(huge - 1);
    uintptr_t end = ((uintptr_t)p + bytes) & ~(huge - 1);
    if (begin >= end)
        return;
    madvise((void *)begin, end - begin, MADV_HUGEPAGE);
#ifdef MADV_POPULATE_WRITE
    if (bytes <= POPULATE_MOST)
        madvise((void *)begin, end - begin, MADV_POPULATE_WRITE);
#endif
}

struct part { /* of the metadata: one array */
    void **to;
    uint64_t count, bytes;
};

static uint64_t part_bytes(const struct part *part)
{
    return (part->count * part->bytes + 63) & ~(uint64_t)63;
}

/* The heap rounds large sizes up by as much as a quarter: one allocation or one a part, whichever
 * takes less. */
static lkv_status parts_create(struct lkvi_manager *m, const struct part *parts, uint32_t num)
{
    uint64_t together = 0, apart = 0;
    for (uint32_t i = 0; i < num; i++) {
        together += part_bytes(&parts[i]);
        apart += lkvi_alloc_size(part_bytes(&parts[i]));
    }
    char *all = NULL;
    if (lkvi_alloc_size(together) < apart)
        all = lkvi_zalloc(m->arena, together, 1);
    for (uint32_t i = 0; i < num; i++) {
        void *part = all ? all : lkvi_zalloc(m->arena, part_bytes(&parts[i]), 1);
        if (!part)
            return lkvi_fail(LKV_E_NO_MEMORY, "no memory for the metadata of %u blocks",
                             m->num_ids);
        advise_huge(part, part_bytes(&parts[i]));
        all = all ? all + part_bytes(&parts[i]) : NULL;
        *parts[i].to = part;
    }
    return LKV_OK;
}

static lkv_status arrays_create(struct lkvi_manager *m, uint32_t hash_bits)
{
    const uint64_t n = (uint64_t)m->num_ids + 1;
    void *blocks, *cold, *tokens, *stack, *slots, *index;
    const struct part parts[] = {
        {&blocks, n, sizeof *m->blocks},
        {&cold, n, sizeof *m->cold},
        {&tokens, n, m->block_tokens * sizeof *m->tokens},
        {&stack, n, sizeof *m->stack},
        {&slots, lkvi_lru_num_slots(m->num_blocks), sizeof *m->lru.slots},
        {&index, lkvi_index_num_slots(m->num_ids), sizeof *m->index.slots},
    };
    LKV_TRY(parts_create(m, parts, sizeof parts / sizeof *parts));
    m->blocks = blocks;
    m->cold = cold;
    m->tokens = tokens;
    m->stack = stack;
    lkvi_lru_open(&m->lru, slots, m->num_blocks);
    lkvi_index_open(&m->index, index, m->num_ids, hash_bits);
    m->seqs = lkvi_zalloc(m->arena, m->max_seqs, sizeof *m->seqs);
    if (!m->seqs)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for %u sequences", m->max_seqs);
    return LKV_OK;
}

/* Ids are handed out from 1 upwards, so that fresh chains are neighbours in memory. */
static void lists_fill(struct lkvi_manager *m)
{
    m->blocks[0].flags = LKVI_INDEXED;
    for (uint32_t b = m->num_blocks; b; b--)
        lkvi_make_free(m, b);
    for (uint32_t i = m->max_seqs; i; i--) {
        m->seqs[i - 1].generation = 1;
        m->seqs[i - 1].next_free = m->free_seq;
        m->free_seq = i;
    }
}

static lkv_status build(struct lkvi_manager *m, const struct lkvi_manager_config *config)
{
    m->num_blocks = (uint32_t)config->num_blocks;
    m->num_ids = (uint32_t)(config->num_blocks + config->host_blocks);
    m->base_blocks = (uint32_t)config->base_blocks;
    m->block_tokens = config->tokens_per_block;
    m->block_shift = (uint32_t)__builtin_ctz(config->tokens_per_block);
    m->max_seqs = config->max_seqs ? config->max_seqs : 1024;
    m->flags = config->flags;
    m->keysets.arena = m->arena;
    m->keysets.secret = m->index.secret;
    LKV_TRY(arrays_create(m, config->hash_bits));
    LKV_TRY(lkvi_host_create(m, config->host_blocks));
    memcpy(m->identity, config->identity, sizeof m->identity);
    LKV_TRY(lkvi_events_create(m, config->event_slots));
    lists_fill(m);
    return LKV_OK;
}

/* A short section: who waits may spin a little before it sleeps. */
static int mutex_create(pthread_mutex_t *mutex)
{
    pthread_mutexattr_t attr;
    if (pthread_mutexattr_init(&attr))
        return 0;
#ifdef PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ADAPTIVE_NP);
#endif
    const int made = !pthread_mutex_init(mutex, &attr);
    pthread_mutexattr_destroy(&attr);
    return made;
}

/* Writers first: steps that follow one another without a gap must not keep an admission out. */
static int locks_create(struct lkvi_manager *m)
{
    pthread_rwlockattr_t attr;
    if (pthread_rwlockattr_init(&attr))
        return 0;
#ifdef PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP
    pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
#endif
    int made = !pthread_rwlock_init(&m->lock, &attr);
    pthread_rwlockattr_destroy(&attr);
    if (made && !mutex_create(&m->blocks_mutex)) {
        pthread_rwlock_destroy(&m->lock);
        made = 0;
    }
    return made;
}

lkv_status lkvi_manager_create(const struct lkvi_manager_config *config, struct lkvi_manager **out)
{
    struct lkvi_arena *arena;
    LKV_TRY(config_check(config));
    LKV_TRY(lkvi_arena_create(&arena));
    struct lkvi_manager *m = lkvi_zalloc(arena, 1, sizeof *m);
    if (!m || !locks_create(m)) {
        lkvi_arena_destroy(arena);
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for a block manager of %zu bytes", sizeof *m);
    }
    m->arena = arena;
    lkv_status status = build(m, config);
    if (status != LKV_OK) {
        lkvi_manager_destroy(m);
        return status;
    }
    *out = m;
    return LKV_OK;
}

void lkvi_manager_destroy(struct lkvi_manager *m)
{
    if (!m)
        return;
    pthread_mutex_destroy(&m->blocks_mutex);
    pthread_rwlock_destroy(&m->lock);
    lkvi_arena_destroy(m->arena);
}

lkv_status lkvi_manager_pass_fence(struct lkvi_manager *m, uint64_t fence)
{
    lkvi_lock(m);
    lkvi_pass(m, fence);
    return lkvi_unlock(m, LKV_OK);
}

lkv_status lkvi_manager_tick(struct lkvi_manager *m, uint64_t now)
{
    lkvi_lock(m);
    lkvi_order_tick(m, now);
    return lkvi_unlock(m, LKV_OK);
}

lkv_status lkvi_manager_evict(struct lkvi_manager *m, uint64_t n, uint64_t *evicted)
{
    lkvi_lock(m);
    uint64_t done = lkvi_evict_idle(m, n);
    if (evicted)
        *evicted = done;
    return lkvi_unlock(m, LKV_OK);
}

lkv_status lkvi_manager_reset(struct lkvi_manager *m, uint32_t flags)
{
    if (flags & ~(uint32_t)LKV_RESET_FORCE)
        return lkvi_fail(LKV_E_INVALID, "reset flags are %#x; known are %#x", flags,
                         LKV_RESET_FORCE);
    lkvi_lock(m);
    uint64_t live = m->counts.state[LKVI_IN_USE] + m->counts.state[LKVI_PENDING] +
                    m->host.state[LKVI_IN_USE] + m->host.state[LKVI_PENDING];
    if (live && !(flags & LKV_RESET_FORCE))
        return lkvi_unlock(m, lkvi_fail(LKV_E_BUSY,
                                        "%llu blocks are in use or behind a fence; need 0, or "
                                        "LKV_RESET_FORCE",
                                        (unsigned long long)live));
    lkvi_forget_all(m);
    m->epoch++;
    return lkvi_unlock(m, LKV_OK);
}

/* A walk over all blocks, which others need not wait for: a few at a time, and exact if nothing
 * changes meanwhile. */
static uint64_t longest_free_run(struct lkvi_manager *m)
{
    uint64_t run = 0, longest = 0;
    for (uint64_t b = 1; b <= m->num_blocks;) {
        lkvi_lock(m);
        for (uint64_t end = b + RUN_AT_A_TIME; b < end && b <= m->num_blocks; b++) {
            run = m->blocks[b].state <= LKVI_IDLE ? run + 1 : 0;
            longest = run > longest ? run : longest;
        }
        lkvi_unlock(m, LKV_OK);
    }
    return longest;
}

static void query_host(const struct lkvi_manager *m, lkv_pool_stats *stats)
{
    const struct lkvi_host_tier *host = &m->host;
    stats->host_blocks_total = host->num_blocks;
    stats->host_blocks_free = host->state[LKVI_FREE];
    stats->host_blocks_idle = host->state[LKVI_IDLE];
    stats->host_blocks_in_use = host->state[LKVI_IN_USE];
    stats->host_blocks_pending = host->state[LKVI_PENDING];
    stats->host_blocks_cached = host->cached;
    stats->host_blocks_copies = host->copies;
    stats->seqs_swapped = m->sums.seqs_swapped;
    stats->demoted_blocks = m->sums.copied[LKVI_COPY_DEMOTE];
    stats->promoted_blocks = m->sums.copied[LKVI_COPY_PROMOTE];
    stats->swapped_out_blocks = m->sums.copied[LKVI_COPY_SWAP_OUT];
    stats->swapped_in_blocks = m->sums.copied[LKVI_COPY_SWAP_IN];
}

static void query_locked(const struct lkvi_manager *m, lkv_pool_stats *stats)
{
    stats->blocks_total = m->num_blocks;
    stats->blocks_base = m->base_blocks;
    stats->blocks_free = m->counts.state[LKVI_FREE];
    stats->blocks_idle = m->counts.state[LKVI_IDLE];
    stats->blocks_in_use = m->counts.state[LKVI_IN_USE];
    stats->blocks_pending = m->counts.state[LKVI_PENDING];
    stats->blocks_lent = m->counts.state[LKVI_LENT];
    stats->blocks_reserved = m->counts.reserved;
    stats->blocks_cached = m->counts.cached;
    stats->seqs_live = m->sums.seqs_live;
    stats->tokens_live = m->sums.tokens_live;
    stats->waste_tokens = m->sums.room_live - m->sums.tokens_live;
    stats->hit_tokens = m->sums.hit_tokens;
    stats->partial_hit_tokens = m->sums.partial_hit_tokens;
    stats->prompt_tokens = m->sums.prompt_tokens;
    stats->evicted_blocks = m->sums.evicted;
    stats->copied_blocks = m->sums.copied[LKVI_COPY_BLOCK];
    stats->published_blocks = m->sums.published;
    query_host(m, stats);
}

lkv_status lkvi_manager_query(struct lkvi_manager *m, lkv_pool_stats *stats)
{
    struct lkvi_arena_stats memory;
    lkvi_lock(m);
    query_locked(m, stats);
    lkvi_unlock(m, LKV_OK);
    stats->longest_free_run = longest_free_run(m);
    lkvi_arena_query(m->arena, &memory);
    stats->metadata_allocated_bytes = memory.allocated_bytes;
    stats->metadata_active_bytes = memory.active_bytes;
    stats->metadata_resident_bytes = memory.resident_bytes;
    return LKV_OK;
}
