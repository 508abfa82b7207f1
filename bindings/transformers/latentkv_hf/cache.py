"""In: how many new tokens each sequence of a batch has. Out: where their records go, and a plan
that attends over all of them: one step a forward pass, shared by every layer.

The sequences are latentkv's own: beams are forks of one another (blocks are shared until written
to), crop() truncates. Padding is never stored: a padded column has no slot and no row.

    forward pass --> Pool.step --> Step(plan, slots, rows) --> every layer: append, attend"""
from __future__ import annotations

import dataclasses
from typing import Any

import latentkv
import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from .device import NAMES, context, stream, view

BLOCK = 64


class LatentLayer(CacheLayerMixin):
    """What transformers asks of one layer; the data is the cache's."""

    is_sliding = False
    is_croppable = True
    supports_early_init = False

    def __init__(self, cache: "LatentCache") -> None:
        super().__init__()
        self.cache = cache
        self.is_initialized = True

    def lazy_initialization(self, *_states: Any) -> None:
        pass

    def update(self, *_states: Any, **_words: Any) -> Any:
        raise RuntimeError("latentkv_hf: the cache was given to a model without latentkv's "
                           "attention; call latentkv_hf.attach(model) first")

    def get_seq_length(self, *_ignored: Any) -> int:
        return self.cache.columns

    def get_mask_sizes(self, query_length: Any, *_ignored: Any) -> tuple[int, int]:
        count = query_length if isinstance(query_length, int) else query_length.shape[0]
        return self.cache.columns + count, 0

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:
        return -1


@dataclasses.dataclass
class Step:
    """One forward pass. rows: of the flattened [batch * columns], those that hold a token; None:
    all. slots int64 [T], on the device."""

    plan: latentkv.Plan
    slots: torch.Tensor
    rows: torch.Tensor | None


class LatentCache(Cache):
    """format      "bf16", "fp8", "int8", "nvfp4"
    max_tokens  that the pool can hold, of all sequences together; None: the model's positions
    rotate      latents are stored after a Hadamard rotation; attach() must have been told so too"""

    def __init__(self, model: Any, *, format: str = "int8", max_tokens: int | None = None,
                 max_sequences: int = 64, rotate: bool = False) -> None:
        config = model.config
        self.device, self.dtype = model.device, model.dtype
        self._block_manager(config, format, max_tokens or config.max_position_embeddings,
                            max_sequences, rotate)
        attention = model.model.layers[0].self_attn
        self._heads = attention.latentkv_heads
        self._dims = (config.qk_nope_head_dim, config.v_head_dim)
        self.columns = 0
        """Columns seen, padding included, as transformers counts."""
        self._sequences: list[latentkv.Sequence] = []
        self._seen: list[torch.Tensor] = []  # bool [batch, columns] of each pass, where padded
        self._plans: dict[tuple[int, int, int], tuple[latentkv.Plan, Any]] = {}
        self._step: Step | None = None
        super().__init__(layers=[LatentLayer(self) for _ in range(config.num_hidden_layers)])

    def _block_manager(self, config: Any, format: str, max_tokens: int, max_sequences: int,
                       rotate: bool) -> None:
        self.pool = latentkv.Pool(
            context(self.device), format=format, latent_dim=config.kv_lora_rank,
            rope_dim=config.qk_rope_head_dim, rope_style="half", rotate=rotate,
            num_layers=config.num_hidden_layers, tokens_per_block=BLOCK, max_seqs=max_sequences * 2,
            num_blocks=(max_tokens + BLOCK - 1) // BLOCK + max_sequences, cache=False)

    # ---- a forward pass

    def step(self, layer: int, batch: int, columns: int, mask: torch.Tensor | None) -> Step:
        """The step of this pass: made by its first layer. mask: bool [batch, all columns], False
        for padding; None: there is none."""
        if layer == 0:
            self._step = self._begin(batch, columns, mask)
        if self._step is None:
            raise RuntimeError("latentkv_hf: a pass must begin with the model's first layer")
        return self._step

    def _begin(self, batch: int, columns: int, mask: torch.Tensor | None) -> Step:
        real, counts = None, [columns] * batch
        if mask is not None:
            real = mask[:, -columns:]
            counts = real.sum(dim=1).tolist()
            self._seen.append(real.cpu())
        else:
            self._seen.append(torch.ones(batch, columns, dtype=torch.bool))
        self.columns += columns
        host = self._grow(counts)
        self.pool.apply_copies(stream=stream(self.device))
        plan, space = self._plan(batch, sum(counts), max(counts))
        plan.update(self._batch(host), workspace=space, stream=stream(self.device))
        rows = None if real is None or bool(real.all()) else real.flatten().nonzero().flatten()
        return Step(plan, self._on_device(host.slots, host.num_tokens), rows)

    def _grow(self, counts: list[int]) -> latentkv.Step:
        """Blocks and slots for counts[i] more tokens of sequence i."""
        begin = [len(seq) for seq in self._sequences] or [0] * len(counts)
        new = list(counts)
        if not self._sequences:
            self._sequences = [self._admit(count) for count in counts]
            new = [0] * len(counts)
        if len(counts) != len(self._sequences):
            raise ValueError(f"latentkv_hf: a batch of {len(counts)} rows; the cache has "
                             f"{len(self._sequences)}")
        return self.pool.step(self._sequences, num_new=new, tokens=np.zeros(sum(new), np.int32),
                              row_begin=begin, num_rows=counts,
                              table_width=self._width(begin, counts))

    def _admit(self, count: int) -> latentkv.Sequence:
        # Which tokens they are does not matter: nothing is published, nothing can be hit.
        return self.pool.admit(latentkv.Prompt(np.zeros(count, np.int32), match=False,
                                               publish=False))

    @staticmethod
    def _width(begin: list[int], counts: list[int]) -> int:
        return max(b + n for b, n in zip(begin, counts)) // BLOCK + 2

    def _on_device(self, array: Any, count: int | None = None) -> torch.Tensor:
        found = torch.from_numpy(np.asarray(array))
        return found[:count].to(self.device) if count is not None else found.to(self.device)

    def _batch(self, host: latentkv.Step) -> latentkv.Batch:
        table, lens, rows = (self._on_device(array) for array in
                             (host.block_table, host.seq_lens, host.q_indptr))
        return latentkv.Batch(view(table), view(lens), view(rows), host.num_tokens)

    def _plan(self, batch: int, tokens: int, longest: int) -> tuple[latentkv.Plan, Any]:
        """A plan whose maxima are the next powers of two."""
        length = max(len(seq) for seq in self._sequences)
        key = (batch, *(1 << (n - 1).bit_length() for n in (tokens, length)))
        if key not in self._plans:
            nope, v_dim = self._dims
            plan = latentkv.Plan(
                self.pool, num_heads=self._heads, max_seqs=batch, max_tokens=key[1],
                max_q_len=key[1], max_seq_len=key[2], q_dtype=NAMES[self.dtype], q_form="head",
                out_form="head", nope_dim=nope, v_dim=v_dim)
            space = None if self.device.type == "cpu" else torch.empty(
                plan.workspace_bytes, dtype=torch.uint8, device=self.device)
            self._plans[key] = (plan, space)
        return self._plans[key]

    # ---- what generate() asks of a cache

    def reset(self) -> None:
        """Empty again."""
        for seq in self._sequences:
            seq.free()
        self._sequences, self._seen, self.columns, self._step = [], [], 0, None

    def _select(self, indices: list[int]) -> None:
        kept = [self._sequences[i].fork() for i in indices]
        for seq in self._sequences:
            seq.free()
        self._sequences = kept
        self._seen = [seen[indices] for seen in self._seen]

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self._select(beam_idx.tolist())

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._select(torch.arange(len(self._sequences))[indices.cpu()].tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._select([i for i in range(len(self._sequences)) for _ in range(repeats)])

    def crop(self, tokens_to_remove: int) -> None:
        """Drops the last columns: their number as a negative one, or what is to be left."""
        drop = -tokens_to_remove if tokens_to_remove <= 0 else self.columns - tokens_to_remove
        if drop <= 0:
            return
        seen = torch.cat(self._seen, dim=1)
        for seq, count in zip(self._sequences, seen[:, -drop:].sum(dim=1).tolist()):
            seq.truncate(len(seq) - count)
        self._seen, self.columns = [seen[:, :-drop]], self.columns - drop
