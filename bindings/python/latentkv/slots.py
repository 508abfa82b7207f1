"""Slots: equal payloads of the caller's in a pool's headroom, keyed by a token of a KV block or
freely. A payload is written once, by who got its slot as "new", and never moves."""
from __future__ import annotations

import ctypes
import dataclasses
import threading
from typing import Any, Callable, Iterable, Union

from . import _abi, _errors, _handle
from ._arguments import choice, dense, host_array
from ._library import call
from .pool import Pool
from .tensor import ArrayLike, DeviceArray, HostArray, view

POLICIES = {"lru": _abi.LKV_SLOTS_LRU, "lfu": _abi.LKV_SLOTS_LFU,
            "least_stale": _abi.LKV_SLOTS_LEAST_STALE}
STATES = {_abi.LKV_SLOT_MISS: "miss", _abi.LKV_SLOT_READY: "ready",
          _abi.LKV_SLOT_FILLING: "filling", _abi.LKV_SLOT_NEW: "new",
          _abi.LKV_SLOT_REFUSED: "refused"}
_FILL = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(_abi.lkv_slot_key),
                         ctypes.c_void_p, ctypes.c_uint64)
Payload = Union[HostArray, DeviceArray, None]


@dataclasses.dataclass(frozen=True)
class SlotKey:
    """What a payload belongs to: token(...) lives as long as its KV block, free(...) on its own."""

    kind: int
    layer: int
    block: int
    index: int

    @classmethod
    def token(cls, block: int, index: int, layer: int = 0) -> "SlotKey":
        """Token `index` of the KV block with this id, of a sequence's table."""
        return cls(_abi.LKV_SLOT_KEY_TOKEN, layer, block, index)

    @classmethod
    def free(cls, index: int, layer: int = 0, block: int = 0) -> "SlotKey":
        """Any numbers, for example an expert's."""
        return cls(_abi.LKV_SLOT_KEY_FREE, layer, block, index)


@dataclasses.dataclass(frozen=True)
class Slot:
    """What get() found for one key. payload uint8 [payload_bytes], in the pool's memory: of "new"
    and "ready" ones, while they are pinned or new; None in metadata_only pools."""

    state: str
    handle: int
    payload: Payload
    block: int
    layer: int
    offset_bytes: int


Fill = Callable[[SlotKey, Payload], Any]
Keys = Union[Iterable[SlotKey], ArrayLike]


def _payload(pool: Pool, length: int, address: int | None) -> Payload:
    if not address:
        return None
    keep = (pool, pool._reference)
    if pool.device < 0:
        return HostArray((length,), "uint8", address, keep)
    return DeviceArray((length,), address, pool.device, keep)


class _Filler:
    """What the library calls for a new slot. It does not hold the Slots that holds it."""

    def __init__(self, pool: Pool, payload_bytes: int, fill: Fill | None) -> None:
        self.pool, self.payload_bytes, self.fill = pool, payload_bytes, fill
        self.failure = threading.local()

    def __call__(self, _user: Any, key: Any, address: int | None, _bytes: int) -> int:
        one = key.contents
        try:
            assert self.fill is not None
            self.fill(SlotKey(one.kind, one.layer, one.block, one.index),
                      _payload(self.pool, self.payload_bytes, address))
        except BaseException as failure:  # nothing may pass through the library
            self.failure.reason = failure
            return _abi.LKV_E_INTERNAL
        return _abi.LKV_OK


class Slots(_handle.Object):
    """A store inside the headroom of a pool that owns its blocks. May be shared between threads.

    payload_bytes  of one payload; kept at a multiple of 16
    max_blocks     the budget; 0: the pool's headroom
    policy         who goes for room: "lru", "lfu", "least_stale"
    num_layers     of keys; 0: the pool's
    fill           called as fill(key, payload) by get(fill=True), in the thread of that call; an
                   exception gives the slot up and comes out of get()"""

    def __init__(self, pool: Pool, *, payload_bytes: int, max_blocks: int = 0, policy: str = "lru",
                 num_layers: int = 0, fill: Fill | None = None) -> None:
        self.pool, self.payload_bytes = pool, payload_bytes
        self._filler = _Filler(pool, payload_bytes, fill)
        callback = _FILL(self._filler) if fill is not None else None
        desc = _abi.lkv_slots_desc(
            payload_bytes=payload_bytes, max_blocks=max_blocks,
            policy=choice("policy", policy, POLICIES), num_layers=num_layers,
            fill=ctypes.cast(callback, ctypes.c_void_p).value if callback is not None else None)
        self._create(call.lkv_slots_create, call.lkv_slots_release, pool.handle, desc)
        self._reference.callback = callback  # type: ignore[attr-defined]

    def get(self, keys: Keys, *, pin: bool = False, create: bool = False, fill: bool = False,
            step: int = 0) -> list[Slot]:
        """A Slot for each key: "ready"; "filling", somebody else is at it; "miss"; and with create
        "new", the caller's to write and commit(), or "refused", no room. pin: they stay until
        unpin(). fill: new ones are filled by the callback. step: of the engine, for
        "least_stale". keys: SlotKeys, or uint32 [n, 4] of (kind, layer, block, index)."""
        given, count, keep = _keys(keys)
        out = (_abi.lkv_slot * max(count, 1))()
        args = _abi.lkv_slots_args(
            keys=ctypes.cast(given, ctypes.POINTER(_abi.lkv_slot_key)),
            slots=ctypes.cast(out, ctypes.POINTER(_abi.lkv_slot)), num_keys=count, step=step,
            flags=_abi.LKV_SLOTS_PIN * pin | _abi.LKV_SLOTS_CREATE * create
            | _abi.LKV_SLOTS_FILL * fill)
        self._filler.failure.reason = None
        try:
            call.lkv_slots_get(self.handle, ctypes.byref(args))
        except _errors.LatentKVError:
            reason = self._filler.failure.reason
            if reason is not None:
                raise reason from None
            raise
        del keep
        return [Slot(STATES[one.state], one.handle,
                     _payload(self.pool, self.payload_bytes, one.address), one.block, one.layer,
                     one.offset_bytes) for one in out[:count]]

    def commit(self, slots: Iterable[Slot | int], *, ready: bool = True) -> None:
        """Ends the filling of new slots, all or none. ready False: they are given up."""
        found = _handles(slots)
        call.lkv_slots_commit(self.handle, found.address, found.length, int(ready))

    def unpin(self, slots: Iterable[Slot | int]) -> None:
        """Takes one pin off each, all or none."""
        found = _handles(slots)
        call.lkv_slots_unpin(self.handle, found.address, found.length)

    def erase(self, keys: Keys) -> int:
        """Forgets ready payloads; how many. Pinned ones stay readable until unpinned."""
        given, count, keep = _keys(keys)
        erased = ctypes.c_uint64()
        call.lkv_slots_erase(self.handle, ctypes.cast(given, ctypes.POINTER(_abi.lkv_slot_key)),
                             count, ctypes.byref(erased))
        del keep
        return erased.value

    @property
    def stats(self) -> _abi.lkv_slots_stats:
        """Slots by state, blocks held, hits, misses, evictions."""
        stats = _abi.lkv_slots_stats()
        call.lkv_slots_query(self.handle, stats)
        return stats


def _keys(keys: Keys) -> tuple[Any, int, Any]:
    """(address or array, count, what to keep)."""
    if hasattr(keys, "__dlpack__"):
        found = view(keys)
        count = found.shape[0] if found.shape else 0
        return dense("keys", keys, "uint32", -1, (count, 4)), count, found
    given = list(keys)
    made = (_abi.lkv_slot_key * max(len(given), 1))()
    for one, key in zip(made, given):
        one.kind, one.layer, one.block, one.index = key.kind, key.layer, key.block, key.index
    return made, len(given), made


def _handles(slots: Iterable[Slot | int]) -> Any:
    return host_array("slots", [one if isinstance(one, int) else one.handle for one in slots],
                      "uint64")
