"""examples/decode.c, decode.cpp and decode.py build, run and say the same."""
from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINE = re.compile(r"attended 101 tokens: lse\[0\] (\S+), out\[0\]\[0\] (\S+)\n")


def numbers(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return [float(x) for x in LINE.fullmatch(done.stdout).groups()]


@pytest.mark.parametrize("compiler, name, words", [("cc", "decode.c", ["-std=gnu11"]),
                                                   ("c++", "decode.cpp", ["-std=c++17"])])
def test_compiled_examples(tmp_path, compiler, name, words):
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    library = pathlib.Path(os.environ["LATENTKV_LIBRARY"]).resolve()
    program = tmp_path / "decode"
    subprocess.run([compiler, *words, "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}",
                    ROOT / "examples" / name, library, f"-Wl,-rpath,{library.parent}", "-o",
                    program], check=True)
    assert numbers([program]) == pytest.approx(
        numbers([sys.executable, ROOT / "examples" / "decode.py"]), abs=2e-4)
