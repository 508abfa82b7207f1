/* The split rule and the workspace's layout: pure functions of shapes. See plan.h. */
#include "attention/cpu/plan.h"
#include "attention/cpu/micro.h"

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t parts(uint64_t n, uint64_t size)
{
    return (n + size - 1) / size;
}

/* Few rows over many keys need splits to fill the threads; many rows fill them by themselves, and a
 * partial result costs memory for every row. */
struct lkvi_cpu_split lkvi_cpu_split(uint32_t q_len, uint32_t seq_len, uint32_t num_heads)
{
    uint64_t groups = parts((uint64_t)q_len * num_heads, LKVI_GROUP_ROWS);
    uint64_t most = larger(1, LKVI_SPLITS_MAX / larger(1, groups));
    uint64_t want = larger(1, smaller(parts(seq_len, LKVI_SPLIT_KEYS), most));
    uint64_t keys = parts(parts(larger(1, seq_len), want), LKVI_TILE_KEYS) * LKVI_TILE_KEYS;
    return (struct lkvi_cpu_split){.num_splits = (uint32_t)parts(larger(1, seq_len), keys),
                                   .keys = (uint32_t)keys};
}

uint64_t lkvi_project_floats(uint32_t latent, uint32_t nope, uint32_t value)
{
    uint64_t rows = LKVI_TILE_KEYS, in = larger(latent, nope), out = larger(latent, value);
    return (lkvi_round16(in) + lkvi_round16(out)) * rows;
}

uint64_t lkvi_decompressed_floats(const struct lkvi_plan_params *p)
{
    if (!lkvi_plan_decompresses(p, p->max_q_len))
        return 0;
    uint64_t latent = p->record.latent_dim, rope = p->record.rope_dim, tile = LKVI_TILE_KEYS;
    uint64_t queries = lkvi_round16(smaller(p->max_q_len, LKVI_QUERY_TILE));
    uint64_t nope = lkvi_round16(p->nope_dim), value = lkvi_round16(p->v_dim);
    uint64_t dims = lkvi_round16(nope + rope) + value;
    return tile * (latent + lkvi_round16(rope)) + tile * dims + latent * (nope + value) +
           queries * (dims + 3) + lkvi_round16(larger(latent, nope + rope + value));
}

static uint64_t absorbed_floats(const struct lkvi_plan_params *p, uint64_t group_rows)
{
    uint64_t dims = lkvi_row_floats(&p->record), value = p->record.value_dim;
    uint64_t items = lkvi_round16(dims) * (LKVI_TILE_KEYS + group_rows + 1);
    uint32_t latent = (uint32_t)larger(p->record.latent_dim, value);
    uint64_t project = lkvi_project_floats(latent, p->nope_dim, p->v_dim) + LKVI_CHUNK_ROWS * value;
    return larger(items, project);
}

/* Slots for every unit that a batch could have, but no more than keep the threads busy. */
static uint32_t slots_for(const struct lkvi_plan_params *p, uint32_t workers)
{
    uint64_t rows = (uint64_t)p->max_tokens * lkvi_plan_heads(p);
    uint64_t units = (parts(rows, LKVI_GROUP_ROWS) + p->max_seqs) * p->record.kv_heads;
    uint64_t splits = lkvi_cpu_split(1, p->max_seq_len, 1).num_splits;
    return (uint32_t)smaller(units * splits, larger(LKVI_SPLITS_MAX, 4 * (uint64_t)workers));
}

static uint64_t region(uint64_t *total, uint64_t bytes)
{
    uint64_t at = *total;
    *total += parts(bytes, 64) * 64;
    return at;
}

void lkvi_cpu_layout(const struct lkvi_plan_params *p, uint32_t num_workers,
                     struct lkvi_cpu_layout *out)
{
    uint64_t rows = (uint64_t)p->max_q_len * lkvi_plan_heads(p), latent = p->record.latent_dim;
    uint64_t group = smaller(LKVI_GROUP_ROWS, lkvi_round16(rows));
    uint64_t shared = (uint64_t)LKVI_TILE_KEYS * (LKVI_GROUP_ROWS + 1) + 2 * LKVI_GROUP_ROWS;
    *out = (struct lkvi_cpu_layout){.group_rows = (uint32_t)group,
                                    .num_slots = slots_for(p, num_workers),
                                    .num_workers = num_workers,
                                    .slot_floats = group * (p->record.value_dim + 3),
                                    .query_floats = p->q_form == LKV_Q_HEAD ? group * latent : 0};
    out->worker_floats = lkvi_round16(shared) + lkvi_round16(larger(absorbed_floats(p, group),
                                                                    lkvi_decompressed_floats(p)));
    uint64_t slots = out->num_slots, total = 0;
    out->units_at = region(&total, slots * sizeof(struct lkvi_cpu_unit));
    out->items_at = region(&total, slots * sizeof(struct lkvi_cpu_item));
    out->slots_at = region(&total, slots * out->slot_floats * 4);
    out->queries_at = region(&total, slots * out->query_floats * 4);
    out->workers_at = region(&total, num_workers * out->worker_floats * 4);
    out->total = total;
}
