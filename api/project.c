/* In: queries or attended latents of a caller. Out: checked parameters to the backend's products
 * with W_UK and W_UV. */
#include "api/check.h"
#include "api/objects.h"
#include "core/status.h"

#define MAX_TOKENS ((uint64_t)INT32_MAX)

static lkv_status params_of(const lkv_weights *w, const lkv_tensor *in, const lkv_tensor *out,
                            uint32_t to_value, struct lkvi_project_params *p)
{
    const struct lkvi_weights_view *v = &w->view;
    struct lkvi_want from = {"q_nope", LKVI_FLOATS, 3, {-1, v->num_heads, v->nope_dim}};
    struct lkvi_want to = {"q_latent", LKVI_FLOATS, 3, {-1, v->num_heads, v->latent_dim}};
    if (to_value) {
        from.name = "o_latent";
        from.shape[2] = v->value_latent;
        to.name = "out";
        to.shape[2] = v->v_dim;
    }
    LKV_TRY(lkvi_tensor_check(w->ctx, in, &from));
    to.shape[0] = in->shape[0];
    LKV_TRY(lkvi_tensor_check(w->ctx, out, &to));
    *p = (struct lkvi_project_params){.weights = *v,
                                      .num_tokens = (uint64_t)in->shape[0],
                                      .in = lkvi_heads_of(in),
                                      .out = lkvi_heads_of(out),
                                      .to_value = to_value};
    return LKV_OK;
}

static lkv_status project_run(const lkv_weights *w, const struct lkvi_project_params *p,
                              void *workspace, size_t workspace_bytes, void *stream)
{
    const struct lkvi_backend *backend = w->ctx->backend;
    size_t need;
    if (!p->num_tokens)
        return LKV_OK;
    LKV_TRY(backend->project_scratch(w->ctx->backend_state, p, &need));
    LKV_TRY(lkvi_workspace_check(workspace, workspace_bytes, need));
    return backend->project(w->ctx->backend_state, p, workspace, workspace_bytes, stream);
}

lkv_status lkv_project_q(const lkv_weights *weights, const lkv_tensor *q_nope,
                         const lkv_tensor *q_latent, void *workspace, size_t workspace_bytes,
                         void *stream)
{
    struct lkvi_project_params p;
    LKV_TRY(lkvi_weights_live(weights));
    LKV_TRY(lkvi_stream_check(weights->ctx, stream));
    LKV_TRY(params_of(weights, q_nope, q_latent, 0, &p));
    return project_run(weights, &p, workspace, workspace_bytes, stream);
}

lkv_status lkv_project_out(const lkv_weights *weights, const lkv_tensor *o_latent,
                           const lkv_tensor *out, void *workspace, size_t workspace_bytes,
                           void *stream)
{
    struct lkvi_project_params p;
    LKV_TRY(lkvi_weights_live(weights));
    LKV_TRY(lkvi_stream_check(weights->ctx, stream));
    LKV_TRY(params_of(weights, o_latent, out, 1, &p));
    return project_run(weights, &p, workspace, workspace_bytes, stream);
}

/* Scratch may depend on the dtypes of the call: the largest is asked for. */
lkv_status lkv_project_workspace(const lkv_weights *weights, uint64_t num_tokens, size_t *bytes)
{
    static const uint32_t dtypes[] = {LKV_DTYPE_F32, LKV_DTYPE_F16, LKV_DTYPE_BF16};
    size_t most = 0;
    LKV_TRY(lkvi_weights_live(weights));
    LKV_TRY(lkvi_array_check(bytes, 1, sizeof *bytes, "bytes"));
    if (num_tokens > MAX_TOKENS)
        return lkvi_fail(LKV_E_INVALID, "num_tokens is %llu; need at most %llu",
                         (unsigned long long)num_tokens, (unsigned long long)MAX_TOKENS);
    for (uint32_t i = 0; i < 18; i++) {
        struct lkvi_project_params p = {.weights = weights->view,
                                        .num_tokens = num_tokens,
                                        .in.dtype = dtypes[i / 2 % 3],
                                        .out.dtype = dtypes[i / 6],
                                        .to_value = i % 2};
        size_t need = 0;
        LKV_TRY(weights->ctx->backend->project_scratch(weights->ctx->backend_state, &p, &need));
        most = need > most ? need : most;
    }
    *bytes = most;
    return LKV_OK;
}
