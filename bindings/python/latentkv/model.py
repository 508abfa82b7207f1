"""Models: the dimensions and positional constants of one MLA model."""
from __future__ import annotations

import ctypes
import dataclasses

from . import _abi
from ._arguments import choice, host_array
from ._library import call

ROPE_STYLES = {"none": _abi.LKV_ROPE_NONE, "interleaved": _abi.LKV_ROPE_INTERLEAVED,
               "half": _abi.LKV_ROPE_HALF}


@dataclasses.dataclass(frozen=True)
class Model:
    """H = num_heads (of this rank), L = latent_dim, R = rope_dim. dataclasses.replace() changes
    one, for example the heads of a tensor-parallel rank."""

    num_layers: int
    num_heads: int
    latent_dim: int
    rope_dim: int
    nope_dim: int
    v_dim: int
    softmax_scale: float
    rope_style: str = "interleaved"
    rope_theta: float = 10000.0
    yarn_original_positions: int = 0
    yarn_factor: float = 0.0
    yarn_beta_fast: float = 32.0
    yarn_beta_slow: float = 1.0
    yarn_mscale: float = 0.0
    yarn_mscale_all_dim: float = 0.0
    rope_factors: tuple[float, ...] | None = None

    @staticmethod
    def presets() -> list[str]:
        """The names that preset() knows."""
        names: list[str] = []
        while (name := call.lkv_model_preset_name(len(names))) is not None:
            names.append(name.decode())
        return names

    @classmethod
    def preset(cls, name: str) -> "Model":
        """A named model, such as "v3" or "v2-lite". NotFoundError lists the names."""
        desc = _abi.lkv_model_desc()
        call.lkv_model_preset(name.encode(), desc)
        values = {field.name: getattr(desc, field.name) for field in dataclasses.fields(cls)}
        values["rope_style"] = {v: k for k, v in ROPE_STYLES.items()}[desc.rope_style]
        if desc.rope_factors:
            numbers = (ctypes.c_double * (desc.rope_dim // 2)).from_address(desc.rope_factors)
            values["rope_factors"] = tuple(numbers)
        return cls(**values)

    def descriptor(self) -> _abi.lkv_model_desc:
        """The struct of the ABI, which keeps what it points at."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        factors = host_array("rope_factors", values.pop("rope_factors"), "float64")
        values["rope_style"] = choice("rope_style", self.rope_style, ROPE_STYLES)
        desc = _abi.lkv_model_desc(**values, rope_factors=factors.address)
        desc.keep = factors
        return desc
