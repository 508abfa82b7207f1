"""In: liblatentkv.so (with debug information), the include folder, a C compiler. Out: exit 0 if abidiff
sees no change against the baseline; 77 (skipped) without abidiff. The baseline is the released
headers, baseline/*.h; a library of empty functions is built from it, because abidiff 2.2 cannot
read back what abidw writes of this ABI. Private types do not count; exports.txt is who knows new
symbols. Growth of a struct at its end is shown too: it is allowed, by tests/abi/regenerate. (abidiff's
has_data_member_inserted_at = end, tried, also hides a member that became narrower.)"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
BASELINE = HERE / "baseline"
MAP = HERE.parent.parent / "cmake" / "latentkv.map"


def empty_library(compiler, folder):
    header = "".join(h.read_text(encoding="utf-8") for h in sorted(BASELINE.glob("*.h")))
    functions = re.findall(r"LKV_API ((?:[^;{}])*?\));", header)
    source = folder / "baseline.c"
    source.write_text('#define LKV_BUILDING\n#include "moe_cache.h"\n' +
                      "".join(f"{f}\n{{\n    __builtin_trap();\n}}\n" for f in functions))
    library = folder / "liblatentkv.so"
    subprocess.run([compiler, "-g", "-shared", "-fPIC", "-fvisibility=hidden", f"-I{BASELINE}",
                    "-Wl,-soname,liblatentkv.so.0", f"-Wl,--version-script={MAP}",
                    str(source), "-o", str(library)], check=True)
    return library


def main(library, include, compiler):
    if not shutil.which("abidiff"):
        print("skipped: abidiff is missing (package abigail-tools)")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        old = empty_library(compiler, pathlib.Path(folder))
        command = ["abidiff", "--hd1", str(BASELINE), "--hd2", include, "--drop-private-types",
                   "--no-added-syms", str(old), library]
        status = subprocess.run(command, check=False).returncode
    print(f"abidiff: {status}")
    sys.exit(status != 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
