"""Append, attend, gather, project, merge, end to end against float64."""
from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import latentkv
import reference
from conftest import FORMATS, floats, same

L, R, H, SCALE = 512, 64, 5, 0.1352


def pool_of(ctx, form, **more):
    return latentkv.Pool(ctx, format=form, latent_dim=L, rope_dim=R, num_blocks=64, **more)


def elementwise_bound(form, x):
    """|x - x'| at most, from docs/formats.md."""
    if form == "bf16":
        return np.abs(x) * 2.0 ** -8
    if form == "fp8":
        amax = np.repeat(np.abs(x.reshape(-1, L // 128, 128)).max(-1), 128, -1).reshape(x.shape)
        return np.abs(x) * 2.0 ** -4 + amax / 448 * 2.0 ** -10
    if form == "int8":
        return np.broadcast_to(0.52 * (x.max(-1) - x.min(-1))[:, None] / 255, x.shape)
    amax = np.repeat(np.abs(x.reshape(-1, L // 16, 16)).max(-1), 16, -1).reshape(x.shape)
    return amax / 6 * (1 + 2.0 ** -4) * 1.001  # half the widest gap (4 to 6) of a rounded scale


@pytest.mark.parametrize("form", FORMATS)
def test_gather_is_what_was_appended(ctx, rng, form):
    pool = pool_of(ctx, form, owner="engine")
    latent, rope = floats(rng, 100, L), floats(rng, 100, R)
    slots = rng.permutation(64 * 64)[:100].astype(np.int64)
    pool.append(latent, rope, slots)
    got, got_rope = np.full((100, L), np.nan, "f4"), np.full((100, R), np.nan, "f4")
    pool.gather(slots, got, got_rope)
    excess = np.abs(got - latent) - elementwise_bound(form, latent)
    assert excess.max() <= 0, (np.unravel_index(excess.argmax(), excess.shape), excess.max())
    assert (np.abs(got_rope - rope) <= np.abs(rope) * 2.0 ** -8).all()
    assert not np.array_equal(got, latent)


def attend_ragged(ctx, pool, rng, q_lens, lengths, **plan_words):
    """Sequences of these lengths, of each the last q_lens tokens as queries; returns everything."""
    seqs = [pool.admit(rng.integers(0, 1000, n), max_tokens=n) for n in lengths]
    whole = pool.step(seqs, num_rows=lengths, row_begin=[0] * len(seqs))
    total = sum(lengths)
    latent, rope = floats(rng, total, L), floats(rng, total, R)
    pool.append(latent, rope, whole.slots)
    begins = [n - q for n, q in zip(lengths, q_lens)]
    step = pool.step(seqs, num_rows=q_lens, row_begin=begins, table_width=16)
    rows = sum(q_lens)
    q, q_rope = floats(rng, rows, H, L) / 4, floats(rng, rows, H, R)
    out = np.full((rows, H, L), np.nan, "f4")
    lse, entropy = np.full((rows, H), np.nan, "f4"), np.full((rows, H), np.nan, "f4")
    bias = floats(rng, len(seqs), max(lengths))
    plan = latentkv.Plan(pool, num_heads=H, max_seqs=len(seqs), max_tokens=rows,
                         max_q_len=max(q_lens), max_seq_len=max(lengths), **plan_words)
    plan.update(step)
    plan.attend(q, q_rope, out, scale=SCALE, lse=lse, entropy=entropy, bias=bias)
    got, got_rope = np.empty_like(latent), np.empty_like(rope)
    pool.gather(whole.slots, got, got_rope)
    row, first = 0, 0
    for i, (n, q_len) in enumerate(zip(lengths, q_lens)):
        for j in range(q_len):
            wanted = reference.attend(q[row], q_rope[row], got[first:first + n],
                                      got_rope[first:first + n], n - q_len + j + 1, SCALE, bias[i])
            yield (out[row], lse[row], entropy[row]), wanted
            row += 1
        first += n
    assert row == rows
    pool.check()


@pytest.mark.parametrize("form", FORMATS)
def test_attend_over_ragged_sequences(ctx, rng, form):
    pool = pool_of(ctx, form)
    for found, wanted in attend_ragged(ctx, pool, rng, [1, 7, 1, 70], [1, 130, 64, 100]):
        same(found[0], wanted[0], 1e-4, "out")
        np.testing.assert_allclose(found[1], wanted[1], rtol=0, atol=1e-4, err_msg="lse")
        np.testing.assert_allclose(found[2], wanted[2], rtol=0, atol=1e-3, err_msg="entropy")


def test_attend_in_a_rotated_pool(ctx, rng):
    """Latents are stored rotated: queries are rotated, outputs rotated back."""
    pool = pool_of(ctx, "int8", rotate=True)
    seq = pool.admit(range(90))
    step = pool.step([seq], num_rows=[90], row_begin=[0])
    latent, rope = floats(rng, 90, L), floats(rng, 90, R)
    pool.append(latent, rope, step.slots)
    q, q_rope, out = floats(rng, 1, H, L) / 4, floats(rng, 1, H, R), np.empty((1, H, L), "f4")
    turned = q.copy()
    ctx.rotate(turned)
    plan = latentkv.Plan(pool, num_heads=H, max_seqs=1, max_seq_len=90)
    plan.update(pool.step([seq], num_rows=[1], row_begin=[89]))
    plan.attend(turned, q_rope, out, scale=SCALE)
    ctx.rotate(out)
    got, got_rope = np.empty_like(latent), np.empty_like(rope)
    pool.gather(step.slots, got, got_rope)
    same(got, latent, 0.02, "records")
    same(out[0], reference.attend(q[0], q_rope[0], got, got_rope, 90, SCALE)[0], 1e-4, "out")


@pytest.mark.parametrize("form", FORMATS)
def test_head_form_with_weights_and_rope(ctx, rng, form):
    """q as projected, RoPE fused into append, W_UK and W_UV inside attend; both paths of it."""
    model = dataclasses.replace(latentkv.Model.preset("v2-lite"), num_heads=4, yarn_factor=0.0,
                                yarn_original_positions=0)
    nope, v, heads = model.nope_dim, model.v_dim, 4
    kv_b = floats(rng, heads * (nope + v), L) / 20
    weights = latentkv.Weights(ctx, model, kv_b)
    table = latentkv.Rope(ctx, model, 256)
    pool = pool_of(ctx, form, rope_style=model.rope_style)
    seq, n = pool.admit(range(80)), 80
    step = pool.step([seq], num_rows=[n], row_begin=[0])
    latent, rope = floats(rng, n, L), floats(rng, n, R)
    pool.append(latent, rope, step.slots, rope_table=table, positions=step.positions)
    got, got_rope = np.empty_like(latent), np.empty_like(rope)
    pool.gather(step.slots, got, got_rope)
    turned = reference.rope(rope, np.arange(n), model.rope_theta, model.rope_style)
    same(got_rope, turned, 2.0 ** -8, "rope")
    q, q_rope = floats(rng, n, heads, nope), floats(rng, n, heads, R)
    given = q_rope.copy()
    table.apply(q_rope, step.positions)
    same(q_rope, reference.rope(given, np.arange(n), model.rope_theta, model.rope_style), 1e-6,
         "q_rope")
    parts = kv_b.reshape(heads, nope + v, L).astype(np.float64)
    q_latent = np.einsum("thn,hnl->thl", q.astype(np.float64), parts[:, :nope])
    wanted = np.stack([
        np.einsum("hl,hvl->hv", reference.attend(q_latent[t], q_rope[t], got, got_rope, t + 1,
                                                 SCALE)[0], parts[:, nope:]) for t in range(n)])
    for threshold in (1, 2 ** 32 - 1):  # decompressed, absorbed
        plan = latentkv.Plan(pool, num_heads=heads, max_seqs=1, max_q_len=n, max_seq_len=n,
                             q_form="head", out_form="head", nope_dim=nope, v_dim=v,
                             absorb_threshold=threshold)
        out = np.full((n, heads, v), np.nan, "f4")
        plan.update(step)
        plan.attend(q, q_rope, out, scale=SCALE, weights=weights)
        same(out, wanted, 1e-4, f"out, threshold {threshold}")
    found, back = np.empty((n, heads, L), "f4"), np.empty((n, heads, v), "f4")
    weights.project_q(q, found)
    same(found, q_latent, 1e-5, "project_q")
    weights.project_out(found, back)
    same(back, np.einsum("thl,hvl->thv", q_latent, parts[:, nope:]), 1e-5, "project_out")


def test_two_halves_merge_into_the_whole(ctx, rng):
    pool = pool_of(ctx, "int8", owner="engine")
    latent, rope = floats(rng, 128, L), floats(rng, 128, R)
    pool.append(latent, rope, np.arange(128, dtype=np.int64))
    q, q_rope = floats(rng, 1, H, L) / 4, floats(rng, 1, H, R)
    plan = latentkv.Plan(pool, num_heads=H, max_seqs=1, max_seq_len=128)

    def over(table, out, lse, entropy):
        plan.update(latentkv.Batch(np.array([table], np.int32),
                                   np.array([64 * len(table)], np.int32)))
        plan.attend(q, q_rope, out, scale=SCALE, lse=lse, entropy=entropy)

    outs = np.empty((2, 1, H, L), "f4")
    lses, ents = np.empty((2, 1, H), "f4"), np.empty((2, 1, H), "f4")
    for part in range(2):
        over([part], outs[part], lses[part], ents[part])
    whole, lse, entropy = np.empty((1, H, L), "f4"), np.empty((1, H), "f4"), np.empty((1, H), "f4")
    over([0, 1], whole, lse, entropy)
    joined = np.empty_like(whole), np.empty_like(lse), np.empty_like(entropy)
    ctx.merge(outs, lses, joined[0], entropies=ents, lse=joined[1], entropy=joined[2])
    same(joined[0], whole, 1e-5, "out")
    same(joined[1], lse, 1e-5, "lse")
    same(joined[2], entropy, 1e-4, "entropy")


def test_engine_memory_holds_the_records(ctx, rng):
    """The caller's own array is the cache: bytes appear in it, and another pool reads them."""
    config = latentkv.PoolConfig(format="nvfp4", latent_dim=L, rope_dim=R, num_blocks=4,
                                 num_layers=2, owner="engine")
    info = config.block_info()
    assert (info.record_bytes, info.block_bytes, info.total_bytes) == (432, 432 * 64, 432 * 64 * 8)
    room = latentkv.host(info.total_bytes, "uint8")
    memory = np.asarray(room)
    assert memory.ctypes.data == room.address
    pool = latentkv.Pool(ctx, config, memory=room)
    pool.append(floats(rng, 3, L), floats(rng, 3, R), np.array([5, -1, 200], np.int64), layer=1)
    records = memory.reshape(2, 4, 64, 432)
    used = {tuple(int(i) for i in where) for where in np.argwhere(records.any(-1))}
    assert used == {(1, 0, 5), (1, 3, 8)}
    assert np.shares_memory(np.asarray(pool.records(1)), memory)
    layers = [memory.reshape(2, -1)[i] for i in range(2)]
    other = latentkv.Pool(ctx, config, layer_memory=layers)
    a, b = np.empty((1, L), "f4"), np.empty((1, L), "f4")
    pool.gather(np.array([200], np.int64), a, layer=1)
    other.gather(np.array([200], np.int64), b, layer=1)
    assert np.array_equal(a, b) and a.any()


def test_padding_rows_touch_nothing(ctx, rng):
    pool = pool_of(ctx, "int8")
    seq = pool.admit(range(10))
    step = pool.step([None, seq], num_rows=[0, 10], row_begin=[0, 0])
    assert step.seq_lens.tolist() == [0, 10] and step.q_indptr.tolist() == [0, 0, 10]
    pool.append(floats(rng, 10, L), floats(rng, 10, R), step.slots)
    step = pool.step([None, seq], num_rows=[0, 1], row_begin=[0, 9], into=step)
    out, lse = np.empty((2, H, L), "f4"), np.empty((2, H), "f4")
    plan = latentkv.Plan(pool, num_heads=H, max_seqs=2, max_seq_len=64)
    plan.update(latentkv.Batch(step.block_table, step.seq_lens))
    plan.attend(floats(rng, 2, H, L), floats(rng, 2, H, R), out, scale=SCALE, lse=lse)
    assert not out[0].any() and np.isneginf(lse[0]).all()
    assert out[1].any() and np.isfinite(lse[1]).all()
