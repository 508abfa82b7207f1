/* In: what the library did between the tiers. Out: whether the rules allow it. Which idle host
 * block makes room is the library's choice; that only idle ones do, and that a block keeps its
 * place in the tree and its copy, is not. */
#include "tests/reference/ref_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ref_link_copy(struct ref_manager *r, int b, int h)
{
    r->blocks[b].copy_of = h;
    r->blocks[h].copy_of = b;
}

void ref_unlink_copy(struct ref_manager *r, int b)
{
    struct ref_block *h = &r->blocks[r->blocks[b].copy_of];
    r->blocks[b].copy_of = h->copy_of = h->is_copy = 0;
    if (h->state == REF_IDLE)
        ref_make_free(h);
}

void ref_move_identity(struct ref_manager *r, int from, int to)
{
    struct ref_block *a = &r->blocks[from], *b = &r->blocks[to];
    int parent = a->parent;
    b->indexed = 1;
    b->parent = parent;
    memcpy(b->keys, a->keys, sizeof b->keys);
    memcpy(b->tokens, a->tokens, sizeof b->tokens);
    a->indexed = a->parent = 0;
    a->keys[0] = 0;
    for (uint32_t c = 1; c <= r->num_ids; c++)
        if (r->blocks[c].indexed && r->blocks[c].parent == from)
            r->blocks[c].parent = to;
    ref_wake(r, parent);
}

const char *ref_take_host(struct ref_manager *r, int32_t h)
{
    int any_free = 0;
    for (uint32_t b = r->num_blocks + 1; b <= r->num_ids; b++)
        any_free |= r->blocks[b].state == REF_FREE;
    if (!on_host(r, h) || (uint32_t)h > r->num_ids)
        return FAIL("took host block %d of %u to %u", h, r->num_blocks + 1, r->num_ids);
    struct ref_block *block = &r->blocks[h];
    if (block->state != (any_free ? REF_FREE : REF_IDLE))
        return FAIL("took host block %d in state %d; free ones: %d", h, block->state, any_free);
    if (block->is_copy) {
        r->blocks[block->copy_of].copy_of = 0;
        block->copy_of = block->is_copy = 0;
    }
    if (block->indexed)
        ref_forget_tree(r, h);
    block->refs = 0;
    return NULL;
}

static void queue(struct ref_manager *r, int32_t from, int32_t to, uint64_t after)
{
    struct ref_copy copy = {from, to, after};
    memcpy(r->blocks[to].tokens, r->blocks[from].tokens, sizeof r->blocks[to].tokens);
    if (after > r->passed)
        r->held[r->num_held++] = copy;
    else
        r->copies[r->num_copies++] = copy;
}

/* ---- swap */

static const char *want_status(struct ref_manager *r, const struct ref_seen *seen, lkv_status want,
                               const char *what)
{
    return seen->status == want ? NULL : FAIL("%s gave %d, want %d", what, seen->status, want);
}

const char *ref_swap_out(struct ref_manager *r, uint32_t seq, uint64_t fence,
                         const struct ref_seen *seen)
{
    struct ref_seq *s = &r->seqs[seq];
    struct ref_counts c;
    uint64_t num = blocks_for(r, s->length);
    ref_count(r, &c);
    uint64_t now = c.host[REF_FREE] + c.host[REF_IDLE], later = now + c.host[REF_PENDING];
    lkv_status want = num <= now ? LKV_OK : num <= later ? LKV_E_WAIT_PENDING : LKV_E_NO_HOST_SPACE;
    if (s->swapped)
        want = LKV_E_INVALID;
    const char *wrong = want_status(r, seen, want, "swap out");
    if (wrong || want != LKV_OK)
        return wrong;
    while (s->num_blocks > num)
        ref_drop(r, s->table[--s->num_blocks], fence);
    for (uint32_t i = 0; i < num; i++) {
        int32_t h = seen->table[i];
        if ((wrong = ref_take_host(r, h)))
            return wrong;
        r->blocks[h].refs = 1;
        r->blocks[h].state = REF_IN_USE;
        queue(r, s->table[i], h, fence);
        s->table[i] = h;
    }
    if (seen->num_blocks != num || seen->result->needed != num)
        return FAIL("swap out of %llu blocks: %llu in the table, %llu needed",
                    (unsigned long long)num, (unsigned long long)seen->num_blocks,
                    (unsigned long long)seen->result->needed);
    s->reserved = 0;
    s->swapped = 1;
    return NULL;
}

static int arrived(const struct ref_manager *r, const struct ref_seq *s)
{
    for (uint32_t i = 0; i < s->num_blocks; i++)
        if (ref_copy_waits_for(r, s->table[i]) || r->blocks[s->table[i]].fence > r->passed)
            return 0;
    return 1;
}

const char *ref_swap_in(struct ref_manager *r, uint32_t seq, const struct ref_seen *seen)
{
    struct ref_seq *s = &r->seqs[seq];
    uint64_t promise = s->whole ? blocks_for(r, s->max_tokens) - s->num_blocks : 0;
    lkv_status want = ref_verdict(r, s->num_blocks + promise, 0, 0);
    if (!s->swapped)
        want = LKV_E_INVALID;
    else if (!arrived(r, s))
        want = LKV_E_WAIT_PENDING;
    const char *wrong = want_status(r, seen, want, "swap in");
    if (wrong || want != LKV_OK)
        return wrong;
    for (uint32_t i = 0; i < s->num_blocks; i++) {
        int32_t b = seen->table[i];
        if ((wrong = ref_take(r, b, REF_IN_USE)))
            return wrong;
        queue(r, s->table[i], b, 0);
        s->table[i] = b;
    }
    s->reserved = (uint32_t)promise;
    s->swapped = 0;
    return seen->num_blocks == s->num_blocks ? NULL : FAIL("swap in: the table has other blocks");
}

/* ---- demotion */

static const struct ref_manager *sorted;

static int by_order(const void *a, const void *b)
{
    const struct ref_block *x = &sorted->blocks[*(const int *)a];
    const struct ref_block *y = &sorted->blocks[*(const int *)b];
    if (x->priority != y->priority)
        return x->priority < y->priority ? -1 : 1;
    return x->rested < y->rested ? -1 : 1;
}

/* The next n to be looked at when room is needed, whether they have children or not. */
static uint32_t list_window(const struct ref_manager *r, int *window, uint64_t n)
{
    uint32_t num = 0;
    for (uint32_t b = 1; b <= r->num_blocks; b++)
        if (r->blocks[b].state == REF_IDLE && !r->blocks[b].parked)
            window[num++] = (int)b;
    sorted = r;
    qsort(window, num, sizeof *window, by_order);
    return num < n ? num : (uint32_t)n;
}

/* No host block is free, and every idle one is a copy of a block of the window. */
static int host_is_full(const struct ref_manager *r, const int *window, uint32_t num)
{
    for (uint32_t h = r->num_blocks + 1; h <= r->num_ids; h++) {
        int kept = 0;
        if (r->blocks[h].state == REF_FREE)
            return 0;
        for (uint32_t i = 0; i < num; i++)
            kept |= r->blocks[h].is_copy && r->blocks[h].copy_of == window[i];
        if (r->blocks[h].state == REF_IDLE && !kept)
            return 0;
    }
    return 1;
}

const char *ref_demote(struct ref_manager *r, uint64_t n, uint64_t queued,
                       const struct ref_seen *seen)
{
    int window[REF_BLOCKS], chosen[REF_BLOCKS];
    uint32_t num = list_window(r, window, n), k = 0;
    uint64_t room = ref_free_now(r);
    const char *wrong;
    if (seen->num_copies != r->num_copies + queued)
        return FAIL("%llu demoted, but %llu copies wait", (unsigned long long)queued,
                    (unsigned long long)seen->num_copies);
    for (uint32_t i = 0; i < num && k < room; i++) {
        if (r->blocks[window[i]].copy_of)
            continue;
        if (k == queued && !host_is_full(r, window, num))
            return FAIL("demoted only %u, one more fits", k);
        if (k == queued)
            break;
        const int32_t *pair = &seen->copies[2 * (seen->num_copies - 1 - k)];
        if (pair[0] != window[i])
            return FAIL("demoted block %d, want %d", pair[0], window[i]);
        for (uint32_t j = 0; j < num; j++)
            if (r->blocks[window[j]].copy_of == pair[1])
                return FAIL("host block %d taken, a copy of the next to go", pair[1]);
        if ((wrong = ref_take_host(r, pair[1])))
            return wrong;
        r->blocks[pair[1]].state = REF_PENDING;
        ref_link_copy(r, window[i], pair[1]);
        chosen[k++] = window[i];
    }
    if (k != queued)
        return FAIL("demoted %llu, want %u", (unsigned long long)queued, k);
    while (k-- > 0) {
        ref_claim(r, chosen[k]);
        r->blocks[chosen[k]].borrowed = 1;
        queue(r, chosen[k], r->blocks[chosen[k]].copy_of, 0);
    }
    return NULL;
}

/* ---- writing */

int ref_may_write(const struct ref_manager *r, uint32_t seq, uint64_t begin, uint64_t end)
{
    const struct ref_seq *s = &r->seqs[seq];
    for (uint64_t p = begin; p < end && p < s->committed; p++) {
        const struct ref_block *block = &r->blocks[s->table[p / r->block_tokens]];
        if (block->indexed || block->refs > 1)
            return 0;
    }
    return 1;
}
