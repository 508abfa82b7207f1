/* The oracle of RoPE in float64: angles from the model's constants (yarn and longrope included),
 * then the turn of one row. Written from the published formulas; shares no code with api/. */
#ifndef LKVT_REFERENCE_REF_ROPE_H
#define LKVT_REFERENCE_REF_ROPE_H

#include <stdint.h>
#include "latentkv/latentkv.h"

/* Angle of pair i at position 1. */
double ref_rope_frequency(const lkv_model_desc *model, uint32_t i);
/* What cos and sin are multiplied by: 1 without yarn. */
double ref_rope_amplitude(const lkv_model_desc *model);
/* x [rope_dim] at a position, in the model's style. */
void ref_rope_turn(const lkv_model_desc *model, int32_t position, double *x);

#endif
