"""In: liblatentkv.so and exports.txt (or --print). Out: exit 0 if the library exports just those
names, needs only the C library, has its SONAME, stays mapped, and wants no static TLS."""
import re
import subprocess
import sys

NEEDED = re.compile(r"(libc|libm|libpthread|libdl|librt|ld-linux-[a-z0-9-]+)\.so\.\d+$")


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def exports(library):
    lines = output("nm", "-D", "--defined-only", "--with-symbol-versions", library).splitlines()
    symbols = [line.split() for line in lines]
    return sorted(s[2] for s in symbols if s[1] != "A")  # A: the version node itself


def faults(library, list_path):
    with open(list_path, encoding="utf-8") as file:
        wanted = sorted(file.read().split())
    found = exports(library)
    yield from (f"not in {list_path}: {name}" for name in found if name not in wanted)
    yield from (f"missing in the library: {name}" for name in wanted if name not in found)
    yield from (f"not an lkv_ name: {name}" for name in found if not name.startswith("lkv_"))
    dynamic = output("readelf", "-dW", library)
    for name in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
        if not NEEDED.match(name):
            yield f"needs {name}; only the C library is allowed"
    if "[liblatentkv.so.0]" not in dynamic:
        yield "SONAME is not liblatentkv.so.0"
    if "STATIC_TLS" in dynamic:
        yield "has STATIC_TLS: dlopen will fail in large programs"
    if "NODELETE" not in dynamic:
        yield "lacks NODELETE"
    if re.search(r"GNU_STACK.*RWE", output("readelf", "-lW", library)):
        yield "has an executable stack"


def main(library, list_path):
    if list_path == "--print":
        print("\n".join(exports(library)))
        return
    found = list(faults(library, list_path))
    print("\n".join(found) or f"{len(exports(library))} names exported, as listed")
    sys.exit(bool(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
