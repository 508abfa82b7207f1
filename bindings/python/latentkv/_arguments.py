"""In: arrays, streams and numbers as Python has them. Out: what the ABI takes, checked for what
only this side can see: on which device an array is, whether it may be written, its element type."""
from __future__ import annotations

import ctypes
from typing import Any, Mapping, Sequence

from . import _abi, _errors
from .tensor import DTYPES, ArrayLike, HostArray, View, view


def choice(what: str, name: str | int, table: Mapping[str, int]) -> int:
    """The number of a name, or a number as it is."""
    if isinstance(name, int):
        return name
    if name not in table:
        raise _errors.invalid(f"{what} {name!r}; need one of {', '.join(map(repr, table))}")
    return table[name]


def stream(given: Any) -> int | None:
    """None, an address, or a stream object of PyTorch, CuPy or anything with __cuda_stream__."""
    if given is None or isinstance(given, int):
        return given
    if hasattr(given, "__cuda_stream__"):
        protocol = given.__cuda_stream__
        return int((protocol() if callable(protocol) else protocol)[1])
    for name in ("cuda_stream", "ptr"):
        if hasattr(given, name):
            return int(getattr(given, name))
    raise _errors.invalid(f"{type(given).__name__} is not a stream; need an address or an object "
                          "with __cuda_stream__, cuda_stream or ptr")


def _on(what: str, found: View, device: int) -> View:
    if found.device != device and not found.anywhere:
        want = "the host" if device < 0 else f"CUDA device {device}"
        raise _errors.invalid(f"{what} is {found!r}; need memory of {want}")
    return found


def tensor(what: str, array: ArrayLike | None, device: int, out: bool = False) -> Any:
    """A pointer to an lkv_tensor, None for None. The pointer keeps the array."""
    if array is None:
        return None
    found = _on(what, view(array), device)
    if found.dtype not in DTYPES:
        raise _errors.invalid(f"{what} is {found!r}; need one of {', '.join(DTYPES)}")
    if len(found.shape) > 4:
        raise _errors.invalid(f"{what} is {found!r}; need at most 4 dimensions")
    if out and found.readonly:
        raise _errors.invalid(f"{what} is written to, but {found!r} is read-only")
    four = ctypes.c_int64 * 4
    made = _abi.lkv_tensor(data=found.address or None, dtype=DTYPES[found.dtype],
                           ndim=len(found.shape), shape=four(*found.shape),
                           stride=four(*found.strides))
    made.keep = found
    return ctypes.pointer(made)  # which keeps made, in whatever struct it is put


class Array:
    """A dense one-dimensional array as an address; keep it as long as the address is used."""

    __slots__ = ("address", "length", "keep")

    def __init__(self, address: int | None, length: int, keep: Any) -> None:
        self.address, self.length, self.keep = address, length, keep


NOTHING = Array(None, 0, None)


def device_array(what: str, array: ArrayLike | None, dtype: str, device: int,
                 length: int | None = None) -> Array:
    """An array of the context's device: dtype and length as they must be, densely packed."""
    if array is None:
        return NOTHING
    found = _on(what, view(array), device)
    if found.dtype != dtype or len(found.shape) != 1 or not found.contiguous:
        raise _errors.invalid(f"{what} is {found!r}; need a dense {dtype} array of one dimension")
    if length is not None and found.shape[0] < length:
        raise _errors.invalid(f"{what} has {found.shape[0]} entries; need {length}")
    return Array(found.address or None, found.shape[0], found)


def dense(what: str, array: ArrayLike | None, dtype: str, device: int,
          shape: tuple[int, ...], out: bool = False) -> int | None:
    """The address of an array of exactly this dtype and shape, densely packed; None for None. The
    caller holds the array."""
    if array is None:
        return None
    found = _on(what, view(array), device)
    if found.dtype != dtype or found.shape != shape or not found.contiguous:
        raise _errors.invalid(f"{what} is {found!r}; need a dense {dtype}{list(shape)}")
    if out and found.readonly:
        raise _errors.invalid(f"{what} is written to, but {found!r} is read-only")
    return found.address or None


_HOST: dict[str, Any] = {"int32": ctypes.c_int32, "uint32": ctypes.c_uint32,
                         "int64": ctypes.c_int64, "uint64": ctypes.c_uint64,
                         "float32": ctypes.c_float, "float64": ctypes.c_double}


def host_array(what: str, values: ArrayLike | Sequence[Any] | None, dtype: str) -> Array:
    """Numbers on the host: an array of the right type as it is, anything else converted."""
    if values is None:
        return NOTHING
    if hasattr(values, "__dlpack__") or isinstance(values, (View, HostArray)):
        found = view(values)
        if found.device < 0 and found.dtype == dtype and found.contiguous:
            return Array(found.address or None, found.shape[0] if found.shape else 1, found)
        if found.device >= 0:
            raise _errors.invalid(f"{what} is {found!r}; need memory of the host")
    numbers = list(values)
    try:
        made = (_HOST[dtype] * max(len(numbers), 1))(*numbers)
    except TypeError as failure:
        raise _errors.invalid(f"{what}: {failure}; need numbers ({dtype})") from failure
    return Array(ctypes.addressof(made), len(numbers), made)


def workspace(given: ArrayLike | None, nbytes: int, device: int) -> Array:
    """The caller's workspace, or on the CPU a new one."""
    if given is None:
        if nbytes == 0:
            return NOTHING
        if device >= 0:
            raise _errors.error(_abi.LKV_E_WORKSPACE, "LKV_E_WORKSPACE",
                                f"no workspace; need {nbytes} bytes of the GPU (a uint8 array)")
        made = HostArray(nbytes, "uint8")
        return Array(made.address, nbytes, made)
    found = _on("workspace", view(given), device)
    if not found.contiguous:
        raise _errors.invalid(f"workspace is {found!r}; need a dense array")
    return Array(found.address, found.nbytes, found)
