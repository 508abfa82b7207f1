"""latentkv: paged attention over a quantised latent KV cache, from Python.

    ctx = latentkv.Context("cpu")
    pool = latentkv.Pool(ctx, format="int8", latent_dim=512, rope_dim=64, num_blocks=1024)
    seq = pool.admit(tokens)                                  # which blocks hold the prompt
    step = pool.step([seq], num_rows=[len(tokens)], row_begin=[0])
    pool.append(latent, rope, step.slots)                     # quantise into them
    plan = latentkv.Plan(pool, num_heads=16, max_seqs=1, max_q_len=512, max_seq_len=4096)
    plan.update(step)
    plan.attend(q, q_rope, out, scale=scale)                  # attend over them

Arrays are NumPy, PyTorch, CuPy, JAX or anything with DLPack, __array_interface__ or
__cuda_array_interface__; they are never copied. Failures are exceptions with the library's
sentence. latentkv.moe has routers, the entropy gate, fallback experts and slots. The library itself
is liblatentkv.so.0; latentkv.h and moe_cache.h are its reference."""
from . import moe
from ._errors import (BusyError, CublasError, CudaError, FileError, InternalError, InvalidError,
                      LatentKVError, NeverFitsError, NoBlocksError, NoHostSpaceError, NoMemoryError,
                      NotFoundError, StaleHitError, UnsupportedError, VersionError,
                      WaitPendingError, WorkspaceError)
from ._library import path as library_path
from ._library import version as library_version
from .context import Context
from .model import Model
from .plan import Batch, Plan
from .pool import Event, Events, Lease, Plane, Pool, PoolConfig
from .rope import Rope
from .sequence import Key, Prompt, Sequence, Step
from .tensor import HostArray, View, as_dtype, host, view
from .weights import Weights

__version__ = "0.1.0"
__all__ = [
    "Batch", "BusyError", "Context", "CublasError", "CudaError", "Event", "Events", "FileError",
    "HostArray", "InternalError", "InvalidError", "Key", "LatentKVError", "Lease", "Model",
    "NeverFitsError", "NoBlocksError", "NoHostSpaceError", "NoMemoryError", "NotFoundError", "Plan",
    "Plane", "Pool", "PoolConfig", "Prompt", "Rope", "Sequence", "StaleHitError", "Step",
    "UnsupportedError",
    "VersionError", "View", "WaitPendingError", "Weights", "WorkspaceError", "as_dtype", "host",
    "library_path", "library_version", "moe", "view",
]
