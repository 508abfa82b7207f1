/* The projector of a LATENT_GQA layer, as lkv_weights_create makes it from key_up, value_up,
 * key_down, value_down: weights with a matrix for each KV head. */
#ifndef LKVI_API_PROJECTOR_H
#define LKVI_API_PROJECTOR_H

#include "api/objects.h"

lkv_status lkvi_projector_check(const lkv_context *ctx, const lkv_model_desc *m,
                                const lkv_weights_desc *d);
/* Fills w->view and w->memory from a checked descriptor. */
lkv_status lkvi_projector_build(struct lkv_weights *w, const lkv_weights_desc *d);

/* Orthonormal Hadamard rotation in float64 (api/weights.c). */
void lkvi_rotate_wide(double *x, uint32_t n);

#endif
