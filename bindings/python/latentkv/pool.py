"""Pools: latent blocks of one device and, if the library owns them, who holds which."""
from __future__ import annotations

import ctypes
import dataclasses
import os
from typing import Any, Iterable, Sequence as Row

from . import _abi, _errors, _handle
from ._arguments import (choice, device_array, host_array, stream as stream_of, tensor)
from ._library import call
from .context import Context
from .model import ROPE_STYLES
from .rope import Rope
from .sequence import Key, Prompt, Sequence, Step, Tokens, handles_of, prompt_of
from .tensor import ArrayLike, DeviceArray, HostArray, view
from .weights import Weights

FORMATS = {"bf16": _abi.LKV_FORMAT_BF16, "fp8": _abi.LKV_FORMAT_FP8, "int8": _abi.LKV_FORMAT_INT8,
           "nvfp4": _abi.LKV_FORMAT_NVFP4}
KINDS = {"mla": _abi.LKV_KIND_MLA, "latent_gqa": _abi.LKV_KIND_LATENT_GQA}
OWNERS = {"library": _abi.LKV_OWNER_LIBRARY, "engine": _abi.LKV_OWNER_ENGINE}
EVENTS = {_abi.LKV_EVENT_STORED: "stored", _abi.LKV_EVENT_REMOVED: "removed",
          _abi.LKV_EVENT_CLEARED: "cleared"}
PLACES = {"device": _abi.LKV_PLANE_DEVICE, "host": _abi.LKV_PLANE_HOST}


@dataclasses.dataclass(frozen=True)
class Plane:
    """Extra bytes beside each block: copied on write and evicted with it. tag: the caller's name;
    1 is the routing trace."""

    bytes_per_block: int
    placement: str = "device"
    tag: int = 0


@dataclasses.dataclass(frozen=True)
class PoolConfig:
    """Shape of a pool. L = latent_dim, R = rope_dim. See lkv_pool_desc in latentkv.h.

    format             "bf16", "fp8", "int8", "nvfp4"
    owner              "library": sequences and tables are latentkv's; "engine": the caller's
    num_blocks         N, blocks that can hold tokens; a library pool has one more, block 0
    host_blocks        of the host tier: swapped sequences, cached blocks that left the device
    fallback_headroom  share lent to fallback experts; 0.30 in the source document
    layer_major, or strides in bytes: see block_stride_bytes, layer_stride_bytes
    fixed_outer        nvfp4: one outer scale a layer
    fingerprint        32 bytes that name the model; part of every prefix key
    kind               "mla", or "latent_gqa": num_kv_heads G key latents of L and as many value
                       latents of L_v = value_latent_dim (0: L) a token, rope_dim 0; CPU"""

    format: str
    latent_dim: int
    rope_dim: int
    num_blocks: int
    num_layers: int = 1
    tokens_per_block: int = 64
    owner: str = "library"
    rope_style: str = "interleaved"
    max_seqs: int = 0
    host_blocks: int = 0
    fallback_headroom: float = 0.0
    symmetric: bool = False
    four_over_six: bool = False
    rotate: bool = False
    metadata_only: bool = False
    cache: bool = True
    partial: bool = True
    events: bool = False
    num_events: int = 0
    num_kv_heads: int = 0
    kind: str | int = "mla"
    value_latent_dim: int = 0
    block_stride_bytes: int = 0
    layer_stride_bytes: int = 0
    fixed_outer: Row[float] | None = None
    fingerprint: bytes | None = None
    planes: Row[Plane] = ()

    def descriptor(self) -> _abi.lkv_pool_desc:
        """The struct of the ABI, which keeps what it points at."""
        outer = host_array("fixed_outer", self.fixed_outer, "float32")
        planes = (_abi.lkv_plane_desc * max(len(self.planes), 1))()
        for made, plane in zip(planes, self.planes):
            made.bytes_per_block, made.tag = plane.bytes_per_block, plane.tag
            made.placement = choice("placement", plane.placement, PLACES)
        if self.fingerprint is not None and len(self.fingerprint) != 32:
            raise _errors.invalid(f"fingerprint has {len(self.fingerprint)} bytes; need 32")
        print32 = ctypes.create_string_buffer(self.fingerprint or bytes(32), 32)
        desc = _abi.lkv_pool_desc(
            kind=choice("kind", self.kind, KINDS), format=choice("format", self.format, FORMATS),
            encode_flags=self._encode_flags(), owner=choice("owner", self.owner, OWNERS),
            flags=self._flags(), tokens_per_block=self.tokens_per_block,
            latent_dim=self.latent_dim, rope_dim=self.rope_dim,
            rope_style=choice("rope_style", self.rope_style, ROPE_STYLES),
            num_kv_heads=self.num_kv_heads, value_latent_dim=self.value_latent_dim,
            num_layers=self.num_layers, max_seqs=self.max_seqs,
            num_blocks=self.num_blocks, host_blocks=self.host_blocks,
            fallback_headroom=self.fallback_headroom,
            block_stride_bytes=self.block_stride_bytes, layer_stride_bytes=self.layer_stride_bytes,
            fixed_outer=outer.address, num_planes=len(self.planes), num_events=self.num_events,
            planes=ctypes.cast(planes, ctypes.POINTER(_abi.lkv_plane_desc))
            if self.planes else None,
            model_fingerprint=ctypes.addressof(print32) if self.fingerprint else None)
        desc.keep = (outer, planes, print32)
        return desc

    def _encode_flags(self) -> int:
        return (_abi.LKV_ENCODE_INT8_SYMMETRIC * self.symmetric
                | _abi.LKV_ENCODE_NVFP4_FIXED_OUTER * (self.fixed_outer is not None)
                | _abi.LKV_ENCODE_NVFP4_FOUR_OVER_SIX * self.four_over_six
                | _abi.LKV_ENCODE_ROTATE * self.rotate)

    def _flags(self) -> int:
        return (_abi.LKV_POOL_METADATA_ONLY * self.metadata_only
                | _abi.LKV_POOL_NO_CACHE * (not self.cache)
                | _abi.LKV_POOL_NO_PARTIAL * (not self.partial)
                | _abi.LKV_POOL_EVENTS * self.events)

    def block_info(self) -> _abi.lkv_block_info:
        """record_bytes, block_bytes, total_bytes, the sections' offsets: needs no context."""
        info = _abi.lkv_block_info()
        call.lkv_block_query(self.descriptor(), info)
        return info


@dataclasses.dataclass(frozen=True)
class Event:
    """One change of the prefix cache. digest names the block in every process."""

    seq: int
    kind: str
    tier: int
    reason: int
    remaining_copies: int
    parent: bytes
    digest: bytes
    tokens: tuple[int, ...]
    keys: bytes


@dataclasses.dataclass(frozen=True)
class Events:
    """Events in order; next_seq is where to go on; lost: wanted, but forgotten by the ring."""

    events: list[Event]
    next_seq: int
    lost: int


class Lease:
    """Blocks that are pinned or lent, until release() or the end of the with block."""

    def __init__(self, pool: "Pool", handle: int, blocks: list[int]) -> None:
        self.pool, self.handle, self.blocks = pool, handle, blocks

    def release(self, fence: int = 0) -> None:
        call.lkv_lease_release(self.pool.handle, self.handle, fence)

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, *_exception: object) -> None:
        self.release()


class Pool(_handle.Object):
    """Latent blocks of one device. Shareable between threads; two appends at the same time must
    not name one slot.

    memory        the caller's device memory, 256-byte aligned, any dtype; None: the library's
    layer_memory  or one array a layer"""

    def __init__(self, context: Context, config: PoolConfig | None = None, *,
                 memory: ArrayLike | None = None, layer_memory: Row[ArrayLike] | None = None,
                 **shape: Any) -> None:
        self.context, self.device = context, context.device
        self.config = config if config is not None else PoolConfig(**shape)
        desc = self.config.descriptor()
        self._memory: list[Any] = []
        if memory is not None:
            found = self._borrow("memory", memory)
            desc.memory, desc.memory_bytes = found.address, found.nbytes
        if layer_memory is not None:
            bases = (ctypes.c_void_p * max(len(layer_memory), 1))(
                *[self._borrow("layer_memory", array).address for array in layer_memory])
            if len(layer_memory) != self.config.num_layers:
                raise _errors.invalid(f"layer_memory has {len(layer_memory)} arrays; need "
                                      f"{self.config.num_layers}")
            desc.layer_memory = ctypes.addressof(bases)
        self._create(call.lkv_pool_create, call.lkv_pool_release, context.handle, desc)
        self._reference.memory = self._memory  # type: ignore[attr-defined]

    def _borrow(self, what: str, array: ArrayLike) -> Any:
        found = view(array)
        if found.device != self.device and not found.anywhere:
            raise _errors.invalid(f"{what} is {found!r}; need memory of the pool's device")
        if found.readonly or not found.contiguous:
            raise _errors.invalid(f"{what} is {found!r}; need dense memory that may be written")
        self._memory.append(found)
        return found

    def describe(self) -> _abi.lkv_pool_desc:
        """What the pool was made from, its strides filled in; pointers are NULL."""
        desc = _abi.lkv_pool_desc()
        call.lkv_pool_describe(self.handle, desc)
        return desc

    # ---- memory

    def layout(self, layer: int = 0) -> _abi.lkv_pool_layout:
        """Where a layer's records lie: base, block_stride_bytes, record_bytes, memory_blocks."""
        layout = _abi.lkv_pool_layout()
        call.lkv_pool_layer(self.handle, layer, layout)
        return layout

    def plane(self, index: int) -> HostArray | DeviceArray:
        """Side plane as uint8 [blocks, bytes_per_block]; it shares the pool's memory."""
        base, each = ctypes.c_void_p(), ctypes.c_uint64()
        call.lkv_pool_plane(self.handle, index, ctypes.byref(base), ctypes.byref(each))
        shape = (self.config.num_blocks + 1, each.value)
        keep = (self._reference, self)
        if self.device < 0 or self.config.planes[index].placement == "host":
            return HostArray(shape, "uint8", base.value or 0, keep)
        return DeviceArray(shape, base.value or 0, self.device, keep)

    def records(self, layer: int = 0) -> HostArray | DeviceArray:
        """A layer's records as uint8 [blocks, tokens_per_block, record_bytes], sharing the pool's
        memory; for pools whose blocks lie side by side."""
        layout = self.layout(layer)
        each = self.config.tokens_per_block * layout.record_bytes
        if layout.block_stride_bytes != each:
            raise _errors.invalid(f"block_stride_bytes is {layout.block_stride_bytes}; need {each}"
                                  ": read the blocks through layout()")
        shape = (layout.memory_blocks, self.config.tokens_per_block, layout.record_bytes)
        keep = (self._reference, self)
        if self.device < 0:
            return HostArray(shape, "uint8", layout.base, keep)
        return DeviceArray(shape, layout.base, self.device, keep)

    def faults(self, clear: bool = False) -> _abi.lkv_faults:
        """Faults that append and attend met in device data. Synchronises with the device."""
        faults = _abi.lkv_faults()
        call.lkv_pool_faults(self.handle, int(clear), faults)
        return faults

    # ---- data

    def append(self, latent: ArrayLike, rope: ArrayLike | None, slots: ArrayLike, *,
               layer: int = 0, norm_weight: ArrayLike | None = None, norm_eps: float = 0.0,
               rope_table: Rope | None = None, positions: ArrayLike | None = None,
               value: ArrayLike | None = None, weights: Weights | None = None,
               checked: bool = True, stream: Any = None) -> None:
        """Quantises T tokens into their records. latent [T, L] after kv_a_layernorm (or before it,
        with norm_weight fp32 [L]); rope [T, R] after RoPE (or before it, with rope_table and
        positions int32 [T]); slots int64 [T], negative: skipped. checked: on the CPU a fault of
        this call is InvalidError; the good rows are written. latent_gqa: latent [T, G, L] and value
        [T, G, L_v]; with weights, a projector, keys after RoPE [T, G, nope] and values
        [T, G, v]."""
        where, latent_ptr = self.device, tensor("latent", latent, self.device)
        rows = latent_ptr.contents.shape[0] if latent_ptr else 0
        slot = device_array("slots", slots, "int64", where, rows)
        norm = device_array("norm_weight", norm_weight, "float32", where, self.config.latent_dim)
        turn = device_array("positions", positions, "int32", where, rows)
        args = _abi.lkv_append_args(
            latent=latent_ptr, rope=tensor("rope", rope, where), slots=slot.address,
            norm_weight=norm.address, norm_eps=norm_eps, positions=turn.address, layer=layer,
            rope_table=rope_table.handle if rope_table is not None else None,
            value=tensor("value", value, where),
            weights=weights.handle if weights is not None else None,
            flags=_abi.LKV_APPEND_CHECKED if checked else 0)
        call.lkv_append(self.handle, args, stream_of(stream))

    def gather(self, slots: ArrayLike, latent: ArrayLike | None = None,
               rope: ArrayLike | None = None, *, value: ArrayLike | None = None, layer: int = 0,
               stored_basis: bool = False, stream: Any = None) -> None:
        """Dequantises records into dense rows: slots int64 [T] (negative: zeros), out latent
        [T, L], out rope [T, R]; latent_gqa: out latent [T, G, L], out value [T, G, L_v].
        stored_basis: rotated pools are not rotated back."""
        where = self.device
        outs = [tensor("latent", latent, where, True), tensor("rope", rope, where, True),
                tensor("value", value, where, True)]
        rows = max((out.contents.shape[0] for out in outs if out), default=0)
        slot = device_array("slots", slots, "int64", where, rows)
        args = _abi.lkv_gather_args(
            slots=slot.address, latent=outs[0], rope=outs[1], value=outs[2], layer=layer,
            flags=_abi.LKV_GATHER_STORED_BASIS if stored_basis else 0)
        call.lkv_gather(self.handle, args, stream_of(stream))

    # ---- sequences

    def match(self, prompt: Prompt | Tokens) -> _abi.lkv_match:
        """The longest cached prefix: hit_tokens, partial_hit_tokens, hit_blocks, host_hit_blocks
        (of hit_blocks, those on the host alone), and a ticket for admit(). Changes nothing."""
        out = _abi.lkv_match()
        call.lkv_seq_match(self.handle, prompt_of(prompt).struct, out)
        return out

    def admit(self, prompt: Prompt | Tokens, *, match: _abi.lkv_match | None = None,
              max_tokens: int = 0, room_tokens: int = 0, whole: bool = False, priority: int = 0,
              priority_until: int = 0, watermark_blocks: int = 0) -> Sequence:
        """A new sequence, all or nothing: takes the hits and blocks for the rest. On failure
        nothing has changed and the exception's admission says what was needed and what was free.
        priority: 0..100, later eviction, until tick() reaches priority_until (0: for good).
        watermark_blocks: what must be left for others, while there are any."""
        given, out, result = prompt_of(prompt), ctypes.c_uint64(), _abi.lkv_admission()
        args = _abi.lkv_admit_args(
            match=ctypes.pointer(match) if match is not None else None, max_tokens=max_tokens,
            room_tokens=room_tokens, priority=priority, priority_until=priority_until,
            watermark_blocks=watermark_blocks,
            flags=_abi.LKV_ADMIT_WHOLE * whole)
        _errors.with_admission(call.lkv_seq_admit, result, self.handle, given.struct, args, result,
                               ctypes.byref(out))
        return Sequence(self, out.value, result)

    def step(self, seqs: Iterable[Sequence | int | None] | ArrayLike, *, num_new: Any = None,
             tokens: Tokens | None = None, row_begin: Any = None, num_rows: Any = None,
             table_width: int = 0, into: Step | None = None, tail: bool = False) -> Step:
        """One scheduler step of n sequences, all or nothing: appends num_new[i] tokens each and
        fills the arrays that append and attend take. Row i runs positions [row_begin[i],
        row_begin[i] + num_rows[i]) of seqs[i]; row_begin None: its length before the append;
        num_rows None: num_new; tokens None: room is reserved. None in seqs is a padding row.
        into: a Step to use again; tail: only table entries that may have changed are written."""
        given: Any = list(seqs) if not hasattr(seqs, "__dlpack__") else seqs
        if into is None:
            rows = num_rows if num_rows is not None else num_new
            count = sum(int(n) for n in rows) if rows is not None else 0
            into = Step(max(len(given), 1), max(count, 1), table_width or self._width(given))
        into.run(self, given, num_new, tokens, row_begin, num_rows, tail)
        return into

    def _width(self, seqs: Any) -> int:
        """Table entries of the longest sequence, and room for what the step adds."""
        live = [seq for seq in seqs if isinstance(seq, Sequence)]
        return max((seq.info.num_blocks for seq in live), default=0) + 8

    def common_blocks(self, seqs: Iterable[Sequence | int] | ArrayLike) -> int:
        """How many leading blocks all these sequences share, by their tables: what a cascade can
        attend once for all of them."""
        found, count = host_array("seqs", handles_of(seqs), "uint64"), ctypes.c_uint64()
        call.lkv_seq_common(self.handle, found.address, found.length, ctypes.byref(count))
        return count.value

    def apply_copies(self, fence: int = 0, *, stream: Any = None) -> None:
        """Does the block copies that admission, copy on write, swaps and demotion ask for, before
        the append. Sources are held until fence has passed (0: until this returns)."""
        call.lkv_pool_apply_copies(self.handle, fence, stream_of(stream))

    def take_copies(self, fence: int = 0) -> list[tuple[int, int]]:
        """Of a metadata_only pool: hands out the (from, to) pairs that the engine is to copy;
        num_blocks + 1 + i names host block i."""
        count = ctypes.c_uint64()
        capacity = 256
        while True:
            pairs = (ctypes.c_int32 * (2 * capacity))()
            try:
                call.lkv_pool_take_copies(self.handle, ctypes.addressof(pairs), capacity, fence,
                                          ctypes.byref(count))
            except _errors.InvalidError:
                if count.value <= capacity:
                    raise
                capacity = count.value
                continue
            return [(pairs[2 * i], pairs[2 * i + 1]) for i in range(count.value)]

    def pass_fence(self, fence: int) -> None:
        """Every fence up to this one has passed."""
        call.lkv_pool_pass_fence(self.handle, fence)

    def pin(self, blocks: Iterable[int]) -> Lease:
        """Pins blocks of live tables: not evicted or reused until released."""
        ids, out = [int(block) for block in blocks], ctypes.c_uint64()
        found = host_array("blocks", ids, "int32")
        call.lkv_lease_pin(self.handle, found.address, found.length, ctypes.byref(out))
        return Lease(self, out.value, ids)

    def lend(self, num_blocks: int) -> Lease:
        """Lends blocks of the headroom; evicts idle blocks, never a sequence."""
        blocks, out = (ctypes.c_int32 * max(num_blocks, 1))(), ctypes.c_uint64()
        call.lkv_lease_lend(self.handle, num_blocks, ctypes.addressof(blocks), ctypes.byref(out))
        return Lease(self, out.value, list(blocks)[:num_blocks])

    def demote(self, num_blocks: int) -> int:
        """Of the next num_blocks cached blocks to be evicted, copies to the host tier those without
        a copy there, at the next apply_copies(); how many. Eviction then moves them to the host.
        Once a step, with as many blocks as a step may evict."""
        queued = ctypes.c_uint64()
        call.lkv_pool_demote(self.handle, num_blocks, ctypes.byref(queued))
        return queued.value

    def evict(self, num_blocks: int) -> int:
        """Evicts up to num_blocks idle blocks, leaves first; how many it were."""
        evicted = ctypes.c_uint64()
        call.lkv_pool_evict(self.handle, num_blocks, ctypes.byref(evicted))
        return evicted.value

    def tick(self, now: int) -> None:
        """The pool's clock, for priorities that end. Never goes back."""
        call.lkv_pool_tick(self.handle, now)

    def drop(self, key: Key) -> int:
        """Drops every cached block whose prefix carries this key (tag and data); how many left."""
        dropped, made = ctypes.c_uint64(), Prompt((), [key])
        call.lkv_pool_drop(self.handle, made.struct.keys, ctypes.byref(dropped))
        return dropped.value

    def reset(self, *, force: bool = False) -> None:
        """Drops the whole prefix cache. BusyError with live sequences, unless forced."""
        call.lkv_pool_reset(self.handle, _abi.LKV_RESET_FORCE if force else 0)

    def save(self, path: str, *, secret: bytes | None = None,
             stream: Any = None) -> _abi.lkv_snapshot_info:
        """The cached blocks to a file, which is replaced by a rename. secret: 16 to 1024 bytes that
        seal it; a file that was not written with the same secret is refused."""
        return self._snapshot(call.lkv_pool_snapshot_save, path, secret, stream)

    def load(self, path: str, *, secret: bytes | None = None,
             stream: Any = None) -> _abi.lkv_snapshot_info:
        """Adds a file's blocks to the cache, as idle ones; all or nothing."""
        return self._snapshot(call.lkv_pool_snapshot_load, path, secret, stream)

    def _snapshot(self, function: Any, path: str, secret: bytes | None,
                  stream: Any) -> _abi.lkv_snapshot_info:
        key = ctypes.create_string_buffer(secret or b"", max(len(secret or b""), 1))
        info = _abi.lkv_snapshot_info()
        args = _abi.lkv_snapshot_args(path=os.fsencode(path), secret_bytes=len(secret or b""),
                                      secret=ctypes.addressof(key) if secret else None)
        function(self.handle, args, info, stream_of(stream))
        return info

    # ---- what happened

    @property
    def stats(self) -> _abi.lkv_pool_stats:
        """Blocks by state, tokens, hits, evictions, bytes of metadata."""
        stats = _abi.lkv_pool_stats()
        call.lkv_pool_query(self.handle, stats)
        return stats

    def check(self) -> None:
        """Walks every invariant of the manager; InternalError with the first that is broken."""
        call.lkv_pool_check(self.handle)

    def metrics_text(self, labels: str = "") -> str:
        """The statistics as Prometheus text. labels: name="value" pairs with commas between."""
        needed, given = ctypes.c_size_t(), labels.encode()
        call.lkv_pool_metrics_text(self.handle, given, None, 0, ctypes.byref(needed))
        room = ctypes.create_string_buffer(needed.value + 64)  # numbers grow between two calls
        call.lkv_pool_metrics_text(self.handle, given, ctypes.addressof(room), len(room),
                                   ctypes.byref(needed))
        return room.value.decode()

    def events(self, from_seq: int = 0, capacity: int = 1024) -> Events:
        """Changes of the prefix cache from from_seq on, for pools made with events=True."""
        found = (_abi.lkv_event * capacity)()
        data = HostArray(capacity * (4 * self.config.tokens_per_block + 64) + 65536, "uint8")
        batch = _abi.lkv_event_batch(
            from_seq=from_seq, events=ctypes.cast(found, ctypes.POINTER(_abi.lkv_event)),
            capacity=capacity, data=data.address, data_capacity=data.shape[0])
        call.lkv_pool_events(self.handle, batch)
        return Events([_event(found[i], data.address) for i in range(batch.num_events)],
                      batch.next_seq, batch.lost)


def _event(raw: _abi.lkv_event, data: int) -> Event:
    tokens = (ctypes.c_int32 * raw.num_tokens).from_address(data + raw.tokens_offset)
    return Event(raw.seq, EVENTS.get(raw.kind, str(raw.kind)), raw.tier, raw.reason,
                 raw.remaining_copies, bytes(raw.parent), bytes(raw.digest), tuple(tokens),
                 ctypes.string_at(data + raw.keys_offset, raw.keys_bytes))
