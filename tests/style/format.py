"""In: the root. Out: exit 0 if clang-format would change no C or CUDA file; 77 (skipped) where
clang-format 14, whose rules the tree follows, is missing."""
import re
import shutil
import subprocess
import sys

import tree

MAJOR = 14


def clang_format():
    for name in (f"clang-format-{MAJOR}", "clang-format"):
        path = shutil.which(name)
        text = subprocess.run([path, "--version"], capture_output=True, text=True,
                              check=False).stdout if path else ""
        if re.search(rf"version {MAJOR}\.", text):
            return path
    print(f"skipped: clang-format {MAJOR} is missing")
    sys.exit(77)


def main(root):
    command = [clang_format(), "--dry-run", "-Werror", *map(str, tree.code(root))]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    bad = sorted({line.split(":")[0] for line in done.stderr.splitlines() if "error:" in line})
    print("\n".join(f"{name}: clang-format -i would change it" for name in bad) or "formatted")
    sys.exit(done.returncode != 0)


if __name__ == "__main__":
    main(sys.argv[1])
