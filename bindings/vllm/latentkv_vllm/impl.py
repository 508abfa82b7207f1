"""In: one layer's queries, latents and cache. Out: records written, attention read, both by
liblatentkv on vLLM's own memory. One call each a batch; nothing here loops over sequences.

The projections W_UK and W_UV are of this rank's heads alone, so tensor parallelism needs nothing:
each rank has the whole latent cache, as in vLLM."""
from __future__ import annotations

from typing import Any, NamedTuple

import torch
from vllm.config import get_current_vllm_config
from vllm.logger import init_logger
from vllm.model_executor.layers.attention.mla_attention import split_kv_b_proj
from vllm.v1.attention.backend import AttentionType, MLAAttentionImpl

import latentkv

from . import settings
from .device import context, stream, view

logger = init_logger("vllm.latentkv")
_shapes: dict[int, tuple[settings.Settings, int]] = {}


def latent_dim_of(head_size: int) -> tuple[settings.Settings, int]:
    """Settings and latent_dim of the layers with this many values a token. vLLM asks for the spec
    of a layer after the layer has been made."""
    if head_size not in _shapes:
        raise ValueError(f"latentkv: no layer with {head_size} values a token has been made")
    return _shapes[head_size]


def _refuse(unsupported: dict[str, Any]) -> None:
    for name, value in unsupported.items():
        if value:
            raise NotImplementedError(f"latentkv: {name} is {value!r}; need none")


class Scratch(NamedTuple):
    """On the CPU, between latentkv's projections and attend. rows fp32 [2, num_seqs, H, latent]:
    absorbed queries, latent outputs; workspace: of the projections."""

    rows: torch.Tensor
    workspace: latentkv.HostArray


class LatentImpl(MLAAttentionImpl[Any]):
    can_return_lse_for_decode = True
    supports_quant_query_input = False

    def __init__(self, num_heads: int, head_size: int, scale: float, num_kv_heads: int,
                 alibi_slopes: list[float] | None, sliding_window: int | None,
                 kv_cache_dtype: str, logits_soft_cap: float | None, attn_type: str,
                 kv_sharing_target_layer_name: str | None, *, q_lora_rank: int | None,
                 kv_lora_rank: int, qk_nope_head_dim: int, qk_rope_head_dim: int,
                 qk_head_dim: int, v_head_dim: int, kv_b_proj: Any, indexer: Any = None,
                 q_pad_num_heads: int | None = None) -> None:
        config = get_current_vllm_config()
        parallel = config.parallel_config
        _refuse({"alibi_slopes": alibi_slopes, "sliding_window": sliding_window,
                 "logits_soft_cap": logits_soft_cap, "indexer": indexer,
                 "kv_sharing_target_layer_name": kv_sharing_target_layer_name,
                 "attn_type": attn_type if attn_type != AttentionType.DECODER else None,
                 "kv_cache_dtype (the format is latentkv's own setting)":
                     kv_cache_dtype if kv_cache_dtype != "auto" else None,
                 "decode_context_parallel_size": parallel.decode_context_parallel_size - 1,
                 "prefill_context_parallel_size": parallel.prefill_context_parallel_size - 1})
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads, self.kv_cache_dtype = num_kv_heads, kv_cache_dtype
        self.kv_lora_rank, self.q_lora_rank = kv_lora_rank, q_lora_rank
        self.qk_nope_head_dim, self.qk_rope_head_dim = qk_nope_head_dim, qk_rope_head_dim
        self.qk_head_dim, self.v_head_dim = qk_head_dim, v_head_dim
        self.kv_b_proj, self.indexer, self.q_pad_num_heads = kv_b_proj, None, None
        self.settings = settings.of(config)
        self._weights: latentkv.Weights | None = None
        self._pool: tuple[tuple[int, torch.Size], latentkv.Pool] | None = None
        _shapes[head_size] = (self.settings, kv_lora_rank)
        logger.info_once("latentkv: %s records of %d bytes a token and layer; %d heads here.",
                         self.settings.format,
                         self.settings.record_bytes(kv_lora_rank, qk_rope_head_dim), num_heads)

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        """Hands this rank's kv_b_proj, as checkpoints have it, to the library."""
        keys, values = split_kv_b_proj(self.kv_b_proj, act_dtype, self.kv_lora_rank,
                                       self.num_heads, self.qk_nope_head_dim, self.v_head_dim)
        rows = torch.cat((keys, values), dim=-1).flatten(1).T.contiguous()
        model = latentkv.Model(
            num_layers=1, num_heads=self.num_heads, latent_dim=self.kv_lora_rank,
            rope_dim=self.qk_rope_head_dim, nope_dim=self.qk_nope_head_dim,
            v_dim=self.v_head_dim, softmax_scale=self.scale, rope_style="none")
        self._weights = latentkv.Weights(self._context(rows.device), model, view(rows.detach()),
                                         rotate=self.settings.rotate)

    def _context(self, device: torch.device) -> latentkv.Context:
        return context(device, self.settings.threads)

    def pool(self, cache: torch.Tensor) -> latentkv.Pool:
        """The pool over this layer's cache, uint8 [blocks, block size, record bytes]."""
        key = (cache.data_ptr(), cache.shape)
        if self._pool is None or self._pool[0] != key:
            self._pool = (key, self._make_pool(cache))
        return self._pool[1]

    def _make_pool(self, cache: torch.Tensor) -> latentkv.Pool:
        blocks, size, width = cache.shape
        wanted = self.settings.record_bytes(self.kv_lora_rank, self.qk_rope_head_dim)
        if cache.dtype != torch.uint8 or width != wanted or cache.stride()[1:] != (width, 1):
            raise ValueError(f"latentkv: the cache is {cache.dtype} {tuple(cache.shape)} with "
                             f"strides {cache.stride()}; need uint8 records of {wanted} bytes")
        config = self.settings.pool_config(self.kv_lora_rank, self.qk_rope_head_dim, size, blocks,
                                           block_stride_bytes=cache.stride(0))
        length = (blocks - 1) * cache.stride(0) + size * width
        memory = latentkv.View(cache.data_ptr(), "uint8", (length,), device=view(cache).device,
                               owner=cache)
        return latentkv.Pool(self._context(cache.device), config, layer_memory=[memory])

    def do_kv_cache_update(self, kv_c_normed: torch.Tensor, k_pe: torch.Tensor,
                           kv_cache: torch.Tensor, slot_mapping: torch.Tensor,
                           kv_cache_dtype: str, k_scale: torch.Tensor) -> None:
        """Slots of -1 are padding. In the profiling run there is no cache yet."""
        if not kv_cache.numel():
            return
        slots = slot_mapping.flatten()
        rows = slots.numel()
        self.pool(kv_cache).append(
            view(kv_c_normed[:rows]), view(k_pe[:rows].flatten(1)), view(slots),
            checked=self.settings.checked, stream=stream(kv_cache.device))

    def scratch(self, num_seqs: int) -> Scratch:
        """For batches of up to num_seqs decodes, whatever the layer: they run one by one."""
        rows = torch.empty(2, num_seqs, self.num_heads, self.kv_lora_rank, dtype=torch.float32)
        return Scratch(rows, latentkv.host(self._weights.workspace_bytes(num_seqs), "uint8"))

    def forward_mha(self, q: torch.Tensor, kv_c_normed: torch.Tensor, k_pe: torch.Tensor,
                    kv_c_and_k_pe_cache: torch.Tensor, attn_metadata: Any, k_scale: torch.Tensor,
                    output: torch.Tensor, output_scale: torch.Tensor | None = None) -> None:
        """Every row of the batch, q [T, H, nope + rope], from the cache alone: the new tokens are
        in it already."""
        nope, rope = q.split((self.qk_nope_head_dim, self.qk_rope_head_dim), dim=-1)
        out = output.view(-1, self.num_heads, self.v_head_dim)
        scratch = attn_metadata.scratch
        if scratch is None:
            self._attend(attn_metadata, kv_c_and_k_pe_cache, nope, rope, out,
                         weights=self._weights)
            return
        latents, outs = scratch.rows[:, :q.shape[0]]
        self._weights.project_q(view(nope), view(latents), workspace=scratch.workspace)
        self._attend(attn_metadata, kv_c_and_k_pe_cache, latents, rope.float(), outs)
        self._weights.project_out(view(outs), view(out), workspace=scratch.workspace)

    def forward_mqa(self, q: Any, kv_c_and_k_pe_cache: torch.Tensor, attn_metadata: Any,
                    layer: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """A batch of decodes whose queries vLLM has absorbed, [T, H, latent] and [T, H, rope]."""
        if not isinstance(q, tuple):
            q = q.split((self.kv_lora_rank, self.qk_rope_head_dim), dim=-1)
        latent, rope = q
        out = torch.empty(latent.shape, dtype=latent.dtype, device=latent.device)
        if self.settings.rotate:
            latent = latent.contiguous()
            self._rotate(latent)
        self._attend(attn_metadata, kv_c_and_k_pe_cache, latent, rope, out)
        if self.settings.rotate:
            self._rotate(out)
        return out, None

    def _rotate(self, x: torch.Tensor) -> None:
        self._context(x.device).rotate(view(x), stream=stream(x.device))

    def _attend(self, metadata: Any, cache: torch.Tensor, q: torch.Tensor, q_rope: torch.Tensor,
                out: torch.Tensor, **words: Any) -> None:
        metadata.plan.attend(
            view(q), view(q_rope) if q_rope.shape[-1] else None, view(out), scale=self.scale,
            pool=self.pool(cache), checked=self.settings.checked, stream=stream(cache.device),
            **words)
