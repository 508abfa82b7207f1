/* What the twin's files offer one another: blocks (ref_blocks.c) and their host copies (ref_host.c)
 * below sequences (ref_manager.c). */
#ifndef TESTS_REFERENCE_REF_STATE_H
#define TESTS_REFERENCE_REF_STATE_H

#include "tests/reference/ref_manager.h"

#define FAIL(...) (snprintf(r->text, sizeof r->text, __VA_ARGS__), r->text)

static inline uint64_t blocks_for(const struct ref_manager *r, uint64_t tokens)
{
    return (tokens + r->block_tokens - 1) / r->block_tokens;
}

static inline int on_host(const struct ref_manager *r, int b)
{
    return b > (int)r->num_blocks;
}

int ref_find_child(const struct ref_manager *r, int parent, const int32_t *tokens,
                   const char *keys);
/* The library took id b: was it one that it may take? */
const char *ref_take(struct ref_manager *r, int32_t b, int state);
/* A hit or a published block takes the sequence's priority if that is higher. */
void ref_raise(struct ref_manager *r, int32_t b, const struct ref_seq *s);
void ref_claim(struct ref_manager *r, int32_t b);
void ref_drop(struct ref_manager *r, int32_t b, uint64_t fence);
void ref_settle_unused(struct ref_manager *r, int32_t b); /* nobody refers to b any more */
int ref_copy_waits_for(const struct ref_manager *r, int32_t to);
void ref_make_free(struct ref_block *block);
void ref_wake(struct ref_manager *r, int parent);
void ref_forget_tree(struct ref_manager *r, int b); /* b and all under it leave the cache */

/* ---- ref_host.c */
/* The identity of `from` passes to `to`; one of them is on the host and is, or was, its copy. */
void ref_move_identity(struct ref_manager *r, int from, int to);
void ref_link_copy(struct ref_manager *r, int b, int h);
void ref_unlink_copy(struct ref_manager *r, int b);
/* The library took host block h: was it one that it may take? */
const char *ref_take_host(struct ref_manager *r, int32_t h);
uint64_t ref_free_now(const struct ref_manager *r);
lkv_status ref_verdict(const struct ref_manager *r, uint64_t needed, uint64_t own,
                       uint64_t pending_hits);

#endif
