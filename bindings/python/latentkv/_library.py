"""In: liblatentkv.so.0. Out: its functions, with types, raising what they return.

Looked for, in this order: the path in the environment variable LATENTKV_LIBRARY, the folder _lib of
this package (where a wheel has it, with liblatentkv_cuda.so beside it), the system's loader. A call
gives up the interpreter's lock; the library's last error belongs to the calling thread."""
from __future__ import annotations

import ctypes
import os
import pathlib
from typing import Any, Callable

from . import _abi, _errors

NAME = "liblatentkv.so.0"


def path() -> str:
    """Where the library comes from."""
    given = os.environ.get("LATENTKV_LIBRARY")
    inside = pathlib.Path(__file__).parent / "_lib" / NAME
    return given or (str(inside) if inside.exists() else NAME)


def _load() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(path(), mode=ctypes.RTLD_LOCAL)
    except OSError as failure:
        raise ImportError(f"latentkv needs {NAME} ({failure}); set LATENTKV_LIBRARY to its path, "
                          "or install the wheel, which carries it") from failure


_library = _load()


def _raise(status: int, function: Any, _arguments: Any) -> int:
    if status != _abi.LKV_OK:
        sentence = (call.lkv_last_error() or b"").decode()
        name = call.lkv_status_name(status).decode()
        raise _errors.error(status, name, sentence or name)
    return status


def _missing(name: str) -> Callable[..., Any]:
    def refuse(*_arguments: Any) -> Any:
        raise _errors.error(_abi.LKV_E_UNSUPPORTED, "LKV_E_UNSUPPORTED",
                            f"the loaded {NAME} is older than this package: it has no {name}")
    return refuse


class _Functions:
    """Each function of the header under its name."""

    def __init__(self) -> None:
        for name, (result, arguments) in _abi.FUNCTIONS.items():
            function = getattr(_library, name, None)
            if function is None:
                setattr(self, name, _missing(name))
                continue
            function.restype, function.argtypes = result, arguments
            if result is ctypes.c_int32:
                function.errcheck = _raise
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


call = _Functions()


def version() -> tuple[int, int, int]:
    """(major, minor, patch) of the library that was loaded."""
    number = call.lkv_version()
    return number // 1000000, number // 1000 % 1000, number % 1000
