/* In: sizes and seeds. Out: METADATA_ONLY pools and calls that may not fail. */
#include "tools/bench/manager.h"

#include "tools/common/out.h"
#include "tools/common/rng.h"

struct manager manager_open(uint64_t num_blocks, uint32_t max_seqs, double headroom)
{
    struct manager m;
    const lkv_context_desc context = {
        .size = sizeof context, .device = LKV_DEVICE_CPU, .num_threads = 1};
    const lkv_pool_desc desc = {.size = sizeof desc,
                                .format = LKV_FORMAT_INT8,
                                .flags = LKV_POOL_METADATA_ONLY,
                                .tokens_per_block = MANAGER_BLOCK,
                                .latent_dim = 512,
                                .rope_dim = 64,
                                .rope_style = LKV_ROPE_INTERLEAVED,
                                .num_layers = 1,
                                .max_seqs = max_seqs,
                                .num_blocks = num_blocks,
                                .fallback_headroom = headroom};
    out_must(lkv_context_create(&context, &m.ctx), "the context");
    out_must(lkv_pool_create(m.ctx, &desc, &m.pool), "the pool");
    return m;
}

void manager_close(struct manager *m)
{
    out_must(lkv_pool_check(m->pool), "the pool's invariants");
    lkv_pool_release(m->pool);
    lkv_context_release(m->ctx);
}

lkv_pool_stats manager_stats(const struct manager *m)
{
    lkv_pool_stats stats = {.size = sizeof stats};
    out_must(lkv_pool_query(m->pool, &stats), "pool statistics");
    return stats;
}

void fill_tokens(int32_t *tokens, uint64_t n, uint64_t seed)
{
    const uint64_t key = mix64(seed);
    const uint32_t low = (uint32_t)key, high = (uint32_t)(key >> 32);
    for (uint64_t i = 0; i < n; i++)
        tokens[i] = (int32_t)((low + (uint32_t)i * (high | 1)) & 0x7fffffff);
}

lkv_seq manager_admit(struct manager *m, const int32_t *tokens, uint64_t n, lkv_admission *result)
{
    const lkv_prompt prompt = {
        .size = sizeof prompt, .tokens = tokens, .num_tokens = n, .flags = LKV_PROMPT_NO_PARTIAL};
    const lkv_admit_args args = {.size = sizeof args};
    lkv_seq seq;
    out_must(lkv_seq_admit(m->pool, &prompt, &args, result, &seq), "admission");
    return seq;
}

void manager_commit(struct manager *m, lkv_seq seq, uint64_t n)
{
    out_must(lkv_seq_commit(m->pool, seq, n), "commit");
}

void manager_free(struct manager *m, lkv_seq seq)
{
    out_must(lkv_seq_free(m->pool, seq, 0), "free");
}

void manager_cache(struct manager *m, const int32_t *tokens, uint64_t n)
{
    lkv_admission result = {.size = sizeof result};
    const lkv_seq seq = manager_admit(m, tokens, n, &result);
    manager_commit(m, seq, n);
    manager_free(m, seq);
}
