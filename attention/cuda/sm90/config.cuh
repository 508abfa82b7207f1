/* Every number of the Hopper decode kernels of 16 rows, and their shared memory. */
#ifndef LKVI_ATTENTION_CUDA_SM90_CONFIG_CUH
#define LKVI_ATTENTION_CUDA_SM90_CONFIG_CUH

#include <cuda_fp16.h>
#include "attention/cuda/common/split.h"

namespace lkvi
{

constexpr int kLatent = 512, kRope = 64;
constexpr int kRows = 16;     /* (token, head) rows a CTA: the N of every product */
constexpr int kWideRows = 64; /* of the wide kernel's CTA */
constexpr int kTile = 64;     /* KV tokens a step: the M of the score product */
constexpr int kThreads = 128; /* one warpgroup */
constexpr int kCtasPerSm = 2;
constexpr int kRowTilesMax = 8; /* CTAs that read the same range, one behind the other's L2 lines */
constexpr int kBox = 128;       /* bytes of a swizzled row */
constexpr int kBoxBytes = kTile * kBox;
constexpr int kSmemPerSm = 233472, kSmemReserved = 1024;
/* Where a CTA's dynamic shared memory starts: behind the system's own. As a constant it makes
 * constants of the operands' descriptors, a third of the instructions beside the products; a kernel
 * stops at once where it is not so (check_smem_base). */
constexpr uint32_t kSmemBase = kSmemReserved;

/* Scores are kept in log2 units. A hidden key has kHidden; a running maximum starts above it, so
 * that 2^(kHidden - max) is 0 without a test, and below every real score. */
constexpr float kHidden = -1e30f, kMaxStart = -1e20f;
/* A score may pass the running maximum by this much (log2) before the slow path runs; P is then
 * at most 2^kSlack * kScaleLimit = 32,768 < 65,504 in fp16. */
constexpr float kSlack = 8.f;
/* P carries token scale * reference, with the reference a power of two that puts the largest scale
 * seen into (32, 64]; the slow path runs when a scale passes the limit. */
constexpr float kScaleLimit = 128.f;
constexpr int kScaleExponent = 6;
constexpr float kLog2e = 1.4426950408889634f;

static_assert(kTile == LKVI_TILE_TOKENS, "the split counts tiles of the kernels");
static_assert(kLatent == LKVI_PARTIAL_FLOATS, "a partial row is one latent");
static_assert(256.f * kScaleLimit < 65504.f, "P overflows fp16");

/* What every format has beside its stage buffers. */
struct row_state {
    float scale[kRows];                    /* of q, softmax scale and log2(e) in it */
    float q_sum[kRows];                    /* of the integers of q (INT8) */
    int limit[kRows];                      /* keys the row sees */
    alignas(16) float reduce[4][4][kRows]; /* cross-warp: [what][warp][row] or [what][row][warp] */
    float reduce_scale[4];
    uint32_t hidden[2]; /* of a stage: bit i, the i-th 16 tokens have no block */
    uint64_t full[8];
};

struct alignas(1024) int8_smem {
    uint8_t latent[2][4][kBoxBytes]; /* raw int8, 128 dims a box */
    uint8_t rope[2][kBoxBytes];
    uint8_t q[4][32 * kBox]; /* 128 dims: rows 0-15 high bytes, 16-31 low bytes */
    uint8_t q_rope[kRows * kBox];
    uint8_t p[2][kRows * kBox];
    float4 scale_zero[2][kTile];
    row_state rows;
};
static_assert(sizeof(int8_smem) <= kSmemPerSm / kCtasPerSm - kSmemReserved, "two CTAs an SM");

constexpr int kScaleRow = 48; /* bytes of an NVFP4 record's scales */

struct alignas(1024) nvfp4_smem {
    uint8_t tile[8][kBoxBytes];   /* fp16, 64 k-positions a box: [token][position] */
    uint8_t latent[2][kBoxBytes]; /* raw, 256 dims a box; 16 tokens of it belong to each warp */
    uint8_t rope[kBoxBytes];
    uint8_t q[8][kRows * kBox];
    uint8_t q_rope[kRows * kBox];
    uint8_t p[kRows * kBox];
    uint8_t scales[kTile * kScaleRow];
    uint64_t full[4]; /* of each warp's raw tokens */
    row_state rows;
};
static_assert(sizeof(nvfp4_smem) <= kSmemPerSm / kCtasPerSm - kSmemReserved, "two CTAs an SM");

} // namespace lkvi
#endif
