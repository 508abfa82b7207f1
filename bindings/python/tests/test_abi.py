"""The declarations in _abi.py are those of the headers: generated again, and a C compiler asked."""
from __future__ import annotations

import ctypes
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from latentkv import _abi, _library

HERE = pathlib.Path(__file__).resolve().parent
HEADER = pathlib.Path(os.environ.get(
    "LATENTKV_HEADER", HERE.parents[2] / "include" / "latentkv" / "latentkv.h"))
COMPILER = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
MOE_HEADER = HEADER.with_name("moe_cache.h")
needs_header = pytest.mark.skipif(not HEADER.exists(), reason=f"no header at {HEADER}")


def structs():
    return [kind for kind in vars(_abi).values() if isinstance(kind, type)
            and issubclass(kind, _abi.Struct) and kind is not _abi.Struct]


def expectations():
    """C expressions, and what _abi.py says they are."""
    for name, value in vars(_abi).items():
        if name.startswith("LKV_"):
            yield name, value
    for kind in structs():
        yield f"sizeof({kind.__name__})", ctypes.sizeof(kind)
        for name, field_type in kind._fields_:
            yield f"offsetof({kind.__name__}, {name})", getattr(kind, name).offset
            yield f"sizeof((({kind.__name__} *)0)->{name})", ctypes.sizeof(field_type)


@needs_header
@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
def test_a_c_compiler_agrees(tmp_path):
    wanted = list(expectations())
    lines = "".join(f'    printf("%lld\\n", (long long)({text}));\n' for text, _ in wanted)
    source = tmp_path / "print.c"
    source.write_text("#include <stddef.h>\n#include <stdio.h>\n#include <latentkv/moe_cache.h>\n"
                      f"int main(void)\n{{\n{lines}    return 0;\n}}\n")
    subprocess.run([COMPILER, f"-I{HEADER.parents[1]}", source, "-o", tmp_path / "print"],
                   check=True)
    found = subprocess.run([tmp_path / "print"], check=True, capture_output=True, text=True).stdout
    wrong = [(text, value, int(number)) for (text, value), number
             in zip(wanted, found.split(), strict=True) if value != int(number)]
    assert not wrong, f"(expression, _abi.py, header): {wrong}"
    assert len(structs()) >= 28 and len(wanted) > 400


@needs_header
def test_the_file_is_what_the_generator_writes():
    generator = HERE.parent / "generate_abi.py"
    if not generator.exists():
        pytest.skip("the installed package has no generator")
    fresh = subprocess.run([sys.executable, generator, HEADER, MOE_HEADER], check=True,
                           capture_output=True, text=True).stdout
    held = pathlib.Path(_abi.__file__).read_text()
    assert fresh == held, ("the header has changed: python3 bindings/python/generate_abi.py "
                           "include/latentkv/{latentkv,moe_cache}.h >bindings/python/latentkv/_abi.py")


def test_the_library_has_every_function():
    missing = [name for name in _abi.FUNCTIONS if not hasattr(_library._library, name)]
    assert not missing


def test_size_is_set_where_a_struct_has_one():
    for kind in structs():
        if kind._fields_[0][0] == "size":
            assert kind().size == ctypes.sizeof(kind)


def test_version():
    assert _library.version() == (_abi.LKV_VERSION_MAJOR, _abi.LKV_VERSION_MINOR,
                                  _abi.LKV_VERSION_PATCH)
