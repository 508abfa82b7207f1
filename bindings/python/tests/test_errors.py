"""Each status as its exception, with the library's sentence."""
from __future__ import annotations

import ctypes

import numpy as np
import pytest

import latentkv
from latentkv import _abi, _errors
from latentkv._library import call

STATUSES = {name: value for name, value in vars(_abi).items() if name.startswith("LKV_E_")}


@pytest.mark.parametrize("name", STATUSES)
def test_every_status_has_a_class(name):
    kind = _errors.CLASSES[STATUSES[name]]
    assert call.lkv_status_name(STATUSES[name]) == name.encode()
    raised = _errors.error(STATUSES[name], name, "3 of 4")
    assert type(raised) is kind and isinstance(raised, latentkv.LatentKVError)
    assert (raised.status, raised.name, str(raised)) == (STATUSES[name], name, "3 of 4")
    assert kind.__doc__ and len({*_errors.CLASSES.values()}) == len(STATUSES)


def longer_struct():
    """A struct of a newer header, with data where this library knows nothing."""
    class Longer(ctypes.Structure):
        _fields_ = [("old", _abi.lkv_context_desc), ("more", ctypes.c_uint64)]
    given = Longer(_abi.lkv_context_desc(device=-1), 5)
    given.old.size = ctypes.sizeof(given)
    out = ctypes.c_void_p()
    call.lkv_context_create(ctypes.cast(ctypes.pointer(given),
                                        ctypes.POINTER(_abi.lkv_context_desc)), ctypes.byref(out))


def small_workspace(ctx, _blocks):
    pool = latentkv.Pool(ctx, format="int8", latent_dim=64, rope_dim=16, num_blocks=4)
    plan = latentkv.Plan(pool, num_heads=2, max_seqs=1, max_seq_len=64)
    assert plan.workspace_bytes > 16
    plan.update(latentkv.Batch(np.zeros((1, 1), np.int32), np.ones(1, np.int32)),
                workspace=np.zeros(16, np.uint8))


def stale_ticket(_ctx, blocks):
    seq = blocks.admit(range(32))
    seq.commit(32)
    match = blocks.match(range(33))
    blocks.reset(force=True)
    blocks.admit(range(33), match=match)


def live_cache(_ctx, blocks):
    seq = blocks.admit(range(32))
    blocks.reset()
    len(seq)


def no_blocks(_ctx, blocks):
    seq = blocks.admit(range(128))
    blocks.admit(range(200, 216))
    len(seq)


def pending(_ctx, blocks):
    blocks.admit(latentkv.Prompt(range(128), publish=False)).free(fence=1)
    blocks.admit(range(16))


PROVOKED = [
    (latentkv.InvalidError, lambda ctx, _: latentkv.Pool(
        ctx, format="int8", latent_dim=63, rope_dim=16, num_blocks=4), "63"),
    (latentkv.UnsupportedError, lambda *_: latentkv.Model.preset("glm-5"), "sparse"),
    (latentkv.VersionError, lambda *_: longer_struct(), "40 bytes"),
    (latentkv.NoBlocksError, no_blocks, "block"),
    (latentkv.WorkspaceError, small_workspace, "16"),
    (latentkv.NeverFitsError, lambda _, blocks: blocks.admit(range(1000)), "8"),
    (latentkv.WaitPendingError, pending, "fence"),
    (latentkv.BusyError, live_cache, "2"),
    (latentkv.StaleHitError, stale_ticket, "match"),
    (latentkv.NotFoundError, lambda *_: latentkv.Model.preset("gpt-2"), "v2-lite"),
]


@pytest.mark.parametrize("kind, provoke, word", PROVOKED, ids=lambda x: getattr(x, "__name__", ""))
def test_the_library_raises(ctx, blocks, kind, provoke, word):
    with pytest.raises(kind) as failure:
        provoke(ctx, blocks)
    assert type(failure.value) is kind and word in str(failure.value), str(failure.value)
    assert len(str(failure.value)) > 20
    blocks.check()


def test_no_cuda_is_said(tmp_path):
    """On a machine without a GPU or without liblatentkv_cuda.so: a reason, and the CPU goes on."""
    try:
        latentkv.Context("cuda:63")
    except (latentkv.UnsupportedError, latentkv.InvalidError) as failure:
        assert "CUDA" in str(failure) or "device" in str(failure), str(failure)
    else:
        pytest.fail("a 64th GPU")
    assert latentkv.Context("cpu", num_threads=1).info.device == -1


def test_built_in_classes_too():
    with pytest.raises(ValueError):
        latentkv.Context("tpu")
    with pytest.raises(LookupError):
        latentkv.Model.preset("nobody")
    with pytest.raises(ValueError, match="'int9'; need one of 'bf16'"):
        latentkv.PoolConfig(format="int9", latent_dim=64, rope_dim=16, num_blocks=4).block_info()


def test_the_failed_row_of_a_step(blocks):
    seqs = [blocks.admit([i]) for i in range(2)]
    with pytest.raises(latentkv.NoBlocksError) as failure:
        blocks.step(seqs, num_new=[1, 16 * 7], into=latentkv.Step(2, 200, 8))
    assert failure.value.failed_row == 1 and failure.value.admission.needed > 6
    assert [len(seq) for seq in seqs] == [1, 1]


def test_checked_calls_name_the_fault(ctx):
    pool = latentkv.Pool(ctx, format="int8", latent_dim=64, rope_dim=16, num_blocks=4)
    latent, rope = np.zeros((2, 64), "f4"), np.zeros((2, 16), "f4")
    slots = np.array([64, 9999], np.int64)
    with pytest.raises(latentkv.InvalidError, match="9999"):
        pool.append(latent, rope, slots)
    pool.append(latent, rope, slots, checked=False)
    faults = pool.faults(clear=True)
    assert faults.count >= 1 and faults.first_kind == _abi.LKV_FAULT_SLOT
    assert pool.faults().count == 0
