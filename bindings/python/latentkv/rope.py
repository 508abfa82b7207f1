"""RoPE tables: cos and sin of a model's positions."""
from __future__ import annotations

from typing import Any

from . import _handle
from ._arguments import device_array, stream as stream_of, tensor
from ._library import call
from .context import Context
from .model import Model
from .tensor import ArrayLike


class Rope(_handle.Object):
    """Tables for positions [0, num_positions). Immutable; may be shared between threads."""

    def __init__(self, context: Context, model: Model, num_positions: int) -> None:
        self.device = context.device
        self._create(call.lkv_rope_create, call.lkv_rope_release, context.handle,
                     model.descriptor(), num_positions)

    def apply(self, x: ArrayLike, positions: ArrayLike, out: ArrayLike | None = None, *,
              stream: Any = None) -> None:
        """Turns x [T, R] or [T, H, R] by positions int32 [T]. out: like x; None: in place."""
        where = device_array("positions", positions, "int32", self.device)
        call.lkv_rope_apply(self.handle, tensor("x", x, self.device, out is None),
                            tensor("out", x if out is None else out, self.device, True),
                            where.address, stream_of(stream))
