/* Records as a whole: append and gather with bad slots, non-finite rows, norm, rotation, RoPE and
 * threads; and the error that each format makes on normal latents (DESIGN 7). */
#include <criterion/criterion.h>
#include <stdlib.h>
#include "core/context.h"
#include "core/threads.h"
#include "quant/cpu/cpu.h"
#include "tests/kernel/quant/inputs.h"
#include "tests/support/compare.h"

enum { BLOCK = 16, BLOCKS = 5, SLOTS = BLOCK * BLOCKS, TOKENS = 40, L = 256, R = 32 };

struct world {
    struct lkv_context ctx;
    struct lkvi_fault_record faults;
    struct lkvi_append_params p;
    uint8_t memory[SLOTS * 1024];
    float latent[TOKENS * L], rope[TOKENS * R];
    int64_t slots[TOKENS];
};

static struct world *new_world(struct option o, uint32_t threads)
{
    struct world *w = calloc(1, sizeof *w);
    struct rng r = rng_seed(7);
    cr_assert(w && record_of(o, (struct dims){L, R}, &w->p.store.record) == LKV_OK);
    cr_assert_eq(lkvi_threads_create(threads, &w->ctx.threads), LKV_OK);
    w->ctx.isa = lkvi_cpu_isa();
    rng_fill_normal(&r, w->latent, TOKENS * L, 1.0);
    rng_fill_normal(&r, w->rope, TOKENS * R, 1.0);
    for (int t = 0; t < TOKENS; t++)
        w->slots[t] = BLOCK + (t * 7) % (SLOTS - BLOCK); /* 7 and 64 have no common factor */
    memset(w->memory, 0xA5, sizeof w->memory);
    w->p.store.tokens_per_block = BLOCK;
    w->p.store.first_block = 1;
    w->p.store.num_blocks = BLOCKS;
    w->p.store.block_stride = BLOCK * w->p.store.record.bytes;
    w->p.store.base = w->memory;
    w->p.store.faults = &w->faults;
    w->p.store.fixed_outer = (float)FIXED_OUTER;
    w->p.num_tokens = TOKENS;
    w->p.latent = (struct lkvi_rows){w->latent, L, LKV_DTYPE_F32, 0};
    w->p.rope = (struct lkvi_rows){w->rope, R, LKV_DTYPE_F32, 0};
    w->p.slots = w->slots;
    return w;
}

static void free_world(struct world *w)
{
    lkvi_threads_destroy(w->ctx.threads);
    free(w);
}

static const uint8_t *record_at(const struct world *w, int64_t slot)
{
    return w->memory + slot * w->p.store.record.bytes;
}

/* Records of all tokens are the oracle's; every other byte of memory is as it was. */
static void check_memory(const struct world *w, const struct ref_format *f)
{
    static uint8_t want[SLOTS * 1024];
    memset(want, 0xA5, sizeof want);
    for (int t = 0; t < TOKENS; t++)
        if (w->slots[t] >= BLOCK && w->slots[t] < SLOTS)
            ref_encode(f, w->latent + t * L, w->rope + t * R,
                       want + w->slots[t] * w->p.store.record.bytes);
    cr_assert(same_bytes("memory", w->memory, want, sizeof want));
}

Test(append, writes_its_slots_and_nothing_else)
{
    for (int o = 0; o < NUM_OPTIONS; o++)
        for (uint32_t threads = 1; threads <= 3; threads++) {
            struct world *w = new_world(all_options[o], threads);
            struct ref_format f = ref_of(all_options[o], (struct dims){L, R});
            cr_assert_eq(lkvi_cpu_append(&w->ctx, &w->p, NULL), LKV_OK);
            check_memory(w, &f);
            cr_assert_eq(w->faults.count, 0);
            free_world(w);
        }
}

Test(append, bad_slots_are_counted_and_good_rows_written)
{
    static const struct {
        int token;
        int64_t slot;
    } injected[] = {{3, -1},         {5, BLOCK - 1},   {9, 0},         {20, SLOTS},
                    {21, INT64_MAX}, {30, -INT64_MAX}, {39, SLOTS + 5}};
    for (uint32_t threads = 1; threads <= 3; threads++) {
        struct world *w = new_world((struct option){LKV_FORMAT_INT8, 0}, threads);
        struct ref_format f = ref_of((struct option){LKV_FORMAT_INT8, 0}, (struct dims){L, R});
        for (size_t i = 0; i < sizeof injected / sizeof *injected; i++)
            w->slots[injected[i].token] = injected[i].slot;
        w->p.checked = 1;
        cr_assert_eq(lkvi_cpu_append(&w->ctx, &w->p, NULL), LKV_E_INVALID);
        cr_assert(strstr(lkv_last_error(), "row 5"), "sentence: %s", lkv_last_error());
        check_memory(w, &f);
        cr_assert_eq(w->faults.count, 5);
        cr_assert_eq(w->faults.first_kind, LKV_FAULT_SLOT);
        cr_assert_eq(w->faults.first_token, 5);
        cr_assert_eq(w->faults.first_index, BLOCK - 1);
        w->p.checked = 0;
        cr_assert_eq(lkvi_cpu_append(&w->ctx, &w->p, NULL), LKV_OK);
        cr_assert_eq(w->faults.count, 10);
        free_world(w);
    }
}

Test(append, non_finite_values_are_repaired_and_counted)
{
    for (int o = 0; o < NUM_OPTIONS; o++) {
        struct world *w = new_world(all_options[o], 2);
        struct ref_format f = ref_of(all_options[o], (struct dims){L, R});
        w->latent[30 * L + 17] = NAN;
        w->latent[30 * L + 18] = INFINITY;
        w->rope[11 * R + 3] = -INFINITY;
        cr_assert_eq(lkvi_cpu_append(&w->ctx, &w->p, NULL), LKV_OK);
        check_memory(w, &f);
        cr_assert_eq(w->faults.count, 3);
        cr_assert_eq(w->faults.first_kind, LKV_FAULT_NON_FINITE);
        cr_assert_eq(w->faults.first_token, 11);
        cr_assert_eq(w->faults.first_index, L + 3);
        free_world(w);
    }
}

Test(append, norm_rotation_and_rope_are_the_oracles)
{
    static float weight[L], cos[64 * R / 2], sin[64 * R / 2];
    static int32_t positions[TOKENS];
    struct option o = {LKV_FORMAT_NVFP4, LKV_ENCODE_ROTATE};
    struct rng r = rng_seed(9);
    rng_fill_normal(&r, weight, L, 1.0);
    for (int i = 0; i < 64 * R / 2; i++) {
        cos[i] = cosf((float)i);
        sin[i] = sinf((float)i);
    }
    for (uint32_t style = LKV_ROPE_INTERLEAVED; style <= LKV_ROPE_HALF; style++) {
        struct world *w = new_world(o, 2);
        struct ref_format f = ref_of(o, (struct dims){L, R});
        for (int t = 0; t < TOKENS; t++)
            positions[t] = (t * 5) % 64;
        positions[13] = 64; /* one past the table: its row is not written */
        w->p.norm_weight = weight;
        w->p.norm_eps = 1e-6f;
        w->p.rope_cos = cos;
        w->p.rope_sin = sin;
        w->p.positions = positions;
        w->p.num_positions = 64;
        w->p.rope_style = style;
        cr_assert_eq(lkvi_cpu_append(&w->ctx, &w->p, NULL), LKV_OK);
        cr_assert_eq(w->faults.count, 1);
        cr_assert_eq(w->faults.first_kind, LKV_FAULT_LENGTH);
        cr_assert_eq(w->faults.first_index, 64);
        for (int t = 0; t < TOKENS; t++) {
            ref_rms_norm_f32(w->latent + t * L, L, weight, 1e-6f);
            ref_hadamard_f32(w->latent + t * L, L);
            if (t != 13)
                ref_rope_f32(w->rope + t * R, R, cos + positions[t] * R / 2,
                             sin + positions[t] * R / 2, style);
        }
        w->slots[13] = -1;
        check_memory(w, &f);
        free_world(w);
    }
}

Test(gather, gives_the_decoded_rows_and_zeros_for_bad_slots)
{
    static float latent[TOKENS * L], rope[TOKENS * R], want[L], want_rope[R];
    static const float zeros[L];
    for (int o = 0; o < NUM_OPTIONS; o++) {
        struct world *w = new_world(all_options[o], 2);
        struct ref_format f = ref_of(all_options[o], (struct dims){L, R});
        cr_assert_eq(lkvi_cpu_append(&w->ctx, &w->p, NULL), LKV_OK);
        w->slots[2] = -1;
        w->slots[3] = SLOTS;
        struct lkvi_gather_params g = {.store = w->p.store,
                                       .num_tokens = TOKENS,
                                       .slots = w->slots,
                                       .latent = {latent, L, LKV_DTYPE_F32, 0},
                                       .rope = {rope, R, LKV_DTYPE_F32, 0}};
        cr_assert_eq(lkvi_cpu_gather(&w->ctx, &g, NULL), LKV_OK);
        cr_assert_eq(w->faults.count, 1);
        for (int t = 0; t < TOKENS; t++) {
            int bad = t == 2 || t == 3;
            if (!bad)
                ref_decode_f32(&f, record_at(w, w->slots[t]), want, want_rope);
            cr_assert(same_floats("latent", latent + t * L, bad ? zeros : want, L));
            cr_assert(same_floats("rope", rope + t * R, bad ? zeros : want_rope, R));
        }
        free_world(w);
    }
}

/* rel-L2 on normal latents of 512 values. Upper ends: DESIGN 7 plus its 5 %; BF16: half an ulp of 8
 * bits over a uniform mantissa. Lower ends catch a codec that keeps more than its format can; FP8
 * comes out at 2.563 %, a hair below DESIGN's band. */
Test(records, error_on_normal_latents)
{
    static const struct {
        struct option option;
        double low, high;
    } bands[] = {
        {{LKV_FORMAT_BF16, 0}, 0.0, 0.0020},
        {{LKV_FORMAT_FP8, 0}, 0.025, 0.027 * 1.05},
        {{LKV_FORMAT_INT8, 0}, 0.0, 0.02},
        {{LKV_FORMAT_INT8, LKV_ENCODE_INT8_SYMMETRIC}, 0.0, 0.02},
        {{LKV_FORMAT_NVFP4, 0}, 0.095 * 0.95, 0.095 * 1.05},
    };
    struct dims d = {512, 0};
    for (size_t b = 0; b < sizeof bands / sizeof *bands; b++) {
        double error = 0, norm = 0;
        struct rng r = rng_seed(3);
        struct lkvi_record record;
        const struct lkvi_codec *codec = lkvi_codec_get(bands[b].option.format, LKV_ISA_SCALAR);
        cr_assert_eq(record_of(bands[b].option, d, &record), LKV_OK);
        for (int t = 0; t < 256; t++) {
            float x[512], back[512];
            uint8_t bytes[1024];
            struct lkvi_repair repair = {0};
            rng_fill_normal(&r, x, 512, 1.0);
            codec->encode(&record, 0.0f, x, bytes, &repair);
            codec->decode(&record, bytes, back);
            for (int i = 0; i < 512; i++) {
                error += ((double)x[i] - back[i]) * ((double)x[i] - back[i]);
                norm += (double)x[i] * x[i];
            }
        }
        double e = sqrt(error / norm);
        printf("format %u flags %u: rel-L2 %.5f\n", bands[b].option.format, bands[b].option.flags,
               e);
        cr_assert(e >= bands[b].low && e <= bands[b].high,
                  "format %u flags %u: rel-L2 %.5f, want %.5f..%.5f", bands[b].option.format,
                  bands[b].option.flags, e, bands[b].low, bands[b].high);
    }
}

/* scale 1 and zero 0 exactly (min -128, max 127): every float near every half is tried. */
Test(records, near_every_int8_boundary)
{
    struct option o = {LKV_FORMAT_INT8, 0};
    struct dims d = {16, 0};
    struct lkvi_record record;
    struct ref_format f = ref_of(o, d);
    cr_assert_eq(record_of(o, d, &record), LKV_OK);
    for (int k = -128; k < 127; k++)
        for (int u = -16; u <= 16; u++)
            for (uint32_t isa = LKV_ISA_SCALAR; isa <= lkvi_cpu_isa(); isa++) {
                float row[16] = {-128.0f, 127.0f}, x = (float)k + 0.5f;
                uint8_t found[64] = {0}, want[64];
                struct lkvi_repair repair = {0};
                uint32_t bits = float_bits(x) + (uint32_t)u;
                memcpy(&row[2], &bits, sizeof bits);
                ref_encode(&f, row, NULL, want);
                lkvi_codec_get(o.format, isa)->encode(&record, 0.0f, row, found, &repair);
                cr_assert(same_bytes("int8 boundary", found, want, record.bytes), "k %d u %d", k,
                          u);
                double q = rint(row[2]); /* the plain meaning, at scale 1 */
                cr_assert_eq((int8_t)found[2], (int)q, "%a became %d", row[2], (int8_t)found[2]);
            }
}
