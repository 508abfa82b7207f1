/* Projections, merge and the HEAD forms of attend against the float64 twins: weights of every
 * dtype, operands of another dtype, strided views, both projections inside a captured graph. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "quant/codec.h"
#include "tests/gpu/gpu.h"
#include "tests/reference/ref_attention.h"
#include "tests/support/compare.h"
#include "tests/support/rng.h"

enum { L = 512, R = 64, N = 128, V = 96 };

static struct gpu g;

struct array {
    float *host; /* in the dtype's precision */
    void *device;
    uint64_t n;
    uint32_t dtype;
};

static struct array make(struct rng *r, uint64_t n, double sigma, uint32_t dtype)
{
    struct array a = {malloc(4 * n), NULL, n, dtype};
    void *narrowed = malloc(4 * n);
    rng_fill_normal(r, a.host, n, sigma);
    narrow(a.host, n, dtype, narrowed);
    widen(narrowed, n, dtype, a.host);
    a.device = to_device(narrowed, n * dtype_size(dtype));
    free(narrowed);
    return a;
}

static struct array blank(uint64_t n, uint32_t dtype)
{
    return (struct array){malloc(4 * n), to_device(NULL, n * dtype_size(dtype)), n, dtype};
}

static void fetch(struct array *a)
{
    void *raw = malloc(a->n * 4);
    from_device(raw, a->device, a->n * dtype_size(a->dtype));
    widen(raw, a->n, a->dtype, a->host);
    free(raw);
}

static void drop(struct array *a)
{
    free(a->host);
    cudaFree(a->device);
}

/* Error of a product of depth n rounded to dtype, relative: inputs are exact, sums fp32. */
static double bound_of(uint32_t weights, uint32_t in, uint32_t out)
{
    uint32_t worst = LKV_DTYPE_F32;
    worst = in != weights && weights != LKV_DTYPE_F32 ? weights : worst; /* in is narrowed */
    double e = worst == LKV_DTYPE_BF16 ? 3e-3 : worst == LKV_DTYPE_F16 ? 4e-4 : 2e-6;
    return e + (out == LKV_DTYPE_BF16 ? 3e-3 : out == LKV_DTYPE_F16 ? 4e-4 : 0);
}

static void project(uint32_t weights, uint32_t in, uint32_t out, uint32_t T, uint32_t H,
                    uint32_t to_value)
{
    struct rng r = {weights * 100 + in * 10 + out};
    uint32_t from = to_value ? L : N, to = to_value ? V : L, pad = 8;
    struct array uk = make(&r, (uint64_t)H * N * L, 0.05, weights);
    struct array uv = make(&r, (uint64_t)H * V * L, 0.05, weights);
    struct array x = make(&r, (uint64_t)T * H * (from + pad), 1.0, in);
    struct array y = blank((uint64_t)T * H * (to + pad), out);
    struct lkvi_project_params p = {.num_tokens = T, .to_value = to_value};
    p.weights = (struct lkvi_weights_view){.w_uk = uk.device,
                                           .w_uv = uv.device,
                                           .dtype = weights,
                                           .num_heads = H,
                                           .nope_dim = N,
                                           .v_dim = V,
                                           .latent_dim = L,
                                           .num_matrices = H,
                                           .value_latent = L};
    p.in = (struct lkvi_heads){x.device, (int64_t)H * (from + pad), from + pad, in, 0};
    p.out = (struct lkvi_heads){y.device, (int64_t)H * (to + pad), to + pad, out, 0};
    size_t bytes;
    must(g.cuda->project_scratch(g.state, &p, &bytes), "scratch");
    void *scratch = to_device(NULL, bytes);
    must(g.cuda->project(g.state, &p, scratch, bytes, NULL), "project");
    fetch(&y);
    for (uint32_t k = 0; k < T * H; k += 1 + T * H / 40) {
        double q[L], wanted[L];
        uint32_t h = k % H;
        for (uint32_t i = 0; i < from; i++)
            q[i] = x.host[(uint64_t)k * (from + pad) + i];
        if (to_value)
            ref_value(q, uv.host + (uint64_t)h * V * L, V, L, wanted);
        else
            ref_absorb(q, uk.host + (uint64_t)h * N * L, N, L, wanted);
        double e = relative_l2(y.host + (uint64_t)k * (to + pad), wanted, to);
        if (!check(e <= bound_of(weights, in, out),
                   "project weights %u in %u out %u T %u H %u value %u row %u: rel-L2 %.3e",
                   weights, in, out, T, H, to_value, k, e))
            break;
    }
    cudaFree(scratch);
    drop(&uk), drop(&uv), drop(&x), drop(&y);
}

static void merge(uint32_t parts, uint32_t dtype)
{
    enum { T = 5, H = 3, D = 512 };
    struct rng r = {parts};
    uint64_t rows = T * H;
    struct array outs = make(&r, parts * rows * D, 1.0, dtype), out = blank(rows * D, dtype);
    struct array lses = make(&r, parts * rows, 3.0, LKV_DTYPE_F32);
    struct array ents = make(&r, parts * rows, 1.0, LKV_DTYPE_F32);
    struct array lse = blank(rows, LKV_DTYPE_F32), entropy = blank(rows, LKV_DTYPE_F32);
    for (uint64_t i = 0; i < parts * rows; i += 4)
        lses.host[i] = -INFINITY;
    for (uint64_t p = 0; p < parts; p++)
        lses.host[p * rows + 7] = -INFINITY; /* a row that no part saw */
    must_cuda(cudaMemcpy(lses.device, lses.host, 4 * parts * rows, cudaMemcpyHostToDevice), "lse");
    struct lkvi_merge_params p = {.num_parts = parts, .num_tokens = T, .num_heads = H, .dim = D};
    p.outs = (struct lkvi_heads){outs.device, H * D, D, dtype, 0};
    p.outs_part_stride = rows * D;
    p.lses = lses.device, p.entropies = ents.device;
    p.lse_part_stride = p.entropy_part_stride = rows;
    p.lse_token_stride = p.entropy_token_stride = H;
    p.out = (struct lkvi_heads){out.device, H * D, D, dtype, 0};
    p.lse = lse.device, p.entropy = entropy.device;
    p.out_lse_stride = p.out_entropy_stride = H;
    must(g.cuda->merge(g.state, &p, NULL), "merge");
    fetch(&out), fetch(&lse), fetch(&entropy);
    for (uint64_t row = 0; row < rows; row++) {
        double x[8 * D], l[8], e[8], wanted[D];
        for (uint64_t i = 0; i < parts; i++) {
            l[i] = lses.host[i * rows + row], e[i] = ents.host[i * rows + row];
            for (uint32_t d = 0; d < D; d++)
                x[i * D + d] = outs.host[(i * rows + row) * D + d];
        }
        struct ref_result ref = ref_merge(parts, D, x, l, e, wanted);
        double error = relative_l2(out.host + row * D, wanted, D);
        check(error <= (dtype == LKV_DTYPE_F32 ? 1e-6 : 3e-3), "merge of %u row %llu: %.3e", parts,
              (unsigned long long)row, error);
        check(lse.host[row] == ref.lse || fabs(lse.host[row] - ref.lse) < 1e-5,
              "merge of %u row %llu: lse %g, want %g", parts, (unsigned long long)row,
              lse.host[row], ref.lse);
        check(fabs(entropy.host[row] - ref.entropy) < 1e-4, "merge of %u row %llu: H %g, want %g",
              parts, (unsigned long long)row, entropy.host[row], ref.entropy);
    }
    drop(&outs), drop(&out), drop(&lses), drop(&ents), drop(&lse), drop(&entropy);
}

/* Random records; latent and rope get what they decode to. */
static void *make_pool(struct rng *r, const struct lkvi_record *record, int len, float *latent,
                       float *rope, uint64_t bytes)
{
    const struct lkvi_codec *codec = lkvi_codec_get(record->format, LKV_ISA_SCALAR);
    const struct lkvi_row_ops *ops = lkvi_row_ops_get(LKV_ISA_SCALAR);
    uint8_t *pool = malloc(bytes);
    memset(pool, 0xFF, bytes);
    for (int t = 0; t < len; t++) {
        struct lkvi_repair repair = {0};
        uint8_t *at = pool + (uint64_t)t * record->bytes;
        rng_fill_normal(r, latent + t * L, L, 1.0);
        rng_fill_normal(r, rope + t * R, R, 1.0);
        codec->encode(record, 0, latent + t * L, at, &repair);
        ops->rope_encode(rope + t * R, R, at + record->rope_offset);
        codec->decode(record, at, latent + t * L);
        ops->rope_decode(at + record->rope_offset, R, rope + t * R);
    }
    void *device = to_device(pool, bytes);
    free(pool);
    return device;
}

static void run_captured(const struct lkvi_attend_params *a)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    must_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    must_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
    must(g.cuda->plan_update(g.state, &a->plan, &a->batch, a->workspace, stream), "update");
    must(g.cuda->attend(g.state, a, stream), "attend");
    must_cuda(cudaStreamEndCapture(stream, &graph), "end of capture");
    must_cuda(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    must_cuda(cudaGraphLaunch(exec, stream), "replay");
    must_cuda(cudaStreamSynchronize(stream), "replay");
    cudaGraphExecDestroy(exec), cudaGraphDestroy(graph), cudaStreamDestroy(stream);
}

/* q as projected, output after W_UV; plain or batch invariant; in a graph too. */
static void heads(uint32_t H, uint32_t flags, uint32_t weights)
{
    enum { T = 3, LEN = 333, BLOCK = 64, BLOCKS = 6 };
    struct rng r = {H + flags};
    struct lkvi_record record = layout(LKV_FORMAT_INT8, 0, L, R);
    uint64_t pool_bytes = (uint64_t)BLOCKS * BLOCK * record.bytes;
    float *latent = malloc(sizeof(float) * LEN * L), *rope = malloc(sizeof(float) * LEN * R);
    void *pool = make_pool(&r, &record, LEN, latent, rope, pool_bytes);
    int32_t table[BLOCKS] = {0, 1, 2, 3, 4, 5}, len = LEN, indptr[2] = {0, T};
    struct array uk = make(&r, (uint64_t)H * N * L, 0.05, weights);
    struct array uv = make(&r, (uint64_t)H * V * L, 0.05, weights);
    struct array q = make(&r, (uint64_t)T * H * N, 0.7, LKV_DTYPE_BF16);
    struct array qr = make(&r, (uint64_t)T * H * R, 1.0, LKV_DTYPE_BF16);
    struct array out = blank((uint64_t)T * H * V, LKV_DTYPE_BF16);
    struct lkvi_plan_params plan = {.record = record, .tokens_per_block = BLOCK, .num_heads = H};
    plan.max_seqs = 1, plan.max_tokens = T, plan.max_q_len = T, plan.max_seq_len = LEN;
    plan.max_blocks_per_seq = BLOCKS, plan.q_dtype = plan.out_dtype = LKV_DTYPE_BF16;
    plan.q_form = LKV_Q_HEAD, plan.out_form = LKV_OUT_HEAD, plan.nope_dim = N, plan.v_dim = V;
    plan.flags = flags, plan.absorb_threshold = UINT32_MAX;
    must(g.cuda->plan(g.state, &plan), "plan");
    struct lkvi_attend_params a = {.plan = plan, .scale = 0.07};
    a.store = (struct lkvi_store){.record = record,
                                  .tokens_per_block = BLOCK,
                                  .num_blocks = BLOCKS,
                                  .block_stride = (uint64_t)BLOCK * record.bytes};
    a.store.base = pool;
    void *d_table = to_device(table, sizeof table), *d_len = to_device(&len, 4);
    void *d_indptr = to_device(indptr, sizeof indptr);
    a.batch = (struct lkvi_batch_view){d_table, d_len, d_indptr, BLOCKS, T, 1, BLOCKS};
    a.weights = (struct lkvi_weights_view){.w_uk = uk.device,
                                           .w_uv = uv.device,
                                           .dtype = weights,
                                           .num_heads = H,
                                           .nope_dim = N,
                                           .v_dim = V,
                                           .latent_dim = L,
                                           .num_matrices = H,
                                           .value_latent = L};
    a.q = (struct lkvi_heads){q.device, (int64_t)H * N, N, LKV_DTYPE_BF16, 0};
    a.q_rope = (struct lkvi_heads){qr.device, (int64_t)H * R, R, LKV_DTYPE_BF16, 0};
    a.out = (struct lkvi_heads){out.device, (int64_t)H * V, V, LKV_DTYPE_BF16, 0};
    a.workspace = to_device(NULL, plan.workspace_bytes);
    a.workspace_bytes = plan.workspace_bytes;
    run_captured(&a);
    fetch(&out);
    double *rows = malloc(sizeof *rows * LEN * (N + R + V));
    for (uint32_t k = 0; k < T * H; k += 1 + T * H / 6) {
        uint32_t h = k % H, j = k / H;
        double x[N + R], wanted[V];
        struct ref_head head = {uk.host + (uint64_t)h * N * L, uv.host + (uint64_t)h * V * L, N, V};
        struct ref_context c = ref_decompressed(latent, rope, LEN, L, R, &head, rows);
        for (uint32_t i = 0; i < N; i++)
            x[i] = q.host[(uint64_t)k * N + i];
        for (uint32_t i = 0; i < R; i++)
            x[N + i] = qr.host[(uint64_t)k * R + i];
        ref_attend(&c, LEN - T + j + 1, x, a.scale, wanted);
        double e = relative_l2(out.host + (uint64_t)k * V, wanted, V);
        check(e <= 6e-3, "HEAD forms H %u flags %u weights %u row %u: rel-L2 %.3e", H, flags,
              weights, k, e);
    }
    free(rows), free(latent), free(rope);
    cudaFree(pool), cudaFree(a.workspace), cudaFree(d_table), cudaFree(d_len);
    cudaFree(d_indptr);
    drop(&uk), drop(&uv), drop(&q), drop(&qr), drop(&out);
}

int main(void)
{
    gpu_open(&g);
    for (uint32_t w = LKV_DTYPE_F32; w <= LKV_DTYPE_BF16; w++)
        for (uint32_t io = 0; io < 9; io++)
            project(w, 1 + io % 3, 1 + io / 3, 1 + 16 * (io % 2), 5 + io, io & 1);
    for (uint32_t parts = 1; parts <= 8; parts += 3)
        for (uint32_t dtype = LKV_DTYPE_F32; dtype <= LKV_DTYPE_BF16; dtype++)
            merge(parts, dtype);
    for (uint32_t H = 4; H <= 64; H *= 4) {
        heads(H, 0, LKV_DTYPE_BF16);
        heads(H, LKV_PLAN_BATCH_INVARIANT, LKV_DTYPE_BF16);
    }
    heads(16, 0, LKV_DTYPE_F16);
    heads(16, 0, LKV_DTYPE_F32);
    return gpu_close(&g, "project");
}
