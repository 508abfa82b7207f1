"""In: an object with __dlpack__. Out: its DLTensor, read in place.

The capsule is kept, not consumed: dropping it lets its own destructor give the memory back."""
from __future__ import annotations

import ctypes
from typing import Any

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
READ_ONLY = 1
KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool", 10: "float8_e4m3"}


class Device(ctypes.Structure):
    type: int
    id: int
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class DType(ctypes.Structure):
    code: int
    bits: int
    lanes: int
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    data: int | None
    device: Device
    ndim: int
    dtype: DType
    shape: Any
    strides: Any
    byte_offset: int
    _fields_ = [("data", ctypes.c_void_p), ("device", Device), ("ndim", ctypes.c_int32),
                ("dtype", DType), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class Versioned(ctypes.Structure):
    flags: int
    tensor: Tensor
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32),
                ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
                ("flags", ctypes.c_uint64),
                ("tensor", Tensor)]


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)


def _capsule(array: Any) -> Any:
    """Without any synchronisation: the caller's stream orders the work (-1 in DLPack's words; JAX
    takes that for a stream's address, and orders nothing where it is given none)."""
    words: dict[str, Any] = {}
    on_gpu = array.__dlpack_device__()[0] in (CUDA, CUDA_MANAGED)
    if on_gpu and not type(array).__module__.startswith("jax"):
        words["stream"] = -1
    try:
        return array.__dlpack__(max_version=(1, 0), **words)
    except TypeError:  # a producer older than DLPack 1.0
        return array.__dlpack__(**words)


def read(array: Any) -> tuple[Any, Tensor, bool]:
    """(capsule to keep, tensor, read-only)."""
    capsule = _capsule(array)
    if _is_valid(capsule, b"dltensor_versioned"):
        managed = Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        return capsule, managed.tensor, bool(managed.flags & READ_ONLY)
    return capsule, Tensor.from_address(_pointer(capsule, b"dltensor")), False


def dtype_name(dtype: DType) -> str:
    kind = KINDS.get(dtype.code, f"code{dtype.code}_")
    if dtype.lanes != 1:
        return f"{kind}{dtype.bits}x{dtype.lanes}"
    return kind if kind in ("bool", "float8_e4m3") else f"{kind}{dtype.bits}"


def device(where: Device) -> tuple[int, bool]:
    """(-1 or the CUDA ordinal, whether both sides reach it)."""
    if where.type in (CPU, CUDA_HOST):
        return -1, where.type == CUDA_HOST
    return where.id, where.type == CUDA_MANAGED
