"""Contexts: one device and its threads. Also the operations that need no pool: rotate, merge."""
from __future__ import annotations

import ctypes
from typing import Any, Callable

from . import _abi, _errors, _handle
from ._arguments import choice, stream as stream_of, tensor
from ._library import call
from .tensor import ArrayLike

ISAS = {"auto": _abi.LKV_ISA_AUTO, "scalar": _abi.LKV_ISA_SCALAR, "avx2": _abi.LKV_ISA_AVX2,
        "avx512": _abi.LKV_ISA_AVX512}
Log = Callable[[int, str], None]


def _ordinal(device: str | int) -> int:
    if isinstance(device, int):
        return device
    kind, _, number = device.partition(":")
    if kind == "cpu" and not number:
        return _abi.LKV_DEVICE_CPU
    if kind == "cuda" and (number or "0").isdigit():
        return int(number or 0)
    raise _errors.invalid(f"device {device!r}; need 'cpu', 'cuda', 'cuda:N' or an ordinal")


class Context(_handle.Object):
    """A device. May be shared between threads.

    device       "cpu", "cuda", "cuda:1", or an ordinal (-1: the CPU)
    num_threads  CPU threads, the caller included; 0: one per online core
    isa          highest CPU instruction set: "auto", "scalar", "avx2", "avx512"
    log          called as log(level, text) from any thread that uses the context; must not call
                 latentkv

    A missing driver, GPU or liblatentkv_cuda.so is UnsupportedError with the reason."""

    def __init__(self, device: str | int = "cpu", *, num_threads: int = 0, isa: str = "auto",
                 log: Log | None = None) -> None:
        self.device = _ordinal(device)
        self._log = _abi.lkv_log_fn(
            (lambda _user, level, text: log(level, (text or b"").decode())) if log else 0)
        desc = _abi.lkv_context_desc(device=self.device, num_threads=num_threads,
                                     isa=choice("isa", isa, ISAS), log=self._log)
        self._create(call.lkv_context_create, call.lkv_context_release, desc)
        self._reference.log = self._log  # type: ignore[attr-defined]

    @property
    def info(self) -> _abi.lkv_context_info:
        """Name, threads, instruction set, memory of the device."""
        info = _abi.lkv_context_info()
        call.lkv_context_query(self.handle, info)
        return info

    @property
    def name(self) -> str:
        """The processor's or the GPU's name."""
        return bytes(self.info.name).decode()

    def rotate(self, x: ArrayLike, out: ArrayLike | None = None, *, stream: Any = None) -> None:
        """Orthonormal Hadamard rotation of the last dimension of x [rows, n] or [T, H, n], n a
        power of two. out: like x; None: in place."""
        call.lkv_rotate(self.handle, tensor("x", x, self.device, out is None),
                        tensor("out", x if out is None else out, self.device, True),
                        stream_of(stream))

    def merge(self, outs: ArrayLike, lses: ArrayLike, out: ArrayLike, *,
              entropies: ArrayLike | None = None, lse: ArrayLike | None = None,
              entropy: ArrayLike | None = None, stream: Any = None) -> None:
        """Joins P attentions over disjoint keys: outs [P, T, H, D], lses and entropies fp32
        [P, T, H] into out [T, H, D], lse and entropy fp32 [T, H]."""
        where = self.device
        args = _abi.lkv_merge_args(
            outs=tensor("outs", outs, where), lses=tensor("lses", lses, where),
            entropies=tensor("entropies", entropies, where), out=tensor("out", out, where, True),
            lse=tensor("lse", lse, where, True), entropy=tensor("entropy", entropy, where, True))
        call.lkv_merge(self.handle, ctypes.byref(args), stream_of(stream))
