/* The generic rows of the selection table: any device from sm_80, any heads and q_len, latent up to
 * 512, rope up to 64. In: a plan's maxima. Out: the launch shape, the same at plan and at attend.
 */
#include "attention/cuda/sm80/rows.h"
#include "attention/cuda/sm80/decode.h"

enum { WAVES = 2 }; /* CTAs that a plan may make for each one that runs at a time */

static uint32_t ceil_div(uint64_t a, uint64_t b)
{
    return (uint32_t)((a + b - 1) / b);
}

static uint32_t at_least_one(uint64_t n)
{
    return n ? (uint32_t)n : 1;
}

static struct lkvi_sm80_shape shape_of(const struct lkvi_plan_params *plan,
                                       const struct lkvi_cuda_launch *launch)
{
    uint64_t rows = (uint64_t)plan->max_q_len * plan->num_heads;
    struct lkvi_sm80_shape s = {.latent = plan->record.latent_dim <= 256 ? 256 : 512};
    s.rows = s.latent == 512 && rows > 16 ? 32 : 16;
    s.row_tiles = at_least_one(ceil_div(rows, s.rows));
    uint64_t resident = (uint64_t)launch->num_sms * (s.rows == 16 ? 2 : 1) * WAVES;
    uint64_t units = (uint64_t)s.row_tiles * at_least_one(plan->max_seqs);
    uint64_t tiles = ceil_div(at_least_one(plan->max_seq_len), LKVI_SM80_TILE_TOKENS);
    uint64_t splits = at_least_one(resident / units), most = ceil_div(tiles, LKVI_SM80_MIN_TILES);
    splits = splits > most ? most : splits;
    s.splits_max = splits > LKVI_SM80_MAX_SPLITS ? LKVI_SM80_MAX_SPLITS : (uint32_t)splits;
    return s;
}

static uint32_t smem_of(const struct lkvi_plan_params *plan, const struct lkvi_sm80_shape *shape)
{
    switch (plan->record.format) {
    case LKV_FORMAT_BF16:
        return lkvi_sm80_smem_bf16(shape, plan->record.bytes);
    case LKV_FORMAT_FP8:
        return lkvi_sm80_smem_fp8(shape, plan->record.bytes);
    case LKV_FORMAT_INT8:
        return lkvi_sm80_smem_int8(shape, plan->record.bytes);
    default:
        return lkvi_sm80_smem_nvfp4(shape, plan->record.bytes);
    }
}

static int supported(const struct lkvi_plan_params *plan, const struct lkvi_cuda_launch *launch)
{
    struct lkvi_sm80_shape shape = shape_of(plan, launch);
    if (plan->record.latent_dim > LKVI_SM80_MAX_LATENT ||
        plan->record.rope_dim > LKVI_SM80_MAX_ROPE)
        return 0;
    uint32_t need = smem_of(plan, &shape);
    return need && need <= launch->smem_bytes_per_block;
}

static uint64_t scratch(struct lkvi_plan_params *plan, const struct lkvi_cuda_launch *launch)
{
    struct lkvi_sm80_shape s = shape_of(plan, launch);
    plan->num_splits_max = s.splits_max;
    if (s.splits_max < 2)
        return 256;
    return 4 * lkvi_sm80_partial_floats(&s) * s.row_tiles * plan->max_seqs * s.splits_max;
}

/* The cut of a sequence is a function of its length, read where it is needed. */
static lkv_status update(const struct lkvi_plan_params *plan, const struct lkvi_batch_view *batch,
                         void *workspace, const struct lkvi_cuda_launch *launch,
                         cudaStream_t stream)
{
    (void)plan, (void)batch, (void)workspace, (void)launch, (void)stream;
    return LKV_OK;
}

static lkv_status check(const struct lkvi_cuda_launch *launch, cudaError_t error)
{
    if (error == cudaSuccess)
        return LKV_OK;
    (void)cudaGetLastError();
    return launch->host->fail(LKV_E_CUDA, "sm80 decode: %s (%s)", cudaGetErrorString(error),
                              cudaGetErrorName(error));
}

typedef cudaError_t (*decode_fn)(const struct lkvi_attend_params *, const struct lkvi_sm80_shape *,
                                 cudaStream_t);

static lkv_status attend(const struct lkvi_attend_params *p, const struct lkvi_cuda_launch *launch,
                         cudaStream_t stream)
{
    static const decode_fn decode[] = {
        [LKV_FORMAT_BF16] = lkvi_sm80_decode_bf16,
        [LKV_FORMAT_FP8] = lkvi_sm80_decode_fp8,
        [LKV_FORMAT_INT8] = lkvi_sm80_decode_int8,
        [LKV_FORMAT_NVFP4] = lkvi_sm80_decode_nvfp4,
    };
    struct lkvi_sm80_shape shape = shape_of(&p->plan, launch);
    lkv_status status = check(launch, decode[p->plan.record.format](p, &shape, stream));
    return status == LKV_OK ? check(launch, lkvi_sm80_combine(p, &shape, stream)) : status;
}

const struct lkvi_cuda_kernel lkvi_sm80_kernels[] = {
    {"decode_bf16_sm80", 80, 999, LKV_FORMAT_BF16, 1, 256, supported, scratch, update, attend},
    {"decode_fp8_sm80", 80, 999, LKV_FORMAT_FP8, 1, 256, supported, scratch, update, attend},
    {"decode_int8_sm80", 80, 999, LKV_FORMAT_INT8, 1, 256, supported, scratch, update, attend},
    {"decode_nvfp4_sm80", 80, 999, LKV_FORMAT_NVFP4, 1, 256, supported, scratch, update, attend},
};
const uint32_t lkvi_sm80_num_kernels = sizeof lkvi_sm80_kernels / sizeof *lkvi_sm80_kernels;
