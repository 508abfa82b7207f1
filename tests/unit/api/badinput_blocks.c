/* Rows for pools, sequences, steps and leases. */
#include "tests/unit/api/badinput.h"

static void bad_pool_numbers(struct world *w)
{
    lkv_pool **out = MARK(w);
#define POOL(change, word, want)                                                                   \
    WITH(lkv_pool_desc, d, w->pool_desc, change,                                                   \
         BAD(lkv_pool_create, word, want, w->ctx, &d, out);                                        \
         BAD(lkv_block_query, word, want, &d, &w->out.block_info))
    POOL(d.size = 0, "size is 0", INVALID);
    POOL(d.format = 0, "format is 0", INVALID);
    POOL(d.format = UINT32_MAX, "format", INVALID);
    POOL(d.kind = 77, "kind is 77", INVALID);
    POOL(d.encode_flags = 1u << 31, "encode_flags", INVALID);
    POOL(d.encode_flags = LKV_ENCODE_NVFP4_FOUR_OVER_SIX, "encode_flags", INVALID);
    POOL(d.owner = 2, "owner is 2", INVALID);
    POOL(d.flags = 1u << 30, "flags", INVALID);
    POOL((d.flags = LKV_POOL_EVENTS, d.owner = LKV_OWNER_ENGINE, d.num_planes = 0), "EVENTS",
         INVALID);
    POOL(d.num_events = 9, "LKV_POOL_EVENTS", INVALID);
    POOL((d.flags = LKV_POOL_EVENTS, d.num_events = UINT64_MAX), "num_events", INVALID);
    POOL((d.host_blocks = 1, d.owner = LKV_OWNER_ENGINE, d.num_planes = 0), "host_blocks", INVALID);
    POOL(d.host_blocks = UINT64_MAX, "host_blocks", INVALID);
    POOL(d.tokens_per_block = 0, "tokens_per_block is 0", INVALID);
    POOL(d.tokens_per_block = 48, "tokens_per_block is 48", INVALID);
    POOL(d.latent_dim = 0, "latent_dim is 0", INVALID);
    POOL(d.latent_dim = 24, "latent_dim is 24", INVALID);
    POOL(d.latent_dim = UINT32_MAX, "latent_dim", INVALID);
    POOL(d.rope_dim = 3, "rope_dim is 3", INVALID);
    POOL(d.rope_dim = UINT32_MAX, "rope_dim", INVALID);
    POOL(d.rope_style = 3, "rope_style is 3", INVALID);
    POOL(d.num_kv_heads = 2, "num_kv_heads", INVALID);
    POOL(d.num_layers = 0, "num_layers is 0", INVALID);
    POOL(d.num_layers = UINT32_MAX, "num_layers", INVALID);
    POOL(d.max_seqs = UINT32_MAX, "max_seqs", INVALID);
    POOL(d.num_blocks = 0, "num_blocks is 0", INVALID);
    POOL(d.num_blocks = UINT64_MAX, "num_blocks", INVALID);
    POOL(d.fallback_headroom = -0.1, "fallback_headroom", INVALID);
    POOL(d.fallback_headroom = 0.0 / 0.0, "fallback_headroom", INVALID);
    POOL(d.fallback_headroom = 1e9, "no block is left", INVALID);
    POOL(d.block_stride_bytes = 16, "block_stride_bytes is 16", INVALID);
    POOL(d.block_stride_bytes = 100001, "block_stride_bytes", INVALID);
    POOL(d.block_stride_bytes = UINT64_MAX - 15, "block_stride_bytes", INVALID);
    POOL(d.layer_stride_bytes = 16, "layer_stride_bytes is 16", INVALID);
    POOL(d.layer_stride_bytes = UINT64_MAX - 15, "layer_stride_bytes", INVALID);
    POOL((d.block_stride_bytes = 4096, d.layer_stride_bytes = 3072), "block_stride_bytes", INVALID);
    POOL(d.num_planes = 9, "num_planes is 9", INVALID);
    POOL(d.value_latent_dim = 1, "value_latent_dim is 1", INVALID);
    POOL((d.owner = LKV_OWNER_ENGINE, d.flags = LKV_POOL_METADATA_ONLY), "METADATA_ONLY", INVALID);
#undef POOL
    BAD(lkv_block_query, "NULL", INVALID, NULL, &w->out.block_info);
    BAD(lkv_block_query, "NULL", INVALID, &w->pool_desc, NULL);
    BAD(lkv_block_query, "alignment", INVALID, &w->pool_desc, OFF(&w->out.block_info));
}

static void bad_pool_pointers(struct world *w)
{
    lkv_pool **out = MARK(w);
    static const lkv_plane_desc empty = {0, 0, 0}, huge = {UINT64_MAX, 0, 0}, odd = {16, 7, 0};
    static const float outers[W_LAYERS] = {1, 0};
    void *layers[W_LAYERS] = {w->engine_memory, OFF(w->engine_memory)};
#define POOL(change, word)                                                                         \
    WITH(lkv_pool_desc, d, w->pool_desc, change,                                                   \
         BAD(lkv_pool_create, word, INVALID, w->ctx, &d, out))
    BAD(lkv_pool_create, "NULL", INVALID, NULL, &w->pool_desc, out);
    BAD(lkv_pool_create, "released", INVALID, w->dead_ctx, &w->pool_desc, out);
    BAD(lkv_pool_create, "NULL", INVALID, w->ctx, NULL, out);
    BAD(lkv_pool_create, "out is NULL", INVALID, w->ctx, &w->pool_desc, NULL);
    BAD(lkv_pool_create, "alignment", INVALID, w->ctx, &w->pool_desc, OFF(out));
    POOL(d.memory = OFF(w->engine_memory), "alignment 256");
    POOL((d.memory = w->engine_memory, d.memory_bytes = 0), "memory_bytes is 0");
    POOL((d.memory = w->engine_memory, d.layer_memory = layers), "layer_memory");
    POOL(d.layer_memory = layers, "layer_memory[1]");
    POOL(d.layer_memory = OFF(layers), "layer_memory");
    POOL((d.layer_memory = layers, d.layer_stride_bytes = 1 << 20), "layer_stride_bytes");
    POOL((d.memory = w->engine_memory, d.flags = LKV_POOL_METADATA_ONLY), "METADATA_ONLY");
    POOL((d.format = LKV_FORMAT_NVFP4, d.encode_flags = LKV_ENCODE_NVFP4_FIXED_OUTER),
         "fixed_outer is NULL");
    POOL((d.format = LKV_FORMAT_NVFP4, d.encode_flags = LKV_ENCODE_NVFP4_FIXED_OUTER,
          d.fixed_outer = outers),
         "fixed_outer[1] is 0");
    POOL(d.num_planes = 1, "planes is NULL");
    POOL((d.num_planes = 1, d.planes = OFF(&empty)), "planes");
    POOL((d.num_planes = 1, d.planes = &empty), "bytes_per_block is 0");
    POOL((d.num_planes = 1, d.planes = &huge), "bytes_per_block");
    POOL((d.num_planes = 1, d.planes = &odd), "placement is 7");
    POOL((d.num_planes = 1, d.planes = &odd, d.owner = LKV_OWNER_ENGINE), "num_planes");
#undef POOL
    /* layers 2^49 bytes apart: the allocator's refusal, not a crash */
    WITH(lkv_pool_desc, d, w->pool_desc, d.layer_stride_bytes = (uint64_t)1 << 49,
         BAD(lkv_pool_create, "", LKV_E_NO_MEMORY, w->ctx, &d, out));
}

static void bad_pool_queries(struct world *w)
{
    struct outputs *o = &w->out;
    BAD(lkv_pool_layer, "NULL", INVALID, NULL, 0, &o->layout);
    BAD(lkv_pool_layer, "released", INVALID, w->dead_pool, 0, &o->layout);
    BAD(lkv_pool_layer, "layer is 2", INVALID, w->pool, W_LAYERS, &o->layout);
    BAD(lkv_pool_layer, "layer", INVALID, w->pool, UINT32_MAX, &o->layout);
    BAD(lkv_pool_layer, "METADATA_ONLY", INVALID, w->meta, 0, &o->layout);
    BAD(lkv_pool_layer, "NULL", INVALID, w->pool, 0, NULL);
    BAD(lkv_pool_describe, "NULL", INVALID, NULL, &o->pool);
    BAD(lkv_pool_describe, "released", INVALID, w->dead_pool, &o->pool);
    BAD(lkv_pool_describe, "NULL", INVALID, w->pool, NULL);
    BAD(lkv_pool_describe, "alignment", INVALID, w->pool, OFF(&o->pool));
    BAD(lkv_pool_plane, "released", INVALID, w->dead_pool, 0, &o->base, &o->bytes_per_block);
    BAD(lkv_pool_plane, "plane is 2", INVALID, w->pool, 2, &o->base, &o->bytes_per_block);
    BAD(lkv_pool_plane, "plane is 0", INVALID, w->engine, 0, &o->base, &o->bytes_per_block);
    BAD(lkv_pool_plane, "base", INVALID, w->pool, 0, NULL, &o->bytes_per_block);
    BAD(lkv_pool_plane, "bytes_per_block", INVALID, w->pool, 0, &o->base, NULL);
    BAD(lkv_pool_plane, "alignment", INVALID, w->pool, 0, OFF(&o->base), &o->bytes_per_block);
    BAD(lkv_pool_faults, "NULL", INVALID, NULL, 1, &o->faults);
    BAD(lkv_pool_faults, "released", INVALID, w->dead_pool, 1, &o->faults);
    BAD(lkv_pool_faults, "NULL", INVALID, w->pool, 1, NULL);
    BAD(lkv_pool_query, "NULL", INVALID, NULL, &o->stats);
    BAD(lkv_pool_query, "released", INVALID, w->dead_pool, &o->stats);
    BAD(lkv_pool_query, "NULL", INVALID, w->pool, NULL);
    BAD(lkv_pool_query, "alignment", INVALID, w->pool, OFF(&o->stats));
    BAD(lkv_pool_check, "NULL", INVALID, NULL);
    BAD(lkv_pool_check, "released", INVALID, w->dead_pool);
    BAD(lkv_pool_apply_copies, "NULL", INVALID, NULL, 0, NULL);
    BAD(lkv_pool_apply_copies, "ENGINE", INVALID, w->engine, 0, NULL);
    BAD(lkv_pool_apply_copies, "METADATA_ONLY", INVALID, w->meta, 0, NULL);
    BAD(lkv_pool_apply_copies, "stream", INVALID, w->pool, 0, w);
    BAD(lkv_pool_take_copies, "NULL", INVALID, NULL, o->ids, 1, 0, &o->num);
    BAD(lkv_pool_take_copies, "apply_copies", INVALID, w->pool, o->ids, 1, 0, &o->num);
    BAD(lkv_pool_take_copies, "pairs", INVALID, w->meta, NULL, 1, 0, &o->num);
    BAD(lkv_pool_take_copies, "num", INVALID, w->meta, o->ids, 1, 0, NULL);
    BAD(lkv_pool_pass_fence, "released", INVALID, w->dead_pool, 1);
    BAD(lkv_pool_pass_fence, "ENGINE", INVALID, w->engine, 1);
}

static void bad_pool_reports(struct world *w)
{
    struct outputs *o = &w->out;
    BAD(lkv_pool_metrics_text, "NULL", INVALID, NULL, NULL, NULL, 0, &o->bytes);
    BAD(lkv_pool_metrics_text, "released", INVALID, w->dead_pool, NULL, NULL, 0, &o->bytes);
    BAD(lkv_pool_metrics_text, "LIBRARY", INVALID, w->engine, NULL, NULL, 0, &o->bytes);
    BAD(lkv_pool_metrics_text, "buffer", INVALID, w->pool, NULL, NULL, 9, &o->bytes);
    BAD(lkv_pool_metrics_text, "capacity is 9", INVALID, w->pool, NULL, (char *)o->rows, 9,
        &o->bytes);
    BAD(lkv_pool_metrics_text, "needed", INVALID, w->pool, NULL, NULL, 0, NULL);
    BAD(lkv_pool_metrics_text, "labels", INVALID, w->pool, "a=", NULL, 0, &o->bytes);
    lkv_event_batch batch = {.size = sizeof batch};
    BAD(lkv_pool_events, "NULL", INVALID, NULL, &batch);
    BAD(lkv_pool_events, "released", INVALID, w->dead_pool, &batch);
    BAD(lkv_pool_events, "LIBRARY", INVALID, w->engine, &batch);
    BAD(lkv_pool_events, "LKV_POOL_EVENTS", INVALID, w->pool, &batch);
    BAD(lkv_pool_events, "NULL", INVALID, w->pool, NULL);
    WITH(lkv_event_batch, d, batch, d.capacity = 1,
         BAD(lkv_pool_events, "events is NULL", INVALID, w->pool, &d));
    WITH(lkv_event_batch, d, batch, d.data_capacity = 8,
         BAD(lkv_pool_events, "data is NULL", INVALID, w->pool, &d));
    WITH(lkv_event_batch, d, batch, d.size = 0,
         BAD(lkv_pool_events, "size is 0", INVALID, w->pool, &d));
    lkv_snapshot_args args = {.size = sizeof args, .path = "no/such/folder"};
#define SNAP(call)                                                                                 \
    BAD(call, "NULL", INVALID, NULL, &args, NULL, NULL);                                           \
    BAD(call, "released", INVALID, w->dead_pool, &args, NULL, NULL);                               \
    BAD(call, "LIBRARY", INVALID, w->engine, &args, NULL, NULL);                                   \
    BAD(call, "NULL", INVALID, w->pool, NULL, NULL, NULL);                                         \
    BAD(call, "no/such/folder", LKV_E_NOT_FOUND, w->pool, &args, NULL, NULL);                      \
    BAD(call, "stream", INVALID, w->pool, &args, NULL, w);                                         \
    BAD(call, "size is 0", INVALID, w->pool, &args, &(lkv_snapshot_info){0}, NULL);                \
    WITH(lkv_snapshot_args, d, args, d.path = NULL,                                                \
         BAD(call, "path is NULL", INVALID, w->pool, &d, NULL, NULL));                             \
    WITH(lkv_snapshot_args, d, args, d.path = "",                                                  \
         BAD(call, "path is empty", INVALID, w->pool, &d, NULL, NULL));                            \
    WITH(lkv_snapshot_args, d, args, d.flags = 1,                                                  \
         BAD(call, "flags", INVALID, w->pool, &d, NULL, NULL));                                    \
    WITH(lkv_snapshot_args, d, args, d.secret_bytes = 32,                                          \
         BAD(call, "secret", INVALID, w->pool, &d, NULL, NULL));                                   \
    WITH(lkv_snapshot_args, d, args, (d.secret = (uint8_t *)o, d.secret_bytes = 15),               \
         BAD(call, "secret is 15", INVALID, w->pool, &d, NULL, NULL))
    SNAP(lkv_pool_snapshot_save);
    SNAP(lkv_pool_snapshot_load);
#undef SNAP
}

static void bad_prompts(struct world *w)
{
    struct outputs *o = &w->out;
    static const lkv_key tag = {"x", 0, 1, 0, 1}, far = {"x", 5, 5, LKV_KEY_USER, 1},
                         none = {NULL, 0, 1, LKV_KEY_SALT, 4}, big = {"x", 0, 1, 16, 65536};
#define PROMPT(change, word)                                                                       \
    WITH(lkv_prompt, p, w->prompt, change,                                                         \
         BAD(lkv_seq_match, word, INVALID, w->pool, &p, &o->match);                                \
         BAD(lkv_seq_admit, word, INVALID, w->pool, &p, &w->admit, &w->admission, &o->seq))
    PROMPT(p.size = 1, "size is 1");
    PROMPT(p.tokens = NULL, "tokens is NULL");
    PROMPT(p.tokens = OFF(w->tokens), "tokens");
    PROMPT(p.num_tokens = UINT64_MAX, "num_tokens");
    PROMPT(p.flags = 8, "flags");
    PROMPT(p.num_keys = 1, "keys is NULL");
    PROMPT(p.num_keys = UINT32_MAX, "num_keys");
    PROMPT((p.num_keys = 1, p.keys = &tag), "tag is 0");
    PROMPT((p.num_keys = 1, p.keys = &far), "begin");
    PROMPT((p.num_keys = 1, p.keys = &none), "bytes");
    PROMPT((p.num_keys = 1, p.keys = &big), "bytes");
#undef PROMPT
    BAD(lkv_seq_match, "NULL", INVALID, NULL, &w->prompt, &o->match);
    BAD(lkv_seq_match, "released", INVALID, w->dead_pool, &w->prompt, &o->match);
    BAD(lkv_seq_match, "ENGINE", INVALID, w->engine, &w->prompt, &o->match);
    BAD(lkv_seq_match, "NULL", INVALID, w->pool, NULL, &o->match);
    BAD(lkv_seq_match, "NULL", INVALID, w->pool, &w->prompt, NULL);
    BAD(lkv_seq_admit, "NULL", INVALID, NULL, &w->prompt, NULL, NULL, &o->seq);
    BAD(lkv_seq_admit, "released", INVALID, w->dead_pool, &w->prompt, NULL, NULL, &o->seq);
    BAD(lkv_seq_admit, "out", INVALID, w->pool, &w->prompt, NULL, NULL, NULL);
    BAD(lkv_seq_admit, "alignment", INVALID, w->pool, &w->prompt, NULL, OFF(&w->admission),
        &o->seq);
}

static void bad_admissions(struct world *w)
{
    lkv_seq *out = &w->out.seq;
    lkv_match stale = {.size = sizeof stale, .hit_tokens = 16, .ticket = {1, 2, 3, 4}};
#define ADMIT(change, word, want)                                                                  \
    WITH(lkv_admit_args, a, w->admit, change,                                                      \
         BAD(lkv_seq_admit, word, want, w->pool, &w->prompt, &a, &w->admission, out))
    ADMIT(a.size = 0, "size is 0", INVALID);
    ADMIT(a.flags = 2, "flags", INVALID);
    ADMIT(a.priority = 101, "priority is 101", INVALID);
    ADMIT(a.room_tokens = UINT64_MAX, "room_tokens", INVALID);
    ADMIT(a.max_tokens = 1 << 20, "", LKV_E_NEVER_FITS);
    ADMIT(a.match = OFF(&stale), "alignment", INVALID);
    ADMIT(a.match = &stale, "", LKV_E_STALE_HIT);
#undef ADMIT
}

static void bad_sequences(struct world *w)
{
    struct outputs *o = &w->out;
    lkv_pool *const pools[] = {NULL, w->dead_pool, w->engine};
    const char *const words[] = {"NULL", "released", "ENGINE"};
    for (int i = 0; i < 3; i++) {
        BAD(lkv_seq_append, words[i], INVALID, pools[i], w->seq, w->tokens, 1, NULL);
        BAD(lkv_seq_reserve, words[i], INVALID, pools[i], w->seq, 1, NULL);
        BAD(lkv_seq_commit, words[i], INVALID, pools[i], w->seq, 1);
        BAD(lkv_seq_truncate, words[i], INVALID, pools[i], w->seq, 1, 0);
        BAD(lkv_seq_fork, words[i], INVALID, pools[i], w->seq, &o->seq);
        BAD(lkv_seq_free, words[i], INVALID, pools[i], w->seq, 0);
        BAD(lkv_seq_query, words[i], INVALID, pools[i], w->seq, &o->seq_info);
        BAD(lkv_seq_table, words[i], INVALID, pools[i], w->seq, o->ids, 64, &o->num);
        BAD(lkv_seq_common, words[i], INVALID, pools[i], &w->seq, 1, &o->num);
        BAD(lkv_seq_swap_out, words[i], INVALID, pools[i], w->seq, 0, NULL);
        BAD(lkv_seq_swap_in, words[i], INVALID, pools[i], w->seq, NULL);
    }
    const lkv_seq handles[] = {0, UINT64_MAX, w->stale_seq};
    for (int i = 0; i < 3; i++) {
        lkv_seq s = handles[i];
        BAD(lkv_seq_append, "", LKV_E_NOT_FOUND, w->pool, s, w->tokens, 1, &w->admission);
        BAD(lkv_seq_reserve, "", LKV_E_NOT_FOUND, w->pool, s, 1, &w->admission);
        BAD(lkv_seq_commit, "", LKV_E_NOT_FOUND, w->pool, s, 1);
        BAD(lkv_seq_truncate, "", LKV_E_NOT_FOUND, w->pool, s, 1, 0);
        BAD(lkv_seq_fork, "", LKV_E_NOT_FOUND, w->pool, s, &o->seq);
        BAD(lkv_seq_free, "", LKV_E_NOT_FOUND, w->pool, s, 0);
        BAD(lkv_seq_query, "", LKV_E_NOT_FOUND, w->pool, s, &o->seq_info);
        BAD(lkv_seq_table, "", LKV_E_NOT_FOUND, w->pool, s, o->ids, 64, &o->num);
        BAD(lkv_seq_common, "", LKV_E_NOT_FOUND, w->pool, &s, 1, &o->num);
        BAD(lkv_seq_swap_out, "", LKV_E_NOT_FOUND, w->pool, s, 0, &w->admission);
        BAD(lkv_seq_swap_in, "", LKV_E_NOT_FOUND, w->pool, s, &w->admission);
    }
    BAD(lkv_seq_swap_out, "alignment", INVALID, w->pool, w->seq, 0, OFF(&w->admission));
    BAD(lkv_seq_swap_out, "host blocks", LKV_E_NO_HOST_SPACE, w->pool, w->seq, 0, &w->admission);
    BAD(lkv_seq_swap_in, "alignment", INVALID, w->pool, w->seq, OFF(&w->admission));
    BAD(lkv_seq_swap_in, "not swapped out", INVALID, w->pool, w->seq, &w->admission);
    BAD(lkv_seq_append, "tokens is NULL", INVALID, w->pool, w->seq, NULL, 1, NULL);
    BAD(lkv_seq_append, "n is", INVALID, w->pool, w->seq, w->tokens, UINT64_MAX, NULL);
    BAD(lkv_seq_append, "alignment", INVALID, w->pool, w->seq, OFF(w->tokens), 1, NULL);
    BAD(lkv_seq_reserve, "n is", INVALID, w->pool, w->seq, UINT64_MAX, NULL);
    BAD(lkv_seq_reserve, "", LKV_E_NEVER_FITS, w->pool, w->seq, 1 << 20, &w->admission);
    BAD(lkv_seq_commit, "", INVALID, w->pool, w->seq, W_TOKENS + 1);
    BAD(lkv_seq_truncate, "", INVALID, w->pool, w->seq, UINT64_MAX, 0);
    BAD(lkv_seq_fork, "child", INVALID, w->pool, w->seq, NULL);
    BAD(lkv_seq_query, "NULL", INVALID, w->pool, w->seq, NULL);
    BAD(lkv_seq_table, "blocks", INVALID, w->pool, w->seq, NULL, 1, &o->num);
    BAD(lkv_seq_table, "num_blocks", INVALID, w->pool, w->seq, o->ids, 64, NULL);
    BAD(lkv_seq_common, "seqs", INVALID, w->pool, NULL, 1, &o->num);
    BAD(lkv_seq_common, "0 sequences", INVALID, w->pool, &w->seq, 0, &o->num);
    BAD(lkv_seq_common, "num_blocks", INVALID, w->pool, &w->seq, 1, NULL);
}

static void bad_steps(struct world *w)
{
    uint32_t huge = UINT32_MAX;
    uint64_t far = UINT64_MAX;
    lkv_seq seq = w->stale_seq;
#define STEP(change, word, want)                                                                   \
    WITH(lkv_step, s, w->step, change, BAD(lkv_pool_step, word, want, w->pool, &s, &w->admission))
    BAD(lkv_pool_step, "NULL", INVALID, NULL, &w->step, NULL);
    BAD(lkv_pool_step, "released", INVALID, w->dead_pool, &w->step, NULL);
    BAD(lkv_pool_step, "ENGINE", INVALID, w->engine, &w->step, NULL);
    BAD(lkv_pool_step, "NULL", INVALID, w->pool, NULL, NULL);
    BAD(lkv_pool_step, "alignment", INVALID, w->pool, &w->step, OFF(&w->admission));
    STEP(s.size = 0, "size is 0", INVALID);
    STEP(s.flags = 2, "flags", INVALID);
    STEP(s.num_seqs = UINT32_MAX, "num_seqs", INVALID);
    STEP(s.seqs = NULL, "seqs is NULL", INVALID);
    STEP(s.seqs = &seq, "", LKV_E_NOT_FOUND);
    STEP(s.num_new = OFF(w->num_new), "num_new", INVALID);
    STEP(s.num_new = &huge, "tokens", INVALID);
    STEP(s.tokens = OFF(w->tokens), "tokens", INVALID);
    STEP(s.row_begin = &far, "", INVALID);
    STEP(s.num_rows = &huge, "rows", INVALID);
    STEP(s.block_table = OFF(w->out.ids), "block_table", INVALID);
    STEP(s.seq_lens = OFF(w->out.seq_lens), "seq_lens", INVALID);
    STEP(s.q_indptr = OFF(w->out.q_indptr), "q_indptr", INVALID);
    STEP((s.num_seqs = 0, s.q_indptr = OFF(w->out.q_indptr)), "q_indptr", INVALID);
    STEP(s.slots = OFF(w->out.slots), "slots", INVALID);
    STEP(s.positions = OFF(w->out.positions), "positions", INVALID);
    STEP(s.slots_capacity = 0, "slots_capacity is 0", INVALID);
    STEP(s.table_stride = 1, "table_stride is 1", INVALID);
    STEP(s.table_width = 1, "", INVALID);
#undef STEP
}

static void bad_leases(struct world *w)
{
    struct outputs *o = &w->out;
    static const int32_t negative = -1, large = INT32_MAX;
    static const lkv_key key = {"x", 0, UINT64_MAX, LKV_KEY_SALT, 1}, tag = {"x", 0, 1, 0, 1};
    lkv_pool *const pools[] = {NULL, w->dead_pool, w->engine};
    const char *const words[] = {"NULL", "released", "ENGINE"};
    for (int i = 0; i < 3; i++) {
        BAD(lkv_lease_pin, words[i], INVALID, pools[i], w->table, 1, &o->lease);
        BAD(lkv_lease_lend, words[i], INVALID, pools[i], 1, o->ids, &o->lease);
        BAD(lkv_lease_release, words[i], INVALID, pools[i], 1, 0);
        BAD(lkv_pool_evict, words[i], INVALID, pools[i], 1, &o->num);
        BAD(lkv_pool_demote, words[i], INVALID, pools[i], 1, &o->num);
        BAD(lkv_pool_reset, words[i], INVALID, pools[i], LKV_RESET_FORCE);
        BAD(lkv_pool_drop, words[i], INVALID, pools[i], &key, &o->num);
        BAD(lkv_pool_tick, words[i], INVALID, pools[i], 1);
    }
    BAD(lkv_lease_pin, "blocks is NULL", INVALID, w->pool, NULL, 1, &o->lease);
    BAD(lkv_lease_pin, "num_blocks", INVALID, w->pool, w->table, UINT64_MAX, &o->lease);
    BAD(lkv_lease_pin, "out", INVALID, w->pool, w->table, 1, NULL);
    BAD(lkv_lease_pin, "blocks[0] is -1", LKV_E_NOT_FOUND, w->pool, &negative, 1, &o->lease);
    BAD(lkv_lease_pin, "blocks[0]", LKV_E_NOT_FOUND, w->pool, &large, 1, &o->lease);
    BAD(lkv_lease_lend, "blocks is NULL", INVALID, w->pool, 1, NULL, &o->lease);
    BAD(lkv_lease_lend, "out", INVALID, w->pool, 1, o->ids, NULL);
    BAD(lkv_lease_lend, "", LKV_E_NO_BLOCKS, w->pool, UINT64_MAX, o->ids, &o->lease);
    BAD(lkv_lease_release, "", LKV_E_NOT_FOUND, w->pool, w->stale_lease, 0);
    BAD(lkv_lease_release, "", LKV_E_NOT_FOUND, w->pool, 0, 0);
    BAD(lkv_lease_release, "", LKV_E_NOT_FOUND, w->pool, UINT64_MAX, 0);
    BAD(lkv_pool_evict, "evicted", INVALID, w->pool, 1, NULL);
    BAD(lkv_pool_demote, "queued", INVALID, w->pool, 1, NULL);
    BAD(lkv_pool_demote, "host tier", LKV_E_NO_HOST_SPACE, w->pool, 1, &o->num);
    BAD(lkv_pool_drop, "key is NULL", INVALID, w->pool, NULL, &o->num);
    BAD(lkv_pool_drop, "tag is 0", INVALID, w->pool, &tag, &o->num);
    BAD(lkv_pool_drop, "dropped", INVALID, w->pool, &key, NULL);
    BAD(lkv_pool_reset, "flags", INVALID, w->pool, 2);
    BAD(lkv_pool_reset, "", LKV_E_BUSY, w->pool, 0);
}

void bad_blocks(struct world *w)
{
    bad_pool_numbers(w);
    bad_pool_pointers(w);
    bad_pool_queries(w);
    bad_pool_reports(w);
    bad_prompts(w);
    bad_admissions(w);
    bad_sequences(w);
    bad_steps(w);
    bad_leases(w);
}
