/* In: bytes, read as changes to valid descriptors. Out: a crash if any function that takes one
 * crashes, gives an unknown status, or fails without a sentence. Pointers become NULL, misaligned
 * or stay; a tensor that would reach past its memory loses it, because no library can see that lie.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "latentkv/latentkv.h"

enum { L = 32, R = 16, H = 2, N = 8, V = 8, T = 4, BLOCK = 16, ARENA = 1 << 18, MAX_BLOCKS = 2000 };
enum { G = 2, LV = 16 }; /* of the LATENT_GQA pool */

struct input {
    const uint8_t *at, *end;
};

static struct {
    lkv_context *ctx;
    lkv_pool *pool, *heads; /* heads: LATENT_GQA */
    lkv_weights *weights, *projector;
    lkv_rope *rope;
    lkv_plan *plan, *heads_plan;
    void *workspace;
    size_t workspace_bytes;
    char *arena;         /* ARENA bytes, 256-byte aligned: what every tensor points to */
    int32_t arrays[256]; /* of a batch; apart, for an output over its own lengths is a lie too */
    int64_t slots[T];
} world;

static uint64_t take(struct input *in, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes && in->at < in->end; i++)
        value |= (uint64_t)*in->at++ << (8 * i);
    return value;
}

/* Up to seven changes of 1 to 8 bytes anywhere in the struct. */
static void mutate(struct input *in, void *s, size_t size)
{
    for (unsigned n = (unsigned)take(in, 1) % 8; n > 0; n--) {
        unsigned bytes = 1u << take(in, 1) % 4;
        size_t at = take(in, 1) % (size / bytes) * bytes;
        uint64_t value = take(in, 1) % 4 == 3 ? UINT64_MAX : take(in, bytes);
        memcpy((char *)s + at, &value, bytes);
    }
}

/* The same for a size-first struct. Longer than it is but possible is a lie that no library sees.
 */
static void mutate_desc(struct input *in, void *s, size_t size)
{
    size_t said;
    mutate(in, s, size);
    memcpy(&said, s, sizeof said);
    if (said > size && said <= 4096)
        memcpy(s, &size, sizeof size);
}

static void *pointer(struct input *in, void *valid)
{
    switch (take(in, 1) % 8) {
    case 6:
        return NULL;
    case 7:
        return (char *)valid + 1;
    default:
        return valid;
    }
}

static int fits_arena(const lkv_tensor *t)
{
    long double bytes = 8;
    for (unsigned i = 0; i < 4; i++) {
        if (t->shape[i] < 0 || t->stride[i] < 0)
            return 0;
        bytes += (long double)t->shape[i] * (long double)t->stride[i] * 8;
    }
    return bytes < ARENA;
}

static lkv_tensor *tensor(struct input *in, lkv_tensor *t, uint32_t ndim, const int64_t shape[4])
{
    int64_t stride = 1;
    *t = (lkv_tensor){.dtype = 1 + (uint32_t)take(in, 1) % 3, .ndim = ndim};
    for (uint32_t i = ndim; i-- > 0; stride = (int64_t)((uint64_t)stride * (uint64_t)shape[i])) {
        t->shape[i] = shape[i];
        t->stride[i] = stride;
    }
    mutate(in, t, sizeof *t);
    t->data = fits_arena(t) ? pointer(in, world.arena) : NULL;
    return pointer(in, t);
}
#define TENSOR(t, ndim, ...) tensor(in, t, ndim, (const int64_t[4]){__VA_ARGS__})

static int known(lkv_status status)
{
    if (strcmp(lkv_status_name(status), "unknown status") == 0 || status == LKV_E_INTERNAL)
        abort();
    if (status != LKV_OK && strlen(lkv_last_error()) < 10)
        abort();
    return status == LKV_OK;
}

static void fuzz_context(struct input *in)
{
    lkv_context_desc d = {.size = sizeof d, .device = LKV_DEVICE_CPU, .num_threads = 1};
    lkv_context *ctx;
    mutate_desc(in, &d, sizeof d);
    d.log = NULL;
    if (d.num_threads > 8 && d.num_threads <= 256) /* right, but slow */
        d.num_threads = 8;
    if (!d.num_threads)
        d.num_threads = 1;
    if (known(lkv_context_create(pointer(in, &d), &ctx)))
        lkv_context_release(ctx);
}

static void pool_desc(struct input *in, lkv_pool_desc *d)
{
    *d = (lkv_pool_desc){.size = sizeof *d,
                         .format = 1 + (uint32_t)take(in, 1) % 4,
                         .tokens_per_block = BLOCK,
                         .latent_dim = L,
                         .rope_dim = R,
                         .num_layers = 2,
                         .num_blocks = 20,
                         .fallback_headroom = 0.3};
    if (take(in, 1) % 4 == 3) {
        d->kind = LKV_KIND_LATENT_GQA;
        d->num_kv_heads = 1 + (uint32_t)take(in, 1) % 4;
        d->value_latent_dim = 16 * ((uint32_t)take(in, 1) % 3);
        d->rope_dim = 0;
    }
    mutate_desc(in, d, sizeof *d);
    d->memory = take(in, 1) % 4 ? NULL : pointer(in, world.arena);
    if (d->memory)
        d->memory_bytes = take(in, 1) % 2 ? ARENA / 2 : take(in, 2);
    d->layer_memory = NULL;
    d->fixed_outer = take(in, 1) % 4 ? NULL : pointer(in, world.arena);
    d->planes = take(in, 1) % 4 ? NULL : pointer(in, world.arena + 4096);
    d->model_fingerprint = take(in, 1) % 2 ? NULL : (void *)world.arena;
}

static void fuzz_pool(struct input *in)
{
    lkv_pool_desc d;
    lkv_block_info info = {.size = sizeof info};
    lkv_pool *pool;
    pool_desc(in, &d);
    mutate(in, world.arena + 4096, 8 * sizeof(lkv_plane_desc));
    known(lkv_block_query(pointer(in, &d), &info));
    d.num_blocks =
        d.num_blocks > MAX_BLOCKS && d.num_blocks < (1u << 31) ? MAX_BLOCKS : d.num_blocks;
    d.host_blocks =
        d.host_blocks > MAX_BLOCKS && d.host_blocks < (1u << 31) ? MAX_BLOCKS : d.host_blocks;
    if (d.num_layers <= 4096 && d.num_layers > 64)
        d.num_layers = 64;
    d.num_planes = d.num_planes <= 8 ? d.num_planes % 3 : d.num_planes;
    if (known(lkv_pool_create(world.ctx, pointer(in, &d), &pool))) {
        known(lkv_pool_check(pool));
        lkv_pool_release(pool);
    }
}

static void model_desc(struct input *in, lkv_model_desc *m)
{
    *m = (lkv_model_desc){.size = sizeof *m,
                          .num_layers = 1,
                          .num_heads = H,
                          .latent_dim = L,
                          .rope_dim = R,
                          .nope_dim = N,
                          .v_dim = V,
                          .rope_style = LKV_ROPE_HALF,
                          .rope_theta = 1e4};
    mutate_desc(in, m, sizeof *m);
    m->rope_factors = NULL;
}

/* The matrices of a projector, now and then, in place of kv_b_proj. */
static void projector_of(struct input *in, lkv_model_desc *m, lkv_weights_desc *d, lkv_tensor t[4])
{
    d->key_up = d->value_up = d->key_down = d->value_down = NULL;
    if (take(in, 1) % 4 != 3)
        return;
    if (take(in, 1) % 8)
        m->rope_dim = 0;
    if (take(in, 1) % 8)
        d->kv_b_proj = d->scales = NULL;
    d->key_up = TENSOR(&t[0], 3, G, m->nope_dim, m->latent_dim);
    d->value_up = TENSOR(&t[1], 3, G, m->v_dim, LV);
    d->key_down = TENSOR(&t[2], 3, G, m->nope_dim, m->latent_dim);
    d->value_down = TENSOR(&t[3], 3, G, m->v_dim, LV);
}

static void fuzz_weights(struct input *in)
{
    lkv_model_desc m;
    lkv_tensor w, s, matrices[4];
    lkv_weights *weights;
    lkv_rope *rope;
    model_desc(in, &m);
    if (m.num_heads > 4 && m.num_heads <= 256)
        m.num_heads = 4;
    int64_t rows = (int64_t)(m.num_heads * ((uint64_t)m.nope_dim + m.v_dim) % ARENA);
    lkv_weights_desc d = {.size = sizeof d};
    mutate_desc(in, &d, sizeof d);
    d.kv_b_proj = TENSOR(&w, 2, rows, m.latent_dim);
    d.scales =
        take(in, 1) % 2 ? NULL : TENSOR(&s, 2, (rows + 127) / 128, (m.latent_dim + 127) / 128);
    projector_of(in, &m, &d, matrices);
    if (known(lkv_weights_create(world.ctx, pointer(in, &m), pointer(in, &d), &weights)))
        lkv_weights_release(weights);
    uint64_t positions = take(in, 1) % 8 ? take(in, 1) : UINT64_MAX;
    if (known(lkv_rope_create(world.ctx, pointer(in, &m), positions, &rope)))
        lkv_rope_release(rope);
}

static void fuzz_heads(struct input *in)
{
    lkv_tensor a, b;
    int64_t *slots = world.slots;
    for (int i = 0; i < T; i++)
        slots[i] = (int64_t)take(in, 2) - 50;
    lkv_append_args append = {.size = sizeof append};
    mutate_desc(in, &append, sizeof append);
    const int project = take(in, 1) % 2;
    append.latent = TENSOR(&a, 3, T, G, project ? N : L);
    append.value = TENSOR(&b, 3, T, G, project ? V : LV);
    append.weights = project ? world.projector : NULL;
    append.rope = NULL;
    append.norm_weight = NULL;
    append.rope_table = NULL;
    append.positions = NULL;
    append.slots = a.shape[0] <= T ? pointer(in, slots) : NULL;
    known(lkv_append(world.heads, pointer(in, &append), NULL));
    lkv_gather_args gather = {.size = sizeof gather};
    mutate_desc(in, &gather, sizeof gather);
    gather.latent = TENSOR(&a, 3, T, G, L);
    gather.value = TENSOR(&b, 3, T, G, LV);
    gather.rope = NULL;
    gather.slots = a.shape[0] <= T && b.shape[0] <= T ? pointer(in, slots) : NULL;
    known(lkv_gather(world.heads, pointer(in, &gather), NULL));
}

static void fuzz_rows(struct input *in)
{
    lkv_tensor a, b, c;
    int64_t *slots = world.slots;
    for (int i = 0; i < T; i++)
        slots[i] = (int64_t)take(in, 2) - 50;
    lkv_append_args append = {.size = sizeof append};
    mutate_desc(in, &append, sizeof append);
    append.latent = TENSOR(&a, 2, T, L);
    append.rope = TENSOR(&b, 2, T, R);
    append.slots = a.shape[0] <= T ? pointer(in, slots) : NULL;
    append.norm_weight = take(in, 1) % 2 ? NULL : pointer(in, world.arena);
    append.rope_table = take(in, 1) % 2 ? NULL : world.rope;
    append.positions = a.shape[0] <= T ? pointer(in, slots) : NULL;
    append.value = take(in, 1) % 8 ? NULL : TENSOR(&c, 3, T, G, LV);
    append.weights = take(in, 1) % 8 ? NULL : world.weights;
    known(lkv_append(world.pool, pointer(in, &append), NULL));
    lkv_gather_args gather = {.size = sizeof gather};
    mutate_desc(in, &gather, sizeof gather);
    gather.latent = TENSOR(&a, 2, T, L);
    gather.rope = TENSOR(&b, 2, T, R);
    gather.slots = a.shape[0] <= T && b.shape[0] <= T ? pointer(in, slots) : NULL;
    gather.value = take(in, 1) % 8 ? NULL : TENSOR(&c, 3, T, G, LV);
    known(lkv_gather(world.pool, pointer(in, &gather), NULL));
    const lkv_tensor *rows = TENSOR(&a, 2, T, R);
    const int32_t *positions = a.shape[0] <= T ? pointer(in, slots) : NULL;
    known(lkv_rope_apply(world.rope, rows, &a, positions, NULL));
    known(lkv_rotate(world.ctx, TENSOR(&a, 2, T, L), &a, NULL));
}

static void fuzz_plan(struct input *in)
{
    lkv_plan *plan;
    size_t bytes;
    lkv_plan_desc d = {.size = sizeof d,
                       .num_heads = H,
                       .max_seqs = 4,
                       .max_tokens = 16,
                       .max_q_len = 4,
                       .max_seq_len = 64,
                       .q_dtype = 1 + (uint32_t)take(in, 1) % 3,
                       .out_dtype = 1 + (uint32_t)take(in, 1) % 3};
    mutate_desc(in, &d, sizeof d);
    d.pool = take(in, 1) % 16 ? world.pool : NULL;
    if (known(lkv_plan_create(world.ctx, pointer(in, &d), &plan))) {
        known(lkv_plan_workspace(plan, &bytes));
        lkv_plan_release(plan);
    }
}

/* The arrays themselves are arbitrary too. */
static void fuzz_attend(struct input *in)
{
    lkv_tensor q, q_rope, out, lse, entropy, bias;
    const int heads = take(in, 1) % 4 == 3; /* a LATENT_GQA pool with heads' dimensions */
    lkv_plan *planned = heads ? world.heads_plan : world.plan;
    int32_t *arrays = world.arrays;
    lkv_batch b = {.size = sizeof b, .num_seqs = 2, .max_blocks_per_seq = 4, .num_tokens = T};
    memset(arrays, 0, sizeof world.arrays);
    arrays[65] = T / 2;
    arrays[66] = T;
    for (int i = 0; i < 8; i++) {
        arrays[i] = (int32_t)take(in, 1);            /* table */
        arrays[128 + i] = (int32_t)take(in, 1) % 70; /* lengths */
    }
    mutate(in, arrays, sizeof world.arrays);
    mutate_desc(in, &b, sizeof b);
    b.block_table_stride %= 64;
    if (!b.block_table_stride && b.max_blocks_per_seq <= 1 << 30)
        b.max_blocks_per_seq %= 64; /* then the stride: wider than the memory is a lie */
    b.block_table = pointer(in, arrays);
    b.q_indptr = pointer(in, arrays + 64);
    b.seq_lens = pointer(in, arrays + 128);
    known(lkv_plan_update(planned, pointer(in, &b), world.workspace, world.workspace_bytes, NULL));
    lkv_attend_args a = {.size = sizeof a, .scale = 0.1};
    mutate_desc(in, &a, sizeof a);
    int64_t t = (int64_t)(b.num_tokens % 64), n = b.num_seqs % 64;
    a.q = TENSOR(&q, 3, t, H, heads ? N : L);
    a.q_rope = heads ? NULL : TENSOR(&q_rope, 3, t, H, R);
    a.out = TENSOR(&out, 3, t, H, heads ? V : L);
    a.lse = TENSOR(&lse, 2, t, H);
    a.entropy = TENSOR(&entropy, 2, t, H);
    a.bias = take(in, 1) % 2 ? NULL : TENSOR(&bias, 2, n, 64);
    a.weights = take(in, 1) % 2 == !heads ? NULL : heads ? world.projector : world.weights;
    a.workspace = pointer(in, world.workspace);
    a.workspace_bytes = world.workspace_bytes;
    known(lkv_attend(planned, (take(in, 1) % 16 == 15) != heads ? world.heads : world.pool, &b,
                     pointer(in, &a), NULL));
}

static void fuzz_merge(struct input *in)
{
    lkv_tensor outs, lses, entropies, out, lse, entropy;
    lkv_merge_args a = {.size = sizeof a};
    mutate_desc(in, &a, sizeof a);
    a.outs = TENSOR(&outs, 4, 2, T, H, L);
    a.lses = TENSOR(&lses, 3, 2, T, H);
    a.entropies = TENSOR(&entropies, 3, 2, T, H);
    a.out = TENSOR(&out, 3, T, H, L);
    a.lse = TENSOR(&lse, 2, T, H);
    a.entropy = TENSOR(&entropy, 2, T, H);
    known(lkv_merge(world.ctx, pointer(in, &a), NULL));
}

static void fuzz_sequences(struct input *in)
{
    int32_t *tokens = (int32_t *)world.arena;
    lkv_prompt p = {.size = sizeof p, .num_tokens = take(in, 1)};
    lkv_match match = {.size = sizeof match};
    lkv_admit_args args = {.size = sizeof args};
    lkv_key keys[2] = {{"salt", 0, UINT64_MAX, LKV_KEY_SALT, 4}, {"img", 3, 20, 3, 3}};
    lkv_seq seq = 0;
    mutate_desc(in, &p, sizeof p);
    mutate_desc(in, &args, sizeof args);
    p.tokens = p.num_tokens < ARENA / 8 ? pointer(in, tokens) : NULL;
    p.keys = p.num_keys <= 2 ? pointer(in, keys) : NULL;
    if (known(lkv_seq_match(world.pool, &p, &match)))
        args.match = take(in, 1) % 2 ? NULL : &match;
    else
        args.match = NULL;
    mutate_desc(in, &match, sizeof match);
    known(lkv_seq_admit(world.pool, pointer(in, &p), pointer(in, &args), NULL, &seq));
    uint32_t num_new[1] = {(uint32_t)take(in, 1)};
    lkv_step s = {.size = sizeof s, .num_seqs = 1, .slots_capacity = 256, .table_width = 32};
    mutate_desc(in, &s, sizeof s);
    s.seqs = &seq;
    s.num_seqs = s.num_seqs > 1 ? UINT32_MAX : s.num_seqs;
    s.num_new = pointer(in, num_new);
    s.num_rows = NULL;
    s.row_begin = NULL;
    s.tokens = take(in, 1) % 4 ? tokens : NULL;
    s.block_table = s.table_width <= 64 ? pointer(in, world.arena + 65536) : NULL;
    s.seq_lens = pointer(in, world.arena + 66560);
    s.q_indptr = pointer(in, world.arena + 67584);
    s.slots = s.slots_capacity <= 256 ? pointer(in, world.arena + 69632) : NULL;
    s.positions = s.slots_capacity <= 256 ? pointer(in, world.arena + 73728) : NULL;
    known(lkv_pool_step(world.pool, pointer(in, &s), NULL));
    known(lkv_pool_apply_copies(world.pool, 0, NULL));
    if (seq)
        known(lkv_seq_free(world.pool, seq, 0));
    known(lkv_pool_check(world.pool));
}

static void open_world(void)
{
    lkv_context_desc c = {.size = sizeof c, .device = LKV_DEVICE_CPU, .num_threads = 1};
    lkv_model_desc m;
    lkv_tensor w;
    struct input none = {NULL, NULL}, *in = &none;
    lkv_pool_desc p = {.size = sizeof p,
                       .format = LKV_FORMAT_INT8,
                       .tokens_per_block = BLOCK,
                       .latent_dim = L,
                       .rope_dim = R,
                       .rope_style = LKV_ROPE_HALF,
                       .num_layers = 2,
                       .num_blocks = 20};
    lkv_tensor t[4];
    lkv_pool_desc g = p;
    g.kind = LKV_KIND_LATENT_GQA;
    g.num_kv_heads = G;
    g.value_latent_dim = LV;
    g.rope_dim = 0;
    model_desc(in, &m);
    world.arena = aligned_alloc(256, ARENA);
    memset(world.arena, 0, ARENA);
    lkv_weights_desc d = {.size = sizeof d, .kv_b_proj = TENSOR(&w, 2, H * (N + V), L)};
    if (!known(lkv_context_create(&c, &world.ctx)) ||
        !known(lkv_pool_create(world.ctx, &p, &world.pool)) ||
        !known(lkv_weights_create(world.ctx, &m, &d, &world.weights)) ||
        !known(lkv_rope_create(world.ctx, &m, 64, &world.rope)))
        abort();
    lkv_plan_desc plan = {.size = sizeof plan,
                          .pool = world.pool,
                          .num_heads = H,
                          .max_seqs = 4,
                          .max_tokens = 16,
                          .max_q_len = 8,
                          .max_seq_len = 64,
                          .q_dtype = LKV_DTYPE_F32,
                          .out_dtype = LKV_DTYPE_F32};
    if (!known(lkv_plan_create(world.ctx, &plan, &world.plan)) ||
        !known(lkv_plan_workspace(world.plan, &world.workspace_bytes)))
        abort();
    size_t bytes;
    lkv_weights_desc matrices = {.size = sizeof matrices};
    m.rope_dim = 0;
    matrices.key_up = matrices.key_down = TENSOR(&t[0], 3, G, N, L);
    matrices.value_up = matrices.value_down = TENSOR(&t[1], 3, G, V, LV);
    plan.q_form = LKV_Q_HEAD;
    plan.out_form = LKV_OUT_HEAD;
    plan.nope_dim = N;
    plan.v_dim = V;
    if (!known(lkv_pool_create(world.ctx, &g, &world.heads)) ||
        !known(lkv_weights_create(world.ctx, &m, &matrices, &world.projector)))
        abort();
    plan.pool = world.heads;
    if (!known(lkv_plan_create(world.ctx, &plan, &world.heads_plan)) ||
        !known(lkv_plan_workspace(world.heads_plan, &bytes)))
        abort();
    world.workspace_bytes = bytes > world.workspace_bytes ? bytes : world.workspace_bytes;
    world.workspace = aligned_alloc(256, (world.workspace_bytes | 255) + 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const targets[])(struct input *) = {fuzz_context, fuzz_pool,      fuzz_weights,
                                                      fuzz_rows,    fuzz_plan,      fuzz_attend,
                                                      fuzz_merge,   fuzz_sequences, fuzz_heads};
    struct input in = {data, data + size};
    if (!world.ctx)
        open_world();
    for (int calls = 0; calls < 20 && in.at < in.end; calls++)
        targets[take(&in, 1) % (sizeof targets / sizeof targets[0])](&in);
    return 0;
}
