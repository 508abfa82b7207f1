"""The host tier: sequences swapped out and in, cached blocks that survive their eviction."""
from __future__ import annotations

import numpy as np
import pytest

import latentkv
from conftest import floats

HOST = 8


@pytest.fixture
def tiered(ctx):
    """8 blocks of 16 tokens on the device, 8 on the host, two layers."""
    return latentkv.Pool(ctx, format="int8", latent_dim=64, rope_dim=16, num_blocks=8,
                         tokens_per_block=16, num_layers=2, host_blocks=HOST)


def written(pool, rng, tokens):
    seq = pool.admit(tokens)
    step = pool.step([seq], num_rows=[len(tokens)], row_begin=[0])
    for layer in range(2):
        pool.append(floats(rng, len(tokens), 64), floats(rng, len(tokens), 16), step.slots,
                    layer=layer)
    seq.commit(len(tokens))
    return seq


def records(pool, blocks):
    return [np.asarray(pool.records(layer))[blocks].copy() for layer in range(2)]


def test_a_sequence_comes_back_with_its_data(tiered, rng):
    seq = written(tiered, rng, range(40))
    before = records(tiered, seq.table())
    assert seq.swap_out().needed == 3 and seq.swapped and seq.info.host_blocks == 3
    with pytest.raises(latentkv.InvalidError):
        seq.append([1])
    tiered.apply_copies()
    assert (tiered.stats.blocks_in_use, tiered.stats.host_blocks_in_use) == (0, 3)
    others = [written(tiered, rng, range(1000 * i, 1000 * i + 32)) for i in range(1, 5)]
    with pytest.raises(latentkv.NoBlocksError) as failure:
        seq.swap_in()
    assert failure.value.admission.needed == 3 and seq.swapped
    for other in others:
        other.free()
    seq.swap_in()
    tiered.apply_copies()
    assert not seq.swapped and len(seq) == 40
    for found, wanted in zip(records(tiered, seq.table()), before):
        assert np.array_equal(found[:2], wanted[:2]) and np.array_equal(found[2][:8], wanted[2][:8])
    seq.append([5])
    stats = tiered.stats
    assert (stats.swapped_out_blocks, stats.swapped_in_blocks, stats.seqs_swapped) == (3, 3, 0)
    tiered.check()


def test_a_swap_waits_for_its_fences(tiered, rng):
    seq = written(tiered, rng, range(32))
    seq.swap_out(fence=3)
    with pytest.raises(latentkv.WaitPendingError):
        seq.swap_in()
    tiered.pass_fence(3)
    tiered.apply_copies(fence=4)
    with pytest.raises(latentkv.WaitPendingError):
        seq.swap_in()
    tiered.pass_fence(4)
    seq.swap_in()
    tiered.apply_copies(fence=5)
    tiered.pass_fence(5)
    tiered.check()


def test_what_the_host_cannot_take(ctx, tiered, rng):
    seq = written(tiered, rng, range(128))
    seq.swap_out()
    tiered.apply_copies()
    other = written(tiered, rng, range(500, 516))
    with pytest.raises(latentkv.NoHostSpaceError) as failure:
        other.swap_out()
    assert failure.value.admission.needed == 1 and not other.swapped
    seq.free()
    other.swap_out()
    other.free()  # a swapped sequence may be freed
    tiered.check()
    bare = latentkv.Pool(ctx, format="int8", latent_dim=64, rope_dim=16, num_blocks=4,
                         tokens_per_block=16, metadata_only=True)
    with pytest.raises(latentkv.NoHostSpaceError):
        bare.admit(range(16)).swap_out()


def test_demoted_blocks_are_hit_on_the_host(tiered, rng):
    with written(tiered, rng, range(32)) as seq:
        before = records(tiered, seq.table())
    assert tiered.demote(8) == 2
    tiered.apply_copies()
    assert tiered.demote(8) == 0  # they have their copies
    assert tiered.evict(8) == 2
    match = tiered.match(range(40))
    assert (match.hit_tokens, match.hit_blocks, match.host_hit_blocks) == (32, 2, 2)
    again = tiered.admit(range(40), match=match)
    tiered.apply_copies()
    assert again.admission.host_hit_blocks == 2
    for found, wanted in zip(records(tiered, again.table()[:2]), before):
        assert np.array_equal(found, wanted)
    assert (tiered.stats.demoted_blocks, tiered.stats.promoted_blocks) == (2, 2)
    tiered.check()


def test_pairs_of_a_metadata_pool_name_host_blocks(ctx):
    pool = latentkv.Pool(ctx, format="int8", latent_dim=64, rope_dim=16, num_blocks=4,
                         tokens_per_block=16, host_blocks=4, metadata_only=True)
    seq = pool.admit(range(32))
    seq.commit(32)
    table = seq.table()
    seq.swap_out()
    pairs = pool.take_copies()
    assert [a for a, _ in pairs] == table
    assert all(4 + 1 <= b < 4 + 1 + 4 for _, b in pairs) and len({b for _, b in pairs}) == 2
    seq.swap_in()
    assert sorted(a for a, _ in pool.take_copies()) == sorted(b for _, b in pairs)
    pool.check()
