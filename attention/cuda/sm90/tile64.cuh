/* Decode of up to 64 rows (tokens x heads) a CTA, whatever the format: everything but how a record
 * becomes fp16. Three warpgroups, one CTA an SM. The one idea: the first warpgroup widens a tile of
 * 64 tokens once, into the register operand of the scores (tokens x dims); the same registers are
 * stored as an fp16 tile that the two others multiply with P (rows x 256 dims each), N-major. So
 * the scores read only q from shared memory, and P V of one tile runs under the softmax and the
 * widening of the next.
 *
 *   maker    widen and scores (n); softmax; P to shared memory once P V (n - 1) has read the last
 *   adders   fetch tile n + 1; wait for P (n); rescale if the maker raised a maximum; P V (n)
 *
 * Score fragment: warp w holds tokens 16 w .. + 15; thread (g, c) = (lane / 4, lane % 4) tokens
 * 16 w + g (e 0, 1) and 8 more (e 2, 3), rows 8 j + 2 c + (e & 1): element 4 j + e, j = 0..7. */
#ifndef LKVI_ATTENTION_CUDA_SM90_TILE64_CUH
#define LKVI_ATTENTION_CUDA_SM90_TILE64_CUH

#include <stddef.h>
#include "attention/cuda/sm90/frame.cuh"
#include "attention/cuda/sm90/wgmma_n64.cuh"
#include "attention/cuda/sm90/wgmma_wide.cuh"

namespace lkvi
{

constexpr int kMakers = 128, kAdders = 256, kTileThreads = kMakers + kAdders;

struct alignas(1024) tile64_smem {
    uint8_t tile[2][8][kBoxBytes]; /* fp16, 64 positions a box: [token][position] */
    uint8_t q[8][kWideRows * kBox];
    uint8_t q_rope[kWideRows * kBox];
    uint8_t p[kWideRows * kBox]; /* [row][token]; between products: struct tile64_scratch */
};

/* Where the kernel's shared memory starts, all of it dynamic: the system has the first 1024 bytes.
 * With the address a constant, descriptors are immediates of the uniform pipe. */
constexpr uint32_t kSmemStart = 1024;
__device__ __forceinline__ void tile64_place(const void *smem)
{
    if (shared_address(smem) != kSmemStart)
        __trap();
}
__device__ __forceinline__ uint32_t tile64_descriptor(uint32_t offset)
{
    return wgmma_descriptor(kSmemStart + offset);
}

struct tile64_state {
    float4 heads[kWideRows / 2]; /* of rows 2 i, 2 i + 1: log2 units of a score; running maxima */
    float by[kWideRows];         /* what a raised maximum multiplies the accumulators with */
    float back;                  /* takes the reference out of the output */
    int rescale;
    int slot, last; /* of the running sequence: its partial's place, the number of its last tile */
    uint64_t raw_full[2], p_full, p_free;
};

struct tile64_scratch { /* of the slow path and of the end of a sequence */
    float most[4][kWideRows];
    float scale[4];
    float drop[kWideRows];
    float sum[4][kWideRows], slope[4][kWideRows];
};
static_assert(sizeof(tile64_scratch) <= kWideRows * kBox, "it takes the place of P");

/* Sums of the thread's 16 rows: element 2 j + b is row 8 j + 2 c + b. */
struct tile64_sums {
    float sum[16], slope[16];
    float reference; /* power of two in P beside the token's scale */
};

/* The thread's number, read again where it is used: what is derived from it and kept over the tiles
 * would spill. */
__device__ __forceinline__ int thread_now()
{
    int x;
    asm volatile("mov.u32 %0,%%tid.x;" : "=r"(x));
    return x;
}

__device__ __forceinline__ void tile64_start(tile64_sums &x)
{
#pragma unroll
    for (int i = 0; i < 16; i++)
        x.sum[i] = x.slope[i] = 0;
    x.reference = 0;
}

__device__ __forceinline__ void tile64_barriers(tile64_state &st, int num_raw, uint32_t raw_count)
{
    for (int i = 0; i < num_raw; i++)
        mbarrier_init(shared_address(&st.raw_full[i]), raw_count);
    st.last = -1;
    mbarrier_init(shared_address(&st.p_full), kMakers);
    mbarrier_init(shared_address(&st.p_free), kAdders);
    mbarrier_init_fence();
}

__device__ __forceinline__ bool tile64_query(const decode_args &a, const sequence &s, int r,
                                             int *token, int *head)
{
    int row = (int)(blockIdx.x % a.row_tiles) * kWideRows + r;
    int j = row / (int)a.num_heads;
    *head = row - j * (int)a.num_heads;
    *token = s.first_row + j;
    return j < s.q_len;
}

__device__ __forceinline__ int tile64_limit(const sequence &s, int query)
{
    return query < s.q_len ? s.length - s.q_len + query + 1 : 0;
}

/* The least limit of the CTA's live rows: tiles below it need no mask. */
__device__ __forceinline__ int tile64_least(const decode_args &a, const sequence &s)
{
    int token, head;
    bool live = tile64_query(a, s, 0, &token, &head);
    return live ? tile64_limit(s, token - s.first_row) : s.length;
}

/* ---- maker */

/* 2^e just above x, as the pair (2^-e, 2^e); (1, 1) for 0. */
__device__ __forceinline__ float2 power_above(float x)
{
    int e = x > 0 ? min(max((int)(__float_as_uint(x) >> 23) - 126, -125), 126) : 0;
    return make_float2(__uint_as_float((uint32_t)(127 - e) << 23),
                       __uint_as_float((uint32_t)(127 + e) << 23));
}

/* 1 / x of a power of two; 0 for 0. */
__device__ __forceinline__ float inverse_power(float x)
{
    return x == 0 ? 0.f : __uint_as_float(0x7F000000u - __float_as_uint(x));
}

/* One row of q by a warp: both parts times a power of two, so that the latent part is at most 1 in
 * fp16 unless RoPE is 2^20 times as large. Layout::latent(d) gives the position of dims d, d + 2
 * (x, z of a float4) as a byte of its box and, one k-step on, of d + 1, d + 3; Layout::rope(d) the
 * byte of dims d, d + 1, those of d + 2, d + 3 lying 16 bytes on. */
template <class Layout>
__device__ __forceinline__ void tile64_store_q(tile64_smem &sm, tile64_state &st,
                                               const decode_args &a, const float4 (&x)[4],
                                               float4 rope, int r, int lane)
{
    float most = fmaxf(fmaxf(fabsf(rope.x), fabsf(rope.y)), fmaxf(fabsf(rope.z), fabsf(rope.w)));
    most *= 0x1p-20f;
#pragma unroll
    for (int i = 0; i < 4; i++)
        most = fmaxf(fmaxf(most, fmaxf(fabsf(x[i].x), fabsf(x[i].y))),
                     fmaxf(fabsf(x[i].z), fabsf(x[i].w)));
#pragma unroll
    for (int d = 1; d < 32; d *= 2)
        most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
    const float2 power = power_above(most);
#pragma unroll
    for (int i = 0; i < 4; i++)
        Layout::store_latent(sm.q[0] + r * kBox, r & 7, 128 * i + 4 * lane, x[i], power.x);
    if (lane < 16)
        Layout::store_rope(sm.q_rope + r * kBox, r & 7, 4 * lane, rope, power.x);
    if (lane == 0) {
        float *h = (float *)&st.heads[r >> 1] + (r & 1);
        h[0] = power.y * a.scale_log2;
        h[2] = kMaxStart;
    }
}

/* Four neighbouring values of any dtype as they are, or zeros. Without a branch: where one joins
 * again, each load would wait for itself. */
__device__ __forceinline__ uint4 tile64_read4(const lkvi_heads &from, int64_t at, bool there)
{
    const int wide = from.dtype == LKV_DTYPE_F32;
    const uint8_t *address = (const uint8_t *)from.data + (at << (1 + wide));
    uint4 x = make_uint4(0, 0, 0, 0);
    asm volatile("{\n.reg .pred w,n;\nsetp.ne.b32 w,%5,0;\nsetp.ne.b32 n,%6,0;\n"
                 "@w ld.global.v4.u32 {%0,%1,%2,%3},[%4];\n@n ld.global.v2.u32 {%0,%1},[%4];\n}"
                 : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w)
                 : "l"(address), "r"((int)(there && wide)), "r"((int)(there && !wide)));
    return x;
}

/* 16 rows a warp, four under way at a time, all asked of L2 first. */
template <class Layout>
__device__ __forceinline__ void tile64_load_q(const decode_args &a, tile64_smem &sm,
                                              tile64_state &st, const sequence &s)
{
    const int thread = thread_now(), warp = thread / 32, lane = thread % 32;
    int token, head;
    tile64_query(a, s, 16 * warp + lane % 16, &token, &head);
    if (token < s.first_row + s.q_len) {
        const int shift = 1 + (a.q.dtype == LKV_DTYPE_F32);
        const uint8_t *row = (const uint8_t *)a.q.data +
                             ((token * a.q.token_stride + head * a.q.head_stride) << shift);
        for (int at = 128 * (lane / 16); at < kLatent << shift; at += 256)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(row + at));
    }
    tile64_query(a, s, 16 * warp, &token, &head);
#pragma unroll 1
    for (int base = 16 * warp; base < 16 * warp + 16; base += 4) {
        uint4 read[4][4], rope[4];
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const bool live = token < s.first_row + s.q_len;
            const int64_t at = token * a.q.token_stride + head * a.q.head_stride + 4 * lane;
#pragma unroll
            for (int i = 0; i < 4; i++)
                read[n][i] = tile64_read4(a.q, at + 128 * i, live);
            rope[n] = tile64_read4(
                a.q_rope, token * a.q_rope.token_stride + head * a.q_rope.head_stride + 4 * lane,
                live && lane < 16);
            if (++head == (int)a.num_heads) {
                head = 0;
                token++;
            }
        }
#pragma unroll
        for (int n = 0; n < 4; n++) {
            float4 x[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[i] = as_float4(read[n][i], a.q.dtype);
            tile64_store_q<Layout>(sm, st, a, x, as_float4(rope[n], a.q_rope.dtype), base + n,
                                   lane);
        }
    }
    fence_async_shared();
}

/* Scores to log2 units with bias; those of keys that a row does not see to kHidden. */
__device__ __forceinline__ float tile64_mask(const decode_args &a, const tile64_state &st,
                                             const sequence &s, float (&v)[32], float (&y)[32],
                                             bool gone0, bool gone1, int token, int c)
{
    const float per_query = __fdividef(1.f, a.num_heads);
    const int first_row = (int)(blockIdx.x % a.row_tiles) * kWideRows + 2 * c;
    float bias[2] = {0, 0}, most = kHidden;
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (a.bias && !(half ? gone1 : gone0))
            bias[half] = a.bias[s.index * a.bias_stride + token + 8 * half] * kLog2e;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float4 h = st.heads[4 * j + c];
        int limit[2]; /* rows are fewer than 2^10, so that the quotient rounds down right */
#pragma unroll
        for (int b = 0; b < 2; b++)
            limit[b] = tile64_limit(s, (int)((first_row + 8 * j + b + 0.5f) * per_query));
#pragma unroll
        for (int e = 0; e < 4; e++) {
            bool seen = !(e & 2 ? gone1 : gone0) && token + 4 * (e & 2) < limit[e & 1];
            float x = fmaf(v[4 * j + e], e & 1 ? h.y : h.x, bias[e >> 1]);
            v[4 * j + e] = seen ? fmaxf(x, kHidden) : kHidden;
            y[4 * j + e] = v[4 * j + e] - (e & 1 ? h.w : h.z);
            most = fmaxf(most, y[4 * j + e]);
        }
    }
    return most;
}

/* The slow path: takes the tile into the running maxima and the reference, makes y anew. v in log2
 * units. P must be free: scratch lies there. */
__device__ __forceinline__ void tile64_raise(tile64_smem &sm, tile64_state &st,
                                             const float (&v)[32], float (&y)[32], float z,
                                             tile64_sums &x, int warp, int lane)
{
    tile64_scratch &t = *(tile64_scratch *)sm.p;
    const int c = lane % 4, r = thread_now();
#pragma unroll
    for (int d = 4; d < 32; d *= 2)
        z = fmaxf(z, __shfl_xor_sync(~0u, z, d));
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float m = fmaxf(v[4 * (i >> 1) + (i & 1)], v[4 * (i >> 1) + (i & 1) + 2]);
#pragma unroll
        for (int d = 4; d < 32; d *= 2)
            m = fmaxf(m, __shfl_xor_sync(~0u, m, d));
        if (lane < 4)
            t.most[warp][8 * (i >> 1) + 2 * c + (i & 1)] = m;
    }
    if (lane == 0)
        t.scale[warp] = z;
    barrier_sync<1, kMakers>();
    z = fmaxf(fmaxf(t.scale[0], t.scale[1]), fmaxf(t.scale[2], t.scale[3]));
    const float before = x.reference;
    float reference = before;
    if (reference == 0 || z * reference > kScaleLimit) {
        /* 2^6 over the power of two above the largest scale */
        float wanted = fminf(power_above(z).x, 0x1p120f) * (1 << kScaleExponent);
        reference = reference == 0 ? wanted : fminf(reference, wanted);
    }
    const float change = reference * inverse_power(before);
    x.reference = z > 0 || before != 0 ? reference : 0.f;
    if (r < kWideRows) {
        float m = fmaxf(fmaxf(t.most[0][r], t.most[1][r]), fmaxf(t.most[2][r], t.most[3][r]));
        float *h = (float *)&st.heads[r >> 1] + (r & 1), top = h[2];
        m = fmaxf(m, top);
        t.drop[r] = top - m;
        st.by[r] = exp2_fast(top - m) * change;
        h[2] = m;
    }
    if (r == 0)
        st.back = inverse_power(x.reference);
    barrier_sync<1, kMakers>();
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float4 h = st.heads[4 * j + c];
        const float2 drop = *(const float2 *)&t.drop[8 * j + 2 * c];
#pragma unroll
        for (int b = 0; b < 2; b++) {
            float by = b ? drop.y : drop.x, down = exp2_fast(by);
            x.slope[2 * j + b] = down * (x.slope[2 * j + b] + x.sum[2 * j + b] * by);
            x.sum[2 * j + b] *= down;
        }
#pragma unroll
        for (int e = 0; e < 4; e++)
            y[4 * j + e] = v[4 * j + e] - (e & 1 ? h.w : h.z);
    }
    barrier_sync<1, kMakers>();
}

struct tile64_half { /* P is as the tile is: fp16, or of another type by a struct like this one */
    static __device__ __forceinline__ uint32_t pack(float low, float high)
    {
        return pack_half2(low, high);
    }
};

/* P of the tile, times the token's scale and the reference, to shared memory as [row][token]. */
template <class Type>
__device__ __forceinline__ void tile64_store_p(tile64_smem &sm, const float (&y)[32], float z0,
                                               float z1, tile64_sums &x, int warp, int lane)
{
    const float k[2] = {z0 * x.reference, z1 * x.reference};
    const int row = (lane & 7) + 8 * (lane >> 4), chunk = 2 * warp + ((lane >> 3) & 1);
    const uint32_t to = shared_address(sm.p) + row * kBox + ((chunk ^ (row & 7)) << 4);
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        uint32_t p16[4];
#pragma unroll
        for (int i = 0; i < 4; i++) { /* 8-row group, half */
            const int j = 2 * pair + (i >> 1), at = 4 * j + 2 * (i & 1);
            float p0 = exp2_fast(y[at]), p1 = exp2_fast(y[at + 1]);
            x.sum[2 * j] += p0;
            x.sum[2 * j + 1] += p1;
            x.slope[2 * j] = fmaf(p0, y[at], x.slope[2 * j]);
            x.slope[2 * j + 1] = fmaf(p1, y[at + 1], x.slope[2 * j + 1]);
            p16[i] = Type::pack(p0 * k[i & 1], p1 * k[i & 1]);
        }
        store_transposed(to + 16 * pair * kBox, p16);
    }
}

/* All of the softmax of tile n. dot and rope are the parts of the score, z0 and z1 what dot lacks:
 * the tokens' scales, 0 for those without a record. token: the thread's first. */
template <class Type = tile64_half>
__device__ __forceinline__ void
tile64_softmax(const decode_args &a, tile64_smem &sm, tile64_state &st, const sequence &s,
               tile64_sums &x, float (&v)[32], const float (&rope)[32], float z0, float z1,
               bool gone0, bool gone1, int token, bool masked, int n, int warp, int lane)
{
    const int c = lane % 4;
    float y[32], tops[4];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float4 h = st.heads[4 * j + c];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int i = 4 * j + e;
            v[i] = fmaf(e & 2 ? z1 : z0, v[i], rope[i]);
            y[i] = fmaf(v[i], e & 1 ? h.y : h.x, -(e & 1 ? h.w : h.z));
            tops[e] = j ? fmaxf(tops[e], y[i]) : y[i];
        }
    }
    float most = fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3]));
    if (masked)
        most = tile64_mask(a, st, s, v, y, gone0, gone1, token, c);
    const bool mine =
        most > kSlack || fmaxf(z0, z1) * x.reference > kScaleLimit || x.reference == 0;
    mbarrier_wait(shared_address(&st.p_free), (n - 1) & 1); /* n = 0: at once */
    const bool slow = barrier_any<kMakers>(mine);
    if (slow) {
        if (!masked) {
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const float4 h = st.heads[4 * j + c];
#pragma unroll
                for (int e = 0; e < 4; e++)
                    v[4 * j + e] *= e & 1 ? h.y : h.x;
            }
        }
        tile64_raise(sm, st, v, y, fmaxf(z0, z1), x, warp, lane);
    }
    if (thread_now() == 0)
        st.rescale = slow;
    tile64_store_p<Type>(sm, y, z0, z1, x, warp, lane);
    fence_async_shared();
    mbarrier_arrive(shared_address(&st.p_full)); /* every thread for what it wrote itself */
}

/* Tells the adders of a sequence and the number of its last tile. Nobody reads of the one before
 * any more: tile64_finish has waited. */
__device__ __forceinline__ void tile64_announce(const decode_args &a, tile64_state &st, int range,
                                                int seq, int last)
{
    if (thread_now() == 0) {
        st.slot = (range + seq) * (int)a.row_tiles + (int)(blockIdx.x % a.row_tiles);
        st.last = last;
    }
}

/* Ends the adders. */
__device__ __forceinline__ void tile64_end(tile64_state &st)
{
    mbarrier_arrive(shared_address(&st.p_full));
}

/* End of a sequence: the threads' sums added up, to the rows' statistics. n: its last tile. */
__device__ __forceinline__ void tile64_finish(const decode_args &a, tile64_smem &sm,
                                              tile64_state &st, tile64_sums &x, int range, int seq,
                                              int n)
{
    tile64_scratch &t = *(tile64_scratch *)sm.p;
    const int r = thread_now(), warp = r / 32, lane = r % 32;
    mbarrier_wait(shared_address(&st.p_free), n & 1);
#pragma unroll
    for (int i = 0; i < 16; i++) {
#pragma unroll
        for (int d = 4; d < 32; d *= 2) {
            x.sum[i] += __shfl_xor_sync(~0u, x.sum[i], d);
            x.slope[i] += __shfl_xor_sync(~0u, x.slope[i], d);
        }
        if (lane < 4) {
            t.sum[warp][8 * (i >> 1) + 2 * lane + (i & 1)] = x.sum[i];
            t.slope[warp][8 * (i >> 1) + 2 * lane + (i & 1)] = x.slope[i];
        }
    }
    barrier_sync<1, kMakers>();
    if (r < kWideRows) {
        int64_t slot = (int64_t)(range + seq) * a.row_tiles + blockIdx.x % a.row_tiles;
        float top = ((const float *)&st.heads[r >> 1])[2 + (r & 1)];
        *(float4 *)(a.split.partial_stats + 4 * (slot * kWideRows + r)) =
            make_float4(top, (t.sum[0][r] + t.sum[1][r]) + (t.sum[2][r] + t.sum[3][r]),
                        (t.slope[0][r] + t.slope[1][r]) + (t.slope[2][r] + t.slope[3][r]), 0);
    }
}

/* ---- adders */

/* P V of tile n. */
__device__ __forceinline__ void tile64_add(tile64_smem &sm, tile64_state &st, float (&o)[128],
                                           float &back, int n, int group)
{
    if (st.rescale) {
        const uint32_t thread = thread_now(), row = thread % 128 / 32 * 16 + thread % 32 / 4;
        const float by0 = st.by[row], by1 = st.by[row + 8];
#pragma unroll
        for (int i = 0; i < 128; i++)
            o[i] *= i & 2 ? by1 : by0;
        back = st.back;
    }
    const uint32_t p = tile64_descriptor(offsetof(tile64_smem, p));
    const uint32_t v =
        wgmma_descriptor_wide(kSmemStart + ((n & 1) * 8 + 4 * group) * kBoxBytes, kBoxBytes);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma_f16_n256(o, p + 2 * i, v + i * (16 * kBox / 16), 1);
    wgmma_commit();
    wgmma_wait<0>();
    mbarrier_arrive(shared_address(&st.p_free));
}

/* Accumulators to the partial: of every 32 positions a thread has eight dims of two rows. */
template <class Layout>
__device__ __forceinline__ void tile64_store_slot(const decode_args &a, const float (&o)[128],
                                                  float back, int slot, int group)
{
    const uint32_t thread = thread_now(), row = thread % 128 / 32 * 16 + thread % 32 / 4;
    float *to = a.split.partial_out + ((int64_t)slot * kWideRows + row) * kLatent;
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            Layout::store_out(to + 8 * half * kLatent, 256 * group + 32 * i, thread % 4,
                              o + 16 * i + 2 * half, back);
}

template <class Layout>
__device__ __forceinline__ void tile64_store(const decode_args &a, const float (&o)[128],
                                             float back, int range, int seq, int group)
{
    tile64_store_slot<Layout>(
        a, o, back, (range + seq) * (int)a.row_tiles + (int)(blockIdx.x % a.row_tiles), group);
}

/* All of an adder's work. The maker tells where a sequence ends, and by one more turn with none
 * running that all is done, so that beside the accumulators there is little to keep. Before a
 * tile's P comes there is time to fetch the next tile: feed.turn(). */
template <class Layout, class Feed>
__device__ __forceinline__ void tile64_adders(const decode_args &a, tile64_smem &sm,
                                              tile64_state &st, Feed &feed)
{
    const int group = uniform(threadIdx.x / 128) - 1;
    float o[128], back = 0;
#pragma unroll
    for (int i = 0; i < 128; i++)
        o[i] = 0;
#pragma unroll 1
    for (int n = 0;; n++) {
        feed.turn(n);
        mbarrier_wait(shared_address(&st.p_full), n & 1);
        const int more = uniform(st.last) - n;
        if (more < 0)
            return;
        const int slot = uniform(st.slot);
        tile64_add(sm, st, o, back, n, group);
        if (more == 0) {
            tile64_store_slot<Layout>(a, o, back, slot, group);
#pragma unroll
            for (int i = 0; i < 128; i++)
                o[i] = 0;
        }
    }
}

} // namespace lkvi
#endif
