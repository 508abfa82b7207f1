#!/usr/bin/env python3
"""Tests of the command lkv. In: its path and the source folder. Each test_* function is one property;
a failure prints the command, what was found and what was wanted. Expected hit counts are computed
here, from the ids alone, without the command's token expansion."""
import gzip
import json
import os
import random
import re
import subprocess
import sys
import tempfile

LKV, SOURCE = sys.argv[1], sys.argv[2]
COMMANDS = [["info"], ["make-trace"], ["replay"], ["serve-metrics"], ["ppl"], ["bench"], ["bench", "append"],
            ["bench", "decode"], ["bench", "blocks"], ["bench", "fallback"], ["bench", "frag"]]
if os.path.exists(os.path.join(os.path.dirname(LKV), "lkv-fit-projector")):
    COMMANDS.append(["fit-projector"])
TIMES = {"match_admit_us", "step_us", "manager_s", "manager_cpu_s", "wall_s", "metadata_bytes",
         "metadata_active_bytes", "metadata_resident_bytes", "rss_growth_bytes"}


def run(*args, code=0):
    done = subprocess.run([LKV, *args], capture_output=True, text=True, timeout=500)
    if done.returncode != code:
        raise AssertionError(f"lkv {' '.join(args)}: exit code {done.returncode}, want {code}\n"
                             f"{done.stdout[-500:]}\n{done.stderr[-500:]}")
    return done


def run_json(*args):
    return json.loads(run(*args, "--json", "-").stdout)


def expect(found, wanted, what):
    if found != wanted:
        raise AssertionError(f"{what}: found {found!r}, want {wanted!r}")


def write(folder, name, text):
    path = os.path.join(folder, name)
    opener = gzip.open if name.endswith(".gz") else open
    with opener(path, "wt") as f:
        f.write(text)
    return path


def documented(section):
    """Keys of docs/json.md under '## lkv <section>': {"": top level, "attend": inner keys, ...}"""
    with open(os.path.join(SOURCE, "docs/json.md")) as f:
        text = f.read()
    part = next(p for p in text.split("\n## ")[1:]
                if section in [h.removeprefix("lkv ") for h in p.splitlines()[0].split(", ")])
    keys = {"": set()}
    for cell in re.findall(r"^\| ([a-z0-9_., ]+) \|", part, re.M):
        for key in cell.split(", "):
            outer, _, inner = key.rpartition(".")
            keys.setdefault(outer, set()).add(inner)
    keys[""].discard("key")
    return keys


# ---- help and usage

def test_help():
    for command in COMMANDS:
        text = run(*command, "--help").stdout
        assert "Usage:" in text, f"{command}: no usage in {text!r}"
        if command != ["bench"]:
            assert "--json" in text, f"{command}: --help does not name --json"
    assert "replay" in run("--help").stdout


def test_bad_arguments():
    bad = [[], ["nonsense"], ["bench"], ["bench", "nonsense"], ["info", "extra"],
           ["info", "--context", "many"], ["info", "--context", "0"], ["info", "--nonsense"],
           ["make-trace"], ["make-trace", "--kind", "poem"],
           ["make-trace", "--kind", "chat", "--json", "-"],
           ["replay", "--format", "int7"], ["replay", "--blocks", "-1"],
           ["replay", "--blocks", "5", "--infinite"], ["replay", "--memory", "lots"],
           ["replay", "--infinite", "--attend", "0.5"], ["replay", "--attend", "2"],
           ["replay", "--check-every", "0"], ["replay", "--compare", "fifo"],
           ["replay", "--compare", "malloc"], ["replay", "--preempt", "swap"],
           ["serve-metrics", "--port", "65536"], ["serve-metrics", "--pace", "0"],
           ["replay", "--lend", "0.5"], ["replay", "--moe", "0"], ["replay", "--router", "v4"],
           ["replay", "--moe", "8", "--infinite"], ["replay", "--fallback", "fnv"],
           ["replay", "--moe", "8", "--headroom", "0.3", "--lend", "1"],
           ["replay", "--moe", "8", "--router", "trace", "--top-k", "2"], ["replay", "--memory", "0%"], ["ppl"], ["ppl", "--model", "x"],
           ["bench", "decode", "--device", "abacus"], ["bench", "decode", "--heads", "0"],
           ["bench", "decode", "--heads", "16,,8"], ["bench", "append", "--isa", "mmx"],
           ["bench", "blocks", "--repeats", "0"], ["bench", "frag", "--cycles", "x"]]
    for args in bad:
        said = run(*args, code=2).stderr
        assert len(said.split()) > 3, f"{args}: no sentence on stderr: {said!r}"


def test_failures():
    with tempfile.TemporaryDirectory() as folder:
        for name, text, part in [
                ("empty", "", "no requests"),
                ("kind", '{"a": 1}\n', "not a known trace"),
                ("json", '{"timestamp": 0,\n', "line 1"),
                ("ids", '{"timestamp": 0, "input_length": 513, "output_length": 1, '
                        '"hash_ids": [1]}\n', "need 2"),
                ("length", '{"timestamp": 0, "input_length": -3, "output_length": 1, '
                           '"hash_ids": []}\n', "input_length"),
                ("csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nnow,1,1\n", "timestamp")]:
            said = run("replay", "--trace", write(folder, name, text), code=1).stderr
            assert part in said, f"{name}: {said!r} does not say {part!r}"
    assert "No such file" in run("replay", "--trace", "/nowhere", code=1).stderr
    assert "LKV_E_NOT_FOUND" in run("replay", "--preset", "gpt-2", code=1).stderr
    assert "LKV_E_UNSUPPORTED" in run("replay", "--preset", "deepseek-v3.2", code=1).stderr
    assert "48" in run("replay", "--block-tokens", "48", code=1).stderr


# ---- JSON

def check_keys(section, found, outer=""):
    expect(set(found), documented(section)[outer], f"keys of {section} {outer}")


def test_json_info():
    found = run_json("info", "--context", "65536", "--sequences", "16", "--layers", "60")
    check_keys("info", found)
    rows = {(r["layout"], r["format"]): r for r in found["memory"]["rows"]}
    expect(rows["mha", "bf16"]["bytes_per_token_layer"], 65536.0, "MHA bytes")
    expect(rows["gqa-8", "bf16"]["bytes_per_token_layer"], 4096.0, "GQA-8 bytes")
    for name, gib in [("bf16", 67.5), ("int8", 38.4), ("fp8", 38.4), ("nvfp4", 25.3)]:
        expect(round(rows["mla", name]["gib"], 1), gib, f"MLA {name} GiB")
        expect(rows["mla", name]["fits_80gb"], True, f"MLA {name} fits")
    records = {(r["preset"], r["format"]): r["record_bytes"] for r in found["rows"]}
    for name, v3, small in [("bf16", 1152, 576), ("fp8", 656, 336), ("int8", 656, 336),
                            ("nvfp4", 432, 224)]:
        expect(records["v3", name], v3, f"v3 {name} record")
        expect(records["minicpm3", name], small, f"minicpm3 {name} record")


def test_json_make_trace():
    with tempfile.TemporaryDirectory() as folder:
        for kind in ["chat", "agent"]:
            a, b = os.path.join(folder, kind + "a"), os.path.join(folder, kind + "b")
            args = ["make-trace", "--kind", kind, "--seed", "7", "--requests", "60"]
            found = run_json(*args, "--out", a)
            run(*args, "--out", b)
            check_keys("make-trace", found)
            with open(a) as f, open(b) as g:
                text = f.read()
                expect(text, g.read(), f"{kind}: two files of one seed")
            lines = [json.loads(line) for line in text.splitlines()]
            expect(len(lines), 60, f"{kind}: requests")
            expect(found["prompt_tokens"], sum(x["input_length"] for x in lines), "prompt_tokens")
            expect(found["unique_blocks"], len({i for x in lines for i in x["hash_ids"]}), "ids")
            times = [x["timestamp"] for x in lines]
            expect(times, sorted(times), f"{kind}: order")
            for x in lines:
                expect(len(x["hash_ids"]), (x["input_length"] + 511) // 512, f"{kind}: ids")


def test_json_replay():
    found = run_json("replay", "--limit", "8", "--attend", "0.2")
    check_keys("replay", found)
    check_keys("replay", found["attend"], "attend")
    expect(found["attend"]["failures"], 0, "attend failures")
    assert found["attend"]["rows"] > 0, "no row was compared"
    expect(found["check_failures"], 0, "check failures")
    expect(set(found["step_us"]), {"p50", "p99"}, "step_us")
    expect(run_json("replay", "--limit", "4")["attend"], None, "attend without --attend")
    expect(run_json("replay", "--limit", "4")["compare"], None, "compare without --compare")


SMALL_MOE = ["replay", "--limit", "60", "--headroom", "0.3", "--check-every", "20"]


def check_moe(found, where):
    moe = found["moe"]
    check_keys("replay", moe, "moe")
    expect(found["check_failures"], 0, f"{where}: check failures")
    expect((moe["trace_wrong"], moe["payloads_wrong"], moe["refused_with_room"]), (0, 0, 0), where)
    expect(moe["trace_read"], found["hit_tokens"], f"{where}: traces read back")
    expect(moe["trace_checked"], moe["trace_read"], f"{where}: routed again")
    expect(moe["trace_written"], found["prompt_tokens"] - found["hit_tokens"] +
           found["output_tokens"] - found["requests"], f"{where}: every token that ran is routed")
    expect(moe["signals"]["routed"], moe["trace_written"] * moe["top_k"], f"{where}: load")
    expect(moe["created"] + moe["refused"], moe["fallbacks"], f"{where}: payloads")
    return moe


def test_moe():
    moe = check_moe(run_json(*SMALL_MOE, "--moe", "8", "--router", "trace"), "trace")
    assert moe["payloads_found"] > 0 and moe["payloads_gone"] == 0, moe
    expect(moe["fallbacks"], moe["signals"]["gate_triggered"], "FNV-1a: every triggered token")
    expect(moe["signals"]["gate_tokens"], moe["trace_written"], "the gate sees every token")
    sharing = moe["sharing"]
    assert 0 < sharing["saved"] < sharing["running_saved"] < sharing["peak_saved"] < 1, sharing
    assert sharing["running_payloads"] <= sharing["payloads"] <= sharing["payloads_unshared"]
    for fallback in ["none", "lcg", "buddy", "shared"]:
        moe = check_moe(run_json(*SMALL_MOE, "--moe", "64", "--top-k", "4", "--fallback", fallback,
                                 "--gate-window", "50"), fallback)
        assert (moe["created"] == 0) == (fallback == "none"), f"{fallback}: {moe['created']}"
    expect(run_json("replay", "--limit", "4")["moe"], None, "moe without --moe")


def test_moe_under_pressure():
    """Blocks move to the host and back, payloads are evicted: what is found is still right."""
    found = run_json(*SMALL_MOE, "--moe", "256", "--blocks", "200", "--eager", "--host", "40%",
                     "--preempt", "swap", "--demote", "--continue-tails", "--slot-policy", "lfu")
    moe = found["moe"]
    expect((moe["trace_wrong"], moe["payloads_wrong"], moe["refused_with_room"],
            found["check_failures"]), (0, 0, 0, 0), "under pressure")
    assert moe["payloads_gone"] > 0 and moe["payloads_found"] > 0 and found["host"]["swapped_in"]
    assert moe["signals"]["slot_blocks"] <= found["blocks_total"] - found["blocks_base"]


def test_moe_partial_hits():
    """Traces and payloads of tokens that a hit copies from inside a block."""
    lines = [{"session": f"s{s}", "agent": "main", "t": 100 * i, "input_length": n,
              "output_length": 30, "hash_runs": [[0, n // 64]]}
             for s in range(12) for i, n in enumerate(range(90 + s, 1500, 150))]
    with tempfile.TemporaryDirectory() as folder:
        path = write(folder, "trace.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        found = run_json("replay", "--trace", path, "--continue-tails", "--headroom", "0.3", "--moe",
                         "8", "--gate-window", "5", "--check-every", "20")
    assert found["partial_hit_tokens"] > 1000, found["partial_hit_tokens"]
    moe = check_moe(found, "partial hits")
    assert moe["payloads_found"] > 1000 and moe["payloads_gone"] == 0, moe


def test_moe_attention():
    found = run_json("replay", "--limit", "6", "--headroom", "0.3", "--moe", "16", "--attend",
                     "0.3", "--gate-window", "20", "--heads", "4")
    moe = check_moe(found, "attention")
    expect((moe["gate"], found["attend"]["failures"]), ("attention", 0), "the gate's source")
    assert 0 < moe["signals"]["gate_tokens"] < moe["trace_written"], moe["signals"]
    assert moe["signals"]["gate_windows"] > 0 and moe["fallbacks"] > 0, moe


def test_json_bench():
    small = ["--repeats", "2", "--seconds", "0.1", "--format", "int8", "--batch", "2"]
    for name, args in [("append", small),
                       ("decode", small + ["--heads", "4", "--context", "100"])]:
        found = run_json("bench", name, *args)
        expect(set(found), {"device", "name", "rows"}, f"bench {name}")
        check_keys("bench " + name, found["rows"][0])
        assert found["rows"][0]["us"] > 0, f"bench {name}: no time"
    check_keys("bench frag", run_json("bench", "frag", "--cycles", "600"))
    check_keys("bench blocks", run_json("bench", "blocks", "--repeats", "3"))
    found = run_json("bench", "fallback", "--blocks", "700", "--rounds", "3")
    check_keys("bench fallback", found)
    expect((found["lend_failures"], found["beyond_lent"], found["sequences_lost"],
            found["kv_share_least"], found["idle_share_without_fallback"]), (0, 0, 0, 1.0, 1.0),
           "bench fallback: the guarantee")


# ---- replay against counts computed here

def random_prompts(seed, block, partial):
    """Conversations that branch: lists of chained ids and a length."""
    rng = random.Random(seed)
    prompts, fresh = [], 0
    for _ in range(60):
        base = list(rng.choice(prompts)[0]) if prompts and rng.random() < 0.7 else []
        ids = base[:rng.randint(0, len(base))]
        for _ in range(rng.randint(1, 6)):
            fresh += 1
            ids.append(fresh)
        length = len(ids) * block - (rng.randint(0, block - 1) if partial else 0)
        if not partial:
            length += rng.randint(0, block - 1)
        prompts.append((ids, length))
    return prompts


def count_hits(prompts, trace_block, block):
    """Whole-block hits of a cache that never evicts: a block's identity is the chain of (id, part)."""
    cached, hits = set(), 0
    for number, (space, ids, length) in enumerate(prompts):
        chain, blocks = (space,), []
        for start in range(0, length - length % block, block):
            name = []
            for at in range(start, start + block, 16):
                known = at // trace_block < len(ids)
                name.append((ids[at // trace_block], at % trace_block) if known
                            else ("private", number, at))
            chain = hash((chain, tuple(name)))
            blocks.append(chain)
        usable = (length - 1) // block
        for i, b in enumerate(blocks):
            if b not in cached or i >= usable:
                break
            hits += block
        cached.update(blocks)
    return hits


def check_infinite(path, prompts, trace_block, seed):
    for block in [16, 64, 128]:
        if trace_block % block and trace_block == 512:
            continue
        found = run_json("replay", "--infinite", "--trace", path, "--block-tokens", str(block),
                         "--check-every", "7")
        expect(found["hit_tokens"] - found["partial_hit_tokens"],
               count_hits(prompts, trace_block, block), f"seed {seed}, block {block}: whole hits")
        expect(found["prompt_tokens"], sum(p[2] for p in prompts), "prompt tokens")
        expect(found["check_failures"], 0, "check failures")
        expect(found["evicted"], 0, "evicted")


def test_infinite_mooncake():
    for seed in [1, 2]:
        prompts = random_prompts(seed, 512, True)
        text = "".join(json.dumps({"timestamp": 100 * i, "input_length": n, "output_length": 3,
                                   "hash_ids": ids}) + "\n" for i, (ids, n) in enumerate(prompts))
        with tempfile.TemporaryDirectory() as folder:
            path = write(folder, "trace.jsonl.gz", text)
            check_infinite(path, [(0, ids, n) for ids, n in prompts], 512, seed)


def count_lru(prompts, trace_block, block, num_blocks):
    """Whole-block hits of plain LRU: the oldest block goes first, of one prompt its last."""
    order, hits = {}, 0  # insertion order is the recency
    for number, (space, ids, length) in enumerate(prompts):
        need = (length + block - 1) // block
        if need > num_blocks:
            continue
        chain, names = (space,), []
        for start in range(0, length - length % block, block):
            piece = tuple((ids[at // trace_block], at % trace_block)
                          if at // trace_block < len(ids) else ("private", number, at)
                          for at in range(start, start + block, 16))
            chain = hash((chain, piece))
            names.append(chain)
        found = 0
        while found < (length - 1) // block and names[found] in order:
            found += 1
        hits += found * block
        for name in names:
            order.pop(name, None)
        while len(order) + need > num_blocks:
            del order[next(iter(order))]
        order.update((name, True) for name in reversed(names))
    return hits


def test_compare_lru():
    for trace_block, partial in [(512, True), (64, False)]:
        prompts = [(0, ids, n) for ids, n in random_prompts(9, trace_block, partial)]
        ids_key = "hash_ids" if partial else "hash_runs"
        text = "".join(json.dumps({"timestamp": i, "session": "s", "agent": "main", "t": i,
                                   "input_length": n, "output_length": 1,
                                   ids_key: ids if partial else as_runs(ids)}) + "\n"
                       for i, (_, ids, n) in enumerate(prompts))
        with tempfile.TemporaryDirectory() as folder:
            found = run_json("replay", "--compare", "lru", "--check-every", "1", "--trace",
                             write(folder, "trace.jsonl", text))
        check_keys("replay", found)
        check_keys("replay", found["compare"], "compare")
        expect(found["check_failures"], 0, "check failures")
        expect([row["share"] for row in found["compare"]["rows"]], [0.1, 0.25, 0.5, 1.0], "shares")
        for row in found["compare"]["rows"]:
            check_keys("replay", row, "rows")
            wanted = count_lru(prompts, trace_block, 64, row["blocks"])
            expect(round(row["lru_hit_ratio"] * found["prompt_tokens"]), wanted,
                   f"trace block {trace_block}, {row['blocks']} blocks: hits of LRU")


def test_compare_memory():
    found = run_json("replay", "--limit", "80", "--compare", "memory", "--eager", "--headroom",
                     "0.3", "--lend", "1", "--check-every", "50", "--max-running", "64",
                     "--step-ms", "400")
    check_keys("replay", found)
    rows = found["compare"]["rows"]
    expect([row["share"] for row in rows], [0.1, 0.25, 0.5, 1.0], "shares")
    assert any(row["preempted"] for row in rows), "no row was short of blocks"
    for row in rows:
        where = f"{row['blocks']} blocks"
        expect(row["check_failures"] + row["lend_failures"] + row["preempted_for_lends"], 0, where)
        expect(row["lent_peak_blocks"], row["blocks"] - row["blocks_base"], "most that was lent")
        assert row["hit_ratio"] >= row["lru_hit_ratio"], f"{where}: plain LRU hits more"
        assert row["hit_ratio"] <= row["infinite_hit_ratio"] + row["partial_gain"] + 0.2, where


def test_host_tier():
    base = ["replay", "--limit", "80", "--memory", "8%", "--eager", "--max-running", "64",
            "--step-ms", "400", "--check-every", "20"]
    plain = run_json(*base)
    found = run_json(*base, "--host", "40%", "--preempt", "swap", "--demote", "--priority", "0.5")
    check_keys("replay", found)
    for key in ["host", "priority"]:
        check_keys("replay", found[key], key)
    expect(found["check_failures"], 0, "check failures")
    expect(found["output_tokens"], plain["output_tokens"], "output tokens")
    assert found["host"]["swapped_out"] > 0, "nothing was swapped"
    expect(found["host"]["swapped_in"], found["host"]["swapped_out"], "swapped back in")
    assert found["hit_tokens"] > plain["hit_tokens"], "the host tier brought no hits"
    assert found["host"]["hit_tokens"] > 0, "no hits on the host"


def test_over_time():
    found = run_json("replay", "--limit", "40", "--over-time", "7", "--until", "1000000")
    expect(len(found["over_time"]), 7, "moments")
    times = [moment["time_s"] for moment in found["over_time"]]
    expect(times, sorted(times), "order of moments")


def test_continued_tails():
    lines = [{"session": "s", "agent": "main", "t": 100 * i, "input_length": n, "output_length": 90,
              "hash_runs": [[0, n // 64]]} for i, n in enumerate([100, 200, 300])]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    with tempfile.TemporaryDirectory() as folder:
        path = write(folder, "trace.jsonl", text)
        alone = run_json("replay", "--trace", path)
        found = run_json("replay", "--trace", path, "--continue-tails")
    expect(alone["partial_hit_tokens"], 0, "partial hits of private tails")
    expect(found["partial_hit_tokens"], 36 + 8, "partial hits of tails that go on")
    expect(found["hit_tokens"] - found["partial_hit_tokens"], alone["hit_tokens"], "whole blocks")


def as_runs(ids):
    runs = []
    for i in ids:
        if runs and sum(runs[-1]) == i:
            runs[-1][1] += 1
        else:
            runs.append([i, 1])
    return runs


def test_infinite_claude():
    lines, prompts = [], []
    for space in range(3):  # the same ids in each session must not be one prefix
        for i, (ids, n) in enumerate(random_prompts(5, 64, False)):
            lines.append(json.dumps({"session": f"s{space}", "agent": "main", "t": i,
                                     "input_length": n, "output_length": 2,
                                     "hash_runs": as_runs(ids)}))
            prompts.append((space, ids, n))
    with tempfile.TemporaryDirectory() as folder:
        check_infinite(write(folder, "trace.jsonl", "\n".join(lines) + "\n"), prompts, 64, 5)


def test_infinite_azure():
    with tempfile.TemporaryDirectory() as folder:
        path = write(folder, "trace.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n"
                     "2023-11-16 18:17:03.9799600,480,10\n2023-11-16 18:17:04.0319600,480,8\n")
        found = run_json("replay", "--trace", path)
        expect((found["hit_tokens"], found["prompt_tokens"], found["output_tokens"]), (0, 960, 18),
               "private prompts: hits, prompt and output tokens")


# ---- replay with a small pool

def test_deterministic():
    args = ["replay", "--limit", "40", "--blocks", "160", "--attend", "0.05", "--seed", "3"]
    a, b = run_json(*args), run_json(*args)
    for key in TIMES:
        a.pop(key), b.pop(key)
    expect(a, b, "two runs")


def test_small_pools():
    whole = run_json("replay", "--limit", "60")
    for blocks, headroom in [(150, 0), (200, 0.3), (60, 0)]:
        found = run_json("replay", "--limit", "60", "--blocks", str(blocks), "--headroom",
                         str(headroom), "--check-every", "1")
        expect(found["check_failures"], 0, f"{blocks} blocks: check failures")
        expect(found["blocks_base"], int(blocks / (1 + headroom)), "base")
        expect(found["requests"] + found["never_fits"], 60, "requests")
        assert found["blocks_peak"] <= found["blocks_base"], f"{found['blocks_peak']} in use"
        assert found["hit_tokens"] <= whole["hit_tokens"], "a small pool hits more"
        if not found["never_fits"]:
            expect(found["output_tokens"], whole["output_tokens"], "output tokens")


def test_attend_formats():
    for name in ["bf16", "fp8", "int8", "nvfp4"]:
        found = run_json("replay", "--limit", "30", "--blocks", "150", "--attend", "0.03",
                         "--format", name)
        expect(found["attend"]["failures"], 0, f"{name}: failures")
        assert found["attend"]["rows"] > 0, f"{name}: no row was compared"
        assert found["attend"]["max_rel_l2"] <= 1e-5, f"{name}: {found['attend']}"


def test_report():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "report.html")
        run("replay", "--limit", "20", "--report", path)
        with open(path) as f:
            text = f.read()
        expect(text.count("</svg>"), 4, "plots")
        assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", text), "the report loads something"


def main():
    tests = {k: v for k, v in globals().items() if k.startswith("test_")}
    failed = 0
    for name in sys.argv[3:] or tests:
        try:
            tests[name]()
            print("ok    ", name, flush=True)
        except (AssertionError, subprocess.TimeoutExpired, ValueError, KeyError) as e:
            failed += 1
            print("FAILED", name, "-", e, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
