/* FP8 records on Hopper, whatever the number of rows: raw records in shared memory, and how they
 * become fp16 in registers. 656 bytes are 41 chunks of 16, an odd number: rows fall on different
 * banks without a swizzle.
 *
 * Operand of the scores [tokens x dims]: dim 128 b + 16 (2 c + m) + 4 i + 2 hi + e is position
 * 8 hi + 2 c + e of step 8 b + 4 m + i; rope dim 8 (2 c + m) + 4 i + 2 hi + e of step 2 m + i. */
#ifndef LKVI_ATTENTION_CUDA_SM90_FP8_CUH
#define LKVI_ATTENTION_CUDA_SM90_FP8_CUH

#include "attention/cuda/sm90/frame.cuh"

namespace lkvi
{

constexpr int kRecord = 656, kScaleOffset = 512, kRopeOffset = 528;
constexpr int kPiece = 16, kPieces = kTile / kPiece; /* tokens a warp fetches */
constexpr uint32_t kPieceBytes = kPiece * kRecord;
constexpr int kRelativeRow =
    kTile + 8; /* values; a pitch that keeps four rows on different banks */

struct fp8_pool {
    const uint8_t *base;
    uint64_t block_stride;
};

/* Piece of a tile to shared memory; one lane. Without a block nothing is copied. */
__device__ __forceinline__ void fetch_piece(const decode_args &a, const fp8_pool &pool,
                                            const feed &f, uint32_t to, uint32_t bar)
{
    const int block = feed_block(a, f);
    if (block < 0) {
        mbarrier_arrive(bar);
        feed_fault(a, f);
        return;
    }
    mbarrier_arrive_expect(bar, kPieceBytes);
    copy_bytes(to, pool.base + (uint64_t)block * pool.block_stride + (uint32_t)f.row * kRecord,
               kPieceBytes, bar);
}

/* Tokens of the warp's piece that are no keys: their bytes may be anything, and 0 x NaN is NaN. */
__device__ __forceinline__ void clear_tokens(uint8_t *piece, int keep, int lane)
{
    for (int i = max(keep, 0) * (kRecord / 16) + lane; i < kPiece * kRecord / 16; i += 32)
        *(uint4 *)(piece + 16 * i) = make_uint4(0, 0, 0, 0);
    fence_async_shared(); /* the next copy comes after */
    __syncwarp();
}

/* Two e4m3 in the lower or upper half of a word to two fp16, exactly. */
__device__ __forceinline__ uint32_t widen_low(uint32_t x)
{
    uint32_t d;
    asm("{\n.reg .b16 l,h;\nmov.b32 {l,h},%1;\ncvt.rn.f16x2.e4m3x2 %0,l;\n}" : "=r"(d) : "r"(x));
    return d;
}
__device__ __forceinline__ uint32_t widen_high(uint32_t x)
{
    uint32_t d;
    asm("{\n.reg .b16 l,h;\nmov.b32 {l,h},%1;\ncvt.rn.f16x2.e4m3x2 %0,h;\n}" : "=r"(d) : "r"(x));
    return d;
}

/* RoPE of the thread's two tokens as the operands of four steps. */
__device__ __forceinline__ void load_rope(const uint8_t *row, uint32_t (&k)[4][4], int c)
{
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int m = 0; m < 2; m++) {
            uint4 v = *(const uint4 *)(row + 8 * half * kRecord + kRopeOffset + 16 * (2 * c + m));
            k[2 * m][half] = v.x;
            k[2 * m][2 + half] = v.y;
            k[2 * m + 1][half] = v.z;
            k[2 * m + 1][2 + half] = v.w;
        }
}

/* The power of two at or below the token's largest scale, but never so small that RoPE over it
 * could overflow; leaves the scale of group c relative to it for P V. */
__device__ __forceinline__ float split_scale(float4 s, __half *to, int c)
{
    const float most = fmaxf(fmaxf(fabsf(s.x), fabsf(s.y)), fmaxf(fabsf(s.z), fabsf(s.w)));
    const uint32_t least = 37u << 23; /* 2^-90 */
    const uint32_t exponent = max(__float_as_uint(most) & 0x7F800000u, least);
    const float inverse = __uint_as_float(0x7F000000u - exponent);
    const float mine = c & 2 ? (c & 1 ? s.w : s.z) : (c & 1 ? s.y : s.x);
    *to = __float2half_rn(mine * inverse);
    return __uint_as_float(exponent);
}

/* Words x, y: four dims of token t and of t + 1. Out: for each dim the fp16 pair (t, t + 1) times
 * the two tokens' relative scales. */
__device__ __forceinline__ void widen(uint32_t x, uint32_t y, uint32_t scale, uint32_t &d0,
                                      uint32_t &d1, uint32_t &d2, uint32_t &d3)
{
    uint32_t low = prmt(x, y, 0x5140), high = prmt(x, y, 0x7362);
    d0 = half2_mul(widen_low(low), scale);
    d1 = half2_mul(widen_high(low), scale);
    d2 = half2_mul(widen_low(high), scale);
    d3 = half2_mul(widen_high(high), scale);
}

} // namespace lkvi
#endif
