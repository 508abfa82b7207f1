"""In: a DeepSeek-V3 attention module of transformers. Out: the same module with latentkv's
attention: its own projections, norms and RoPE, then append and attend in place of the expanded keys
and values.

The module's forward is replaced, not its class: weights, state dict and names stay as they are."""
from __future__ import annotations

import types
from typing import Any

import latentkv
import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek

from .cache import LatentCache
from .device import context, stream, view

NAME = "latentkv"


def attach(model: Any, *, rotate: bool = False) -> Any:
    """Gives every MLA module of the model latentkv's attention; returns the model. It then needs a
    LatentCache as past_key_values. rotate: for caches that rotate. Again after weights changed."""
    AttentionInterface.register(NAME, _without_cache)
    AttentionMaskInterface.register(NAME, _mask)
    modules = [m for m in model.modules() if isinstance(m, deepseek.DeepseekV3Attention)]
    if not modules:
        raise TypeError(f"latentkv_hf: {type(model).__name__} has no DeepseekV3Attention")
    for module in modules:
        _attach_module(module, rotate)
    model.set_attn_implementation(NAME)
    return model


def _attach_module(module: Any, rotate: bool) -> None:
    weight = module.kv_b_proj.weight.detach()
    heads = weight.shape[0] // (module.qk_nope_head_dim + module.v_head_dim)  # of this rank
    model = latentkv.Model(
        num_layers=1, num_heads=heads, latent_dim=module.kv_lora_rank,
        rope_dim=module.qk_rope_head_dim, nope_dim=module.qk_nope_head_dim,
        v_dim=module.v_head_dim, softmax_scale=module.scaling, rope_style="half")
    module.latentkv_heads = heads
    module.latentkv_weights = latentkv.Weights(context(weight.device), model,
                                               view(weight.contiguous()), rotate=rotate)
    module.forward = types.MethodType(_forward, module)


def _without_cache(*_arguments: Any, **_words: Any) -> Any:
    raise RuntimeError("latentkv_hf: this model is not attached; call latentkv_hf.attach(model)")


def _mask(*_arguments: Any, attention_mask: torch.Tensor | None = None, **_words: Any) -> Any:
    """Causality is attend's own; what is left of a mask is which columns are padding."""
    if attention_mask is None or bool(attention_mask.all()):
        return None
    return attention_mask.bool()


def _queries(module: Any, hidden: torch.Tensor) -> torch.Tensor:
    if module.q_lora_rank is None:
        return module.q_proj(hidden)
    return module.q_b_proj(module.q_a_layernorm(module.q_a_proj(hidden)))


def _forward(self: Any, hidden_states: torch.Tensor, position_embeddings: Any,
             attention_mask: torch.Tensor | None = None, past_key_values: Any = None,
             **_words: Any) -> tuple[torch.Tensor, None]:
    if not isinstance(past_key_values, LatentCache):
        raise TypeError(f"latentkv_hf: past_key_values is {type(past_key_values).__name__}; need a "
                        "LatentCache, and use_cache=True")
    batch, columns = hidden_states.shape[:2]
    heads, rope, nope = self.latentkv_heads, self.qk_rope_head_dim, self.qk_nope_head_dim
    q = _queries(self, hidden_states).view(batch, columns, heads, nope + rope)
    latent, k_rope = self.kv_a_proj_with_mqa(hidden_states).split((self.kv_lora_rank, rope), dim=-1)
    latent = self.kv_a_layernorm(latent)
    turn = (deepseek.apply_rotary_pos_emb_interleave if self.config.rope_interleave
            else deepseek.apply_rotary_pos_emb)
    q_rope, k_rope = turn(q[..., nope:].transpose(1, 2), k_rope[:, None], *position_embeddings)
    step = past_key_values.step(self.layer_idx, batch, columns, attention_mask)
    out = _attend(self, past_key_values, step, q[..., :nope].flatten(0, 1),
                  q_rope.transpose(1, 2).flatten(0, 1), latent.flatten(0, 1),
                  k_rope[:, 0].flatten(0, 1))
    return self.o_proj(out.view(batch, columns, heads * self.v_head_dim)), None


def _attend(module: Any, cache: LatentCache, step: Any, q: torch.Tensor, q_rope: torch.Tensor,
            latent: torch.Tensor, k_rope: torch.Tensor) -> torch.Tensor:
    """Writes the rows that hold tokens and attends for them; padded rows give zeros."""
    rows, layer, here = step.rows, module.layer_idx, stream(q.device)
    total = q.shape[0]
    if rows is not None:
        q, q_rope, latent, k_rope = (x[rows] for x in (q, q_rope, latent, k_rope))
    out = torch.empty(q.shape[0], module.latentkv_heads, module.v_head_dim, dtype=q.dtype,
                      device=q.device)
    cache.pool.append(view(latent), view(k_rope), view(step.slots), layer=layer, stream=here)
    step.plan.attend(view(q), view(q_rope), view(out), scale=module.scaling, layer=layer,
                     weights=module.latentkv_weights, stream=here)
    if rows is None:
        return out
    whole = out.new_zeros(total, *out.shape[1:])
    whole[rows] = out
    return whole
