/* In: a LIBRARY pool and a path. Out: its prefix cache in a file, or a file's blocks in its cache.
 * The manager says which block; here its bytes are gathered: every layer, then every plane, through
 * the backend, in the order of the pool's description whatever the strides are. */
#include <string.h>
#include "api/check.h"
#include "api/objects.h"
#include "api/snapshot_path.h"
#include "block_manager/snapshot.h"
#include "core/status.h"

#include <unistd.h>

enum { SECRET_BYTES_MIN = 16, SECRET_BYTES_MAX = 1024 };

struct mover {
    struct lkv_pool *pool;
    void *stream;
};

/* A block that is cached on the host alone is complete there. */
static lkv_status fetch(void *user, uint32_t block, uint8_t *to)
{
    const struct mover *m = user;
    uint64_t bytes = lkvi_pool_block_bytes(m->pool);
    if (block <= m->pool->desc.num_blocks)
        return lkvi_pool_move(m->pool, block, to, LKVI_COPY_TO_HOST, m->stream);
    memcpy(to, m->pool->host.base + (block - m->pool->desc.num_blocks - 1) * bytes, bytes);
    return LKV_OK;
}

/* The copy only reads what it is given. */
static lkv_status store(void *user, uint32_t block, const uint8_t *from)
{
    const struct mover *m = user;
    return lkvi_pool_move(m->pool, block, (uint8_t *)(uintptr_t)from, LKVI_COPY_TO_DEVICE,
                          m->stream);
}

static lkv_status wait_all(void *user)
{
    const struct mover *m = user;
    if (!m->pool->layers)
        return LKV_OK;
    return m->pool->ctx->backend->wait(m->pool->ctx->backend_state, m->stream);
}

static void describe(const struct lkv_pool *pool, struct lkvi_snapshot_head *head)
{
    const lkv_pool_desc *d = &pool->desc;
    *head = (struct lkvi_snapshot_head){.kind = d->kind,
                                        .format = d->format,
                                        .format_version = LKVI_FORMAT_VERSION,
                                        .encode_flags = d->encode_flags,
                                        .latent_dim = d->latent_dim,
                                        .rope_dim = d->rope_dim,
                                        .rope_style = d->rope_style,
                                        .num_layers = d->num_layers,
                                        .tokens_per_block = d->tokens_per_block,
                                        .num_planes = d->num_planes};
    for (uint32_t i = 0; i < d->num_planes; i++)
        head->plane_bytes[i] = pool->planes[i].bytes_per_block;
    head->payload_bytes = (lkvi_pool_block_bytes(pool) + 15) & ~(uint64_t)15;
}

static lkv_status admit_args(const lkv_snapshot_args *given, lkv_snapshot_args *args,
                             const lkv_snapshot_info *info)
{
    LKV_TRY(lkvi_admit(args, sizeof *args, given, "lkv_snapshot_args"));
    if (info)
        LKV_TRY(lkvi_admit_out(info, "lkv_snapshot_info"));
    LKV_TRY(lkvi_flags_check(args->flags, 0, "snapshot flags"));
    if (!args->path || !*args->path)
        return lkvi_fail(LKV_E_INVALID, "path is %s; need a file's name",
                         args->path ? "empty" : "NULL");
    if (!args->secret != !args->secret_bytes ||
        (args->secret &&
         (args->secret_bytes < SECRET_BYTES_MIN || args->secret_bytes > SECRET_BYTES_MAX)))
        return lkvi_fail(LKV_E_INVALID, "secret is %u bytes at %p; need none, or %d to %d",
                         args->secret_bytes, (const void *)args->secret, SECRET_BYTES_MIN,
                         SECRET_BYTES_MAX);
    return LKV_OK;
}

static lkv_status begin(struct lkv_pool *pool, const lkv_snapshot_args *args, struct mover *mover,
                        struct lkvi_snapshot *s)
{
    LKV_TRY(lkvi_stream_check(pool->ctx, mover->stream));
    memset(s, 0, sizeof *s);
    describe(pool, &s->head);
    s->secret = (struct lkvi_secret){.data = args->secret, .bytes = args->secret_bytes};
    s->io = (struct lkvi_snapshot_io){mover, fetch, store, wait_all};
    return LKV_OK;
}

static void report(const struct lkvi_snapshot *s, lkv_snapshot_info *given)
{
    lkv_snapshot_info info = {.size = sizeof info,
                              .file_bytes = s->file_bytes,
                              .blocks = s->num_blocks,
                              .blocks_loaded = s->num_loaded};
    if (given)
        lkvi_give(given, &info, sizeof info);
}

lkv_status lkv_pool_snapshot_save(lkv_pool *pool, const lkv_snapshot_args *given,
                                  lkv_snapshot_info *info, void *stream)
{
    struct lkvi_manager *manager;
    struct mover mover = {pool, stream};
    struct lkvi_new_file file;
    struct lkvi_snapshot s;
    lkv_snapshot_args args;
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    LKV_TRY(admit_args(given, &args, info));
    LKV_TRY(begin(pool, &args, &mover, &s));
    lkv_status status = lkvi_new_file_open(&file, args.path);
    s.fd = file.fd;
    if (status == LKV_OK)
        status = lkvi_snapshot_save(manager, &s);
    if (status == LKV_OK)
        status = lkvi_new_file_commit(&file);
    lkvi_new_file_close(&file);
    if (status == LKV_OK)
        report(&s, info);
    return status;
}

lkv_status lkv_pool_snapshot_load(lkv_pool *pool, const lkv_snapshot_args *given,
                                  lkv_snapshot_info *info, void *stream)
{
    struct lkvi_manager *manager;
    struct mover mover = {pool, stream};
    struct lkvi_snapshot s;
    lkv_snapshot_args args;
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    LKV_TRY(admit_args(given, &args, info));
    LKV_TRY(begin(pool, &args, &mover, &s));
    LKV_TRY(lkvi_old_file_open(args.path, &s.fd, &s.file_bytes));
    lkv_status status = lkvi_snapshot_load(manager, &s);
    close(s.fd);
    if (status == LKV_OK)
        report(&s, info);
    return status;
}
