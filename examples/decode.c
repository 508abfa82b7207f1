/* One decode step on the CPU: a prompt of 100 tokens and its next token through an int8 cache.
 *   cc decode.c $(pkg-config --cflags --libs latentkv) */
#include <latentkv/latentkv.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 101, HEADS = 16, LATENT = 512, ROPE = 64 };
#define OK(call)                                                                                   \
    if ((call) != LKV_OK) {                                                                        \
        fprintf(stderr, "%s\n", lkv_last_error());                                                 \
        return 1;                                                                                  \
    }
static int32_t tokens[TOKENS], table[4], seq_len;
static int64_t slots[TOKENS];
static float latent[TOKENS][LATENT], rope[TOKENS][ROPE], out[HEADS][LATENT], lse[HEADS];
static float q[HEADS][LATENT], q_rope[HEADS][ROPE];

int main(void)
{
    lkv_context *ctx;
    lkv_pool *pool;
    lkv_plan *plan;
    lkv_seq seq;
    for (int t = 0; t < TOKENS; t++) /* an engine has these from its model */
        for (int i = 0; i < LATENT; i++)
            latent[t][i] = (float)((t * 37 + i * 11) % 19 - 9) / 9, tokens[t] = t;
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < LATENT; i++)
            q[h][i] = (float)((h * 5 + i) % 7 - 3) / 16;

    OK(lkv_context_create(&(lkv_context_desc){sizeof(lkv_context_desc), LKV_DEVICE_CPU}, &ctx));
    lkv_pool_desc pool_desc = {.size = sizeof pool_desc,
                               .format = LKV_FORMAT_INT8,
                               .tokens_per_block = 64,
                               .latent_dim = LATENT,
                               .rope_dim = ROPE,
                               .num_layers = 1,
                               .num_blocks = 32,
                               .fallback_headroom = 0.3};
    OK(lkv_pool_create(ctx, &pool_desc, &pool));
    lkv_plan_desc plan_desc = {.size = sizeof plan_desc,
                               .pool = pool,
                               .num_heads = HEADS,
                               .max_seqs = 1,
                               .max_tokens = 1,
                               .max_q_len = 1,
                               .max_seq_len = 256,
                               .q_dtype = LKV_DTYPE_F32,
                               .out_dtype = LKV_DTYPE_F32};
    OK(lkv_plan_create(ctx, &plan_desc, &plan));
    size_t workspace_bytes;
    OK(lkv_plan_workspace(plan, &workspace_bytes));
    void *workspace = aligned_alloc(256, (workspace_bytes + 256) / 256 * 256);

    lkv_prompt prompt = {.size = sizeof prompt, .tokens = tokens, .num_tokens = TOKENS - 1};
    OK(lkv_seq_admit(pool, &prompt, NULL, NULL, &seq));
    lkv_step step = {.size = sizeof step,
                     .num_seqs = 1,
                     .seqs = &seq,
                     .tokens = tokens + 100,
                     .num_new = &(uint32_t){1},
                     .row_begin = &(uint64_t){0},
                     .num_rows = &(uint32_t){TOKENS},
                     .block_table = table,
                     .table_width = 4,
                     .seq_lens = &seq_len,
                     .slots = slots,
                     .slots_capacity = TOKENS};
    OK(lkv_pool_step(pool, &step, NULL));
    lkv_tensor c = {latent, LKV_DTYPE_F32, 2, {TOKENS, LATENT}, {LATENT, 1}};
    lkv_tensor k = {rope, LKV_DTYPE_F32, 2, {TOKENS, ROPE}, {ROPE, 1}};
    lkv_append_args append = {.size = sizeof append, .latent = &c, .rope = &k, .slots = slots};
    OK(lkv_append(pool, &append, NULL));
    OK(lkv_seq_commit(pool, seq, TOKENS));

    lkv_batch batch = {.size = sizeof batch,
                       .num_seqs = 1,
                       .max_blocks_per_seq = 4,
                       .block_table = table,
                       .seq_lens = &seq_len,
                       .num_tokens = 1};
    OK(lkv_plan_update(plan, &batch, workspace, workspace_bytes, NULL));
    lkv_tensor tq = {q, LKV_DTYPE_F32, 3, {1, HEADS, LATENT}, {HEADS * LATENT, LATENT, 1}};
    lkv_tensor tr = {q_rope, LKV_DTYPE_F32, 3, {1, HEADS, ROPE}, {HEADS * ROPE, ROPE, 1}};
    lkv_tensor to = {out, LKV_DTYPE_F32, 3, {1, HEADS, LATENT}, {HEADS * LATENT, LATENT, 1}};
    lkv_tensor tl = {lse, LKV_DTYPE_F32, 2, {1, HEADS}, {HEADS, 1}};
    lkv_attend_args attend = {.size = sizeof attend,
                              .q = &tq,
                              .q_rope = &tr,
                              .out = &to,
                              .lse = &tl,
                              .workspace = workspace,
                              .workspace_bytes = workspace_bytes,
                              .scale = 0.0721687836};
    OK(lkv_attend(plan, pool, &batch, &attend, NULL));
    printf("attended %d tokens: lse[0] %.4f, out[0][0] %.4f\n", seq_len, lse[0], out[0][0]);

    lkv_plan_release(plan);
    lkv_pool_release(pool);
    lkv_context_release(ctx);
    free(workspace);
    return 0;
}
