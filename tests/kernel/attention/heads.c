/* LATENT_GQA pools against their float64 twin: what append stores, and attend over lengths around a
 * block, ragged queries, groups of 1, 4 and 8 query heads, head dimensions of 64, 96 and 128 with
 * latents of all, half and a quarter of them, shared blocks, holes, skipped slots, bias. Outputs,
 * workspaces, unused slots and table entries past the length are poisoned before every call. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include "tests/kernel/attention/gqa.h"
#include "tests/support/compare.h"

static const uint32_t formats[4] = {LKV_FORMAT_BF16, LKV_FORMAT_FP8, LKV_FORMAT_INT8,
                                    LKV_FORMAT_NVFP4};
/* 96 / 4 is no multiple of 16: 32 there. */
static const struct {
    uint32_t dim, latent, value_latent, group;
} shapes[] = {{64, 64, 64, 1},  {64, 32, 32, 4}, {64, 16, 16, 8},    {96, 96, 96, 4},
              {96, 48, 48, 8},  {96, 32, 32, 1}, {128, 128, 128, 8}, {128, 64, 64, 1},
              {128, 32, 32, 4}, {128, 64, 32, 4}};
enum { NUM_SHAPES = sizeof shapes / sizeof *shapes };

static struct gqa_shape shape_of(uint32_t which, uint32_t format, uint32_t isa, uint32_t n,
                                 const uint32_t *tokens)
{
    return (struct gqa_shape){.format = format,
                              .isa = isa,
                              .threads = 2,
                              .kv_heads = 2,
                              .group = shapes[which].group,
                              .key_dim = shapes[which].dim,
                              .value_dim = shapes[which].dim,
                              .key_latent = shapes[which].latent,
                              .value_latent = shapes[which].value_latent,
                              .block = 16,
                              .num_seqs = n,
                              .tokens = tokens,
                              .seed = 11 + which};
}

struct batch {
    int32_t seq_lens[GQA_MAX_SEQS], q_indptr[GQA_MAX_SEQS + 1];
    float *q;
    struct gqa_run run;
};

static void batch_make(struct batch *b, const struct gqa *w, const uint32_t *q_lens, uint32_t dtype,
                       uint32_t latent)
{
    const struct gqa_shape *s = &w->shape;
    const uint32_t dim = latent ? s->key_latent : s->key_dim;
    *b = (struct batch){.q_indptr = {0}};
    for (uint32_t i = 0; i < s->num_seqs; i++) {
        b->seq_lens[i] = (int32_t)s->tokens[i];
        b->q_indptr[i + 1] = b->q_indptr[i] + (int32_t)q_lens[i];
    }
    uint64_t rows = (uint64_t)b->q_indptr[s->num_seqs] * s->kv_heads * s->group;
    b->q = random_rows(s->seed + 900, rows * dim, 2, dtype);
    b->run = (struct gqa_run){.num_seqs = s->num_seqs,
                              .seq_lens = b->seq_lens,
                              .q_indptr = b->q_indptr,
                              .q_form = latent ? LKV_Q_LATENT : LKV_Q_HEAD,
                              .out_form = latent ? LKV_OUT_LATENT : LKV_OUT_HEAD,
                              .q_dtype = dtype,
                              .out_dtype = dtype,
                              .q = b->q};
}

/* Attends, checks, and frees the batch. */
static int good_batch(const struct gqa *w, struct batch *b, const char *label)
{
    struct output out;
    must(gqa_attend(w, &b->run, &out), "attend");
    int good = gqa_check(w, &b->run, &out, label);
    output_free(&out);
    free(b->q);
    return good;
}

Test(heads, lengths_around_a_block)
{
    static const uint32_t tokens[6] = {0, 1, 15, 16, 17, 70}, q_lens[6] = {1, 1, 2, 1, 3, 40};
    uint32_t isas[3], num_isas = isas_present(isas);
    for (uint32_t i = 0; i < num_isas * 4 * NUM_SHAPES; i++) {
        struct gqa_shape shape = shape_of(i % NUM_SHAPES, formats[i / NUM_SHAPES % 4],
                                          isas[i / NUM_SHAPES / 4], 6, tokens);
        struct gqa w;
        struct batch b;
        gqa_open(&w, &shape);
        batch_make(&b, &w, q_lens, LKV_DTYPE_F32, 0);
        cr_assert(good_batch(&w, &b, "heads"));
        batch_make(&b, &w, q_lens, LKV_DTYPE_F32, 1);
        cr_assert(good_batch(&w, &b, "latents"));
        gqa_close(&w);
    }
}

/* Splits of a long context, whole waves, and types of two bytes. */
Test(heads, long_contexts)
{
    static const uint32_t tokens[3] = {2300, 700, 1500}, q_lens[3] = {1, 9, 1};
    static const uint32_t dtypes[3] = {LKV_DTYPE_F32, LKV_DTYPE_F16, LKV_DTYPE_BF16};
    uint32_t isas[3], num_isas = isas_present(isas);
    for (uint32_t i = 0; i < num_isas; i++)
        for (uint32_t d = 0; d < 3; d++) {
            struct gqa_shape shape = shape_of(8, formats[1 + d], isas[i], 3, tokens);
            struct gqa w;
            struct batch b;
            shape.block = 64;
            shape.kv_heads = 3;
            gqa_open(&w, &shape);
            batch_make(&b, &w, q_lens, dtypes[d], 0);
            cr_assert(good_batch(&w, &b, "long"));
            gqa_close(&w);
        }
}

/* The key and value of each head lie where lkv_block_query says, in the bytes that a pool of single
 * latents has for them. */
static void same_as_single(const struct gqa *w, uint32_t is_value)
{
    const struct gqa_shape *s = &w->shape;
    const uint32_t latent = is_value ? s->value_latent : s->key_latent, n = s->tokens[0];
    lkv_pool_desc desc = {.size = sizeof desc}, single;
    lkv_pool *pool;
    lkv_block_info info = {.size = sizeof info};
    lkv_pool_layout heads = {.size = sizeof heads}, flat = {.size = sizeof flat};
    must(lkv_pool_describe(w->pool, &desc), "describe");
    must(lkv_block_query(&desc, &info), "query");
    must(lkv_pool_layer(w->pool, 0, &heads), "layer");
    single = desc;
    single.kind = LKV_KIND_MLA;
    single.num_kv_heads = single.value_latent_dim = 0;
    single.block_stride_bytes = single.layer_stride_bytes = 0;
    single.latent_dim = latent;
    must(lkv_pool_create(w->ctx, &single, &pool), "pool");
    must(lkv_pool_layer(pool, 0, &flat), "layer");
    int64_t *slots = malloc(n * sizeof *slots);
    for (uint32_t t = 0; t < n; t++)
        slots[t] = t;
    for (uint32_t g = 0; g < s->kv_heads; g++) {
        lkv_tensor row = gqa_tensor(is_value ? w->value_latents[0] : w->key_latents[0],
                                    LKV_DTYPE_F32, n, s->kv_heads, latent);
        row.data = (float *)row.data + (uint64_t)g * latent;
        row.ndim = 2;
        row.shape[1] = latent;
        row.stride[1] = 1;
        row.shape[2] = row.stride[2] = 0;
        lkv_append_args append = {.size = sizeof append, .latent = &row, .slots = slots};
        must(lkv_append(pool, &append, NULL), "append");
        for (uint32_t t = 0; t < n; t++) {
            const uint64_t slot = (uint64_t)gqa_slot(w, 0, t), at = g * info.head_bytes;
            const uint8_t *found =
                (uint8_t *)heads.base + slot / s->block * heads.block_stride_bytes +
                slot % s->block * heads.record_bytes + at + (is_value ? info.value_offset : 0);
            const uint8_t *want = (uint8_t *)flat.base + t / s->block * flat.block_stride_bytes +
                                  t % s->block * flat.record_bytes;
            cr_assert(same_bytes(format_name(s->format), found, want, flat.record_bytes));
        }
    }
    free(slots);
    lkv_pool_release(pool);
}

/* Latents that are given, not projected: appended again, they are stored as an MLA pool would. */
Test(heads, records_are_those_of_single_latents)
{
    static const uint32_t tokens[1] = {37};
    uint32_t isas[3], num_isas = isas_present(isas);
    for (uint32_t i = 0; i < num_isas * 4; i++) {
        struct gqa_shape shape = shape_of(9, formats[i % 4], isas[i / 4], 1, tokens);
        struct gqa w;
        gqa_open(&w, &shape);
        int64_t slots[37];
        for (uint32_t t = 0; t < 37; t++)
            slots[t] = gqa_slot(&w, 0, t);
        lkv_tensor key =
            gqa_tensor(w.key_latents[0], LKV_DTYPE_F32, 37, shape.kv_heads, shape.key_latent);
        lkv_tensor value =
            gqa_tensor(w.value_latents[0], LKV_DTYPE_F32, 37, shape.kv_heads, shape.value_latent);
        lkv_append_args append = {
            .size = sizeof append, .latent = &key, .value = &value, .slots = slots};
        must(lkv_append(w.pool, &append, NULL), "append");
        same_as_single(&w, 0);
        same_as_single(&w, 1);
        gqa_close(&w);
    }
}

/* rel-L2 over a whole sequence of stored latents against the exact ones. */
static double stored_error(const struct gqa *w, uint32_t is_value)
{
    const struct gqa_shape *s = &w->shape;
    const uint32_t latent = is_value ? s->value_latent : s->key_latent;
    double error = 0, norm = 0, want[128];
    for (uint64_t i = 0; i < (uint64_t)s->tokens[0] * s->kv_heads; i++) {
        const uint32_t g = (uint32_t)(i % s->kv_heads);
        const float *found = (is_value ? w->value_latents : w->key_latents)[0] + i * latent;
        if (is_value)
            ref_value_latent(&w->projector, g, w->values[0] + i * s->value_dim, want);
        else
            ref_key_latent(&w->projector, g, w->keys[0] + i * s->key_dim, want);
        for (uint32_t k = 0; k < latent; k++) {
            error += (found[k] - want[k]) * (found[k] - want[k]);
            norm += want[k] * want[k];
        }
    }
    return sqrt(error / norm);
}

/* Projection on write, plain and rotated: the error is the format's and no more. */
Test(heads, append_projects)
{
    static const uint32_t tokens[1] = {300};
    static const double bounds[4] = {0.002, 0.028, 0.02, 0.1}; /* as of single latents */
    uint32_t isas[3], num_isas = isas_present(isas);
    for (uint32_t i = 0; i < num_isas * 8; i++)
        for (uint32_t is_value = 0; is_value < 2; is_value++) {
            struct gqa_shape shape = shape_of(9, formats[i % 4], isas[i / 8], 1, tokens);
            struct gqa w;
            shape.encode_flags = i / 4 % 2 ? LKV_ENCODE_ROTATE : 0;
            gqa_open(&w, &shape);
            double error = stored_error(&w, is_value);
            cr_assert_leq(error, bounds[i % 4], "format %u, flags %u: %g", shape.format,
                          shape.encode_flags, error);
            gqa_close(&w);
        }
}

Test(heads, rotated_pools)
{
    static const uint32_t tokens[3] = {1, 33, 150}, q_lens[3] = {1, 2, 20};
    uint32_t isas[3], num_isas = isas_present(isas);
    for (uint32_t i = 0; i < num_isas * 4; i++) {
        struct gqa_shape shape = shape_of(9, formats[i % 4], isas[i / 4], 3, tokens);
        struct gqa w;
        struct batch b;
        shape.encode_flags = LKV_ENCODE_ROTATE;
        gqa_open(&w, &shape);
        batch_make(&b, &w, q_lens, LKV_DTYPE_F32, 0);
        cr_assert(good_batch(&w, &b, "rotated"));
        gqa_close(&w);
    }
}

Test(heads, bias_shifts_scores_and_removes_keys)
{
    static const uint32_t tokens[3] = {200, 70, 600}, q_lens[3] = {3, 1, 2};
    uint32_t isas[3], num_isas = isas_present(isas);
    for (uint32_t i = 0; i < num_isas; i++) {
        struct gqa_shape shape = shape_of(1, LKV_FORMAT_INT8, isas[i], 3, tokens);
        struct rng r = rng_seed(15);
        static float bias[3 * 640];
        struct gqa w;
        struct batch b;
        for (uint32_t k = 0; k < 3 * 640; k++)
            bias[k] = rng_below(&r, 4) ? (float)(2 * rng_normal(&r)) : -INFINITY;
        for (uint32_t k = 0; k < 640; k++)
            bias[640 + k] = -INFINITY; /* the second sequence sees nothing at all */
        gqa_open(&w, &shape);
        batch_make(&b, &w, q_lens, LKV_DTYPE_F32, 0);
        b.run.bias = bias;
        b.run.bias_width = 640;
        cr_assert(good_batch(&w, &b, "bias"));
        gqa_close(&w);
    }
}

static lkv_faults faults_of(const struct gqa *w)
{
    lkv_faults f = {.size = sizeof f};
    must(lkv_pool_faults(w->pool, 1, &f), "faults");
    return f;
}

/* -1 is a hole, an id past the pool a counted fault, for each sequence once; rows beyond the
 * length see nothing. */
Test(heads, holes_bad_ids_and_rows_without_keys)
{
    static const uint32_t tokens[3] = {100, 75, 3}, q_lens[3] = {2, 1, 4};
    uint32_t isas[3], num_isas = isas_present(isas);
    for (uint32_t i = 0; i < num_isas; i++) {
        struct gqa_shape shape = shape_of(4, LKV_FORMAT_NVFP4, isas[i], 3, tokens);
        struct gqa w;
        struct batch b;
        float gone[3 * 128] = {0};
        gqa_open(&w, &shape);
        batch_make(&b, &w, q_lens, LKV_DTYPE_F32, 0);
        int32_t *table = malloc(3 * w.width * sizeof *table);
        for (uint32_t k = 0; k < 3 * w.width; k++)
            table[k] = w.table[k];
        table[1] = -1;
        table[w.width + 3] = (int32_t)w.num_blocks;
        for (uint32_t k = 0; k < 16; k++)
            gone[16 + k] = gone[128 + 48 + k] = -INFINITY;
        b.run.table = table;
        b.run.oracle_bias = gone;
        b.run.bias_width = 128;
        cr_assert(good_batch(&w, &b, "holes"));
        lkv_faults f = faults_of(&w);
        cr_assert_eq(f.count, 5, "%llu faults, want 5", (unsigned long long)f.count);
        cr_assert_eq(f.first_kind, LKV_FAULT_BLOCK);
        cr_assert_eq(f.first_token, 2);
        cr_assert_eq(f.first_index, (int64_t)w.num_blocks);
        free(table);
        gqa_close(&w);
    }
}

/* All sequences read one table: same blocks, other lengths. */
Test(heads, shared_blocks)
{
    static const uint32_t tokens[4] = {133, 1, 1, 1}, q_lens[4] = {1, 2, 1, 1};
    static const uint32_t zeros[4] = {0, 0, 0, 0};
    uint32_t isas[3], num_isas = isas_present(isas);
    for (uint32_t i = 0; i < num_isas; i++) {
        struct gqa_shape shape = shape_of(6, LKV_FORMAT_FP8, isas[i], 4, tokens);
        struct gqa w;
        struct batch b;
        gqa_open(&w, &shape);
        batch_make(&b, &w, q_lens, LKV_DTYPE_F16, 0);
        b.run.seqs = zeros;
        b.seq_lens[1] = 64;
        b.seq_lens[2] = 65;
        cr_assert(good_batch(&w, &b, "shared"));
        gqa_close(&w);
    }
}

/* Slot -1 is skipped, one out of range a fault, a value that is not finite is repaired where it was
 * given; a token's bytes do not depend on the tokens beside it. */
Test(heads, slots_and_faults_of_append)
{
    enum { N = 21 };
    static const uint32_t tokens[1] = {N};
    uint32_t isas[3], num_isas = isas_present(isas);
    for (uint32_t i = 0; i < num_isas; i++) {
        struct gqa_shape shape = shape_of(2, LKV_FORMAT_INT8, isas[i], 1, tokens);
        struct gqa w;
        int64_t slots[N];
        lkv_pool_layout at = {.size = sizeof at};
        gqa_open(&w, &shape);
        must(lkv_pool_layer(w.pool, 0, &at), "layer");
        const uint64_t bytes = at.block_stride_bytes * at.memory_blocks;
        uint8_t *before = malloc(bytes);
        memcpy(before, at.base, bytes);
        for (uint32_t t = 0; t < N; t++)
            slots[t] = t % 3 ? gqa_slot(&w, 0, t) : -1;
        lkv_tensor key = gqa_tensor(w.keys[0], LKV_DTYPE_F32, N, 2, shape.key_dim);
        lkv_tensor value = gqa_tensor(w.values[0], LKV_DTYPE_F32, N, 2, shape.value_dim);
        lkv_append_args append = {.size = sizeof append,
                                  .latent = &key,
                                  .value = &value,
                                  .weights = w.weights,
                                  .slots = slots,
                                  .flags = LKV_APPEND_CHECKED};
        must(lkv_append(w.pool, &append, NULL), "append");
        cr_assert(same_bytes("a part of the tokens again", at.base, before, bytes));
        slots[5] = (int64_t)(w.num_blocks * shape.block);
        w.values[0][(7 * 2 + 1) * shape.value_dim + 9] = NAN;
        cr_assert_eq(lkv_append(w.pool, &append, NULL), LKV_E_INVALID);
        lkv_faults f = faults_of(&w);
        cr_assert_eq(f.count, 2);
        cr_assert_eq(f.first_kind, LKV_FAULT_SLOT);
        cr_assert_eq(f.first_token, 5);
        slots[5] = -1;
        cr_assert_eq(lkv_append(w.pool, &append, NULL), LKV_E_INVALID);
        f = faults_of(&w);
        cr_assert(f.count == 1 && f.first_kind == LKV_FAULT_NON_FINITE && f.first_token == 7);
        cr_assert_eq(f.first_index, 2 * shape.key_dim + shape.value_dim + 9, "element %lld",
                     (long long)f.first_index);
        w.values[0][(7 * 2 + 1) * shape.value_dim + 9] = 0;
        memcpy(before, at.base, bytes);
        must(lkv_append(w.pool, &append, NULL), "append"); /* NaN counted as 0 */
        cr_assert(same_bytes("NaN as 0", at.base, before, bytes));
        free(before);
        gqa_close(&w);
    }
}

/* Projection, attention and expansion as three calls: what attend does in one. */
Test(heads, project_alone)
{
    static const uint32_t tokens[2] = {50, 9}, q_lens[2] = {30, 2};
    uint32_t isas[3], num_isas = isas_present(isas);
    for (uint32_t i = 0; i < num_isas; i++) {
        struct gqa_shape shape = shape_of(9, LKV_FORMAT_BF16, isas[i], 2, tokens);
        const uint32_t H = shape.kv_heads * shape.group, T = 32;
        struct gqa w;
        struct batch b;
        struct output apart, whole;
        size_t bytes;
        gqa_open(&w, &shape);
        batch_make(&b, &w, q_lens, LKV_DTYPE_F32, 0);
        must(gqa_attend(&w, &b.run, &whole), "attend");
        must(lkv_project_workspace(w.weights, T, &bytes), "workspace");
        void *workspace = aligned_alloc(256, (bytes | 255) + 1);
        float *latent = malloc((size_t)T * H * shape.key_latent * sizeof *latent);
        lkv_tensor q = gqa_tensor(b.q, LKV_DTYPE_F32, T, H, shape.key_dim);
        lkv_tensor q_latent = gqa_tensor(latent, LKV_DTYPE_F32, T, H, shape.key_latent);
        must(lkv_project_q(w.weights, &q, &q_latent, workspace, bytes, NULL), "project q");
        b.run.q = latent;
        b.run.q_form = LKV_Q_LATENT;
        b.run.out_form = LKV_OUT_LATENT;
        must(gqa_attend(&w, &b.run, &apart), "attend");
        float *found = malloc((size_t)T * H * shape.value_dim * sizeof *found);
        lkv_tensor o = gqa_tensor(apart.out, LKV_DTYPE_F32, T, H, shape.value_latent);
        lkv_tensor out = gqa_tensor(found, LKV_DTYPE_F32, T, H, shape.value_dim);
        must(lkv_project_out(w.weights, &o, &out, workspace, bytes, NULL), "project out");
        for (uint64_t row = 0; row < (uint64_t)T * H; row++) {
            double want[128];
            for (uint32_t k = 0; k < shape.value_dim; k++)
                want[k] = whole.out[row * shape.value_dim + k];
            cr_assert(close_l2("three calls", found + row * shape.value_dim, want, shape.value_dim,
                               1e-5));
        }
        output_free(&apart);
        output_free(&whole);
        free(workspace);
        free(latent);
        free(found);
        free(b.q);
        gqa_close(&w);
    }
}

/* Neither threads nor batch mates change a bit. */
Test(heads, threads_and_batch_mates_change_no_bit)
{
    static const uint32_t tokens[2] = {1500, 90}, q_lens[2] = {2, 5};
    uint32_t isas[3], num_isas = isas_present(isas);
    for (uint32_t i = 0; i < num_isas; i++) {
        struct output outs[2];
        uint64_t alone = 0, rows = 0;
        for (uint32_t n = 1; n <= 2; n++) {
            struct gqa_shape shape = shape_of(8, LKV_FORMAT_INT8, isas[i], n, tokens);
            struct gqa w;
            struct batch b;
            shape.threads = n;
            gqa_open(&w, &shape);
            batch_make(&b, &w, q_lens, LKV_DTYPE_F32, 0);
            must(gqa_attend(&w, &b.run, &outs[n - 1]), "attend");
            rows = 2 * (uint64_t)shape.kv_heads * shape.group;
            alone = rows * outs[0].dim;
            free(b.q);
            gqa_close(&w);
        }
        cr_assert(same_bytes("out", outs[1].out, outs[0].out, alone * 4));
        cr_assert(same_bytes("lse", outs[1].lse, outs[0].lse, rows * 4));
        cr_assert(same_bytes("entropy", outs[1].entropy, outs[0].entropy, rows * 4));
        output_free(&outs[0]);
        output_free(&outs[1]);
    }
}
