"""Routers, gate, fallback and combination against float64 twins written from their definitions."""
from __future__ import annotations

import gc

import numpy as np
import pytest

import latentkv
from conftest import floats, same
from latentkv import _abi, moe


def v3_twin(logits, bias, top_k, groups, kept):
    """Experts by falling score, weights: one token after another."""
    experts, weights = [], []
    for row in logits.astype(np.float64):
        score = 1 / (1 + np.exp(-row))
        biased = score + bias
        members = biased.reshape(groups, -1)
        best = np.argsort(-np.sort(members, axis=1)[:, -2:].sum(axis=1), kind="stable")[:kept]
        allowed = np.full(members.shape, -np.inf)
        allowed[best] = members[best]
        chosen = np.argsort(-allowed.ravel(), kind="stable")[:top_k]
        experts.append(chosen)
        weights.append(2.5 * score[chosen] / score[chosen].sum())
    return np.array(experts), np.array(weights)


def test_a_v3_router_equals_its_twin(ctx, rng):
    x, weight, bias = floats(rng, 33, 64), floats(rng, 16, 64) / 8, floats(rng, 16) / 10
    router = moe.Router(ctx, num_experts=16, top_k=4, hidden_dim=64, weight=weight, bias=bias,
                        num_groups=4, topk_groups=2, normalise=True, routed_scale=2.5)
    experts, weights = np.zeros((33, 4), np.int32), np.zeros((33, 4), np.float32)
    logits, entropy = np.zeros((33, 16), np.float32), np.zeros(33, np.float32)
    load = np.full(16, 7, np.uint64)
    router.route(x, experts=experts, weights=weights, logits=logits, entropy=entropy, load=load)
    same(logits, x.astype(np.float64) @ weight.T.astype(np.float64), 1e-6, "logits")
    wanted, wanted_weights = v3_twin(logits, bias, 4, 4, 2)
    assert np.array_equal(experts, wanted)
    same(weights, wanted_weights, 1e-6, "weights")
    score = 1 / (1 + np.exp(-logits.astype(np.float64)))
    p = score / score.sum(axis=1, keepdims=True)
    same(entropy, -(p * np.log(p)).sum(axis=1), 1e-6, "entropy")
    assert np.array_equal(load, 7 + np.bincount(experts.ravel(), minlength=16))


def test_given_logits_and_a_trace_router(ctx, rng):
    logits = floats(rng, 5, 8)
    router = moe.Router(ctx, kind="trace", num_experts=8, temperature=1.5)
    experts, weights = np.zeros((5, 1), np.int32), np.zeros((5, 1), np.float32)
    router.route(logits=logits, experts=experts, weights=weights)
    e = np.exp(logits.astype(np.float64) / 1.5)
    assert np.array_equal(experts[:, 0], logits.argmax(axis=1))
    same(weights[:, 0], (e / e.sum(axis=1, keepdims=True)).max(axis=1), 1e-6, "weights")


def test_a_trace_router_reads_its_layer(ctx, rng):
    """Two linear layers with a GELU; the number of the layer is the last input."""
    from math import erf
    x, w1, b1 = floats(rng, 4, 32), floats(rng, 16, 33) / 6, floats(rng, 16)
    w2, b2 = floats(rng, 8, 16), floats(rng, 8)
    router = moe.Router(ctx, kind="trace", num_experts=8, hidden_dim=32, trace_dim=16, weight=w2,
                        bias=b2, trace_weight=w1, trace_bias=b1)
    experts, logits = np.zeros((4, 1), np.int32), np.zeros((4, 8), np.float32)
    for layer in (0, 3):
        router.route(x, experts=experts, logits=logits, layer=layer)
        h = np.hstack([x, np.full((4, 1), layer)]).astype(np.float64) @ w1.T + b1
        h = h * (1 + np.vectorize(erf)(h / np.sqrt(2))) / 2
        same(logits, h @ w2.T + b2, 1e-5, f"logits of layer {layer}")


def test_what_a_router_refuses(ctx):
    with pytest.raises(latentkv.InvalidError, match=r"weight is .*need a dense float32\[8, 32\]"):
        moe.Router(ctx, num_experts=8, hidden_dim=32, weight=np.zeros((8, 31), np.float32))
    with pytest.raises(latentkv.InvalidError, match="need one of 'trace', 'v3'"):
        moe.Router(ctx, num_experts=8, kind="v4")
    router = moe.Router(ctx, num_experts=8, top_k=2)
    logits = np.zeros((3, 8), np.float32)
    with pytest.raises(latentkv.InvalidError, match=r"experts is .*need a dense int32\[3, 2\]"):
        router.route(logits=logits, experts=np.zeros((3, 1), np.int32))
    fixed = np.zeros((3, 2), np.int32)
    fixed.flags.writeable = False
    with pytest.raises(latentkv.InvalidError, match="read-only"):
        router.route(logits=logits, experts=fixed)


def test_a_gate_follows_its_window(rng):
    gate = moe.Gate(window_steps=3, threshold=1.0, stddevs=0.5)
    seen = []
    for step in range(3):
        entropy = np.abs(floats(rng, 6, 4)) + step
        triggered, reduced = np.zeros(6, np.uint8), np.zeros(6, np.float32)
        active = np.array([1, 1, 1, 1, 1, 0], np.uint8)
        found = gate.step(entropy, triggered, active=active, reduced=reduced)
        means = entropy.astype(np.float64).mean(axis=1)[:5]
        same(reduced[:5], means, 1e-6, "reduced")
        assert triggered.tolist() == [*(means > 1.0).astype(int), 0]
        assert found == (int((means > 1.0).sum()), 0)
        seen += means.tolist()
    assert gate.threshold == pytest.approx(np.mean(seen) + 0.5 * np.std(seen), rel=1e-6)
    gate.freeze()
    state = gate.save()
    assert (state.windows, state.total, state.frozen) == (1, 15, 1)
    other = moe.Gate(window_steps=3)
    other.load(state)
    assert other.threshold == gate.threshold
    with pytest.raises(latentkv.InvalidError):
        moe.Gate(window_steps=2).load(_abi.lkv_gate_state(steps=3))


def test_a_gate_skips_what_is_not_finite():
    gate, triggered = moe.Gate(threshold=1.0), np.zeros(3, np.uint8)
    assert gate.step(np.array([np.nan, 2, 0.5], np.float32), triggered) == (1, 1)
    assert triggered.tolist() == [0, 1, 0]


def fnv1a(index):
    h = 0x811C9DC5
    for byte in int(index).to_bytes(4, "little"):
        h = (h ^ byte) * 0x01000193 % 2 ** 32
    return h


@pytest.mark.parametrize("policy", ["fnv1a", "lcg"])
def test_fallback_hashes(policy):
    primary, out = np.array([*range(16), -1], np.int32), np.zeros(17, np.int32)
    found = moe.choose_fallback(primary, out, num_experts=16, policy=policy)
    for p, f in zip(primary[:16], out):
        index = (fnv1a(p) if policy == "fnv1a" else int(p) * 16777619 + 1000000007) % 16
        assert f == (index if index != p else (index + 1) % 16)
    assert out[16] == -1 and found == (16, 0)


def test_fallback_tables_and_residence():
    primary, out = np.array([0, 1, 2, 3], np.int32), np.zeros(4, np.int32)
    words = {"num_experts": 4, "triggered": np.array([1, 1, 0, 1], np.uint8)}
    table = np.array([2, 1, 0, 1], np.int32)
    assert moe.choose_fallback(primary, out, policy="buddy", buddy=table, **words) == (2, 0)
    assert out.tolist() == [2, -1, -1, 1]  # 1's buddy is itself
    away = np.array([1, 1, 0, 1], np.uint8)
    found = moe.choose_fallback(primary, out, policy="buddy", buddy=table, resident=away, **words)
    assert found == (1, 1) and out.tolist() == [-1, -1, -1, 1]
    assert moe.choose_fallback(primary, out, policy="shared", shared_expert=9, **words) == (3, 0)
    assert out.tolist() == [9, 9, -1, 9]


def test_combine(ctx, rng):
    primary, fallback, weight = floats(rng, 6, 32), floats(rng, 6, 32), floats(rng, 6)
    chosen = np.array([3, -1, 0, 5, -1, 2], np.int32)
    out = np.empty_like(primary)
    rows = (chosen >= 0)[:, None]
    extra = weight[:, None].astype(np.float64) * fallback
    for mode, wanted in (("add", np.where(rows, primary + extra, primary)),
                         ("substitute", np.where(rows, extra, primary))):
        count = moe.combine(ctx, primary, fallback, out, chosen=chosen, weight=weight, mode=mode)
        same(out, wanted, 1e-6, mode)
        assert count == 4
    assert moe.combine(ctx, primary, None, out, chosen=chosen, mode="stat_only") == 4
    assert np.array_equal(out, primary)


def test_token_scale(ctx, rng):
    scale, made, norms = moe.TokenScale(0.5, 2.0), np.zeros(8, np.float32), []
    for call in range(3):
        x = (call + 1) * floats(rng, 8, 16)
        scale.measure(ctx, x, made)
        each = np.linalg.norm(x.astype(np.float64), axis=1)
        mean = np.mean(norms) if norms else each.mean()
        same(made, np.clip(each / mean, 0.5, 2.0), 1e-6, f"call {call}")
        norms += each.tolist()
    assert scale.count == 24 and scale.mean == pytest.approx(np.mean(norms))


def test_a_hit_brings_the_trace(ctx):
    plane = latentkv.Plane(16 * 2 * 3 * 2, tag=1)
    pool = latentkv.Pool(ctx, format="int8", latent_dim=64, rope_dim=16, num_blocks=8,
                         tokens_per_block=16, planes=[plane])
    trace = moe.Trace(pool, 0, num_layers=2, top_k=3)
    seq = pool.admit(range(32))
    slots = np.asarray(pool.step([seq], num_rows=[32], row_begin=[0]).slots)
    experts = np.arange(96, dtype=np.int32).reshape(32, 3)
    experts[5, 2] = -1
    trace.write(slots, experts, layer=1)
    seq.commit(32)
    seq.free()
    again = pool.admit(range(40))
    places = [16 * block + i for block in again.table()[:2] for i in range(16)]
    found = np.zeros((33, 3), np.int32)
    trace.read(np.array([*places, -1]), found, layer=1)
    assert np.array_equal(found[:32], experts) and found[32].tolist() == [-1, -1, -1]


def test_signals(ctx):
    load = np.array([10, 10, 20, 0], np.uint64)
    gate, triggered = moe.Gate(threshold=1.0), np.zeros(4, np.uint8)
    gate.step(np.array([0, 2, 0, 0], np.float32), triggered)
    found = moe.measure(load, gate=gate)
    p = np.array([0.25, 0.25, 0.5])
    assert found.utilisation_nats == pytest.approx(-(p * np.log(p)).sum())
    assert (found.experts, found.experts_used, found.routed) == (4, 3, 40)
    assert (found.trigger_rate, found.gate_triggered) == (0.25, 1)
    assert found.outside & _abi.LKV_MOE_UTILISATION_LOW
    assert found.outside & _abi.LKV_MOE_TRIGGER_HIGH
    assert found.experts_overloaded == 1  # 20 is twice the mean
    calm = moe.measure(load, gate=gate, overload_factor=2.5, utilisation=(0.5, 2), trigger=(0, 0.5))
    assert calm.outside == 0
    text = moe.metrics_text(load, gate=gate, labels='model="a"')
    assert 'model="a"' in text and "latentkv_moe_" in text


# ---- slots


@pytest.fixture
def lender(ctx):
    """13 blocks, 3 of them headroom."""
    return latentkv.Pool(ctx, format="int8", latent_dim=64, rope_dim=16, num_blocks=13,
                         tokens_per_block=16, fallback_headroom=0.30)


def test_a_payload_is_written_once_and_found_again(lender):
    slots = moe.Slots(lender, payload_bytes=256)
    key = moe.SlotKey.free(7, layer=0)
    assert slots.get([key])[0].state == "miss"
    new = slots.get([key], create=True)[0]
    assert (new.state, slots.get([key])[0].state) == ("new", "filling")
    np.asarray(new.payload)[:] = np.arange(256)
    slots.commit([new])
    found = slots.get(np.array([[_abi.LKV_SLOT_KEY_FREE, 0, 0, 7]], np.uint32), pin=True)[0]
    assert found.state == "ready" and np.asarray(found.payload).tolist() == list(range(256))
    assert slots.stats.slots_pinned == 1
    slots.unpin([found])
    with pytest.raises(latentkv.NotFoundError, match="pinned"):
        slots.unpin([found])
    assert slots.erase([key]) == 1 and slots.get([key])[0].state == "miss"
    stats = slots.stats
    assert (stats.created, stats.hits, stats.slots_ready) == (1, 1, 0)
    lender.check()


def test_a_token_s_payload_goes_with_its_block(lender):
    slots = moe.Slots(lender, payload_bytes=64)
    seq = lender.admit(range(32))
    seq.commit(32)
    key = moe.SlotKey.token(seq.table()[1], 3)
    slots.commit(slots.get([key], create=True))
    seq.free()
    assert slots.get([key])[0].state == "ready"  # the block is cached
    lender.evict(8)
    assert slots.get([key])[0].state == "miss" and slots.stats.dropped == 1


def test_the_callback_fills(lender):
    def fill(key, payload):
        if key.index == 3:
            raise KeyError("no such expert")
        np.asarray(payload)[:] = key.index

    slots = moe.Slots(lender, payload_bytes=32, fill=fill)
    made = slots.get([moe.SlotKey.free(i) for i in range(3)], create=True, fill=True)
    assert [one.state for one in made] == ["ready"] * 3
    assert [np.asarray(one.payload)[31] for one in made] == [0, 1, 2]
    with pytest.raises(KeyError, match="no such expert"):
        slots.get([moe.SlotKey.free(i) for i in (4, 3)], create=True, fill=True)
    assert [one.state for one in slots.get([moe.SlotKey.free(i) for i in (4, 3)])] == [
        "ready", "miss"]
    lender.check()


def test_the_budget_is_kept_and_the_headroom_comes_back(lender):
    slots = moe.Slots(lender, payload_bytes=1000, max_blocks=1)
    total = slots.stats.slots_total
    keys = [moe.SlotKey.free(i) for i in range(total + 2)]
    pinned = slots.get(keys[:total], create=True, pin=True)
    slots.commit(pinned)
    assert [one.state for one in slots.get(keys[total:], create=True)] == ["refused", "refused"]
    slots.unpin(pinned)
    assert slots.get(keys[total:total + 1], create=True)[0].state == "new"
    assert (slots.stats.evicted, lender.stats.blocks_lent) == (1, 1)
    slots.close()
    assert lender.stats.blocks_lent == 0
    with pytest.raises(latentkv.InvalidError, match="closed"):
        slots.get(keys)


def test_any_order_of_collection(ctx):
    pool = latentkv.Pool(ctx, format="int8", latent_dim=64, rope_dim=16, num_blocks=13,
                         tokens_per_block=16, fallback_headroom=0.30)
    slots = moe.Slots(pool, payload_bytes=64, fill=lambda _key, payload: None)
    payload = np.asarray(slots.get([moe.SlotKey.free(1)], create=True, fill=True)[0].payload)
    del pool
    gc.collect()
    payload[:] = 1  # the memory is still there
    del slots
    gc.collect()
    assert payload.sum() == 64
