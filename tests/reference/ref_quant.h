/* The oracle of the record formats, written from docs/formats.md alone: small floats are found by
 * looking at every code, fp32 steps are float64 steps rounded once (exact for + - * / sqrt of fp32
 * numbers). Slow and obvious; shares no code with quant/. */
#ifndef LKVT_REFERENCE_REF_QUANT_H
#define LKVT_REFERENCE_REF_QUANT_H

#include <stddef.h>
#include <stdint.h>

struct ref_format {
    uint32_t format; /* 1 BF16, 2 FP8, 3 INT8, 4 NVFP4 */
    uint32_t symmetric, fixed_outer, four_over_six;
    uint32_t latent, rope;
    float outer; /* with fixed_outer */
};

/* offsets inside a record */
struct ref_layout {
    size_t codes, scales, rope, bytes;
};
struct ref_layout ref_layout(const struct ref_format *f);

/* value of a code; NaN for e4m3 0x7F and 0xFF */
double ref_e4m3(uint8_t code);
double ref_e2m1(uint8_t code);
double ref_bf16(uint16_t code);
/* nearest code, ties to even, sign of zero kept, saturating */
uint8_t ref_to_e4m3(double x);
uint8_t ref_to_e2m1(double x);
uint16_t ref_to_bf16(double x);

/* The non-finite rule over groups of `group`; returns how many values were replaced. */
uint32_t ref_repair(float *row, uint32_t n, uint32_t group);
/* Bytes of one record; latent [latent] and rope [rope] may hold anything. */
void ref_encode(const struct ref_format *f, const float *latent, const float *rope, uint8_t *bytes);
/* What the library decodes, with its fp32 roundings. */
void ref_decode_f32(const struct ref_format *f, const uint8_t *bytes, float *latent, float *rope);
/* The value that the record stands for, in float64: no fp32 rounding anywhere. */
void ref_decode(const struct ref_format *f, const uint8_t *bytes, double *latent, double *rope);

/* fp32 twins, bit for bit */
void ref_rms_norm_f32(float *row, uint32_t n, const float *weight, float eps);
void ref_hadamard_f32(float *row, uint32_t n);
/* style 1 interleaved, 2 half-split, 0 none */
void ref_rope_f32(float *row, uint32_t n, const float *cos, const float *sin, uint32_t style);
/* float64 twins */
void ref_rms_norm(double *row, uint32_t n, const double *weight, double eps);
void ref_hadamard(double *row, uint32_t n);

#endif
