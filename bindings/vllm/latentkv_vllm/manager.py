"""In: what vLLM's scheduler asks of its KV cache manager. Out: the answers of latentkv's block
manager: exact prefix identity instead of hashes, hits inside a block, priorities.

The pool is metadata alone; vLLM's workers hold the records under the same block ids: vLLM's block 0
is its null block, latentkv's block 0 its filler. A running request asks the library only when it
enters a new block; between, a step costs it two comparisons.

When a block may be hit. Prompts admitted in a step are published at once: who hits them in the same
step reads after they are written, layer by layer. What running requests complete is published when
the next step begins, and not at all if they were preempted first. A hit inside a block is a copy
that runs before the step, so it is looked for only while nothing has been published in this
step."""
from __future__ import annotations

import dataclasses
import time
from typing import Any, Sequence

import numpy as np
from vllm.logger import init_logger
from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy
from vllm.v1.metrics.stats import PrefixCacheStats
from vllm.v1.request import RequestStatus

import latentkv

logger = init_logger("vllm.latentkv")
NO_ROOM = (latentkv.NoBlocksError, latentkv.WaitPendingError, latentkv.NeverFitsError,
           latentkv.StaleHitError)
WORTH_A_COPY = 8  # tokens; fewer are sooner computed than their block is copied
USAGE_EVERY_SECONDS = 1.0  # a look at the pool's statistics walks all blocks


@dataclasses.dataclass(slots=True)
class LatentBlocks:
    """Block ids of one group, where vLLM has lists of block objects; of a look-up also its
    ticket."""

    ids: list[int]
    match: Any = None

    @property
    def blocks(self) -> tuple[list[int]]:
        return (self.ids,)

    def __add__(self, other: "LatentBlocks") -> "LatentBlocks":
        return LatentBlocks(self.ids + other.ids)

    def get_block_ids(self, allow_none: bool = False, *,
                      group_ids: Sequence[int] | None = None) -> tuple[list[int], ...] | None:
        if group_ids is not None and 0 not in group_ids:
            return None if allow_none else ()
        return None if allow_none and not self.ids else (self.ids,)

    def new_empty(self) -> "LatentBlocks":
        return LatentBlocks([])


@dataclasses.dataclass(slots=True)
class _Row:
    """A live request. known: tokens that the library was told; due: to be published when the next
    step begins (0: nothing)."""

    seq: latentkv.Sequence
    ids: list[int]
    room: int
    known: int
    published: int
    due: int = 0


class _Fence:
    """What holds the sources of block copies until the step that does them is over."""

    def __init__(self, pool: latentkv.Pool, number: int) -> None:
        self.pool, self.number = pool, number

    def free(self) -> None:
        self.pool.pass_fence(self.number)


class _BlockPool:
    """The few words that the scheduler has with its block pool directly."""

    def __init__(self, pool: latentkv.Pool) -> None:
        self.pool = pool

    def free_blocks(self, blocks: Any) -> None:
        for block in blocks:
            block.free()

    def get_num_free_blocks(self) -> int:
        stats = self.pool.stats
        return stats.blocks_base - stats.blocks_in_use - stats.blocks_pending

    def get_usage(self) -> float:
        stats = self.pool.stats
        return (stats.blocks_in_use + stats.blocks_pending) / max(stats.blocks_base, 1)


class LatentManager:
    """vLLM's KVCacheManager, as far as its scheduler uses it without a KV connector."""

    num_kv_cache_groups = 1
    mamba_shared_prefix_checkpoint = False

    def __init__(self, pool: latentkv.Pool, stock: Any, max_model_len: int, *, partial: bool,
                 by_priority: bool) -> None:
        self.pool, self.block_pool = pool, _BlockPool(pool)
        self.coordinator = stock.coordinator  # asked for block sizes only
        self.kv_cache_config = stock.kv_cache_config
        self.enable_caching, self.log_stats = stock.enable_caching, stock.log_stats
        self.watermark_blocks, self.max_model_len = stock.watermark_blocks, max_model_len
        self.prefix_cache_stats = PrefixCacheStats() if stock.log_stats else None
        self.empty_kv_cache_blocks = LatentBlocks([])
        self._block, self._partial, self._by_priority = (pool.config.tokens_per_block, partial,
                                                         by_priority)
        self._rows: dict[str, _Row] = {}
        self._due: list[_Row] = []
        self._fence = self.preempted_hit_tokens = 0
        self._scheduling = self._published_now = self._copies_due = False
        self._usage, self._usage_at = 0.0, -USAGE_EVERY_SECONDS

    # ---- a step

    def new_step_starts(self) -> None:
        """What ran in the last step is written: publish it."""
        for row in self._due:
            self._publish(row)
        self._due.clear()
        self._scheduling, self._published_now = True, False

    def take_kv_cache_block_copies(self) -> tuple[list[KVCacheBlockCopy], list[_Fence]]:
        """The end of scheduling: copies that hits inside a block need."""
        self._scheduling = False
        if not self._copies_due:
            return [], []
        self._copies_due, self._fence = False, self._fence + 1
        pairs = self.pool.take_copies(self._fence)
        return ([KVCacheBlockCopy(src_block_id=a, dst_block_id=b) for a, b in pairs],
                [_Fence(self.pool, self._fence)])

    def _publish(self, row: _Row) -> None:
        if row.due > row.published:
            row.seq.commit(row.due)
            row.published = row.due
        row.due = 0

    # ---- look up, admit, grow, free

    def prefix_cache_lookup_enabled(self, request: Any) -> bool:
        return (self.enable_caching and not request.skip_reading_prefix_cache
                and request.prompt_embeds is None)

    def _prompt(self, request: Any, match: bool, partial: bool = True) -> latentkv.Prompt:
        return latentkv.Prompt(
            np.array(request.all_token_ids, np.int32), keys_of(request), match=match,
            partial=partial and self._partial and not self._published_now,
            publish=self.enable_caching and request.prompt_embeds is None)

    def get_computed_blocks(self, request: Any) -> tuple[LatentBlocks, int, int]:
        if not self.prefix_cache_lookup_enabled(request):
            return self.empty_kv_cache_blocks, 0, 0
        match = self.pool.match(self._prompt(request, True))
        if 0 < match.partial_hit_tokens < WORTH_A_COPY:
            match = self.pool.match(self._prompt(request, True, partial=False))
        return LatentBlocks([], match), match.hit_tokens, 0

    def allocate_slots(self, request: Any, num_new_tokens: int, num_new_computed_tokens: int = 0,
                       new_computed_blocks: LatentBlocks | None = None,
                       num_lookahead_tokens: int = 0, num_external_computed_tokens: int = 0,
                       delay_cache_blocks: bool = False, num_encoder_tokens: int = 0,
                       full_sequence_must_fit: bool = False, reserved_blocks: int = 0,
                       has_scheduled_reqs: bool = True,
                       skip_zeroing_group_ids: tuple[int, ...] = ()) -> LatentBlocks | None:
        """Blocks for the tokens up to the end of this step; None: there are not enough now."""
        end = request.num_computed_tokens + num_new_computed_tokens + num_new_tokens
        room = min(end + num_lookahead_tokens, self.max_model_len)
        row = self._rows.get(request.request_id)
        try:
            if row is not None:
                new = self._grow(row, request, room)
                self._will_publish(row, request, min(end, request.num_tokens))
                return LatentBlocks(new) if new else self.empty_kv_cache_blocks
            hit = new_computed_blocks.match if new_computed_blocks is not None else None
            waits = has_scheduled_reqs and request.status in (RequestStatus.WAITING,
                                                              RequestStatus.PREEMPTED)
            row = self._admit(request, hit if num_new_computed_tokens else None, room,
                              reserved_blocks + (self.watermark_blocks if waits else 0))
        except NO_ROOM:
            return None
        self._publish_prompt(row, min(end, request.num_tokens))
        return LatentBlocks(row.ids)

    def _admit(self, request: Any, hit: Any, room: int, watermark: int) -> _Row:
        """Takes blocks for the whole prompt, as vLLM does by default, whatever its first chunk."""
        partial = hit is not None and hit.partial_hit_tokens > 0
        seq = self.pool.admit(self._prompt(request, hit is not None, partial), match=hit,
                              room_tokens=room, watermark_blocks=watermark,
                              priority=self._priority(request))
        self._copies_due |= seq.admission.partial_hit_tokens > 0
        ids = seq.table()
        row = _Row(seq, ids, len(ids) * self._block, request.num_tokens, seq.admission.hit_tokens)
        self._rows[request.request_id] = row
        return row

    def _priority(self, request: Any) -> int:
        """vLLM's lower is more important; latentkv's higher is evicted later."""
        return max(0, min(100, 50 - request.priority)) if self._by_priority else 0

    def _will_publish(self, row: _Row, request: Any, upto: int) -> None:
        """When the next step begins, if that completes a block."""
        if not self.enable_caching or upto // self._block <= row.published // self._block:
            return
        self._tell(row, request, upto)
        if not row.due:
            self._due.append(row)
        row.due = upto

    def _publish_prompt(self, row: _Row, upto: int) -> None:
        if self.enable_caching and upto // self._block > row.published // self._block:
            row.due = upto
            self._publish(row)
            self._published_now = True

    def _tell(self, row: _Row, request: Any, upto: int) -> None:
        if upto > row.known:
            row.seq.append(np.array(request.all_token_ids[row.known:upto], np.int32))
            row.known = upto

    def _grow(self, row: _Row, request: Any, end: int) -> list[int]:
        """Room for tokens up to end; the ids of the blocks that it took."""
        if end <= row.room:
            return []
        self._tell(row, request, min(end, request.num_tokens))
        if end > row.known:
            row.seq.reserve(end - row.known)
        before = len(row.ids)
        row.ids = row.seq.table()
        row.room = len(row.ids) * self._block
        return row.ids[before:]

    def free(self, request: Any) -> None:
        row = self._rows.pop(request.request_id, None)
        if row is None:
            return
        if row.due and not self._scheduling:  # it ran: its last blocks are worth keeping
            self._publish(row)
        row.due = 0
        row.seq.free()

    def pop_blocks_for_free(self, request: Any) -> list[latentkv.Sequence]:
        row = self._rows.pop(request.request_id, None)
        return [row.seq] if row is not None else []

    def cache_blocks(self, request: Any, num_computed_tokens: int) -> None:
        row = self._rows.get(request.request_id)
        if row is not None and self.enable_caching:
            self._tell(row, request, num_computed_tokens)
            row.due = num_computed_tokens
            self._publish(row)

    # ---- questions

    def get_blocks(self, request_id: str) -> LatentBlocks:
        row = self._rows.get(request_id)
        return LatentBlocks(row.ids) if row is not None else self.empty_kv_cache_blocks

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        return (self.get_blocks(request_id).ids,)

    def get_block_ids_for_computed_tokens(self, request_id: str,
                                          num_computed_tokens: int) -> tuple[list[int], ...]:
        return (self.get_blocks(request_id).ids[:-(-num_computed_tokens // self._block)],)

    def estimate_cached_tokens(self, request: Any) -> int:
        row = self._rows.get(request.request_id)
        return max(row.published, row.due) // self._block * self._block if row is not None else 0

    @property
    def usage(self) -> float:
        now = time.monotonic()
        if now - self._usage_at >= USAGE_EVERY_SECONDS:
            self._usage, self._usage_at = self.block_pool.get_usage(), now
        return self._usage

    def record_prefix_cache_stats(self, request: Any, num_hits: int) -> None:
        """vLLM's metrics leave out what a request hits when it comes back from preemption."""
        if request.num_preemptions > 0:
            self.preempted_hit_tokens += num_hits
        if self.prefix_cache_stats is not None and self.prefix_cache_lookup_enabled(request):
            self.prefix_cache_stats.record(num_tokens=request.num_tokens, num_hits=num_hits,
                                           preempted=request.num_preemptions > 0)

    def make_prefix_cache_stats(self) -> PrefixCacheStats | None:
        stats = self.prefix_cache_stats
        if stats is not None:
            self.prefix_cache_stats = PrefixCacheStats()
        return stats

    def reset_prefix_cache(self) -> bool:
        try:
            self.pool.reset()
        except latentkv.BusyError as reason:
            logger.warning("latentkv: the prefix cache stays: %s", reason)
            return False
        if self.prefix_cache_stats is not None:
            self.prefix_cache_stats.reset = True
        return True

    # ---- what a single group of full attention never has

    def remove_skipped_blocks(self, *_arguments: Any, **_words: Any) -> None:
        pass

    def take_new_block_ids(self) -> list[int]:
        return []

    def take_boundary_state_offloads(self) -> dict[str, Any]:
        return {}

    def finalize_partial_tail_offloads(self, request: Any) -> list[Any]:
        return []

    def get_num_common_prefix_blocks(self, running_request_id: str) -> list[int]:
        return [0]

    def take_events(self) -> list[Any]:
        return []


def keys_of(request: Any) -> list[latentkv.Key]:
    """What is part of a prompt's identity beside its tokens."""
    keys = []
    if request.lora_request is not None:
        adapter = request.lora_request
        keys.append(latentkv.Key("adapter", f"{adapter.lora_name}:{adapter.lora_int_id}".encode()))
    if request.cache_salt:
        keys.append(latentkv.Key("salt", request.cache_salt.encode()))
    for feature in request.mm_features or ():
        place = feature.mm_position
        keys.append(latentkv.Key("multimodal", feature.identifier.encode(), place.offset,
                                 place.offset + place.length))
    return keys
