"""One server over the INT8 cache: the golden text, hits, mixed batches. Minutes, so that CI can."""
from __future__ import annotations

import pytest
from conftest import same_or_close
from server import Server


@pytest.fixture(scope="module")
def server(golden, tmp_path_factory):
    with Server(tmp_path_factory.mktemp("serve") / "log.txt", "int8",
                flags=("--max-num-batched-tokens", "512")) as running:
        yield running


def test_greedy_text_of_a_golden_document(server, golden):
    text = golden["dev1"]
    found = server.complete(text["token_ids"], 64)
    same_or_close("dev1", found, text["greedy"], text["greedy_top2_margin"])


def test_a_prompt_again_is_a_hit(server, golden):
    prompt = golden["dev0"]["token_ids"][:1000]
    first, before = server.complete(prompt, 8), server.metric("vllm:prefix_cache_hits")
    assert server.complete(prompt, 8) == first
    assert server.metric("vllm:prefix_cache_hits") - before == 960  # 15 blocks of 64


def test_requests_together_give_what_they_give_alone(server, golden):
    ids = golden["dev1"]["token_ids"]
    prompts = [ids[i * 100:i * 100 + 40 + 90 * i] for i in range(8)]
    alone = [server.post(prompt=prompt, max_tokens=16, logprobs=2) for prompt in prompts]
    for i, found in enumerate(server.complete_all(prompts, 16)):
        leads = [sorted(top.values())[-1] - sorted(top.values())[-2]
                 for top in alone[i]["logprobs"]["top_logprobs"]]
        same_or_close(f"prompt {i}", found["token_ids"], alone[i]["token_ids"], leads)


def test_no_error_was_said(server):
    assert server.errors() == []
    assert "int8 records of 656 bytes" in server.text()
