"""The backend's classes on the CPU, against float64 attention; no model, no server."""
from __future__ import annotations

import types

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from vllm.config import VllmConfig, set_current_vllm_config  # noqa: E402
from vllm.model_executor.layers.linear import UnquantizedLinearMethod  # noqa: E402
from vllm.v1.attention.backend import CommonAttentionMetadata  # noqa: E402
from vllm.v1.kv_cache_interface import MLAAttentionSpec  # noqa: E402

from latentkv_vllm import backend, impl, settings  # noqa: E402

H, L, R, NOPE, V, BLOCK = 4, 64, 16, 32, 24, 16
SCALE = (NOPE + R) ** -0.5
# What a sequence has before this batch and how many rows in it: decodes, prefills, a chunk.
BATCH = [(37, 1), (0, 50), (64, 1), (30, 20), (15, 1), (0, 1)]


def config_of(**chosen):
    config = VllmConfig()
    config.additional_config = {"latentkv": chosen}
    return config


def impl_of(config, weight, heads=H, **words):
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    layer.quant_method = UnquantizedLinearMethod()
    words = {"alibi_slopes": None, "sliding_window": None, "kv_cache_dtype": "auto",
             "logits_soft_cap": None, "attn_type": "decoder", "kv_sharing_target_layer_name": None,
             **words}
    with set_current_vllm_config(config):
        made = impl.LatentImpl(
            heads, L + R, SCALE, 1, q_lora_rank=None, kv_lora_rank=L, qk_nope_head_dim=NOPE,
            qk_rope_head_dim=R, qk_head_dim=NOPE + R, v_head_dim=V, kv_b_proj=layer, **words)
    made.process_weights_after_loading(weight.dtype)
    return made


class World:
    """A cache in vLLM's shape with random tables, the batch, and float64 results."""

    def __init__(self, seed, dtype=torch.float32, gap=0, **chosen):
        self.random = torch.Generator().manual_seed(seed)
        self.config, self.dtype = config_of(**chosen), dtype
        self.weight = self.normal(H * (NOPE + V), L) / L ** 0.5
        bytes_each = settings.of(self.config).record_bytes(L, R)
        width = max(-(-(n + q) // BLOCK) for n, q in BATCH) + 2
        self.blocks = width * len(BATCH)
        whole = torch.zeros(self.blocks, BLOCK * bytes_each + gap, dtype=torch.uint8)
        self.cache = whole[:, :BLOCK * bytes_each].unflatten(1, (BLOCK, bytes_each))
        self.table = torch.randperm(self.blocks, generator=self.random).to(torch.int32).view(
            len(BATCH), width)
        self.latents = [self.normal(n + q, L) for n, q in BATCH]
        self.ropes = [self.normal(n + q, R) for n, q in BATCH]
        self.rows = sum(q for _, q in BATCH)
        self.q = self.normal(self.rows, H, NOPE + R)

    def normal(self, *shape):
        return torch.randn(*shape, generator=self.random).to(self.dtype)

    def slots(self, i, begin, end):
        at = torch.arange(begin, end)
        return self.table[i].long()[at // BLOCK] * BLOCK + at % BLOCK

    def write(self, layer, skip=False):
        """What was there before, then the batch's own rows with padding after them."""
        for i, (n, _) in enumerate(BATCH):
            if n:
                layer.do_kv_cache_update(self.latents[i][:n], self.ropes[i][:n, None], self.cache,
                                         self.slots(i, 0, n), "auto", None)
        new = [self.slots(i, n, n + q) for i, (n, q) in enumerate(BATCH)]
        pad = torch.full((3,), -1)
        rows = [torch.cat([x[i][n:] for i, (n, _) in enumerate(BATCH)] + [x[0][:3]])
                for x in (self.latents, self.ropes)]
        layer.do_kv_cache_update(rows[0], rows[1][:, None], self.cache, torch.cat(new + [pad]),
                                 "auto", None)

    def metadata(self, layer, max_query_len=50):
        lens = torch.tensor([n + q for n, q in BATCH], dtype=torch.int32)
        starts = torch.tensor([0] + [q for _, q in BATCH]).cumsum(0).to(torch.int32)
        fake = types.SimpleNamespace(
            additional_config=self.config.additional_config,
            scheduler_config=types.SimpleNamespace(max_num_batched_tokens=128, max_num_seqs=8),
            model_config=types.SimpleNamespace(dtype=self.dtype, max_model_len=200),
            compilation_config=types.SimpleNamespace(static_forward_context={
                "layer": types.SimpleNamespace(impl=layer, kv_cache=self.cache)}))
        builder = backend.LatentMetadataBuilder(None, ["layer"], fake, torch.device("cpu"))
        self.keep = (builder, lens, starts)
        return builder.build(0, CommonAttentionMetadata(
            query_start_loc=starts, query_start_loc_cpu=starts, seq_lens=lens,
            num_reqs=len(BATCH), num_actual_tokens=self.rows, max_query_len=max_query_len,
            max_seq_len=120, block_table_tensor=self.table, slot_mapping=torch.zeros(0)))

    def wanted(self):
        """float64 over the unquantised latents."""
        w = self.weight.double().view(H, NOPE + V, L)
        out, row = torch.empty(self.rows, H, V, dtype=torch.float64), 0
        for (n, q), latent, rope in zip(BATCH, self.latents, self.ropes):
            c, p = latent.double(), rope.double()
            keys = torch.einsum("tl,hnl->htn", c, w[:, :NOPE])
            values = torch.einsum("tl,hvl->htv", c, w[:, NOPE:])
            for j in range(q):
                x = self.q[row].double()
                s = SCALE * (torch.einsum("hn,htn->ht", x[:, :NOPE], keys) +
                             x[:, NOPE:] @ p.T)[:, :n + j + 1]
                out[row] = torch.einsum("ht,htv->hv", s.softmax(-1), values[:, :n + j + 1])
                row += 1
        return out


def distance(found, wanted):
    return ((found.double() - wanted).norm() / wanted.norm()).item()


BOUND = {"bf16": 4e-3, "fp8": 4e-2, "int8": 2e-2, "nvfp4": 1.3e-1}  # of the records, relative L2


@pytest.mark.parametrize("gap", [0, 64])
@pytest.mark.parametrize("format", BOUND)
def test_a_mixed_batch_is_one_call(format, gap):
    world = World(7, format=format, checked=True, gap=gap)
    layer = impl_of(world.config, world.weight)
    world.write(layer)
    metadata = world.metadata(layer)
    assert (metadata.num_decodes, metadata.num_prefills) == (0, len(BATCH))
    out = torch.full((world.rows, H * V), float("nan"))
    layer.forward_mha(world.q, None, None, world.cache, metadata, None, out)
    found = distance(out.view(-1, H, V), world.wanted())
    assert found < BOUND[format], f"{format}: relative L2 {found:.3g}, at most {BOUND[format]}"
    assert layer.pool(world.cache).faults().count == 0


def test_reading_back_is_exact_where_the_format_is():
    """The tolerance above is the format's: over values that BF16 holds, nothing is lost."""
    world = World(8, format="bf16", checked=True)
    world.latents = [x.bfloat16().float() for x in world.latents]
    world.ropes = [x.bfloat16().float() for x in world.ropes]
    layer = impl_of(world.config, world.weight)
    world.write(layer)
    out = torch.empty(world.rows, H * V)
    layer.forward_mha(world.q, None, None, world.cache, world.metadata(layer), None, out)
    assert distance(out.view(-1, H, V), world.wanted()) < 2e-6


DECODES = [(37, 1), (64, 1), (15, 1), (0, 1)]


@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("decode", ["auto", "head"])
def test_decodes_alone(decode, rotate, monkeypatch):
    monkeypatch.setattr("test_backend.BATCH", DECODES)
    world = World(12, format="int8", decode=decode, rotate=rotate, checked=True)
    layer = impl_of(world.config, world.weight)
    world.write(layer)
    metadata = world.metadata(layer, max_query_len=1)
    assert (metadata.num_prefills, metadata.scratch is not None) == (4, decode == "auto")
    out = torch.full((world.rows, H * V), float("nan"))
    layer.forward_mha(world.q, None, None, world.cache, metadata, None, out)
    assert distance(out.view(-1, H, V), world.wanted()) < BOUND["int8"]


@pytest.mark.parametrize("rotate", [False, True])
def test_decodes_that_vllm_absorbs(rotate, monkeypatch):
    monkeypatch.setattr("test_backend.BATCH", DECODES)
    world = World(9, format="int8", decode="vllm", rotate=rotate, checked=True)
    layer = impl_of(world.config, world.weight)
    world.write(layer)
    metadata = world.metadata(layer, max_query_len=1)
    assert (metadata.num_decodes, metadata.num_prefills) == (4, 0)
    w = world.weight.view(H, NOPE + V, L)
    absorbed = torch.einsum("thn,hnl->thl", world.q[..., :NOPE], w[:, :NOPE])
    for q in ((absorbed, world.q[..., NOPE:]), torch.cat((absorbed, world.q[..., NOPE:]), -1)):
        latent, lse = layer.forward_mqa(q, world.cache, metadata, None)
        out = torch.einsum("thl,hvl->thv", latent, w[:, NOPE:])
        assert lse is None and distance(out, world.wanted()) < BOUND["int8"]


def test_heads_of_two_ranks_are_the_heads_of_one():
    """Tensor parallel: each rank has half of kv_b_proj and the whole cache."""
    world = World(10, format="int8", checked=True)
    whole, out = impl_of(world.config, world.weight), torch.empty(world.rows, H * V)
    world.write(whole)
    whole.forward_mha(world.q, None, None, world.cache, world.metadata(whole), None, out)
    for rank in range(2):
        rows = slice(rank * H // 2 * (NOPE + V), (rank + 1) * H // 2 * (NOPE + V))
        part = impl_of(world.config, world.weight[rows].clone(), heads=H // 2)
        heads = slice(rank * H // 2, (rank + 1) * H // 2)
        found = torch.empty(world.rows, H // 2 * V)
        part.forward_mha(world.q[:, heads], None, None, world.cache, world.metadata(part), None,
                         found)
        assert distance(found.view(-1, H // 2, V), out.view(-1, H, V)[:, heads].double()) < 1e-6


@pytest.mark.parametrize("format,wanted", [("bf16", 1152), ("fp8", 656), ("int8", 656),
                                           ("nvfp4", 432)])
def test_vllm_counts_the_records_bytes(format, wanted, monkeypatch):
    chosen = settings.Settings(format=format)
    monkeypatch.setitem(impl._shapes, 576, (chosen, 512))
    spec = backend.LatentBackend.customize_spec(MLAAttentionSpec(
        block_size=64, num_kv_heads=1, head_size=576, dtype=torch.bfloat16))
    assert spec.page_size_bytes == 64 * wanted and spec.dtype == torch.uint8


def test_what_it_cannot_do_is_named():
    world = World(11)
    for words, name in (({"sliding_window": 128}, "sliding_window"),
                        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype"),
                        ({"alibi_slopes": [1.0]}, "alibi_slopes"),
                        ({"attn_type": "encoder"}, "attn_type")):
        with pytest.raises(NotImplementedError, match=name):
            impl_of(world.config, world.weight, **words)
    with pytest.raises(ValueError, match="uint8 records of"):
        impl_of(world.config, world.weight).pool(torch.zeros(4, 16, 80))
    assert not backend.LatentBackend.supports_block_size(48)
    assert backend.LatentBackend.supports_block_size(64)


def test_settings(monkeypatch):
    with pytest.raises(ValueError, match="format is 'int4'; need one of bf16, fp8, int8, nvfp4"):
        settings.of(config_of(format="int4"))
    with pytest.raises(ValueError, match="unknown setting 'fromat'"):
        settings.of(config_of(fromat="int8"))
    monkeypatch.setenv("LATENTKV_FORMAT", "nvfp4")
    assert settings.of(config_of()).format == "nvfp4"
    assert settings.of(config_of(format="fp8")).format == "fp8"
