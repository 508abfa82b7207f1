/* append, gather, rotate and rope of the GPU against the CPU's: the same bytes, the same bits, the
 * same faults, for all formats, options and dtypes, with values that are not finite, skipped slots
 * and slots out of range. Memory that must not be written is poisoned and compared too. */
#include <stdlib.h>
#include <string.h>
#include "tests/gpu/gpu.h"
#include "tests/support/rng.h"

enum { TOKENS = 257, BLOCK = 16, BLOCKS = 24, POSITIONS = 300 };

struct shape {
    uint32_t format, flags, latent, rope, dtype, norm, turn, style, wild;
};

static struct gpu g;

static void label(char *text, size_t n, const struct shape *s)
{
    snprintf(text, n, "%s flags %u, %u+%u, dtype %u, norm %u, turn %u style %u, wild %u",
             format_name(s->format), s->flags, s->latent, s->rope, s->dtype, s->norm, s->turn,
             s->style, s->wild);
}

/* Ordinary rows; wild ones have any bits, constant rows, huge and tiny values among them. */
static void fill(struct rng *r, float *x, uint64_t rows, uint32_t n, uint32_t wild)
{
    for (uint64_t row = 0; row < rows; row++) {
        double sigma = exp(6 * rng_normal(r));
        rng_fill_normal(r, x + row * n, n, wild ? sigma : 1.0);
        for (uint32_t i = 0; wild && i < n; i++) {
            if (row % 7 == 1)
                x[row * n + i] = rng_any_float(r);
            if (row % 7 == 2)
                x[row * n + i] = (float)sigma;
            if (row % 7 == 3)
                x[row * n + i] = i % 9 ? 0.0f : -0.0f;
            if (row % 7 == 4 && rng_below(r, 50) == 0)
                x[row * n + i] = rng_below(r, 2) ? INFINITY : rng_below(r, 2) ? NAN : -INFINITY;
            if (row % 7 == 5)
                x[row * n + i] = (float)(rng_normal(r) * 1e-38);
        }
    }
}

static void make_slots(struct rng *r, int64_t *slots)
{
    int64_t order[BLOCK * BLOCKS];
    for (int i = 0; i < BLOCK * BLOCKS; i++)
        order[i] = i;
    for (int i = BLOCK * BLOCKS - 1; i > 0; i--) {
        int64_t j = (int64_t)rng_below(r, i + 1), t = order[i];
        order[i] = order[j], order[j] = t;
    }
    for (int t = 0; t < TOKENS; t++)
        slots[t] = t % 31 == 5 ? -1 : t % 67 == 9 ? BLOCK * BLOCKS + t : order[t];
}

struct pair { /* one array on both sides */
    void *host, *device;
    uint64_t bytes;
};

static struct pair pair_of(const float *x, uint64_t n, uint32_t dtype)
{
    struct pair p = {malloc(n * dtype_size(dtype)), NULL, n * dtype_size(dtype)};
    narrow(x, n, dtype, p.host);
    p.device = to_device(p.host, p.bytes);
    return p;
}

static struct pair poisoned(uint64_t bytes)
{
    struct pair p = {malloc(bytes), to_device(NULL, bytes), bytes};
    memset(p.host, 0xFF, bytes);
    return p;
}

static struct pair raw_pair(const void *from, uint64_t bytes)
{
    struct pair p = {malloc(bytes), to_device(from, bytes), bytes};
    memcpy(p.host, from, bytes);
    return p;
}

static void drop(struct pair *p)
{
    free(p->host);
    cudaFree(p->device);
}

/* Byte equality of both sides; width and unit turn a byte into a place. */
static void same(const struct pair *p, const char *what, const char *text)
{
    uint8_t *found = malloc(p->bytes);
    const uint8_t *wanted = p->host;
    from_device(found, p->device, p->bytes);
    for (uint64_t i = 0; i < p->bytes; i++)
        if (found[i] != wanted[i]) {
            check(0, "%s (%s): byte %llu is 0x%02X, want 0x%02X", what, text, (unsigned long long)i,
                  found[i], wanted[i]);
            break;
        }
    free(found);
}

/* The first fault is any of them on the GPU; the count is the same. */
static void same_faults(const struct pair *p, const char *what, const char *text)
{
    struct lkvi_fault_record found;
    const struct lkvi_fault_record *wanted = p->host;
    from_device(&found, p->device, sizeof found);
    check(found.count == wanted->count && !found.first_kind == !wanted->first_kind,
          "%s (%s): %llu faults, want %llu", what, text, (unsigned long long)found.count,
          (unsigned long long)wanted->count);
}

static void gather_both(const struct shape *s, const struct lkvi_store *host,
                        const struct lkvi_store *device, const struct pair *slots, uint32_t dtype)
{
    char text[160];
    label(text, sizeof text, s);
    struct pair latent = poisoned((uint64_t)TOKENS * s->latent * dtype_size(dtype));
    struct pair rope = poisoned((uint64_t)TOKENS * s->rope * dtype_size(dtype) + 16);
    struct lkvi_gather_params p = {.store = *host, .num_tokens = TOKENS, .slots = slots->host};
    p.unrotate = (s->flags & LKV_ENCODE_ROTATE) != 0;
    p.latent = (struct lkvi_rows){latent.host, s->latent, dtype, 0};
    p.rope = (struct lkvi_rows){s->rope ? rope.host : NULL, s->rope, dtype, 0};
    must(g.cpu->gather(g.ctx, &p, NULL), "CPU gather");
    p.store = *device;
    p.slots = slots->device;
    p.latent.data = latent.device;
    p.rope.data = s->rope ? rope.device : NULL;
    must(g.cuda->gather(g.state, &p, NULL), "gather");
    same(&latent, "gather latent", text);
    same(&rope, "gather rope", text);
    drop(&latent);
    drop(&rope);
}

static void run(const struct shape *s, uint64_t seed)
{
    char text[160];
    struct rng r = {seed};
    float *x = malloc(sizeof *x * TOKENS * (s->latent + s->rope + 1)), *w = malloc(4096 * 4);
    int64_t slots[TOKENS];
    int32_t positions[TOKENS];
    label(text, sizeof text, s);
    fill(&r, x, TOKENS, s->latent, s->wild);
    struct pair latent = pair_of(x, (uint64_t)TOKENS * s->latent, s->dtype);
    fill(&r, x, TOKENS, s->rope ? s->rope : 2, s->wild);
    struct pair rope = pair_of(x, (uint64_t)TOKENS * (s->rope ? s->rope : 2), s->dtype);
    make_slots(&r, slots);
    for (int t = 0; t < TOKENS; t++)
        positions[t] = t % 61 == 3 ? POSITIONS + t : (int32_t)rng_below(&r, POSITIONS);
    rng_fill_normal(&r, w, s->latent, 1.0);
    uint32_t half = s->rope ? s->rope / 2 : 1;
    float *table = malloc(sizeof *table * 2 * POSITIONS * half);
    rng_fill_normal(&r, table, 2 * POSITIONS * half, 0.7);
    struct pair slot = raw_pair(slots, sizeof slots), weight = raw_pair(w, 4 * s->latent);
    struct pair position = raw_pair(positions, sizeof positions);
    struct pair cosine = raw_pair(table, 4ull * POSITIONS * half);
    struct pair sine = raw_pair(table + POSITIONS * half, 4ull * POSITIONS * half);
    struct lkvi_fault_record none = {0};
    struct pair faults = raw_pair(&none, sizeof none);
    struct lkvi_store store = {.record = layout(s->format, s->flags, s->latent, s->rope),
                               .tokens_per_block = BLOCK,
                               .first_block = 1,
                               .num_blocks = BLOCKS,
                               .fixed_outer = 0.0125f};
    store.block_stride = (uint64_t)store.record.bytes * BLOCK + 48;
    struct pair pool = poisoned(store.block_stride * BLOCKS);
    memset(pool.host, 0x41, pool.bytes); /* decodes to finite values: the bits of NaN are free */
    must_cuda(cudaMemcpy(pool.device, pool.host, pool.bytes, cudaMemcpyHostToDevice), "pool");
    struct lkvi_store host = store, device = store;
    host.base = pool.host, device.base = pool.device;
    host.faults = faults.host, device.faults = faults.device;
    struct lkvi_append_params p = {.store = host, .num_tokens = TOKENS, .slots = slot.host};
    p.latent = (struct lkvi_rows){latent.host, s->latent, s->dtype, 0};
    p.rope = (struct lkvi_rows){s->rope ? rope.host : NULL, s->rope, s->dtype, 0};
    p.norm_weight = s->norm ? weight.host : NULL;
    p.norm_eps = 1e-6f;
    if (s->turn && s->rope) {
        p.rope_cos = cosine.host, p.rope_sin = sine.host, p.positions = position.host;
        p.num_positions = POSITIONS, p.rope_style = s->style;
    }
    must(g.cpu->append(g.ctx, &p, NULL), "CPU append");
    p.store = device, p.slots = slot.device;
    p.latent.data = latent.device, p.rope.data = s->rope ? rope.device : NULL;
    p.norm_weight = s->norm ? weight.device : NULL;
    if (p.rope_cos)
        p.rope_cos = cosine.device, p.rope_sin = sine.device, p.positions = position.device;
    must(g.cuda->append(g.state, &p, NULL), "append");
    same(&pool, "append", text);
    same_faults(&faults, "append", text);
    for (uint32_t dtype = LKV_DTYPE_F32; dtype <= LKV_DTYPE_BF16 && !s->wild; dtype++)
        gather_both(s, &host, &device, &slot, dtype);
    same_faults(&faults, "gather", text);
    drop(&latent), drop(&rope), drop(&slot), drop(&weight), drop(&position);
    drop(&cosine), drop(&sine), drop(&faults), drop(&pool);
    free(x), free(w), free(table);
}

static void rotate_both(uint32_t dim, uint32_t dtype, uint64_t seed)
{
    char text[64];
    struct rng r = {seed};
    float *x = malloc(sizeof *x * TOKENS * dim);
    rng_fill_normal(&r, x, TOKENS * dim, 2.0);
    struct pair in = pair_of(x, (uint64_t)TOKENS * dim, dtype), out = poisoned(in.bytes);
    struct lkvi_rotate_params p = {.num_rows = TOKENS, .dim = dim};
    p.in = (struct lkvi_rows){in.host, dim, dtype, 0};
    p.out = (struct lkvi_rows){out.host, dim, dtype, 0};
    must(g.cpu->rotate(g.ctx, &p, NULL), "CPU rotate");
    p.in.data = in.device, p.out.data = out.device;
    must(g.cuda->rotate(g.state, &p, NULL), "rotate");
    snprintf(text, sizeof text, "dim %u, dtype %u", dim, dtype);
    same(&out, "rotate", text);
    drop(&in), drop(&out), free(x);
}

static void rope_both(uint32_t dim, uint32_t heads, uint32_t style, uint32_t dtype, uint64_t seed)
{
    char text[64];
    struct rng r = {seed};
    uint64_t n = (uint64_t)TOKENS * heads * dim, half = (uint64_t)POSITIONS * dim / 2;
    float *x = malloc(sizeof *x * (n + 2 * half));
    int32_t positions[TOKENS];
    rng_fill_normal(&r, x, n + 2 * half, 1.0);
    for (int t = 0; t < TOKENS; t++)
        positions[t] = (int32_t)rng_below(&r, POSITIONS);
    struct pair in = pair_of(x, n, dtype), out = poisoned(in.bytes);
    struct pair cosine = raw_pair(x + n, 4 * half), sine = raw_pair(x + n + half, 4 * half);
    struct pair position = raw_pair(positions, sizeof positions);
    struct lkvi_rope_params p = {.num_tokens = TOKENS, .num_heads = heads, .dim = dim};
    p.in = (struct lkvi_rows){in.host, (int64_t)heads * dim, dtype, 0};
    p.out = (struct lkvi_rows){out.host, (int64_t)heads * dim, dtype, 0};
    p.in_head_stride = p.out_head_stride = dim;
    p.cos = cosine.host, p.sin = sine.host, p.positions = position.host;
    p.num_positions = POSITIONS, p.style = style;
    must(g.cpu->rope(g.ctx, &p, NULL), "CPU rope");
    p.in.data = in.device, p.out.data = out.device;
    p.cos = cosine.device, p.sin = sine.device, p.positions = position.device;
    must(g.cuda->rope(g.state, &p, NULL), "rope");
    snprintf(text, sizeof text, "dim %u, heads %u, style %u, dtype %u", dim, heads, style, dtype);
    same(&out, "rope", text);
    drop(&in), drop(&out), drop(&cosine), drop(&sine), drop(&position), free(x);
}

static const uint32_t flag_sets[][4] = {
    [LKV_FORMAT_BF16] = {0, LKV_ENCODE_ROTATE},
    [LKV_FORMAT_FP8] = {0, LKV_ENCODE_ROTATE},
    [LKV_FORMAT_INT8] = {0, LKV_ENCODE_ROTATE, LKV_ENCODE_INT8_SYMMETRIC},
    [LKV_FORMAT_NVFP4] = {0, LKV_ENCODE_NVFP4_FOUR_OVER_SIX,
                          LKV_ENCODE_NVFP4_FIXED_OUTER | LKV_ENCODE_ROTATE,
                          LKV_ENCODE_NVFP4_FOUR_OVER_SIX | LKV_ENCODE_NVFP4_FIXED_OUTER},
};
static const uint32_t dims[][2] = {{512, 64}, {256, 32}, {16, 2}, {1024, 128}, {320, 0}, {144, 6}};

static void run_format(uint32_t format, uint32_t num_dims)
{
    uint64_t seed = 1000 * format;
    for (uint32_t d = 0; d < num_dims; d++)
        for (uint32_t f = 0; f < 4; f++) {
            uint32_t flags = flag_sets[format][f];
            if ((f && !flags) || ((flags & LKV_ENCODE_ROTATE) && (dims[d][0] & (dims[d][0] - 1))))
                continue;
            for (uint32_t i = 0; i < 12; i++) {
                struct shape s = {format,    flags,     dims[d][0], dims[d][1], 1 + i % 3,
                                  i / 3 % 2, i / 2 % 2, 1 + i % 2,  i / 6};
                run(&s, ++seed);
            }
        }
}

int main(int argc, char **argv)
{
    uint32_t small = argc > 1 && !strcmp(argv[1], "--small");
    gpu_open(&g);
    for (uint32_t format = LKV_FORMAT_BF16; format <= LKV_FORMAT_NVFP4; format++)
        run_format(format, small ? 1 : sizeof dims / sizeof *dims);
    for (uint32_t dim = 16; dim <= 1024; dim *= 2)
        rotate_both(dim, 1 + dim / 16 % 3, dim);
    for (uint32_t style = LKV_ROPE_NONE; style <= LKV_ROPE_HALF; style++)
        for (uint32_t dtype = LKV_DTYPE_F32; dtype <= LKV_DTYPE_BF16; dtype++)
            rope_both(style ? 64 : 6, 1 + 4 * style, style, dtype, style * 3 + dtype);
    return gpu_close(&g, "records");
}
