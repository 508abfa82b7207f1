/* The Hopper rows of the selection table, and what their launchers share on the host. */
#include "attention/cuda/sm90/launch.h"
#include "attention/cuda/sm90/config.cuh"

using namespace lkvi;

typedef CUresult (*encode_tiled_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                    const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                    const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                    CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

lkv_status lkvi_sm90_error(const struct lkvi_cuda_launch *launch, cudaError_t error,
                           const char *what)
{
    (void)cudaGetLastError();
    return launch->host->fail(LKV_E_CUDA, "%s: %s (%s)", what, cudaGetErrorString(error),
                              cudaGetErrorName(error));
}

static uint32_t ceil_div(uint32_t a, uint32_t b)
{
    return (a + b - 1) / b;
}

/* The 16-row kernels run two CTAs an SM, the 64-row one fills it. */
static uint32_t resident_ranges(uint32_t rows, uint32_t row_tiles,
                                const struct lkvi_cuda_launch *launch)
{
    return (rows == kRows ? kCtasPerSm : 1) * launch->num_sms / row_tiles;
}

void lkvi_sm90_shape(struct lkvi_split_shape *shape, const struct lkvi_plan_params *plan,
                     const struct lkvi_cuda_launch *launch, uint32_t rows)
{
    uint32_t tiles = ceil_div(plan->max_seq_len ? plan->max_seq_len : 1, kTile);
    shape->num_seqs = plan->max_seqs;
    shape->num_tokens = plan->max_tokens;
    shape->rows = rows;
    shape->row_tiles = ceil_div(plan->max_q_len * plan->num_heads, rows);
    shape->chunk_tiles = 0;
    shape->num_ranges = resident_ranges(rows, shape->row_tiles, launch);
    if (plan->flags & LKV_PLAN_BATCH_INVARIANT) {
        shape->chunk_tiles = ceil_div(tiles, LKVI_CHUNKS_MAX);
        shape->num_ranges = plan->max_seqs * ceil_div(tiles, shape->chunk_tiles);
    }
}

void lkvi_sm90_job_make(struct lkvi_sm90_job *job, const struct lkvi_attend_params *p,
                        const struct lkvi_cuda_launch *launch, uint32_t rows)
{
    lkvi_sm90_shape(&job->shape, &p->plan, launch, rows);
    lkvi_split_place(&job->shape, p->workspace, &job->split);
    uint32_t resident = resident_ranges(rows, job->shape.row_tiles, launch);
    uint32_t ranges = job->shape.num_ranges < resident ? job->shape.num_ranges : resident;
    job->grid = ranges * job->shape.row_tiles;
}

lkv_status lkvi_sm90_map(CUtensorMap *map, const struct lkvi_attend_params *p,
                         const struct lkvi_cuda_launch *launch, uint32_t width, uint32_t tokens,
                         int swizzled)
{
    const struct lkvi_store *store = &p->store;
    cuuint64_t size[3] = {store->record.bytes, store->tokens_per_block, store->num_blocks};
    cuuint64_t stride[2] = {store->record.bytes, store->block_stride};
    cuuint32_t piece = store->tokens_per_block < tokens ? store->tokens_per_block : tokens;
    cuuint32_t box[3] = {width, piece, 1}, step[3] = {1, 1, 1};
    CUresult error = ((encode_tiled_fn)launch->encode_tiled)(
        map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, store->base, size, stride, box, step,
        CU_TENSOR_MAP_INTERLEAVE_NONE,
        swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
        CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (error != CUDA_SUCCESS)
        return launch->host->fail(LKV_E_CUDA,
                                  "cuTensorMapEncodeTiled: %d for %llu blocks of stride %llu at %p",
                                  (int)error, (unsigned long long)store->num_blocks,
                                  (unsigned long long)store->block_stride, (void *)store->base);
    return LKV_OK;
}

static int supported(const struct lkvi_plan_params *plan, const struct lkvi_cuda_launch *launch)
{
    return launch->encode_tiled && plan->record.latent_dim == kLatent &&
           plan->record.rope_dim == kRope;
}

static int supported16(const struct lkvi_plan_params *plan, const struct lkvi_cuda_launch *launch)
{
    return supported(plan, launch) && plan->max_q_len * plan->num_heads <= kRows * kRowTilesMax;
}

static int supported64(const struct lkvi_plan_params *plan, const struct lkvi_cuda_launch *launch)
{
    uint32_t rows = plan->max_q_len * plan->num_heads;
    return supported(plan, launch) && rows > kRows && rows <= kWideRows * kRowTilesMax;
}

/* Two halves of q do not fit: any but bf16 goes to the 16-row kernel. */
static int supported64_bf16(const struct lkvi_plan_params *plan,
                            const struct lkvi_cuda_launch *launch)
{
    return supported64(plan, launch) && plan->q_form == LKV_Q_LATENT &&
           plan->q_dtype == LKV_DTYPE_BF16;
}

/* NVFP4: two CTAs of 16 rows are faster than a half empty one of 64. */
static int supported64_over_half(const struct lkvi_plan_params *plan,
                                 const struct lkvi_cuda_launch *launch)
{
    return supported64(plan, launch) && plan->max_q_len * plan->num_heads > 2 * kRows;
}

static uint64_t scratch(struct lkvi_plan_params *plan, const struct lkvi_cuda_launch *launch,
                        uint32_t rows)
{
    struct lkvi_split_shape shape;
    struct lkvi_split split;
    lkvi_sm90_shape(&shape, plan, launch, rows);
    plan->num_splits_max = shape.num_ranges;
    return lkvi_split_place(&shape, nullptr, &split);
}

static uint64_t scratch16(struct lkvi_plan_params *plan, const struct lkvi_cuda_launch *launch)
{
    return scratch(plan, launch, kRows);
}

static uint64_t scratch64(struct lkvi_plan_params *plan, const struct lkvi_cuda_launch *launch)
{
    return scratch(plan, launch, kWideRows);
}

static lkv_status update(const struct lkvi_plan_params *plan, const struct lkvi_batch_view *batch,
                         void *workspace, const struct lkvi_cuda_launch *launch,
                         cudaStream_t stream, uint32_t rows)
{
    struct lkvi_split_shape shape;
    lkvi_sm90_shape(&shape, plan, launch, rows);
    cudaError_t error = lkvi_cuda_split(&shape, batch, plan->tokens_per_block, workspace, stream);
    return error == cudaSuccess ? LKV_OK : lkvi_sm90_error(launch, error, "split");
}

static lkv_status update16(const struct lkvi_plan_params *plan, const struct lkvi_batch_view *batch,
                           void *workspace, const struct lkvi_cuda_launch *launch,
                           cudaStream_t stream)
{
    return update(plan, batch, workspace, launch, stream, kRows);
}

static lkv_status update64(const struct lkvi_plan_params *plan, const struct lkvi_batch_view *batch,
                           void *workspace, const struct lkvi_cuda_launch *launch,
                           cudaStream_t stream)
{
    return update(plan, batch, workspace, launch, stream, kWideRows);
}

extern "C" const struct lkvi_cuda_kernel lkvi_sm90_kernels[] = {
    {"decode_int8_h64_sm90", 90, 90, LKV_FORMAT_INT8, 1, 512, supported64, scratch64, update64,
     lkvi_decode_int8_h64_sm90},
    {"decode_int8_h16_sm90", 90, 90, LKV_FORMAT_INT8, 1, 128, supported16, scratch16, update16,
     lkvi_decode_int8_h16_sm90},
    {"decode_nvfp4_h64_sm90", 90, 90, LKV_FORMAT_NVFP4, 1, 512, supported64_over_half, scratch64,
     update64, lkvi_decode_nvfp4_h64_sm90},
    {"decode_nvfp4_h16_sm90", 90, 90, LKV_FORMAT_NVFP4, 1, 128, supported16, scratch16, update16,
     lkvi_decode_nvfp4_h16_sm90},
    {"decode_bf16_h64_sm90", 90, 90, LKV_FORMAT_BF16, 1, 512, supported64_bf16, scratch64, update64,
     lkvi_decode_bf16_h64_sm90},
    {"decode_bf16_h16_sm90", 90, 90, LKV_FORMAT_BF16, 1, 128, supported16, scratch16, update16,
     lkvi_decode_bf16_h16_sm90},
    {"decode_fp8_h16_sm90", 90, 90, LKV_FORMAT_FP8, 1, 128, supported16, scratch16, update16,
     lkvi_decode_fp8_h16_sm90},
};
extern "C" const uint32_t lkvi_sm90_num_kernels =
    sizeof lkvi_sm90_kernels / sizeof *lkvi_sm90_kernels;
