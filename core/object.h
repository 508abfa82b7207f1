/* What every public object starts with: what it is, who holds it, in which process it was made. A
 * released handle is told from a live one without touching freed memory: heads live in memory that
 * is recycled for the same kind of object only and never returned, so the mark can always be read.
 * (A handle kept past its release may alias a newer object of its kind; recycling is first in,
 * first out to make that late.) */
#ifndef LKVI_CORE_OBJECT_H
#define LKVI_CORE_OBJECT_H

#include <stdatomic.h>
#include <stdint.h>
#include "latentkv/latentkv.h"

enum lkvi_kind {
    LKVI_KIND_CONTEXT,
    LKVI_KIND_POOL,
    LKVI_KIND_PLAN,
    LKVI_KIND_WEIGHTS,
    LKVI_KIND_ROPE,
    LKVI_KIND_ROUTER,
    LKVI_KIND_GATE,
    LKVI_KIND_SLOTS,
    LKVI_NUM_KINDS
};

struct lkvi_object {
    _Atomic uint32_t magic; /* LKVI_MAGIC of its kind while the user holds it */
    atomic_uint refs;       /* the user's and one a child */
    uint32_t generation;    /* of the process: counts fork()s */
    uint32_t kind;
    struct lkvi_object *next; /* while it waits for its next life */
};

/* A zeroed object of `bytes` (one size a kind), one reference, not yet public. NULL: no memory. */
void *lkvi_object_create(enum lkvi_kind kind, size_t bytes);
/* From now on lkvi_object_check accepts it. */
void lkvi_object_publish(struct lkvi_object *object);
/* LKV_E_INVALID with a sentence for NULL, misaligned, released, another kind, another process. */
lkv_status lkvi_object_check(const struct lkvi_object *object, enum lkvi_kind kind);

void lkvi_object_retain(struct lkvi_object *object);
/* The user's release: 1 if it was live and is now refused everywhere; the user's reference is then
 * the caller's to drop. 0 for NULL, a second release, another process: nothing to do. */
int lkvi_object_withdraw(struct lkvi_object *object, enum lkvi_kind kind);
/* Drops one reference; 1 if it was the last: the caller frees the parts and calls recycle. */
int lkvi_object_drop(struct lkvi_object *object);
void lkvi_object_recycle(struct lkvi_object *object);

#endif
