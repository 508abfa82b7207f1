"""Sequences: which blocks hold which token of a request, in pools that own their blocks."""
from __future__ import annotations

import ctypes
import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Iterable, Union

from . import _abi, _errors, _handle
from ._arguments import choice, host_array
from ._library import call
from .tensor import HostArray

if TYPE_CHECKING:
    from .pool import Pool

Tokens = Union[Iterable[int], Any]
"""Token ids: any iterable of int, or an int32 array (used as it is)."""
TAGS = {"adapter": _abi.LKV_KEY_ADAPTER, "salt": _abi.LKV_KEY_SALT,
        "multimodal": _abi.LKV_KEY_MULTIMODAL, "user": _abi.LKV_KEY_USER}
EVERYTHING = 2 ** 64 - 1


@dataclasses.dataclass(frozen=True)
class Key:
    """Part of the identity of tokens [begin, end) beside their ids: adapter and version, cache
    salt, image hash. Adapter and salt cover everything."""

    tag: str | int
    data: bytes
    begin: int = 0
    end: int = EVERYTHING


class Prompt:
    """What match() and admit() look for: tokens and their extra keys. Made once, used often."""

    def __init__(self, tokens: Tokens, keys: Iterable[Key] = (), *, match: bool = True,
                 partial: bool = True, publish: bool = True) -> None:
        self._tokens = host_array("tokens", tokens, "int32")
        given = list(keys)
        self._keys = (_abi.lkv_key * max(len(given), 1))()
        self._data = [ctypes.create_string_buffer(key.data, len(key.data)) for key in given]
        for slot, key, data in zip(self._keys, given, self._data):
            slot.data, slot.bytes = ctypes.addressof(data), len(key.data)
            slot.begin, slot.end, slot.tag = key.begin, key.end, choice("tag", key.tag, TAGS)
        flags = (0 if match else _abi.LKV_PROMPT_NO_MATCH) | (
            0 if partial else _abi.LKV_PROMPT_NO_PARTIAL) | (
            0 if publish else _abi.LKV_PROMPT_NO_PUBLISH)
        self.struct = _abi.lkv_prompt(
            tokens=self._tokens.address, num_tokens=self._tokens.length, num_keys=len(given),
            keys=ctypes.cast(self._keys, ctypes.POINTER(_abi.lkv_key)) if given else None,
            flags=flags)
        self.struct.keep = (self._tokens, self._keys, self._data)  # the Prompt may be gone by then

    def __len__(self) -> int:
        return self._tokens.length


def prompt_of(given: Prompt | Tokens) -> Prompt:
    return given if isinstance(given, Prompt) else Prompt(given)


def _free(pool: _handle.Reference, handle: int) -> None:
    """A sequence nobody holds any more; its pool may be closed, its handle freed by others."""
    if pool.alive:
        try:
            call.lkv_seq_free(pool.get("pool"), handle, 0)
        except _errors.LatentKVError:
            pass


class Sequence:
    """A live sequence of a pool, from Pool.admit() or fork().

    committed <= length <= room: tokens whose data is written, tokens known, what its blocks hold.
    A sequence that is collected is freed with fence 0: where work on a GPU may still read its
    blocks on another stream, call free() with a fence."""

    def __init__(self, pool: "Pool", handle: int,
                 admission: _abi.lkv_admission | None = None) -> None:
        self.pool = pool
        self.admission = admission
        """What admission took and hit; None for a fork."""
        self._reference = _handle.Reference(handle, functools.partial(_free, pool._reference))

    @property
    def handle(self) -> int:
        """The number, for Pool.step() and C code; 0 once freed."""
        return self._reference.get("sequence")

    @property
    def closed(self) -> bool:
        return not self._reference.alive

    def __enter__(self) -> "Sequence":
        return self

    def __exit__(self, *_exception: object) -> None:
        if not self.closed:
            self.free()

    def append(self, tokens: Tokens) -> _abi.lkv_admission:
        """Adds known tokens; takes blocks as needed."""
        found, result = host_array("tokens", tokens, "int32"), _abi.lkv_admission()
        _errors.with_admission(call.lkv_seq_append, result, self.pool.handle, self.handle,
                               found.address, found.length, result)
        return result

    def reserve(self, num_tokens: int) -> _abi.lkv_admission:
        """Makes room for num_tokens past length without naming them."""
        result = _abi.lkv_admission()
        _errors.with_admission(call.lkv_seq_reserve, result, self.pool.handle, self.handle,
                               num_tokens, result)
        return result

    def commit(self, upto: int) -> None:
        """Declares the data of tokens [0, upto) written; whole blocks are published."""
        call.lkv_seq_commit(self.pool.handle, self.handle, upto)

    def truncate(self, length: int, fence: int = 0) -> None:
        """Drops tokens from length on and the blocks wholly beyond it."""
        call.lkv_seq_truncate(self.pool.handle, self.handle, length, fence)

    def fork(self) -> "Sequence":
        """A second sequence over the same blocks; copy on write."""
        out = ctypes.c_uint64()
        call.lkv_seq_fork(self.pool.handle, self.handle, ctypes.byref(out))
        return Sequence(self.pool, out.value)

    def swap_out(self, fence: int = 0) -> _abi.lkv_admission:
        """Moves its blocks to the host tier, all or nothing; Pool.apply_copies() copies them once
        fence has passed: the last step that still writes them. Until swap_in() it can be queried,
        committed and freed, nothing else. The result, also of a NoHostSpaceError, counts host
        blocks."""
        result = _abi.lkv_admission()
        _errors.with_admission(call.lkv_seq_swap_out, result, self.pool.handle, self.handle, fence,
                               result)
        return result

    def swap_in(self) -> _abi.lkv_admission:
        """Brings it back, all or nothing, into new blocks (table() again); the next
        Pool.apply_copies() copies. WaitPendingError until the copies out have passed their
        fence."""
        result = _abi.lkv_admission()
        _errors.with_admission(call.lkv_seq_swap_in, result, self.pool.handle, self.handle, result)
        return result

    @property
    def swapped(self) -> bool:
        """Whether it is in the host tier."""
        return self.info.host_blocks > 0

    def free(self, fence: int = 0) -> None:
        """Ends the sequence. A second free is NotFoundError."""
        if self.closed:
            raise _errors.error(_abi.LKV_E_NOT_FOUND, "LKV_E_NOT_FOUND",
                                "the sequence has been freed")
        call.lkv_seq_free(self.pool.handle, self.handle, fence)
        self._reference.detach()

    @property
    def info(self) -> _abi.lkv_seq_info:
        """length, committed, room, num_blocks, hit_tokens, max_tokens, host_blocks."""
        info = _abi.lkv_seq_info()
        call.lkv_seq_query(self.pool.handle, self.handle, info)
        return info

    def __len__(self) -> int:
        return self.info.length

    def table(self) -> list[int]:
        """Its block ids, in order."""
        count = ctypes.c_uint64()
        call.lkv_seq_table(self.pool.handle, self.handle, None, 0, ctypes.byref(count))
        room = (ctypes.c_int32 * max(count.value, 1))()
        call.lkv_seq_table(self.pool.handle, self.handle, ctypes.addressof(room), count.value,
                           ctypes.byref(count))
        return list(room)[:count.value]


class Step:
    """One scheduler step of n sequences: the arrays that append and attend take, in host memory
    (each has __array_interface__: numpy.asarray(step.slots) shares it). May be used again.

    block_table int32 [n, width]; seq_lens int32 [n]; q_indptr int32 [n + 1]; slots int64 [rows];
    positions int32 [rows]; num_tokens: rows of the last step"""

    def __init__(self, max_seqs: int, max_rows: int, table_width: int) -> None:
        self.max_seqs, self.max_rows, self.table_width = max_seqs, max_rows, table_width
        self.block_table = HostArray((max_seqs, table_width), "int32")
        self.seq_lens = HostArray(max_seqs, "int32")
        self.q_indptr = HostArray(max_seqs + 1, "int32")
        self.slots = HostArray(max_rows, "int64")
        self.positions = HostArray(max_rows, "int32")
        self.num_seqs = 0
        self.num_tokens = 0
        self.admission = _abi.lkv_admission()

    def run(self, pool: "Pool", seqs: Any, num_new: Any, tokens: Any, row_begin: Any,
            num_rows: Any, tail: bool) -> None:
        handles = host_array("seqs", handles_of(seqs), "uint64")
        rows = [host_array("num_new", num_new, "uint32"), host_array("tokens", tokens, "int32"),
                host_array("row_begin", row_begin, "uint64"),
                host_array("num_rows", num_rows, "uint32")]
        count = handles.length
        if count > self.max_seqs:
            raise _errors.invalid(f"a step of {count} sequences; this one was made for "
                                  f"{self.max_seqs}")
        for name, array in zip(("num_new", "row_begin", "num_rows"), (rows[0], rows[2], rows[3])):
            if array.address is not None and array.length != count:
                raise _errors.invalid(f"{name} has {array.length} entries; need {count}")
        step = _abi.lkv_step(
            num_seqs=count, flags=_abi.LKV_STEP_TABLE_TAIL if tail else 0, seqs=handles.address,
            num_new=rows[0].address, tokens=rows[1].address, row_begin=rows[2].address,
            num_rows=rows[3].address, block_table=self.block_table.address,
            seq_lens=self.seq_lens.address, q_indptr=self.q_indptr.address,
            slots=self.slots.address, positions=self.positions.address,
            slots_capacity=self.max_rows, table_width=self.table_width)
        try:
            _errors.with_admission(call.lkv_pool_step, self.admission, pool.handle, step,
                                   self.admission)
        except _errors.LatentKVError as failure:
            failure.failed_row = step.failed_row
            raise
        self.num_seqs = count
        self.num_tokens = (ctypes.c_int32 * (count + 1)).from_address(self.q_indptr.address)[count]


def handles_of(seqs: Any) -> Any:
    """Handles of sequences; None is a padding row; arrays of uint64 pass as they are."""
    if hasattr(seqs, "__dlpack__"):
        return seqs
    return [0 if seq is None else seq if isinstance(seq, int) else seq.handle for seq in seqs]
