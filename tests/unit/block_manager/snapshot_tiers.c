/* What a snapshot keeps beside the blocks: priorities with their ends, and what only the host has.
 * A file of the version before is refused. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "latentkv/latentkv.h"
#include "tests/support/snap_forge.h"

enum { B = 16, TOKENS = 2 * B + 1 };

static char folder[] = "/tmp/lkv-tiers-XXXXXX", path[64];

static void make_folder(void)
{
    cr_assert(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/cache", folder);
}

static void remove_folder(void)
{
    unlink(path);
    rmdir(folder);
}

struct world {
    lkv_context *ctx;
    lkv_pool *pool;
};

static void must(lkv_status status)
{
    cr_assert(status == LKV_OK, "%s: %s", lkv_status_name(status), lkv_last_error());
}

static struct world open_pool(uint64_t num_blocks, uint64_t host_blocks)
{
    struct world w;
    lkv_context_desc context = {.size = sizeof context, .device = LKV_DEVICE_CPU, .num_threads = 1};
    lkv_pool_desc desc = {.size = sizeof desc,
                          .format = LKV_FORMAT_INT8,
                          .flags = LKV_POOL_METADATA_ONLY,
                          .tokens_per_block = B,
                          .latent_dim = 512,
                          .rope_dim = 64,
                          .num_layers = 1,
                          .num_blocks = num_blocks,
                          .host_blocks = host_blocks};
    must(lkv_context_create(&context, &w.ctx));
    must(lkv_pool_create(w.ctx, &desc, &w.pool));
    return w;
}

static void close_pool(struct world *w)
{
    lkv_pool_release(w->pool);
    lkv_context_release(w->ctx);
}

static lkv_prompt prompt_of(int32_t *tokens, int32_t first)
{
    for (int32_t i = 0; i < TOKENS; i++)
        tokens[i] = first + i;
    return (lkv_prompt){.size = sizeof(lkv_prompt), .tokens = tokens, .num_tokens = TOKENS};
}

/* Two blocks of it are cached and idle. */
static void cache(struct world *w, int32_t first, uint32_t priority, uint64_t until)
{
    int32_t tokens[TOKENS];
    lkv_prompt prompt = prompt_of(tokens, first);
    lkv_admit_args args = {.size = sizeof args, .priority = priority, .priority_until = until};
    lkv_seq seq;
    must(lkv_seq_admit(w->pool, &prompt, &args, NULL, &seq));
    must(lkv_seq_commit(w->pool, seq, TOKENS));
    must(lkv_seq_free(w->pool, seq, 0));
    must(lkv_pool_check(w->pool));
}

static uint64_t hits(struct world *w, int32_t first)
{
    int32_t tokens[TOKENS];
    lkv_prompt prompt = prompt_of(tokens, first);
    lkv_match match = {.size = sizeof match};
    must(lkv_seq_match(w->pool, &prompt, &match));
    return match.hit_blocks;
}

static lkv_snapshot_args args_of(void)
{
    return (lkv_snapshot_args){.size = sizeof(lkv_snapshot_args), .path = path};
}

/* 1000 stays, 2000 loses its priority at tick 50, 3000 has none. */
Test(snapshot_tiers, priorities_live_on_with_their_ends, .init = make_folder, .fini = remove_folder)
{
    for (int late = 0; late < 2; late++) {
        struct world a = open_pool(12, 0), b = open_pool(12, 0);
        lkv_snapshot_args args = args_of();
        uint64_t evicted;
        cache(&a, 1000, 7, 0);
        cache(&a, 2000, 7, 50);
        cache(&a, 3000, 0, 0);
        must(lkv_pool_snapshot_save(a.pool, &args, NULL, NULL));
        must(lkv_pool_tick(b.pool, late ? 50 : 49));
        must(lkv_pool_snapshot_load(b.pool, &args, NULL, NULL));
        must(lkv_pool_check(b.pool));
        must(lkv_pool_evict(b.pool, late ? 4 : 2, &evicted));
        cr_assert_eq(hits(&b, 3000), 0);
        cr_assert_eq(hits(&b, 2000), late ? 0 : 2);
        cr_assert_eq(hits(&b, 1000), 2);
        must(lkv_pool_tick(b.pool, 50)); /* counts on after the load */
        cache(&b, 4000, 0, 0);
        must(lkv_pool_evict(b.pool, 2, &evicted));
        cr_assert_eq(hits(&b, 2000), 0);
        cr_assert_eq(hits(&b, 4000), late ? 0 : 2);
        cr_assert_eq(hits(&b, 1000), 2);
        close_pool(&a);
        close_pool(&b);
    }
}

Test(snapshot_tiers, what_the_host_has_is_saved_and_loaded, .init = make_folder,
     .fini = remove_folder)
{
    struct world a = open_pool(6, 8), b = open_pool(8, 0);
    lkv_snapshot_args args = args_of();
    lkv_snapshot_info info = {.size = sizeof info};
    int32_t pairs[32];
    uint64_t num;
    for (int32_t first = 1000; first <= 2000; first += 1000) {
        cache(&a, first, 0, 0);
        must(lkv_pool_demote(a.pool, 4, &num));
        must(lkv_pool_take_copies(a.pool, pairs, 16, 0, &num));
        cr_assert_eq(num, 2);
    }
    must(lkv_pool_evict(a.pool, 3, &num));
    must(lkv_pool_check(a.pool));
    lkv_pool_stats stats = {.size = sizeof stats};
    must(lkv_pool_query(a.pool, &stats));
    cr_assert_eq(stats.host_blocks_cached, 3);
    must(lkv_pool_snapshot_save(a.pool, &args, &info, NULL));
    cr_assert_eq(info.blocks, 4);
    must(lkv_pool_snapshot_load(b.pool, &args, &info, NULL));
    cr_assert_eq(info.blocks_loaded, 4);
    cr_assert_eq(hits(&b, 1000), 2);
    cr_assert_eq(hits(&b, 2000), 2);
    must(lkv_pool_check(b.pool));
    /* back into its own pool: what the host has comes to the device, as it was */
    must(lkv_pool_snapshot_load(a.pool, &args, &info, NULL));
    must(lkv_pool_check(a.pool));
    must(lkv_pool_query(a.pool, &stats));
    cr_assert_eq(info.blocks_loaded, 3);
    cr_assert_eq(stats.host_blocks_cached, 0);
    cr_assert_eq(stats.host_blocks_copies, 4);
    close_pool(&a);
    close_pool(&b);
}

Test(snapshot_tiers, the_version_before_is_refused, .init = make_folder, .fini = remove_folder)
{
    struct world a = open_pool(8, 0);
    lkv_snapshot_args args = args_of();
    uint8_t file[4096];
    uint32_t version = 1;
    cache(&a, 1000, 0, 0);
    must(lkv_pool_snapshot_save(a.pool, &args, NULL, NULL));
    FILE *f = fopen(path, "r+b");
    size_t bytes = fread(file, 1, sizeof file, f);
    memcpy(file + offsetof(struct lkvi_snapshot_head, version), &version, sizeof version);
    forge_seals(file, bytes);
    rewind(f);
    cr_assert_eq(fwrite(file, 1, bytes, f), bytes);
    fclose(f);
    cr_assert_eq(lkv_pool_snapshot_load(a.pool, &args, NULL, NULL), LKV_E_VERSION);
    cr_assert(strstr(lkv_last_error(), "version 1; need 2"), "%s", lkv_last_error());
    close_pool(&a);
}
