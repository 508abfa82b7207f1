/* Written by tests/abi/regenerate from a public header: every constant, every struct's size and
 * offsets on a 64-bit machine. It compiles, or the ABI has changed. */
#include <stddef.h>
#include "latentkv/moe_cache.h"

#define FIELD(type, name, offset, bytes)                                                           \
    _Static_assert(offsetof(type, name) == offset && sizeof(((type *)0)->name) == bytes,           \
                   #type "." #name)

_Static_assert(LKV_ROUTER_TRACE == 1, "LKV_ROUTER_TRACE");
_Static_assert(LKV_ROUTER_V3 == 2, "LKV_ROUTER_V3");
_Static_assert(LKV_ROUTER_NORMALISE == 1, "LKV_ROUTER_NORMALISE");
_Static_assert(LKV_GATE_MEAN == 0, "LKV_GATE_MEAN");
_Static_assert(LKV_GATE_MAX == 1, "LKV_GATE_MAX");
_Static_assert(LKV_FALLBACK_NONE == 0, "LKV_FALLBACK_NONE");
_Static_assert(LKV_FALLBACK_FNV1A == 1, "LKV_FALLBACK_FNV1A");
_Static_assert(LKV_FALLBACK_LCG == 2, "LKV_FALLBACK_LCG");
_Static_assert(LKV_FALLBACK_BUDDY == 3, "LKV_FALLBACK_BUDDY");
_Static_assert(LKV_FALLBACK_SHARED == 4, "LKV_FALLBACK_SHARED");
_Static_assert(LKV_COMBINE_ADD == 1, "LKV_COMBINE_ADD");
_Static_assert(LKV_COMBINE_SUBSTITUTE == 2, "LKV_COMBINE_SUBSTITUTE");
_Static_assert(LKV_COMBINE_STAT_ONLY == 3, "LKV_COMBINE_STAT_ONLY");
_Static_assert(sizeof(lkv_router_desc) == 88, "lkv_router_desc");
FIELD(lkv_router_desc, size, 0, 8);
FIELD(lkv_router_desc, kind, 8, 4);
FIELD(lkv_router_desc, flags, 12, 4);
FIELD(lkv_router_desc, hidden_dim, 16, 4);
FIELD(lkv_router_desc, num_experts, 20, 4);
FIELD(lkv_router_desc, top_k, 24, 4);
FIELD(lkv_router_desc, num_groups, 28, 4);
FIELD(lkv_router_desc, topk_groups, 32, 4);
FIELD(lkv_router_desc, trace_dim, 36, 4);
FIELD(lkv_router_desc, temperature, 40, 8);
FIELD(lkv_router_desc, routed_scale, 48, 8);
FIELD(lkv_router_desc, trace_weight, 56, 8);
FIELD(lkv_router_desc, trace_bias, 64, 8);
FIELD(lkv_router_desc, weight, 72, 8);
FIELD(lkv_router_desc, bias, 80, 8);
_Static_assert(sizeof(lkv_route_args) == 72, "lkv_route_args");
FIELD(lkv_route_args, size, 0, 8);
FIELD(lkv_route_args, x, 8, 8);
FIELD(lkv_route_args, logits, 16, 8);
FIELD(lkv_route_args, experts, 24, 8);
FIELD(lkv_route_args, weights, 32, 8);
FIELD(lkv_route_args, entropy, 40, 8);
FIELD(lkv_route_args, load, 48, 8);
FIELD(lkv_route_args, num_tokens, 56, 8);
FIELD(lkv_route_args, layer, 64, 4);
FIELD(lkv_route_args, flags, 68, 4);
_Static_assert(sizeof(lkv_gate_desc) == 48, "lkv_gate_desc");
FIELD(lkv_gate_desc, size, 0, 8);
FIELD(lkv_gate_desc, reduce, 8, 4);
FIELD(lkv_gate_desc, window_steps, 12, 4);
FIELD(lkv_gate_desc, threshold, 16, 8);
FIELD(lkv_gate_desc, stddevs, 24, 8);
FIELD(lkv_gate_desc, hysteresis, 32, 8);
FIELD(lkv_gate_desc, frozen, 40, 4);
FIELD(lkv_gate_desc, flags, 44, 4);
_Static_assert(sizeof(lkv_gate_args) == 56, "lkv_gate_args");
FIELD(lkv_gate_args, size, 0, 8);
FIELD(lkv_gate_args, entropy, 8, 8);
FIELD(lkv_gate_args, active, 16, 8);
FIELD(lkv_gate_args, triggered, 24, 8);
FIELD(lkv_gate_args, reduced, 32, 8);
FIELD(lkv_gate_args, num_triggered, 40, 8);
FIELD(lkv_gate_args, num_skipped, 48, 8);
_Static_assert(sizeof(lkv_gate_state) == 88, "lkv_gate_state");
FIELD(lkv_gate_state, size, 0, 8);
FIELD(lkv_gate_state, steps, 8, 8);
FIELD(lkv_gate_state, count, 16, 8);
FIELD(lkv_gate_state, total, 24, 8);
FIELD(lkv_gate_state, triggered, 32, 8);
FIELD(lkv_gate_state, skipped, 40, 8);
FIELD(lkv_gate_state, windows, 48, 8);
FIELD(lkv_gate_state, mean, 56, 8);
FIELD(lkv_gate_state, m2, 64, 8);
FIELD(lkv_gate_state, threshold, 72, 8);
FIELD(lkv_gate_state, frozen, 80, 4);
FIELD(lkv_gate_state, reserved, 84, 4);
_Static_assert(sizeof(lkv_fallback_args) == 88, "lkv_fallback_args");
FIELD(lkv_fallback_args, size, 0, 8);
FIELD(lkv_fallback_args, policy, 8, 4);
FIELD(lkv_fallback_args, num_experts, 12, 4);
FIELD(lkv_fallback_args, primary, 16, 8);
FIELD(lkv_fallback_args, triggered, 24, 8);
FIELD(lkv_fallback_args, buddy, 32, 8);
FIELD(lkv_fallback_args, resident, 40, 8);
FIELD(lkv_fallback_args, fallback, 48, 8);
FIELD(lkv_fallback_args, num_tokens, 56, 8);
FIELD(lkv_fallback_args, shared_expert, 64, 4);
FIELD(lkv_fallback_args, flags, 68, 4);
FIELD(lkv_fallback_args, num_chosen, 72, 8);
FIELD(lkv_fallback_args, num_absent, 80, 8);
_Static_assert(sizeof(lkv_combine_args) == 64, "lkv_combine_args");
FIELD(lkv_combine_args, size, 0, 8);
FIELD(lkv_combine_args, primary, 8, 8);
FIELD(lkv_combine_args, fallback, 16, 8);
FIELD(lkv_combine_args, out, 24, 8);
FIELD(lkv_combine_args, chosen, 32, 8);
FIELD(lkv_combine_args, weight, 40, 8);
FIELD(lkv_combine_args, mode, 48, 4);
FIELD(lkv_combine_args, flags, 52, 4);
FIELD(lkv_combine_args, num_combined, 56, 8);
_Static_assert(sizeof(lkv_token_scale_args) == 64, "lkv_token_scale_args");
FIELD(lkv_token_scale_args, size, 0, 8);
FIELD(lkv_token_scale_args, x, 8, 8);
FIELD(lkv_token_scale_args, scale, 16, 8);
FIELD(lkv_token_scale_args, low, 24, 8);
FIELD(lkv_token_scale_args, high, 32, 8);
FIELD(lkv_token_scale_args, decay, 40, 8);
FIELD(lkv_token_scale_args, mean, 48, 8);
FIELD(lkv_token_scale_args, count, 56, 8);

int main(void)
{
    return 0;
}
