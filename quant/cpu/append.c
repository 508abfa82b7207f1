/* Latent and rope rows -> records, on the CPU's threads.
 *
 *   latent: load -> non-finite rule -> RMSNorm? -> Hadamard? -> encode (non-finite rule again)
 *   rope:   load -> non-finite rule -> turn? -> non-finite rule -> bf16, padding zero
 *
 * A row whose slot or position is wrong writes nothing and is a fault; a row with values that are
 * not finite is repaired, written, and a fault too. */
#include "quant/cpu/cpu.h"
#include "quant/cpu/fault.h"
#include "quant/cpu/rows.h"

#include <string.h>

struct job {
    const struct lkvi_append_params *p;
    const struct lkvi_codec *codec;
    const struct lkvi_row_ops *ops;
    uint32_t group;
    struct lkvi_fault_sink sink;
};

static void append_latent(struct job *job, uint64_t token, uint8_t *bytes,
                          struct lkvi_repair *repair)
{
    const struct lkvi_append_params *p = job->p;
    const struct lkvi_record *record = &p->store.record;
    float row[LKVI_MAX_LATENT] __attribute__((aligned(64)));
    job->ops->load(lkvi_row_at(&p->latent, (int64_t)token * p->latent.stride), p->latent.dtype,
                   record->latent_dim, row);
    if (p->norm_weight || (record->encode_flags & LKV_ENCODE_ROTATE))
        job->ops->repair(row, record->latent_dim, job->group, repair);
    if (p->norm_weight)
        job->ops->rms_norm(row, record->latent_dim, p->norm_weight, p->norm_eps);
    if (record->encode_flags & LKV_ENCODE_ROTATE)
        job->ops->hadamard(row, record->latent_dim);
    job->codec->encode(record, p->store.fixed_outer, row, bytes, repair);
}

static void append_rope(struct job *job, uint64_t token, uint8_t *bytes, struct lkvi_repair *repair)
{
    const struct lkvi_append_params *p = job->p;
    const struct lkvi_record *record = &p->store.record;
    uint32_t dim = record->rope_dim;
    uint8_t *section = bytes + record->rope_offset;
    float row[LKVI_MAX_ROPE] __attribute__((aligned(64)));
    job->ops->load(lkvi_row_at(&p->rope, (int64_t)token * p->rope.stride), p->rope.dtype, dim, row);
    job->ops->repair(row, dim, dim, repair);
    if (p->rope_cos) {
        uint64_t at = (uint64_t)p->positions[token] * (dim / 2);
        lkvi_rope_turn(row, dim, p->rope_cos + at, p->rope_sin + at, p->rope_style);
        job->ops->repair(row, dim, dim, repair);
    }
    job->ops->rope_encode(row, dim, section);
    memset(section + 2 * dim, 0, record->rope_bytes - 2 * dim);
}

static int position_is_valid(const struct lkvi_append_params *p, uint64_t token)
{
    return !p->rope_cos ||
           (p->positions[token] >= 0 && (uint64_t)p->positions[token] < p->num_positions);
}

static void append_token(struct job *job, uint64_t token)
{
    const struct lkvi_append_params *p = job->p;
    int64_t slot = p->slots[token];
    struct lkvi_repair latent = {0}, rope = {0};
    if (slot < 0)
        return;
    if (!lkvi_slot_is_valid(&p->store, slot)) {
        lkvi_fault_note(&job->sink, LKV_FAULT_SLOT, token, slot, 1);
        return;
    }
    if (!position_is_valid(p, token)) {
        lkvi_fault_note(&job->sink, LKV_FAULT_LENGTH, token, p->positions[token], 1);
        return;
    }
    uint8_t *bytes = lkvi_slot_bytes(&p->store, slot);
    append_latent(job, token, bytes, &latent);
    if (p->store.record.rope_dim)
        append_rope(job, token, bytes, &rope);
    if (latent.count + rope.count)
        lkvi_fault_note(&job->sink, LKV_FAULT_NON_FINITE, token,
                        latent.count ? latent.first : p->store.record.latent_dim + rope.first,
                        latent.count + rope.count);
}

static void append_task(void *arg, uint64_t index, uint32_t worker)
{
    struct job *job = arg;
    (void)worker;
    uint64_t begin = index * LKVI_ROWS_A_TASK, end = lkvi_rows_end(begin, job->p->num_tokens);
    for (uint64_t token = begin; token < end; token++)
        append_token(job, token);
}

lkv_status lkvi_cpu_append(void *state, const struct lkvi_append_params *p, void *stream)
{
    struct lkv_context *ctx = state;
    struct job job = {.p = p,
                      .codec = lkvi_codec_get(p->store.record.format, ctx->isa),
                      .ops = lkvi_row_ops_get(ctx->isa),
                      .group = lkvi_codec_group(&p->store.record),
                      .sink = LKVI_FAULT_SINK};
    (void)stream;
    lkvi_rows_run(ctx, p->num_tokens, append_task, &job);
    return lkvi_fault_close(&job.sink, p->store.faults, p->checked, "append");
}
