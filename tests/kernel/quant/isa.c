/* Every instruction set that this processor has gives the oracle's bytes and bits: encode, decode,
 * decode of arbitrary bytes, and each row operation, over every kind of row, format, option and
 * dimension. A plain program, so that it also runs where Criterion is missing; it says which
 * instruction sets it skipped. */
#include <stdio.h>
#include <stdlib.h>
#include "core/context.h"
#include "tests/kernel/quant/inputs.h"
#include "tests/support/compare.h"

enum { NUM_SEEDS = 6, MAX_RECORD = 2 * LKVI_MAX_LATENT + 2 * LKVI_MAX_ROPE };

static const char *const isa_names[] = {"auto", "scalar", "avx2", "avx512"};
static uint64_t failures, checks;

static void expect(int ok)
{
    checks++;
    failures += !ok;
    if (failures > 20) {
        fprintf(stderr, "more than 20 failures: stopping\n");
        exit(1);
    }
}

static void check_decode(const struct lkvi_codec *codec, const struct lkvi_row_ops *ops,
                         const struct lkvi_record *record, const struct ref_format *f,
                         const uint8_t *bytes, const char *label)
{
    static float latent[LKVI_MAX_LATENT], want[LKVI_MAX_LATENT];
    float rope[LKVI_MAX_ROPE], want_rope[LKVI_MAX_ROPE];
    codec->decode(record, bytes, latent);
    ops->rope_decode(bytes + record->rope_offset, f->rope, rope);
    ref_decode_f32(f, bytes, want, want_rope);
    expect(same_floats(label, latent, want, f->latent));
    expect(same_floats(label, rope, want_rope, f->rope));
}

static void check_record(uint32_t isa, struct option o, struct dims d, enum row_kind kind,
                         uint64_t seed)
{
    static float latent[LKVI_MAX_LATENT], row[LKVI_MAX_LATENT];
    static uint8_t found[MAX_RECORD], wanted[MAX_RECORD];
    float rope[LKVI_MAX_ROPE];
    const struct lkvi_codec *codec = lkvi_codec_get(o.format, isa);
    const struct lkvi_row_ops *ops = lkvi_row_ops_get(isa);
    struct ref_format f = ref_of(o, d);
    struct lkvi_record record;
    struct lkvi_repair repair = {0}, rope_repair = {0};
    char label[160];
    snprintf(label, sizeof label, "%s format %u flags %u dims %u+%u rows %d seed %llu",
             isa_names[isa], o.format, o.flags, d.latent, d.rope, kind, (unsigned long long)seed);
    if (record_of(o, d, &record) != LKV_OK || record.bytes != ref_layout(&f).bytes) {
        fprintf(stderr, "%s: layout\n", label);
        expect(0);
        return;
    }
    make_row(seed, kind, latent, d.latent);
    make_row(seed + 1000, kind, rope, d.rope);
    ref_encode(&f, latent, rope, wanted);
    memset(found, 0xA5, sizeof found);
    memcpy(row, latent, sizeof row);
    codec->encode(&record, FIXED_OUTER, row, found, &repair);
    ops->repair(rope, d.rope, d.rope ? d.rope : 1, &rope_repair);
    ops->rope_encode(rope, d.rope, found + record.rope_offset);
    memset(found + record.rope_offset + 2 * d.rope, 0, record.rope_bytes - 2 * d.rope);
    expect(same_bytes(label, found, wanted, record.bytes));
    expect(repair.count == ref_repair(latent, d.latent, lkvi_codec_group(&record)));
    check_decode(codec, ops, &record, &f, found, label);
    struct rng r = rng_seed(seed);
    for (uint32_t i = 0; i < record.bytes; i++)
        found[i] = (uint8_t)rng_next(&r);
    strcat(label, " arbitrary bytes");
    check_decode(codec, ops, &record, &f, found, label);
}

static void check_small_load_store(uint32_t isa, enum row_kind kind, uint64_t seed)
{
    const struct lkvi_row_ops *ops = lkvi_row_ops_get(isa), *scalar = lkvi_row_ops_get(1);
    static const uint32_t dtypes[3] = {LKV_DTYPE_F32, LKV_DTYPE_F16, LKV_DTYPE_BF16};
    float x[77], back[77], want[77];
    uint8_t found[4 * 77], wanted[4 * 77];
    make_row(seed, kind, x, 77);
    for (int t = 0; t < 3; t++)
        for (uint32_t n = 0; n <= 77; n += 7) {
            memset(found, 0, sizeof found);
            memset(wanted, 0, sizeof wanted);
            ops->store(x, n, dtypes[t], found);
            scalar->store(x, n, dtypes[t], wanted);
            expect(same_bytes("store", found, wanted, sizeof found));
            ops->load(wanted, dtypes[t], n, back);
            scalar->load(wanted, dtypes[t], n, want);
            expect(same_floats("load", back, want, n));
        }
}

static void check_row_ops(uint32_t isa, enum row_kind kind, uint64_t seed)
{
    static float x[LKVI_MAX_LATENT], a[LKVI_MAX_LATENT], b[LKVI_MAX_LATENT], w[LKVI_MAX_LATENT];
    const struct lkvi_row_ops *ops = lkvi_row_ops_get(isa);
    char label[96];
    for (uint32_t n = 16; n <= LKVI_MAX_LATENT; n *= 2) {
        snprintf(label, sizeof label, "%s n %u rows %d seed %llu", isa_names[isa], n, kind,
                 (unsigned long long)seed);
        make_row(seed, kind, x, n);
        make_row(seed + 1, ROW_NORMAL, w, n);
        memcpy(a, x, n * sizeof *a);
        memcpy(b, x, n * sizeof *b);
        ops->hadamard(a, n);
        ref_hadamard_f32(b, n);
        expect(same_floats(label, a, b, n));
        for (uint32_t m = n; m > n / 2; m -= (n + 63) / 64 * 16) {
            memcpy(a, x, m * sizeof *a);
            memcpy(b, x, m * sizeof *b);
            ops->rms_norm(a, m, w, 1e-6f);
            ref_rms_norm_f32(b, m, w, 1e-6f);
            expect(same_floats(label, a, b, m));
        }
    }
}

static void check_isa(uint32_t isa)
{
    for (uint64_t seed = 1; seed <= NUM_SEEDS; seed++)
        for (int kind = 0; kind < NUM_ROW_KINDS; kind++) {
            for (int o = 0; o < NUM_OPTIONS; o++)
                for (int d = 0; d < NUM_DIMS; d++)
                    check_record(isa, all_options[o], all_dims[d], kind, seed);
            check_row_ops(isa, kind, seed);
            check_small_load_store(isa, kind, seed);
        }
}

int main(void)
{
    uint32_t best = lkvi_cpu_isa();
    for (uint32_t isa = LKV_ISA_SCALAR; isa <= LKV_ISA_AVX512; isa++) {
        if (isa > best) {
            printf("%s: skipped, this processor lacks it\n", isa_names[isa]);
            continue;
        }
        uint64_t before = failures, done = checks;
        check_isa(isa);
        printf("%s: %llu checks, %llu failures\n", isa_names[isa],
               (unsigned long long)(checks - done), (unsigned long long)(failures - before));
    }
    return failures != 0;
}
