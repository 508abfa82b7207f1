"""In: the root. Out: exit 0 if no file holds a word that has no place here, no library source prints,
ends the process or reads the environment, every folder has its README, and no folder includes one
that stands after it in the data flow."""
import pathlib
import re
import sys

import tree

# Left-over work, hosts of package registries, paths of somebody's machine.
BANNED = re.compile(
    r"\b(TODO|FIXME|XXX)\b|\b[Ss]tub(s|bed)?\b"
    r"|\b(deb|snapshot|security|archive|ports)\.(debian|ubuntu)\.[a-z]+\b"
    r"|\b(files\.)?(pypi|pythonhosted)\.org\b|\bregistry\.npmjs\b|\bconda\.anaconda\b"
    r"|(?<![\w.$}])/(work|home|root|Users|tmp/team)/\w")
CALLS = re.compile(r"\b(v?f?printf|v?dprintf|f?puts|f?putc|putchar|perror|_?exit|_Exit|abort"
                   r"|(secure_)?getenv|atexit|system|signal)\s*\(")
SEAMS = {"quant/params.h", "attention/params.h", "quant/record.h"}  # plain data, for core/backend.h
MAY_INCLUDE = {
    "core": {"core"},
    "block_manager": {"core", "block_manager"},
    "quant": {"core", "quant"},
    "attention": {"core", "quant", "attention"},
    "moe_cache": {"core", "block_manager", "moe_cache"},
    "tools": {"tools", "tests"},  # tests/reference: the oracle
}
FOLDERS = set(MAY_INCLUDE) | {"api", "tests"}


def word_faults(root, path):
    if path.parent.name == "style" or path.name in (".pre-commit-config.yaml", "LICENSE"):
        return
    text = tree.read(root, path)
    if "\0" in text:
        yield f"{path}: a binary file"
        return
    for number, line in enumerate(text.split("\n"), 1):
        match = BANNED.search(line)
        if match:
            yield f"{path}:{number}: {match.group(0)!r}"


def code_faults(root, path):
    folder = path.parts[0]
    text = tree.read(root, path)
    if folder in tree.LIBRARY:
        for number, line in enumerate(tree.without_comments(text).split("\n"), 1):
            match = CALLS.search(line)
            if match:
                yield f"{path}:{number}: the library calls {match.group(1)}"
    for name in re.findall(r'#include "([^"]+)"', text):
        target = name.split("/")[0]
        if folder in MAY_INCLUDE and target in FOLDERS - MAY_INCLUDE[folder] and name not in SEAMS:
            yield f"{path}: includes {name}; {folder} may include {sorted(MAY_INCLUDE[folder])}"


def main(root):
    faults = [fault for path in tree.files(root) for fault in word_faults(root, path)]
    faults += [fault for path in tree.code(root) for fault in code_faults(root, path)]
    used = {path.parts[0] for path in tree.code(root)} & (FOLDERS - {"tests"})
    faults += [f"{folder}/README.md is missing" for folder in sorted(used)
               if not (pathlib.Path(root) / folder / "README.md").exists()]
    print("\n".join(faults) or f"{len(tree.files(root))} files")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main(sys.argv[1])
