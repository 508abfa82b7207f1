"""In: a status of the library. Out: the exception of its class, with the library's sentence.

Every class is a LatentKVError; those that match a built-in exception are that too."""
from __future__ import annotations

from typing import Any

from . import _abi


class LatentKVError(Exception):
    """A status other than LKV_OK. ``status`` is its number, ``name`` its name in the header."""

    status: int = -1
    name: str = "LKV_E_?"
    admission: _abi.lkv_admission | None = None
    """What was needed and what was free, where the block manager was asked for blocks."""
    failed_row: int | None = None
    """Of Pool.step(): the first row that could not be served."""


class InvalidError(LatentKVError, ValueError):
    """An argument is wrong."""


class UnsupportedError(LatentKVError, NotImplementedError):
    """Right, but this build, device or version cannot do it."""


class VersionError(LatentKVError):
    """A struct carries fields that the loaded library does not know."""


class NoMemoryError(LatentKVError, MemoryError):
    """Host or device memory, or threads."""


class NoBlocksError(LatentKVError):
    """Not enough blocks now; may succeed after a free."""


class WorkspaceError(LatentKVError, ValueError):
    """The workspace given is too small or missing."""


class NeverFitsError(LatentKVError):
    """Needs more blocks than the pool can ever give."""


class WaitPendingError(LatentKVError):
    """Enough blocks once fences have passed."""


class NoHostSpaceError(LatentKVError):
    """The host tier is full."""


class FileError(LatentKVError, OSError):
    """A file cannot be read or written; the sentence says why."""


class CudaError(LatentKVError):
    """The CUDA runtime said no; the sentence has its words."""


class CublasError(LatentKVError):
    """Likewise cuBLAS."""


class BusyError(LatentKVError):
    """Live users stand in the way."""


class StaleHitError(LatentKVError):
    """The match no longer holds: match again."""


class NotFoundError(LatentKVError, LookupError):
    """Unknown or stale handle, or unknown name."""


class InternalError(LatentKVError):
    """A bug in latentkv."""


CLASSES: dict[int, type[LatentKVError]] = {
    _abi.LKV_E_INVALID: InvalidError,
    _abi.LKV_E_UNSUPPORTED: UnsupportedError,
    _abi.LKV_E_VERSION: VersionError,
    _abi.LKV_E_NO_MEMORY: NoMemoryError,
    _abi.LKV_E_NO_BLOCKS: NoBlocksError,
    _abi.LKV_E_WORKSPACE: WorkspaceError,
    _abi.LKV_E_NEVER_FITS: NeverFitsError,
    _abi.LKV_E_WAIT_PENDING: WaitPendingError,
    _abi.LKV_E_NO_HOST_SPACE: NoHostSpaceError,
    _abi.LKV_E_IO: FileError,
    _abi.LKV_E_CUDA: CudaError,
    _abi.LKV_E_CUBLAS: CublasError,
    _abi.LKV_E_BUSY: BusyError,
    _abi.LKV_E_STALE_HIT: StaleHitError,
    _abi.LKV_E_NOT_FOUND: NotFoundError,
    _abi.LKV_E_INTERNAL: InternalError,
}


def error(status: int, name: str, sentence: str) -> LatentKVError:
    """The exception for a status, not raised."""
    found = CLASSES.get(status, LatentKVError)(sentence)
    found.status, found.name = status, name
    return found


def invalid(sentence: str) -> InvalidError:
    """What the package itself refuses before it calls the library."""
    found = InvalidError(sentence)
    found.status, found.name = _abi.LKV_E_INVALID, "LKV_E_INVALID"
    return found


def with_admission(function: Any, admission: _abi.lkv_admission, *arguments: Any) -> None:
    """Calls function; a failure carries the admission result that the library filled."""
    try:
        function(*arguments)
    except LatentKVError as failure:
        failure.admission = admission
        raise
