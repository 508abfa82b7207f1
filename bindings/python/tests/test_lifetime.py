"""Objects may go in any order, once, also at exit and after a fork."""
from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import threading

import numpy as np
import pytest

import latentkv

SHAPE = dict(format="int8", latent_dim=64, rope_dim=16, num_blocks=8, tokens_per_block=16)
MODEL = latentkv.Model(num_layers=1, num_heads=2, latent_dim=64, rope_dim=16, nope_dim=16, v_dim=16,
                       softmax_scale=0.1)


def family():
    ctx = latentkv.Context("cpu", num_threads=1)
    pool = latentkv.Pool(ctx, **SHAPE)
    return {"context": ctx, "pool": pool, "sequence": pool.admit(range(20)),
            "plan": latentkv.Plan(pool, num_heads=2, max_seqs=1, max_seq_len=64),
            "weights": latentkv.Weights(ctx, MODEL, np.ones((64, 64), "f4")),
            "rope": latentkv.Rope(ctx, MODEL, 32)}


@pytest.mark.parametrize("how", ["delete", "close"])
def test_every_order(how):
    for order in itertools.permutations(family()):
        held = family()
        for name in order:
            gone = held.pop(name)
            if how == "close" and hasattr(gone, "close"):
                gone.close()
                gone.close()
            del gone
    gc.collect()


def test_a_plan_outlives_the_names_of_its_parents():
    ctx = latentkv.Context("cpu", num_threads=1)
    pool = latentkv.Pool(ctx, **SHAPE)
    plan = latentkv.Plan(pool, num_heads=2, max_seqs=1, max_seq_len=64)
    ctx.close()
    with pytest.raises(latentkv.InvalidError, match="context is closed"):
        latentkv.Pool(ctx, **SHAPE)
    plan.update(latentkv.Batch(np.array([[1]], np.int32), np.array([3], np.int32)))
    out = np.empty((1, 2, 64), "f4")
    plan.attend(np.ones((1, 2, 64), "f4"), np.ones((1, 2, 16), "f4"), out, scale=0.1)
    assert not out.any()  # block 1 is zero


def test_cycles_are_collected():
    for _ in range(50):
        held = family()
        held["context"].cycle = held
        held["pool"].cycle = held
    gc.collect()


def test_a_collected_sequence_gives_its_blocks_back(blocks):
    seq = blocks.admit(range(100))
    assert blocks.stats.blocks_in_use == 7
    del seq
    gc.collect()
    assert blocks.stats.blocks_in_use == 0


def test_records_keep_their_pool():
    view = np.asarray(latentkv.Pool(latentkv.Context("cpu", num_threads=1), **SHAPE).records())
    gc.collect()
    assert view.shape == (9, 16, 64 + 16 + 32) and not view.any()


def test_context_managers():
    with latentkv.Context("cpu", num_threads=1) as ctx, latentkv.Pool(ctx, **SHAPE) as pool:
        with pool.admit(range(5)) as seq:
            assert len(seq) == 5
    assert ctx.closed and pool.closed and seq.closed
    with pytest.raises(latentkv.InvalidError, match="pool is closed"):
        pool.check()


def test_exit_with_everything_alive():
    code = ("import latentkv, sys\nctx = latentkv.Context('cpu', log=lambda *_: None)\n"
            "pool = latentkv.Pool(ctx, format='int8', latent_dim=64, rope_dim=16, num_blocks=8)\n"
            "seq = pool.admit(range(20))\nsys.held = (seq, pool, ctx)\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done


def test_after_fork_the_child_starts_anew():
    """In a process of its own: a test run may have other libraries' threads."""
    code = (
        "import latentkv, os\n"
        "shape = dict(format='int8', latent_dim=64, rope_dim=16, num_blocks=8)\n"
        "pool = latentkv.Pool(latentkv.Context('cpu'), **shape)\nseq = pool.admit(range(5))\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n        pool.check()\n"
        "    except latentkv.InvalidError:\n"
        "        latentkv.Pool(latentkv.Context('cpu'), **shape).check()\n"
        "        raise SystemExit(0)\n"
        "    raise SystemExit(1)\n"
        "assert os.waitpid(child, 0)[1] == 0\npool.check()\nassert len(seq) == 5\n")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True,
                          text=True, check=False)  # Python 3.12 warns of any fork
    assert (done.returncode, done.stderr) == (0, ""), done


def test_collected_in_another_thread():
    held = family()
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    gc.collect()
