/* INT8, 64 rows a CTA: what int8_h64.cu's roles share, and the roles that bring data. In: a CTA's
 * ranges of keys, q. Out, in shared memory: raw records as the tensor copies lay them, scales and
 * zero points in the order of the scorer's threads, q as two int8. The one idea: the bytes are not
 * touched between memory and the products. */
#pragma once
#include "attention/cuda/sm90/frame.cuh"
#include "attention/cuda/sm90/wgmma_wide.cuh"

namespace lkvi
{
constexpr int kAdders = 256, kScorers = 128, kAllThreads = 512;
constexpr int kStages = 3;
constexpr int kScaleOffset = 512, kRopeOffset = 528;
/* Registers a thread: 2 x 176 + 136 + 24 is what four warpgroups have at a launch of 128. */
constexpr int kAdderRegisters = 176, kScorerRegisters = 136, kFeederRegisters = 24;

struct int8_maps {
    CUtensorMap wide, narrow; /* boxes of 128 swizzled bytes; of 16 bytes */
};

struct alignas(1024) wide_smem {
    uint8_t latent[kStages][4][kBoxBytes]; /* raw int8, 128 dims a box */
    uint8_t rope[kStages][kBoxBytes];
    uint8_t q[2][4][kBoxBytes]; /* high bytes, low bytes */
    uint8_t q_rope[kBoxBytes];
    uint8_t p[kStages][kBoxBytes]; /* [row][token] */
    float4 scale_zero[kStages][kTile];
    /* Scales, zero points of tokens 16 j + 2 c, 2 c + 1, 2 c + 8, 2 c + 9. */
    float4 scales[kStages][4][4], zeros[kStages][4][4];
    float zero_line[kStages][kTile]; /* zero points by token */
    float by[kStages][kWideRows];
    float scale[kWideRows], q_sum[kWideRows], zero[kWideRows], back[kWideRows];
    int limit[kWideRows];
    int plain, token, length; /* tiles that need no mask; first key; keys */
    int range, seq, tiles;    /* tiles 0: there are no more */
    uint32_t raised[kStages]; /* byte w: rows of warp w have a new maximum or reference */
    uint32_t hidden[kStages];
    float most_scale[kStages];
    uint64_t full[kStages], ready[kStages], weighed[kStages], added[kStages], empty[2][kStages];
};
static_assert(sizeof(wide_smem) <= 227 * 1024, "one CTA an SM");

/* Dynamic shared memory starts here: the driver keeps the first 1024 bytes. Descriptors made of
 * constants stay in uniform registers; the kernel traps if it is not so. */
constexpr uint32_t kSmemStart = 1024;
__device__ __forceinline__ constexpr uint32_t descriptor_at(uint32_t offset)
{
    return ((kSmemStart + offset) >> 4) | (1u << 16);
}
#define LKVI_AT(member) ((uint32_t) __builtin_offsetof(wide_smem, member))

/* The stage of a tile and how often it was used before, modulo 2. */
struct turn {
    int stage, phase;
};
__device__ __forceinline__ void turn_on(turn &t)
{
    if (++t.stage == kStages) {
        t.stage = 0;
        t.phase ^= 1;
    }
}

__device__ __forceinline__ bool wide_query(const decode_args &a, const sequence &s, int r,
                                           int *token, int *head)
{
    int row = (int)(blockIdx.x % a.row_tiles) * kWideRows + r;
    int j = row / (int)a.num_heads;
    *head = row - j * (int)a.num_heads;
    *token = s.first_row + j;
    return j < s.q_len;
}

/* d[64, 64] (+)= a b, bf16, both K-major in shared memory. */
__device__ __forceinline__ void wgmma_rope(float (&d)[32], uint32_t a, uint32_t b, int add)
{
    asm volatile("{\n.reg .pred p;\n.reg .b64 da,db;\nmov.b64 da,{%32," LKVI_WGMMA_HIGH
                 "};\nmov.b64 db,{%33," LKVI_WGMMA_HIGH "};\nsetp.ne.b32 p,%34,0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,"
                 "%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
                 "},da,db,p,1,1,0,0;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                   "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
                   "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
                   "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                   "+f"(d[30]), "+f"(d[31])
                 : "r"(a), "r"(b), "r"(add));
}
/* d[64, 64] += a b, fp16, a in registers, b K-major in shared memory. */
__device__ __forceinline__ void wgmma_values(float (&d)[32], const uint32_t (&a)[4], uint32_t b)
{
    asm volatile("{\n.reg .b64 db;\nmov.b64 db,{%36," LKVI_WGMMA_HIGH "};\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,"
                 "%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
                 "},{%32,%33,%34,%35},db,1,1,1,0;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                   "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
                   "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
                   "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                   "+f"(d[30]), "+f"(d[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}

/* ---- feeders */

__device__ __forceinline__ void fetch(const decode_args &a, const int8_maps &maps, wide_smem &sm,
                                      feed &f, turn t, int half, int lane)
{
    constexpr uint32_t bytes = 2 * kBoxBytes, head_bytes = kBoxBytes + kTile * 16;
    const int block = feed_block(a, f), at = lane * a.piece, stage = t.stage;
    const uint32_t bar = shared_address(&sm.full[stage]);
    mbarrier_wait(shared_address(&sm.empty[half][stage]), t.phase ^ 1);
    if (lane == 0)
        mbarrier_arrive_expect(bar, half == 0 ? bytes + head_bytes : bytes);
    __syncwarp();
    if (at >= kTile)
        return;
#pragma unroll 1
    for (int box = 2 * half; box < 2 * half + 2; box++)
        copy_box(shared_address(&sm.latent[stage][box][at * kBox]), &maps.wide, kBox * box, f.row,
                 block, bar);
    if (half == 1)
        return;
    copy_box(shared_address(&sm.rope[stage][at * kBox]), &maps.wide, kRopeOffset, f.row, block,
             bar);
    copy_box(shared_address(&sm.scale_zero[stage][at]), &maps.narrow, kScaleOffset, f.row, block,
             bar);
    if (block < 0)
        feed_fault(a, f);
}

__device__ __forceinline__ void feed_range(const decode_args &a, const int8_maps &maps,
                                           wide_smem &sm, int range, turn &t, int half, int lane)
{
    feed f;
    feed_start(a, f, range, lane);
#pragma unroll 1
    while (f.tile < f.end) {
        fetch(a, maps, sm, f, t, half, lane);
        turn_on(t);
        feed_next(a, f, lane);
    }
}

/* Scale and zero point of a token to where the scorer's threads read four at a time; those of a
 * token without a record become 0, so that whatever its bytes are nothing of it reaches the sums.
 */
__device__ __forceinline__ void prepare(const decode_args &a, wide_smem &sm, const feed &f, turn t,
                                        int lane)
{
    const int stage = t.stage, first = (f.tile - f.seq.tile_start) * kTile;
    const uint32_t hidden = feed_hidden(a, feed_block(a, f) < 0, lane);
    mbarrier_wait(shared_address(&sm.full[stage]), t.phase);
    float most = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int at = lane + 32 * i;
        float2 z = *(const float2 *)&sm.scale_zero[stage][at];
        if (first + at >= f.seq.length || ((hidden >> (at / 16)) & 1))
            z = make_float2(0, 0);
        most = fmaxf(most, z.x);
        const int to = 4 * (at % 8 / 2) + 2 * (at / 8 % 2) + at % 2;
        ((float *)sm.scales[stage][at / 16])[to] = z.x;
        ((float *)sm.zeros[stage][at / 16])[to] = z.y;
        sm.zero_line[stage][at] = z.y;
    }
#pragma unroll
    for (int d = 1; d < 32; d *= 2)
        most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
    if (lane == 0) {
        sm.most_scale[stage] = most;
        sm.hidden[stage] = hidden;
    }
    __syncwarp();
    if (lane == 0)
        mbarrier_arrive(shared_address(&sm.ready[stage]));
}

__device__ __forceinline__ void prepare_range(const decode_args &a, wide_smem &sm, int range,
                                              turn &t, int lane)
{
    feed f;
    feed_start(a, f, range, lane);
#pragma unroll 1
    while (f.tile < f.end) {
        prepare(a, sm, f, t, lane);
        turn_on(t);
        feed_next(a, f, lane);
    }
}

/* ---- q, by the adders */

/* One row of q a warp: q = step * (256 high + low), both int8, swizzled. The row's scores are
 * counted in steps until the exponential, and so is its RoPE part: returns 1 / step. A step is
 * never so small that the score of a hidden key, -10^30 in log2 units, overflows. */
__device__ __forceinline__ float store_q(wide_smem &sm, const decode_args &a, const float4 (&x)[4],
                                         int r, int lane)
{
    float most = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        most = fmaxf(fmaxf(most, fmaxf(fabsf(x[i].x), fabsf(x[i].y))),
                     fmaxf(fabsf(x[i].z), fabsf(x[i].w)));
#pragma unroll
    for (int d = 1; d < 32; d *= 2)
        most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
    const float step = fmaxf(most / 32639.f, 1e-8f / a.scale_log2), inverse = 1.f / step;
    const int at = r * kBox + (((lane / 4) ^ (r & 7)) << 4) + (lane % 4) * 4;
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float v[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
        uint32_t high = 0, low = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int n = __float2int_rn(v[j] * inverse), h = (n + 128) >> 8, l = n - 256 * h;
            sum += n;
            high |= (uint32_t)(h & 255) << (8 * j);
            low |= (uint32_t)(l & 255) << (8 * j);
        }
        *(uint32_t *)(sm.q[0][i] + at) = high;
        *(uint32_t *)(sm.q[1][i] + at) = low;
    }
    sum = __reduce_add_sync(~0u, sum);
    if (lane == 0) {
        sm.scale[r] = step * a.scale_log2;
        sm.q_sum[r] = (float)sum;
    }
    return inverse;
}

/* RoPE part of row r times `by`, as bf16. */
__device__ __forceinline__ void store_rope(wide_smem &sm, const decode_args &a, int r, bool live,
                                           int token, int head, float by, int lane)
{
    if (lane >= 16)
        return;
    float4 x = make_float4(0, 0, 0, 0);
    if (live)
        x = load4(a.q_rope, token * a.q_rope.token_stride + head * a.q_rope.head_stride + 4 * lane);
    __nv_bfloat162 two[2] = {__floats2bfloat162_rn(x.x * by, x.y * by),
                             __floats2bfloat162_rn(x.z * by, x.w * by)};
    *(uint2 *)(sm.q_rope + r * kBox + (((lane / 2) ^ (r & 7)) << 4) + (lane % 2) * 8) =
        *(uint2 *)two;
}

/* The least limit of the CTA's live rows: tiles below it need no mask. */
__device__ __forceinline__ int least_limit(const decode_args &a, const sequence &s)
{
    int token, head;
    bool live = wide_query(a, s, 0, &token, &head);
    return live ? s.length - s.q_len + (token - s.first_row) + 1 : s.length;
}

/* Eight rows a warp, read four at a time. */
__device__ __forceinline__ void load_q(const decode_args &a, wide_smem &sm, const sequence &s,
                                       int first_key, int range, int tiles, int lane)
{
    const int first = (threadIdx.x / 32) * 8;
#pragma unroll 1
    for (int base = first; base < first + 8; base += 4) {
        float4 read[4][4];
#pragma unroll
        for (int n = 0; n < 4; n++) {
            int token, head;
            bool live = wide_query(a, s, base + n, &token, &head);
#pragma unroll
            for (int i = 0; i < 4; i++)
                read[n][i] = live ? load4(a.q, token * a.q.token_stride + head * a.q.head_stride +
                                                   128 * i + 4 * lane)
                                  : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (int n = 0; n < 4; n++) {
            int token, head;
            bool live = wide_query(a, s, base + n, &token, &head);
            const float by = store_q(sm, a, read[n], base + n, lane);
            store_rope(sm, a, base + n, live, token, head, by, lane);
        }
    }
    if (threadIdx.x < kWideRows) {
        int token, head;
        bool live = wide_query(a, s, threadIdx.x, &token, &head);
        sm.limit[threadIdx.x] = live ? s.length - s.q_len + (token - s.first_row) + 1 : 0;
    }
    if (threadIdx.x == 0) {
        sm.token = first_key;
        sm.plain = a.bias ? 0 : max(0, (least_limit(a, s) - first_key) / kTile);
        sm.length = s.length;
        sm.seq = s.index;
        sm.range = range;
        sm.tiles = tiles;
    }
    fence_async_shared();
}

} // namespace lkvi
