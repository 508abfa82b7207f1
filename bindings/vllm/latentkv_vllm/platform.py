"""In: vLLM's configuration on a CPU. Out: the same, with what CpuPlatform forbids for MLA, because
its own kernels cannot do it, allowed again where latentkv is the backend."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger
from vllm.platforms.cpu import CpuPlatform
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from . import settings

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = init_logger("vllm.latentkv")
BLOCK_SIZE = 64


class LatentCpuPlatform(CpuPlatform):
    """CpuPlatform where CUSTOM may be chosen for MLA."""

    @classmethod
    def get_attn_backend_cls(cls, selected_backend: Any, attn_selector_config: Any,
                             num_heads: int | None = None) -> str:
        if selected_backend == AttentionBackendEnum.CUSTOM and attn_selector_config.use_mla:
            return AttentionBackendEnum.CUSTOM.get_path()
        return super().get_attn_backend_cls(selected_backend, attn_selector_config, num_heads)

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        model = vllm_config.model_config
        if (model is None or not model.use_mla
                or vllm_config.attention_config.backend != AttentionBackendEnum.CUSTOM):
            super().check_and_update_config(vllm_config)
            return
        settings.of(vllm_config)  # a wrong setting is refused before anything is loaded
        scheduler, cache = vllm_config.scheduler_config, vllm_config.cache_config
        chunked, batched = scheduler.enable_chunked_prefill, scheduler.max_num_batched_tokens
        prefix = cache.enable_prefix_caching
        block = cache.block_size if cache.user_specified_block_size else BLOCK_SIZE
        super().check_and_update_config(vllm_config)
        scheduler.enable_chunked_prefill, cache.enable_prefix_caching = chunked, prefix
        scheduler.max_num_batched_tokens, cache.block_size = batched, block
        # vLLM's CPU operation for RoPE is wrong for queries of three dimensions and several heads,
        # which is what MLA has; its PyTorch form is right.
        ops = vllm_config.compilation_config.custom_ops
        if not any(op.endswith("rotary_embedding") for op in ops):
            ops.append("-rotary_embedding")
        logger.info_once("latentkv: blocks of %d, chunked prefill %s, prefix caching %s.", block,
                         "on" if chunked else "off", "on" if prefix else "off")
