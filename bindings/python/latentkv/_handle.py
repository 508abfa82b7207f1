"""In: a handle of the library and how it is released. Out: a holder that releases it exactly once:
on close(), at the end of a with block, when collected, or at exit, whichever comes first.

The library's objects hold their parents, so collection may go in any order."""
from __future__ import annotations

import ctypes
import weakref
from typing import Any, Callable

from . import _errors


class Reference:
    """One reference of the library's. What must outlive an object's last use keeps this."""

    def __init__(self, handle: int, release: Callable[[int], Any]) -> None:
        self._handle = handle
        self._finalizer = weakref.finalize(self, release, handle)

    @property
    def alive(self) -> bool:
        return self._finalizer.alive

    def close(self) -> None:
        self._finalizer()

    def detach(self) -> None:
        """Somebody else has released it."""
        self._finalizer.detach()

    def get(self, what: str) -> int:
        if not self._finalizer.alive:
            raise _errors.invalid(f"the {what} is closed")
        return self._handle


class Object:
    """Base of what the library creates. May be used as a context manager."""

    _reference: Reference

    def _create(self, function: Any, release: Any, *arguments: Any) -> None:
        out = ctypes.c_void_p()
        function(*arguments, ctypes.byref(out))
        if out.value is None:
            raise _errors.invalid(f"{type(self).__name__}: the library gave no object")
        self._reference = Reference(out.value, release)

    @property
    def handle(self) -> int:
        """The pointer, for C code that uses the same library."""
        return self._reference.get(type(self).__name__.lower())

    @property
    def closed(self) -> bool:
        return not self._reference.alive

    def close(self) -> None:
        """Gives the reference back. A second close does nothing; a use after it is refused."""
        self._reference.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()
