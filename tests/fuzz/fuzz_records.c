/* In: arbitrary bytes, read as format, options, dimensions and rows. Property: encode and decode
 * never read or write outside the record, every instruction set gives the oracle's bytes, decoded
 * values are finite and inside the format's error bound, and a second encode of decoded rows is
 * stable where the format promises it (BF16). Arbitrary record bytes decode the same everywhere. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include "core/context.h"
#include "tests/kernel/quant/inputs.h"
#include "tests/support/compare.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void must(int ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "property broken: %s\n", what);
    abort();
}

/* Half a step of the codes around x, plus fp32 noise; a fixed outer may saturate: no bound. */
static double bound(const struct ref_format *f, const uint8_t *record, const float *row, uint32_t i)
{
    struct ref_layout l = ref_layout(f);
    double amax = 0, x = fabs((double)row[i]);
    float scale;
    memcpy(&scale, record + l.scales + (f->format == 2 ? i / 128 * 4 : 0), sizeof scale);
    for (uint32_t k = 0; k < f->latent; k++)
        amax = fmax(amax, fabs((double)row[k]));
    if (f->format == 1) /* the last half step before overflow saturates: a whole one */
        return x * 0x1p-8 + 0x1p-134;
    if (f->format == 2)
        return scale == 0 ? 448 * (double)FLT_MIN : x / 16 + scale * 0x1p-10 * 1.01;
    if (f->format == 3)
        return 0.52 * (double)scale;
    return f->fixed_outer ? INFINITY : fmax(x / 3 + amax / 2688, 2688 * (double)FLT_MIN);
}

static void check_values(const struct ref_format *f, const uint8_t *record, const float *row,
                         const float *back)
{
    for (uint32_t i = 0; i < f->latent; i++) {
        must(isfinite(back[i]), "decoded values are finite");
        must(fabs((double)row[i] - back[i]) <= bound(f, record, row, i), "error bound");
    }
}

static void check_isa(uint32_t isa, struct option o, struct dims d, const float *latent,
                      const uint8_t *wanted)
{
    static float row[LKVI_MAX_LATENT], back[LKVI_MAX_LATENT];
    const struct lkvi_codec *codec = lkvi_codec_get(o.format, isa);
    struct ref_format f = ref_of(o, d);
    struct lkvi_record record;
    struct lkvi_repair repair = {0};
    must(record_of(o, d, &record) == LKV_OK, "layout");
    uint8_t *bytes = malloc(record.bytes); /* exactly as long: a sanitizer sees one byte too far */
    if (!bytes)
        exit(1);
    memcpy(row, latent, d.latent * sizeof *row);
    codec->encode(&record, (float)FIXED_OUTER, row, bytes, &repair);
    must(same_bytes("encode", bytes, wanted, record.rope_offset), "bytes of the oracle");
    codec->decode(&record, bytes, back);
    check_values(&f, bytes, row, back);
    if (o.format == LKV_FORMAT_BF16) {
        codec->encode(&record, 0.0f, back, bytes, &repair);
        must(same_bytes("again", bytes, wanted, record.rope_offset), "bf16 is stable");
    }
    free(bytes);
}

static void check_foreign(struct option o, struct dims d, const uint8_t *data, size_t bytes)
{
    static float want[LKVI_MAX_LATENT], found[LKVI_MAX_LATENT];
    float rope[LKVI_MAX_ROPE];
    struct ref_format f = ref_of(o, d);
    struct lkvi_record record;
    must(record_of(o, d, &record) == LKV_OK, "layout");
    uint8_t *copy = calloc(1, record.bytes);
    if (!copy)
        exit(1);
    memcpy(copy, data, bytes < record.bytes ? bytes : record.bytes);
    ref_decode_f32(&f, copy, want, rope);
    for (uint32_t isa = LKV_ISA_SCALAR; isa <= lkvi_cpu_isa(); isa++) {
        lkvi_codec_get(o.format, isa)->decode(&record, copy, found);
        must(same_floats("foreign", found, want, d.latent), "decode of arbitrary bytes");
    }
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static float latent[LKVI_MAX_LATENT];
    static uint8_t wanted[2 * LKVI_MAX_LATENT + 2 * LKVI_MAX_ROPE];
    if (bytes < 2)
        return 0;
    struct option o = all_options[data[0] % NUM_OPTIONS];
    struct dims d = {16 * (1 + data[1] % 32), 0};
    struct ref_format f = ref_of(o, d);
    data += 2;
    bytes -= 2;
    memset(latent, 0, sizeof latent);
    memcpy(latent, data, bytes < d.latent * 4 ? bytes : d.latent * 4);
    ref_encode(&f, latent, NULL, wanted);
    for (uint32_t isa = LKV_ISA_SCALAR; isa <= lkvi_cpu_isa(); isa++)
        check_isa(isa, o, d, latent, wanted);
    check_foreign(o, d, data, bytes);
    return 0;
}
