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

static double float_at(const uint8_t *bytes)
{
    float x;
    memcpy(&x, bytes, sizeof x);
    return x;
}

/* Half a step of the codes around x. NVFP4: x / 5 between codes, x / 3 where a subnormal group
 * scale was rounded down and 6 saturates, a quarter of the group's scale below half of it; a fixed
 * outer may saturate: no bound. */
static double bound(const struct ref_format *f, const uint8_t *record, float value, uint32_t i)
{
    const uint8_t *scales = record + ref_layout(f).scales;
    double x = fabs((double)value);
    if (f->format == 1)
        return x * 0x1p-8 + 0x1p-134;
    if (f->format == 2) {
        double s = float_at(scales + i / 128 * 4);
        return s == 0 ? 448 * (double)FLT_MIN : x / 16 * 1.001 + s * 0x1p-10 * 1.001;
    }
    if (f->format == 3)
        return 0.52 * float_at(scales);
    uint32_t groups = (f->latent / 16 + 15) / 16 * 16;
    double outer = float_at(scales + groups + 4), s = ref_e4m3(scales[i / 16]) * outer;
    if (f->fixed_outer)
        return INFINITY;
    return outer == 0 ? 2688 * (double)FLT_MIN : x / 3 + 0.26 * s + outer * 0.006;
}

static void check_values(const struct ref_format *f, const uint8_t *record, const float *row,
                         const float *back)
{
    for (uint32_t i = 0; i < f->latent; i++) {
        must(isfinite(back[i]), "decoded values are finite");
        must(fabs((double)row[i] - back[i]) <= bound(f, record, row[i], i), "error bound");
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
