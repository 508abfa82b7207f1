/* See world.h. */
#include "tests/gpu/world.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "quant/codec.h"
#include "tests/support/rng.h"

void label(char *text, size_t n, const struct world *w)
{
    const struct shape *s = &w->s;
    snprintf(text, n,
             "%s flags %u %u+%u H %u block %u q %u out %u bias %u plan %u seqs %u len %d "
             "rows %d shared %u seed %llu kernel %u",
             format_name(s->format), s->flags, s->latent, s->rope, s->heads, s->block, s->q_dtype,
             s->out_dtype, s->bias, s->plan_flags, s->num_seqs, s->lens[0], s->rows[0], s->shared,
             (unsigned long long)s->seed, w->plan.kernel_row);
}

/* Tokens that a sequence has in common with sequence 0: whole blocks. */
static int32_t shared_tokens(const struct shape *s, uint32_t seq)
{
    int32_t block = (int32_t)s->block, most = (int32_t)s->shared * block;
    int32_t common = s->lens[seq] < s->lens[0] ? s->lens[seq] : s->lens[0];
    common = common < most ? common : most;
    return seq == 0 ? 0 : common / block * block;
}

/* Records into blocks on the device; the last block's tail stays NaN. */
static void make_sequence(struct world *w, uint32_t seq, struct rng *r, const int32_t *ids)
{
    const struct lkvi_codec *codec = lkvi_codec_get(w->s.format, LKV_ISA_SCALAR);
    const struct lkvi_row_ops *ops = lkvi_row_ops_get(LKV_ISA_SCALAR);
    uint32_t L = w->s.latent, R = w->s.rope, bytes = w->record.bytes;
    uint8_t *block = malloc((uint64_t)w->s.block * bytes);
    int32_t len = w->s.lens[seq];
    w->latent[seq] = malloc(sizeof(float) * ((uint64_t)len * L + 1));
    w->ropes[seq] = malloc(sizeof(float) * ((uint64_t)len * R + 1));
    int32_t shared = shared_tokens(&w->s, seq);
    memcpy(w->latent[seq], w->latent[0], sizeof(float) * (uint64_t)shared * L);
    memcpy(w->ropes[seq], w->ropes[0], sizeof(float) * (uint64_t)shared * R);
    for (int32_t t = shared; t < len; t += (int32_t)w->s.block) {
        memset(block, 0xFF, (uint64_t)w->s.block * bytes);
        for (uint32_t j = 0; j < w->s.block && t + (int32_t)j < len; j++) {
            float row[1024], rope[64];
            double sigma = exp(0.4 * rng_normal(r)), mean = rng_below(r, 3) ? 0 : rng_normal(r);
            struct lkvi_repair repair = {0};
            uint8_t *record = block + j * bytes;
            memset(record, 0, bytes);
            for (uint32_t i = 0; i < L; i++)
                row[i] = (float)(sigma * rng_normal(r) + 0.3 * mean);
            for (uint32_t i = 0; i < R; i++)
                rope[i] = (float)rng_normal(r);
            codec->encode(&w->record, 0.02f, row, record, &repair);
            ops->rope_encode(rope, R, record + w->record.rope_offset);
            codec->decode(&w->record, record, w->latent[seq] + (uint64_t)(t + j) * L);
            ops->rope_decode(record + w->record.rope_offset, R,
                             w->ropes[seq] + (uint64_t)(t + j) * R);
        }
        must_cuda(cudaMemcpy(w->store.base + (uint64_t)ids[t / w->s.block] * w->store.block_stride,
                             block, (uint64_t)w->s.block * bytes, cudaMemcpyHostToDevice),
                  "block");
    }
    free(block);
}

static void make_pool(struct world *w, struct rng *r)
{
    uint32_t blocks = 0;
    w->width = 1;
    for (uint32_t i = 0; i < w->s.num_seqs; i++) {
        uint32_t n = (w->s.lens[i] + w->s.block - 1) / w->s.block;
        blocks += n;
        w->width = n > w->width ? n : w->width;
    }
    w->record = layout(w->s.format, w->s.flags, w->s.latent, w->s.rope);
    w->store = (struct lkvi_store){.record = w->record, .tokens_per_block = w->s.block};
    w->store.block_stride = (uint64_t)w->record.bytes * w->s.block + 32;
    w->store.num_blocks = w->s.first_id + blocks + 3;
    w->d_pool = to_device(NULL, w->store.num_blocks * w->store.block_stride);
    w->store.base = w->d_pool;
    int32_t *ids = malloc(sizeof *ids * (blocks + 1));
    for (uint32_t i = 0; i < blocks; i++)
        ids[i] = (int32_t)(w->s.first_id + i + 1);
    for (uint32_t i = blocks; i > 1; i--) {
        uint32_t j = (uint32_t)rng_below(r, i);
        int32_t t = ids[i - 1];
        ids[i - 1] = ids[j], ids[j] = t;
    }
    w->table = malloc(sizeof *w->table * w->s.num_seqs * w->width);
    memset(w->table, 0x7F, sizeof *w->table * w->s.num_seqs * w->width); /* never read */
    for (uint32_t i = 0, at = 0; i < w->s.num_seqs; i++) {
        uint32_t n = (w->s.lens[i] + w->s.block - 1) / w->s.block;
        int32_t *row = w->table + (uint64_t)i * w->width;
        memcpy(row, ids + at, sizeof *ids * n);
        memcpy(row, w->table, sizeof *ids * (shared_tokens(&w->s, i) / w->s.block));
        make_sequence(w, i, r, row);
        at += n;
    }
    free(ids);
}

/* Values in dtype precision on both sides. */
static void *rounded_copy(float *x, uint64_t n, uint32_t dtype)
{
    void *narrowed = malloc(n * dtype_size(dtype) + 1);
    narrow(x, n, dtype, narrowed);
    widen(narrowed, n, dtype, x);
    void *device = to_device(narrowed, n * dtype_size(dtype));
    free(narrowed);
    return device;
}

static void make_queries(struct world *w, struct rng *r)
{
    uint64_t rows;
    for (uint32_t i = 0; i < w->s.num_seqs; i++) {
        uint32_t len = w->s.lens[i] > 0 ? w->s.lens[i] : 0;
        w->indptr[i + 1] = w->indptr[i] + w->s.rows[i];
        w->max_rows = (uint32_t)w->s.rows[i] > w->max_rows ? (uint32_t)w->s.rows[i] : w->max_rows;
        w->max_len = len > w->max_len ? len : w->max_len;
    }
    w->num_tokens = w->indptr[w->s.num_seqs];
    rows = (uint64_t)w->num_tokens * w->s.heads;
    w->q = malloc(sizeof(float) * rows * w->s.latent);
    w->q_rope = malloc(sizeof(float) * (rows * w->s.rope + 1));
    rng_fill_normal(r, w->q, rows * w->s.latent, 0.6);
    rng_fill_normal(r, w->q_rope, rows * w->s.rope, 1.0);
    w->d_q = rounded_copy(w->q, rows * w->s.latent, w->s.q_dtype);
    w->d_q_rope = rounded_copy(w->q_rope, rows * w->s.rope, w->s.q_dtype);
    uint64_t biases = (uint64_t)w->s.num_seqs * (w->max_len + 8);
    w->bias = malloc(sizeof(float) * biases);
    rng_fill_normal(r, w->bias, biases, 1.0);
    for (uint64_t i = 0; i < biases; i += 11)
        w->bias[i] = -INFINITY;
    w->d_bias = to_device(w->bias, sizeof(float) * biases);
}

static void make_outputs(struct world *w)
{
    uint64_t rows = (uint64_t)w->num_tokens * w->s.heads;
    w->out_bytes = rows * w->s.latent * dtype_size(w->s.out_dtype);
    w->d_out = to_device(NULL, w->out_bytes);
    w->d_lse = to_device(NULL, rows * 4);
    w->d_entropy = to_device(NULL, rows * 4);
}

int plan_world(struct world *w, uint32_t flags)
{
    const struct shape *s = &w->s;
    struct lkvi_plan_params p = {.record = w->record, .tokens_per_block = s->block};
    p.num_heads = s->heads, p.max_seqs = s->num_seqs, p.max_tokens = w->num_tokens;
    p.max_q_len = w->max_rows, p.max_seq_len = w->max_len, p.max_blocks_per_seq = w->width;
    p.q_dtype = s->q_dtype, p.out_dtype = s->out_dtype, p.flags = s->plan_flags | flags;
    if (w->gpu->cuda->plan(w->gpu->state, &p) != LKV_OK)
        return 0;
    cudaFree(w->d_workspace);
    w->d_workspace = to_device(NULL, p.workspace_bytes);
    w->plan = p;
    struct lkvi_attend_params a = {.plan = p, .store = w->store, .scale = 0.08};
    a.batch = (struct lkvi_batch_view){w->d_table,    w->d_lens,   w->d_indptr, w->width,
                                       w->num_tokens, s->num_seqs, w->width};
    int64_t L = s->latent, R = s->rope, H = s->heads;
    a.q = (struct lkvi_heads){w->d_q, H * L, L, s->q_dtype, 0};
    a.q_rope = (struct lkvi_heads){R ? w->d_q_rope : NULL, H * R, R, s->q_dtype, 0};
    a.out = (struct lkvi_heads){w->d_out, H * L, L, s->out_dtype, 0};
    a.lse = w->d_lse, a.entropy = w->d_entropy;
    a.lse_stride = a.entropy_stride = H;
    a.bias = s->bias ? w->d_bias : NULL;
    a.bias_stride = w->max_len + 8;
    a.workspace = w->d_workspace, a.workspace_bytes = p.workspace_bytes;
    w->attend = a;
    return 1;
}

void open_world(struct world *w, const struct gpu *g, const struct shape *s)
{
    struct rng r = {s->seed};
    struct lkvi_fault_record none = {0};
    memset(w, 0, sizeof *w);
    w->gpu = g;
    w->s = *s;
    make_pool(w, &r);
    make_queries(w, &r);
    w->d_faults = to_device(&none, sizeof none);
    w->store.faults = w->d_faults;
    w->d_table = to_device(w->table, sizeof *w->table * s->num_seqs * w->width);
    w->d_lens = to_device(s->lens, sizeof *s->lens * s->num_seqs);
    w->d_indptr = to_device(w->indptr, sizeof *w->indptr * (s->num_seqs + 1));
    make_outputs(w);
}

void close_world(struct world *w)
{
    void *device[] = {w->d_pool,    w->d_table,  w->d_lens,   w->d_indptr,
                      w->d_q,       w->d_q_rope, w->d_out,    w->d_lse,
                      w->d_entropy, w->d_bias,   w->d_faults, w->d_workspace};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++)
        cudaFree(device[i]);
    for (uint32_t i = 0; i < w->s.num_seqs; i++)
        free(w->latent[i]), free(w->ropes[i]);
    free(w->q), free(w->q_rope), free(w->bias), free(w->table);
}
