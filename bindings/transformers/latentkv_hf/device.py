"""In: PyTorch tensors and devices. Out: latentkv's views, contexts and streams for the same
memory."""
from __future__ import annotations

import functools

import latentkv
import torch

NAMES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16",
         torch.int32: "int32", torch.int64: "int64", torch.uint8: "uint8"}


def view(tensor: torch.Tensor) -> latentkv.View:
    """As latentkv.view(tensor), which goes by DLPack, at a tenth of the time; grad does not
    matter."""
    return latentkv.View(tensor.data_ptr(), NAMES[tensor.dtype], tensor.shape, tensor.stride(),
                         -1 if tensor.device.type == "cpu" else tensor.device.index or 0,
                         owner=tensor)


def stream(device: torch.device) -> int | None:
    """The current stream's address; None on the CPU."""
    return None if device.type == "cpu" else torch.cuda.current_stream(device).cuda_stream


@functools.lru_cache(maxsize=None)
def context(device: torch.device) -> latentkv.Context:
    """One a device; on the CPU with as many threads as PyTorch has."""
    if device.type == "cpu":
        return latentkv.Context("cpu", num_threads=torch.get_num_threads())
    return latentkv.Context(f"cuda:{device.index or 0}")
