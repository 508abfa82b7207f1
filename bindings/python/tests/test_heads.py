"""latent_gqa pools: keys and values of grouped heads through a projector, against float64."""
from __future__ import annotations

import numpy as np
import pytest

import latentkv
from conftest import FORMATS, floats, same

G, H, D, V, L, LV, T = 2, 4, 32, 48, 16, 32, 40


@pytest.fixture
def world(ctx, rng):
    """A model, its projector's matrices, and the projector."""
    model = latentkv.Model(num_layers=1, num_heads=H, latent_dim=L, rope_dim=0, nope_dim=D, v_dim=V,
                           softmax_scale=D ** -0.5, rope_style="none")
    up = {"key_up": floats(rng, G, D, L), "value_up": floats(rng, G, V, LV)}
    down = {"key_down": floats(rng, G, D, L) / D, "value_down": floats(rng, G, V, LV) / V}
    return model, up, down, latentkv.Weights(ctx, model, **up, **down)


def pool_of(ctx, format):
    return latentkv.Pool(ctx, kind="latent_gqa", format=format, latent_dim=L, value_latent_dim=LV,
                         num_kv_heads=G, rope_dim=0, rope_style="none", num_blocks=8,
                         tokens_per_block=16)


@pytest.mark.parametrize("format", FORMATS)
def test_attend_through_the_projector(ctx, rng, world, format):
    model, up, down, projector = world
    pool = pool_of(ctx, format)
    seq = pool.admit(range(T))
    step = pool.step([seq], num_rows=[T], row_begin=[0])
    keys, values = floats(rng, T, G, D), floats(rng, T, G, V)
    pool.append(keys, None, step.slots, value=values, weights=projector)
    latents = np.empty((T, G, L), np.float32), np.empty((T, G, LV), np.float32)
    pool.gather(step.slots, latents[0], value=latents[1])
    coarse = {"bf16": 3e-3, "fp8": 4e-2, "int8": 1.5e-2, "nvfp4": 0.15}[format]
    for found, x, name in zip(latents, (keys, values), ("key_down", "value_down")):
        same(found, np.einsum("tgd,gdl->tgl", x.astype(np.float64), down[name]), coarse, name)

    plan = latentkv.Plan(pool, num_heads=H, max_seqs=1, max_q_len=T, max_seq_len=T, q_form="head",
                         out_form="head", nope_dim=D, v_dim=V)
    plan.update(step)
    q, out = floats(rng, T, H, D), np.empty((T, H, V), np.float32)
    plan.attend(q, None, out, scale=model.softmax_scale, weights=projector)
    k, v = (np.einsum("tgl,gdl->tgd", x.astype(np.float64), up[name])
            for x, name in zip(latents, up))
    for h in range(H):
        g = h * G // H
        s = model.softmax_scale * q[:, h].astype(np.float64) @ k[:, g].T
        s[np.triu_indices(T, 1)] = -np.inf
        p = np.exp(s - s.max(axis=1, keepdims=True))
        same(out[:, h], p / p.sum(axis=1, keepdims=True) @ v[:, g], 3e-6, f"{format}, head {h}")


def test_given_latents_are_stored_as_they_are(ctx, rng):
    pool = pool_of(ctx, "bf16")
    seq = pool.admit(range(T))
    step = pool.step([seq], num_rows=[T], row_begin=[0])
    keys, values = floats(rng, T, G, L), floats(rng, T, G, LV)
    pool.append(keys, None, step.slots, value=values)
    found = np.empty_like(keys), np.empty_like(values)
    pool.gather(step.slots, found[0], value=found[1])
    same(found[0], keys, 3e-3, "keys")
    same(found[1], values, 3e-3, "values")
    with pytest.raises(latentkv.InvalidError):
        pool.append(keys, None, step.slots)  # a token has a value too


def test_the_kind_has_a_name(ctx):
    with pytest.raises(latentkv.InvalidError, match="need one of 'mla', 'latent_gqa'"):
        latentkv.Pool(ctx, kind="gqa", format="int8", latent_dim=16, rope_dim=0, num_blocks=1)
