/* The BF16 instances of the sm80 kernel (decode.cuh): padded latent 256 and 512, 16 and 32 rows. */
#include "attention/cuda/sm80/decode.cuh"

cudaError_t lkvi_sm80_decode_bf16(const struct lkvi_attend_params *p,
                                  const struct lkvi_sm80_shape *shape, cudaStream_t stream)
{
    return lkvi::sm80::launch_format<LKV_FORMAT_BF16>(p, shape, stream);
}

uint32_t lkvi_sm80_smem_bf16(const struct lkvi_sm80_shape *shape, uint32_t record_bytes)
{
    return lkvi::sm80::prepare_format<LKV_FORMAT_BF16>(shape, record_bytes);
}
