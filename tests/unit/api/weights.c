/* Weights: the split by heads, every input type, block scales, the folded rotation. Seen through
 * lkv_project_*: a unit query reads one row of W_UK, a unit latent one column of W_UV. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "latentkv/latentkv.h"
#include "tests/support/rng.h"

enum { H = 3, N = 5, V = 7, L = 256, ROWS = H * (N + V) };

struct fixture {
    lkv_context *ctx;
    lkv_model_desc model;
    double want[ROWS][L]; /* the stored weights, in float64 */
    float f32[ROWS][L];
    uint16_t bf16[ROWS][L];
    uint8_t f8[ROWS][L];
    float scales[1][2];
    size_t workspace_bytes;
    void *workspace;
};

static double e4m3(uint8_t code)
{
    int exponent = code >> 3 & 15, mantissa = code & 7;
    double value = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    return code & 0x80 ? -value : value;
}

static struct fixture *setup(void)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct rng rng = rng_seed(11);
    lkv_context_desc desc = {.size = sizeof desc, .device = LKV_DEVICE_CPU, .num_threads = 2};
    cr_assert_eq(lkv_context_create(&desc, &f->ctx), LKV_OK);
    f->model = (lkv_model_desc){.size = sizeof f->model,
                                .num_layers = 1,
                                .num_heads = H,
                                .latent_dim = L,
                                .nope_dim = N,
                                .v_dim = V};
    f->scales[0][0] = 0.37f;
    f->scales[0][1] = 1.9f;
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < L; i++) {
            f->f32[r][i] = (float)rng_normal(&rng);
            uint32_t bits;
            memcpy(&bits, &f->f32[r][i], 4);
            f->bf16[r][i] = (uint16_t)(bits >> 16);
            f->f8[r][i] = (uint8_t)(rng_next(&rng) & 0xf7); /* no NaN: mantissa below 7 of 15 */
            if ((f->f8[r][i] & 0x7f) == 0x7f)
                f->f8[r][i] = 0;
        }
    return f;
}

static void teardown(struct fixture *f)
{
    lkv_context_release(f->ctx);
    free(f->workspace);
    free(f);
}

static lkv_weights *create(struct fixture *f, uint32_t dtype, uint32_t flags)
{
    void *data = dtype == LKV_DTYPE_F32    ? (void *)f->f32
                 : dtype == LKV_DTYPE_BF16 ? (void *)f->bf16
                                           : (void *)f->f8;
    lkv_tensor w = {data, dtype, 2, {ROWS, L}, {L, 1}};
    lkv_tensor scales = {f->scales, LKV_DTYPE_F32, 2, {1, 2}, {2, 1}};
    lkv_weights_desc d = {.size = sizeof d,
                          .kv_b_proj = &w,
                          .scales = dtype == LKV_DTYPE_F8E4M3 ? &scales : NULL,
                          .flags = flags};
    lkv_weights *out;
    cr_assert_eq(lkv_weights_create(f->ctx, &f->model, &d, &out), LKV_OK, "%s", lkv_last_error());
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < L; i++) {
            uint32_t bits = (uint32_t)f->bf16[r][i] << 16;
            float wide;
            memcpy(&wide, &bits, 4);
            f->want[r][i] = dtype == LKV_DTYPE_F32    ? f->f32[r][i]
                            : dtype == LKV_DTYPE_BF16 ? wide
                                                      : e4m3(f->f8[r][i]) * f->scales[0][i / 128];
        }
    cr_assert_eq(lkv_project_workspace(out, L, &f->workspace_bytes), LKV_OK);
    free(f->workspace);
    f->workspace_bytes = (f->workspace_bytes | 255) + 1;
    f->workspace = aligned_alloc(256, f->workspace_bytes);
    return out;
}

/* Row r of the Sylvester matrix of order L, orthonormal. */
static double hadamard(int r, int i)
{
    return (__builtin_popcount((unsigned)(r & i)) & 1 ? -1 : 1) / sqrt(L);
}

static void rotate_want(struct fixture *f)
{
    for (int r = 0; r < ROWS; r++) {
        double row[L] = {0};
        for (int i = 0; i < L; i++)
            for (int j = 0; j < L; j++)
                row[i] += f->want[r][j] * hadamard(i, j);
        memcpy(f->want[r], row, sizeof row);
    }
}

static void compare(struct fixture *f, lkv_weights *w, const char *what, double bound)
{
    static float q[N][H][N], got[N][H][L], o[L][H][L], out[L][H][V];
    for (int n = 0; n < N; n++)
        for (int h = 0; h < H; h++)
            q[n][h][n] = 1;
    for (int i = 0; i < L; i++)
        for (int h = 0; h < H; h++)
            o[i][h][i] = 1;
    lkv_tensor tq = {q, LKV_DTYPE_F32, 3, {N, H, N}, {H * N, N, 1}};
    lkv_tensor tg = {got, LKV_DTYPE_F32, 3, {N, H, L}, {H * L, L, 1}};
    lkv_tensor to = {o, LKV_DTYPE_F32, 3, {L, H, L}, {H * L, L, 1}};
    lkv_tensor tv = {out, LKV_DTYPE_F32, 3, {L, H, V}, {H * V, V, 1}};
    cr_assert_eq(lkv_project_q(w, &tq, &tg, f->workspace, f->workspace_bytes, NULL), LKV_OK, "%s",
                 lkv_last_error());
    cr_assert_eq(lkv_project_out(w, &to, &tv, f->workspace, f->workspace_bytes, NULL), LKV_OK, "%s",
                 lkv_last_error());
    for (int h = 0; h < H; h++)
        for (int i = 0; i < L; i++) {
            for (int n = 0; n < N; n++)
                cr_assert_float_eq(got[n][h][i], f->want[h * (N + V) + n][i], bound,
                                   "%s: W_UK head %d row %d column %d is %.9g, want %.9g", what, h,
                                   n, i, got[n][h][i], f->want[h * (N + V) + n][i]);
            for (int v = 0; v < V; v++)
                cr_assert_float_eq(out[i][h][v], f->want[h * (N + V) + N + v][i], bound,
                                   "%s: W_UV head %d row %d column %d is %.9g, want %.9g", what, h,
                                   v, i, out[i][h][v], f->want[h * (N + V) + N + v][i]);
        }
}

Test(weights, split_types_scales_rotation)
{
    static const struct {
        const char *what;
        uint32_t dtype;
        double bound; /* one rounding to fp32 of the largest value */
    } rows[] = {{"f32", LKV_DTYPE_F32, 1e-6},
                {"bf16", LKV_DTYPE_BF16, 1e-6},
                {"f8e4m3", LKV_DTYPE_F8E4M3, 448 * 1.9 * 6e-8}};
    struct fixture *f = setup();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        lkv_weights *w = create(f, rows[i].dtype, 0);
        compare(f, w, rows[i].what, rows[i].bound);
        lkv_weights_release(w);
        w = create(f, rows[i].dtype, LKV_WEIGHTS_ROTATE);
        rotate_want(f);
        compare(f, w, "rotated", 16 * rows[i].bound); /* |row| grows to sqrt(L) x max */
        lkv_weights_release(w);
    }
    teardown(f);
}
