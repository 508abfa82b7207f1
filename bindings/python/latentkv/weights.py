"""Weights: W_UK and W_UV of one layer, and the two projections around absorbed attention."""
from __future__ import annotations

import ctypes
from typing import Any

from . import _abi, _handle
from ._arguments import choice, stream as stream_of, tensor, workspace as workspace_of
from ._library import call
from .context import Context
from .model import Model
from .tensor import DTYPES, ArrayLike


class Weights(_handle.Object):
    """kv_b_proj [H * (nope + v), L] as in checkpoints: of each head first the nope rows, then the v
    rows; float32, float16, bfloat16 or float8_e4m3 (then with scales, fp32 [ceil(rows / 128),
    ceil(L / 128)]). It is copied. rotate: for pools that rotate. May be shared between threads.

    Or, with kv_b_proj None, the projector of a latent_gqa pool (lkv fit-projector finds one):
    key_up [G, nope, L], value_up [G, v, L_v], and in the same shapes key_down and value_down, with which
    Pool.append projects; the model's nope_dim is a key's whole dimension, its rope_dim 0."""

    def __init__(self, context: Context, model: Model, kv_b_proj: ArrayLike | None = None, *,
                 scales: ArrayLike | None = None, compute_dtype: str | None = None,
                 rotate: bool = False, key_up: ArrayLike | None = None,
                 value_up: ArrayLike | None = None, key_down: ArrayLike | None = None,
                 value_down: ArrayLike | None = None) -> None:
        self.device = context.device
        desc = _abi.lkv_weights_desc(
            kv_b_proj=tensor("kv_b_proj", kv_b_proj, self.device),
            scales=tensor("scales", scales, self.device),
            compute_dtype=choice("compute_dtype", compute_dtype or 0, DTYPES),
            flags=_abi.LKV_WEIGHTS_ROTATE if rotate else 0,
            key_up=tensor("key_up", key_up, self.device),
            value_up=tensor("value_up", value_up, self.device),
            key_down=tensor("key_down", key_down, self.device),
            value_down=tensor("value_down", value_down, self.device))
        self._create(call.lkv_weights_create, call.lkv_weights_release, context.handle,
                     model.descriptor(), desc)

    def workspace_bytes(self, num_tokens: int) -> int:
        """Workspace that either projection needs for up to num_tokens rows."""
        found = ctypes.c_size_t()
        call.lkv_project_workspace(self.handle, num_tokens, ctypes.byref(found))
        return found.value

    def project_q(self, q_nope: ArrayLike, q_latent: ArrayLike, *,
                  workspace: ArrayLike | None = None, stream: Any = None) -> None:
        """q_latent [T, H, L] = q_nope [T, H, nope] . W_UK. On a GPU with the caller's workspace."""
        self._project(call.lkv_project_q, ("q_nope", q_nope), ("q_latent", q_latent), workspace,
                      stream)

    def project_out(self, o_latent: ArrayLike, out: ArrayLike, *,
                    workspace: ArrayLike | None = None, stream: Any = None) -> None:
        """out [T, H, v] = W_UV . o_latent [T, H, L]. On a GPU the workspace is the caller's."""
        self._project(call.lkv_project_out, ("o_latent", o_latent), ("out", out), workspace, stream)

    def _project(self, function: Any, source: tuple[str, Any], target: tuple[str, Any],
                 workspace: ArrayLike | None, stream: Any) -> None:
        given = tensor(*source, self.device)
        wanted = tensor(*target, self.device, True)
        space = workspace_of(workspace, self.workspace_bytes(given.contents.shape[0]), self.device)
        function(self.handle, given, wanted, space.address, space.length, stream_of(stream))
