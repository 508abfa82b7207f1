"""What was promised: text, perplexity, capacity and concurrency in every format and setting."""
from __future__ import annotations

import itertools
import json
import math
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
from conftest import MODEL, golden_nll, same_or_close
from server import Server

pytestmark = pytest.mark.acceptance
NUM_PROMPTS, NEW_TOKENS = 20, 32

# Run apart, so that PyTorch's memory is gone before a server starts.
REFERENCE = """
import json, sys, torch
from transformers import AutoModelForCausalLM
path, prompts = sys.argv[1], json.load(sys.stdin)
model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
for prompt in prompts:
    out = model.generate(torch.tensor([prompt]), do_sample=False, pad_token_id=2, eos_token_id=None,
                         max_new_tokens=int(sys.argv[2]), output_logits=True,
                         return_dict_in_generate=True)
    top = torch.stack(out.logits)[:, 0].topk(2).values
    print(json.dumps([out.sequences[0, len(prompt):].tolist(), (top[:, 0] - top[:, 1]).tolist()]))
"""


@pytest.fixture(scope="module")
def prompts(golden):
    """20 prompts of 100 to 3,000 tokens, from both documents."""
    texts = itertools.cycle([golden["dev0"]["token_ids"], golden["dev1"]["token_ids"]])
    lengths = [100 + round(2900 * i / (NUM_PROMPTS - 1)) for i in range(NUM_PROMPTS)]
    return [[0] + next(texts)[1 + 37 * i:37 * i + n] for i, n in enumerate(lengths)]


@pytest.fixture(scope="module")
def reference(prompts):
    """Of each prompt transformers' greedy tokens in float32 and the lead of each."""
    done = subprocess.run([sys.executable, "-c", REFERENCE, str(MODEL), str(NEW_TOKENS)],
                          input=json.dumps(prompts), capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


@pytest.mark.parametrize("format", ["bf16", "int8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_greedy_text(golden, prompts, reference, tmp_path, dtype, format):
    with Server(tmp_path / "log.txt", format, dtype=dtype) as server:
        for name, text in golden.items():
            found = server.complete(text["token_ids"], 64)
            same_or_close(f"{dtype} over {format}: {name}", found, text["greedy"],
                          text["greedy_top2_margin"])
        for prompt, (tokens, leads) in zip(prompts, reference):
            same_or_close(f"{dtype} over {format}: {len(prompt)} tokens",
                          server.complete(prompt, NEW_TOKENS), tokens, leads)
        assert server.errors() == []


@pytest.mark.parametrize("format,one,pooled", [("nvfp4", 0.015, 0.01), ("fp8", 0.015, 0.01)])
def test_perplexity(golden, tmp_path, format, one, pooled):
    changes = {}
    with Server(tmp_path / "log.txt", format) as server:
        for name, text in golden.items():
            wanted = math.fsum(golden_nll(name)) / 4095
            changes[name] = server.prompt_nll(text["token_ids"]) - wanted
        assert server.errors() == []
    changes = {name: math.expm1(nats) for name, nats in changes.items()}
    print(format, {name: f"{100 * change:+.3f} %" for name, change in changes.items()})
    assert max(changes.values()) <= one, changes
    assert sum(changes.values()) / len(changes) <= pooled, changes


def test_capacity_follows_the_record(golden, tmp_path):
    tokens = {}
    for format in ("bf16", "int8", "nvfp4"):
        with Server(tmp_path / f"{format}.txt", format, cache_mib=512) as server:
            tokens[format] = server.cache_tokens()
    print(tokens)
    for format, wanted in (("int8", 1.76), ("nvfp4", 2.67)):
        ratio = tokens[format] / tokens["bf16"]
        assert abs(ratio / wanted - 1) < 0.01, f"{format}: {ratio:.4f}, want {wanted}"


GUIDE = pathlib.Path(__file__).parents[3] / "examples/vllm_serve.md"


@pytest.mark.parametrize("block", range(2))
def test_the_commands_of_the_guide(golden, tmp_path, block):
    if not GUIDE.exists():
        pytest.skip("the examples are not beside the tests")
    commands = re.findall(r"```serve\n(.*?)```", GUIDE.read_text(), re.S)
    assert len(commands) == 2
    words = shlex.split(commands[block].replace("\\\n", " "))
    with Server.by_command(tmp_path / "log.txt", words) as server:
        text = golden["dev1"]
        assert len(server.complete(text["token_ids"][:200], 8)) == 8
        assert server.errors() == []
    wanted = ["int8 records of 656 bytes", "nvfp4 records of 432 bytes"][block]
    assert wanted in server.text()
    if block == 1:
        checked_at_the_end(server.text(), None)


SETTINGS = {
    "all on": ("--max-num-batched-tokens", "512"),
    "no chunks": ("--no-enable-chunked-prefill", "--max-num-batched-tokens", "4608"),
    "no prefix cache": ("--no-enable-prefix-caching", "--max-num-batched-tokens", "512"),
    "neither": ("--no-enable-prefix-caching", "--no-enable-chunked-prefill",
                "--max-num-batched-tokens", "4608"),
    "latentkv's scheduler": ("--scheduler-cls", "latentkv_vllm.scheduler.LatentScheduler",
                             "--max-num-batched-tokens", "512"),
}
TINY_MIB = 14  # some 80 blocks of 64 INT8 tokens; the requests want far more


@pytest.fixture(scope="module")
def shared_prompts(golden):
    """64 requests: 8 prefixes of 300 tokens, each with 8 tails of its own."""
    ids = golden["dev1"]["token_ids"]
    return [ids[300 * i:300 * i + 300] + ids[2500 + 20 * (8 * i + j):][:40 + 8 * j]
            for i in range(8) for j in range(8)]


def leads_of(answer):
    tops = [sorted(top.values()) for top in answer["logprobs"]["top_logprobs"]]
    return [top[-1] - top[-2] for top in tops]


@pytest.fixture(scope="module")
def baseline(golden, shared_prompts, tmp_path_factory):
    """Each request alone, without any reuse."""
    log = tmp_path_factory.mktemp("baseline") / "log.txt"
    with Server(log, "int8", flags=SETTINGS["neither"]) as server:
        answers = [server.post(prompt=p, max_tokens=NEW_TOKENS, logprobs=2) for p in shared_prompts]
    return [(answer["token_ids"], leads_of(answer)) for answer in answers]


def checked_at_the_end(log, hits):
    """What latentkv's scheduler says when it ends; its hits are those of vLLM's metrics (which
    count a preempted request's second look-up apart)."""
    found = re.search(r"pool check clean; (\d+) of (\d+) prompt tokens hit, (\d+) of them inside a "
                      r"block; (\d+) sequences live", log)
    assert found, log[-2000:]
    print("latentkv:", found[0])
    assert int(found[4]) == 0 and hits in (None, int(found[1]))


@pytest.mark.parametrize("cache_mib", [256, TINY_MIB], ids=["roomy", "tiny"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_concurrent_requests(shared_prompts, baseline, tmp_path, setting, cache_mib):
    with Server(tmp_path / "log.txt", "int8", cache_mib=cache_mib, flags=(
            *SETTINGS[setting], *(("--max-model-len", "1024") if cache_mib == TINY_MIB else ()))
    ) as server:
        answers = server.complete_all(shared_prompts, NEW_TOKENS)
        hits, preempted = (server.metric(f"vllm:{name}")
                           for name in ("prefix_cache_hits", "num_preemptions"))
        assert server.errors() == []
    same = 0
    for i, (answer, (tokens, leads)) in enumerate(zip(answers, baseline)):
        same += answer["token_ids"] == tokens
        same_or_close(f"request {i}", answer["token_ids"], tokens, leads)
    print(f"{setting}, {cache_mib} MiB: {same} of 64 the same, {hits:.0f} tokens hit, "
          f"{preempted:.0f} preempted")
    assert (hits > 0) == ("prefix" not in setting and setting != "neither")
    assert (preempted > 0) == (cache_mib == TINY_MIB)
    if "scheduler" in setting:
        checked_at_the_end(server.text(), hits if not preempted else None)
