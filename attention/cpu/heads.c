/* Tokens of a LATENT_GQA pool, in and out. A token's record is a key latent and a value latent of
 * each KV head, each a record of its own (quant/record.h), so the codecs of one latent do the work:
 *
 *   given:     load ->                       Hadamard? -> non-finite rule -> encode
 *   projected: load -> non-finite rule -> x . down -> Hadamard? -> non-finite rule -> encode
 *
 * A task is a few tokens; one head's matrix meets all of them. Each latent is the same sum whatever
 * tokens it is made beside. */
#include <string.h>
#include "attention/cpu/backend.h"
#include "attention/cpu/micro.h"
#include "attention/cpu/tile.h"
#include "quant/cpu/fault.h"
#include "quant/cpu/rows.h"

enum { ROWS = 8, MAX_DIM = 1024 };

struct job {
    const struct lkvi_append_heads_params *p;
    const struct lkvi_codec *codec;
    const struct lkvi_row_ops *ops;
    const struct lkvi_micro *micro;
    struct lkvi_fault_sink sink;
};

/* Some tokens' keys, or values, of one KV head. */
struct part {
    struct lkvi_store store;
    const struct lkvi_heads *from;
    const float *down; /* [in, latent], NULL: latents are given */
    uint32_t head, in; /* values of a row that is given */
    uint32_t offset;   /* of its first value among those of the token */
};

static struct part part_of(const struct lkvi_append_heads_params *p, uint32_t head,
                           uint32_t is_value)
{
    const struct lkvi_weights_view *w = &p->weights;
    const struct lkvi_record *r = &p->store.record;
    uint32_t key = w->key_down ? w->nope_dim : r->latent_dim;
    uint32_t value = w->key_down ? w->v_dim : r->value_dim;
    struct part part = {.store = lkvi_store_part(&p->store, head, is_value),
                        .from = is_value ? &p->value : &p->key,
                        .down = is_value ? w->value_down : w->key_down,
                        .head = head,
                        .in = is_value ? value : key,
                        .offset = head * (key + value) + (is_value ? key : 0)};
    if (part.down)
        part.down += (uint64_t)head * part.in * part.store.record.latent_dim;
    return part;
}

/* Adds what happened to one row to what happened to its token. */
static void repair_add(struct lkvi_repair *token, const struct lkvi_repair *row, uint32_t offset)
{
    if (row->count && !token->count)
        token->first = offset + row->first;
    token->count += row->count;
}

/* [count, in] -> [count, latent] */
static void project(const struct job *job, const struct part *part, uint32_t count,
                    const float *rows, float *latents)
{
    uint32_t latent = part->store.record.latent_dim;
    struct lkvi_gemm g = {.rows = count,
                          .cols = latent,
                          .depth = part->in,
                          .a = rows,
                          .a_row = part->in,
                          .a_depth = 1,
                          .b = part->down,
                          .b_depth = latent,
                          .b_panel = LKVI_PANEL,
                          .c = latents,
                          .c_row = latent};
    job->micro->gemm(&g);
}

static void encode(const struct job *job, const struct part *part, float *row, int64_t slot,
                   struct lkvi_repair *repair)
{
    const struct lkvi_record *record = &part->store.record;
    if (record->encode_flags & LKV_ENCODE_ROTATE) {
        job->ops->repair(row, record->latent_dim, lkvi_codec_group(record), repair);
        job->ops->hadamard(row, record->latent_dim);
    }
    job->codec->encode(record, part->store.fixed_outer, row, lkvi_slot_bytes(&part->store, slot),
                       repair);
}

/* tokens [count] are rows of the call. */
static void append_part(const struct job *job, const struct part *part, const uint64_t *tokens,
                        uint32_t count, struct lkvi_repair *repairs)
{
    float rows[ROWS * MAX_DIM] __attribute__((aligned(64)));
    float latents[ROWS * MAX_DIM] __attribute__((aligned(64)));
    float *out = part->down ? latents : rows;
    for (uint32_t i = 0; i < count; i++) {
        struct lkvi_repair repair = {0};
        float *row = rows + (uint64_t)i * part->in;
        job->ops->load(lkvi_head_row(part->from, tokens[i], part->head), part->from->dtype,
                       part->in, row);
        if (part->down)
            job->ops->repair(row, part->in, part->in, &repair);
        repair_add(&repairs[i], &repair, part->offset);
    }
    if (part->down)
        project(job, part, count, rows, latents);
    for (uint32_t i = 0; i < count; i++) {
        struct lkvi_repair repair = {0};
        encode(job, part, out + (uint64_t)i * part->store.record.latent_dim,
               job->p->slots[tokens[i]], &repair);
        repair_add(&repairs[i], &repair, part->offset);
    }
}

static void append_tokens(struct job *job, const uint64_t *tokens, uint32_t count)
{
    struct lkvi_repair repairs[ROWS] = {{0}};
    for (uint32_t i = 0; i < job->p->store.record.kv_heads * 2; i++) {
        struct part part = part_of(job->p, i / 2, i % 2);
        append_part(job, &part, tokens, count, repairs);
    }
    for (uint32_t i = 0; i < count; i++)
        if (repairs[i].count)
            lkvi_fault_note(&job->sink, LKV_FAULT_NON_FINITE, tokens[i], repairs[i].first,
                            repairs[i].count);
}

static void append_task(void *arg, uint64_t index, uint32_t worker)
{
    struct job *job = arg;
    const struct lkvi_append_heads_params *p = job->p;
    uint64_t tokens[ROWS], begin = index * ROWS;
    uint32_t count = 0;
    (void)worker;
    for (uint64_t t = begin; t < p->num_tokens && t < begin + ROWS; t++) {
        if (lkvi_slot_is_valid(&p->store, p->slots[t]))
            tokens[count++] = t;
        else if (p->slots[t] >= 0)
            lkvi_fault_note(&job->sink, LKV_FAULT_SLOT, t, p->slots[t], 1);
    }
    if (count)
        append_tokens(job, tokens, count);
}

lkv_status lkvi_cpu_append_heads(void *state, const struct lkvi_append_heads_params *p,
                                 void *stream)
{
    const struct lkv_context *ctx = state;
    struct job job = {.p = p,
                      .codec = lkvi_codec_get(p->store.record.format, ctx->isa),
                      .ops = lkvi_row_ops_get(ctx->isa),
                      .micro = lkvi_micro_get(ctx->isa),
                      .sink = LKVI_FAULT_SINK};
    (void)stream;
    lkvi_threads_run(ctx->threads, (p->num_tokens + ROWS - 1) / ROWS, append_task, &job);
    return lkvi_fault_close(&job.sink, p->store.faults, p->checked, "append");
}

/* ---- gather */

struct gather_job {
    const struct lkvi_gather_heads_params *p;
    const struct lkvi_codec *codec;
    const struct lkvi_row_ops *ops;
    struct lkvi_fault_sink sink;
};

static void gather_part(const struct gather_job *job, const struct lkvi_heads *to, uint32_t part_at,
                        uint64_t token, int valid)
{
    const struct lkvi_gather_heads_params *p = job->p;
    struct lkvi_store part = lkvi_store_part(&p->store, part_at / 2, part_at % 2);
    uint32_t latent = part.record.latent_dim;
    void *at = (void *)lkvi_head_row(to, token, part_at / 2);
    float row[MAX_DIM] __attribute__((aligned(64)));
    if (!valid) {
        memset(at, 0, (size_t)latent * lkvi_dtype_bytes(to->dtype));
        return;
    }
    job->codec->decode(&part.record, lkvi_slot_bytes(&part, p->slots[token]), row);
    if (p->unrotate)
        job->ops->hadamard(row, latent);
    job->ops->store(row, latent, to->dtype, at);
}

static void gather_task(void *arg, uint64_t index, uint32_t worker)
{
    struct gather_job *job = arg;
    const struct lkvi_gather_heads_params *p = job->p;
    (void)worker;
    for (uint64_t t = index * ROWS; t < p->num_tokens && t < (index + 1) * ROWS; t++) {
        int valid = lkvi_slot_is_valid(&p->store, p->slots[t]);
        if (!valid && p->slots[t] >= 0)
            lkvi_fault_note(&job->sink, LKV_FAULT_SLOT, t, p->slots[t], 1);
        for (uint32_t i = 0; i < p->store.record.kv_heads * 2; i++) {
            const struct lkvi_heads *to = i % 2 ? &p->value : &p->key;
            if (to->data)
                gather_part(job, to, i, t, valid);
        }
    }
}

lkv_status lkvi_cpu_gather_heads(void *state, const struct lkvi_gather_heads_params *p,
                                 void *stream)
{
    const struct lkv_context *ctx = state;
    struct gather_job job = {.p = p,
                             .codec = lkvi_codec_get(p->store.record.format, ctx->isa),
                             .ops = lkvi_row_ops_get(ctx->isa),
                             .sink = LKVI_FAULT_SINK};
    (void)stream;
    lkvi_threads_run(ctx->threads, (p->num_tokens + ROWS - 1) / ROWS, gather_task, &job);
    return lkvi_fault_close(&job.sink, p->store.faults, 0, "gather");
}
