/* One wrong call a row: its function, the word that its sentence must have, the status wanted. */
#ifndef LKVT_UNIT_API_BADINPUT_H
#define LKVT_UNIT_API_BADINPUT_H

#include "tests/unit/api/world.h"

/* Checks the status, that the sentence is of this call and names `word`, and that nothing but
 * w->admission changed. */
void judge(struct world *w, const char *function, const char *word, lkv_status want,
           lkv_status found, int line);
/* A function that cannot fail: its call is the test. */
void called(const char *function);

#define BAD(function, word, want, ...)                                                             \
    judge(w, #function, word, want, function(__VA_ARGS__), __LINE__)
/* The same with one field of a struct changed: WITH(lkv_batch, b, w->batch, b.num_seqs = 9, ...) */
#define WITH(type, name, base, change, ...)                                                        \
    do {                                                                                           \
        type name = base;                                                                          \
        change;                                                                                    \
        __VA_ARGS__;                                                                               \
    } while (0)
/* The memory of x, one byte off. */
#define OFF(x) ((void *)((char *)(x) + 1))
#define MARK(w) ((void *)&(w)->out.object)

enum { INVALID = LKV_E_INVALID, UNSUPPORTED = LKV_E_UNSUPPORTED, VERSION = LKV_E_VERSION };

void bad_blocks(struct world *w);  /* badinput_blocks.c: pools, sequences, leases */
void bad_tensors(struct world *w); /* badinput_tensors.c: append, project, attend, merge */
void bad_heads(struct world *w);   /* badinput_heads.c: LATENT_GQA pools and projectors */
void bad_moe(struct world *w);     /* badinput_moe.c: routers, gates, fallback, combination */
void bad_slots(struct world *w);   /* badinput_slots.c: slots, routing traces, signals */

#endif
