"""Threads on one pool, each with its own plan: the same bits; errors stay in their thread."""
from __future__ import annotations

import threading

import numpy as np

import latentkv
from conftest import floats

THREADS, ROUNDS = 4, 30


def run(work):
    """work(i) in THREADS threads at once; the first exception is raised here."""
    failures, gate = [], threading.Barrier(THREADS)

    def body(i):
        try:
            gate.wait()
            work(i)
        except BaseException as failure:  # also an AssertionError: shown by the main thread
            failures.append(failure)
    threads = [threading.Thread(target=body, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_attend_side_by_side(ctx, rng):
    pool = latentkv.Pool(ctx, format="int8", latent_dim=512, rope_dim=64, num_blocks=32)
    latent, rope = floats(rng, 200, 512), floats(rng, 200, 64)
    q, q_rope = floats(rng, 1, 4, 512), floats(rng, 1, 4, 64)
    results = {}

    def work(i):
        seq = pool.admit(latentkv.Prompt(range(200), publish=False))
        step = pool.step([seq], num_rows=[200], row_begin=[0])
        plan = latentkv.Plan(pool, num_heads=4, max_seqs=1, max_seq_len=256)
        out = np.empty((1, 4, 512), "f4")
        for _ in range(ROUNDS):
            pool.append(latent, rope, step.slots)
            plan.update(pool.step([seq], num_rows=[1], row_begin=[199], table_width=4))
            plan.attend(q, q_rope, out, scale=0.1)
            results.setdefault(i, out.tobytes())
            assert out.tobytes() == results[i]

    run(work)
    assert len(set(results.values())) == 1
    pool.check()


def test_one_block_manager(ctx):
    pool = latentkv.Pool(ctx, format="int8", latent_dim=64, rope_dim=16, num_blocks=4096,
                         tokens_per_block=16, metadata_only=True)

    def work(i):
        for turn in range(ROUNDS):
            prompt = list(range(50)) + [i, turn] * 10
            with pool.admit(prompt) as seq:
                seq.append([1, 2, 3])
                seq.commit(len(seq))
                with seq.fork() as child:
                    child.append([4])
        pool.take_copies()

    run(work)
    pool.check()
    assert pool.stats.blocks_in_use == 0 and pool.stats.hit_tokens > 0


def test_sentences_belong_to_their_thread(ctx):
    def work(i):
        for _ in range(200):
            try:
                latentkv.PoolConfig(format="int8", latent_dim=16 * i + 1, rope_dim=16,
                                    num_blocks=4).block_info()
            except latentkv.InvalidError as failure:
                assert str(16 * i + 1) in str(failure), str(failure)
            else:
                raise AssertionError("accepted")
    run(work)
