"""examples/distributed.py with two processes on the CPU: heads split, keys split."""
from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

EXAMPLE = pathlib.Path(__file__).parents[3] / "examples/distributed.py"


@pytest.mark.parametrize("format", ["bf16", "int8"])
def test_two_ranks_give_what_one_gives(format):
    if not EXAMPLE.exists():
        pytest.skip("the examples are not beside the tests")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         str(EXAMPLE), format], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    assert f", {format}: heads split" in done.stdout
