"""In: the small model. Out: one table: output tokens a second of 8 prompts of 256 tokens + 64 new
ones each, and seconds of one prompt of 4,096 + 64, medians of 3, for stock vLLM and latentkv.

    python bench/throughput.py [--dtype bfloat16] [--repeat 3] [--cpu-time] [--json FILE] [NAME...]

One engine after another, each in a process of its own, one OpenMP thread, eager, no prefix cache.
--cpu-time: the table has the CPU time of the engine's thread, for machines that others use too.
--json: every repeat by both clocks. "in attention" is the CPU time inside vLLM's attention layer;
the rest is what no attention backend can save."""
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


def timed_attention():
    """A list of one number, to which vLLM's attention layers add their CPU time from now on."""
    from vllm.model_executor.layers.attention import Attention, MLAAttention

    total = [0.0]
    for layer in (Attention, MLAAttention):
        def forward(*arguments, inner=layer.forward, **more):
            begin = time.thread_time()
            try:
                return inner(*arguments, **more)
            finally:
                total[0] += time.thread_time() - begin
        layer.forward = forward
    return total


def measure(name, dtype, repeat):
    from vllm import SamplingParams

    llm = engine(name, dtype)
    attention = timed_attention()
    ids = json.loads(pathlib.Path(MODEL, "golden/dev0.json").read_text())["token_ids"]
    words = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True, detokenize=False)

    def run(prompts):
        begin, attention[0] = (time.perf_counter(), time.thread_time()), 0.0
        llm.generate([{"prompt_token_ids": p} for p in prompts], words, use_tqdm=False)
        return {"wall_s": time.perf_counter() - begin[0], "cpu_s": time.thread_time() - begin[1],
                "in_attention_cpu_s": attention[0]}

    eight = [ids[300 * i:300 * i + 256] for i in range(8)]
    run(eight)  # warm
    print(json.dumps({"engine": name, "dtype": dtype, "batch": [run(eight) for _ in range(repeat)],
                      "long": [run([ids[:4096]]) for _ in range(repeat)]}))


def row(result, clock):
    batch, long, inside = (statistics.median(one[key] for one in result[kind]) for kind, key in
                           (("batch", clock), ("long", clock), ("batch", "in_attention_cpu_s")))
    return (f"| {result['engine']} | {512 / batch:.0f} | {inside:.2f} of "
            f"{statistics.median(one['cpu_s'] for one in result['batch']):.2f} | {long:.2f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(ENGINES))
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.one:
        measure(words.one, words.dtype, words.repeat)
        return
    print(f"| engine, {words.dtype}{', CPU time' * words.cpu_time} | 8 x 256 + 64, tokens/s | "
          "in attention, s | 4096 + 64, s |\n| --- | --- | --- | --- |")
    results = []
    for name in words.names:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
               "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
               "VLLM_MLA_DISABLE": str(int("disabled" in name)),
               "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        done = subprocess.run([sys.executable, __file__, "--one", name, "--dtype", words.dtype,
                               "--repeat", str(words.repeat)], env=env, capture_output=True,
                              text=True)
        found = [line for line in done.stdout.splitlines() if line.startswith('{"engine"')]
        if not found:
            print(f"| {name} | failed: {done.stderr.splitlines()[-1:]} | | |", flush=True)
            continue
        results.append(json.loads(found[0]))
        print(row(results[-1], "cpu_s" if words.cpu_time else "wall_s"), flush=True)
        if words.json:
            words.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
