/* attend of the GPU against the float64 twin on the dequantised cache, for every kernel row that
 * fits: formats, heads, ragged rows, block sizes, lengths up to 70,000, scattered and shared
 * blocks, bias; outputs and workspace poisoned, NaN in unused slots. Then: the same bits run after
 * run, batch mates that change nothing, a graph replayed with other lengths, two streams. Of a
 * batch some rows are compared, by the seed. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tests/gpu/bound.h"
#include "tests/gpu/world.h"
#include "tests/reference/ref_attention.h"
#include "tests/support/compare.h"
#include "tests/support/rng.h"

enum { ROWS_CHECKED = 5, MAX_KERNELS = 64 };

static struct gpu g;
static uint32_t generic;        /* LKVI_PLAN_GENERIC_ROWS, or 0: the rows that users get */
static int num_kernels;         /* rows of the backend's table */
static int served[MAX_KERNELS]; /* worlds that each has run */

/* k -1: the row that users get (or the generic one); others: row k, if it is another Hopper row
 * that fits. The world is then planned for it. */
static int use_kernel(struct world *w, int k)
{
    struct lkvi_plan_params p = w->plan;
    if (k >= 0) {
        p.flags = w->s.plan_flags | LKVI_PLAN_GENERIC_ROWS | LKVI_PLAN_ONLY_ROW(k);
        if (generic || k == w->chosen || g.cuda->plan(g.state, &p) == LKV_OK)
            return 0;
    }
    if (!plan_world(w, k < 0 ? generic : LKVI_PLAN_ONLY_ROW(k))) {
        check(k >= 0, "no row of the table for seed %llu", (unsigned long long)w->s.seed);
        return 0;
    }
    if (k < 0)
        w->chosen = (int)w->plan.kernel_row;
    served[w->plan.kernel_row]++;
    return 1;
}

static void attend(struct world *w, cudaStream_t stream)
{
    must(g.cuda->plan_update(g.state, &w->plan, &w->attend.batch, w->d_workspace, stream),
         "update");
    must(g.cuda->attend(g.state, &w->attend, stream), "attend");
}

static void read_out(const struct world *w, float *out, float *lse, float *entropy)
{
    uint64_t rows = (uint64_t)w->num_tokens * w->s.heads;
    void *raw = malloc(w->out_bytes + 1);
    from_device(raw, w->d_out, w->out_bytes);
    widen(raw, rows * w->s.latent, w->s.out_dtype, out);
    from_device(lse, w->d_lse, rows * 4);
    from_device(entropy, w->d_entropy, rows * 4);
    free(raw);
}

struct row {
    uint32_t seq;
    int32_t len, visible; /* keys that the device knew, keys that the row sees */
    uint64_t index;       /* (token, head) */
    const float *out;
    float lse, entropy;
};

static void check_row(const struct world *w, const struct ref_context *c, const struct row *row)
{
    const float *out = row->out, lse = row->lse, entropy = row->entropy;
    char text[256];
    uint32_t L = w->s.latent, R = w->s.rope;
    double q[640], wanted[512];
    label(text, sizeof text, w);
    for (uint32_t i = 0; i < L; i++)
        q[i] = w->q[row->index * L + i];
    for (uint32_t i = 0; i < R; i++)
        q[L + i] = w->q_rope[row->index * R + i];
    struct ref_result ref = ref_attend(c, row->visible, q, w->attend.scale, wanted);
    double error = relative_l2(out, wanted, L);
    if (ref.lse == -INFINITY) {
        int clear = lse == -INFINITY && entropy == 0;
        for (uint32_t i = 0; i < L; i++)
            clear &= out[i] == 0;
        check(clear, "%s: seq %u row %llu sees nothing: out %g lse %g entropy %g", text, row->seq,
              (unsigned long long)row->index, out[0], lse, entropy);
        return;
    }
    check(error <= 3e-3,
          "%s: seq %u len %d row %llu: rel-L2 %.3e, want <= 3e-3; out[0] %g, want %g", text,
          row->seq, row->len, (unsigned long long)row->index, error, out[0], wanted[0]);
    struct bound most = bound_of(c, row->visible, q, L, w->attend.scale, w->s.format);
    check(fabs(lse - ref.lse) <= most.lse && fabs(entropy - ref.entropy) <= most.entropy,
          "%s: seq %u len %d row %llu: lse %.7g want %.7g within %.2e, entropy %.7g want %.7g "
          "within %.2e",
          text, row->seq, row->len, (unsigned long long)row->index, lse, ref.lse, most.lse, entropy,
          ref.entropy, most.entropy);
}

/* lens: what the device's lengths were (keys 0 .. lens[seq] - 1 of the appended ones). */
static void check_world(const struct world *w, const int32_t *lens)
{
    struct rng r = {w->s.seed + 1};
    uint64_t rows = (uint64_t)w->num_tokens * w->s.heads;
    uint32_t L = w->s.latent, R = w->s.rope;
    float *out = malloc(sizeof(float) * rows * L), *lse = malloc(4 * rows), *ent = malloc(4 * rows);
    read_out(w, out, lse, ent);
    for (uint64_t i = 0; i < rows * L; i++)
        if (!check(isfinite(out[i]), "seed %llu: out[%llu] is %g", (unsigned long long)w->s.seed,
                   (unsigned long long)i, out[i]))
            break;
    for (uint32_t seq = 0; seq < w->s.num_seqs; seq++) {
        int32_t len = lens[seq], q_len = w->s.rows[seq];
        double *keys = malloc(sizeof *keys * ((uint64_t)len * (L + R) + 1));
        struct ref_context c = ref_absorbed(w->latent[seq], w->ropes[seq], len, L, R, keys);
        c.bias = w->s.bias ? w->bias + (uint64_t)seq * (w->max_len + 8) : NULL;
        uint64_t n = (uint64_t)q_len * w->s.heads;
        for (uint64_t i = 0; i < n && i < (len > 4096 ? 3 : ROWS_CHECKED); i++) {
            uint64_t k = i == 0 ? n - 1 : rng_below(&r, n), j = k / w->s.heads;
            uint64_t row = (uint64_t)w->indptr[seq] * w->s.heads + k;
            int32_t visible = q_len > len ? 0 : len - q_len + (int32_t)j + 1;
            struct row one = {seq, len, visible, row, out + row * L, lse[row], ent[row]};
            check_row(w, &c, &one);
        }
        free(keys);
    }
    free(out), free(lse), free(ent);
}

static void poison(struct world *w)
{
    uint64_t rows = (uint64_t)w->num_tokens * w->s.heads;
    must_cuda(cudaMemset(w->d_out, 0xFF, w->out_bytes), "poison");
    must_cuda(cudaMemset(w->d_lse, 0xFF, rows * 4), "poison");
    must_cuda(cudaMemset(w->d_entropy, 0xFF, rows * 4), "poison");
    must_cuda(cudaDeviceSynchronize(), "poison");
}

static void run_again(struct world *w)
{
    void *first = malloc(w->out_bytes), *second = malloc(w->out_bytes);
    from_device(first, w->d_out, w->out_bytes);
    for (int i = 0; i < 3; i++) {
        poison(w);
        attend(w, NULL);
        from_device(second, w->d_out, w->out_bytes);
        check(!memcmp(first, second, w->out_bytes), "seed %llu kernel %u: run %d gave other bits",
              (unsigned long long)w->s.seed, w->plan.kernel_row, i);
    }
    free(first), free(second);
}

static void one(const struct shape *s)
{
    struct world w;
    open_world(&w, &g, s);
    for (int k = -1; k < num_kernels; k++) {
        if (!use_kernel(&w, k))
            continue;
        poison(&w);
        attend(&w, NULL);
        check_world(&w, s->lens);
        run_again(&w);
    }
    close_world(&w);
}

static struct shape ragged(uint32_t format, uint32_t heads, uint64_t seed)
{
    static const int32_t lens[] = {0,   1,    15, 16,   17, 63, 64,  65,
                                   130, 1000, 2,  4097, 31, 33, 500, 257};
    static const int32_t rows[] = {1, 1, 2, 1, 3, 1, 4, 2, 1, 2, 4, 1, 0, 1, 2, 1};
    struct shape s = {.format = format, .latent = 512, .rope = 64, .heads = heads, .seed = seed};
    s.block = 16u << seed % 4;
    s.q_dtype = 1 + seed % 3, s.out_dtype = 1 + seed / 3 % 3;
    s.bias = seed % 5 == 0;
    s.flags = format == LKV_FORMAT_INT8 && seed % 4 == 1 ? LKV_ENCODE_INT8_SYMMETRIC : 0;
    s.plan_flags = seed % 2 ? LKV_PLAN_BATCH_INVARIANT : 0;
    s.num_seqs = MAX_SEQS;
    memcpy(s.lens, lens, sizeof lens);
    memcpy(s.rows, rows, sizeof rows); /* seq 10: more rows than tokens */
    return s;
}

static struct shape plain(uint32_t format, uint32_t heads, int32_t len, uint64_t seed)
{
    struct shape s = {.format = format, .latent = 512, .rope = 64, .heads = heads, .seed = seed};
    s.block = 64, s.q_dtype = s.out_dtype = LKV_DTYPE_BF16, s.num_seqs = 2;
    s.lens[0] = len, s.lens[1] = len / 3 + 1;
    s.rows[0] = s.rows[1] = 1;
    return s;
}

/* Sequence 0 alone against sequence 0 among others. */
static void alone_or_among(struct world *w)
{
    const struct shape *s = &w->s;
    uint64_t bytes = (uint64_t)s->rows[0] * s->heads * s->latent * dtype_size(s->out_dtype);
    void *among = malloc(bytes), *alone = malloc(bytes);
    attend(w, NULL);
    from_device(among, w->d_out, bytes);
    poison(w);
    w->attend.batch.num_seqs = 1;
    w->attend.batch.num_tokens = s->rows[0];
    attend(w, NULL);
    from_device(alone, w->d_out, bytes);
    check(!memcmp(among, alone, bytes), "%s H %u kernel %u: batch mates changed the bits",
          format_name(s->format), s->heads, w->plan.kernel_row);
    free(among), free(alone);
}

static void invariance(uint32_t format, uint32_t heads)
{
    struct shape s = ragged(format, heads, 41);
    struct world w;
    s.plan_flags = LKV_PLAN_BATCH_INVARIANT;
    s.lens[0] = 3000;
    open_world(&w, &g, &s);
    for (int k = -1; k < num_kernels; k++)
        if (use_kernel(&w, k))
            alone_or_among(&w);
    close_world(&w);
}

/* Captured at full lengths, replayed with shorter ones and padding rows. */
static void capture_and_replay(struct world *w)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    must_cuda(cudaMemcpy(w->d_lens, w->s.lens, 4 * sizeof(int32_t), cudaMemcpyHostToDevice),
              "lens");
    must_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    must_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
    attend(w, stream);
    must_cuda(cudaStreamEndCapture(stream, &graph), "end of capture");
    must_cuda(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    for (int step = 0; step < 3; step++) {
        int32_t lens[4] = {5000 - 1234 * step, step ? 0 : w->s.lens[1], 64 * step + 1,
                           w->s.lens[3]};
        poison(w);
        must_cuda(cudaMemcpy(w->d_lens, lens, sizeof lens, cudaMemcpyHostToDevice), "lengths");
        must_cuda(cudaGraphLaunch(exec, stream), "replay");
        check_world(w, lens); /* waits for the device */
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
}

static void replay(uint32_t format, uint32_t heads)
{
    struct shape s = plain(format, heads, 5000, 77);
    struct world w;
    s.num_seqs = 4;
    for (int i = 0; i < 4; i++)
        s.lens[i] = 5000 - 900 * i, s.rows[i] = 1;
    open_world(&w, &g, &s);
    for (int k = -1; k < num_kernels; k++)
        if (use_kernel(&w, k))
            capture_and_replay(&w);
    close_world(&w);
}

/* Tables that name the same blocks, as a prefix cache hands them out; the last shared block of one
 * sequence is another one's middle. */
static void shared_blocks(uint32_t format, uint32_t heads, uint64_t seed)
{
    static const int32_t lens[] = {3000, 2990, 1281, 1280, 100, 5, 3000};
    struct shape s = plain(format, heads, 0, seed);
    s.num_seqs = 7, s.shared = 20;
    for (int i = 0; i < 7; i++)
        s.lens[i] = lens[i], s.rows[i] = 1 + i % 2;
    one(&s);
}

static void two_streams(void)
{
    struct shape a = plain(LKV_FORMAT_INT8, 16, 20000, 5),
                 b = plain(LKV_FORMAT_NVFP4, 16, 20000, 6);
    struct world w[2];
    cudaStream_t streams[2];
    open_world(&w[0], &g, &a);
    open_world(&w[1], &g, &b);
    (void)(use_kernel(&w[0], -1) && use_kernel(&w[1], -1));
    for (int i = 0; i < 2; i++)
        must_cuda(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking), "stream");
    for (int round = 0; round < 8; round++)
        for (int i = 0; i < 2; i++)
            attend(&w[i], streams[i]);
    must_cuda(cudaDeviceSynchronize(), "two streams");
    for (int i = 0; i < 2; i++) {
        check_world(&w[i], w[i].s.lens);
        cudaStreamDestroy(streams[i]);
        close_world(&w[i]);
    }
}

/* Length and block faults are counted, and holes are not seen. */
static void faults(void)
{
    struct shape s = plain(LKV_FORMAT_INT8, 8, 300, 9);
    struct world w;
    struct lkvi_fault_record f;
    s.rows[1] = 4, s.lens[1] = 3;
    open_world(&w, &g, &s);
    (void)use_kernel(&w, -1);
    int32_t far = (int32_t)w.store.num_blocks + 7;
    must_cuda(cudaMemcpy((int32_t *)w.d_table + 1, &far, 4, cudaMemcpyHostToDevice), "table");
    attend(&w, NULL);
    from_device(&f, w.d_faults, sizeof f);
    check(f.count == 5, "faults: %llu, want 4 rows of a short sequence and 1 block",
          (unsigned long long)f.count);
    for (int i = 0; i < (int)(2 * (w.max_len + 8)); i++)
        w.bias[i] = i >= 64 && i < 128 ? -INFINITY : 0;
    w.s.bias = 1;
    check_world(&w, s.lens);
    close_world(&w);
}

static void other_dims(void)
{
    static const uint32_t dims[][2] = {{256, 32}, {128, 16}, {384, 64}, {16, 2}, {512, 0}};
    for (uint32_t i = 0; i < 5; i++)
        for (uint32_t format = LKV_FORMAT_BF16; format <= LKV_FORMAT_NVFP4; format++) {
            struct shape s = ragged(format, 5 + 7 * i, 200 + 4 * i + format);
            s.latent = dims[i][0], s.rope = dims[i][1];
            s.num_seqs = 10;
            one(&s);
        }
}

/* Rows of the backend's table: planning for one behind the end is refused as invalid. */
static void count_kernels(void)
{
    struct lkvi_plan_params p = {.record = layout(LKV_FORMAT_INT8, 0, 512, 64), .num_heads = 1};
    p.tokens_per_block = 64, p.max_seqs = p.max_tokens = p.max_q_len = 1;
    p.max_seq_len = 64, p.max_blocks_per_seq = 1;
    p.q_dtype = p.out_dtype = LKV_DTYPE_F32;
    for (num_kernels = 0; num_kernels < MAX_KERNELS; num_kernels++) {
        p.flags = LKVI_PLAN_ONLY_ROW(num_kernels);
        if (g.cuda->plan(g.state, &p) == LKV_E_INVALID)
            return;
    }
}

/* On a Hopper device each row has run part of the table. */
static void every_kernel_ran(void)
{
    lkv_context_info info = {.size = sizeof info};
    must(g.cuda->query(g.state, &info), "query");
    for (int k = 0; k < num_kernels; k++) {
        printf("kernel row %d: %d shapes\n", k, served[k]);
        check(served[k] || info.compute_capability != 90, "kernel row %d ran no shape", k);
    }
}

static void format_table(uint32_t format, int small, uint64_t *seed)
{
    static const uint32_t heads[] = {1, 4, 8, 12, 16, 20, 32, 64, 128};
    for (uint32_t i = 0; i < 9; i += small ? 4 : 1) {
        struct shape s = ragged(format, heads[i], ++*seed);
        s.num_seqs = small ? 9 : MAX_SEQS;
        one(&s);
    }
    if (small)
        return;
    for (uint32_t i = 0; i < 3; i++) {
        struct shape s = plain(format, 1u << (2 * i + 2), 70000 - 777 * (int)i, ++*seed);
        one(&s);
    }
    shared_blocks(format, 16, ++*seed);
    invariance(format, 16);
    invariance(format, 128);
    replay(format, 16);
    replay(format, 64);
    printf("%s: %d failures so far\n", format_name(format), failures);
}

int main(int argc, char **argv)
{
    int small = 0;
    uint64_t seed = 100;
    for (int i = 1; i < argc; i++) {
        small |= !strcmp(argv[i], "--small");
        generic = !strcmp(argv[i], "--generic") ? LKVI_PLAN_GENERIC_ROWS : generic;
    }
    gpu_open(&g);
    count_kernels();
    for (uint32_t format = LKV_FORMAT_BF16; format <= LKV_FORMAT_NVFP4; format++)
        format_table(format, small, &seed);
    if (!small) {
        struct shape far = plain(LKV_FORMAT_INT8, 16, 3000, 4);
        far.first_id = (5ull << 30) / (656 * 64);
        one(&far);
        other_dims();
        two_streams();
        if (!generic)
            every_kernel_ran();
    }
    faults();
    return gpu_close(&g, generic ? "decode, generic rows" : "decode");
}
