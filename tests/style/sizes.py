"""In: the root. Out: exit 0 if every file, line, function and parameter list keeps the limits of the
house style; the measured numbers, by folder."""
import re
import statistics
import sys

import tree

FILE_LINES, KERNEL_FILE_LINES, COLUMNS, PARAMETERS = 500, 800, 100, 7
MEDIAN, P90, LONGEST, KERNEL_LONGEST = 12, 40, 70, 350
MACRO = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", re.M)
NOT_FUNCTIONS = ("if", "for", "while", "switch", "do", "else", "return", "sizeof")


def top_level_blocks(text):
    """Of each outermost {...}: what precedes it, the offset of its {, the offset of its }. Blocks of
    extern "C" and namespaces are looked into."""
    depth, start, begin = 0, 0, 0
    for match in re.finditer(r"[{};]", text):
        c, at = match.group(0), match.start()
        if c == "{":
            if depth == 0 and re.search(r'(extern\s*""|\bnamespace\b[\s\w:]*)\s*$', text[start:at]):
                start = at + 1
                continue
            depth += 1
            begin = at if depth == 1 else begin
        elif c == "}":
            depth = max(depth - 1, 0)
            if depth == 0:
                yield text[start:begin], begin, at
                start = at + 1
        elif depth == 0:
            start = at + 1


def balanced(text):
    """The text of the last (...) group of text, and what is before it."""
    depth = 0
    for i in range(len(text) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(text[i], 0)
        if depth == 0 and text[i] == "(":
            return text[:i], text[i + 1:text.rindex(")")]
    return text, ""


def num_parameters(inside):
    depth, count = 0, 1
    for c in inside:
        depth += {"(": 1, "[": 1, "<": 1, ")": -1, "]": -1, ">": -1}.get(c, 0)
        count += c == "," and depth == 0
    return 0 if inside.strip() in ("", "void") else count


def functions(text):
    """(name, first line, lines between the braces, parameters) of each function in text."""
    text = MACRO.sub(lambda m: "\n" * m.group(0).count("\n"), tree.without_comments(text))
    for head, begin, end in top_level_blocks(text):
        head = re.sub(r"__attribute__\s*\(\(.*?\)\)", "", head, flags=re.S).rstrip()
        if not head.endswith(")"):
            continue
        before, inside = balanced(head)
        name = re.search(r"(\w+)\s*$", before)
        if not name or name.group(1) in NOT_FUNCTIONS:
            continue
        if name.group(1) == "Test":
            name, inside = re.match(r"\s*(\w+\s*,\s*\w+)", inside), ""
        lines = max(text.count("\n", begin, end) - 1, 0)
        yield name.group(1), text.count("\n", 0, begin) + 1, lines, num_parameters(inside)


def file_faults(path, text):
    lines = text.split("\n")
    limit = KERNEL_FILE_LINES if tree.is_kernel(path) else FILE_LINES
    whole_abi = path.parts[0] == "include" or path.parts[:3] == ("tests", "abi", "baseline")
    if len(lines) - 1 > limit and not whole_abi:  # read in one go
        yield f"{path}: {len(lines) - 1} lines; at most {limit}"
    if not re.match(r"(#include[^\n]*\n|\s)*/[*/]", text):
        yield f"{path}: no heading comment"
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS:
            yield f"{path}:{number}: {len(line)} columns; at most {COLUMNS}"


def function_faults(path, found):
    longest = KERNEL_LONGEST if tree.is_kernel(path) else LONGEST
    for name, line, lines, parameters in found:
        if lines > longest:
            yield f"{path}:{line}: {name} has {lines} lines; at most {longest}"
        if parameters > PARAMETERS and not tree.is_kernel(path):  # steps over register arrays, inlined
            yield f"{path}:{line}: {name} has {parameters} parameters; at most {PARAMETERS}"


def summary(name, lengths):
    lengths = sorted(lengths)
    p90 = lengths[int(0.9 * (len(lengths) - 1))]
    median = statistics.median(lengths)
    print(f"{name:15} {len(lengths):5} functions: median {median:g}, p90 {p90}, longest {lengths[-1]}")
    return median <= MEDIAN and p90 <= P90


def main(root):
    faults, by_folder = [], {}
    for path in tree.code(root):
        text = tree.read(root, path)
        found = list(functions(text))
        faults += file_faults(path, text)
        faults += function_faults(path, found)
        by_folder.setdefault(path.parts[0], []).extend(lines for _, _, lines, _ in found)
    for folder, lengths in by_folder.items():
        if lengths:
            summary(folder, lengths)
    code = [n for folder, lengths in by_folder.items() if folder != "tests" for n in lengths]
    if not summary("without tests", code):
        faults.append(f"functions are too long: median at most {MEDIAN}, p90 at most {P90}")
    print("\n".join(faults))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main(sys.argv[1])
