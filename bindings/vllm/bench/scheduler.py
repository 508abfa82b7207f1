"""In: nothing. Out: microseconds of CPU time of schedule() + update_from_output() with 1,000
running sequences, of vLLM's scheduler with its own KV cache manager and with latentkv's. No model
runs.

    python bench/scheduler.py [SEQUENCES] [STEPS]"""
from __future__ import annotations

import os
import pathlib
import statistics
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
MODEL = os.environ.get("LATENTKV_TINY_MLA") or str(
    pathlib.Path(__file__).parents[4] / "shared/models/tiny-mla")
BLOCK, PROMPT = 64, 256


def scheduler_of(cls, count):
    import torch
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, MLAAttentionSpec
    from vllm.v1.structured_output import StructuredOutputManager

    config = EngineArgs(model=MODEL, max_model_len=4608, max_num_seqs=count,
                        max_num_batched_tokens=max(count * PROMPT, 4608),
                        attention_backend="CUSTOM", enforce_eager=True,
                        additional_config={"latentkv": {"format": "int8"}}).create_engine_config()
    spec = MLAAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=576, dtype=torch.uint8,
                            state_content_bytes=656)
    cache = KVCacheConfig(num_blocks=count * 16, kv_cache_tensors=[],
                          kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    config.cache_config.num_gpu_blocks = cache.num_blocks
    return cls(vllm_config=config, kv_cache_config=cache, block_size=BLOCK, log_stats=True,
               structured_output_manager=StructuredOutputManager(config))


def requests(count):
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    words = SamplingParams(max_tokens=4000, ignore_eos=True)
    words.update_from_generation_config({}, 1)
    for i in range(count):
        yield Request(request_id=str(i), prompt_token_ids=[i % 97] * 64 + list(range(i, i + 192)),
                      sampling_params=words, pooling_params=None,
                      block_hasher=get_request_block_hasher(BLOCK, sha256))


def measure(cls, count, steps):
    from vllm.v1.outputs import ModelRunnerOutput

    scheduler = scheduler_of(cls, count)
    for request in requests(count):
        scheduler.add_request(request)
    times = []
    for step in range(steps + 10):
        begin = time.thread_time()
        output = scheduler.schedule()
        middle = time.thread_time()
        names = list(output.num_scheduled_tokens)
        made = ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=[[step % 50 + 1]] * len(names), logprobs=None,
            prompt_logprobs_dict={}, pooler_output=[])
        resume = time.thread_time()
        scheduler.update_from_output(output, made)
        times.append((middle - begin, time.thread_time() - resume))
    assert len(scheduler.running) == count, f"{len(scheduler.running)} of {count} are running"
    times = times[10:]
    whole = sorted(a + b for a, b in times)
    return [1e6 * x for x in (statistics.median(a for a, _ in times),
                              statistics.median(b for _, b in times), statistics.median(whole),
                              whole[int(len(whole) * 0.99)])]


def main():
    count, steps = (int(x) for x in (sys.argv[1:] + ["1000", "300"][len(sys.argv) - 1:]))
    from vllm.v1.core.sched.scheduler import Scheduler

    from latentkv_vllm.scheduler import LatentScheduler

    print(f"| {count} running, us a step | schedule | update | both, p50 | p99 |\n"
          "| --- | --- | --- | --- | --- |")
    for name, cls in (("vLLM's manager", Scheduler), ("latentkv's", LatentScheduler)):
        print(f"| {name} | " + " | ".join(f"{x:.0f}" for x in measure(cls, count, steps)) + " |",
              flush=True)


if __name__ == "__main__":
    main()
