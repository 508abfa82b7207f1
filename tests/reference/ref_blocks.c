/* In: what the library did to blocks. Out: whether the rules allow it: the cache as a tree, who is
 * evicted, references, fences, room. Everything is a scan. */
#include "tests/reference/ref_state.h"

#include <stdio.h>
#include <string.h>

/* ---- the cache as a tree of blocks */

/* On the device: what is on the host alone does not keep a block from being evicted. */
static int has_child(const struct ref_manager *r, int b)
{
    for (uint32_t c = 1; c <= r->num_blocks; c++)
        if (r->blocks[c].indexed && r->blocks[c].parent == b)
            return 1;
    return 0;
}

int ref_find_child(const struct ref_manager *r, int parent, const int32_t *tokens, const char *keys)
{
    for (uint32_t c = 1; c <= r->num_ids; c++) {
        const struct ref_block *block = &r->blocks[c];
        if (block->indexed && block->parent == parent && !strcmp(block->keys, keys) &&
            !memcmp(block->tokens, tokens, r->block_tokens * sizeof *tokens))
            return (int)c;
    }
    return 0;
}

static int priority_now(const struct ref_manager *r, const struct ref_block *block)
{
    return block->until && block->until <= r->now ? 0 : block->priority;
}

/* An idle parent that was passed over becomes the next to go of its priority. */
void ref_wake(struct ref_manager *r, int parent)
{
    if (!parent || !r->blocks[parent].parked || has_child(r, parent))
        return;
    r->blocks[parent].parked = 0;
    r->blocks[parent].priority = priority_now(r, &r->blocks[parent]);
    r->blocks[parent].rested = --r->front;
}

/* Out of the cache, and so is its copy. */
static void forget(struct ref_manager *r, int b)
{
    int parent = r->blocks[b].parent;
    if (r->blocks[b].copy_of && r->blocks[b].indexed)
        ref_unlink_copy(r, b);
    r->blocks[b].indexed = 0;
    r->blocks[b].parent = 0;
    r->blocks[b].keys[0] = 0;
    ref_wake(r, parent);
}

void ref_make_free(struct ref_block *block)
{
    block->state = REF_FREE;
    block->priority = block->parked = block->borrowed = 0;
}

/* The idle ones become free. */
static void forget_below(struct ref_manager *r, int b)
{
    for (uint32_t c = 1; c <= r->num_ids; c++) {
        if (!r->blocks[c].indexed || r->blocks[c].parent != b)
            continue;
        ref_forget_tree(r, (int)c);
        if (r->blocks[c].state == REF_IDLE)
            ref_make_free(&r->blocks[c]);
    }
}

void ref_forget_tree(struct ref_manager *r, int b)
{
    forget_below(r, b);
    forget(r, b);
}

/* Evicted: to the host, if its copy has arrived there, or for ever. */
static void give_up(struct ref_manager *r, int b)
{
    int h = r->blocks[b].copy_of;
    if (has_child(r, b))
        forget_below(r, b);
    if (!h || !r->blocks[h].is_copy) {
        ref_forget_tree(r, b);
        return;
    }
    r->blocks[b].copy_of = r->blocks[h].copy_of = r->blocks[h].is_copy = 0;
    ref_move_identity(r, b, h);
}

static int goes_before(const struct ref_block *a, const struct ref_block *b)
{
    return a->priority != b->priority ? a->priority < b->priority : a->rested < b->rested;
}

static int oldest_leaf(const struct ref_manager *r)
{
    int best = 0;
    for (uint32_t b = 1; b <= r->num_blocks; b++)
        if (r->blocks[b].state == REF_IDLE && !has_child(r, (int)b) &&
            (!best || goes_before(&r->blocks[b], &r->blocks[best])))
            best = (int)b;
    return best;
}

/* Idle blocks that were looked at on the way to the leaf that goes (0: all) wait aside. */
static void pass_over(struct ref_manager *r, int leaf)
{
    for (uint32_t b = 1; b <= r->num_blocks; b++)
        if (r->blocks[b].state == REF_IDLE &&
            (!leaf || goes_before(&r->blocks[b], &r->blocks[leaf])))
            r->blocks[b].parked = 1;
}

static int any_free(const struct ref_manager *r)
{
    for (uint32_t b = 1; b <= r->num_blocks; b++)
        if (r->blocks[b].state == REF_FREE)
            return 1;
    return 0;
}

/* The library took id b: was it one that it may take? */
const char *ref_take(struct ref_manager *r, int32_t b, int state)
{
    if (b < 1 || (uint32_t)b > r->num_blocks)
        return FAIL("took id %d of %u", b, r->num_blocks);
    struct ref_block *block = &r->blocks[b];
    int leaf = oldest_leaf(r);
    if (any_free(r) ? block->state != REF_FREE : block->state != REF_IDLE || (leaf && leaf != b))
        return FAIL("took block %d in state %d; the oldest leaf is %d, free blocks: %d", b,
                    block->state, leaf, any_free(r));
    if (block->state == REF_IDLE)
        pass_over(r, leaf);
    if (block->indexed)
        give_up(r, b);
    block->priority = block->parked = block->borrowed = 0;
    block->state = state;
    block->refs = state == REF_IN_USE;
    return NULL;
}

/* ---- references and fences */

static void enqueue(struct ref_manager *r, struct ref_block *block)
{
    if (block->queued)
        return;
    block->queued = 1;
    block->queue_fence = block->fence;
    block->queue_order = ++r->clock;
}

static void rest(struct ref_manager *r, struct ref_block *block)
{
    block->is_copy = block->copy_of && !block->indexed;
    block->state = block->indexed || block->copy_of ? REF_IDLE : REF_FREE;
    block->rested = block->borrowed ? --r->front : ++r->clock;
    block->borrowed = 0;
    block->priority = block->indexed ? priority_now(r, block) : 0;
}

/* The source of the copy into `to` that was taken out of the list, or 0. */
static int32_t take_out(struct ref_copy *copies, uint32_t from, uint32_t *num, int32_t to)
{
    for (uint32_t i = from; i < *num; i++) {
        if (copies[i].to != to)
            continue;
        int32_t source = copies[i].from;
        memmove(&copies[i], &copies[i + 1], (--*num - i) * sizeof copies[0]);
        return source;
    }
    return 0;
}

/* One that is being run stays. */
static void cancel_copy_to(struct ref_manager *r, int32_t to)
{
    int32_t from = take_out(r->held, 0, &r->num_held, to);
    if (!from)
        from = take_out(r->copies, r->num_issued, &r->num_copies, to);
    if (!from)
        return;
    ref_settle_unused(r, to);
    ref_drop(r, from, 0);
}

int ref_copy_waits_for(const struct ref_manager *r, int32_t to)
{
    for (uint32_t i = 0; i < r->num_copies; i++)
        if (r->copies[i].to == to)
            return 1;
    for (uint32_t i = 0; i < r->num_held; i++)
        if (r->held[i].to == to)
            return 1;
    return 0;
}

/* Nobody refers to b any more: where is it now? */
void ref_settle_unused(struct ref_manager *r, int32_t b)
{
    struct ref_block *block = &r->blocks[b];
    if (ref_copy_waits_for(r, b)) {
        block->state = REF_PENDING;
    } else if (block->fence > r->passed) {
        block->state = REF_PENDING;
        enqueue(r, block);
    } else {
        rest(r, block);
    }
}

void ref_drop(struct ref_manager *r, int32_t b, uint64_t fence)
{
    struct ref_block *block = &r->blocks[b];
    if (fence > block->fence)
        block->fence = fence;
    if (--block->refs)
        return;
    ref_settle_unused(r, b);
    if (!block->indexed && ref_copy_waits_for(r, b))
        cancel_copy_to(r, b);
}

void ref_claim(struct ref_manager *r, int32_t b)
{
    r->blocks[b].refs++;
    r->blocks[b].state = REF_IN_USE;
    r->blocks[b].parked = r->blocks[b].borrowed = 0;
}

void ref_raise(struct ref_manager *r, int32_t b, const struct ref_seq *s)
{
    struct ref_block *block = &r->blocks[b];
    int mine = priority_now(r, block);
    if (!s->priority || (s->until && s->until <= r->now) || s->priority < mine)
        return;
    if (s->priority > mine || !s->until || (block->until && s->until > block->until))
        block->until = s->until;
    block->priority = s->priority;
}

void ref_tick(struct ref_manager *r, uint64_t now)
{
    r->now = now > r->now ? now : r->now;
    for (uint32_t b = 1; b <= r->num_blocks; b++) {
        struct ref_block *block = &r->blocks[b];
        block->expired = block->state == REF_IDLE && !block->parked && block->priority &&
                         !priority_now(r, block);
        if (block->expired)
            block->priority = 0;
    }
}

static struct ref_block *next_queued(struct ref_manager *r, uint64_t fence)
{
    struct ref_block *best = NULL;
    for (uint32_t b = 1; b <= r->num_ids; b++) {
        struct ref_block *q = &r->blocks[b];
        if (!q->queued || q->queue_fence > fence)
            continue;
        if (!best || q->queue_fence < best->queue_fence ||
            (q->queue_fence == best->queue_fence && q->queue_order < best->queue_order))
            best = q;
    }
    return best;
}

void ref_pass(struct ref_manager *r, uint64_t fence)
{
    struct ref_block *block;
    if (fence <= r->passed)
        return;
    r->passed = fence;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < r->num_held; i++) {
        if (r->held[i].after > fence)
            r->held[kept++] = r->held[i];
        else
            r->copies[r->num_copies++] = r->held[i];
    }
    r->num_held = kept;
    while ((block = next_queued(r, fence))) {
        block->queued = 0;
        if (block->state == REF_IN_USE || ref_copy_waits_for(r, (int32_t)(block - r->blocks)))
            continue;
        if (block->fence > fence)
            enqueue(r, block);
        else
            rest(r, block);
    }
}

/* ---- room */

uint64_t ref_free_now(const struct ref_manager *r)
{
    struct ref_counts c;
    ref_count(r, &c);
    return r->base - c.state[REF_IN_USE] - c.state[REF_PENDING] - c.reserved;
}

lkv_status ref_verdict(const struct ref_manager *r, uint64_t needed, uint64_t own,
                       uint64_t pending_hits)
{
    struct ref_counts c;
    ref_count(r, &c);
    if (needed <= ref_free_now(r) + own)
        return LKV_OK;
    return needed <= ref_free_now(r) + own + c.state[REF_PENDING] - pending_hits
               ? LKV_E_WAIT_PENDING
               : LKV_E_NO_BLOCKS;
}

/* ---- leases, eviction, reset */

const char *ref_pin(struct ref_manager *r, uint32_t lease, const int32_t *blocks, uint32_t n,
                    lkv_status status)
{
    uint64_t idle = 0, pending = 0;
    lkv_status want = LKV_OK;
    for (uint32_t i = 0; i < n; i++) {
        int state = r->blocks[blocks[i]].state, again = 0;
        for (uint32_t k = 0; k < i; k++)
            again |= blocks[k] == blocks[i];
        if (state == REF_FREE || state == REF_LENT)
            want = LKV_E_NOT_FOUND;
        idle += state == REF_IDLE && !again;
        pending += state == REF_PENDING && !again;
    }
    if (want == LKV_OK)
        want = ref_verdict(r, idle, 0, pending);
    if (status != want)
        return FAIL("pin gave %d, want %d", status, want);
    if (want != LKV_OK)
        return NULL;
    struct ref_lease *l = &r->leases[lease];
    *l = (struct ref_lease){.live = 1, .num_blocks = n};
    for (uint32_t i = 0; i < n; i++) {
        l->blocks[i] = blocks[i];
        ref_claim(r, blocks[i]);
    }
    return NULL;
}

const char *ref_lend(struct ref_manager *r, uint32_t lease, const int32_t *blocks, uint32_t n,
                     lkv_status status)
{
    struct ref_counts c;
    ref_count(r, &c);
    lkv_status want = n + c.state[REF_LENT] <= r->num_blocks - r->base ? LKV_OK : LKV_E_NO_BLOCKS;
    if (status != want)
        return FAIL("lend gave %d, want %d", status, want);
    if (want != LKV_OK)
        return NULL;
    struct ref_lease *l = &r->leases[lease];
    *l = (struct ref_lease){.live = 1, .lent = 1, .num_blocks = n};
    for (uint32_t i = 0; i < n; i++) {
        const char *wrong = ref_take(r, blocks[i], REF_LENT);
        if (wrong)
            return wrong;
        l->blocks[i] = blocks[i];
    }
    return NULL;
}

void ref_release(struct ref_manager *r, uint32_t lease, uint64_t fence)
{
    struct ref_lease *l = &r->leases[lease];
    while (l->num_blocks) {
        int32_t b = l->blocks[--l->num_blocks];
        struct ref_block *block = &r->blocks[b];
        if (!l->lent) {
            ref_drop(r, b, fence);
            continue;
        }
        block->fence = fence;
        if (fence > r->passed)
            enqueue(r, block);
        else
            block->state = REF_FREE;
    }
    l->live = 0;
}

/* Where only blocks with users below them are idle, which one goes is the library's choice. */
uint64_t ref_evict(struct ref_manager *r, uint64_t n)
{
    struct ref_counts c;
    ref_count(r, &c);
    uint64_t idle = c.state[REF_IDLE], done = 0;
    r->ambiguous = 0;
    while (done < n && done < idle) {
        int b = oldest_leaf(r);
        if (!b) {
            r->ambiguous = 1;
            break;
        }
        pass_over(r, b);
        give_up(r, b);
        ref_make_free(&r->blocks[b]);
        done++;
    }
    return done;
}

void ref_drop_namespace(struct ref_manager *r, const char *keys)
{
    for (uint32_t i = 0; i < REF_SEQS; i++)
        r->seqs[i].no_publish |= !strcmp(r->seqs[i].keys, keys);
    for (uint32_t b = 1; b <= r->num_ids; b++) {
        if (!r->blocks[b].indexed || strcmp(r->blocks[b].keys, keys))
            continue;
        ref_forget_tree(r, (int)b);
        if (r->blocks[b].state == REF_IDLE)
            ref_make_free(&r->blocks[b]);
    }
}

void ref_reset(struct ref_manager *r)
{
    r->epoch++;
    for (uint32_t b = 1; b <= r->num_ids; b++) {
        int idle = r->blocks[b].state == REF_IDLE;
        forget(r, (int)b);
        if (idle)
            ref_make_free(&r->blocks[b]);
    }
}
