#!/usr/bin/env python3
"""Tests of lkv ppl. A small random model is written here and run here in float64 over a bf16-rounded cache, token by token
in the plain (decompressed) form, so the command's engine and the library are checked against arithmetic
that shares nothing with them; then the loader's errors; then, with the shared model, its golden NLL."""
import json
import math
import os
import random
import struct
import subprocess
import sys
import tempfile

from run import documented  # its arguments are this script's

LKV, SOURCE = sys.argv[1], sys.argv[2]
SHARED = os.environ.get("LKV_SHARED") or os.path.join(SOURCE, "..", "shared")
VOCAB, HIDDEN, MLP, LAYERS, HEADS, LATENT, ROPE, NOPE, VALUE, TOKENS = 48, 32, 40, 2, 3, 32, 16, 16, 8, 50
EPS, THETA = 1e-6, 10000.0
BOUNDS = {"bf16": 0.001, "int8": 0.002, "fp8": 0.003, "nvfp4": 0.02}  # golden documents, of perplexity
# Bytes a token of the small model over its two layers, from the layout rule of docs/formats.md.
SMALL_BYTES = {"bf16": 192, "int8": 160, "fp8": 160, "nvfp4": 160}


def shapes():
    layer = {"input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,),
             "mlp.gate_proj": (MLP, HIDDEN), "mlp.up_proj": (MLP, HIDDEN), "mlp.down_proj": (HIDDEN, MLP),
             "self_attn.q_proj": (HEADS * (NOPE + ROPE), HIDDEN),
             "self_attn.kv_a_proj_with_mqa": (LATENT + ROPE, HIDDEN),
             "self_attn.kv_a_layernorm": (LATENT,),
             "self_attn.kv_b_proj": (HEADS * (NOPE + VALUE), LATENT),
             "self_attn.o_proj": (HIDDEN, HEADS * VALUE)}
    all_shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,),
                  "lm_head.weight": (VOCAB, HIDDEN)}
    for i in range(LAYERS):
        all_shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    return all_shapes


def as_float32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def make_weights(seed):
    draw = random.Random(seed)
    weights = {}
    for name, shape in shapes().items():
        count = math.prod(shape)
        if len(shape) == 1:
            weights[name] = [as_float32(1 + 0.1 * draw.gauss(0, 1)) for _ in range(count)]
        else:
            weights[name] = [as_float32(draw.gauss(0, 1.5 / math.sqrt(shape[1]))) for _ in range(count)]
    return weights


def write_model(folder, weights, shape_of=None):
    shape_of = shape_of or shapes()
    config = {"vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": MLP,
              "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "kv_lora_rank": LATENT,
              "q_lora_rank": None, "qk_rope_head_dim": ROPE, "qk_nope_head_dim": NOPE,
              "v_head_dim": VALUE, "first_k_dense_replace": LAYERS, "rms_norm_eps": EPS,
              "rope_theta": THETA, "rope_scaling": None, "max_position_embeddings": 256,
              "attention_bias": False, "tie_word_embeddings": False}
    header, data = {}, b""
    for name, values in weights.items():
        raw = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": list(shape_of[name]),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


# ---- the model again, in float64 and slowly
def product(matrix, x):
    n = len(x)
    return [sum(a * b for a, b in zip(matrix[i:i + n], x)) for i in range(0, len(matrix), n)]


def norm(x, weight):
    scale = 1 / math.sqrt(sum(v * v for v in x) / len(x) + EPS)
    return [v * scale * w for v, w in zip(x, weight)]


def turn(x, position):
    out = list(x)
    for i in range(0, len(x), 2):
        angle = position * THETA ** (-i / len(x))
        c, s = math.cos(angle), math.sin(angle)
        out[i], out[i + 1] = x[i] * c - x[i + 1] * s, x[i] * s + x[i + 1] * c
    return out


def attend(q, keys, values):
    scores = [sum(a * b for a, b in zip(q, k)) / math.sqrt(NOPE + ROPE) for k in keys]
    top = max(scores)
    p = [math.exp(s - top) for s in scores]
    return [sum(w * v[d] for w, v in zip(p, values)) / sum(p) for d in range(VALUE)]


def as_bf16(x):
    """What a BF16 record keeps of a value: nearest even."""
    bits, = struct.unpack("<I", struct.pack("<f", x))
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def through_latent(x, down, up):
    """What a bf16 latent x . down gives back: up . latent; both matrices [len(x), L]."""
    n = len(down) // len(x)
    latent = [as_bf16(sum(v * m for v, m in zip(x, down[k::n]))) for k in range(n)]
    return product(up, latent)


def projected(w, expanded, rope):
    """Rows of kv_b_proj and a key's rope part, each head's key and value through the layer's projector."""
    rows, ropes = [], []
    for h in range(HEADS):
        at = h * (NOPE + VALUE)
        key = through_latent(expanded[at:at + NOPE] + rope, *w["key"][h])
        rows += key[:NOPE] + through_latent(expanded[at + NOPE:at + NOPE + VALUE], *w["value"][h])
        ropes.append(key[NOPE:])
    return rows, ropes


def layer_forward(w, x, position, cache):
    normed = norm(x, w["input_layernorm"])
    kv = product(w["self_attn.kv_a_proj_with_mqa"], normed)
    latent, rope = norm(kv[:LATENT], w["self_attn.kv_a_layernorm"]), turn(kv[LATENT:], position)
    if "key" in w:
        cache.append(projected(w, product(w["self_attn.kv_b_proj"], latent), rope))
    else:
        cache.append((product(w["self_attn.kv_b_proj"], [as_bf16(v) for v in latent]),
                      [[as_bf16(v) for v in rope]] * HEADS))
    q = product(w["self_attn.q_proj"], normed)
    out = []
    for h in range(HEADS):
        row, at = q[h * (NOPE + ROPE):(h + 1) * (NOPE + ROPE)], h * (NOPE + VALUE)
        keys = [e[at:at + NOPE] + k[h] for e, k in cache]
        values = [e[at + NOPE:at + NOPE + VALUE] for e, _ in cache]
        out += attend(row[:NOPE] + turn(row[NOPE:], position), keys, values)
    x = [a + b for a, b in zip(x, product(w["self_attn.o_proj"], out))]
    normed = norm(x, w["post_attention_layernorm"])
    gate, up = product(w["mlp.gate_proj"], normed), product(w["mlp.up_proj"], normed)
    inner = [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up)]
    return [a + b for a, b in zip(x, product(w["mlp.down_proj"], inner))]


class Oracle:
    def __init__(self, weights, projector=None):
        self.weights = weights
        self.layers = [{name.removeprefix(f"model.layers.{i}.").removesuffix(".weight"): values
                        for name, values in weights.items() if name.startswith(f"model.layers.{i}.")}
                       for i in range(LAYERS)]
        self.caches = [[] for _ in range(LAYERS)]
        for i, layer in enumerate(self.layers if projector else []):
            for part in ("key", "value"):
                down, up = [projector[f"layers.{i}.{part}_{side}"] for side in ("down", "up")]
                n = len(down) // HEADS
                layer[part] = [(down[h * n:(h + 1) * n], up[h * n:(h + 1) * n]) for h in range(HEADS)]

    def step(self, token):
        x = self.weights["model.embed_tokens.weight"][token * HIDDEN:(token + 1) * HIDDEN]
        for layer, cache in zip(self.layers, self.caches):
            x = layer_forward(layer, x, len(cache), cache)
        return product(self.weights["lm_head.weight"], norm(x, self.weights["model.norm.weight"]))


def oracle_nll(weights, ids, projector=None):
    oracle, total = Oracle(weights, projector), 0.0
    for i, token in enumerate(ids[:-1]):
        logits = oracle.step(token)
        top = max(logits)
        total += top + math.log(sum(math.exp(v - top) for v in logits)) - logits[ids[i + 1]]
    return total / (len(ids) - 1), oracle.step(ids[-1])


# ---- running the command
def run(folder, tokens, fmt, *more):
    args = [LKV, "ppl", "--model", folder, "--tokens", tokens, "--format", fmt, *more]
    return subprocess.run([*args, "--json", "-"], capture_output=True, text=True, timeout=900)


def run_json(*args):
    done = run(*args)
    assert done.returncode == 0, f"{args}: exit code {done.returncode}: {done.stderr[-500:]}"
    return json.loads(done.stdout)


def write_tokens(folder, ids, bare):
    path = os.path.join(folder, "tokens.json")
    with open(path, "w") as f:
        json.dump(ids if bare else {"token_ids": ids}, f)
    return path


def check_close(found, wanted, bound, what):
    off = abs(found / wanted - 1)
    print(f"  {what}: {found:.6g}, oracle {wanted:.6g}, off by {off:.2e} (bound {bound:g})")
    assert off <= bound, what


def test_small_model_against_float64():
    with tempfile.TemporaryDirectory() as folder:
        weights = make_weights(7)
        write_model(folder, weights)
        draw = random.Random(11)
        ids = [draw.randrange(VOCAB) for _ in range(TOKENS)]
        nll, last = oracle_nll(weights, ids)
        kl = {}
        for fmt, wanted_bytes in SMALL_BYTES.items():
            tokens = write_tokens(folder, ids, fmt == "int8")
            result = run_json(folder, tokens, fmt, "--generate", "1")
            assert set(result) == documented("ppl")[""], sorted(result)
            assert result["tokens"] == TOKENS - 1, result["tokens"]
            assert result["cache_bytes_per_token"] == wanted_bytes, result["cache_bytes_per_token"]
            kl[fmt] = result["mean_kl"]
            if fmt == "bf16":
                check_close(result["perplexity"], math.exp(nll), 2e-5, "perplexity, bf16")
                assert result["generated"] == [max(range(VOCAB), key=lambda t: last[t])]
        print(f"  KL against bf16: {kl}")
        assert kl["bf16"] == 0 < kl["int8"] < kl["nvfp4"] and 0 < kl["fp8"] < kl["nvfp4"], kl


def read_floats(path):
    with open(path, "rb") as f:
        size, = struct.unpack("<Q", f.read(8))
        header, data = json.loads(f.read(size)), f.read()
    return {name: struct.unpack(f"<{(entry['data_offsets'][1] - entry['data_offsets'][0]) // 4}f",
                                data[slice(*entry["data_offsets"])])
            for name, entry in header.items() if name != "__metadata__"}


def fit(folder, tokens, out):
    """A projector of all dimensions: keys 32, values 8 in latents of 16."""
    done = subprocess.run([LKV, "fit-projector", "--model", folder, "--tokens", tokens, "--latent-dim", "32",
                           "--value-latent-dim", "16", "--out", out], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr


def test_projected_heads_against_float64():
    """Keys and values of every head in a LATENT_GQA cache: with all dimensions kept only rounding is left."""
    if not os.path.exists(os.path.join(os.path.dirname(LKV), "lkv-fit-projector")):
        print("  SKIPPED: lkv-fit-projector is not built; libgsl-dev is missing")
        return
    with tempfile.TemporaryDirectory() as folder:
        weights, draw = make_weights(7), random.Random(11)
        write_model(folder, weights)
        ids, other = [[draw.randrange(VOCAB) for _ in range(n)] for n in (TOKENS, 150)]
        projector = os.path.join(folder, "projector.safetensors")
        fit(folder, write_tokens(folder, other, True), projector)
        nll, last = oracle_nll(weights, ids, read_floats(projector))
        plain, _ = oracle_nll(weights, ids)
        tokens, gqa = write_tokens(folder, ids, True), ["--kind", "latent-gqa", "--projector", projector]
        kl, wanted_bytes = {}, {"bf16": 2 * 3 * (64 + 32), "int8": 2 * 3 * (48 + 32), "nvfp4": 2 * 3 * (48 + 48)}
        for fmt, count in wanted_bytes.items():
            result = run_json(folder, tokens, fmt, *gqa, "--generate", "1")
            assert set(result) == documented("ppl")[""], sorted(result)
            assert (result["kind"], result["latent_dim"], result["value_latent_dim"]) == ("latent-gqa", 32, 16)
            assert result["cache_bytes_per_token"] == count, result["cache_bytes_per_token"]
            kl[fmt] = result["mean_kl"]
            if fmt == "bf16":
                check_close(result["perplexity"], math.exp(nll), 2e-5, "perplexity, heads in bf16")
                check_close(result["perplexity"], math.exp(plain), 2e-3, "the same, not projected")
                assert result["generated"] == [max(range(VOCAB), key=lambda t: last[t])]
        kl["half"] = run_json(folder, tokens, "bf16", *gqa, "--latent-dim", "16")["mean_kl"]
        print(f"  KL against bf16: {kl}")
        assert 0 < kl["bf16"] < 1e-4 and kl["bf16"] < kl["int8"] < kl["nvfp4"] and kl["bf16"] < kl["half"], kl
        for more, part in ((["--latent-dim", "24"], "need a multiple of 16"), (["--latent-dim", "48"], "at most 32")):
            done = run(folder, tokens, "bf16", *gqa, *more)
            assert done.returncode == 1 and part in done.stderr, done.stderr
        assert run(folder, tokens, "bf16", *gqa[:2]).returncode == 2
        done = run(folder, tokens, "bf16", *gqa[:3], os.path.join(folder, "model.safetensors"))
        assert done.returncode == 1 and "layers.0.key_down" in done.stderr, done.stderr


def test_loader_names_what_is_wrong():
    with tempfile.TemporaryDirectory() as folder:
        weights = make_weights(7)
        tokens = write_tokens(folder, [1, 2, 3], False)
        for name in ("model.layers.1.self_attn.kv_b_proj.weight", "lm_head.weight"):
            write_model(folder, {k: v for k, v in weights.items() if k != name})
            done = run(folder, tokens, "bf16")
            assert done.returncode == 1 and name in done.stderr, (name, done.stderr)
            swapped = shapes()
            swapped[name] = tuple(reversed(swapped[name]))
            write_model(folder, weights, swapped)
            done = run(folder, tokens, "bf16")
            assert done.returncode == 1 and name in done.stderr, (name, done.stderr)
        write_model(folder, weights)
        with open(os.path.join(folder, "model.safetensors"), "r+b") as f:
            f.truncate(5000)
        done = run(folder, tokens, "bf16")
        assert done.returncode == 1 and done.stderr, done.stderr
        write_model(folder, weights)
        done = run(folder, write_tokens(folder, [1, VOCAB], False), "bf16")
        assert done.returncode == 1 and str(VOCAB) in done.stderr, done.stderr


def golden_nll(document, count):
    path = os.path.join(SHARED, "models/tiny-mla/golden", f"{document}.safetensors")
    with open(path, "rb") as f:
        size, = struct.unpack("<Q", f.read(8))
        begin, _ = json.loads(f.read(size))["nll"]["data_offsets"]
        f.seek(8 + size + begin)
        return sum(struct.unpack(f"<{count}f", f.read(4 * count))) / count


def test_golden_documents():
    model = os.path.join(SHARED, "models/tiny-mla")
    if not os.path.isdir(model):
        print("  SKIPPED: no shared model; the golden documents were not run")
        return
    for document, fmt, limit in (("dev0", "bf16", 600), ("dev1", "int8", 400), ("dev0", "nvfp4", 400)):
        result = run_json(model, os.path.join(model, f"golden/{document}.json"), fmt, "--limit", str(limit))
        wanted = math.exp(golden_nll(document, limit - 1))
        check_close(result["perplexity"], wanted, BOUNDS[fmt], f"{document}, {fmt}, {limit} tokens")


def main():
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            print(name)
            test()


if __name__ == "__main__":
    main()
