"""In: a vLLM batch's metadata. Out: one latentkv plan a batch, updated once and used by every
layer.

A batch is one call a layer whatever is in it: prefills, chunks of them and decodes differ only
in their number of query rows. To vLLM all of its rows are therefore "prefill" rows
(forward_mha), whose queries are not absorbed; latentkv projects. In batches of decodes alone it
may do so apart from attend (decode "batched"), or vLLM's own layer does it and calls forward_mqa
(decode "vllm")."""
from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from vllm.logger import init_logger
from vllm.model_executor.layers.attention.mla_attention import (
    MLACommonBackend, MLACommonMetadata, MLACommonPrefillMetadata)
from vllm.v1.attention.backend import (AttentionCGSupport, AttentionMetadataBuilder,
                                       CommonAttentionMetadata, MultipleOf)

import latentkv

from . import settings
from .device import NAMES, stream, view, workspace
from .impl import LatentImpl, Scratch, latent_dim_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import AttentionSpec

logger = init_logger("vllm.latentkv")
BLOCK_SIZES = (16, 32, 64, 128)
FAULTS_EVERY_STEPS = 256


class LatentBackend(MLACommonBackend):
    """Records of any number of bytes in vLLM's paged cache."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto"]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[LatentImpl]:
        return LatentImpl

    @staticmethod
    def get_builder_cls() -> type["LatentMetadataBuilder"]:
        return LatentMetadataBuilder

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return []  # any: the pool says what it cannot do

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return [MultipleOf(16)]

    @classmethod
    def supports_block_size(cls, block_size: int | None) -> bool:
        return block_size is None or block_size in BLOCK_SIZES

    @classmethod
    def customize_spec(cls, spec: AttentionSpec) -> AttentionSpec:
        """A token's cell is one record, so vLLM's block count follows the format."""
        chosen, latent = latent_dim_of(spec.head_size)
        bytes_each = chosen.record_bytes(latent, spec.head_size - latent)
        return dataclasses.replace(spec, dtype=torch.uint8, state_content_bytes=bytes_each)


@dataclasses.dataclass
class LatentMetadata(MLACommonMetadata):
    """vLLM's metadata, and the plan that has been updated with this batch. scratch: not None where
    the plan attends over absorbed queries, in the dtype of its q_dtype."""

    plan: latentkv.Plan | None = None
    scratch: Scratch | None = None


class LatentMetadataBuilder(AttentionMetadataBuilder[LatentMetadata]):
    """One for a group of layers of one shape. Makes its plans when the first batch comes: only then
    is there a cache."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH

    def __init__(self, kv_cache_spec: AttentionSpec, layer_names: list[str],
                 vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.settings = settings.of(vllm_config)
        self.decode = self.settings.decode
        if self.decode == "auto":
            self.decode = "batched" if device.type == "cpu" else "head"
        self._layer: Any = vllm_config.compilation_config.static_forward_context[layer_names[0]]
        self._plans: dict[str, latentkv.Plan] = {}
        self._workspaces: dict[str, Any] = {}
        self._scratch: Scratch | None = None
        self._steps = self._faults = 0

    def _plan(self, form: str) -> latentkv.Plan:
        if form not in self._plans:
            self._plans[form] = plan = self._make_plan(form)
            self._workspaces[form] = workspace(plan, self.device)
        return self._plans[form]

    def _make_plan(self, form: str) -> latentkv.Plan:
        scheduler, model = self.vllm_config.scheduler_config, self.vllm_config.model_config
        impl: LatentImpl = self._layer.impl
        seqs = scheduler.max_num_seqs
        tokens = max(scheduler.max_num_batched_tokens, seqs) if form == "head" else seqs
        return latentkv.Plan(
            impl.pool(self._layer.kv_cache), num_heads=impl.num_heads, max_seqs=seqs,
            max_tokens=tokens, max_q_len=min(tokens, model.max_model_len),
            max_seq_len=model.max_model_len, q_form=form, out_form=form,
            q_dtype="float32" if self._batched(form) else NAMES[model.dtype],
            nope_dim=impl.qk_nope_head_dim, v_dim=impl.v_head_dim)

    def _scratch_of(self, form: str) -> Scratch | None:
        if self._batched(form) and self._scratch is None:
            self._scratch = self._layer.impl.scratch(self.vllm_config.scheduler_config.max_num_seqs)
        return self._scratch if self._batched(form) else None

    def _batched(self, form: str) -> bool:
        """Between latentkv's own projections and attend nothing is rounded to the model's dtype."""
        return form == "latent" and self.decode == "batched"

    def build(self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata,
              fast_build: bool = False) -> LatentMetadata:
        m = common_attn_metadata
        if m.causal is not True:
            raise NotImplementedError("latentkv attends causally; the batch does not")
        form = "latent" if self.decode != "head" and m.max_query_len == 1 else "head"
        decodes = m.num_reqs if form == "latent" and self.decode == "vllm" else 0
        return LatentMetadata(
            num_reqs=m.num_reqs, max_query_len=m.max_query_len, max_seq_len=m.max_seq_len,
            num_actual_tokens=m.num_actual_tokens, query_start_loc=m.query_start_loc,
            slot_mapping=m.slot_mapping, num_decodes=decodes, num_prefills=m.num_reqs - decodes,
            num_decode_tokens=m.num_actual_tokens if decodes else 0,
            prefill=None if decodes else MLACommonPrefillMetadata(
                block_table=m.block_table_tensor, query_start_loc=m.query_start_loc,
                max_query_len=m.max_query_len),
            decode=m if decodes else None, plan=self._updated(form, m),
            scratch=self._scratch_of(form))

    def _updated(self, form: str, m: CommonAttentionMetadata) -> latentkv.Plan:
        plan = self._plan(form)
        n = m.num_reqs
        batch = latentkv.Batch(view(m.block_table_tensor[:n]), view(m.seq_lens[:n]),
                               view(m.query_start_loc[:n + 1]), m.num_actual_tokens)
        plan.update(batch, workspace=self._workspaces[form], stream=stream(self.device))
        self._watch(plan.pool)
        return plan

    def _watch(self, pool: latentkv.Pool) -> None:
        """On the CPU, where it costs nothing: says when the data had faults."""
        self._steps += 1
        if self.device.type != "cpu" or self._steps % FAULTS_EVERY_STEPS:
            return
        faults = pool.faults()
        if faults.count > self._faults:
            self._faults = faults.count
            logger.warning("latentkv: %d faults in a layer's data so far; the first: %r",
                           faults.count, faults)
