/* Edges of attend: lengths around a block, holes and bad ids in the table, rows that see nothing,
 * bias of -infinity, shared blocks, odd dims; and the promise that neither threads nor batch mates
 * change a bit. Outputs, workspaces, unused slots and table entries past the length are poisoned by
 * the world before every call. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include "tests/kernel/attention/world.h"
#include "tests/support/compare.h"

static const uint32_t formats[4] = {LKV_FORMAT_BF16, LKV_FORMAT_FP8, LKV_FORMAT_INT8,
                                    LKV_FORMAT_NVFP4};

/* A batch of several sequences in one call. */
struct batch {
    uint32_t num_seqs, heads;
    int32_t seq_lens[8], q_indptr[9];
    float *q, *q_rope;
    struct run run;
};

static void batch_make(struct batch *b, const struct world *w, uint32_t heads, uint32_t n,
                       const uint32_t *q_lens, uint32_t dtype, uint64_t seed)
{
    *b = (struct batch){.num_seqs = n, .heads = heads};
    for (uint32_t i = 0; i < n; i++) {
        b->seq_lens[i] = (int32_t)w->shape.tokens[i];
        b->q_indptr[i + 1] = b->q_indptr[i] + (int32_t)q_lens[i];
    }
    uint64_t rows = (uint64_t)b->q_indptr[n] * heads;
    b->q = random_rows(seed, rows * w->shape.latent, 1, dtype);
    b->q_rope = random_rows(seed + 1, rows * w->shape.rope, 1, dtype);
    b->run = (struct run){.num_seqs = n,
                          .seq_lens = b->seq_lens,
                          .q_indptr = b->q_indptr,
                          .heads = heads,
                          .q_dtype = dtype,
                          .out_dtype = LKV_DTYPE_F32,
                          .scale = 1 / sqrt(192),
                          .q = b->q,
                          .q_rope = b->q_rope};
}

static void batch_free(struct batch *b)
{
    free(b->q);
    free(b->q_rope);
}

static struct world_shape shape_of(uint32_t format, uint32_t isa, uint32_t n,
                                   const uint32_t *tokens, uint64_t seed)
{
    return (struct world_shape){.format = format,
                                .isa = isa,
                                .latent = 512,
                                .rope = 64,
                                .block = 64,
                                .num_seqs = n,
                                .tokens = tokens,
                                .seed = seed};
}

Test(attention, lengths_around_a_block)
{
    static const struct {
        uint32_t block, latent, rope, heads;
    } shapes[] = {{16, 256, 32, 5}, {32, 512, 0, 16}, {64, 512, 64, 17}, {128, 48, 10, 3}};
    uint32_t isas[3], num_isas = isas_present(isas);
    for (uint32_t s = 0; s < 4; s++)
        for (uint32_t i = 0; i < num_isas; i++)
            for (uint32_t f = 0; f < 4; f++) {
                uint32_t B = shapes[s].block, q_lens[8] = {1, 1, 2, 3, 1, 7, 1, 2};
                uint32_t tokens[8] = {1, B - 1, B, B + 1, 2 * B, 2 * B + 1, 3 * B - 1, 7};
                struct world_shape shape = shape_of(formats[f], isas[i], 8, tokens, 21 + s);
                shape.block = B;
                shape.latent = shapes[s].latent;
                shape.rope = shapes[s].rope;
                struct world w;
                struct batch b;
                struct output out;
                world_open(&w, &shape);
                batch_make(&b, &w, shapes[s].heads, 8, q_lens, LKV_DTYPE_F32, 31 + s);
                must(world_attend(&w, &b.run, &out), "attend");
                char label[96];
                snprintf(label, sizeof label, "seed %u block %u dims %u+%u %s %s", 31 + s, B,
                         shape.latent, shape.rope, format_name(shape.format), isa_name(isas[i]));
                cr_assert(world_check(&w, &b.run, &out, 1e-5, label));
                output_free(&out);
                batch_free(&b);
                world_close(&w);
            }
}

Test(attention, same_bits_for_every_run_and_thread_count)
{
    static const uint32_t tokens[4] = {1700, 64, 301, 1}, q_lens[4] = {1, 5, 90, 1};
    static const uint32_t threads[5] = {1, 1, 2, 3, 8};
    uint32_t isas[3], num_isas = isas_present(isas);
    for (uint32_t i = 0; i < num_isas; i++)
        for (uint32_t f = 0; f < 4; f++) {
            struct output first = {0};
            uint64_t rows = 97 * 20;
            for (uint32_t t = 0; t < 5; t++) {
                struct world_shape shape = shape_of(formats[f], isas[i], 4, tokens, 5);
                shape.threads = threads[t];
                struct world w;
                struct batch b;
                struct output out;
                world_open(&w, &shape);
                batch_make(&b, &w, 20, 4, q_lens, LKV_DTYPE_BF16, 6);
                must(world_attend(&w, &b.run, &out), "attend");
                char label[96];
                snprintf(label, sizeof label, "%s %s %u threads", format_name(shape.format),
                         isa_name(isas[i]), threads[t]);
                if (t) {
                    cr_assert(same_bytes(label, out.out, first.out, rows * 512 * 4));
                    cr_assert(same_bytes(label, out.lse, first.lse, rows * 4));
                    cr_assert(same_bytes(label, out.entropy, first.entropy, rows * 4));
                    output_free(&out);
                } else {
                    first = out;
                }
                batch_free(&b);
                world_close(&w);
            }
            output_free(&first);
        }
}

Test(attention, batch_mates_change_no_bit)
{
    static const uint32_t tokens[4] = {2100, 64, 301, 700}, q_lens[4] = {1, 5, 90, 2};
    uint32_t isas[3], num_isas = isas_present(isas);
    for (uint32_t i = 0; i < num_isas; i++) {
        struct world_shape shape = shape_of(LKV_FORMAT_INT8, isas[i], 4, tokens, 8);
        struct world w;
        struct batch b;
        struct output all;
        world_open(&w, &shape);
        batch_make(&b, &w, 16, 4, q_lens, LKV_DTYPE_F32, 9);
        b.run.plan_flags = LKV_PLAN_BATCH_INVARIANT;
        must(world_attend(&w, &b.run, &all), "attend");
        for (uint32_t s = 0; s < 4; s++) {
            struct run one = b.run;
            int32_t indptr[2] = {0, (int32_t)q_lens[s]};
            uint64_t at = (uint64_t)b.q_indptr[s] * 16, rows = (uint64_t)q_lens[s] * 16;
            struct output out;
            one.num_seqs = 1;
            one.seqs = &s;
            one.seq_lens = &b.seq_lens[s];
            one.q_indptr = indptr;
            one.q = b.q + at * 512;
            one.q_rope = b.q_rope + at * 64;
            must(world_attend(&w, &one, &out), "attend");
            cr_assert(same_bytes("alone", out.out, all.out + at * 512, rows * 512 * 4));
            cr_assert(same_bytes("alone, lse", out.lse, all.lse + at, rows * 4));
            cr_assert(same_bytes("alone, entropy", out.entropy, all.entropy + at, rows * 4));
            output_free(&out);
        }
        output_free(&all);
        batch_free(&b);
        world_close(&w);
    }
}

Test(attention, bias_shifts_scores_and_removes_keys)
{
    static const uint32_t tokens[3] = {200, 70, 600}, q_lens[3] = {3, 1, 2};
    uint32_t isas[3], num_isas = isas_present(isas);
    for (uint32_t i = 0; i < num_isas; i++) {
        struct world_shape shape = shape_of(LKV_FORMAT_INT8, isas[i], 3, tokens, 14);
        struct rng r = rng_seed(15);
        float bias[3 * 640];
        struct world w;
        struct batch b;
        struct output out;
        for (uint32_t k = 0; k < 3 * 640; k++)
            bias[k] = rng_below(&r, 4) ? (float)(2 * rng_normal(&r)) : -INFINITY;
        for (uint32_t k = 0; k < 640; k++)
            bias[640 + k] = -INFINITY; /* the second sequence sees nothing at all */
        world_open(&w, &shape);
        batch_make(&b, &w, 16, 3, q_lens, LKV_DTYPE_F32, 16);
        b.run.bias = bias;
        b.run.bias_width = 640;
        must(world_attend(&w, &b.run, &out), "attend");
        cr_assert(world_check(&w, &b.run, &out, 1e-5, isa_name(isas[i])));
        cr_assert(out.lse[3 * 16] == -INFINITY && out.entropy[3 * 16] == 0);
        output_free(&out);
        batch_free(&b);
        world_close(&w);
    }
}

static lkv_faults faults_of(const struct world *w)
{
    lkv_faults f = {.size = sizeof f};
    must(lkv_pool_faults(w->pool, 1, &f), "faults");
    return f;
}

/* -1 is a hole, an id past the pool is a counted fault; both leave their keys out. */
Test(attention, holes_and_bad_ids_are_left_out)
{
    static const uint32_t tokens[2] = {400, 300}, q_lens[2] = {2, 1};
    uint32_t isas[3], num_isas = isas_present(isas);
    for (uint32_t i = 0; i < num_isas; i++) {
        struct world_shape shape = shape_of(LKV_FORMAT_NVFP4, isas[i], 2, tokens, 24);
        struct world w;
        struct batch b;
        struct output out;
        float gone[2 * 512] = {0};
        world_open(&w, &shape);
        batch_make(&b, &w, 20, 2, q_lens, LKV_DTYPE_F32, 25);
        int32_t *table = malloc(2 * w.width * sizeof *table);
        memcpy(table, w.table, 2 * w.width * sizeof *table);
        table[1] = -1;
        table[w.width + 3] = (int32_t)w.num_blocks;
        for (uint32_t k = 0; k < 64; k++)
            gone[64 + k] = gone[512 + 192 + k] = -INFINITY;
        b.run.table = table;
        b.run.oracle_bias = gone;
        b.run.bias_width = 512;
        must(world_attend(&w, &b.run, &out), "attend");
        cr_assert(world_check(&w, &b.run, &out, 1e-5, isa_name(isas[i])));
        output_free(&out);
        lkv_faults f = faults_of(&w);
        cr_assert_eq(f.count, 1, "%llu faults, want 1", (unsigned long long)f.count);
        cr_assert_eq(f.first_kind, LKV_FAULT_BLOCK);
        cr_assert_eq(f.first_token, 2);
        cr_assert_eq(f.first_index, (int64_t)w.num_blocks);
        b.run.attend_flags = LKV_ATTEND_CHECKED;
        cr_assert_eq(world_attend(&w, &b.run, &out), LKV_E_INVALID);
        output_free(&out);
        free(table);
        batch_free(&b);
        world_close(&w);
    }
}

Test(attention, rows_that_see_nothing_are_zero)
{
    static const uint32_t tokens[4] = {100, 3, 65, 1}, q_lens[4] = {2, 4, 1, 1};
    uint32_t isas[3], num_isas = isas_present(isas);
    for (uint32_t i = 0; i < num_isas; i++)
        for (uint32_t form = LKV_OUT_LATENT; form <= LKV_OUT_HEAD; form++) {
            struct world_shape shape = shape_of(LKV_FORMAT_FP8, isas[i], 4, tokens, 34);
            struct world w;
            struct batch b;
            struct output out;
            world_open(&w, &shape);
            batch_make(&b, &w, 8, 4, q_lens, LKV_DTYPE_F32, 35);
            b.run.out_form = form;
            b.run.value = 24;
            b.run.nope = 8;
            random_weights(&w, &b.run, 36, 0.05);
            b.seq_lens[2] = 0; /* a padding row; sequence 1 has more rows than tokens */
            must(world_attend(&w, &b.run, &out), "attend");
            cr_assert(world_check(&w, &b.run, &out, 1e-5, isa_name(isas[i])));
            lkv_faults f = faults_of(&w);
            cr_assert_eq(f.count, 4, "%llu faults, want 4", (unsigned long long)f.count);
            cr_assert_eq(f.first_kind, LKV_FAULT_LENGTH);
            cr_assert_eq(f.first_token, 2);
            cr_assert_eq(f.first_index, 1);
            output_free(&out);
            free_weights(&b.run);
            batch_free(&b);
            world_close(&w);
        }
}

/* All sequences read one table: same blocks, other lengths. */
Test(attention, shared_blocks)
{
    static const uint32_t tokens[1] = {333};
    uint32_t isas[3], num_isas = isas_present(isas), zeros[4] = {0, 0, 0, 0};
    for (uint32_t i = 0; i < num_isas; i++) {
        struct world_shape shape = shape_of(LKV_FORMAT_INT8, isas[i], 1, tokens, 44);
        int32_t seq_lens[4] = {333, 64, 65, 1}, indptr[5] = {0, 1, 3, 4, 5};
        float *q = random_rows(45, 5 * 16 * 512, 1, LKV_DTYPE_F16);
        float *q_rope = random_rows(46, 5 * 16 * 64, 1, LKV_DTYPE_F16);
        struct run run = {.num_seqs = 4,
                          .seqs = zeros,
                          .seq_lens = seq_lens,
                          .q_indptr = indptr,
                          .heads = 16,
                          .q_dtype = LKV_DTYPE_F16,
                          .out_dtype = LKV_DTYPE_F16,
                          .scale = 0.1,
                          .q = q,
                          .q_rope = q_rope};
        struct world w;
        struct output out;
        world_open(&w, &shape);
        must(world_attend(&w, &run, &out), "attend");
        cr_assert(world_check(&w, &run, &out, 3e-3, isa_name(isas[i])));
        output_free(&out);
        world_close(&w);
        free(q);
        free(q_rope);
    }
}
