"""Plans: how batches of one shape run. A Batch says which sequences; a Plan attends."""
from __future__ import annotations

import ctypes
from typing import Any

from . import _abi, _errors, _handle
from ._arguments import (Array, choice, device_array, stream as stream_of, tensor,
                         workspace as workspace_of)
from ._library import call
from .pool import Pool
from .sequence import Step
from .tensor import DTYPES, ArrayLike, view
from .weights import Weights

Q_FORMS = {"latent": _abi.LKV_Q_LATENT, "head": _abi.LKV_Q_HEAD}
OUT_FORMS = {"latent": _abi.LKV_OUT_LATENT, "head": _abi.LKV_OUT_HEAD}


class Batch:
    """Device arrays of one batch. It keeps them.

    block_table  int32 [num_seqs, width]; rows may lie apart; entries past seq_len are never read
    seq_lens     int32 [num_seqs], after this call's tokens; 0: padding row
    q_indptr     int32 [num_seqs + 1]: rows of sequence i are q_indptr[i] .. ; None: one row each
    num_tokens   T = q_indptr[num_seqs]; needed with q_indptr on a GPU"""

    def __init__(self, block_table: ArrayLike, seq_lens: ArrayLike,
                 q_indptr: ArrayLike | None = None, num_tokens: int | None = None) -> None:
        table = view(block_table)
        if table.dtype != "int32" or len(table.shape) != 2 or (
                table.shape[0] and table.strides[1] != 1):
            raise _errors.invalid(f"block_table is {table!r}; need int32 [num_seqs, width]")
        count, width = table.shape
        where = table.device
        lens = device_array("seq_lens", seq_lens, "int32", where, count)
        rows = device_array("q_indptr", q_indptr, "int32", where, count + 1)
        self.device, self._keep = where, (table, lens, rows)
        self.num_seqs, self.num_tokens = count, _num_tokens(rows, count, where, num_tokens)
        self.struct = _abi.lkv_batch(
            num_seqs=count, max_blocks_per_seq=width, block_table=table.address,
            seq_lens=lens.address, q_indptr=rows.address, num_tokens=self.num_tokens,
            block_table_stride=table.strides[0] if count > 1 else width)

    @classmethod
    def of(cls, step: Step) -> "Batch":
        """The batch of a step, on the host (a GPU needs copies of its arrays)."""
        batch = cls(step.block_table, step.seq_lens, step.q_indptr, step.num_tokens)
        batch.struct.num_seqs = batch.num_seqs = step.num_seqs
        return batch


def _num_tokens(rows: Array, count: int, where: int, given: int | None) -> int:
    if given is not None:
        return given
    if rows.address is None:
        return count
    if where >= 0:
        raise _errors.invalid("num_tokens is missing: q_indptr is on a GPU and is not read here")
    return int((ctypes.c_int32 * (count + 1)).from_address(rows.address)[count])


class Plan(_handle.Object):
    """Belongs to one thread and one stream at a time. Maxima are over all batches to come.

    num_heads            H
    max_seqs, max_tokens sequences and query rows of a batch; max_tokens 0: max_seqs * max_q_len
    max_q_len            rows of one sequence
    max_seq_len          tokens of one sequence
    q_dtype, out_dtype   "float32", "float16", "bfloat16"; out_dtype None: q_dtype
    q_form, out_form     "latent" [T, H, L], or "head": q [T, H, nope], out [T, H, v] (weights)
    absorb_threshold     query rows from which the decompressed path runs; 0: 256
    batch_invariant      results are bitwise independent of the rest of the batch
    workspace            workspace_bytes of the device, 256-byte aligned; on the CPU None makes it,
                         on a GPU it may be given to update() instead"""

    def __init__(self, pool: Pool, *, num_heads: int, max_seqs: int, max_seq_len: int,
                 max_tokens: int = 0, max_q_len: int = 1, max_blocks_per_seq: int = 0,
                 q_dtype: str = "float32", out_dtype: str | None = None, q_form: str = "latent",
                 out_form: str = "latent", nope_dim: int = 0, v_dim: int = 0,
                 absorb_threshold: int = 0, batch_invariant: bool = False,
                 workspace: ArrayLike | None = None) -> None:
        self.pool, self.device = pool, pool.device
        desc = _abi.lkv_plan_desc(
            pool=pool.handle, num_heads=num_heads, max_seqs=max_seqs,
            max_tokens=max_tokens or max_seqs * max_q_len, max_q_len=max_q_len,
            max_seq_len=max_seq_len, max_blocks_per_seq=max_blocks_per_seq,
            q_dtype=choice("q_dtype", q_dtype, DTYPES),
            out_dtype=choice("out_dtype", out_dtype or q_dtype, DTYPES),
            q_form=choice("q_form", q_form, Q_FORMS),
            out_form=choice("out_form", out_form, OUT_FORMS), absorb_threshold=absorb_threshold,
            flags=_abi.LKV_PLAN_BATCH_INVARIANT * batch_invariant, nope_dim=nope_dim, v_dim=v_dim)
        self._create(call.lkv_plan_create, call.lkv_plan_release, pool.context.handle, desc)
        found = ctypes.c_size_t()
        call.lkv_plan_workspace(self.handle, ctypes.byref(found))
        self.workspace_bytes: int = found.value
        self._workspace: Array | None = None
        if workspace is not None:
            self._workspace = workspace_of(workspace, self.workspace_bytes, self.device)
        self._batch: Batch | None = None

    def update(self, batch: Batch | Step, *, workspace: ArrayLike | None = None,
               stream: Any = None) -> Batch:
        """Splits the batch's work from the device-resident lengths. One update serves every
        layer's attend with the same arrays. On a GPU: enqueue only, safe inside graph capture."""
        given = Batch.of(batch) if isinstance(batch, Step) else batch
        if given.device != self.device:
            raise _errors.invalid(f"the batch is on device {given.device}; the plan on "
                                  f"{self.device}")
        if workspace is not None or self._workspace is None:
            self._workspace = workspace_of(workspace, self.workspace_bytes, self.device)
        call.lkv_plan_update(self.handle, given.struct, self._workspace.address,
                             self._workspace.length, stream_of(stream))
        self._batch = given
        return given

    def attend(self, q: ArrayLike, q_rope: ArrayLike | None, out: ArrayLike, *, scale: float,
               layer: int = 0, lse: ArrayLike | None = None, entropy: ArrayLike | None = None,
               bias: ArrayLike | None = None, weights: Weights | None = None,
               pool: Pool | None = None, checked: bool = True, stream: Any = None) -> None:
        """Attention of the last update()'s batch over one layer.

        q [T, H, L] or [T, H, nope]; q_rope [T, H, R] after RoPE; out [T, H, L] or [T, H, v];
        lse, entropy fp32 [T, H] (natural log, nats); bias fp32 [num_seqs, >= longest seq_len].
        Row j of a sequence sees keys 0 .. seq_len - q_len + j. checked: on the CPU a fault of this
        call is InvalidError."""
        if self._batch is None or self._workspace is None:
            raise _errors.invalid("attend before update(); the plan has no batch yet")
        where = self.device
        args = _abi.lkv_attend_args(
            q=tensor("q", q, where), q_rope=tensor("q_rope", q_rope, where),
            out=tensor("out", out, where, True), lse=tensor("lse", lse, where, True),
            entropy=tensor("entropy", entropy, where, True), bias=tensor("bias", bias, where),
            weights=weights.handle if weights is not None else None,
            workspace=self._workspace.address, workspace_bytes=self._workspace.length,
            scale=scale, layer=layer, flags=_abi.LKV_ATTEND_CHECKED if checked else 0)
        call.lkv_attend(self.handle, (pool or self.pool).handle, None, args, stream_of(stream))

    def describe(self) -> _abi.lkv_plan_desc:
        """What the plan was made from, with what 0 stood for filled in."""
        desc = _abi.lkv_plan_desc()
        call.lkv_plan_describe(self.handle, desc)
        return desc
