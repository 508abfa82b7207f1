/* BF16 records: fp32 row to bf16 codes and back; also the rope section of every format. No scales.
 * The idea: nearest even, and a finite value stays finite. */
#include "quant/scalar.h"

static void encode(const struct lkvi_record *record, float fixed_outer, float *row, uint8_t *bytes,
                   struct lkvi_repair *repair)
{
    (void)fixed_outer;
    lkvi_repair(row, record->latent_dim, record->latent_dim, repair);
    lkvi_row_ops_scalar.rope_encode(row, record->latent_dim, bytes + record->codes_offset);
}

static void decode(const struct lkvi_record *record, const uint8_t *bytes, float *row)
{
    lkvi_row_ops_scalar.rope_decode(bytes + record->codes_offset, record->latent_dim, row);
}

const struct lkvi_codec lkvi_codec_bf16_scalar = {encode, decode};
