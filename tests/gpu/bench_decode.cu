/* A standalone harness of the Hopper decode kernels (no Criterion, no shared library): first checks
 * a table of awkward shapes against float64, with poisoned outputs and workspace, then times shapes
 * with cold data and writes JSON rows. Usage: bench_decode [check|time|all] [format]
 * [row of the table, for a profiler or a sanitizer]. */
#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include "attention/cuda/kernel.h"

#define CHECK(call)                                                                                \
    do {                                                                                           \
        cudaError_t e_ = (call);                                                                   \
        if (e_ != cudaSuccess) {                                                                   \
            printf("%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(e_));                      \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

namespace
{
constexpr int L = 512, R = 64;

lkv_status fail(lkv_status status, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    printf("\n");
    return status;
}
const lkvi_host host = {fail, nullptr};
lkvi_cuda_launch launch;

struct shape {
    const char *what;
    int heads, batch, context, q_len, block;
    uint32_t flags;
    bool bias, bad_ids, ragged;
};

lkvi_record record_of(uint32_t format)
{
    lkvi_record r = {};
    r.format = format;
    r.latent_dim = L;
    r.rope_dim = R;
    static const uint32_t codes[] = {0, 1024, 512, 512, 256}, scales[] = {0, 0, 16, 16, 48};
    r.codes_bytes = codes[format];
    r.scales_offset = r.codes_bytes;
    r.scales_bytes = scales[format];
    r.rope_offset = r.scales_offset + r.scales_bytes;
    r.rope_bytes = 2 * R;
    r.bytes = r.rope_offset + r.rope_bytes;
    return r;
}

__device__ uint32_t mix(uint64_t i)
{
    uint32_t x = (uint32_t)i * 2654435761u ^ (uint32_t)(i >> 32) * 0x27d4eb2fu ^ 0x9e3779b9u;
    x ^= x >> 16;
    x *= 0x85ebca6b;
    x ^= x >> 13;
    x *= 0xc2b2ae35;
    return x ^ (x >> 16);
}
/* Random bits; bf16 of magnitude 0.5 to 2; e4m3 without NaN. */
__global__ void fill_codes(uint32_t *p, uint64_t words, uint32_t format)
{
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < words;
         i += (uint64_t)gridDim.x * blockDim.x) {
        uint32_t x = mix(i);
        if (format == LKV_FORMAT_BF16)
            x = (x & 0x80FF80FFu) | 0x3F003F00u;
        if (format == LKV_FORMAT_FP8)
            x ^= __vcmpeq4(x & 0x7F7F7F7Fu, 0x7F7F7F7Fu) & 0x01010101u;
        p[i] = x;
    }
}
__global__ void fill_scales(uint8_t *p, uint64_t records, lkvi_record r)
{
    uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
    if (i >= records)
        return;
    uint8_t *to = p + i * r.bytes;
    uint32_t x = mix(i + 77);
    if (r.format == LKV_FORMAT_INT8) {
        float *s = (float *)(to + r.scales_offset);
        s[0] = 0.01f * (1 + (x % 97) / 97.f);
        s[1] = ((x >> 8) % 64) / 2.f - 16.f;
        s[2] = s[3] = 0;
    } else if (r.format == LKV_FORMAT_FP8) {
        float *s = (float *)(to + r.scales_offset);
        for (int j = 0; j < 4; j++)
            s[j] = 0.004f * (1 + ((x >> (4 * j)) % 97) / 97.f) * (j == 2 ? 4 : 1);
    } else if (r.format == LKV_FORMAT_NVFP4) {
        float *s = (float *)(to + r.scales_offset + 32);
        s[0] = s[2] = s[3] = 0;
        s[1] = 0.004f * (1 + (x % 97) / 97.f);
        for (int j = 0; j < 32; j++)
            to[r.scales_offset + j] = 0x30 + to[r.scales_offset + j] % 24;
    }
    __nv_bfloat16 *rope = (__nv_bfloat16 *)(to + r.rope_offset);
    for (int j = 0; j < R; j++) {
        x = x * 1664525u + 1013904223u;
        rope[j] = __float2bfloat16(((x >> 9) & 1023) / 512.f - 1.f);
    }
}

void decode_record(const uint8_t *p, const lkvi_record &r, float *out)
{
    static const float e2m1[8] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
    const float *s = (const float *)(p + r.scales_offset);
    for (int d = 0; d < L; d++) {
        if (r.format == LKV_FORMAT_INT8) {
            out[d] = s[0] * ((float)(int8_t)p[d] - s[1]);
        } else if (r.format == LKV_FORMAT_BF16) {
            out[d] = __bfloat162float(((const __nv_bfloat16 *)p)[d]);
        } else if (r.format == LKV_FORMAT_FP8) {
            __nv_fp8_e4m3 code;
            code.__x = p[d];
            out[d] = (float)code * s[d / 128];
        } else {
            int n = (p[d / 2] >> (4 * (d % 2))) & 15;
            __nv_fp8_e4m3 scale;
            scale.__x = p[r.scales_offset + d / 16];
            out[d] = (n & 8 ? -1 : 1) * e2m1[n & 7] * (float)scale * s[9];
        }
    }
    for (int d = 0; d < R; d++)
        out[L + d] = __bfloat162float(((const __nv_bfloat16 *)(p + r.rope_offset))[d]);
}

template <typename T> T *device(size_t n, const T *from = nullptr)
{
    T *p;
    CHECK(cudaMalloc(&p, n * sizeof(T) + 256));
    if (from)
        CHECK(cudaMemcpy(p, from, n * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}

struct run { /* one shape's buffers */
    shape sh;
    lkvi_record rec;
    std::vector<int> lens, indptr, table;
    std::vector<float> q, bias;
    std::vector<uint8_t> seen_block;
    int rows, width, max_len;
    uint64_t num_blocks;
    uint8_t *pool, *workspace;
    void *d_q;
    bool bf16_q;
    float *d_out, *d_lse, *d_entropy, *d_bias;
    int *d_table, *d_lens, *d_indptr;
    lkvi_fault_record *faults;
    lkvi_attend_params p;
    const lkvi_cuda_kernel *kernel;
};

void lengths(run &r)
{
    static const int edge[] = {0, 1, 63, 64, 65, 127, 200, 1, 3, 1000};
    r.indptr.assign(1, 0);
    for (int i = 0; i < r.sh.batch; i++) {
        int len = r.sh.ragged ? edge[i % 10] : r.sh.context;
        int q_len = r.sh.ragged ? 1 + i % r.sh.q_len : r.sh.q_len;
        r.lens.push_back(len);
        r.indptr.push_back(r.indptr.back() + q_len);
        r.max_len = std::max(r.max_len, len);
    }
    r.rows = r.indptr.back();
}

void blocks(run &r, std::mt19937 &rng)
{
    int bt = r.sh.block;
    r.width = (r.max_len + bt - 1) / bt + 1;
    std::vector<int> ids;
    uint64_t used = 0;
    for (int len : r.lens)
        used += (len + bt - 1) / bt;
    r.num_blocks = used + 3;
    for (uint64_t i = 0; i < r.num_blocks; i++)
        ids.push_back((int)i);
    std::shuffle(ids.begin(), ids.end(), rng);
    r.table.assign((size_t)r.width * r.sh.batch, 0x7FFFFFF0);
    size_t next = 0;
    for (int i = 0; i < r.sh.batch; i++)
        for (int b = 0; b < (r.lens[i] + bt - 1) / bt; b++) {
            int &e = r.table[(size_t)i * r.width + b];
            e = ids[next++];
            if (r.sh.bad_ids && rng() % 5 == 0)
                e = rng() % 2 ? -1 : (int)r.num_blocks + 5;
        }
}

__global__ void poison_tail(uint8_t *pool, lkvi_record rec, int block, const int *table, int width,
                            const int *lens, uint64_t num_blocks)
{
    int len = lens[blockIdx.x], used = (len + block - 1) / block;
    if (used == 0)
        return;
    int id = table[blockIdx.x * width + used - 1];
    if (id < 0 || (uint64_t)id >= num_blocks)
        return;
    for (int t = len - (used - 1) * block; t < block; t++)
        for (uint32_t i = threadIdx.x; i < rec.bytes; i += blockDim.x)
            pool[((uint64_t)id * block + t) * rec.bytes + i] = 0xFF;
}

void build(run &r, const shape &sh, uint32_t format)
{
    r.sh = sh;
    r.rec = record_of(format);
    r.max_len = 1;
    std::mt19937 rng(1234 + sh.heads);
    lengths(r);
    blocks(r, rng);
    uint64_t records = r.num_blocks * sh.block;
    r.pool = device<uint8_t>(records * r.rec.bytes);
    fill_codes<<<4096, 256>>>((uint32_t *)r.pool, records * r.rec.bytes / 4, format);
    fill_scales<<<(unsigned)((records + 255) / 256), 256>>>(r.pool, records, r.rec);
    r.q.resize((size_t)r.rows * sh.heads * (L + R));
    std::normal_distribution<float> normal(0, 1);
    for (float &x : r.q)
        x = normal(rng) * 0.3f;
    /* The wide BF16 row takes q in bf16 only. */
    r.bf16_q = format == LKV_FORMAT_BF16 && sh.heads * sh.q_len > 16;
    std::vector<__nv_bfloat16> narrow;
    for (float &x : r.q)
        if (r.bf16_q) {
            narrow.push_back(__float2bfloat16(x));
            x = __bfloat162float(narrow.back());
        }
    if (sh.bias)
        for (int i = 0; i < r.max_len * sh.batch; i++)
            r.bias.push_back(i % 7 == 3 ? -INFINITY : normal(rng));
    r.d_q = r.bf16_q ? (void *)device(narrow.size(), narrow.data())
                     : (void *)device(r.q.size(), r.q.data());
    r.d_out = device<float>((size_t)r.rows * sh.heads * L);
    r.d_lse = device<float>((size_t)r.rows * sh.heads);
    r.d_entropy = device<float>((size_t)r.rows * sh.heads);
    r.d_bias = sh.bias ? device(r.bias.size(), r.bias.data()) : nullptr;
    r.d_table = device(r.table.size(), r.table.data());
    r.d_lens = device(r.lens.size(), r.lens.data());
    r.d_indptr = device(r.indptr.size(), r.indptr.data());
    r.faults = device<lkvi_fault_record>(1);
    CHECK(cudaMemset(r.faults, 0, sizeof *r.faults));
    poison_tail<<<sh.batch, 128>>>(r.pool, r.rec, sh.block, r.d_table, r.width, r.d_lens,
                                   r.num_blocks);
    CHECK(cudaDeviceSynchronize());
}

bool parameters(run &r)
{
    lkvi_attend_params &p = r.p;
    memset(&p, 0, sizeof p);
    p.plan.record = r.rec;
    p.plan.tokens_per_block = r.sh.block;
    p.plan.num_heads = r.sh.heads;
    p.plan.max_seqs = r.sh.batch;
    p.plan.max_tokens = r.rows;
    p.plan.max_q_len = r.sh.q_len;
    p.plan.max_seq_len = r.max_len;
    p.plan.max_blocks_per_seq = r.width;
    p.plan.q_dtype = r.bf16_q ? LKV_DTYPE_BF16 : LKV_DTYPE_F32;
    p.plan.out_dtype = LKV_DTYPE_F32;
    p.plan.flags = r.sh.flags;
    p.store.record = r.rec;
    p.store.tokens_per_block = r.sh.block;
    p.store.num_blocks = r.num_blocks;
    p.store.block_stride = (uint64_t)r.sh.block * r.rec.bytes;
    p.store.base = r.pool;
    p.store.faults = r.faults;
    p.batch = {r.d_table,         r.d_lens,         r.d_indptr,
               (uint64_t)r.width, (uint64_t)r.rows, (uint32_t)r.sh.batch,
               (uint32_t)r.width};
    p.q = {r.d_q, (int64_t)r.sh.heads * (L + R), L + R, p.plan.q_dtype, 0};
    p.q_rope = p.q;
    p.q_rope.data = (uint8_t *)r.d_q + L * (r.bf16_q ? 2 : 4);
    p.out = {r.d_out, (int64_t)r.sh.heads * L, L, LKV_DTYPE_F32, 0};
    p.lse = r.d_lse;
    p.entropy = r.d_entropy;
    p.bias = r.d_bias;
    p.lse_stride = p.entropy_stride = r.sh.heads;
    p.bias_stride = r.max_len;
    p.scale = 1 / sqrt(192.);
    r.kernel = nullptr;
    for (uint32_t i = 0; i < lkvi_sm90_num_kernels && !r.kernel; i++) {
        const lkvi_cuda_kernel *k = &lkvi_sm90_kernels[i];
        if (k->format == r.rec.format && (uint32_t)r.sh.heads >= k->heads_min &&
            (uint32_t)r.sh.heads <= k->heads_max && k->supported(&p.plan, &launch))
            r.kernel = k;
    }
    if (!r.kernel)
        return false;
    p.workspace_bytes = r.kernel->scratch(&p.plan, &launch);
    r.workspace = device<uint8_t>(p.workspace_bytes);
    CHECK(cudaMemset(r.workspace, 0xFF, p.workspace_bytes));
    p.workspace = r.workspace;
    return true;
}

void release(run &r)
{
    for (void *p : {(void *)r.pool, (void *)r.workspace, (void *)r.d_q, (void *)r.d_out,
                    (void *)r.d_lse, (void *)r.d_entropy, (void *)r.d_bias, (void *)r.d_table,
                    (void *)r.d_lens, (void *)r.d_indptr, (void *)r.faults})
        cudaFree(p);
}

struct worst {
    double out, lse, entropy;
    bool bad;
};

/* float64 attention of one row over the dequantised cache. */
void reference_row(const run &r, const std::vector<float> &kv, const std::vector<bool> &dead,
                   int seq, int row, int head, std::vector<double> &out, double *lse, double *ent)
{
    const float *q = r.q.data() + ((size_t)row * r.sh.heads + head) * (L + R);
    int q_len = r.indptr[seq + 1] - r.indptr[seq], len = r.lens[seq];
    int limit = q_len > len ? 0 : len - q_len + (row - r.indptr[seq]) + 1;
    std::vector<double> s(std::max(limit, 0), -INFINITY);
    double top = -INFINITY, sum = 0;
    for (int t = 0; t < limit; t++) {
        if (dead[t])
            continue;
        double dot = 0;
        for (int d = 0; d < L + R; d++)
            dot += (double)q[d] * kv[(size_t)t * (L + R) + d];
        s[t] = dot * r.p.scale + (r.sh.bias ? r.bias[(size_t)seq * r.max_len + t] : 0);
        top = std::max(top, s[t]);
    }
    out.assign(L, 0);
    *ent = 0;
    for (int t = 0; t < limit; t++) {
        double w = top > -INFINITY ? exp(s[t] - top) : 0;
        if (w == 0)
            continue;
        sum += w;
        *ent += w * (s[t] - top);
        for (int d = 0; d < L; d++)
            out[d] += w * kv[(size_t)t * (L + R) + d];
    }
    *lse = sum > 0 ? top + log(sum) : -INFINITY;
    *ent = sum > 0 ? log(sum) - *ent / sum : 0;
    for (int d = 0; d < L; d++)
        out[d] = sum > 0 ? out[d] / sum : 0;
}

void compare(const run &r, worst &w)
{
    std::vector<float> out((size_t)r.rows * r.sh.heads * L), lse(r.rows * r.sh.heads),
        ent(lse.size());
    CHECK(cudaMemcpy(out.data(), r.d_out, out.size() * 4, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(lse.data(), r.d_lse, lse.size() * 4, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(ent.data(), r.d_entropy, ent.size() * 4, cudaMemcpyDeviceToHost));
    int seq_step = r.sh.ragged ? 1 : std::max(1, r.sh.batch - 1);
    for (int seq = 0; seq < r.sh.batch; seq += seq_step) {
        std::vector<float> kv((size_t)r.lens[seq] * (L + R));
        std::vector<bool> dead(r.lens[seq]);
        std::vector<uint8_t> raw((size_t)r.sh.block * r.rec.bytes);
        for (int t = 0; t < r.lens[seq]; t++) {
            int id = r.table[(size_t)seq * r.width + t / r.sh.block];
            dead[t] = id < 0 || (uint64_t)id >= r.num_blocks;
            if (dead[t])
                continue;
            if (t % r.sh.block == 0)
                CHECK(cudaMemcpy(raw.data(), r.pool + (uint64_t)id * raw.size(), raw.size(),
                                 cudaMemcpyDeviceToHost));
            decode_record(raw.data() + (size_t)(t % r.sh.block) * r.rec.bytes, r.rec,
                          &kv[(size_t)t * (L + R)]);
        }
        for (int row = r.indptr[seq]; row < r.indptr[seq + 1]; row++)
            for (int h = 0; h < r.sh.heads; h += r.sh.ragged ? 1 : 5) {
                std::vector<double> want;
                double want_lse, want_ent, e = 0, n = 0;
                reference_row(r, kv, dead, seq, row, h, want, &want_lse, &want_ent);
                size_t at = (size_t)row * r.sh.heads + h;
                for (int d = 0; d < L; d++) {
                    double x = out[at * L + d] - want[d];
                    e += x * x;
                    n += want[d] * want[d];
                }
                double rel = n > 0 ? sqrt(e / n) : sqrt(e);
                double dl = want_lse == lse[at] ? 0 : fabs(want_lse - lse[at]);
                double de = fabs(want_ent - ent[at]);
                /* The wide BF16 row's P is one bf16. */
                bool bad = !(rel < (r.bf16_q ? 3e-3 : 2e-3)) || !(dl < 2e-3) || !(de < 5e-3);
                if (bad && !w.bad)
                    printf(
                        "  first bad: seq %d len %d row %d head %d: rel %g lse %g want %g entropy "
                        "%g want %g\n",
                        seq, r.lens[seq], row, h, rel, lse[at], want_lse, ent[at], want_ent);
                w.bad |= bad;
                w.out = std::max(w.out, rel), w.lse = std::max(w.lse, dl);
                w.entropy = std::max(w.entropy, de);
            }
    }
}

void attend(run &r)
{
    if (r.kernel->attend(&r.p, &launch, 0) != LKV_OK)
        exit(1);
}

bool check(const shape &sh, uint32_t format)
{
    run r = {};
    build(r, sh, format);
    if (!parameters(r)) {
        printf("%-22s format %u: not served\n", sh.what, format);
        release(r);
        return true;
    }
    size_t out_bytes = (size_t)r.rows * sh.heads * L * 4;
    std::vector<uint8_t> first(out_bytes), second(out_bytes);
    worst w = {};
    for (int turn = 0; turn < 2; turn++) {
        CHECK(cudaMemset(r.d_out, 0xFF, out_bytes));
        CHECK(cudaMemset(r.d_lse, 0xFF, (size_t)r.rows * sh.heads * 4));
        CHECK(cudaMemset(r.d_entropy, 0xFF, (size_t)r.rows * sh.heads * 4));
        if (r.kernel->update(&r.p.plan, &r.p.batch, r.workspace, &launch, 0) != LKV_OK)
            exit(1);
        attend(r);
        CHECK(cudaDeviceSynchronize());
        CHECK(
            cudaMemcpy((turn ? second : first).data(), r.d_out, out_bytes, cudaMemcpyDeviceToHost));
    }
    compare(r, w);
    lkvi_fault_record faults;
    CHECK(cudaMemcpy(&faults, r.faults, sizeof faults, cudaMemcpyDeviceToHost));
    bool same = first == second;
    printf("%-22s %s H %d batch %d q %d block %d: rel-L2 %.1e lse %.1e entropy %.1e faults %llu "
           "%s%s\n",
           sh.what, r.kernel->name, sh.heads, sh.batch, sh.q_len, sh.block, w.out, w.lse, w.entropy,
           (unsigned long long)faults.count, w.bad ? "BAD" : "ok", same ? "" : " NOT BITWISE");
    fflush(stdout);
    release(r);
    return !w.bad && same;
}

void time_shape(const shape &sh, uint32_t format, double read_gbps)
{
    run r = {};
    build(r, sh, format);
    if (!parameters(r)) {
        release(r);
        return;
    }
    uint64_t flush_bytes = 256u << 20;
    uint8_t *flush = device<uint8_t>(flush_bytes);
    cudaEvent_t a, b;
    CHECK(cudaEventCreate(&a));
    CHECK(cudaEventCreate(&b));
    r.kernel->update(&r.p.plan, &r.p.batch, r.workspace, &launch, 0);
    std::vector<float> us;
    for (int i = 0; i < 24; i++) {
        CHECK(cudaMemsetAsync(flush, i, flush_bytes, 0));
        CHECK(cudaEventRecord(a));
        attend(r);
        CHECK(cudaEventRecord(b));
        CHECK(cudaDeviceSynchronize());
        float ms;
        CHECK(cudaEventElapsedTime(&ms, a, b));
        if (i >= 4)
            us.push_back(ms * 1e3f);
    }
    std::sort(us.begin(), us.end());
    double mid = us[us.size() / 2];
    double bytes = (double)sh.batch * sh.context * r.rec.bytes;
    double flop = 2.0 * sh.batch * sh.q_len * sh.heads * sh.context * (2 * L + R);
    static const char *const names[] = {"", "bf16", "fp8", "int8", "nvfp4"};
    printf("{\"device\":\"cuda:0\",\"kernel\":\"%s\",\"format\":\"%s\",\"heads\":%d,\"q_len\":%d,"
           "\"batch\":%d,\"context\":%d,\"us\":%.1f,\"us_p10\":%.1f,\"us_p90\":%.1f,"
           "\"gbps\":%.0f,\"tflops\":%.1f,\"read_ceiling_gbps\":%.0f}\n",
           r.kernel->name, names[format], sh.heads, sh.q_len, sh.batch, sh.context, mid,
           us[us.size() / 10], us[us.size() * 9 / 10], bytes / mid / 1e3, flop / mid / 1e6,
           read_gbps);
    fflush(stdout);
    cudaFree(flush);
    release(r);
}

__global__ void read_all(const uint4 *p, uint64_t n, uint4 *sink)
{
    uint4 x = make_uint4(0, 0, 0, 0);
    uint64_t step = (uint64_t)gridDim.x * blockDim.x,
             i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
    for (; i + 3 * step < n; i += 4 * step) {
        uint4 a = p[i], b = p[i + step], c = p[i + 2 * step], d = p[i + 3 * step];
        x.x ^= a.x ^ b.y ^ c.z ^ d.w;
    }
    if (x.x == 0x12345678)
        *sink = x;
}

double read_ceiling()
{
    uint64_t bytes = 4ull << 30;
    uint4 *p = (uint4 *)device<uint8_t>(bytes);
    fill_codes<<<4096, 256>>>((uint32_t *)p, bytes / 4, LKV_FORMAT_INT8);
    cudaEvent_t a, b;
    cudaEventCreate(&a);
    cudaEventCreate(&b);
    float best = 1e9;
    for (int i = 0; i < 8; i++) {
        cudaEventRecord(a);
        read_all<<<launch.num_sms * 4, 512>>>(p, bytes / 16, p);
        cudaEventRecord(b);
        CHECK(cudaDeviceSynchronize());
        float ms;
        cudaEventElapsedTime(&ms, a, b);
        best = std::min(best, ms);
    }
    cudaFree(p);
    return bytes / best / 1e6;
}

const shape kChecks[] = {
    {"one tile", 16, 1, 64, 1, 64, 0, false, false, false},
    {"plain", 16, 3, 1024, 1, 64, 0, false, false, false},
    {"few heads", 5, 3, 700, 1, 64, 0, false, false, false},
    {"ragged lengths", 16, 10, 0, 1, 64, 0, false, false, true},
    {"mtp", 16, 20, 0, 4, 64, 0, false, false, true},
    {"block 16", 16, 10, 0, 2, 16, 0, false, false, true},
    {"block 32", 8, 10, 0, 2, 32, 0, false, false, true},
    {"block 128", 16, 10, 0, 1, 128, 0, false, false, true},
    {"bias", 16, 10, 0, 2, 64, 0, true, false, true},
    {"bad ids", 16, 10, 0, 2, 16, 0, true, true, true},
    {"invariant", 16, 20, 0, 1, 64, LKV_PLAN_BATCH_INVARIANT, false, false, true},
    {"one head", 1, 4, 300, 1, 32, 0, false, false, false},
    {"32 heads", 32, 10, 0, 1, 64, 0, false, false, true},
    {"64 heads", 64, 10, 0, 1, 64, 0, false, false, true},
    {"48 rows of 3 queries", 16, 20, 0, 3, 64, 0, false, false, true},
    {"64 heads, mtp", 64, 20, 0, 4, 64, 0, false, false, true},
    {"64 heads, bad ids", 64, 10, 0, 2, 16, 0, true, true, true},
    {"64 heads, invariant", 64, 20, 0, 1, 128, LKV_PLAN_BATCH_INVARIANT, false, false, true},
    {"128 heads", 128, 10, 0, 1, 32, 0, false, false, true},
    {"64K", 16, 2, 65536, 1, 64, 0, false, false, false},
    {"64 heads, 64K", 64, 2, 65536, 1, 64, 0, false, false, false},
};
const shape kTimes[] = {
    {"", 16, 1, 1024, 1, 64, 0, false, false, false},
    {"", 16, 1, 65536, 1, 64, 0, false, false, false},
    {"", 16, 8, 16384, 1, 64, 0, false, false, false},
    {"", 16, 32, 65536, 1, 64, 0, false, false, false},
    {"", 16, 128, 16384, 1, 64, 0, false, false, false},
    {"", 16, 32, 65536, 2, 64, 0, false, false, false},
    {"", 64, 32, 65536, 1, 64, 0, false, false, false},
    {"", 128, 32, 65536, 1, 64, 0, false, false, false},
};
} // namespace

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "all";
    uint32_t only = argc > 2 ? (uint32_t)atoi(argv[2]) : 0;
    const int row = argc > 3 ? atoi(argv[3]) : -1;
    cudaDeviceProp prop;
    CHECK(cudaGetDeviceProperties(&prop, 0));
    cudaDriverEntryPointQueryResult found;
    CHECK(cudaFree(0));
    CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &launch.encode_tiled, 12000,
                                           cudaEnableDefault, &found));
    launch.host = &host;
    launch.arch = 90;
    launch.num_sms = prop.multiProcessorCount;
    launch.smem_bytes_per_block = (uint32_t)prop.sharedMemPerBlockOptin;
    bool good = true;
    for (uint32_t format = LKV_FORMAT_BF16; format <= LKV_FORMAT_NVFP4; format++) {
        if (only && only != format)
            continue;
        if (strcmp(mode, "time"))
            for (const shape &sh : kChecks)
                if (row < 0 || row == &sh - kChecks)
                    good &= check(sh, format);
    }
    if (good && strcmp(mode, "check")) {
        double ceiling = read_ceiling();
        for (uint32_t format = LKV_FORMAT_BF16; format <= LKV_FORMAT_NVFP4; format++)
            if (!only || only == format)
                for (const shape &sh : kTimes)
                    if (row < 0 || row == &sh - kTimes)
                        time_shape(sh, format, ceiling);
    }
    printf("%s\n", good ? "all right" : "WRONG");
    return good ? 0 : 1;
}
