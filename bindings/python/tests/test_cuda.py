"""On a GPU with PyTorch: the same calls on its tensors, streams and graphs. Skipped without."""
from __future__ import annotations

import numpy as np
import pytest

import latentkv
import reference
from conftest import FORMATS, same

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU that PyTorch can use", allow_module_level=True)

L, R, H, SCALE, LENGTHS = 512, 64, 16, 0.1352, [1, 100, 640]


@pytest.fixture(scope="module")
def gpu():
    try:
        return latentkv.Context("cuda:0")
    except latentkv.UnsupportedError as failure:
        pytest.skip(str(failure))


class Filled:
    """An engine's pool over torch memory, three sequences of random latents, a decode plan."""

    def __init__(self, gpu, form):
        torch.manual_seed(7)
        config = latentkv.PoolConfig(format=form, latent_dim=L, rope_dim=R, num_blocks=32,
                                     owner="engine")
        self.memory = torch.zeros(config.block_info().total_bytes, dtype=torch.uint8, device="cuda")
        self.pool = latentkv.Pool(gpu, config, memory=self.memory)
        self.table = torch.arange(30, dtype=torch.int32, device="cuda").reshape(3, 10)
        self.lens = torch.tensor(LENGTHS, dtype=torch.int32, device="cuda")
        slots = [i * 640 + torch.arange(n) for i, n in enumerate(LENGTHS)]
        self.slots = torch.cat(slots).cuda()
        self.latent = torch.randn(len(self.slots), L, device="cuda", dtype=torch.bfloat16)
        self.rope = torch.randn(len(self.slots), R, device="cuda", dtype=torch.bfloat16)
        self.stream = torch.cuda.current_stream()
        self.pool.append(self.latent, self.rope, self.slots, stream=self.stream)
        self.q = torch.randn(3, H, L, device="cuda", dtype=torch.bfloat16) / 4
        self.q_rope = torch.randn(3, H, R, device="cuda", dtype=torch.bfloat16)
        self.out = torch.full((3, H, L), float("nan"), device="cuda", dtype=torch.bfloat16)
        self.lse = torch.full((3, H), float("nan"), device="cuda")
        self.plan = latentkv.Plan(self.pool, num_heads=H, max_seqs=3, max_seq_len=640,
                                  q_dtype="bfloat16")
        self.plan.update(self.batch(), workspace=torch.empty(
            self.plan.workspace_bytes, dtype=torch.uint8, device="cuda"), stream=self.stream)

    def batch(self):
        return latentkv.Batch(self.table, self.lens)

    def attend(self, stream):
        self.plan.attend(self.q, self.q_rope, self.out, lse=self.lse, scale=SCALE, stream=stream)

    def compare(self, lengths):
        got = torch.empty(len(self.slots), L, device="cuda")
        got_rope = torch.empty(len(self.slots), R, device="cuda")
        self.pool.gather(self.slots, got, got_rope, stream=self.stream)
        keys, rope = got.cpu().numpy(), got_rope.cpu().numpy()
        q, q_rope = self.q.float().cpu().numpy(), self.q_rope.float().cpu().numpy()
        first = np.cumsum([0] + LENGTHS)
        for i, n in enumerate(lengths):
            out, lse, _ = reference.attend(q[i], q_rope[i], keys[first[i]:], rope[first[i]:], n,
                                           SCALE)
            same(self.out[i].float().cpu().numpy(), out, 3e-3, f"out of {i}")
            np.testing.assert_allclose(self.lse[i].cpu().numpy(), lse, rtol=0, atol=3e-3)


@pytest.mark.parametrize("form", FORMATS)
def test_decode(gpu, form):
    filled = Filled(gpu, form)
    filled.attend(filled.stream)
    filled.compare(LENGTHS)
    assert filled.pool.faults().count == 0 and filled.memory.any()


@pytest.mark.parametrize("form", FORMATS)
def test_a_graph_replays_with_other_lengths(gpu, form):
    filled = Filled(gpu, form)
    filled.attend(filled.stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        here = torch.cuda.current_stream()
        filled.plan.update(filled.batch(), stream=here)
        filled.attend(here)
    for lengths in (LENGTHS, [1, 37, 600]):
        filled.lens.copy_(torch.tensor(lengths, dtype=torch.int32))
        filled.out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        filled.compare(lengths)


def test_jax_on_the_gpu(gpu, monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax")
    try:
        device = jax.devices("gpu")[0]
    except RuntimeError as failure:
        pytest.skip(str(failure))
    latent, rope = (jax.block_until_ready(jax.device_put(np.full((2, n), 0.5, np.float32), device))
                    for n in (L, R))
    filled, out = Filled(gpu, "bf16"), torch.zeros(2, L, device="cuda")
    filled.pool.append(latent, rope, filled.slots[:2], stream=filled.stream)
    filled.pool.gather(filled.slots[:2], out, stream=filled.stream)
    assert (out == 0.5).all()


def test_what_is_refused_before_the_gpu_sees_it(gpu):
    filled = Filled(gpu, "int8")
    with pytest.raises(latentkv.InvalidError, match="CUDA device 0"):
        filled.pool.append(filled.latent.cpu(), filled.rope, filled.slots)
    with pytest.raises(latentkv.InvalidError, match="num_tokens is missing"):
        latentkv.Batch(filled.table[:2], filled.lens[:2], filled.lens)
    with pytest.raises(latentkv.WorkspaceError, match="bytes of the GPU"):
        latentkv.Plan(filled.pool, num_heads=H, max_seqs=3, max_seq_len=640,
                      q_dtype="bfloat16").update(filled.batch())
