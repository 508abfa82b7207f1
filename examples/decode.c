/* One decode step on the CPU: a prompt of 100 tokens and its next token through an int8 cache.
 *   cc decode.c $(pkg-config --cflags --libs latentkv) */
#include <latentkv/latentkv.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 101, HEADS = 16, LATENT = 512, ROPE = 64, F32 = LKV_DTYPE_F32 };
#define OK(call)                                                                                   \
    if ((call) != LKV_OK) {                                                                        \
        fprintf(stderr, "%s\n", lkv_last_error());                                                 \
        exit(1);                                                                                   \
    }
static int32_t tokens[TOKENS], table[4], seq_len;
static int64_t slots[TOKENS];
static float latent[TOKENS][LATENT], rope[TOKENS][ROPE], out[HEADS][LATENT], lse[HEADS];
static float q[HEADS][LATENT], q_rope[HEADS][ROPE];

/* Admits the prompt, adds the new token, and writes the latents of both into the cache. */
static void append(lkv_pool *pool)
{
    lkv_seq seq;
    lkv_prompt prompt = {.size = sizeof prompt, .tokens = tokens, .num_tokens = TOKENS - 1};
    OK(lkv_seq_admit(pool, &prompt, NULL, NULL, &seq));
    uint32_t num_new = 1, num_rows = TOKENS;
    uint64_t begin = 0;
    lkv_step step = {.size = sizeof step, .num_seqs = 1, .seqs = &seq, .num_new = &num_new};
    step.tokens = tokens + TOKENS - 1;
    step.row_begin = &begin;
    step.num_rows = &num_rows;
    step.block_table = table;
    step.table_width = 4;
    step.seq_lens = &seq_len;
    step.slots = slots;
    step.slots_capacity = TOKENS;
    OK(lkv_pool_step(pool, &step, NULL));
    lkv_tensor c = {latent, F32, 2, {TOKENS, LATENT}, {LATENT, 1}};
    lkv_tensor k = {rope, F32, 2, {TOKENS, ROPE}, {ROPE, 1}};
    lkv_append_args args = {.size = sizeof args, .latent = &c, .rope = &k, .slots = slots};
    OK(lkv_append(pool, &args, NULL));
    OK(lkv_seq_commit(pool, seq, TOKENS));
}

/* The newest token's query over the whole sequence. */
static void attend(lkv_plan *plan, lkv_pool *pool)
{
    lkv_tensor tq = {q, F32, 3, {1, HEADS, LATENT}, {HEADS * LATENT, LATENT, 1}};
    lkv_tensor tr = {q_rope, F32, 3, {1, HEADS, ROPE}, {HEADS * ROPE, ROPE, 1}};
    lkv_tensor to = {out, F32, 3, {1, HEADS, LATENT}, {HEADS * LATENT, LATENT, 1}};
    lkv_tensor tl = {lse, F32, 2, {1, HEADS}, {HEADS, 1}};
    lkv_attend_args args = {.size = sizeof args, .q = &tq, .q_rope = &tr, .out = &to, .lse = &tl};
    lkv_batch batch = {.size = sizeof batch, .num_seqs = 1, .max_blocks_per_seq = 4};
    batch.block_table = table;
    batch.seq_lens = &seq_len;
    batch.num_tokens = 1;
    args.scale = 0.0721687836;
    OK(lkv_plan_workspace(plan, &args.workspace_bytes));
    args.workspace = aligned_alloc(256, (args.workspace_bytes | 255) + 1);
    OK(lkv_plan_update(plan, &batch, args.workspace, args.workspace_bytes, NULL));
    OK(lkv_attend(plan, pool, &batch, &args, NULL));
    free(args.workspace);
}

int main(void)
{
    lkv_context *ctx;
    lkv_pool *pool;
    lkv_plan *plan;
    for (int t = 0; t < TOKENS; t++) /* an engine has these from its model */
        for (int i = 0; i < LATENT; i++)
            latent[t][i] = (float)((t * 37 + i * 11) % 19 - 9) / 9, tokens[t] = t;
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < LATENT; i++)
            q[h][i] = (float)((h * 5 + i) % 7 - 3) / 16;
    lkv_context_desc context = {.size = sizeof context, .device = LKV_DEVICE_CPU};
    OK(lkv_context_create(&context, &ctx));
    lkv_pool_desc desc = {.size = sizeof desc, .format = LKV_FORMAT_INT8, .tokens_per_block = 64};
    desc.latent_dim = LATENT;
    desc.rope_dim = ROPE;
    desc.num_layers = 1;
    desc.num_blocks = 32;
    OK(lkv_pool_create(ctx, &desc, &pool));
    append(pool);
    lkv_plan_desc shape = {.size = sizeof shape, .pool = pool, .num_heads = HEADS};
    shape.max_seqs = shape.max_tokens = shape.max_q_len = 1;
    shape.max_seq_len = 256;
    shape.q_dtype = shape.out_dtype = F32;
    OK(lkv_plan_create(ctx, &shape, &plan));
    attend(plan, pool);
    printf("attended %d tokens: lse[0] %.4f, out[0][0] %.4f\n", seq_len, lse[0], out[0][0]);
    lkv_plan_release(plan);
    lkv_pool_release(pool);
    lkv_context_release(ctx);
    return 0;
}
