/* The oracle of the record formats. See ref_quant.h. */
#include "tests/reference/ref_quant.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* one fp32 operation: float64, then rounded */
static float r32(double x)
{
    return (float)x;
}

double ref_e4m3(uint8_t code)
{
    int e = code >> 3 & 15, m = code & 7;
    double sign = code & 0x80 ? -1.0 : 1.0;
    if (e == 15 && m == 7)
        return NAN;
    return sign * (e == 0 ? m * ldexp(1, -9) : (8 + m) * ldexp(1, e - 10));
}

double ref_e2m1(uint8_t code)
{
    static const double values[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return code & 8 ? -values[code & 7] : values[code & 7];
}

double ref_bf16(uint16_t code)
{
    uint32_t u = (uint32_t)code << 16;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Looks at every magnitude code 0..last for the nearest value; a tie goes to the even code. */
static uint32_t nearest(double x, uint32_t last, double (*value)(uint32_t))
{
    uint32_t best = 0;
    double mag = fabs(x);
    if (mag > value(last))
        return last;
    for (uint32_t c = 0; c <= last; c++) {
        double d = fabs(value(c) - mag), d_best = fabs(value(best) - mag);
        if (d < d_best || (d == d_best && c % 2 == 0))
            best = c;
    }
    return best;
}

static double value_e4m3(uint32_t c)
{
    return ref_e4m3((uint8_t)c);
}

static double value_e2m1(uint32_t c)
{
    return ref_e2m1((uint8_t)c);
}

uint8_t ref_to_e4m3(double x)
{
    return (uint8_t)(nearest(x, 0x7E, value_e4m3) | (signbit(x) ? 0x80u : 0));
}

uint8_t ref_to_e2m1(double x)
{
    return (uint8_t)(nearest(x, 7, value_e2m1) | (signbit(x) ? 8u : 0));
}

/* bf16 codes below x and above it are neighbours of its upper half. */
uint16_t ref_to_bf16(double x)
{
    float f = (float)fabs(x);
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    uint32_t down = u >> 16, up = down + 1;
    double to_down = fabs(x) - ref_bf16((uint16_t)down);
    double to_up = (up == 0x7F80 ? ldexp(1, 128) : ref_bf16((uint16_t)up)) - fabs(x);
    uint32_t code = to_down < to_up || (to_down == to_up && down % 2 == 0) ? down : up;
    if (code == 0x7F80)
        code = 0x7F7F;
    return (uint16_t)(code | (signbit(x) ? 0x8000u : 0));
}

static size_t up16(size_t n)
{
    while (n % 16 != 0)
        n++;
    return n;
}

struct ref_layout ref_layout(const struct ref_format *f)
{
    struct ref_layout l = {0};
    size_t codes = f->format == 1 ? 2 * f->latent : f->format == 4 ? f->latent / 2 : f->latent;
    size_t scales = 0;
    if (f->format == 2)
        scales = (size_t)(f->latent / 128 + (f->latent % 128 > 0)) * 4;
    if (f->format == 3)
        scales = 16;
    if (f->format == 4)
        scales = up16(f->latent / 16) + 16;
    l.scales = up16(codes);
    l.rope = l.scales + up16(scales);
    l.bytes = l.rope + up16(2 * f->rope);
    return l;
}

uint32_t ref_repair(float *row, uint32_t n, uint32_t group)
{
    uint32_t replaced = 0;
    for (uint32_t g = 0; g < n; g += group) {
        uint32_t end = g + group < n ? g + group : n, any = 0;
        double low = INFINITY, high = -INFINITY;
        for (uint32_t i = g; i < end; i++)
            if (isfinite(row[i])) {
                any = 1;
                low = fmin(low, row[i]);
                high = fmax(high, row[i]);
            }
        for (uint32_t i = g; i < end; i++)
            if (!isfinite(row[i])) {
                double v = isnan(row[i]) || !any ? 0 : row[i] > 0 ? high : low;
                row[i] = v == 0 ? 0.0f : (float)v;
                replaced++;
            }
    }
    return replaced;
}

static double amax(const float *x, uint32_t n)
{
    double a = 0;
    for (uint32_t i = 0; i < n; i++)
        a = fmax(a, fabs(x[i]));
    return a;
}

static void encode_fp8(const struct ref_format *f, const float *x, uint8_t *codes, uint8_t *scales)
{
    for (uint32_t g = 0; g < f->latent; g += 128) {
        uint32_t n = f->latent - g < 128 ? f->latent - g : 128;
        float s = r32(amax(x + g, n) / 448);
        if (s < FLT_MIN)
            s = 0;
        memcpy(scales + g / 128 * 4, &s, 4);
        for (uint32_t i = g; i < g + n; i++)
            codes[i] = s > 0 ? ref_to_e4m3(r32((double)x[i] / s)) : 0;
    }
}

static void int8_scale(const struct ref_format *f, const float *x, float *scale, float *zero)
{
    double low = x[0], high = x[0], a = amax(x, f->latent);
    for (uint32_t i = 0; i < f->latent; i++) {
        low = fmin(low, x[i]);
        high = fmax(high, x[i]);
    }
    float s = r32((double)r32(high - low) / 255);
    if (!isfinite(s))
        s = r32((double)r32(high / 255) - (double)r32(low / 255));
    *zero = 0;
    if (f->symmetric || s < FLT_MIN || s < a * ldexp(1, -16)) {
        *scale = fmaxf(r32(a / 127), FLT_MIN);
        return;
    }
    *scale = s;
    *zero = r32(-128.0 - (double)r32(low / s));
}

static void encode_int8(const struct ref_format *f, const float *x, uint8_t *codes, uint8_t *scales)
{
    float scale, zero;
    int8_scale(f, x, &scale, &zero);
    memcpy(scales, &scale, 4);
    memcpy(scales + 4, &zero, 4);
    for (uint32_t i = 0; i < f->latent; i++) {
        double q = rint(r32((double)r32((double)x[i] / scale) + zero));
        codes[i] = (uint8_t)(int)fmax(-128, fmin(127, q));
    }
}

struct nvfp4_group {
    uint8_t scale, codes[16];
    float error;
};

static struct nvfp4_group nvfp4_group(const float *x, float outer, double top)
{
    struct nvfp4_group g = {0};
    float e[16];
    g.scale = ref_to_e4m3(r32((double)r32(amax(x, 16) / top) / outer));
    float s = r32(ref_e4m3(g.scale) * outer);
    for (int i = 0; i < 16; i++) {
        if (g.scale != 0)
            g.codes[i] = ref_to_e2m1(r32((double)x[i] / s));
        float d = r32((double)x[i] - (double)r32(ref_e2m1(g.codes[i]) * s));
        e[i] = r32((double)d * d);
    }
#define ADD(a, b) r32((double)(a) + (double)(b))
    float low = ADD(ADD(ADD(e[0], e[1]), ADD(e[2], e[3])), ADD(ADD(e[4], e[5]), ADD(e[6], e[7])));
    float high =
        ADD(ADD(ADD(e[8], e[9]), ADD(e[10], e[11])), ADD(ADD(e[12], e[13]), ADD(e[14], e[15])));
    g.error = ADD(low, high);
#undef ADD
    return g;
}

static void encode_nvfp4(const struct ref_format *f, const float *x, uint8_t *codes,
                         uint8_t *scales)
{
    float outer = r32(amax(x, f->latent) / 2688);
    if (f->fixed_outer)
        outer = f->outer;
    else if (outer < FLT_MIN)
        return; /* the record was cleared */
    memcpy(scales + up16(f->latent / 16) + 4, &outer, 4);
    for (uint32_t g = 0; g < f->latent / 16; g++) {
        struct nvfp4_group six = nvfp4_group(x + 16 * g, outer, 6);
        struct nvfp4_group four = nvfp4_group(x + 16 * g, outer, 4);
        struct nvfp4_group best = f->four_over_six && four.error < six.error ? four : six;
        scales[g] = best.scale;
        for (int i = 0; i < 8; i++)
            codes[8 * g + i] = (uint8_t)(best.codes[2 * i] + 16 * best.codes[2 * i + 1]);
    }
}

static void put_bf16(const float *x, uint32_t n, uint8_t *to)
{
    for (uint32_t i = 0; i < n; i++) {
        uint16_t code = ref_to_bf16(x[i]);
        to[2 * i] = (uint8_t)(code & 255);
        to[2 * i + 1] = (uint8_t)(code >> 8);
    }
}

void ref_encode(const struct ref_format *f, const float *latent, const float *rope, uint8_t *bytes)
{
    static const uint32_t groups[5] = {0, 4096, 128, 4096, 16};
    struct ref_layout l = ref_layout(f);
    float x[4096], y[256];
    memcpy(x, latent, f->latent * sizeof *x);
    memset(bytes, 0, l.bytes);
    ref_repair(x, f->latent, groups[f->format]);
    if (f->format == 1)
        put_bf16(x, f->latent, bytes);
    if (f->format == 2)
        encode_fp8(f, x, bytes, bytes + l.scales);
    if (f->format == 3)
        encode_int8(f, x, bytes, bytes + l.scales);
    if (f->format == 4)
        encode_nvfp4(f, x, bytes, bytes + l.scales);
    if (f->rope == 0)
        return;
    memcpy(y, rope, f->rope * sizeof *y);
    ref_repair(y, f->rope, f->rope);
    put_bf16(y, f->rope, bytes + l.rope);
}

static double float_at(const uint8_t *bytes)
{
    float x;
    memcpy(&x, bytes, sizeof x);
    return x;
}

static double bf16_at(const uint8_t *bytes)
{
    return ref_bf16((uint16_t)(bytes[0] + 256 * bytes[1]));
}

/* round: r32 for the library's fp32 steps, or the identity */
static double decode_one(const struct ref_format *f, const uint8_t *bytes, uint32_t i,
                         double (*round)(double))
{
    struct ref_layout l = ref_layout(f);
    const uint8_t *scales = bytes + l.scales;
    if (f->format == 1)
        return bf16_at(bytes + 2 * i);
    if (f->format == 2)
        return round(ref_e4m3(bytes[i]) * float_at(scales + i / 128 * 4));
    if (f->format == 3) {
        double x = round(float_at(scales) * round((int8_t)bytes[i] - float_at(scales + 4)));
        return x > FLT_MAX ? FLT_MAX : x < -FLT_MAX ? -FLT_MAX : x;
    }
    double outer = float_at(scales + up16(f->latent / 16) + 4);
    uint8_t code = i % 2 ? bytes[i / 2] >> 4 : bytes[i / 2] & 15;
    return round(ref_e2m1(code) * round(ref_e4m3(scales[i / 16]) * outer));
}

static double to_f32(double x)
{
    return (float)x;
}

static double exact(double x)
{
    return x;
}

void ref_decode_f32(const struct ref_format *f, const uint8_t *bytes, float *latent, float *rope)
{
    for (uint32_t i = 0; i < f->latent; i++)
        latent[i] = (float)decode_one(f, bytes, i, to_f32);
    for (uint32_t i = 0; i < f->rope; i++)
        rope[i] = (float)bf16_at(bytes + ref_layout(f).rope + 2 * i);
}

void ref_decode(const struct ref_format *f, const uint8_t *bytes, double *latent, double *rope)
{
    for (uint32_t i = 0; i < f->latent; i++)
        latent[i] = decode_one(f, bytes, i, exact);
    for (uint32_t i = 0; i < f->rope; i++)
        rope[i] = bf16_at(bytes + ref_layout(f).rope + 2 * i);
}

/* The sum over lanes written as the page writes it. */
static float warp_sum(const float *row, uint32_t n)
{
    float p[256] = {0}, a[32];
    for (uint32_t k = 0; k < 256; k++)
        for (uint32_t i = k; i < n; i += 256)
            p[k] = r32((double)p[k] + (double)r32((double)row[i] * row[i]));
    for (int l = 0; l < 32; l++) {
        const float *q = p + 8 * l;
        float low = r32((double)r32((double)q[0] + q[1]) + (double)r32((double)q[2] + q[3]));
        float high = r32((double)r32((double)q[4] + q[5]) + (double)r32((double)q[6] + q[7]));
        a[l] = r32((double)low + high);
    }
    for (int h = 16; h > 0; h /= 2)
        for (int l = 0; l < h; l++)
            a[l] = r32((double)a[l] + a[l + h]);
    return a[0];
}

void ref_rms_norm_f32(float *row, uint32_t n, const float *weight, float eps)
{
    float mean = r32((double)warp_sum(row, n) / n);
    float root = r32(sqrt((double)r32((double)mean + eps)));
    float inverse = r32(1 / (double)root);
    for (uint32_t i = 0; i < n; i++)
        row[i] = r32((double)r32((double)row[i] * inverse) * weight[i]);
}

void ref_rms_norm(double *row, uint32_t n, const double *weight, double eps)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += row[i] * row[i];
    for (uint32_t i = 0; i < n; i++)
        row[i] *= weight[i] / sqrt(sum / n + eps);
}

/* Stage h as a new row: element i takes its partner i ^ h. */
void ref_hadamard_f32(float *row, uint32_t n)
{
    float next[4096];
    for (uint32_t h = 1; h < n; h *= 2) {
        for (uint32_t i = 0; i < n; i++)
            next[i] = i & h ? r32((double)row[i ^ h] - row[i]) : r32((double)row[i] + row[i ^ h]);
        memcpy(row, next, n * sizeof *row);
    }
    float scale = r32(1 / sqrt((double)n));
    for (uint32_t i = 0; i < n; i++)
        row[i] = r32((double)row[i] * scale);
}

/* The matrix itself: entry (i, j) is the parity of i & j. */
void ref_hadamard(double *row, uint32_t n)
{
    double out[4096];
    for (uint32_t i = 0; i < n; i++) {
        out[i] = 0;
        for (uint32_t j = 0; j < n; j++)
            out[i] += __builtin_parity(i & j) ? -row[j] : row[j];
    }
    for (uint32_t i = 0; i < n; i++)
        row[i] = out[i] / sqrt((double)n);
}

void ref_rope_f32(float *row, uint32_t n, const float *cos, const float *sin, uint32_t style)
{
    for (uint32_t i = 0; i < n / 2 && style != 0; i++) {
        float *a = style == 1 ? row + 2 * i : row + i, *b = style == 1 ? a + 1 : a + n / 2;
        float ac = r32((double)*a * cos[i]), bs = r32((double)*b * sin[i]);
        float bc = r32((double)*b * cos[i]), as = r32((double)*a * sin[i]);
        *a = r32((double)ac - bs);
        *b = r32((double)bc + as);
    }
}
