/* The 30 % of headroom under full KV. Running sequences hold every block that KV may use, idle
 * cache the rest; payload slots then take all of the headroom, again and again, while sequences
 * end, begin and grow within their share. Exit 1 if a slot is refused before the headroom is full,
 * if KV is refused what is its own or loses a block, or if either passes its share. ARGS: rounds,
 * seed. */
#include "tests/support/rng.h"
#include "tests/unit/moe_cache/slots_world.h"

enum { BLOCKS = 130, BASE = 100, HEADROOM = 30, NUM_SEQS = 10, SEQ_BLOCKS = 10 };
enum { SEQ_TOKENS = SEQ_BLOCKS * SW_BLOCK, PER_BLOCK = 22, LEASED_MOST = 12 };

struct world {
    struct rng r;
    lkv_context *ctx;
    lkv_pool *pool;
    lkv_slots *slots;
    lkv_seq seqs[NUM_SEQS];
    uint64_t fence, round, puts, admissions, appended, refused_beyond;
    uint32_t next_key;
    uint64_t leased; /* of the headroom, to somebody else */
    lkv_lease lease;
    int failures;
};

static void want(struct world *w, int good, const char *what)
{
    if (good)
        return;
    if (w->failures++ < 10)
        fprintf(stderr, "round %llu: %s (%s)\n", (unsigned long long)w->round, what,
                lkv_last_error());
}

static void fill_tokens(struct world *w, int32_t *tokens, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        tokens[i] = (int32_t)rng_below(&w->r, 1u << 30);
}

/* 0 if KV was refused. */
static lkv_seq begin_seq(struct world *w)
{
    int32_t tokens[SEQ_TOKENS];
    lkv_seq seq = 0;
    const lkv_prompt p = {.size = sizeof p, .tokens = tokens, .num_tokens = SEQ_TOKENS};
    fill_tokens(w, tokens, SEQ_TOKENS);
    const lkv_status status = lkv_seq_admit(w->pool, &p, NULL, NULL, &seq);
    want(w, status == LKV_OK, "a sequence within KV's share is not admitted");
    if (status != LKV_OK)
        return 0;
    SW_MUST(lkv_seq_commit(w->pool, seq, SEQ_TOKENS));
    w->admissions++;
    return seq;
}

/* Prompts that came and went hold every block; then KV takes its share. */
static void open_world(struct world *w)
{
    w->ctx = sw_context();
    w->pool = sw_pool(w->ctx, BLOCKS, 0);
    w->slots = sw_slots(w->pool, 0, LKV_SLOTS_LRU, SW_PAYLOAD);
    for (int i = 0; i < 2 * BLOCKS / SEQ_BLOCKS; i++)
        SW_MUST(lkv_seq_free(w->pool, begin_seq(w), 0));
    want(w, sw_pool_stats(w->pool).blocks_idle == BLOCKS, "idle cache does not hold every block");
    for (int i = 0; i < NUM_SEQS; i++)
        w->seqs[i] = begin_seq(w);
}

static void close_world(struct world *w)
{
    for (int i = 0; i < NUM_SEQS; i++)
        SW_MUST(lkv_seq_free(w->pool, w->seqs[i], 0));
    SW_MUST(lkv_pool_check(w->pool));
    lkv_slots_release(w->slots);
    want(w, sw_pool_stats(w->pool).blocks_lent == 0, "blocks stay lent");
    lkv_pool_release(w->pool);
    lkv_context_release(w->ctx);
}

/* ---- slots */

static int holds(const int32_t *table, uint64_t num, int32_t block)
{
    for (uint64_t i = 0; i < num; i++)
        if (table[i] == block)
            return 1;
    return 0;
}

/* The payload's block is nobody's KV. */
static void look_at_place(struct world *w, int32_t block)
{
    int32_t table[SEQ_BLOCKS];
    uint64_t num;
    for (int i = 0; i < NUM_SEQS; i++) {
        SW_MUST(lkv_seq_table(w->pool, w->seqs[i], table, SEQ_BLOCKS, &num));
        want(w, !holds(table, num, block), "a payload lies in a block of a sequence");
    }
}

static void put(struct world *w)
{
    const lkv_seq seq = w->seqs[rng_below(&w->r, NUM_SEQS)];
    const lkv_slot_key key = rng_below(&w->r, 4)
                                 ? sw_free(0, ++w->next_key)
                                 : sw_token(w->pool, seq, (uint32_t)rng_below(&w->r, SW_LAYERS),
                                            rng_below(&w->r, SEQ_TOKENS - SW_BLOCK));
    const lkv_slot slot = sw_get(w->slots, key, LKV_SLOTS_CREATE, w->round);
    want(w, slot.state == LKV_SLOT_NEW || slot.state == LKV_SLOT_READY, "a slot is refused");
    if (slot.state != LKV_SLOT_NEW)
        return;
    look_at_place(w, slot.block);
    memset(slot.address, 0xee, SW_PAYLOAD);
    SW_MUST(lkv_slots_commit(w->slots, &slot.handle, 1, 1));
    w->puts++;
}

/* Blocks of headroom that are left for slots. */
static uint64_t share(const struct world *w)
{
    return HEADROOM - w->leased;
}

/* All that is left of the headroom without an eviction, then some more, which evicts. */
static void fill_headroom(struct world *w)
{
    const uint64_t before = sw_stats(w->slots).evicted, all = share(w) * PER_BLOCK;
    uint64_t puts = 0;
    while (sw_stats(w->slots).slots_ready < all && puts++ < 4 * all)
        put(w);
    want(w, sw_stats(w->slots).slots_ready == all, "slots do not fill the headroom");
    want(w, sw_stats(w->slots).evicted == before, "evicted while there was headroom");
    want(w, sw_stats(w->slots).blocks_held == share(w), "slots do not hold the headroom");
    for (uint64_t i = rng_below(&w->r, 40); i-- > 0;)
        put(w);
    want(w, sw_stats(w->slots).blocks_held == share(w), "slots pass or lose the headroom");
}

/* Every other round somebody else has a part of the headroom: there is one for all. */
static void lend_some(struct world *w)
{
    int32_t blocks[LEASED_MOST];
    w->leased = w->round % 2 ? 1 + rng_below(&w->r, LEASED_MOST) : 0;
    if (w->leased)
        want(w, lkv_lease_lend(w->pool, w->leased, blocks, &w->lease) == LKV_OK,
             "a lease within the headroom is refused");
}

/* ---- KV meanwhile */

/* No new token and no row: every sequence must be there with its blocks. */
static void step_over_all(struct world *w)
{
    uint64_t row_begin[NUM_SEQS];
    uint32_t num_new[NUM_SEQS] = {0}, num_rows[NUM_SEQS] = {0};
    int32_t token = 0, table[NUM_SEQS * SEQ_BLOCKS], lens[NUM_SEQS], indptr[NUM_SEQS + 1];
    int64_t slots[NUM_SEQS];
    lkv_step step = {.size = sizeof step,
                     .num_seqs = NUM_SEQS,
                     .seqs = w->seqs,
                     .num_new = num_new,
                     .tokens = &token,
                     .row_begin = row_begin,
                     .num_rows = num_rows,
                     .block_table = table,
                     .seq_lens = lens,
                     .q_indptr = indptr,
                     .slots = slots,
                     .slots_capacity = NUM_SEQS,
                     .table_width = SEQ_BLOCKS};
    for (int i = 0; i < NUM_SEQS; i++)
        row_begin[i] = SEQ_TOKENS;
    want(w, lkv_pool_step(w->pool, &step, NULL) == LKV_OK, "a step over running sequences fails");
    for (int i = 0; i < NUM_SEQS; i++)
        want(w, lens[i] == SEQ_TOKENS, "a sequence lost tokens");
    want(w, sw_pool_stats(w->pool).blocks_in_use == BASE, "KV does not hold its share");
}

/* One sequence ends and another takes its blocks; now and then after a fence. */
static void replace_one(struct world *w)
{
    const int i = (int)rng_below(&w->r, NUM_SEQS);
    const uint64_t fence = rng_below(&w->r, 3) ? 0 : ++w->fence;
    SW_MUST(lkv_seq_free(w->pool, w->seqs[i], fence));
    if (fence)
        SW_MUST(lkv_pool_pass_fence(w->pool, fence));
    w->seqs[i] = begin_seq(w);
    if (!w->seqs[i])
        exit(1);
}

/* One is cut by whole blocks and grows again to where it was. (Inside a cached block it would need
 * one more while that is copied: a matter of KV alone.) */
static void regrow_one(struct world *w)
{
    int32_t tokens[SEQ_TOKENS];
    const lkv_seq seq = w->seqs[rng_below(&w->r, NUM_SEQS)];
    const uint64_t n = SW_BLOCK * (1 + rng_below(&w->r, 4));
    fill_tokens(w, tokens, n);
    SW_MUST(lkv_seq_truncate(w->pool, seq, SEQ_TOKENS - n, 0));
    want(w, lkv_seq_append(w->pool, seq, tokens, n, NULL) == LKV_OK,
         "a sequence cannot grow within KV's share");
    SW_MUST(lkv_seq_commit(w->pool, seq, SEQ_TOKENS));
    w->appended += n;
}

/* Both shares are used up: more of either is refused, and takes nothing from the other. */
static void ask_beyond(struct world *w)
{
    int32_t token = 1, block;
    lkv_lease lease;
    lkv_seq seq;
    const lkv_prompt p = {.size = sizeof p, .tokens = &token, .num_tokens = 1};
    want(w, lkv_lease_lend(w->pool, 1, &block, &lease) == LKV_E_NO_BLOCKS,
         "more than the headroom is lent");
    want(w, lkv_seq_admit(w->pool, &p, NULL, NULL, &seq) == LKV_E_NO_BLOCKS,
         "KV takes more than its share");
    want(w, sw_stats(w->slots).blocks_held == share(w), "KV took a block of slots");
    w->refused_beyond += 2;
}

static void forget_all(struct world *w)
{
    if (w->leased)
        SW_MUST(lkv_lease_release(w->pool, w->lease, 0));
    lkv_slots_release(w->slots);
    want(w, sw_pool_stats(w->pool).blocks_lent == 0, "released slots hold blocks");
    w->slots = sw_slots(w->pool, 0, (uint32_t)(w->round % 3), SW_PAYLOAD);
}

/* Idle cache fills the headroom before the next round, as it does where nobody lends. */
static void one_round(struct world *w)
{
    for (int i = 0; i < 2 * HEADROOM / SEQ_BLOCKS; i++)
        replace_one(w);
    lend_some(w);
    fill_headroom(w);
    ask_beyond(w);
    for (int i = 0; i < 20; i++) {
        if (rng_below(&w->r, 2))
            replace_one(w);
        else
            regrow_one(w);
        for (int k = 0; k < 30; k++)
            put(w);
    }
    step_over_all(w);
    SW_MUST(lkv_pool_check(w->pool));
    forget_all(w);
}

int main(int argc, char **argv)
{
    const uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 40;
    struct world w = {.r = rng_seed(argc > 2 ? strtoull(argv[2], NULL, 10) : 1)};
    open_world(&w);
    for (w.round = 0; w.round < rounds; w.round++)
        one_round(&w);
    close_world(&w);
    printf(
        "%llu rounds: KV held %d of %d blocks, slots and leases %d of %d; %llu payloads put, %llu "
        "admissions and %llu tokens appended meanwhile, %llu requests beyond the shares "
        "refused; %d failures\n",
        (unsigned long long)rounds, BASE, BASE, HEADROOM, HEADROOM, (unsigned long long)w.puts,
        (unsigned long long)w.admissions, (unsigned long long)w.appended,
        (unsigned long long)w.refused_beyond, w.failures);
    return w.failures != 0;
}
