"""In: the small model. Out: one table: output tokens a second of 8 prompts of 256 tokens + 64 new
ones each, and seconds of one prompt of 4,096 + 64, medians of 3, for stock vLLM and latentkv.

    python bench/throughput.py [--dtype bfloat16] [--repeat 3] [--cpu-time] [NAME...]

One engine after another, each in a process of its own, one OpenMP thread, eager, no prompt
twice."""
from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

MODEL = os.environ.get("LATENTKV_TINY_MLA") or str(
    pathlib.Path(__file__).parents[4] / "shared/models/tiny-mla")
ROPE = {"compilation_config": {"custom_ops": ["-rotary_embedding"]}}
ENGINES = {"stock CPU_MLA": ROPE, "stock, MLA disabled": ROPE, "latentkv bf16": "bf16",
           "latentkv fp8": "fp8", "latentkv int8": "int8", "latentkv nvfp4": "nvfp4"}


def engine(name, dtype):
    from vllm import LLM

    words = ENGINES[name]
    if isinstance(words, str):
        words = {"attention_backend": "CUSTOM",
                 "additional_config": {"latentkv": {"format": words}}}
    return LLM(model=MODEL, dtype=dtype, max_model_len=4608, max_num_seqs=16, enforce_eager=True,
               enable_prefix_caching=False, kv_cache_memory_bytes=1 << 30, **words)


def measure(name, dtype, repeat, clock):
    from vllm import SamplingParams

    llm = engine(name, dtype)
    ids = json.loads(pathlib.Path(MODEL, "golden/dev0.json").read_text())["token_ids"]
    words = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True, detokenize=False)

    def seconds(prompts):
        begin = clock()
        llm.generate([{"prompt_token_ids": p} for p in prompts], words, use_tqdm=False)
        return clock() - begin

    eight = [ids[300 * i:300 * i + 256] for i in range(8)]
    seconds(eight)  # warm
    print(json.dumps({"batch": [512 / seconds(eight) for _ in range(repeat)],
                      "long": [seconds([ids[:4096]]) for _ in range(repeat)]}))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(ENGINES))
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--cpu-time", action="store_true",
                        help="the engine's one thread alone, for machines that others use too")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.one:
        measure(words.one, words.dtype, words.repeat,
                time.thread_time if words.cpu_time else time.perf_counter)
        return
    print(f"| engine, {words.dtype}{', CPU time' if words.cpu_time else ''} | 8 x 256 + 64, tokens/s | 4096 + 64, s |\n| --- | --- | --- |")
    for name in words.names or ENGINES:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
               "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
               "VLLM_MLA_DISABLE": str(int("disabled" in name)),
               "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        done = subprocess.run([sys.executable, __file__, "--one", name, "--dtype", words.dtype,
                               "--repeat", str(words.repeat)] +
                              ["--cpu-time"] * words.cpu_time, env=env, capture_output=True,
                              text=True)
        found = [line for line in done.stdout.splitlines() if line.startswith('{"batch"')]
        if not found:
            print(f"| {name} | failed: {done.stderr.splitlines()[-1:]} | |", flush=True)
            continue
        result = json.loads(found[0])
        print(f"| {name} | {statistics.median(result['batch']):.0f} | "
              f"{statistics.median(result['long']):.2f} |", flush=True)


if __name__ == "__main__":
    main()
