"""The tree's files, and C text without comments and strings (line breaks kept)."""
import pathlib
import re
import subprocess

CODE = {".c", ".h", ".cu", ".cuh"}
LIBRARY = ("core", "block_manager", "quant", "attention", "moe_cache", "api")


def files(root):
    """Relative paths of what git holds or would hold; of everything outside build folders without git."""
    listed = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard"],
                            capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        paths = [pathlib.Path(line) for line in listed.stdout.splitlines()]
    else:
        paths = [p.relative_to(root) for p in pathlib.Path(root).rglob("*")]
        paths = [p for p in paths if p.parts[0] not in ("build", ".cache", ".git")]
    return sorted({p for p in paths if (pathlib.Path(root) / p).is_file()})


def code(root):
    return [p for p in files(root) if p.suffix in CODE]


def read(root, path):
    return (pathlib.Path(root) / path).read_text(encoding="utf-8", errors="replace")


_TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|' + r"'(?:\\.|[^'\\\n])+'", re.S)


def without_comments(text):
    def blank(match):
        token = match.group(0)
        lines = "\n" * token.count("\n")
        return lines or (token[0] * 2 if token[0] in "\"'" else " ")
    return _TOKEN.sub(blank, text)


def is_kernel(path):
    return path.suffix in (".cu", ".cuh") or path.parent.name in ("sm80", "sm90")
