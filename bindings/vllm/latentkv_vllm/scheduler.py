"""--scheduler-cls latentkv_vllm.scheduler.LatentScheduler: vLLM's scheduler with latentkv's block
manager in place of its KV cache manager. vLLM calls scheduler_cls no public interface: tried with
0.32.

What cannot be kept from outside is refused by name when the engine starts, see _refuse()."""
from __future__ import annotations

from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.sched.interface import SchedulerInterface
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec

import latentkv

from . import settings
from .backend import BLOCK_SIZES
from .manager import LatentManager

logger = init_logger("vllm.latentkv")


def _refuse(config: Any, kv_cache: Any) -> None:
    """Parts of vLLM's contract with its manager that latentkv's cannot meet from outside."""
    groups = kv_cache.kv_cache_groups
    spec = groups[0].kv_cache_spec if groups else None
    events = getattr(config.kv_events_config, "enable_kv_cache_events", False)
    for wrong, sentence in (
            (len(groups) != 1 or not isinstance(spec, FullAttentionSpec),
             "the model's cache is not one group of full attention; sliding windows, Mamba states "
             "and hybrids need managers of their own"),
            (spec is not None and spec.block_size not in BLOCK_SIZES,
             f"block_size is {getattr(spec, 'block_size', None)}; need one of {BLOCK_SIZES}"),
            (config.kv_transfer_config is not None,
             "kv_transfer_config is set; a connector writes into blocks that the manager would "
             "have to hold unpublished"),
            (config.speculative_config is not None,
             "speculative_config is set; EAGLE drops the last block of a hit, which a match by "
             "tokens cannot express"),
            (config.scheduler_config.async_scheduling,
             "async_scheduling is on; tokens must be known when their blocks are published"),
            (config.parallel_config.decode_context_parallel_size > 1,
             "decode_context_parallel_size is above 1; blocks would hold every other token"),
            (events, "kv_events_config asks for events; vLLM's name blocks by its own hashes "
                     "(latentkv has events of its own: lkv_pool_events)")):
        if wrong:
            raise NotImplementedError(f"latentkv's scheduler: {sentence}")


class LatentScheduler(Scheduler, SchedulerInterface):
    """Exact prefix identity, hits inside a block, priorities in eviction."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any, structured_output_manager: Any,
                 block_size: int, hash_block_size: int | None = None, **words: Any) -> None:
        _refuse(vllm_config, kv_cache_config)
        super().__init__(vllm_config=vllm_config, kv_cache_config=kv_cache_config,
                         structured_output_manager=structured_output_manager,
                         block_size=block_size, hash_block_size=hash_block_size, **words)
        chosen = settings.of(vllm_config)
        config = latentkv.PoolConfig(
            format=chosen.format, latent_dim=16, rope_dim=0, metadata_only=True,
            num_blocks=kv_cache_config.num_blocks - 1, tokens_per_block=block_size,
            max_seqs=self.max_num_running_reqs + 1, fallback_headroom=chosen.headroom)
        self.latentkv_context = latentkv.Context("cpu", num_threads=1)
        self.kv_cache_manager = LatentManager(  # type: ignore[assignment]
            latentkv.Pool(self.latentkv_context, config), self.kv_cache_manager,
            self.max_model_len, partial=chosen.partial,
            by_priority=vllm_config.scheduler_config.policy == "priority")
        logger.info("latentkv: its block manager schedules %d blocks of %d tokens.",
                    config.num_blocks, block_size)

    def shutdown(self) -> None:
        pool = self.kv_cache_manager.pool
        pool.check()
        stats = pool.stats
        logger.info("latentkv: pool check clean; %d of %d prompt tokens hit, %d of them inside a "
                    "block, %d by preempted requests; %d sequences live.", stats.hit_tokens,
                    stats.prompt_tokens, stats.partial_hit_tokens,
                    self.kv_cache_manager.preempted_hit_tokens, stats.seqs_live)
        super().shutdown()
