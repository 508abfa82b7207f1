"""In: PyTorch tensors and devices. Out: latentkv's views and contexts of the same memory.

A context is made once a device. On the CPU vLLM binds its OpenMP threads to one core each, the
calling one too; threads made by it would all sit on that core, so the library's get the cores of
all of them."""
from __future__ import annotations

import functools
import os
from typing import Any

import latentkv
import torch

NAMES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16",
         torch.float8_e4m3fn: "float8_e4m3", torch.int32: "int32", torch.int64: "int64",
         torch.uint8: "uint8"}


def view(tensor: torch.Tensor) -> latentkv.View:
    """As latentkv.view(tensor), which goes by DLPack, at a tenth of the time."""
    return latentkv.View(tensor.data_ptr(), NAMES[tensor.dtype], tensor.shape, tensor.stride(),
                         -1 if tensor.device.type == "cpu" else tensor.device.index or 0,
                         owner=tensor)


def stream(device: torch.device) -> int | None:
    """The current stream's address; None on the CPU."""
    return None if device.type == "cpu" else torch.cuda.current_stream(device).cuda_stream


def _cores() -> set[int]:
    """The cores of this process's threads that are bound to one each."""
    bound: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        try:
            cores = os.sched_getaffinity(int(task))
        except OSError:  # it has ended
            continue
        if len(cores) == 1:
            bound |= cores
    return bound


@functools.lru_cache(maxsize=None)
def context(device: torch.device, threads: int = 0) -> latentkv.Context:
    """The context of a device; threads: of the CPU's, 0: as many as PyTorch has."""
    if device.type != "cpu":
        return latentkv.Context(f"cuda:{device.index or 0}")
    before, cores = os.sched_getaffinity(0), _cores()
    if cores:
        os.sched_setaffinity(0, cores)
    try:
        return latentkv.Context("cpu", num_threads=threads or torch.get_num_threads())
    finally:
        os.sched_setaffinity(0, before)


def workspace(plan: latentkv.Plan, device: torch.device) -> Any:
    """A plan's workspace: the library's own on the CPU, a tensor on a GPU."""
    if device.type == "cpu":
        return None
    return torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=device)
