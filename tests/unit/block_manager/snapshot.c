/* Snapshots: what goes in comes out, on every plane; what is broken, foreign or too much does not
 * come in; whatever fails, the pool is as it was. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "core/alloc.h"
#include "core/context.h"
#include "tests/support/snap_forge.h"
#include "tests/unit/block_manager/snap_world.h"

static const struct snap_prompt prompts[] = {{0, 0, 100},   {0, 1, 70},    {5000, 2, 80},
                                             {9000, 0, 17}, {9001, 0, 33}, {20000, 1, 50}};
enum { NUM_PROMPTS = sizeof prompts / sizeof prompts[0], CACHED = 6 + 4 + 5 + 1 + 2 + 3 };

static char folder[64], path[96];

static void make_folder(void)
{
    strcpy(folder, "snapshot.XXXXXX");
    cr_assert(mkdtemp(folder), "no folder for snapshots");
    snprintf(path, sizeof path, "%s/pool.snap", folder);
}

static void remove_folder(void)
{
    unlink(path);
    cr_expect_eq(rmdir(folder), 0, "%s has more in it than the snapshot", folder);
}

static void cache_all(struct snap_pool *p)
{
    for (int i = 0; i < NUM_PROMPTS; i++)
        snap_cache(p, &prompts[i]);
}

static uint64_t whole(uint64_t num_tokens)
{
    return (num_tokens - 1) / SNAP_BLOCK * SNAP_BLOCK;
}

static lkv_pool_stats stats_of(struct snap_pool *p)
{
    lkv_pool_stats s = {.size = sizeof s};
    snap_must(lkv_pool_check(p->pool), "check");
    snap_must(lkv_pool_query(p->pool, &s), "query");
    s.metadata_allocated_bytes = s.metadata_active_bytes = s.metadata_resident_bytes = 0;
    return s;
}

/* Keys of the pool's events, counted: stored minus removed. */
static uint64_t keys_by_events(struct snap_pool *p)
{
    lkv_event events[64];
    lkv_event_batch batch = {.size = sizeof batch, .events = events, .capacity = 64};
    uint64_t keys = 0;
    snap_must(lkv_pool_events(p->pool, &batch), "events");
    for (uint64_t i = 0; i < batch.num_events; i++)
        keys += events[i].kind == LKV_EVENT_STORED ? 1 : (uint64_t)-1;
    return keys;
}

Test(snapshot, every_block_comes_back_on_every_plane, .init = make_folder, .fini = remove_folder)
{
    for (int shape = 0; shape < 8; shape++) {
        lkv_pool_desc desc = snap_desc(40, shape & 1, shape & 2);
        lkv_pool_desc other = snap_desc(40, shape & 1, shape & 4); /* strides are not identity */
        lkv_snapshot_info saved = {.size = sizeof saved}, loaded = {.size = sizeof loaded};
        other.flags = LKV_POOL_EVENTS;
        struct snap_pool a = snap_open(&desc), b = snap_open(&other);
        cache_all(&a);
        cr_assert_eq(snap_save(&a, path, &saved), LKV_OK, "%s", lkv_last_error());
        cr_assert_eq(saved.blocks, CACHED);
        cr_assert_eq(snap_load(&b, path, &loaded), LKV_OK, "%s", lkv_last_error());
        cr_assert_eq(loaded.blocks_loaded, CACHED);
        cr_assert_eq(loaded.file_bytes, saved.file_bytes);
        cr_assert_eq(stats_of(&b).blocks_idle, CACHED);
        cr_assert_eq(keys_by_events(&b), CACHED);
        for (int i = 0; i < NUM_PROMPTS; i++)
            cr_assert_eq(snap_verify(&b, &prompts[i]), whole(prompts[i].num_tokens),
                         "shape %d prompt %d", shape, i);
        struct snap_prompt none = {0, 2, 100}; /* the tokens of prompt 0 under other keys */
        cr_assert_eq(snap_match(&b, &none), 16);
        snap_close(&a);
        snap_close(&b);
    }
}

Test(snapshot, another_pool_is_refused_by_name, .init = make_folder, .fini = remove_folder)
{
    static const uint8_t fingerprint[32] = {1};
    lkv_pool_desc desc = snap_desc(40, 1, 0), changed[10];
    static const char *const names[] = {
        "format is",        "encode_flags is",  "latent_dim is",       "rope_dim is",
        "rope_style is",    "num_layers is",    "tokens_per_block is", "num_planes is",
        "payload_bytes is", "model_fingerprint"};
    for (int i = 0; i < 10; i++)
        changed[i] = desc;
    changed[0].format = LKV_FORMAT_FP8;
    changed[1].encode_flags = LKV_ENCODE_INT8_SYMMETRIC;
    changed[2].latent_dim = 64;
    changed[3].rope_dim = 32;
    changed[4].rope_style = LKV_ROPE_HALF;
    changed[5].num_layers = 2;
    changed[6].tokens_per_block = 32;
    changed[7].num_planes = 1;
    changed[8].num_planes = 0; /* against a file without planes, below */
    changed[8].flags = LKV_POOL_METADATA_ONLY;
    changed[9].model_fingerprint = fingerprint;
    struct snap_pool a = snap_open(&desc);
    cache_all(&a);
    cr_assert_eq(snap_save(&a, path, NULL), LKV_OK, "%s", lkv_last_error());
    for (int i = 0; i < 10; i++) {
        if (i == 8) {
            lkv_pool_desc plain = snap_desc(40, 0, 0);
            struct snap_pool c = snap_open(&plain);
            cr_assert_eq(snap_save(&c, path, NULL), LKV_OK);
            snap_close(&c);
        }
        struct snap_pool b = snap_open(&changed[i]);
        cr_expect_eq(snap_load(&b, path, NULL), LKV_E_INVALID, "%s", names[i]);
        cr_expect(strstr(lkv_last_error(), names[i]), "want \"%s\" in: %s", names[i],
                  lkv_last_error());
        cr_expect_eq(stats_of(&b).blocks_cached, 0);
        snap_close(&b);
        if (i == 8)
            cr_assert_eq(snap_save(&a, path, NULL), LKV_OK);
    }
    snap_close(&a);
}

Test(snapshot, a_secret_must_be_the_same, .init = make_folder, .fini = remove_folder)
{
    lkv_pool_desc desc = snap_desc(40, 1, 0);
    struct snap_pool a = snap_open(&desc), b = snap_open(&desc);
    static const uint8_t one[100] = "a secret of many bytes", two[100] = "another one";
    lkv_snapshot_args with = {
        .size = sizeof with, .path = path, .secret = one, .secret_bytes = 100};
    lkv_snapshot_args wrong = with;
    wrong.secret = two;
    cache_all(&a);
    cr_assert_eq(lkv_pool_snapshot_save(a.pool, &with, NULL, NULL), LKV_OK);
    cr_assert_eq(snap_load(&b, path, NULL), LKV_E_INVALID);
    cr_assert(strstr(lkv_last_error(), "with a secret"), "%s", lkv_last_error());
    cr_assert_eq(lkv_pool_snapshot_load(b.pool, &wrong, NULL, NULL), LKV_E_INVALID);
    cr_assert(strstr(lkv_last_error(), "another secret"), "%s", lkv_last_error());
    cr_assert_eq(stats_of(&b).blocks_cached, 0);
    cr_assert_eq(lkv_pool_snapshot_load(b.pool, &with, NULL, NULL), LKV_OK, "%s", lkv_last_error());
    cr_assert_eq(snap_verify(&b, &prompts[0]), 96);
    cr_assert_eq(snap_save(&a, path, NULL), LKV_OK);
    cr_assert_eq(lkv_pool_snapshot_load(b.pool, &with, NULL, NULL), LKV_E_INVALID);
    cr_assert(strstr(lkv_last_error(), "without a secret"), "%s", lkv_last_error());
    snap_close(&a);
    snap_close(&b);
}

/* RFC 4231, cases 1 and 6. */
Test(snapshot, a_keyed_seal_is_hmac_sha256)
{
    static const char long_text[] = "Test Using Larger Than Block-Size Key - Hash Key First";
    static const uint8_t want[2][4] = {{0xb0, 0x34, 0x4c, 0x61}, {0x60, 0xe4, 0x31, 0x59}};
    static const uint8_t last[2][4] = {{0x2e, 0x32, 0xcf, 0xf7}, {0x0e, 0xe3, 0x7f, 0x54}};
    uint8_t key[131], seal[LKVI_SEAL_BYTES];
    for (int i = 0; i < 2; i++) {
        struct lkvi_secret secret = {.data = key, .bytes = i ? 131 : 20};
        struct lkvi_sealer s;
        memset(key, i ? 0xaa : 0x0b, sizeof key);
        lkvi_seal_begin(&s, &secret);
        lkvi_seal_add(&s, i ? long_text : "Hi There", i ? strlen(long_text) : 8);
        lkvi_seal_end(&s, seal);
        cr_assert_arr_eq(seal, want[i], 4);
        cr_assert_arr_eq(seal + 28, last[i], 4);
    }
}

Test(snapshot, a_smaller_pool_takes_what_was_used_last, .init = make_folder, .fini = remove_folder)
{
    lkv_pool_desc desc = snap_desc(40, 1, 0);
    struct snap_pool a = snap_open(&desc);
    cache_all(&a);
    cr_assert_eq(snap_verify(&a, &prompts[2]), whole(80)); /* now the newest */
    cr_assert_eq(snap_save(&a, path, NULL), LKV_OK);
    for (uint64_t n = 1; n < CACHED + 2; n++) {
        lkv_snapshot_info info = {.size = sizeof info};
        desc.num_blocks = n;
        struct snap_pool b = snap_open(&desc);
        cr_assert_eq(snap_load(&b, path, &info), LKV_OK, "%s", lkv_last_error());
        cr_assert_eq(info.blocks, CACHED);
        cr_assert_eq(info.blocks_loaded, n < CACHED ? n : CACHED);
        uint64_t newest = snap_match(&b, &prompts[2]) / SNAP_BLOCK;
        cr_assert_eq(newest, n < 4 ? n : 4, "%llu blocks hold %llu of the newest prompt",
                     (unsigned long long)n, (unsigned long long)newest);
        snap_must(lkv_pool_check(b.pool), "check");
        snap_close(&b);
    }
    snap_close(&a);
}

Test(snapshot, what_is_there_stays_and_is_not_doubled, .init = make_folder, .fini = remove_folder)
{
    lkv_pool_desc desc = snap_desc(40, 1, 1);
    struct snap_pool a = snap_open(&desc), b = snap_open(&desc);
    lkv_snapshot_info info = {.size = sizeof info};
    struct snap_prompt own = {777, 0, 64}, shorter = {0, 0, 48};
    cache_all(&a);
    cr_assert_eq(snap_save(&a, path, NULL), LKV_OK);
    snap_cache(&b, &own);
    snap_cache(&b, &shorter); /* 3 of prompt 0's blocks */
    for (int times = 0; times < 3; times++) {
        cr_assert_eq(snap_load(&b, path, &info), LKV_OK, "%s", lkv_last_error());
        cr_assert_eq(info.blocks_loaded, times ? 0 : CACHED - 3);
        cr_assert_eq(stats_of(&b).blocks_cached, CACHED + 4);
        cr_assert_eq(stats_of(&b).evicted_blocks, 0);
    }
    for (int i = 0; i < NUM_PROMPTS; i++)
        cr_assert_eq(snap_verify(&b, &prompts[i]), whole(prompts[i].num_tokens));
    cr_assert_eq(snap_verify(&b, &own), 48);
    snap_close(&a);
    snap_close(&b);
}

/* Live sequences hold blocks while the snapshot is taken, and one waits for its copy. */
Test(snapshot, only_what_is_written_is_saved, .init = make_folder, .fini = remove_folder)
{
    lkv_pool_desc desc = snap_desc(40, 1, 0);
    struct snap_pool a = snap_open(&desc), b = snap_open(&desc);
    lkv_snapshot_info info = {.size = sizeof info};
    struct snap_prompt base = {0, 0, 40};
    int32_t tokens[48];
    lkv_seq seq;
    snap_cache(&a, &base);
    for (int i = 0; i < 48; i++)
        tokens[i] = i < 24 ? i : -i; /* shares 8 tokens of the second block: a copy waits */
    lkv_prompt prompt = {.size = sizeof prompt, .tokens = tokens, .num_tokens = 48};
    snap_must(lkv_seq_admit(a.pool, &prompt, NULL, NULL, &seq), "admit");
    snap_must(lkv_seq_commit(a.pool, seq, 48), "commit");
    cr_assert_eq(stats_of(&a).blocks_cached, 4);
    cr_assert_eq(snap_save(&a, path, &info), LKV_OK, "%s", lkv_last_error());
    cr_assert_eq(info.blocks, 2, "the copy's block and the one below it are not written yet");
    snap_must(lkv_pool_apply_copies(a.pool, 0, NULL), "copies");
    cr_assert_eq(snap_save(&a, path, &info), LKV_OK, "%s", lkv_last_error());
    cr_assert_eq(info.blocks, 4);
    cr_assert_eq(snap_load(&b, path, NULL), LKV_OK, "%s", lkv_last_error());
    cr_assert_eq(stats_of(&b).blocks_cached, 4);
    snap_close(&a);
    snap_close(&b);
}

/* ---- broken files */

struct bytes {
    uint8_t *data;
    size_t num;
};

static struct bytes read_file(void)
{
    struct stat info;
    FILE *f = fopen(path, "rb");
    cr_assert(f && !fstat(fileno(f), &info));
    struct bytes b = {malloc((size_t)info.st_size + 1), (size_t)info.st_size};
    cr_assert_eq(fread(b.data, 1, b.num, f), b.num);
    fclose(f);
    return b;
}

static void write_file(const uint8_t *data, size_t num)
{
    FILE *f = fopen(path, "wb");
    cr_assert(f && fwrite(data, 1, num, f) == num && !fclose(f));
}

static void must_refuse(struct snap_pool *p, const lkv_pool_stats *before, const char *what,
                        size_t at)
{
    lkv_status status = snap_load(p, path, NULL);
    cr_assert(status == LKV_E_INVALID || status == LKV_E_VERSION, "%s at byte %zu gave %s", what,
              at, lkv_status_name(status));
    lkv_pool_stats now = stats_of(p);
    cr_assert_eq(memcmp(&now, before, sizeof now), 0, "%s at byte %zu changed the pool", what, at);
}

Test(snapshot, every_flipped_or_missing_byte_is_seen, .init = make_folder, .fini = remove_folder)
{
    lkv_pool_desc desc = snap_desc(12, 1, 0);
    struct snap_pool a = snap_open(&desc), b = snap_open(&desc);
    struct snap_prompt kept = {1, 0, 40};
    snap_cache(&a, &prompts[3]);
    snap_cache(&a, &prompts[2]);
    snap_cache(&b, &kept);
    lkv_pool_stats before = stats_of(&b);
    cr_assert_eq(snap_save(&a, path, NULL), LKV_OK);
    struct bytes file = read_file();
    for (size_t at = 0; at < file.num; at += at < 700 ? 1 : 53) {
        file.data[at] ^= (uint8_t)(1 << at % 8);
        write_file(file.data, file.num);
        must_refuse(&b, &before, "a flipped bit", at);
        file.data[at] ^= (uint8_t)(1 << at % 8);
    }
    for (size_t num = 0; num < file.num; num += num < 500 ? 1 : 97) {
        write_file(file.data, num);
        must_refuse(&b, &before, "the end", num);
    }
    file.data[file.num] = 0;
    write_file(file.data, file.num + 1);
    must_refuse(&b, &before, "one byte more", file.num);
    write_file(file.data, file.num);
    cr_assert_eq(snap_load(&b, path, NULL), LKV_OK, "%s", lkv_last_error());
    cr_assert_eq(snap_verify(&b, &kept), 32);
    free(file.data);
    snap_close(&a);
    snap_close(&b);
}

/* A forger has made every seal right: what the records say is still judged. */
Test(snapshot, right_seals_do_not_help_wrong_content, .init = make_folder, .fini = remove_folder)
{
    lkv_pool_desc desc = snap_desc(12, 1, 0);
    struct snap_pool a = snap_open(&desc), b = snap_open(&desc);
    const size_t head = sizeof(struct lkvi_snapshot_head);
    const struct {
        size_t at;
        uint32_t bits;
        const char *word;
    } changes[] = {
        {head, 1, "parent"},            /* of the first record: behind it */
        {head + 8, 0x80, "priority"},   /* above 100 */
        {head + 32, 1, "digest"},       /* the digest itself */
        {head + 96, 1, "digest"},       /* a token */
        {head + 160, 4, "digest"},      /* a key's tag: still whole */
        {head + 161, 0x80, "whole"},    /* a key's length */
        {head + 4, 0x40000000, "many"}, /* bytes of keys */
        {head + 4, 0x01000000, "ends"},
        {offsetof(struct lkvi_snapshot_head, num_blocks), 1, ""},
        {offsetof(struct lkvi_snapshot_head, num_blocks), 0x10000000, "cannot hold"},
        {offsetof(struct lkvi_snapshot_head, version), 2, "version"},
        {offsetof(struct lkvi_snapshot_head, identity), 2, "model_fingerprint"},
    };
    snap_cache(&a, &prompts[1]);
    lkv_pool_stats before = stats_of(&b);
    cr_assert_eq(snap_save(&a, path, NULL), LKV_OK);
    struct bytes file = read_file();
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        uint32_t word;
        memcpy(&word, file.data + changes[i].at, 4);
        word ^= changes[i].bits;
        memcpy(file.data + changes[i].at, &word, 4);
        forge_seals(file.data, file.num);
        write_file(file.data, file.num);
        must_refuse(&b, &before, "a forged word", changes[i].at);
        cr_assert(strstr(lkv_last_error(), changes[i].word), "change %zu: want \"%s\" in: %s", i,
                  changes[i].word, lkv_last_error());
        word ^= changes[i].bits;
        memcpy(file.data + changes[i].at, &word, 4);
    }
    forge_seals(file.data, file.num);
    write_file(file.data, file.num);
    cr_assert_eq(snap_load(&b, path, NULL), LKV_OK, "%s", lkv_last_error());
    free(file.data);
    snap_close(&a);
    snap_close(&b);
}

/* One identity twice in a file: the second stands for the first, and so do its children. */
Test(snapshot, a_block_twice_is_one_block, .init = make_folder, .fini = remove_folder)
{
    lkv_pool_desc desc = snap_desc(12, 1, 0);
    struct snap_pool a = snap_open(&desc), b = snap_open(&desc);
    lkv_snapshot_info info = {.size = sizeof info};
    struct snap_prompt prompt = {0, 0, 48};
    snap_cache(&a, &prompt);
    cr_assert_eq(snap_save(&a, path, NULL), LKV_OK);
    struct bytes file = read_file();
    struct lkvi_snapshot_head head;
    memcpy(&head, file.data, sizeof head);
    size_t body = file.num - sizeof head, record = body / 3;
    uint8_t *twice = malloc(file.num + body);
    memcpy(twice, file.data, file.num);
    memcpy(twice + file.num, file.data + sizeof head, body);
    for (uint32_t i = 1; i < 3; i++) { /* 4 is a root again, 5 and 6 hang below it */
        uint32_t parent = 3 + i;
        memcpy(twice + file.num + i * record, &parent, sizeof parent);
    }
    head.num_blocks = 6;
    head.file_bytes = file.num + body;
    memcpy(twice, &head, sizeof head);
    forge_seals(twice, file.num + body);
    write_file(twice, file.num + body);
    cr_assert_eq(snap_load(&b, path, &info), LKV_OK, "%s", lkv_last_error());
    cr_assert_eq(info.blocks, 6);
    cr_assert_eq(info.blocks_loaded, 3);
    cr_assert_eq(stats_of(&b).blocks_cached, 3);
    cr_assert_eq(stats_of(&b).blocks_free, 9);
    cr_assert_eq(snap_verify(&b, &prompt), 32);
    free(twice);
    free(file.data);
    snap_close(&a);
    snap_close(&b);
}

/* ---- what the system refuses */

Test(snapshot, places_that_cannot_be, .init = make_folder, .fini = remove_folder)
{
    lkv_pool_desc desc = snap_desc(12, 0, 0);
    struct snap_pool a = snap_open(&desc);
    char other[128];
    snap_cache(&a, &prompts[0]);
    cr_assert_eq(snap_load(&a, path, NULL), LKV_E_NOT_FOUND);
    cr_assert_eq(snap_load(&a, folder, NULL), LKV_E_INVALID);
    snprintf(other, sizeof other, "%s/none/pool.snap", folder);
    cr_assert_eq(snap_save(&a, other, NULL), LKV_E_NOT_FOUND);
    cr_assert_eq(snap_save(&a, folder, NULL), LKV_E_IO, "a folder cannot be replaced by a file");
    snprintf(other, sizeof other, "%s.tmp", folder);
    cr_assert_eq(access(other, F_OK), -1, "the temporary file is left");
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_assert_eq(snap_load(&a, path, NULL), LKV_E_INVALID, "a pipe must not be waited for");
    cr_assert_eq(snap_save(&a, path, NULL), LKV_OK, "%s", lkv_last_error());
    snprintf(other, sizeof other, "%s.tmp", path);
    int fd = open(other, O_RDWR | O_CREAT, 0600);
    cr_assert(fd >= 0 && !flock(fd, LOCK_EX));
    cr_assert_eq(snap_save(&a, path, NULL), LKV_E_BUSY);
    close(fd);
    cr_assert_eq(snap_save(&a, path, NULL), LKV_OK, "%s", lkv_last_error());
    cr_assert_eq(access(other, F_OK), -1);
    snap_close(&a);
}

/* ---- everything fails once */

static int64_t copies_left; /* the copy that fails; 0: none */

static lkv_status failing_copy(void *state, void *to, const void *from, uint64_t bytes,
                               uint32_t kind, void *stream)
{
    if (copies_left && !--copies_left)
        return LKV_E_CUDA;
    return lkvi_backend_cpu.copy(state, to, from, bytes, kind, stream);
}

/* Calls once with each failure until none is met; every failed call leaves the pool as it was and
 * the file as it was. The number of failures. */
static int64_t fail_each(struct snap_pool *p, int load, int copies, const struct bytes *file)
{
    lkv_pool_stats before = stats_of(p);
    for (int64_t n = 1;; n++) {
        copies_left = copies ? n : 0;
        lkvi_alloc_fail_after(copies ? 0 : n);
        lkv_status status = load ? snap_load(p, path, NULL) : snap_save(p, path, NULL);
        int met = copies ? !copies_left : status != LKV_OK;
        lkvi_alloc_fail_after(0);
        copies_left = 0;
        cr_assert_eq(status,
                     !met     ? LKV_OK
                     : copies ? LKV_E_CUDA
                              : LKV_E_NO_MEMORY,
                     "%lld: %s", (long long)n, lkv_status_name(status));
        if (!met)
            return n - 1;
        lkv_pool_stats now = stats_of(p);
        cr_assert_eq(memcmp(&now, &before, sizeof now), 0, "failure %lld", (long long)n);
        struct bytes is = read_file();
        cr_assert(is.num == file->num && !memcmp(is.data, file->data, is.num));
        free(is.data);
    }
}

Test(snapshot, every_failure_leaves_pool_and_file_alone, .init = make_folder, .fini = remove_folder)
{
    for (int copies = 0; copies < 2; copies++) {
        lkv_pool_desc desc = snap_desc(40, 1, 0);
        struct snap_pool a = snap_open(&desc), b = snap_open(&desc), c = snap_open(&desc);
        struct lkvi_backend failing = lkvi_backend_cpu;
        failing.copy = failing_copy;
        snap_cache(&a, &prompts[0]);
        cr_assert_eq(snap_save(&a, path, NULL), LKV_OK);
        struct bytes file = read_file();
        cache_all(&a);
        snap_cache(&b, &prompts[1]);
        a.ctx->backend = b.ctx->backend = &failing;
        cr_assert_gt(fail_each(&a, 0, copies, &file), 3);
        free(file.data);
        file = read_file();
        cr_assert_gt(fail_each(&b, 1, copies, &file), 3);
        free(file.data);
        cr_assert_eq(snap_load(&c, path, NULL), LKV_OK);
        for (int i = 0; i < NUM_PROMPTS; i++) {
            cr_assert_eq(snap_verify(&b, &prompts[i]), whole(prompts[i].num_tokens));
            cr_assert_eq(snap_verify(&c, &prompts[i]), whole(prompts[i].num_tokens));
        }
        a.ctx->backend = b.ctx->backend = &lkvi_backend_cpu;
        snap_close(&a);
        snap_close(&b);
        snap_close(&c);
    }
}
