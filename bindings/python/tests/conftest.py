"""What every test file needs: a context, seeded numbers, a pool that is filled."""
from __future__ import annotations

import numpy as np
import pytest

import latentkv

FORMATS = ["bf16", "fp8", "int8", "nvfp4"]


@pytest.fixture(scope="session")
def ctx():
    return latentkv.Context("cpu", num_threads=2)


@pytest.fixture
def rng(request):
    seed = sum(request.node.name.encode())
    print(f"seed {seed}")  # shown when the test fails
    return np.random.default_rng(seed)


@pytest.fixture
def blocks(ctx):
    """A small pool of metadata, as a scheduler would use it: 8 blocks of 16 tokens."""
    return latentkv.Pool(ctx, format="int8", latent_dim=64, rope_dim=16, num_blocks=8,
                         tokens_per_block=16, metadata_only=True)


def floats(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def same(found, wanted, tolerance, what):
    """Relative L2 distance; names the worst element."""
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    assert found.shape == wanted.shape, (what, found.shape, wanted.shape)
    distance = np.linalg.norm(found - wanted) / max(np.linalg.norm(wanted), 1e-30)
    worst = np.unravel_index(np.argmax(np.abs(found - wanted)), found.shape)
    assert distance <= tolerance, (f"{what}: relative L2 {distance:.3g}, at most {tolerance:g}; "
                                   f"worst at {worst}: {found[worst]} and {wanted[worst]}")
