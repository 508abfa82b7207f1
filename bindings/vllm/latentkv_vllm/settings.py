"""In: the user's choice, {"latentkv": {...}} of vLLM's --additional-config, or LATENTKV_FORMAT.
Out: Settings. vLLM's own --kv-cache-dtype is a closed list, so it stays "auto" and says nothing
here."""
from __future__ import annotations

import dataclasses
import os
from typing import Any

import latentkv

FORMATS = ("bf16", "fp8", "int8", "nvfp4")
DECODES = ("auto", "head", "batched", "vllm")


@dataclasses.dataclass(frozen=True)
class Settings:
    """format         of a cached token: bf16, fp8, int8, nvfp4
    rotate         latents are stored after a Hadamard rotation (int8: half the error)
    symmetric      int8 without a zero point
    four_over_six  nvfp4: two scales are tried for each group
    decode         where W_UK and W_UV are applied in a batch of decodes alone: "head", in attend;
                   "batched", by latentkv before and after it; "vllm", by vLLM's own layer;
                   "auto", batched on a CPU (attend there rereads them for each sequence), else head
    threads        of latentkv on the CPU; 0: as many as PyTorch has
    checked        CPU: a fault in the data (a value that is not finite) is an error of the engine
    partial        LatentScheduler: hits inside a block, by copying it
    headroom       LatentScheduler: share of the blocks that is kept back (fallback_headroom)"""

    format: str = "bf16"
    rotate: bool = False
    symmetric: bool = False
    four_over_six: bool = False
    decode: str = "auto"
    threads: int = 0
    checked: bool = False
    partial: bool = True
    headroom: float = 0.0

    def __post_init__(self) -> None:
        for name, value, known in (("format", self.format, FORMATS),
                                   ("decode", self.decode, DECODES)):
            if value not in known:
                raise ValueError(f"latentkv: {name} is {value!r}; need one of {', '.join(known)}")

    def pool_config(self, latent_dim: int, rope_dim: int, tokens_per_block: int,
                    num_blocks: int = 1, **more: Any) -> latentkv.PoolConfig:
        """Of an engine's pool over one layer. The RoPE section is stored as it comes."""
        return latentkv.PoolConfig(
            format=self.format, latent_dim=latent_dim, rope_dim=rope_dim, rope_style="none",
            owner="engine", num_blocks=num_blocks, tokens_per_block=tokens_per_block,
            rotate=self.rotate, symmetric=self.symmetric, four_over_six=self.four_over_six, **more)

    def record_bytes(self, latent_dim: int, rope_dim: int) -> int:
        """What one token costs in one layer."""
        return self.pool_config(latent_dim, rope_dim, 64).block_info().record_bytes


def parse(given: dict[str, Any]) -> Settings:
    known = [field.name for field in dataclasses.fields(Settings)]
    for name in given:
        if name not in known:
            raise ValueError(f"latentkv: unknown setting {name!r}; need one of {', '.join(known)}")
    if "format" not in given and os.environ.get("LATENTKV_FORMAT"):
        given = {**given, "format": os.environ["LATENTKV_FORMAT"]}
    return Settings(**given)


def of(vllm_config: Any) -> Settings:
    """The settings of a VllmConfig."""
    more = getattr(vllm_config, "additional_config", None)
    return parse(dict(more.get("latentkv") or {}) if isinstance(more, dict) else {})
