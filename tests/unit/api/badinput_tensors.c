/* Rows for weights, RoPE, append, plans, attend, gather and merge. */
#include "tests/unit/api/badinput.h"

#include <math.h>

/* Every way a tensor can be wrong, tried on one argument of one call. */
#define TENSOR(base, word, call)                                                                   \
    do {                                                                                           \
        WITH(lkv_tensor, bent, base, bent.data = NULL, call(&bent, word));                         \
        WITH(lkv_tensor, bent, base, bent.data = OFF(bent.data), call(&bent, word));               \
        WITH(lkv_tensor, bent, base, bent.dtype = 0, call(&bent, "dtype 0"));                      \
        WITH(lkv_tensor, bent, base, bent.dtype = UINT32_MAX, call(&bent, "dtype"));               \
        WITH(lkv_tensor, bent, base, bent.ndim = 0, call(&bent, "dimensions"));                    \
        WITH(lkv_tensor, bent, base, bent.ndim = UINT32_MAX, call(&bent, "dimensions"));           \
        WITH(lkv_tensor, bent, base, bent.shape[bent.ndim - 1] += 2, call(&bent, ""));             \
        WITH(lkv_tensor, bent, base, bent.shape[0] = INT64_MAX, call(&bent, "shape[0]"));          \
        WITH(lkv_tensor, bent, base, bent.shape[0] = -1, call(&bent, "shape[0]"));                 \
        WITH(lkv_tensor, bent, base, bent.shape[3] = bent.ndim < 4 ? 1 : -1, call(&bent, ""));     \
        WITH(lkv_tensor, bent, base, bent.stride[bent.ndim - 1] = 2, call(&bent, "stride"));       \
        WITH(lkv_tensor, bent, base, bent.stride[0] = -bent.stride[0], call(&bent, "stride[0]"));  \
        WITH(lkv_tensor, bent, base, bent.stride[0] = 1, call(&bent, "stride[0]"));                \
        WITH(lkv_tensor, bent, base, bent.stride[0] = INT64_MAX, call(&bent, "stride[0]"));        \
    } while (0)

static void bad_weights(struct world *w)
{
    lkv_weights **out = MARK(w);
    lkv_tensor wide = w->t.kv_b_proj;
    wide.dtype = LKV_DTYPE_F8E4M3;
#define WEIGHTS(change, word, want)                                                                \
    WITH(lkv_weights_desc, d, w->weights_desc, change,                                             \
         BAD(lkv_weights_create, word, want, w->ctx, &w->model, &d, out))
#define MODEL(change, word)                                                                        \
    WITH(lkv_model_desc, m, w->model, change,                                                      \
         BAD(lkv_weights_create, word, INVALID, w->ctx, &m, &w->weights_desc, out))
#define CALL(tensor, word) WEIGHTS(d.kv_b_proj = tensor, word, INVALID)
    BAD(lkv_weights_create, "NULL", INVALID, NULL, &w->model, &w->weights_desc, out);
    BAD(lkv_weights_create, "released", INVALID, w->dead_ctx, &w->model, &w->weights_desc, out);
    BAD(lkv_weights_create, "NULL", INVALID, w->ctx, NULL, &w->weights_desc, out);
    BAD(lkv_weights_create, "NULL", INVALID, w->ctx, &w->model, NULL, out);
    BAD(lkv_weights_create, "out", INVALID, w->ctx, &w->model, &w->weights_desc, NULL);
    WEIGHTS(d.size = 0, "size is 0", INVALID);
    WEIGHTS(d.kv_b_proj = NULL, "kv_b_proj is NULL", INVALID);
    WEIGHTS(d.kv_b_proj = &wide, "scales is NULL", INVALID);
    WEIGHTS(d.scales = &w->t.kv_b_proj, "scales", INVALID);
    WEIGHTS(d.flags = 2, "flags", INVALID);
    WEIGHTS(d.compute_dtype = 9, "compute_dtype is 9", INVALID);
    WEIGHTS(d.compute_dtype = LKV_DTYPE_BF16, "compute_dtype", UNSUPPORTED);
    MODEL(m.num_heads = 0, "num_heads is 0");
    MODEL(m.num_heads = UINT32_MAX, "num_heads");
    MODEL(m.num_layers = 0, "num_layers is 0");
    MODEL(m.latent_dim = 72, "latent_dim is 72");
    MODEL(m.nope_dim = 0, "nope_dim is 0");
    MODEL(m.v_dim = UINT32_MAX, "v_dim");
    MODEL(m.rope_dim = 31, "rope_dim is 31");
    MODEL(m.rope_style = 3, "rope_style is 3");
    MODEL(m.yarn_factor = NAN, "yarn");
    MODEL(m.yarn_factor = 40, "yarn_original_positions");
    TENSOR(w->t.kv_b_proj, "kv_b_proj", CALL);
#undef CALL
#undef MODEL
#undef WEIGHTS
}

static void bad_projections(struct world *w)
{
    struct tensors *t = &w->t;
    void *ws = w->workspace;
    size_t n = w->workspace_bytes;
#define Q_IN(x, word) BAD(lkv_project_q, word, INVALID, w->weights, x, &t->q_latent, ws, n, NULL)
#define Q_OUT(x, word) BAD(lkv_project_q, word, INVALID, w->weights, &t->q, x, ws, n, NULL)
#define O_IN(x, word) BAD(lkv_project_out, word, INVALID, w->weights, x, &t->out, ws, n, NULL)
#define O_OUT(x, word) BAD(lkv_project_out, word, INVALID, w->weights, &t->o_latent, x, ws, n, NULL)
    BAD(lkv_project_q, "NULL", INVALID, NULL, &t->q, &t->q_latent, ws, n, NULL);
    BAD(lkv_project_q, "released", INVALID, w->dead_weights, &t->q, &t->q_latent, ws, n, NULL);
    BAD(lkv_project_q, "stream", INVALID, w->weights, &t->q, &t->q_latent, ws, n, w);
    BAD(lkv_project_q, "alignment", INVALID, w->weights, &t->q, &t->q_latent, OFF(ws), n, NULL);
    BAD(lkv_project_out, "NULL", INVALID, NULL, &t->o_latent, &t->out, ws, n, NULL);
    BAD(lkv_project_out, "released", INVALID, w->dead_weights, &t->o_latent, &t->out, ws, n, NULL);
    BAD(lkv_project_out, "stream", INVALID, w->weights, &t->o_latent, &t->out, ws, n, w);
    Q_IN(NULL, "q_nope is NULL");
    Q_IN(OFF(&t->q), "alignment");
    Q_OUT(NULL, "q_latent is NULL");
    O_IN(NULL, "o_latent is NULL");
    O_OUT(NULL, "out is NULL");
    TENSOR(t->q, "q_nope", Q_IN);
    TENSOR(t->q_latent, "q_latent", Q_OUT);
    TENSOR(t->o_latent, "o_latent", O_IN);
    TENSOR(t->out, "out", O_OUT);
    BAD(lkv_project_workspace, "NULL", INVALID, NULL, 1, &w->out.bytes);
    BAD(lkv_project_workspace, "released", INVALID, w->dead_weights, 1, &w->out.bytes);
    BAD(lkv_project_workspace, "num_tokens", INVALID, w->weights, UINT64_MAX, &w->out.bytes);
    BAD(lkv_project_workspace, "bytes", INVALID, w->weights, 1, NULL);
#undef Q_IN
#undef Q_OUT
#undef O_IN
#undef O_OUT
}

static void bad_ropes(struct world *w)
{
    lkv_rope **out = MARK(w);
    static const double factors[W_ROPE / 2] = {1, 0};
    lkv_tensor *rope = &w->t.rope, *turned = &w->t.gather_rope;
    int32_t far[W_T] = {0, 1, 127, 128};
#define MODEL(change, word)                                                                        \
    WITH(lkv_model_desc, m, w->model, change,                                                      \
         BAD(lkv_rope_create, word, INVALID, w->ctx, &m, 16, out))
#define IN(x, word) BAD(lkv_rope_apply, word, INVALID, w->rope, x, turned, w->positions, NULL)
#define OUT(x, word) BAD(lkv_rope_apply, word, INVALID, w->rope, rope, x, w->positions, NULL)
    BAD(lkv_rope_create, "NULL", INVALID, NULL, &w->model, 16, out);
    BAD(lkv_rope_create, "released", INVALID, w->dead_ctx, &w->model, 16, out);
    BAD(lkv_rope_create, "NULL", INVALID, w->ctx, NULL, 16, out);
    BAD(lkv_rope_create, "out", INVALID, w->ctx, &w->model, 16, NULL);
    BAD(lkv_rope_create, "num_positions is 0", INVALID, w->ctx, &w->model, 0, out);
    BAD(lkv_rope_create, "num_positions", INVALID, w->ctx, &w->model, UINT64_MAX, out);
    MODEL(m.size = 0, "size is 0");
    MODEL(m.rope_style = LKV_ROPE_NONE, "rope_style is 0");
    MODEL(m.rope_dim = 0, "rope_dim 0");
    MODEL(m.rope_theta = 0, "rope_theta is 0");
    MODEL(m.rope_theta = INFINITY, "rope_theta");
    MODEL(m.rope_factors = factors, "rope_factors[1] is 0");
    MODEL(m.rope_factors = OFF(factors), "rope_factors");
    BAD(lkv_rope_apply, "NULL", INVALID, NULL, rope, turned, w->positions, NULL);
    BAD(lkv_rope_apply, "released", INVALID, w->dead_rope, rope, turned, w->positions, NULL);
    BAD(lkv_rope_apply, "stream", INVALID, w->rope, rope, turned, w->positions, w);
    BAD(lkv_rope_apply, "positions is NULL", INVALID, w->rope, rope, turned, NULL, NULL);
    BAD(lkv_rope_apply, "alignment", INVALID, w->rope, rope, turned, OFF(w->positions), NULL);
    BAD(lkv_rope_apply, "128", INVALID, w->rope, rope, turned, far, NULL);
    IN(NULL, "in is NULL");
    OUT(NULL, "out is NULL");
    IN(OFF(rope), "alignment");
    OUT(OFF(turned), "alignment");
    TENSOR(*rope, "in", IN);
    TENSOR(*turned, "out", OUT);
#undef MODEL
#undef IN
#undef OUT
#define IN(x, word) BAD(lkv_rotate, word, INVALID, w->ctx, x, &w->t.gather_latent, NULL)
#define OUT(x, word) BAD(lkv_rotate, word, INVALID, w->ctx, &w->t.latent, x, NULL)
    BAD(lkv_rotate, "NULL", INVALID, NULL, &w->t.latent, &w->t.gather_latent, NULL);
    BAD(lkv_rotate, "released", INVALID, w->dead_ctx, &w->t.latent, &w->t.gather_latent, NULL);
    BAD(lkv_rotate, "stream", INVALID, w->ctx, &w->t.latent, &w->t.gather_latent, w);
    BAD(lkv_rotate, "power of two", INVALID, w->ctx, &w->t.merged, &w->t.merged, NULL);
    IN(NULL, "in is NULL");
    OUT(NULL, "out is NULL");
    IN(OFF(&w->t.latent), "alignment");
    OUT(OFF(&w->t.latent), "alignment");
    TENSOR(w->t.latent, "in", IN);
    TENSOR(w->t.gather_latent, "out", OUT);
#undef IN
#undef OUT
}

static void bad_appends(struct world *w)
{
#define APPEND(change, word)                                                                       \
    WITH(lkv_append_args, a, w->append, change, BAD(lkv_append, word, INVALID, w->pool, &a, NULL))
#define LATENT(x, word) APPEND(a.latent = x, word)
#define ROPE(x, word) APPEND(a.rope = x, word)
    BAD(lkv_append, "NULL", INVALID, NULL, &w->append, NULL);
    BAD(lkv_append, "released", INVALID, w->dead_pool, &w->append, NULL);
    BAD(lkv_append, "METADATA_ONLY", INVALID, w->meta, &w->append, NULL);
    BAD(lkv_append, "NULL", INVALID, w->pool, NULL, NULL);
    BAD(lkv_append, "stream", INVALID, w->pool, &w->append, w);
    APPEND(a.size = 0, "size is 0");
    APPEND(a.layer = W_LAYERS, "layer is 2");
    APPEND(a.flags = 2, "flags");
    APPEND(a.reserved = 1, "reserved");
    APPEND(a.slots = NULL, "slots is NULL");
    APPEND(a.slots = OFF(w->slots), "slots");
    APPEND(a.norm_weight = OFF(w->data), "norm_weight");
    APPEND((a.norm_weight = w->data, a.norm_eps = -1), "norm_eps");
    APPEND((a.norm_weight = w->data, a.norm_eps = NAN), "norm_eps");
    APPEND(a.positions = w->positions, "rope_table");
    APPEND((a.rope_table = w->rope), "positions is NULL");
    APPEND((a.rope_table = w->dead_rope, a.positions = w->positions), "released");
    APPEND((a.rope_table = w->other_rope, a.positions = w->positions), "another context");
    LATENT(NULL, "latent is NULL");
    ROPE(NULL, "rope is NULL");
    TENSOR(w->t.latent, "latent", LATENT);
    TENSOR(w->t.rope, "rope", ROPE);
#undef APPEND
#undef LATENT
#undef ROPE
}

static void bad_plans(struct world *w)
{
    lkv_plan **out = MARK(w);
#define PLAN(change, word)                                                                         \
    WITH(lkv_plan_desc, d, w->plan_desc, change,                                                   \
         BAD(lkv_plan_create, word, INVALID, w->ctx, &d, out))
    BAD(lkv_plan_create, "NULL", INVALID, NULL, &w->plan_desc, out);
    BAD(lkv_plan_create, "released", INVALID, w->dead_ctx, &w->plan_desc, out);
    BAD(lkv_plan_create, "another context", INVALID, w->other_ctx, &w->plan_desc, out);
    BAD(lkv_plan_create, "NULL", INVALID, w->ctx, NULL, out);
    BAD(lkv_plan_create, "out", INVALID, w->ctx, &w->plan_desc, NULL);
    PLAN(d.size = 0, "size is 0");
    PLAN(d.pool = NULL, "NULL");
    PLAN(d.pool = w->dead_pool, "released");
    PLAN(d.pool = w->meta, "METADATA_ONLY");
    PLAN(d.num_heads = 0, "num_heads is 0");
    PLAN(d.num_heads = 257, "num_heads is 257");
    PLAN(d.max_seqs = 0, "max_seqs is 0");
    PLAN(d.max_seqs = UINT32_MAX, "max_seqs");
    PLAN(d.max_tokens = 0, "max_tokens is 0");
    PLAN(d.max_tokens = UINT32_MAX, "max_tokens");
    PLAN(d.max_q_len = 0, "max_q_len is 0");
    PLAN(d.max_q_len = 9, "max_q_len is 9");
    PLAN(d.max_seq_len = 0, "max_seq_len is 0");
    PLAN(d.max_seq_len = UINT32_MAX, "max_seq_len");
    PLAN(d.max_blocks_per_seq = 1, "max_blocks_per_seq is 1");
    PLAN(d.q_dtype = LKV_DTYPE_F8E4M3, "q_dtype is 4");
    PLAN(d.out_dtype = 0, "out_dtype is 0");
    PLAN(d.q_form = 2, "q_form is 2");
    PLAN(d.out_form = 2, "out_form is 2");
    PLAN(d.flags = 2, "flags");
    PLAN(d.nope_dim = 0, "nope_dim is 0");
    PLAN(d.v_dim = UINT32_MAX, "v_dim");
#undef PLAN
    BAD(lkv_plan_workspace, "NULL", INVALID, NULL, &w->out.bytes);
    BAD(lkv_plan_workspace, "released", INVALID, w->dead_plan, &w->out.bytes);
    BAD(lkv_plan_workspace, "bytes", INVALID, w->plan, NULL);
    BAD(lkv_plan_describe, "NULL", INVALID, NULL, &w->out.plan);
    BAD(lkv_plan_describe, "released", INVALID, w->dead_plan, &w->out.plan);
    BAD(lkv_plan_describe, "NULL", INVALID, w->plan, NULL);
    BAD(lkv_plan_describe, "alignment", INVALID, w->plan, OFF(&w->out.plan));
}

static void bad_batches(struct world *w)
{
    void *ws = w->workspace;
    size_t n = w->workspace_bytes;
    int32_t lens[] = {-1, 65, INT32_MAX}, falling[] = {0, -1}, from_one[] = {1, 4},
            short_[] = {0, 3};
#define BATCH(change, word)                                                                        \
    WITH(lkv_batch, b, w->batch, change,                                                           \
         BAD(lkv_plan_update, word, INVALID, w->plan, &b, ws, n, NULL);                            \
         BAD(lkv_attend, "", INVALID, w->plan, w->pool, &b, &w->attend, NULL))
    BAD(lkv_plan_update, "NULL", INVALID, NULL, &w->batch, ws, n, NULL);
    BAD(lkv_plan_update, "released", INVALID, w->dead_plan, &w->batch, ws, n, NULL);
    BAD(lkv_plan_update, "NULL", INVALID, w->plan, NULL, ws, n, NULL);
    BAD(lkv_plan_update, "stream", INVALID, w->plan, &w->batch, ws, n, w);
    BAD(lkv_plan_update, "alignment", INVALID, w->plan, &w->batch, OFF(ws), n, NULL);
    WITH(
        size_t, need, 0, lkv_plan_workspace(w->plan, &need), if (need) {
            BAD(lkv_plan_update, "workspace", LKV_E_WORKSPACE, w->plan, &w->batch, ws, need - 1,
                NULL);
            BAD(lkv_plan_update, "workspace", LKV_E_WORKSPACE, w->plan, &w->batch, NULL, n, NULL);
        });
    BATCH(b.size = 0, "size is 0");
    BATCH(b.num_seqs = UINT32_MAX, "num_seqs");
    BATCH(b.num_tokens = UINT64_MAX, "num_tokens");
    BATCH(b.num_tokens = 3, "num_tokens");
    BATCH(b.max_blocks_per_seq = UINT32_MAX, "max_blocks_per_seq");
    BATCH(b.max_blocks_per_seq = 0, "seq_lens[0] is 40");
    BATCH(b.block_table_stride = 1, "block_table_stride is 1");
    BATCH(b.block_table = NULL, "block_table is NULL");
    BATCH(b.block_table = OFF(w->table), "block_table");
    BATCH(b.seq_lens = NULL, "seq_lens is NULL");
    BATCH(b.seq_lens = OFF(w->seq_lens), "seq_lens");
    BATCH(b.seq_lens = &lens[0], "seq_lens[0] is -1");
    BATCH(b.seq_lens = &lens[1], "seq_lens[0] is 65");
    BATCH(b.seq_lens = &lens[2], "seq_lens[0]");
    BATCH(b.q_indptr = NULL, "num_tokens is 4");
    BATCH(b.q_indptr = OFF(w->q_indptr), "q_indptr");
    BATCH(b.q_indptr = falling, "q_indptr[1] is -1");
    BATCH(b.q_indptr = from_one, "q_indptr[0] is 1");
    BATCH(b.q_indptr = short_, "q_indptr[1] is 3");
#undef BATCH
}

static void bad_attends(struct world *w)
{
    lkv_tensor narrow = w->t.bias;
    narrow.shape[1] = narrow.stride[0] = 39;
#define ATTEND(change, word, want)                                                                 \
    WITH(lkv_attend_args, a, w->attend, change,                                                    \
         BAD(lkv_attend, word, want, w->plan, w->pool, &w->batch, &a, NULL))
#define Q(x, word) ATTEND(a.q = x, word, INVALID)
#define Q_ROPE(x, word) ATTEND(a.q_rope = x, word, INVALID)
#define OUT(x, word) ATTEND(a.out = x, word, INVALID)
#define LSE(x, word) ATTEND(a.lse = x, word, INVALID)
#define ENTROPY(x, word) ATTEND(a.entropy = x, word, INVALID)
    BAD(lkv_attend, "NULL", INVALID, NULL, w->pool, &w->batch, &w->attend, NULL);
    BAD(lkv_attend, "released", INVALID, w->dead_plan, w->pool, &w->batch, &w->attend, NULL);
    BAD(lkv_attend, "lkv_plan_update", INVALID, w->fresh_plan, w->pool, &w->batch, &w->attend,
        NULL);
    BAD(lkv_attend, "NULL", INVALID, w->plan, NULL, &w->batch, &w->attend, NULL);
    BAD(lkv_attend, "released", INVALID, w->plan, w->dead_pool, &w->batch, &w->attend, NULL);
    BAD(lkv_attend, "another context", INVALID, w->plan, w->other_pool, &w->batch, &w->attend,
        NULL);
    BAD(lkv_attend, "METADATA_ONLY", INVALID, w->plan, w->meta, &w->batch, &w->attend, NULL);
    BAD(lkv_attend, "lkv_plan_update", INVALID, w->fresh_plan, w->pool, NULL, &w->attend, NULL);
    BAD(lkv_attend, "NULL", INVALID, w->plan, w->pool, &w->batch, NULL, NULL);
    BAD(lkv_attend, "stream", INVALID, w->plan, w->pool, &w->batch, &w->attend, w);
    ATTEND(a.size = 0, "size is 0", INVALID);
    ATTEND(a.layer = UINT32_MAX, "layer", INVALID);
    ATTEND(a.flags = 2, "flags", INVALID);
    ATTEND(a.scale = 0, "scale is 0", INVALID);
    ATTEND(a.scale = NAN, "scale", INVALID);
    ATTEND(a.workspace = OFF(w->workspace), "alignment", INVALID);
    ATTEND((a.workspace = (char *)w->workspace + 256, a.workspace_bytes = SIZE_MAX), "workspace",
           INVALID);
    ATTEND(a.weights = NULL, "NULL", INVALID);
    ATTEND(a.weights = w->dead_weights, "released", INVALID);
    ATTEND(a.weights = w->other_weights, "another context", INVALID);
    ATTEND(a.weights = w->rotated, "rotated", INVALID);
    ATTEND(a.bias = &narrow, "bias has shape[1] 39", INVALID);
    Q(NULL, "q is NULL");
    Q_ROPE(NULL, "q_rope is NULL");
    OUT(NULL, "out is NULL");
    TENSOR(w->t.q, "q", Q);
    TENSOR(w->t.q_rope, "q_rope", Q_ROPE);
    TENSOR(w->t.out, "out", OUT);
    TENSOR(w->t.lse, "lse", LSE);
    TENSOR(w->t.entropy, "entropy", ENTROPY);
    WITH(lkv_tensor, t, w->t.q, t.dtype = LKV_DTYPE_BF16, Q(&t, "BF16"));
#undef ATTEND
#undef Q
#undef Q_ROPE
#undef OUT
#undef LSE
#undef ENTROPY
}

/* A longer query than its sequence is a fault, and a checked call says so. */
static void bad_lengths(struct world *w)
{
    w->seq_lens[0] = 3;
    WITH(lkv_attend_args, a, w->attend, a.flags = LKV_ATTEND_CHECKED,
         BAD(lkv_attend, "seq_lens[0] is 3", INVALID, w->plan, w->pool, &w->batch, &a, NULL));
    w->seq_lens[0] = W_TOKENS;
}

static void bad_gathers(struct world *w)
{
#define GATHER(change, word)                                                                       \
    WITH(lkv_gather_args, a, w->gather, change, BAD(lkv_gather, word, INVALID, w->pool, &a, NULL))
#define LATENT(x, word) GATHER(a.latent = x, word)
#define ROPE(x, word) GATHER(a.rope = x, word)
    BAD(lkv_gather, "NULL", INVALID, NULL, &w->gather, NULL);
    BAD(lkv_gather, "released", INVALID, w->dead_pool, &w->gather, NULL);
    BAD(lkv_gather, "METADATA_ONLY", INVALID, w->meta, &w->gather, NULL);
    BAD(lkv_gather, "NULL", INVALID, w->pool, NULL, NULL);
    BAD(lkv_gather, "stream", INVALID, w->pool, &w->gather, w);
    GATHER(a.size = 0, "size is 0");
    GATHER(a.layer = W_LAYERS, "layer is 2");
    GATHER(a.flags = 2, "flags");
    GATHER((a.latent = NULL, a.rope = NULL), "both NULL");
    GATHER(a.slots = NULL, "slots is NULL");
    GATHER(a.slots = OFF(w->slots), "slots");
    TENSOR(w->t.gather_latent, "latent", LATENT);
    TENSOR(w->t.gather_rope, "rope", ROPE);
#undef GATHER
#undef LATENT
#undef ROPE
}

static void bad_merges(struct world *w)
{
#define MERGE(change, word)                                                                        \
    WITH(lkv_merge_args, a, w->merge, change, BAD(lkv_merge, word, INVALID, w->ctx, &a, NULL))
#define OUTS(x, word) MERGE(a.outs = x, word)
#define LSES(x, word) MERGE(a.lses = x, word)
#define ENTROPIES(x, word) MERGE(a.entropies = x, word)
#define OUT(x, word) MERGE(a.out = x, word)
#define LSE(x, word) MERGE(a.lse = x, word)
    BAD(lkv_merge, "NULL", INVALID, NULL, &w->merge, NULL);
    BAD(lkv_merge, "released", INVALID, w->dead_ctx, &w->merge, NULL);
    BAD(lkv_merge, "NULL", INVALID, w->ctx, NULL, NULL);
    BAD(lkv_merge, "stream", INVALID, w->ctx, &w->merge, w);
    MERGE(a.size = 0, "size is 0");
    MERGE(a.entropies = NULL, "entropies is NULL");
    OUTS(NULL, "outs is NULL");
    LSES(NULL, "lses is NULL");
    OUT(NULL, "out is NULL");
    WITH(lkv_tensor, t, w->t.outs, t.shape[0] = 0, OUTS(&t, "0 parts"));
    TENSOR(w->t.outs, "", OUTS);
    TENSOR(w->t.lses, "lses", LSES);
    TENSOR(w->t.entropies, "entropies", ENTROPIES);
    TENSOR(w->t.merged, "out", OUT);
    TENSOR(w->t.lse, "lse", LSE);
#undef MERGE
}

void bad_tensors(struct world *w)
{
    bad_weights(w);
    bad_projections(w);
    bad_ropes(w);
    bad_appends(w);
    bad_plans(w);
    bad_batches(w);
    bad_attends(w);
    bad_lengths(w);
    bad_gathers(w);
    bad_merges(w);
}
