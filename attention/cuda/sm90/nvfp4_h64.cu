/* NVFP4, up to 64 rows (tokens x heads) a CTA, 512 + 64 dims. In: q, records of 432 bytes, the
 * split. Out: partials. The frame is tile64.cuh; here is how a record becomes fp16. The maker's
 * warps widen 16 tokens each. One of the adders' warps feeds: it names the blocks, asks L2 for a
 * tile two ahead and starts the copies of the next, half a record each time the maker has read one.
 * RoPE, 16 registers of it, the maker loads a tile ahead straight into the operand of its product.
 * Positions are chosen as in the 16-row kernel, so that no access has bank conflicts: lane c takes
 * 16-byte chunk 2 c + (m & 1).
 */
#include "attention/cuda/sm90/launch.h"
#include "attention/cuda/sm90/tile64.cuh"

using namespace lkvi;

namespace
{
constexpr int kRecordBytes = 432, kGroupScales = 32;
constexpr int kScaleOffset = 256, kOuterOffset = 292, kRopeOffset = 304;
/* A widened value is e2m1 * group scale * 2^-7. */
constexpr float kLift = 128.f;
constexpr int kParts = 3; /* of 64 dims, in products or being widened */

struct nvfp4_wide {
    CUtensorMap wide, narrow; /* boxes of 128 swizzled bytes; of the 32 group scales */
    const uint8_t *pool;
    uint64_t block_stride;
};

/* Registers a thread: 184 + 2 x 160 is what three warpgroups have at a launch of 168. */
constexpr int kMakerRegisters = 184, kAdderRegisters = 160;

struct nvfp4_wide_smem : tile64_smem {
    uint8_t latent[2][kBoxBytes]; /* raw, 256 dims a box; 16 tokens of it belong to each warp */
    uint8_t scales[kTile * kGroupScales];
    tile64_state state;
    int2 place[4][4];     /* of a warp's 16 tokens, by tile: block and row in it, or kNo.. */
    int4 walk, walk_seq;  /* the feed's next tile, range's end, sequence, range; see feed_name */
    uint64_t raw_free[2]; /* half a record has been read */
    int named;            /* first query row of the sequence of the tile named last */
};
constexpr int kNoBlock = -1, kNoTile = -2;
static_assert(sizeof(nvfp4_wide_smem) <= 227 * 1024, "one CTA an SM");

/* Where dims lie. Dim d = 256 (m / 2) + 64 c + 32 (m % 2) + 8 i + 4 hi + 2 e + odd is position
 * 8 hi + 2 c + e of step 8 m + 2 i + odd: what the widening makes. Of RoPE, dim 32 (i / 2) + 8 c +
 * 4 (i % 2) + 2 hi + e is position 8 hi + 2 c + e of step i: what two 16-byte loads bring. */
struct nvfp4_layout {
    static __device__ __forceinline__ void store_latent(uint8_t *row, int turn, int d, float4 x,
                                                        float by)
    {
        int chunk = d >> 5, i = (d >> 3) & 3, hi = (d >> 2) & 1;
        int m = 2 * (chunk >> 3) + (chunk & 1), c = (chunk >> 1) & 3;
#pragma unroll
        for (int odd = 0; odd < 2; odd++) {
            int step = 8 * m + 2 * i + odd, byte = (step % 4) * 32 + (8 * hi + 2 * c) * 2;
            uint8_t *to = row + step / 4 * (kWideRows * kBox) + (((byte >> 4) ^ turn) << 4);
            *(uint32_t *)(to + (byte & 15)) =
                odd ? pack_half2(x.y * by, x.w * by) : pack_half2(x.x * by, x.z * by);
        }
    }
    static __device__ __forceinline__ void store_rope(uint8_t *row, int turn, int d, float4 x,
                                                      float by)
    {
        int i = 2 * (d >> 5) + ((d >> 2) & 1), c = (d >> 3) & 3;
        __nv_bfloat162 two[2] = {__floats2bfloat162_rn(x.x * by, x.y * by),
                                 __floats2bfloat162_rn(x.z * by, x.w * by)};
#pragma unroll
        for (int hi = 0; hi < 2; hi++)
            *(__nv_bfloat162 *)(row + (((2 * i + hi) ^ turn) << 4) + 4 * c) = two[hi];
    }
    /* Thread c has, of the four groups of eight positions from p on (two steps), eight dims in a
     * row: 4 hi + 2 e + odd. */
    static __device__ __forceinline__ void store_out(float *to, int p, int c, const float *o,
                                                     float by)
    {
        to += (p & 256) + 64 * c + ((p & 128) >> 2) + ((p & 96) >> 2); /* m / 2, m % 2, i */
#pragma unroll
        for (int hi = 0; hi < 2; hi++) { /* o: 4 (2 odd + hi) + e */
            const float *x = o + 4 * hi;
            *(float4 *)(to + 4 * hi) = make_float4(x[0] * by, x[8] * by, x[1] * by, x[9] * by);
        }
    }
};

/* ---- feed: one warp; lane i has the tile's i-th piece of min(64, block) tokens */

__device__ __forceinline__ void prefetch_bytes(const uint8_t *from, uint32_t bytes)
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0],%1;" ::"l"(from), "r"(bytes) : "memory");
}

struct nvfp4_feed {
    const decode_args &a;
    const nvfp4_wide &w;
    nvfp4_wide_smem &sm;
    int id, row; /* of the tile named last: block id as read, first token in it, -1 if no tile */

    /* From range `range` on: the next one with tiles, or none. */
    __device__ __forceinline__ void open_range(int range, int lane)
    {
        int4 at = make_int4(0, 0, 0, range), s = at;
        for (; at.w < a.num_ranges && at.x >= at.y; at.w += gridDim.x / a.row_tiles) {
            const int4 *from = (const int4 *)(a.split.ranges + at.w);
            const int4 r = from[0];
            at.x = r.x, at.y = r.y, at.z = r.z;
            s = from[1];
        }
        if (lane == 0) {
            sm.walk = at;
            sm.walk_seq = s;
        }
    }

    /* Starts the load of the ids of the walk's tile and moves on. What it must remember lies in
     * shared memory meanwhile: registers are the adders'. */
    __device__ __forceinline__ void name(int lane)
    {
        int4 at = sm.walk;
        const int4 s = sm.walk_seq; /* first row, query rows, length, first tile */
        const int in_tile = lane << min(a.block_shift, 6), token = (at.x - s.w) * kTile + in_tile;
        __syncwarp();
        id = kNoBlock;
        row = at.x < at.y ? token & ((1 << a.block_shift) - 1) : -1;
        if (row >= 0 && in_tile < kTile && token < s.z)
            id = a.batch.block_table[(uint64_t)at.z * a.batch.block_table_stride +
                                     (token >> a.block_shift)];
        if (lane == 0)
            sm.named = s.x;
        if (++at.x >= at.y) {
            open_range(at.w, lane);
        } else {
            if (at.x >= s.w + (s.z + kTile - 1) / kTile) {
                const sequence next = sequence_of(a, at.z + 1, at.x);
                at.z = next.index;
                if (lane == 0)
                    sm.walk_seq =
                        make_int4(next.first_row, next.q_len, next.length, next.tile_start);
            }
            if (lane == 0)
                sm.walk = at;
        }
        __syncwarp();
    }

    /* The named tile is tile n: says where the maker's warps find it and asks L2 for it. */
    __device__ __forceinline__ void publish(int n, int lane)
    {
        const int shift = min(a.block_shift, 6);
        const bool there = row >= 0 && id >= 0 && (uint64_t)id < a.num_blocks;
        if (row == 0 && !there && id != kNoBlock && blockIdx.x % a.row_tiles == 0)
            note_fault(a.faults, LKV_FAULT_BLOCK, sm.named, id);
        const int block = row < 0 ? kNoTile : there ? id : kNoBlock;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int first = 16 * i;
            const int2 at =
                make_int2(__shfl_sync(~0u, block, first >> shift),
                          __shfl_sync(~0u, row, first >> shift) + (first & ((1 << shift) - 1)));
            if (lane == 0) /* who also arrives */
                sm.place[n & 3][i] = at;
        }
        if (there)
            prefetch_bytes(w.pool + id * w.block_stride + (uint32_t)(row * kRecordBytes),
                           (uint32_t)kRecordBytes << shift);
        __syncwarp();
    }

    /* Copies box `half` of tile n, with the scales if it is the first. */
    __device__ __forceinline__ void fetch(int n, int half, int lane)
    {
        const int first = lane << min(a.block_shift, 6);
        const uint32_t bar = shared_address(&sm.state.raw_full[half]);
        if (lane == 0)
            mbarrier_arrive_expect(bar, half ? kBoxBytes : kBoxBytes + sizeof sm.scales);
        __syncwarp();
        if (first >= kTile)
            return;
        const int2 at = sm.place[n & 3][first >> 4];
        copy_box(shared_address(&sm.latent[half][first * kBox]), &w.wide, kBox * half, at.y, at.x,
                 bar);
        if (half == 0)
            copy_box(shared_address(&sm.scales[first * kGroupScales]), &w.narrow, kScaleOffset,
                     at.y, at.x, bar);
    }

    __device__ __forceinline__ void start()
    {
        const int lane = thread_now() % 32;
        open_range(blockIdx.x / a.row_tiles, lane);
        __syncwarp();
        name(lane);
        publish(0, lane);
        if (sm.place[0][0].x == kNoTile)
            return;
        name(lane);
        fetch(0, 0, lane);
        publish(1, lane);
        fetch(0, 1, lane);
        name(lane);
    }

    /* Fetches tile n + 1 as soon as the maker has read tile n; where n + 2 lies is said before the
     * last of it is there. */
    __device__ __forceinline__ void turn(int n)
    {
        if (threadIdx.x / 32 != kMakers / 32 || sm.place[n & 3][0].x == kNoTile ||
            sm.place[(n + 1) & 3][0].x == kNoTile)
            return;
        const int lane = thread_now() % 32;
        mbarrier_wait(shared_address(&sm.raw_free[0]), n & 1);
        fetch(n + 1, 0, lane);
        publish(n + 2, lane);
        mbarrier_wait(shared_address(&sm.raw_free[1]), n & 1);
        fetch(n + 1, 1, lane);
        name(lane);
    }
};

/* ---- maker */

/* What is read past the copies, a tile ahead, of tokens g and g + 8 of the warp's. */
struct direct {
    const uint8_t *record; /* of token g; null: no block */
    uint4 rope[4];         /* [half of RoPE][half of the tokens] */
    float outer[2];
};

/* Into the same registers or not at all: a branch would copy them, and so wait for the load. */
__device__ __forceinline__ void load_if(uint4 &x, const uint8_t *at, bool there)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p,%5,0;\n"
                 "@p ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3},[%4];\n}"
                 : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w)
                 : "l"(at), "r"((int)there)
                 : "memory");
}

__device__ __forceinline__ void load_if(float &x, const uint8_t *at, bool there)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p,%2,0;\n@p ld.global.f32 %0,[%1];\n}"
                 : "+f"(x)
                 : "l"(at), "r"((int)there)
                 : "memory");
}

/* Where token g of a warp's 16 lies. */
__device__ __forceinline__ const uint8_t *record_at(const nvfp4_wide &w, int2 place, int g)
{
    return place.x < 0
               ? nullptr
               : w.pool + place.x * w.block_stride + (uint32_t)((place.y + g) * kRecordBytes);
}

/* All at once: one that came later would wait for those before it. */
__device__ __forceinline__ void direct_load(direct &x, const uint8_t *record, int c)
{
    x.record = record;
#pragma unroll
    for (int i = 0; i < 2; i++)
        load_if(x.outer[i], record + i * 8 * kRecordBytes + kOuterOffset, record != nullptr);
#pragma unroll
    for (int i = 0; i < 4; i++)
        load_if(x.rope[i],
                record + (i & 1) * 8 * kRecordBytes + kRopeOffset + 64 * (i >> 1) + 16 * c,
                record != nullptr);
}

/* Two e4m3 scales times 2^7 as fp16. */
__device__ __forceinline__ uint32_t widen_scales(uint32_t two)
{
    uint32_t d;
    asm("{\n.reg .b16 x;\nmov.b32 {x,_},%1;\ncvt.rn.f16x2.e4m3x2 %0,x;\n}" : "=r"(d) : "r"(two));
    return half2_mul(d, 0x58005800u);
}

/* Eight e2m1, low nibble first: sign and three value bits go to the high byte of an fp16, which is
 * value * 2^-14 for normals and subnormals. Out: (0, 2) (4, 6) (1, 3) (5, 7). */
__device__ __forceinline__ uint4 widen(uint32_t x, uint32_t scale)
{
    uint32_t odd = (x & 0x80808080u) | ((x >> 3) & 0x0E0E0E0Eu);
    uint32_t even = ((x << 4) & 0x80808080u) | ((x << 1) & 0x0E0E0E0Eu);
    return make_uint4(
        half2_mul(prmt(even, 0, 0x1404), scale), half2_mul(prmt(even, 0, 0x3424), scale),
        half2_mul(prmt(odd, 0, 0x1404), scale), half2_mul(prmt(odd, 0, 0x3424), scale));
}

/* Widens a word of token g (half 0) or g + 8 into the operands of two products. */
__device__ __forceinline__ void widen_word(uint32_t (&even)[4], uint32_t (&odd)[4], uint32_t word,
                                           uint32_t scale, int half)
{
    const uint4 w = widen(word, scale);
    even[half] = w.x;
    even[2 + half] = w.y;
    odd[half] = w.z;
    odd[2 + half] = w.w;
}

__device__ __forceinline__ void rope_scores(nvfp4_wide_smem &sm, float (&s)[32], const direct &x,
                                            bool gone0, bool gone1)
{
    const uint32_t q = tile64_descriptor(offsetof(tile64_smem, q_rope));
    uint32_t k[4]
              [4]; /* made here, of zeros where there is no token, or they are moved at the load */
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint4 *r = x.rope + 2 * (i >> 1);
        k[i][0] = gone0 ? 0 : i & 1 ? r[0].z : r[0].x;
        k[i][1] = gone1 ? 0 : i & 1 ? r[1].z : r[1].x;
        k[i][2] = gone0 ? 0 : i & 1 ? r[0].w : r[0].y;
        k[i][3] = gone1 ? 0 : i & 1 ? r[1].w : r[1].y;
        asm volatile("" : "+r"(k[i][0]), "+r"(k[i][1]), "+r"(k[i][2]), "+r"(k[i][3]));
    }
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma_bf16_n64(s, k[i], q + 2 * i, i);
    wgmma_commit();
}

/* Widening and scores of a tile. Tokens that do not exist are widened with scale 0: their bytes may
 * be anything, NaN scales included. */
__device__ __forceinline__ void make_scores(nvfp4_wide_smem &sm, const direct &x, float (&dot)[32],
                                            float (&rope)[32], bool gone0, bool gone1, int n,
                                            int row, int warp, int lane)
{
    const int c = lane % 4;
    const uint32_t q = tile64_descriptor(offsetof(tile64_smem, q));
    /* Lane i stores row i % 8 of matrix i / 8: (tokens 0-7, 8-15) x (positions 0-7, 8-15). */
    const int stored = 16 * warp + (lane & 15);
    const uint32_t turn = ((stored & 7) ^ (lane >> 4)) << 4;
    const uint32_t to = shared_address(sm.tile[n & 1][0]) + stored * kBox;
    uint32_t part[kParts][4][4], scales[2][2];
    mbarrier_wait(shared_address(&sm.state.raw_full[0]), n & 1);
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int box = 0; box < 2; box++) {
            uint32_t bytes =
                *(const uint32_t *)(sm.scales + (row + 8 * half) * kGroupScales + 16 * box + 4 * c);
            scales[half][box] = (half ? gone1 : gone0) ? 0u : bytes;
        }
#pragma unroll
    for (int m = 0; m < 4; m++) {
        if (m == 2)
            mbarrier_wait(shared_address(&sm.state.raw_full[1]), n & 1);
        uint32_t words[2][4], two[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int t = row + 8 * half;
            uint4 v = *(const uint4 *)(sm.latent[m >> 1] + t * kBox +
                                       (((2 * c + (m & 1)) ^ (t & 7)) << 4));
            words[half][0] = v.x, words[half][1] = v.y, words[half][2] = v.z, words[half][3] = v.w;
            two[half] = widen_scales(scales[half][m >> 1] >> (16 * (m & 1)));
        }
        if (m & 1)
            mbarrier_arrive(shared_address(&sm.raw_free[m >> 1]));
#pragma unroll
        for (int group = 0; group < 2; group++) { /* of 16 dims, a scale each */
            const int at = 2 * m + group;
            if (at >= kParts)
                wgmma_wait<kParts - 1>();
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    widen_word(part[at % kParts][2 * i], part[at % kParts][2 * i + 1],
                               words[half][2 * group + i],
                               prmt(two[half], 0, group ? 0x3232 : 0x1010), half);
#pragma unroll
            for (int k = 0; k < 4; k++)
                store_matrices(to + at * kBoxBytes + (((2 * k) << 4) ^ turn), part[at % kParts][k]);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < 4; k++)
                wgmma_f16_n64(dot, part[at % kParts][k], q + (at * kWideRows * kBox + k * 32) / 16,
                              at | k);
            wgmma_commit();
        }
    }
    wgmma_wait<1>();
    rope_scores(sm, rope, x, gone0, gone1);
    wgmma_wait<0>();
}

/* All the maker's work on tile n, whose first token is `first`. */
__device__ __forceinline__ void make_tile(const decode_args &a, const nvfp4_wide &w,
                                          nvfp4_wide_smem &sm, const sequence &s, direct &x,
                                          tile64_sums &sums, int n, int first, int least)
{
    const int warp = thread_now() / 32, lane = thread_now() % 32;
    const int g = lane / 4, c = lane % 4, row = 16 * warp + g, token = first + row;
    const bool hidden = !x.record;
    const bool gone0 = hidden || token >= s.length, gone1 = hidden || token + 8 >= s.length;
    float dot[32], rope[32];
    make_scores(sm, x, dot, rope, gone0, gone1, n, row, warp, lane);
    const int2 next = sm.place[(n + 1) & 3][warp];
    const bool masked = first + kTile > least || hidden || a.bias;
    tile64_softmax(a, sm, sm.state, s, sums, dot, rope, gone0 ? 0 : x.outer[0] * kLift,
                   gone1 ? 0 : x.outer[1] * kLift, gone0, gone1, token, masked, n, warp, lane);
    direct_load(x, record_at(w, next, g), c); /* not before P: its fence would wait for these */
}

__device__ __forceinline__ void make_range(const decode_args &a, const nvfp4_wide &w,
                                           nvfp4_wide_smem &sm, int range, int &count)
{
    const int4 r = *(const int4 *)(a.split.ranges + range);
    int tile = r.x, next_seq = r.z;
    direct x = {};
    if (tile < r.y) { /* its place is known before its copies are there */
        const int warp = thread_now() / 32, lane = thread_now() % 32;
        mbarrier_wait(shared_address(&sm.state.raw_full[0]), count & 1);
        direct_load(x, record_at(w, sm.place[count & 3][warp], lane / 4), lane % 4);
    }
    while (tile < r.y) {
        const sequence s = sequence_of(a, next_seq, tile);
        const int least = tile64_least(a, s);
        int first = (tile - s.tile_start) * kTile;
        const int stop = (min(r.y, s.tile_end) - s.tile_start) * kTile;
        next_seq = s.index + 1;
        tile += (stop - first) / kTile;
        tile64_announce(a, sm.state, range, s.index, count + (stop - first) / kTile - 1);
        barrier_sync<1, kMakers>();
        tile64_load_q<nvfp4_layout>(a, sm, sm.state, s);
        barrier_sync<1, kMakers>();
        tile64_sums sums;
        tile64_start(sums);
#pragma unroll 1
        for (; first < stop; first += kTile, count++)
            make_tile(a, w, sm, s, x, sums, count, first, least);
        tile64_finish(a, sm, sm.state, sums, range, s.index, count - 1);
    }
}

__global__ void __launch_bounds__(kTileThreads, 1)
    decode_nvfp4_h64_sm90_kernel(const __grid_constant__ decode_args a,
                                 const __grid_constant__ nvfp4_wide w)
{
    extern __shared__ __align__(1024) uint8_t raw[];
    nvfp4_wide_smem &sm = *(nvfp4_wide_smem *)raw;
    tile64_place(raw);
    if (threadIdx.x == 0) {
        mbarrier_init(shared_address(&sm.raw_free[0]), kMakers);
        mbarrier_init(shared_address(&sm.raw_free[1]), kMakers);
        tile64_barriers(sm.state, 2, 1);
    }
    __syncthreads();
    if (threadIdx.x < kMakers) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kMakerRegisters));
        const int step = gridDim.x / a.row_tiles;
        int count = 0;
        for (int range = blockIdx.x / a.row_tiles; range < a.num_ranges; range += step)
            make_range(a, w, sm, range, count);
        tile64_end(sm.state);
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kAdderRegisters));
        nvfp4_feed feed = {a, w, sm, 0, 0};
        if (threadIdx.x / 32 == kMakers / 32)
            feed.start();
        tile64_adders<nvfp4_layout>(a, sm, sm.state, feed);
    }
    dependents_may_start();
}
} // namespace

extern "C" lkv_status lkvi_decode_nvfp4_h64_sm90(const struct lkvi_attend_params *p,
                                                 const struct lkvi_cuda_launch *launch,
                                                 cudaStream_t stream)
{
    decode_args a;
    nvfp4_wide w;
    struct lkvi_sm90_job job;
    lkvi_sm90_job_make(&job, p, launch, kWideRows);
    lkvi_sm90_args(&a, &job, p);
    w.pool = (const uint8_t *)p->store.base;
    w.block_stride = p->store.block_stride;
    LKV_TRY(lkvi_sm90_map(&w.wide, p, launch, kBox, kTile, 1));
    LKV_TRY(lkvi_sm90_map(&w.narrow, p, launch, kGroupScales, kTile, 0));
    return lkvi_sm90_run(&job, p, launch, stream, decode_nvfp4_h64_sm90_kernel,
                         sizeof(nvfp4_wide_smem), kTileThreads, a, w);
}
