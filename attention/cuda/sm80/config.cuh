/* Every number of the sm80 family: tile sizes, pitches, the shared memory of one CTA. One kernel
 * text serves all formats and heads; an instance is (format, padded latent, row tiles, warps). */
#ifndef LKVI_ATTENTION_CUDA_SM80_CONFIG_CUH
#define LKVI_ATTENTION_CUDA_SM80_CONFIG_CUH

#include <cstdint>
#include "attention/cuda/sm80/decode.h"

namespace lkvi
{
namespace sm80
{
constexpr int kTokens = LKVI_SM80_TILE_TOKENS; /* of one step */
constexpr int kRope = 64;                      /* padded rope dims */
constexpr int kPad = 8;                        /* elements: makes row pitches odd in 16 bytes */
constexpr int kScorePitch = kTokens + 4;       /* floats */
constexpr int kPPitch = kTokens + kPad;        /* halves */
constexpr int kRopePitch = 2 * kRope + kPad;   /* q rope: high and low parts */

template <uint32_t FORMAT, int LATENT, int ROW_TILES> struct Config {
    static constexpr uint32_t kFormat = FORMAT;
    static constexpr int kLatent = LATENT; /* padded latent dims */
    static constexpr int kRowTiles = ROW_TILES;
    static constexpr int kRows = 16 * ROW_TILES;
    static constexpr int kWarps = 8;
    static constexpr int kThreads = 32 * kWarps;
    static constexpr int kRowThreads = kThreads / kRows;     /* of one row in the softmax */
    static constexpr int kRowTokens = kTokens / kRowThreads; /* of one thread: 2 or 4 */
    static constexpr int kSteps = LATENT / 16 / kWarps;      /* QK steps of 16 dims a warp owns */
    static constexpr int kDims = LATENT / kWarps;            /* output dims a warp owns */
    static constexpr int kColumns = kDims / 8;               /* in MMA columns */
    static constexpr int kPitch = LATENT + kRope + kPad;
    static constexpr int kQPitch = LATENT + kPad;
    static constexpr bool kBf16 = FORMAT == LKV_FORMAT_BF16;
    static constexpr int kQParts = kBf16 ? 2 : 1;
    /* that registers must allow; shared memory holds one CTA of BF16 or of 32 rows */
    static constexpr int kCtasPerSm = kBf16 || ROW_TILES > 1 ? 1 : 2;
    static_assert(LATENT % (16 * kWarps) == 0, "each warp owns whole steps");
    static_assert((kPitch * 2 / 16) % 2 == 1 && (kQPitch * 2 / 16) % 2 == 1, "bank conflicts");
};

/* What a row of scores needs beside the tiles. */
struct RowState {
    float q_scale, q_sum;
    int limit; /* keys seen */
    float rescale;
    float top, sum, slope, shift; /* at the end: max (log2), sum p, sum p (s - max), zero part */
};

template <class C> struct Smem {
    alignas(16) uint16_t k[kTokens][C::kPitch];
    alignas(16) float scores[C::kWarps][C::kRows][kScorePitch];
    alignas(16) uint16_t p[C::kQParts][C::kRows][kPPitch];
    alignas(16) uint16_t q_rope[C::kRows][kRopePitch];
    float factor[kTokens], zero[kTokens], bias[kTokens];
    int present[2][kTokens];
    RowState rows[C::kRows];
    alignas(16) uint8_t raw[16]; /* two stages of records; before them, once, the latent q */
};

/* Pitch of a raw record: odd in 16 bytes. */
__host__ __device__ inline uint32_t raw_pitch(uint32_t record_bytes)
{
    return (record_bytes / 16) % 2 ? record_bytes : record_bytes + 16;
}

template <class C> __host__ __device__ inline uint32_t smem_bytes(uint32_t record_bytes)
{
    uint32_t raw = 2 * kTokens * raw_pitch(record_bytes);
    uint32_t q = C::kQParts * C::kRows * C::kQPitch * 2;
    return (uint32_t)sizeof(Smem<C>) + (raw > q ? raw : q);
}

} // namespace sm80
} // namespace lkvi
#endif
