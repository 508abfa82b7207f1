"""latentkv as vLLM's latent KV cache: an attention backend, a CPU platform that lets it be chosen,
and a scheduler that runs latentkv's block manager. Nothing of vLLM is patched.

    vllm serve MODEL --attention-backend CUSTOM \\
        --additional-config '{"latentkv": {"format": "int8"}}'

The two functions here are vLLM's entry points; importing this module imports nothing of vLLM."""
from __future__ import annotations

__version__ = "0.1.0"
BACKEND = "latentkv_vllm.backend.LatentBackend"


def register() -> None:
    """vllm.general_plugins: called in every process of vLLM."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CUSTOM, BACKEND)


def platform() -> str | None:
    """vllm.platform_plugins: on a CPU, the platform that lets CUSTOM be chosen for MLA. Other
    devices keep their own, whose selectors know CUSTOM already."""
    from vllm.platforms import cpu_platform_plugin

    return "latentkv_vllm.platform.LatentCpuPlatform" if cpu_platform_plugin() else None
