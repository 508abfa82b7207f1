"""In: an array of any library (DLPack, __cuda_array_interface__, __array_interface__). Out: a View
of the same memory: address, dtype, shape, strides, device. Nothing is copied, ever.

A View keeps its array alive. On a GPU the array must also outlive the work on the stream, as with
any kernel: allocators that follow the stream (PyTorch, CuPy) see to that."""
from __future__ import annotations

import ctypes
import math
from typing import Any, Sequence, Union

from . import _abi, _dlpack, _errors

DTYPES = {"float32": _abi.LKV_DTYPE_F32, "float16": _abi.LKV_DTYPE_F16,
          "bfloat16": _abi.LKV_DTYPE_BF16, "float8_e4m3": _abi.LKV_DTYPE_F8E4M3}
BYTES = {"float64": 8, "int64": 8, "uint64": 8, "float32": 4, "int32": 4, "uint32": 4, "float16": 2,
         "bfloat16": 2, "uint16": 2, "int16": 2, "float8_e4m3": 1, "uint8": 1, "int8": 1, "bool": 1}
TYPESTR = {"f8": "float64", "f4": "float32", "f2": "float16", "i8": "int64", "i4": "int32",
           "i2": "int16", "i1": "int8", "u8": "uint64", "u4": "uint32", "u2": "uint16",
           "u1": "uint8", "b1": "bool"}
ALIASES = {"float8_e4m3fn": "float8_e4m3"}

ArrayLike = Any
"""NumPy, PyTorch, CuPy, JAX, or anything else with one of the three protocols; or a View."""


class View:
    """Memory of somebody else's. ``strides`` count elements; ``device`` is -1 for the host or a
    CUDA ordinal; ``anywhere`` says that host and GPU can both reach it (pinned, managed)."""

    __slots__ = ("address", "dtype", "shape", "strides", "device", "anywhere", "readonly", "owner")

    def __init__(self, address: int, dtype: str, shape: Sequence[int],
                 strides: Sequence[int] | None = None, device: int = -1, anywhere: bool = False,
                 readonly: bool = False, owner: Any = None) -> None:
        self.address, self.dtype = address, dtype
        self.shape = tuple(shape)
        self.strides = _packed(self.shape) if strides is None else _tidy(self.shape, strides)
        self.device, self.anywhere, self.readonly, self.owner = device, anywhere, readonly, owner

    def __repr__(self) -> str:
        where = "cpu" if self.device < 0 else f"cuda:{self.device}"
        return f"View({self.dtype}{list(self.shape)} on {where})"

    @property
    def contiguous(self) -> bool:
        return self.strides == _packed(self.shape)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * BYTES[self.dtype]


def _packed(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def _tidy(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """A dimension of one element has no stride of its own: what a packed array would have."""
    tidy: list[int] = []
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides)):
        tidy.append(step if extent <= 1 else stride)
        step = tidy[-1] * extent
    return tuple(reversed(tidy))


def view(array: ArrayLike) -> View:
    """The View of any array. NumPy goes by __array_interface__, which knows about read-only memory;
    everything else by DLPack where it can."""
    if isinstance(array, View):
        return array
    if isinstance(array, HostArray):
        return View(array.address, array.dtype_name, array.shape, owner=array)
    if isinstance(getattr(array, "__array_interface__", None), dict):
        return _from_interface(array, array.__array_interface__, device=-1)
    if hasattr(array, "__dlpack__"):
        return _from_dlpack(array)
    cuda = getattr(array, "__cuda_array_interface__", None)
    if isinstance(cuda, dict):
        return _from_interface(array, cuda, device=_ordinal(array))
    raise _errors.invalid(f"{type(array).__name__} has none of __dlpack__, __array_interface__, "
                          "__cuda_array_interface__")


def _ordinal(array: Any) -> int:
    device = getattr(array, "device", None)
    for name in ("id", "index"):
        if isinstance(getattr(device, name, None), int):
            return int(getattr(device, name))
    return device if isinstance(device, int) else 0


def _from_interface(array: Any, interface: dict[str, Any], device: int) -> View:
    typestr: str = interface["typestr"]
    dtype = TYPESTR.get(typestr[1:])
    if dtype is None or typestr[0] == ">":  # types that NumPy learned from ml_dtypes
        name = str(getattr(getattr(array, "dtype", None), "name", typestr))
        dtype = ALIASES.get(name, name)
        if dtype not in BYTES or typestr[0] == ">":
            raise _errors.invalid(f"an array of dtype {name!r}; need one of {', '.join(BYTES)}")
    strides = interface.get("strides")
    if strides is not None:
        if any(stride % BYTES[dtype] for stride in strides):
            raise _errors.invalid(f"strides of {strides} bytes; need whole elements of {dtype}")
        strides = [stride // BYTES[dtype] for stride in strides]
    address, readonly = interface["data"]
    return View(address or 0, dtype, interface["shape"], strides, device,
                readonly=readonly, owner=array)


def _from_dlpack(array: Any) -> View:
    capsule, tensor, readonly = _dlpack.read(array)
    dtype = _dlpack.dtype_name(tensor.dtype)
    if dtype not in BYTES:
        raise _errors.invalid(f"an array of {dtype}; need one of {', '.join(BYTES)}")
    device, anywhere = _dlpack.device(tensor.device)
    shape = tensor.shape[:tensor.ndim]
    strides = tensor.strides[:tensor.ndim] if tensor.strides else None
    return View((tensor.data or 0) + tensor.byte_offset, dtype, shape, strides, device, anywhere,
                readonly, (capsule, array))


def as_dtype(array: ArrayLike, dtype: str) -> View:
    """The same memory under another dtype of the same size: uint16 arrays as "bfloat16", uint8 as
    "float8_e4m3" where the array's library has no such type."""
    given = view(array)
    if dtype not in BYTES or BYTES[dtype] != BYTES[given.dtype]:
        raise _errors.invalid(f"{given!r} as {dtype!r}; need a dtype of the same size")
    return View(given.address, dtype, given.shape, given.strides, given.device, given.anywhere,
                given.readonly, given.owner)


def host(shape: Union[int, Sequence[int]], dtype: str = "float32") -> "HostArray":
    """New host memory, zeroed and aligned to 256 bytes: for those who have no array library."""
    return HostArray(shape, dtype)


class HostArray:
    """Host memory with __array_interface__: numpy.asarray(it) and torch.as_tensor(it) share it."""

    def __init__(self, shape: Union[int, Sequence[int]], dtype: str, address: int = 0,
                 owner: Any = None) -> None:
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.dtype_name = dtype
        if not owner:
            owner = ctypes.create_string_buffer(math.prod(self.shape) * BYTES[dtype] + 256)
            address = (ctypes.addressof(owner) + 255) // 256 * 256
        self.address, self._owner = address, owner

    @property
    def __array_interface__(self) -> dict[str, Any]:
        typestr = {name: code for code, name in TYPESTR.items()}.get(self.dtype_name)
        if typestr is None:
            raise AttributeError(f"NumPy has no {self.dtype_name}")
        return {"version": 3, "data": (self.address, False), "shape": self.shape, "strides": None,
                "typestr": ("|" if typestr[1] == "1" else "<") + typestr}

    def tolist(self) -> list[Any]:
        """The elements in a row, as Python numbers (integers only)."""
        kind = {"int32": ctypes.c_int32, "int64": ctypes.c_int64}[self.dtype_name]
        return list((kind * math.prod(self.shape)).from_address(self.address))


class DeviceArray:
    """GPU memory of the library's with __cuda_array_interface__: cupy.asarray(it) shares it."""

    def __init__(self, shape: Sequence[int], address: int, device: int, owner: Any) -> None:
        self.shape, self.address, self.device, self._owner = tuple(shape), address, device, owner

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "data": (self.address, False), "shape": self.shape, "strides": None,
                "typestr": "|u1"}
