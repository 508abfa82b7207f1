"""The block manager's calls: hits, copies, fences, leases, events, statistics."""
from __future__ import annotations

import numpy as np
import pytest

import latentkv
from conftest import floats
from latentkv import _abi, _library


def written(pool, tokens, **words):
    seq = pool.admit(tokens, **words)
    seq.commit(len(seq))
    return seq


def filled(pool, rng, count):
    """The same with data in every layer: written first, then declared so."""
    seq = pool.admit(range(count))
    step = pool.step([seq], num_rows=[count], row_begin=[0])
    for layer in range(pool.config.num_layers):
        pool.append(floats(rng, count, 64), floats(rng, count, 16), step.slots, layer=layer)
    seq.commit(count)
    return seq


def test_a_prompt_is_found_again(blocks):
    first = written(blocks, range(40))
    assert first.table() == [1, 2, 3] and len(first) == 40
    match = blocks.match(range(48))
    assert (match.hit_tokens, match.hit_blocks) == (32, 2)
    second = blocks.admit(range(48), match=match)
    assert second.table()[:2] == [1, 2] and second.table()[2] != 3
    assert (second.info.committed, second.admission.hit_tokens) == (32, 32)
    blocks.check()


def test_keys_and_flags_are_part_of_the_identity(blocks):
    adapter = [latentkv.Key("adapter", b"lora-7")]
    with blocks.admit(latentkv.Prompt(range(40), adapter)) as seq:
        seq.commit(40)
        assert blocks.match(range(40)).hit_tokens == 0
        assert blocks.match(latentkv.Prompt(range(40), adapter)).hit_blocks == 2
        assert blocks.match(latentkv.Prompt(range(40), adapter, match=False)).hit_tokens == 0
        picture = latentkv.Prompt(range(40), adapter + [latentkv.Key("multimodal", b"i", 20, 30)])
        assert blocks.match(picture).hit_blocks == 1
    assert seq.closed and blocks.stats.seqs_live == 0


def test_append_reserve_truncate_free(blocks):
    seq = blocks.admit(range(10))
    assert seq.append([1, 2, 3]).needed == 0 and len(seq) == 13
    assert seq.append(np.arange(8, dtype=np.int32)).needed == 1
    seq.reserve(12)
    assert (seq.info.length, seq.info.room) == (21, 48)
    seq.commit(21)
    seq.truncate(5)
    assert (seq.info.length, seq.info.committed, seq.info.num_blocks) == (5, 5, 1)
    seq.free()
    with pytest.raises(latentkv.NotFoundError):
        seq.free()
    assert blocks.stats.blocks_in_use == 0


def test_a_fork_copies_when_it_writes(blocks):
    parent = written(blocks, range(20))
    child = parent.fork()
    assert child.table() == parent.table()
    child.append([7])
    assert child.table()[0] == parent.table()[0] and child.table()[1] != parent.table()[1]
    assert blocks.take_copies() == [(parent.table()[1], child.table()[1])]
    assert blocks.take_copies() == []


def test_partial_blocks_are_copied_in_memory(ctx, rng):
    pool = latentkv.Pool(ctx, format="bf16", latent_dim=64, rope_dim=16, num_blocks=8,
                         tokens_per_block=16, num_layers=2)
    seq = filled(pool, rng, 32)
    other = pool.admit(list(range(28)) + [99] * 8)
    assert (other.admission.hit_tokens, other.admission.partial_hit_tokens) == (28, 12)
    pool.apply_copies()
    a, b = seq.table()[1], other.table()[1]
    for layer in range(2):
        records = np.asarray(pool.records(layer))
        assert a != b and records[a][:12].any() and np.array_equal(records[a][:12], records[b][:12])


def test_a_step_of_many(blocks):
    seqs = [blocks.admit([100 + i]) for i in range(3)]
    step = blocks.step(seqs, num_new=[1, 2, 1], tokens=[5, 6, 7, 8], table_width=4)
    assert step.seq_lens.tolist() == [2, 3, 2] and step.num_tokens == 4
    assert step.positions.tolist() == [1, 1, 2, 1]
    assert step.slots.tolist() == [16 * 1 + 1, 16 * 2 + 1, 16 * 2 + 2, 16 * 3 + 1]
    assert np.asarray(step.block_table).tolist() == [[1, 0, 0, 0], [2, 0, 0, 0], [3, 0, 0, 0]]
    handles = np.array([seq.handle for seq in seqs], np.uint64)
    again = blocks.step(handles, num_new=np.ones(3, np.uint32), tokens=np.zeros(3, np.int32),
                        into=latentkv.Step(3, 3, 4), tail=False)
    assert again.seq_lens.tolist() == [3, 4, 3]


def test_fences_hold_blocks_back(blocks):
    seq = blocks.admit(latentkv.Prompt(range(128), publish=False))
    seq.free(fence=7)
    with pytest.raises(latentkv.WaitPendingError) as failure:
        blocks.admit(range(200, 220))
    assert (failure.value.admission.free_now, failure.value.admission.free_after_fence) == (0, 8)
    blocks.pass_fence(6)
    assert blocks.stats.blocks_pending == 8
    blocks.pass_fence(7)
    assert blocks.stats.blocks_free == 8
    blocks.admit(range(200, 220))


def test_leases_and_headroom(ctx):
    pool = latentkv.Pool(ctx, format="int8", latent_dim=64, rope_dim=16, num_blocks=13,
                         tokens_per_block=16, metadata_only=True, fallback_headroom=0.30)
    assert (pool.stats.blocks_base, pool.stats.blocks_total) == (10, 13)
    with pool.lend(3) as lent:
        assert len(lent.blocks) == 3 and pool.stats.blocks_lent == 3
        with pytest.raises(latentkv.NoBlocksError):
            pool.lend(1)
    assert pool.stats.blocks_lent == 0
    seq = written(pool, range(32))
    pinned = pool.pin(seq.table())
    seq.free()
    assert pool.evict(100) == 0
    pinned.release()
    assert pool.evict(100) == 2
    pool.check()


def test_priorities_end(blocks):
    """The longest kept is the one of priority, until its time is over."""
    for first, priority in ((0, 50), (1000, 0)):
        with blocks.admit(range(first, first + 32), priority=priority, priority_until=9) as seq:
            seq.commit(32)
    assert blocks.evict(1) == 1
    assert blocks.match(range(33)).hit_blocks == 2
    assert blocks.match(range(1000, 1033)).hit_blocks == 1
    blocks.tick(9)
    assert blocks.evict(3) == 3 and blocks.match(range(33)).hit_blocks == 0


@pytest.mark.skipif(not hasattr(_library._library, "lkv_pool_drop"), reason="an older library")
def test_drop_one_adapter(blocks):
    key = latentkv.Key("adapter", b"lora-7")
    with blocks.admit(latentkv.Prompt(range(32), [key])) as seq, blocks.admit(range(32)) as plain:
        seq.commit(32)
        plain.commit(32)
    assert blocks.drop(key) == 2
    assert blocks.match(latentkv.Prompt(range(33), [key])).hit_blocks == 0
    assert blocks.match(range(33)).hit_blocks == 2


def test_reset_wants_force(blocks):
    seq = written(blocks, range(32))
    with pytest.raises(latentkv.BusyError, match="2"):
        blocks.reset()
    blocks.reset(force=True)
    assert blocks.match(range(32)).hit_tokens == 0 and len(seq) == 32


def test_events_replay_the_index(ctx):
    pool = latentkv.Pool(ctx, format="int8", latent_dim=64, rope_dim=16, num_blocks=8,
                         tokens_per_block=16, metadata_only=True, events=True)
    seq = written(pool, latentkv.Prompt(range(32), [latentkv.Key("salt", b"s1")]))
    found = pool.events()
    assert [e.kind for e in found.events] == ["stored", "stored"] and found.lost == 0
    assert found.events[0].tokens == tuple(range(16)) and b"s1" in found.events[0].keys
    assert found.events[1].parent == found.events[0].digest != found.events[1].digest
    seq.free()
    pool.evict(8)
    after = pool.events(found.next_seq)
    assert {(e.kind, e.digest) for e in after.events} == {
        ("removed", e.digest) for e in found.events}
    assert pool.events(after.next_seq).events == []


def test_statistics(blocks):
    seq = written(blocks, range(40))
    again = blocks.admit(range(40))
    stats = blocks.stats
    assert (stats.blocks_in_use, stats.blocks_cached, stats.seqs_live) == (4, 2, 2)
    assert (stats.hit_tokens, stats.prompt_tokens) == (again.info.hit_tokens, 80)
    text = blocks.metrics_text('pool="a"')
    assert "latentkv_pool_" in text and 'pool="a"' in text
    assert "lkv_pool_stats(blocks_total=8" in repr(stats) and len(seq) == 40


def test_snapshot(ctx, rng, tmp_path):
    shape = dict(format="int8", latent_dim=64, rope_dim=16, num_blocks=8, tokens_per_block=16)
    path, secret = str(tmp_path / "cache"), bytes(range(32))
    pool = latentkv.Pool(ctx, **shape)
    seq = filled(pool, rng, 32)
    assert pool.save(path, secret=secret).blocks == 2 and len(seq) == 32
    other = latentkv.Pool(ctx, **shape)
    with pytest.raises(latentkv.InvalidError):
        other.load(path, secret=bytes(32))
    assert other.load(path, secret=secret).blocks_loaded == 2
    assert other.match(range(33)).hit_tokens == 32
    with pytest.raises(latentkv.NotFoundError, match="missing"):
        other.load(str(tmp_path / "missing"))
    with pytest.raises(OSError, match=str(tmp_path)):  # FileError is one
        pool.save(str(tmp_path))


def test_common_blocks_of_sequences(blocks):
    first = written(blocks, range(40))
    second = blocks.admit([*range(32), *range(100, 110)])
    assert blocks.common_blocks([first, second]) == 2
    assert blocks.common_blocks([first]) == 2  # the third block is not full
    other = blocks.admit(range(200, 210))
    assert blocks.common_blocks([first, other]) == 0


def test_the_watermark_leaves_blocks_for_others(blocks):
    first = blocks.admit(range(32))
    with pytest.raises(latentkv.NoBlocksError):
        blocks.admit(range(100, 180), watermark_blocks=2)  # 5 of the 6 that are left
    blocks.admit(range(100, 180), watermark_blocks=1)
    first.free()


def test_a_pool_says_what_it_was_made_from(ctx, blocks):
    desc = blocks.describe()
    assert (desc.num_blocks, desc.tokens_per_block, desc.latent_dim, desc.rope_dim) == (8, 16, 64, 16)
    assert desc.flags & _abi.LKV_POOL_METADATA_ONLY and not desc.memory
