/* Records -> dense latent and rope rows, on the CPU's threads. A slot that is negative or out of
 * range gives a row of zeros; the latter is a fault of the pool. */
#include "quant/cpu/cpu.h"
#include "quant/cpu/fault.h"
#include "quant/cpu/rows.h"

#include <string.h>

struct job {
    const struct lkvi_gather_params *p;
    const struct lkvi_codec *codec;
    const struct lkvi_row_ops *ops;
    struct lkvi_fault_sink sink;
};

static void put_row(const struct job *job, const struct lkvi_rows *to, uint64_t token,
                    const float *row, uint32_t n)
{
    void *at = lkvi_row_at(to, (int64_t)token * to->stride);
    if (row)
        job->ops->store(row, n, to->dtype, at);
    else
        memset(at, 0, (size_t)n * lkvi_dtype_bytes(to->dtype));
}

static void gather_latent(const struct job *job, uint64_t token, const uint8_t *bytes)
{
    const struct lkvi_record *record = &job->p->store.record;
    float row[LKVI_MAX_LATENT] __attribute__((aligned(64)));
    if (bytes) {
        job->codec->decode(record, bytes, row);
        if (job->p->unrotate)
            job->ops->hadamard(row, record->latent_dim);
    }
    put_row(job, &job->p->latent, token, bytes ? row : NULL, record->latent_dim);
}

static void gather_rope(const struct job *job, uint64_t token, const uint8_t *bytes)
{
    const struct lkvi_record *record = &job->p->store.record;
    float row[LKVI_MAX_ROPE] __attribute__((aligned(64)));
    if (bytes)
        job->ops->rope_decode(bytes + record->rope_offset, record->rope_dim, row);
    put_row(job, &job->p->rope, token, bytes ? row : NULL, record->rope_dim);
}

static void gather_token(struct job *job, uint64_t token)
{
    const struct lkvi_gather_params *p = job->p;
    int64_t slot = p->slots[token];
    const uint8_t *bytes = NULL;
    if (lkvi_slot_is_valid(&p->store, slot))
        bytes = lkvi_slot_bytes(&p->store, slot);
    else if (slot >= 0)
        lkvi_fault_note(&job->sink, LKV_FAULT_SLOT, token, slot, 1);
    if (p->latent.data)
        gather_latent(job, token, bytes);
    if (p->rope.data && p->store.record.rope_dim)
        gather_rope(job, token, bytes);
}

static void gather_task(void *arg, uint64_t index, uint32_t worker)
{
    struct job *job = arg;
    (void)worker;
    uint64_t begin = index * LKVI_ROWS_A_TASK, end = lkvi_rows_end(begin, job->p->num_tokens);
    for (uint64_t token = begin; token < end; token++)
        gather_token(job, token);
}

lkv_status lkvi_cpu_gather(void *state, const struct lkvi_gather_params *p, void *stream)
{
    struct lkv_context *ctx = state;
    struct job job = {.p = p,
                      .codec = lkvi_codec_get(p->store.record.format, ctx->isa),
                      .ops = lkvi_row_ops_get(ctx->isa),
                      .sink = LKVI_FAULT_SINK};
    (void)stream;
    lkvi_rows_run(ctx, p->num_tokens, gather_task, &job);
    return lkvi_fault_close(&job.sink, p->store.faults, 0, "gather");
}
