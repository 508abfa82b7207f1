"""latentkv's block manager behind vLLM's interface, with requests that are nothing but tokens."""
from __future__ import annotations

import random
import types

import pytest

pytest.importorskip("vllm")

from vllm.v1.request import RequestStatus  # noqa: E402

import latentkv  # noqa: E402
from latentkv_vllm import manager, scheduler  # noqa: E402

BLOCK = 16


@pytest.fixture
def made():
    return manager_of(12)


def manager_of(blocks, caching=True, **words):
    pool = latentkv.Pool(latentkv.Context("cpu", num_threads=1), format="int8", latent_dim=16,
                         rope_dim=0, num_blocks=blocks, tokens_per_block=BLOCK, metadata_only=True)
    stock = types.SimpleNamespace(coordinator=None, kv_cache_config=None, enable_caching=caching,
                                  log_stats=True, watermark_blocks=0)
    return manager.LatentManager(pool, stock, 4096, **{"partial": True, "by_priority": False,
                                                       **words})


class Request(types.SimpleNamespace):
    @property
    def num_tokens(self):
        return len(self.all_token_ids)


def request_of(name, tokens):
    return Request(
        request_id=name, all_token_ids=list(tokens), num_computed_tokens=0, lora_request=None,
        cache_salt=None, mm_features=[], prompt_embeds=None, skip_reading_prefix_cache=False,
        status=RequestStatus.WAITING, priority=0, num_preemptions=0)


def schedule(made, request, tokens=None):
    """What vLLM's scheduler does with a waiting or running request; False: no room."""
    hit, blocks = 0, None
    if request.status == RequestStatus.WAITING:
        blocks, hit, _ = made.get_computed_blocks(request)
    todo = request.num_tokens - request.num_computed_tokens - hit
    new = made.allocate_slots(request, min(tokens or todo, todo), hit, blocks)
    if new is None:
        return False
    request.hit = hit if request.status == RequestStatus.WAITING else request.hit
    request.num_computed_tokens += hit + min(tokens or todo, todo)
    request.status = RequestStatus.RUNNING
    return True


def step(made, *requests, **words):
    made.new_step_starts()
    done = [schedule(made, request, **words) for request in requests]
    copies, fences = made.take_kv_cache_block_copies()
    made.block_pool.free_blocks(fences)
    return done, [tuple(copy) for copy in copies]


def ids(made, request):
    return made.get_block_ids(request.request_id)[0]


def test_a_prompt_again_is_a_hit_to_the_token(made):
    first, again = request_of("a", range(40)), request_of("b", range(40))
    step(made, first)
    assert ids(made, first) == [1, 2, 3]
    step(made, again)
    assert again.hit == 32 and ids(made, again)[:2] == [1, 2] and ids(made, again)[2] > 3
    made.pool.check()


def test_two_of_one_step_share_whole_blocks_at_once(made):
    a, b = request_of("a", range(40)), request_of("b", range(40))
    step(made, a, b)
    assert b.hit == 32 and ids(made, b)[:2] == ids(made, a)[:2]


def test_a_hit_inside_a_block_is_a_copy(made):
    step(made, request_of("a", range(48)))
    other = request_of("b", [*range(40), 900, 901])
    _, copies = step(made, other)
    assert other.hit == 40 and copies == [(3, ids(made, other)[2])]


def test_no_copy_of_a_block_that_this_step_writes(made):
    """Copies run before the step: what the step itself publishes may not be their source."""
    a, b = request_of("a", range(48)), request_of("b", [*range(40), 900, 901])
    _, copies = step(made, a, b)
    assert b.hit == 32 and copies == []


def test_what_a_preempted_request_would_have_written_is_not_published(made):
    a = request_of("a", range(20))
    step(made, a)
    a.all_token_ids += range(20, 32)
    made.new_step_starts()
    assert schedule(made, a)  # completes its second block, and is preempted in the same step
    made.free(a)
    made.take_kv_cache_block_copies()
    made.new_step_starts()
    assert made.pool.match(list(range(40))).hit_tokens == 16


def test_what_a_finished_request_wrote_last_is_kept(made):
    a = request_of("a", range(20))
    step(made, a)
    a.all_token_ids += range(20, 32)
    step(made, a)
    made.free(a)  # after the step: it ran
    assert made.pool.match(list(range(40))).hit_tokens == 32


def test_no_room_changes_nothing(made):
    big, small = request_of("a", range(160)), request_of("b", range(500, 550))
    assert step(made, big)[0] == [True] and step(made, small)[0] == [False]
    assert "b" not in made._rows
    big.all_token_ids += range(1000, 1033)
    assert step(made, big)[0] == [False]  # 13 blocks of 12; still a live request
    assert len(ids(made, big)) == 10
    made.free(big)
    assert step(made, small)[0] == [True]
    made.pool.check()


def test_identity_has_salt_adapter_and_images(made):
    plain = request_of("a", range(40))
    step(made, plain)
    salted = request_of("b", range(40))
    salted.cache_salt = "tenant"
    tuned = request_of("c", range(40))
    tuned.lora_request = types.SimpleNamespace(lora_name="x", lora_int_id=1)
    seen = request_of("d", range(40))
    seen.mm_features = [types.SimpleNamespace(
        identifier="image", mm_position=types.SimpleNamespace(offset=20, length=8))]
    for other, wanted in ((salted, 0), (tuned, 0), (seen, 16)):
        assert made.get_computed_blocks(other)[1] == wanted


def test_without_a_prefix_cache_nothing_is_hit():
    made = manager_of(12, caching=False)
    step(made, request_of("a", range(40)))
    again = request_of("b", range(40))
    step(made, again)
    assert again.hit == 0 and made.pool.stats.blocks_cached == 0


def test_a_busy_prefix_cache_is_not_reset(made):
    a = request_of("a", range(40))
    step(made, a)
    assert not made.reset_prefix_cache()
    made.free(a)
    assert made.reset_prefix_cache() and made.pool.stats.blocks_cached == 0


def test_hits_that_vllm_counts_are_latentkvs(made):
    requests = [request_of(str(i), [*range(16 * (i % 3)), *range(100 * i, 100 * i + 9)])
                for i in range(6)]
    for request in requests:
        step(made, request)
        made.record_prefix_cache_stats(request, request.hit)
        made.free(request)
    assert made.make_prefix_cache_stats().hits == made.pool.stats.hit_tokens > 0


@pytest.mark.parametrize("seed", range(4))
def test_a_long_random_day(seed):
    """Requests come, run in chunks, are preempted and end; the pool's invariants hold throughout,
    tables cover what is computed, and no block is in two tables unless its tokens are the same."""
    choose, made, live, count = random.Random(seed), manager_of(30), [], 0
    for _ in range(400):
        made.new_step_starts()
        for request in list(live):
            if request.num_computed_tokens == request.num_tokens:
                request.all_token_ids.append(choose.randrange(50))
            if not schedule(made, request, tokens=choose.choice([None, 24])):
                victim = live.pop()
                made.free(victim)
        if choose.random() < 0.5:
            prefix = [choose.randrange(2)] * choose.randrange(1, 60)
            request = request_of(f"r{count}", prefix + [choose.randrange(50) for _ in range(9)])
            count += 1
            if schedule(made, request, tokens=choose.choice([None, 24])):
                live.append(request)
        copies, fences = made.take_kv_cache_block_copies()
        made.block_pool.free_blocks(fences)
        tokens_of = {}
        for request in live:
            table = ids(made, request)
            assert len(table) * BLOCK >= request.num_computed_tokens, f"seed {seed}"
            for i, block in enumerate(table[:request.num_computed_tokens // BLOCK]):
                path = tuple(request.all_token_ids[:(i + 1) * BLOCK])
                assert tokens_of.setdefault(block, path) == path, f"seed {seed}, block {block}"
        made.pool.check()
        while live and choose.random() < 0.2:
            made.free(live.pop(choose.randrange(len(live))))
    assert count > 100 and made.pool.stats.hit_tokens > 0


def test_what_the_scheduler_cannot_do_is_named():
    group = types.SimpleNamespace(kv_cache_spec=None)
    config = types.SimpleNamespace(kv_events_config=None)
    with pytest.raises(NotImplementedError, match="one group of full attention"):
        scheduler._refuse(types.SimpleNamespace(
            **vars(config), kv_transfer_config=None, speculative_config=None,
            scheduler_config=types.SimpleNamespace(async_scheduling=False),
            parallel_config=types.SimpleNamespace(decode_context_parallel_size=1)),
            types.SimpleNamespace(kv_cache_groups=[group, group]))
