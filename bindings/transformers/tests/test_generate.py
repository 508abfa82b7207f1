"""generate() over the latent cache against transformers' own attention and the golden text."""
from __future__ import annotations

import pytest
import torch

import latentkv_hf

FORMATS = ["bf16", "fp8", "int8", "nvfp4"]
MARGIN = 0.06  # an engine may leave the greedy path where two tokens are this close
WORDS = dict(do_sample=False, pad_token_id=2, eos_token_id=None)


@pytest.fixture(scope="module")
def reference(load):
    return load(torch.float32, attn_implementation="eager")


@pytest.fixture(scope="module")
def model(load):
    return latentkv_hf.attach(load(torch.float32))


def cache_of(model, format="bf16", **words):
    return latentkv_hf.LatentCache(model, format=format, **words)


def continued(model, ids, tokens, **words):
    out = model.generate(ids, max_new_tokens=tokens, **{**WORDS, **words})
    return out[:, ids.shape[1]:]


def leaves_at(found, wanted):
    return next((i for i, (a, b) in enumerate(zip(found, wanted)) if a != b), len(wanted))


@pytest.mark.parametrize("name", ["dev0", "dev1"])
@pytest.mark.parametrize("format", ["bf16", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_the_golden_text(load, golden, name, format, dtype):
    model = latentkv_hf.attach(load(dtype))
    text = golden[name]
    found = continued(model, torch.tensor([text["token_ids"]]), 64,
                      past_key_values=cache_of(model, format))[0].tolist()
    step = leaves_at(found, text["greedy"])
    print(f"{name} {dtype} {format}: {step} of 64")
    assert step == 64 or text["greedy_top2_margin"][step] < MARGIN, (
        f"{name}, {dtype} over {format}: leaves at step {step}, margin "
        f"{text['greedy_top2_margin'][step]}; token {found[step]}, want {text['greedy'][step]}")


@pytest.mark.parametrize("name,limit", [("dev0", 0.015), ("dev1", 0.015)])
@pytest.mark.parametrize("format", FORMATS)
def test_perplexity(model, golden, name, limit, format):
    """Negative log likelihood of a document, in two passes (the second over a cache)."""
    ids = torch.tensor([golden[name]["token_ids"][:2048]])
    cache = cache_of(model, format)
    with torch.no_grad():
        parts = [model(ids[:, a:b], past_key_values=cache, use_cache=True).logits
                 for a, b in ((0, 1500), (1500, 2048))]
    logits = torch.cat(parts, dim=1)[0, :-1].float()
    nll = torch.nn.functional.cross_entropy(logits, ids[0, 1:])
    from safetensors.torch import load_file

    from conftest import MODEL

    wanted = load_file(MODEL / f"golden/{name}.safetensors")["nll"][:2047].mean()
    change = torch.expm1(nll - wanted).item()
    print(f"{name} {format}: perplexity {100 * change:+.3f} %")
    assert change < limit, f"{name} over {format}: perplexity {100 * change:+.3f} %"


@pytest.mark.parametrize("format", ["bf16", "int8"])
def test_a_padded_batch(reference, model, golden, format):
    """Left padding has no rows and no slots; the shorter prompt gives what it gives alone."""
    pad = 77
    two = torch.full((2, 200), 2)
    two[0] = torch.tensor(golden["dev0"]["token_ids"][:200])
    two[1, pad:] = torch.tensor(golden["dev1"]["token_ids"][:200 - pad])
    mask = torch.ones_like(two)
    mask[1, :pad] = 0
    wanted = continued(reference, two, 24, attention_mask=mask)
    cache = cache_of(model, format)
    found = continued(model, two, 24, attention_mask=mask, past_key_values=cache)
    assert found.tolist() == wanted.tolist()
    assert [len(seq) for seq in cache._sequences] == [223, 223 - pad]  # the last is not fed back


def test_beams_share_blocks(reference, model, golden):
    ids = torch.tensor([golden["dev0"]["token_ids"][:200]])
    cache = cache_of(model, max_tokens=2048)
    found = continued(model, ids, 24, num_beams=3, past_key_values=cache)
    assert found.tolist() == continued(reference, ids, 24, num_beams=3).tolist()
    stats = cache.pool.stats
    assert stats.copied_blocks > 0 and stats.blocks_in_use < 3 * 4  # three whole blocks are shared
    cache.pool.check()


def test_crop_and_reset(model, golden):
    ids = torch.tensor([golden["dev1"]["token_ids"][:150]])
    cache = cache_of(model)
    wanted = continued(model, ids, 16, past_key_values=cache)
    cache.crop(-16)  # 149 columns are left: the last of the 16 was not fed back
    assert cache.get_seq_length() == 149
    again = torch.cat((ids, wanted[:, :0]), dim=1)
    assert continued(model, again, 16, past_key_values=cache).tolist() == wanted.tolist()
    cache.reset()
    assert cache.get_seq_length() == 0 and cache.pool.stats.seqs_live == 0
    assert continued(model, ids, 16, past_key_values=cache).tolist() == wanted.tolist()


def test_a_rotated_cache(load, golden):
    model = latentkv_hf.attach(load(torch.float32), rotate=True)
    ids = torch.tensor([golden["dev0"]["token_ids"][:300]])
    plain = latentkv_hf.attach(load(torch.float32))
    wanted = continued(plain, ids, 16, past_key_values=cache_of(plain, "bf16"))
    found = continued(model, ids, 16, past_key_values=cache_of(model, "int8", rotate=True))
    assert found.tolist() == wanted.tolist()


def test_mistakes_are_named(load, model, golden):
    ids = torch.tensor([golden["dev0"]["token_ids"][:10]])
    with pytest.raises(TypeError, match="need a LatentCache"):
        continued(model, ids, 2)
    with pytest.raises(RuntimeError, match="attach"):
        continued(load(torch.float32), ids, 2, past_key_values=cache_of(model))
    with pytest.raises(TypeError, match="DeepseekV3Attention"):
        latentkv_hf.attach(torch.nn.Linear(2, 2))
