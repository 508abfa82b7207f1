"""In: the public headers. Out (standard output): latentkv/_abi.py, the constants, structs and
functions as ctypes declarations. The test test_abi.py compares the checked-in file with a fresh one
and, through a C compiler, with what the header really is; tests/abi/regenerate writes it again.

    python3 bindings/python/generate_abi.py include/latentkv/{latentkv,moe_cache}.h >latentkv/_abi.py
"""
from __future__ import annotations

import re
import sys
import textwrap

HEADING = '''\
"""Written by generate_abi.py from the public headers: constants, structs and functions of the C ABI."""
import ctypes
from ctypes import POINTER, c_char, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t
from ctypes import c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any


class Struct(ctypes.Structure):
    """Sets the field size, where there is one, to what this file knows of the struct."""

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        if self._fields_[0][0] == "size":
            self.size = ctypes.sizeof(self)

    def __repr__(self) -> str:
        values = (f"{name}={getattr(self, name)!r}" for name, *_ in self._fields_ if name != "size")
        return f"{type(self).__name__}({', '.join(values)})"


'''
SCALARS = {"size_t": "c_size_t", "int32_t": "c_int32", "uint32_t": "c_uint32", "float": "c_float",
           "int64_t": "c_int64", "uint64_t": "c_uint64", "uint8_t": "c_uint8", "char": "c_char",
           "double": "c_double"}
STRUCT = re.compile(r"typedef struct (\w+) \{(.*?)\} \1;", re.S)


def without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.S)


def constants(text: str) -> list[tuple[str, int]]:
    found = [(name, int(value)) for name, value in
             re.findall(r"^#define (LKV_VERSION_\w+) (\d+)$", text, flags=re.M)]
    for body in re.findall(r"\benum\s*\{(.*?)\}", text, flags=re.S):
        found += [(name, int(value, 0)) for name, value in
                  re.findall(r"(LKV_\w+)\s*=\s*(-?\w+)", body)]
    return found


class Types:
    """C types as ctypes expressions. Structs are pointed at with their type, so that ctypes keeps
    what a field points at alive; opaque objects and arrays are addresses."""

    def __init__(self, text: str) -> None:
        self.scalars = dict(SCALARS)
        for kind, name in re.findall(r"typedef (u?int\d+_t) (\w+);", text):
            self.scalars[name] = SCALARS[kind]
        self.structs = [name for name, _ in STRUCT.findall(text)]
        for name in re.findall(r"typedef lkv_status \(\*(\w+)\)", text):
            self.scalars[name] = "c_void_p"
        self.callbacks = re.findall(r"typedef void \(\*(\w+)\)", text)

    def of(self, declaration: str) -> str:
        stars = declaration.count("*")
        words = [w for w in re.findall(r"\w+", declaration) if w not in ("const", "struct")]
        base = words[0]
        if stars == 0:
            return base if base in self.structs + self.callbacks else self.scalars[base]
        if stars == 1 and base == "char":
            return "c_char_p"
        return f"POINTER({base})" if stars == 1 and base in self.structs else "c_void_p"


def fields(body: str, types: Types) -> list[tuple[str, str]]:
    found = []
    for line in filter(None, (part.strip() for part in body.split(";"))):
        match = re.fullmatch(r"(.*?)(\w+)\s*(?:\[(\d+)\])?", line, flags=re.S)
        if match is None or "," in line:  # two fields in one line would lose one
            raise ValueError(f"a field of another shape: {line!r}")
        kind = types.of(match.group(1))
        found.append((match.group(2), f"{kind} * {match.group(3)}" if match.group(3) else kind))
    return found


def functions(text: str, types: Types) -> list[tuple[str, str, list[str]]]:
    found = []
    for result, name, inside in re.findall(r"LKV_API ([\w \*]+?)(\w+)\(([^)]*)\);", text):
        inside = " ".join(inside.split())
        arguments = [] if inside == "void" else [
            "c_void_p" if "char *buffer" in part else types.of(part) for part in inside.split(",")]
        found.append((name, "None" if result.strip() == "void" else types.of(result), arguments))
    return found


def python_type(kind: str) -> str:
    return {"c_double": "float", "c_float": "float"}.get(
        kind, "int" if re.fullmatch(r"c_u?int\d+|c_size_t", kind) else "Any")


def main(*headers: str) -> None:
    texts = []
    for header in headers:
        with open(header, encoding="utf-8") as file:
            texts.append(without_comments(file.read()))
    text = "\n".join(texts)
    types = Types(text)
    out = [HEADING]
    out += [f"{name} = {value}\n" for name, value in constants(text)]
    out += ["\n", "lkv_log_fn = ctypes.CFUNCTYPE(None, c_void_p, c_int32, c_char_p)\n"]
    for name, body in STRUCT.findall(text):
        found = fields(body, types)
        out.append(f"\n\nclass {name}(Struct):\n")
        out += [f"    {field}: {python_type(kind)}\n" for field, kind in found]
        out.append("    _fields_ = [\n")
        out += [f'        ("{field}", {kind}),\n' for field, kind in found]
        out.append("    ]\n")
    out.append("\n\n# name: (result, arguments)\nFUNCTIONS = {\n")
    for name, result, arguments in functions(text, types):
        tail = ",)" if len(arguments) == 1 else ")"
        line = f'"{name}": ({result}, ({", ".join(arguments)}{tail}),'
        out.append("\n".join(textwrap.wrap(line, 99, initial_indent=" " * 4,
                                           subsequent_indent=" " * 8)) + "\n")
    out.append("}\n")
    sys.stdout.write("".join(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
