#!/usr/bin/env python3
"""Tests of lkv fit-projector. Samples with known eigenvalues are written here, as .npy and as safetensors;
the files and numbers that come out are compared with plain Python arithmetic over the same samples."""
import json
import math
import os
import random
import struct
import subprocess
import sys
import tempfile

from run import documented  # its arguments are this script's
from ppl import make_weights, write_model, write_tokens, HEADS, LAYERS, NOPE, ROPE, VALUE, VOCAB

LKV, SOURCE = sys.argv[1], sys.argv[2]
G, DK, DV, FIT, HELD = 2, 32, 16, 96, 32


def run(*args, code=0):
    done = subprocess.run([LKV, "fit-projector", *args], capture_output=True, text=True, timeout=500)
    assert done.returncode == code, f"{args}: exit code {done.returncode}, want {code}: {done.stderr[-500:]}"
    return done


def write_npy(path, rows, shape, descr="<f4"):
    letter = {"<f2": "e", "<f4": "f", "<f8": "d"}.get(descr, "i")
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode())
        f.write(struct.pack(f"<{len(rows)}{letter}", *rows))
    return path


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        raw = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    return path


def read_safetensors(path):
    with open(path, "rb") as f:
        size, = struct.unpack("<Q", f.read(8))
        header, data = json.loads(f.read(size)), f.read()
    out = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            out[name] = entry["shape"], struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])
    return header["__metadata__"], out


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def basis(draw, n):
    """n orthonormal vectors."""
    rows = []
    for _ in range(n):
        v = [draw.gauss(0, 1) for _ in range(n)]
        for r in rows + rows:
            c = dot(v, r)
            v = [x - c * y for x, y in zip(v, r)]
        rows.append([x / math.sqrt(dot(v, v)) for x in v])
    return rows


class Head:
    """Rows along one of the directions each, so the moments are known without adding them up."""

    def __init__(self, draw, dim):
        self.directions, self.dim = basis(draw, dim), dim
        self.sizes = [0.8 ** i for i in range(dim)]  # of the rows of a direction
        sizes = [self.sizes[t % dim] * draw.choice((-1, 1)) for t in range(FIT + HELD)]
        self.rows = [[size * x for x in self.directions[t % dim]] for t, size in enumerate(sizes)]

    def lost(self, latent):
        energy = [s * s for s in self.sizes]
        return math.sqrt(sum(energy[latent:]) / sum(energy))


def make_heads(seed):
    draw = random.Random(seed)
    return [[Head(draw, dim) for _ in range(G)] for dim in (DK, DV)]


def flat(heads):
    return [x for t in range(FIT + HELD) for head in heads for x in head.rows[t]]


def write_samples(folder, heads):
    shape = (FIT + HELD, G)
    keys = write_npy(os.path.join(folder, "k.npy"), flat(heads[0]), (*shape, DK))
    values = write_npy(os.path.join(folder, "v.npy"), flat(heads[1]), (*shape, DV), "<f8")
    both = write_safetensors(os.path.join(folder, "samples.safetensors"), {
        "layers.0.key": ((*shape, DK), flat(heads[0])), "layers.0.value": ((*shape, DV), flat(heads[1]))})
    return ["--keys", keys, "--values", values], ["--samples", both]


def columns(tensor, head):
    (_, dim, latent), values = tensor
    at = head * dim * latent
    return [values[at + k:at + dim * latent:latent] for k in range(latent)]


def check_matrices(form, heads, part, tensors):
    down, up = tensors[f"layers.0.{part}_down"], tensors[f"layers.0.{part}_up"]
    for h, head in enumerate(heads):
        fit = head.rows[:FIT]
        a, b = columns(down, h), columns(up, h)
        for k, column in enumerate(a):
            energy = sum(dot(column, row) ** 2 for row in fit) / FIT
            wanted = 1 if form == "whitened" else head.sizes[k] ** 2 / head.dim
            assert abs(energy / wanted - 1) < 1e-4, (form, part, h, k, energy, wanted)
            turned = abs(dot(b[k], head.directions[k])) / math.sqrt(dot(b[k], b[k]))
            assert abs(turned - 1) < 1e-4, (form, part, h, k, turned)
            for m, other in enumerate(b):
                assert abs(dot(column, other) - (k == m)) < 1e-4, (form, part, h, k, m)


def check_stored(rows, heads):
    """Of latents of 16, no half: nothing but the format's rounding on top of what is cut off."""
    assert len(rows) == 8, rows
    for row in rows:
        assert set(row) == documented("fit-projector")["stored"], sorted(row)
        cut = heads[row["part"] == "value"][0].lost(16)
        rounding = {"bf16": 0.003, "fp8": 0.04, "int8": 0.02, "nvfp4": 0.2}[row["format"]]
        assert cut - 1e-6 <= row["error_least"] <= row["error"] <= row["error_most"], (row, cut)
        assert row["error_most"] <= cut + rounding, (row, cut)


def test_known_spectrum():
    heads = make_heads(5)
    with tempfile.TemporaryDirectory() as folder:
        arrays, samples = write_samples(folder, heads)
        out = os.path.join(folder, "projector.safetensors")
        for form in ("whitened", "orthogonal"):
            results = []
            for source in (arrays, samples):
                done = run(*source, "--latent-dim", "16", "--form", form, "--out", out, "--json", "-")
                results.append((done.stdout, open(out, "rb").read()))
            assert results[0] == results[1], "arrays and safetensors differ"
            found = json.loads(results[0][0])
            assert set(found) == documented("fit-projector")[""], sorted(found)
            assert (found["fit_tokens"], found["held_out_tokens"]) == (FIT, HELD), found
            for row in found["rows"]:
                assert set(row) == documented("fit-projector")["rows"], sorted(row)
                wanted = heads[row["part"] == "value"][0].lost(row["latent_dim"])
                for key in ("error", "error_least", "error_most", "fit_error"):
                    assert abs(row[key] - wanted) < 1e-6, (row, wanted)
            check_stored(found["stored"], heads)
            metadata, tensors = read_safetensors(out)
            assert metadata["form"] == form, metadata
            assert tensors["layers.0.key_down"][0] == [G, DK, 16], tensors["layers.0.key_down"][0]
            check_matrices(form, heads[0], "key", tensors)
            check_matrices(form, heads[1], "value", tensors)


def test_model():
    """Shapes of a model's file; all dimensions kept lose nothing, fewer lose more."""
    with tempfile.TemporaryDirectory() as folder:
        write_model(folder, make_weights(7))
        draw = random.Random(11)
        ids = [draw.randrange(VOCAB) for _ in range(120)]
        out = os.path.join(folder, "p.safetensors")
        found = json.loads(run("--model", folder, "--tokens", write_tokens(folder, ids, True), "--out", out,
                               "--latent-dim", "32", "--value-latent-dim", "16", "--json", "-").stdout)
        assert (found["layers"], found["kv_heads"]) == (LAYERS, HEADS), found
        assert (found["head_dim"], found["value_dim"]) == (NOPE + ROPE, VALUE), found
        keys = {r["latent_dim"]: r["error"] for r in found["rows"] if r["part"] == "key" and r["layer"] is None}
        assert 0.01 < keys[16] < 1 and keys[32] == 0, keys
        _, tensors = read_safetensors(out)
        assert tensors[f"layers.{LAYERS - 1}.value_up"][0] == [HEADS, VALUE, 16]
        zeros = columns(tensors["layers.0.value_down"], 0)[VALUE:]
        assert all(x == 0 for column in zeros for x in column), "columns beyond the value's dimensions"


def test_failures():
    with tempfile.TemporaryDirectory() as folder:
        arrays, _ = write_samples(folder, make_heads(6))
        out = ["--out", os.path.join(folder, "p")]
        for args in ([], arrays, ["--keys", "x", *out], [*arrays, "--model", "x", *out],
                     [*arrays, *out, "--form", "round"], [*arrays, *out, "--latent-dim", "8"]):
            run(*args, code=2)

        def fails(part, keys, *more):
            said = run("--keys", keys, *arrays[2:], *out, *more, code=1).stderr
            assert part in said, f"{said!r} does not say {part!r}"
        n, path = (FIT + HELD) * G * DK, os.path.join(folder, "bad.npy")
        fails("multiple of 16", arrays[1], "--latent-dim", "24")
        fails("need a multiple of 16 for its 32", arrays[1], "--latent-dim", "48")
        fails("descr '<i4'", write_npy(path, [0] * n, (FIT + HELD, G, DK), "<i4"))
        fails("2 dimensions", write_npy(path, [0] * n, (FIT + HELD, G * DK)))
        fails("the keys have", write_npy(path, [1] * n, ((FIT + HELD) * G, 1, DK)))
        fails("all zero", write_npy(path, [0] * n, (FIT + HELD, G, DK)))
        fails("not finite", write_npy(path, [math.nan] * n, (FIT + HELD, G, DK)))
        with open(path, "r+b") as f:
            f.truncate(4000)
        fails("ends after", path)
        with open(path, "wb") as f:
            f.write(b"\x93NUMPY\x01\x00\xff\xff")
        fails("header", path)
        fails("cannot open", os.path.join(folder, "nowhere"))
        fails("at least as many", arrays[1], "--held-out", "0.9")


def main():
    if not os.path.exists(os.path.join(os.path.dirname(LKV), "lkv-fit-projector")):
        print("SKIPPED: lkv-fit-projector is not built; libgsl-dev is missing")
        assert "libgsl-dev" in run("--help", code=1).stderr
        return
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            print(name)
            test()


if __name__ == "__main__":
    main()
