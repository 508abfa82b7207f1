/* attend of the GPU against the float64 twin on the dequantised cache: formats, heads, ragged rows,
 * block sizes, lengths up to 70,000, scattered blocks, bias; outputs and workspace poisoned, NaN in
 * unused slots. Then: the same bits run after run, batch mates that change nothing, a graph
 * replayed with other lengths, two streams. Of a batch some rows are compared, by the seed. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "attention/cuda/state.h"
#include "quant/codec.h"
#include "tests/gpu/gpu.h"
#include "tests/reference/ref_attention.h"
#include "tests/support/compare.h"
#include "tests/support/rng.h"

enum { MAX_SEQS = 16, ROWS_CHECKED = 5 };

struct shape {
    uint32_t format, flags, latent, rope, heads, block, q_dtype, out_dtype, bias, plan_flags;
    uint32_t num_seqs;
    int32_t lens[MAX_SEQS], rows[MAX_SEQS]; /* rows: query rows of each sequence */
    uint64_t first_id;                      /* block ids start here: pools larger than 4 GiB */
    uint64_t seed;
};

struct world {
    struct shape s;
    struct lkvi_store store; /* device */
    struct lkvi_record record;
    uint32_t width, num_tokens, max_rows, max_len;
    float *latent[MAX_SEQS], *ropes[MAX_SEQS]; /* dequantised */
    float *q, *q_rope, *bias;                  /* as the kernel sees them, fp32 */
    int32_t *table, indptr[MAX_SEQS + 1];
    void *d_pool, *d_table, *d_lens, *d_indptr, *d_q, *d_q_rope, *d_out, *d_lse, *d_entropy,
        *d_bias;
    void *d_faults, *d_workspace;
    uint64_t out_bytes; /* of d_out */
    struct lkvi_plan_params plan;
    struct lkvi_attend_params attend;
};

static struct gpu g;
static uint32_t generic; /* LKVI_PLAN_GENERIC_ROWS, or 0: the rows that users get */
static void label(char *text, size_t n, const struct shape *s)
{
    snprintf(text, n,
             "%s flags %u %u+%u H %u block %u q %u out %u bias %u plan %u seqs %u len %d "
             "rows %d seed %llu",
             format_name(s->format), s->flags, s->latent, s->rope, s->heads, s->block, s->q_dtype,
             s->out_dtype, s->bias, s->plan_flags, s->num_seqs, s->lens[0], s->rows[0],
             (unsigned long long)s->seed);
}

/* Records into blocks on the device; the last block's tail stays NaN. */
static void make_sequence(struct world *w, uint32_t seq, struct rng *r, const int32_t *ids)
{
    const struct lkvi_codec *codec = lkvi_codec_get(w->s.format, LKV_ISA_SCALAR);
    const struct lkvi_row_ops *ops = lkvi_row_ops_get(LKV_ISA_SCALAR);
    uint32_t L = w->s.latent, R = w->s.rope, bytes = w->record.bytes;
    uint8_t *block = malloc((uint64_t)w->s.block * bytes);
    int32_t len = w->s.lens[seq];
    w->latent[seq] = malloc(sizeof(float) * ((uint64_t)len * L + 1));
    w->ropes[seq] = malloc(sizeof(float) * ((uint64_t)len * R + 1));
    for (int32_t t = 0; t < len; t += (int32_t)w->s.block) {
        memset(block, 0xFF, (uint64_t)w->s.block * bytes);
        for (uint32_t j = 0; j < w->s.block && t + (int32_t)j < len; j++) {
            float row[1024], rope[64];
            double sigma = exp(0.4 * rng_normal(r)), mean = rng_below(r, 3) ? 0 : rng_normal(r);
            struct lkvi_repair repair = {0};
            uint8_t *record = block + j * bytes;
            memset(record, 0, bytes);
            for (uint32_t i = 0; i < L; i++)
                row[i] = (float)(sigma * rng_normal(r) + 0.3 * mean);
            for (uint32_t i = 0; i < R; i++)
                rope[i] = (float)rng_normal(r);
            codec->encode(&w->record, 0.02f, row, record, &repair);
            ops->rope_encode(rope, R, record + w->record.rope_offset);
            codec->decode(&w->record, record, w->latent[seq] + (uint64_t)(t + j) * L);
            ops->rope_decode(record + w->record.rope_offset, R,
                             w->ropes[seq] + (uint64_t)(t + j) * R);
        }
        must_cuda(cudaMemcpy(w->store.base + (uint64_t)ids[t / w->s.block] * w->store.block_stride,
                             block, (uint64_t)w->s.block * bytes, cudaMemcpyHostToDevice),
                  "block");
    }
    free(block);
}

static void make_pool(struct world *w, struct rng *r)
{
    uint32_t blocks = 0;
    w->width = 1;
    for (uint32_t i = 0; i < w->s.num_seqs; i++) {
        uint32_t n = (w->s.lens[i] + w->s.block - 1) / w->s.block;
        blocks += n;
        w->width = n > w->width ? n : w->width;
    }
    w->record = layout(w->s.format, w->s.flags, w->s.latent, w->s.rope);
    w->store = (struct lkvi_store){.record = w->record, .tokens_per_block = w->s.block};
    w->store.block_stride = (uint64_t)w->record.bytes * w->s.block + 32;
    w->store.num_blocks = w->s.first_id + blocks + 3;
    w->d_pool = to_device(NULL, w->store.num_blocks * w->store.block_stride);
    w->store.base = w->d_pool;
    int32_t *ids = malloc(sizeof *ids * (blocks + 1));
    for (uint32_t i = 0; i < blocks; i++)
        ids[i] = (int32_t)(w->s.first_id + i + 1);
    for (uint32_t i = blocks; i > 1; i--) {
        uint32_t j = (uint32_t)rng_below(r, i);
        int32_t t = ids[i - 1];
        ids[i - 1] = ids[j], ids[j] = t;
    }
    w->table = malloc(sizeof *w->table * w->s.num_seqs * w->width);
    memset(w->table, 0x7F, sizeof *w->table * w->s.num_seqs * w->width); /* never read */
    for (uint32_t i = 0, at = 0; i < w->s.num_seqs; i++) {
        uint32_t n = (w->s.lens[i] + w->s.block - 1) / w->s.block;
        memcpy(w->table + (uint64_t)i * w->width, ids + at, sizeof *ids * n);
        make_sequence(w, i, r, ids + at);
        at += n;
    }
    free(ids);
}

/* Values in dtype precision on both sides. */
static void *rounded_copy(float *x, uint64_t n, uint32_t dtype)
{
    void *narrowed = malloc(n * dtype_size(dtype) + 1);
    narrow(x, n, dtype, narrowed);
    widen(narrowed, n, dtype, x);
    void *device = to_device(narrowed, n * dtype_size(dtype));
    free(narrowed);
    return device;
}

static void make_queries(struct world *w, struct rng *r)
{
    uint64_t rows;
    for (uint32_t i = 0; i < w->s.num_seqs; i++) {
        uint32_t len = w->s.lens[i] > 0 ? w->s.lens[i] : 0;
        w->indptr[i + 1] = w->indptr[i] + w->s.rows[i];
        w->max_rows = (uint32_t)w->s.rows[i] > w->max_rows ? (uint32_t)w->s.rows[i] : w->max_rows;
        w->max_len = len > w->max_len ? len : w->max_len;
    }
    w->num_tokens = w->indptr[w->s.num_seqs];
    rows = (uint64_t)w->num_tokens * w->s.heads;
    w->q = malloc(sizeof(float) * rows * w->s.latent);
    w->q_rope = malloc(sizeof(float) * (rows * w->s.rope + 1));
    rng_fill_normal(r, w->q, rows * w->s.latent, 0.6);
    rng_fill_normal(r, w->q_rope, rows * w->s.rope, 1.0);
    w->d_q = rounded_copy(w->q, rows * w->s.latent, w->s.q_dtype);
    w->d_q_rope = rounded_copy(w->q_rope, rows * w->s.rope, w->s.q_dtype);
    uint64_t biases = (uint64_t)w->s.num_seqs * (w->max_len + 8);
    w->bias = malloc(sizeof(float) * biases);
    rng_fill_normal(r, w->bias, biases, 1.0);
    for (uint64_t i = 0; i < biases; i += 11)
        w->bias[i] = -INFINITY;
    w->d_bias = to_device(w->bias, sizeof(float) * biases);
}

static void make_params(struct world *w)
{
    const struct shape *s = &w->s;
    uint64_t rows = (uint64_t)w->num_tokens * s->heads;
    struct lkvi_plan_params p = {.record = w->record, .tokens_per_block = s->block};
    p.num_heads = s->heads, p.max_seqs = s->num_seqs, p.max_tokens = w->num_tokens;
    p.max_q_len = w->max_rows, p.max_seq_len = w->max_len, p.max_blocks_per_seq = w->width;
    p.q_dtype = s->q_dtype, p.out_dtype = s->out_dtype, p.flags = s->plan_flags | generic;
    must(g.cuda->plan(g.state, &p), "plan");
    w->plan = p;
    w->out_bytes = rows * s->latent * dtype_size(s->out_dtype);
    w->d_out = to_device(NULL, w->out_bytes);
    w->d_lse = to_device(NULL, rows * 4);
    w->d_entropy = to_device(NULL, rows * 4);
    w->d_workspace = to_device(NULL, p.workspace_bytes);
    struct lkvi_attend_params a = {.plan = p, .store = w->store, .scale = 0.08};
    a.batch = (struct lkvi_batch_view){w->d_table,    w->d_lens,   w->d_indptr, w->width,
                                       w->num_tokens, s->num_seqs, w->width};
    int64_t L = s->latent, R = s->rope, H = s->heads;
    a.q = (struct lkvi_heads){w->d_q, H * L, L, s->q_dtype, 0};
    a.q_rope = (struct lkvi_heads){R ? w->d_q_rope : NULL, H * R, R, s->q_dtype, 0};
    a.out = (struct lkvi_heads){w->d_out, H * L, L, s->out_dtype, 0};
    a.lse = w->d_lse, a.entropy = w->d_entropy;
    a.lse_stride = a.entropy_stride = H;
    a.bias = s->bias ? w->d_bias : NULL;
    a.bias_stride = w->max_len + 8;
    a.workspace = w->d_workspace, a.workspace_bytes = p.workspace_bytes;
    w->attend = a;
}

static void open_world(struct world *w, const struct shape *s)
{
    struct rng r = {s->seed};
    struct lkvi_fault_record none = {0};
    memset(w, 0, sizeof *w);
    w->s = *s;
    make_pool(w, &r);
    make_queries(w, &r);
    w->d_faults = to_device(&none, sizeof none);
    w->store.faults = w->d_faults;
    w->d_table = to_device(w->table, sizeof *w->table * s->num_seqs * w->width);
    w->d_lens = to_device(s->lens, sizeof *s->lens * s->num_seqs);
    w->d_indptr = to_device(w->indptr, sizeof *w->indptr * (s->num_seqs + 1));
    make_params(w);
}

static void close_world(struct world *w)
{
    void *device[] = {w->d_pool,    w->d_table,  w->d_lens,   w->d_indptr,
                      w->d_q,       w->d_q_rope, w->d_out,    w->d_lse,
                      w->d_entropy, w->d_bias,   w->d_faults, w->d_workspace};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++)
        cudaFree(device[i]);
    for (uint32_t i = 0; i < w->s.num_seqs; i++)
        free(w->latent[i]), free(w->ropes[i]);
    free(w->q), free(w->q_rope), free(w->bias), free(w->table);
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
    label(text, sizeof text, &w->s);
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
    check(fabs(lse - ref.lse) <= 3e-3 && fabs(entropy - ref.entropy) <= 6e-3,
          "%s: seq %u len %d row %llu: lse %g want %g, entropy %g want %g", text, row->seq,
          row->len, (unsigned long long)row->index, lse, ref.lse, entropy, ref.entropy);
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

static void one(const struct shape *s)
{
    struct world w;
    open_world(&w, s);
    attend(&w, NULL);
    check_world(&w, s->lens);
    void *first = malloc(w.out_bytes), *second = malloc(w.out_bytes);
    from_device(first, w.d_out, w.out_bytes);
    for (int i = 0; i < 3; i++) {
        poison(&w);
        attend(&w, NULL);
        from_device(second, w.d_out, w.out_bytes);
        check(!memcmp(first, second, w.out_bytes), "seed %llu: run %d gave other bits",
              (unsigned long long)s->seed, i);
    }
    free(first), free(second);
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
static void invariance(uint32_t format, uint32_t heads)
{
    struct shape s = ragged(format, heads, 41);
    struct world w;
    s.plan_flags = LKV_PLAN_BATCH_INVARIANT;
    s.lens[0] = 3000;
    open_world(&w, &s);
    attend(&w, NULL);
    uint64_t bytes = (uint64_t)s.rows[0] * heads * s.latent * dtype_size(s.out_dtype);
    void *among = malloc(bytes), *alone = malloc(bytes);
    from_device(among, w.d_out, bytes);
    poison(&w);
    w.attend.batch.num_seqs = 1;
    w.attend.batch.num_tokens = s.rows[0];
    attend(&w, NULL);
    from_device(alone, w.d_out, bytes);
    check(!memcmp(among, alone, bytes), "%s H %u: batch mates changed the bits",
          format_name(format), heads);
    free(among), free(alone);
    close_world(&w);
}

/* Captured at full lengths, replayed with shorter ones and padding rows. */
static void replay(uint32_t format, uint32_t heads)
{
    struct shape s = plain(format, heads, 5000, 77);
    struct world w;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    s.num_seqs = 4;
    for (int i = 0; i < 4; i++)
        s.lens[i] = 5000 - 900 * i, s.rows[i] = 1;
    open_world(&w, &s);
    must_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    must_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
    attend(&w, stream);
    must_cuda(cudaStreamEndCapture(stream, &graph), "end of capture");
    must_cuda(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    for (int step = 0; step < 3; step++) {
        int32_t lens[4] = {5000 - 1234 * step, step ? 0 : s.lens[1], 64 * step + 1, s.lens[3]};
        poison(&w);
        must_cuda(cudaMemcpy(w.d_lens, lens, sizeof lens, cudaMemcpyHostToDevice), "lengths");
        must_cuda(cudaGraphLaunch(exec, stream), "replay");
        check_world(&w, lens); /* waits for the device */
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
    close_world(&w);
}

static void two_streams(void)
{
    struct shape a = plain(LKV_FORMAT_INT8, 16, 20000, 5),
                 b = plain(LKV_FORMAT_NVFP4, 16, 20000, 6);
    struct world w[2];
    cudaStream_t streams[2];
    open_world(&w[0], &a);
    open_world(&w[1], &b);
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
    open_world(&w, &s);
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

int main(int argc, char **argv)
{
    static const uint32_t heads[] = {1, 4, 8, 12, 16, 20, 32, 64, 128};
    int small = 0;
    uint64_t seed = 100;
    for (int i = 1; i < argc; i++) {
        small |= !strcmp(argv[i], "--small");
        generic = !strcmp(argv[i], "--generic") ? LKVI_PLAN_GENERIC_ROWS : generic;
    }
    gpu_open(&g);
    for (uint32_t format = LKV_FORMAT_BF16; format <= LKV_FORMAT_NVFP4; format++) {
        for (uint32_t i = 0; i < 9; i += small ? 4 : 1) {
            struct shape s = ragged(format, heads[i], ++seed);
            s.num_seqs = small ? 9 : MAX_SEQS;
            one(&s);
        }
        if (small)
            continue;
        for (uint32_t i = 0; i < 3; i++) {
            struct shape s = plain(format, 1u << (2 * i + 2), 70000 - 777 * (int)i, ++seed);
            one(&s);
        }
        invariance(format, 16);
        invariance(format, 128);
        replay(format, 16);
        replay(format, 64);
        printf("%s: %d failures so far\n", format_name(format), failures);
    }
    if (!small) {
        struct shape far = plain(LKV_FORMAT_INT8, 16, 3000, 4);
        far.first_id = (5ull << 30) / (656 * 64);
        one(&far);
        other_dims();
        two_streams();
    }
    faults();
    return gpu_close(&g, generic ? "decode, generic rows" : "decode");
}
