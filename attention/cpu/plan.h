/* How a batch becomes work on the CPU. In: the plan's maxima, then lengths. Out: the workspace's
 * layout; for each wave, units and items.
 *
 *   unit   up to 128 query rows (token, head) of one sequence whose heads share keys: all heads of
 *          MLA, those of one KV head of LATENT_GQA
 *   item   a unit and a range of its keys: one task, one partial result (slot)
 *   wave   units whose slots fit the workspace at once: absorb -> items -> merge
 *
 * The split of a sequence is a function of its q_len, seq_len and the number of heads only: results
 * depend neither on threads nor on batch mates. */
#ifndef LKVI_ATTENTION_CPU_PLAN_H
#define LKVI_ATTENTION_CPU_PLAN_H

#include "attention/params.h"

enum {
    LKVI_GROUP_ROWS = 128,  /* query rows that share one dequantised tile */
    LKVI_TILE_KEYS = 64,    /* keys of a tile */
    LKVI_CHUNK_ROWS = 16,   /* query rows of an absorb or merge task */
    LKVI_SPLIT_KEYS = 512,  /* fewest keys worth a partial result */
    LKVI_SPLITS_MAX = 64,   /* partial results of a sequence's row group */
    LKVI_QUERY_TILE = 1024, /* decompressed: tokens of one head that share one decompression */
};

/* Float counts and byte offsets; every region is a multiple of 64 bytes. */
struct lkvi_cpu_layout {
    uint32_t group_rows; /* of a slot: 128 or the plan's most rows, a multiple of 16 */
    uint32_t num_slots, num_workers;
    uint64_t slot_floats;  /* [group_rows, L_v] out, then max, sum, moment [group_rows] */
    uint64_t query_floats; /* absorbed queries of a unit [group_rows, L]; 0: given absorbed */
    uint64_t worker_floats;
    uint64_t units_at, items_at, slots_at, queries_at, workers_at, total; /* bytes */
};

struct lkvi_cpu_unit {
    uint32_t seq, seq_len, q_len;
    uint32_t num_rows, num_splits, split_keys;
    uint32_t slot;        /* first; one a split */
    uint32_t first_row;   /* token * shared heads + head of them, token counted in the sequence */
    uint32_t kv_head;     /* 0 for MLA */
    uint64_t first_token; /* the sequence's first row of the batch */
};

struct lkvi_cpu_item {
    uint32_t unit, split;
};

struct lkvi_cpu_split {
    uint32_t num_splits, keys; /* keys a multiple of the tile */
};

/* num_heads: those that share keys */
struct lkvi_cpu_split lkvi_cpu_split(uint32_t q_len, uint32_t seq_len, uint32_t num_heads);
void lkvi_cpu_layout(const struct lkvi_plan_params *p, uint32_t num_workers,
                     struct lkvi_cpu_layout *out);
/* Floats of scratch that one worker of the decompressed path needs; 0: the plan never takes it. */
uint64_t lkvi_decompressed_floats(const struct lkvi_plan_params *p);
/* Floats that a projection of up to 64 rows needs. */
uint64_t lkvi_project_floats(uint32_t latent, uint32_t nope, uint32_t value);

/* Query heads that share keys. */
static inline uint32_t lkvi_plan_heads(const struct lkvi_plan_params *p)
{
    return p->num_heads / p->record.kv_heads;
}

/* A tile's row: [ L | R ], the latent being the value too, or [ L | L_v ] of LATENT_GQA. */
static inline uint32_t lkvi_row_floats(const struct lkvi_record *r)
{
    return r->latent_dim + (r->kind == LKV_KIND_MLA ? r->rope_dim : r->value_dim);
}

static inline uint32_t lkvi_row_value_at(const struct lkvi_record *r)
{
    return r->kind == LKV_KIND_MLA ? 0 : r->latent_dim;
}

/* LATENT_GQA never does: its latents are the smaller rows. */
static inline int lkvi_plan_decompresses(const struct lkvi_plan_params *p, uint32_t q_len)
{
    return p->record.kind == LKV_KIND_MLA && p->q_form == LKV_Q_HEAD &&
           p->out_form == LKV_OUT_HEAD && q_len >= p->absorb_threshold;
}

/* Query rows of sequence i. */
static inline uint32_t lkvi_batch_rows(const struct lkvi_batch_view *b, uint32_t i, uint64_t *first)
{
    *first = b->q_indptr ? (uint64_t)b->q_indptr[i] : i;
    return b->q_indptr ? (uint32_t)(b->q_indptr[i + 1] - b->q_indptr[i]) : 1;
}

#endif
