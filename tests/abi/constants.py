"""In: a public header. Out: constants.c (or constants_moe.c), which pins by _Static_assert the value of every constant and
the size and offsets of every struct (abidiff does not see a renumbered constant)."""
import os
import re
import subprocess
import sys
import tempfile

HEADING = """\
/* Written by tests/abi/regenerate from a public header: every constant, every struct's size and
 * offsets on a 64-bit machine. It compiles, or the ABI has changed. */
#include <stddef.h>
#include "latentkv/HEADER"

#define FIELD(type, name, offset, bytes)                                                           \\
    _Static_assert(offsetof(type, name) == offset && sizeof(((type *)0)->name) == bytes,           \\
                   #type "." #name)

"""


def without_comments(text):
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.S)


def constants(text):
    names = []
    for body in re.findall(r"\benum\s*\{(.*?)\}", text, flags=re.S):
        names += [entry.split("=")[0].strip() for entry in body.split(",") if entry.strip()]
    return names


def fields(body):
    for line in body.split(";"):
        line = re.sub(r"\[[^\]]*\]", "", line).strip()
        for part in line.split(",") if line else []:
            yield re.search(r"(\w+)$", part.strip()).group(1)


def structs(text):
    return re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", text, flags=re.S)


def assertions(text):
    """Format strings with the expressions whose values go into them."""
    for name in constants(text):
        yield f'_Static_assert({name} == %s, "{name}");', [name]
    for name, body in structs(text):
        yield f'_Static_assert(sizeof({name}) == %s, "{name}");', [f"sizeof({name})"]
        for field in fields(body):
            yield (f"FIELD({name}, {field}, %s, %s);",
                   [f"offsetof({name}, {field})", f"sizeof((({name} *)0)->{field})"])


def values(items, include, heading):
    """Compiles and runs a program that prints them: the compiler is who knows."""
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "print.c")
        with open(source, "w", encoding="utf-8") as file:
            file.write('#include <stdio.h>\n' + heading + "int main(void) {\n")
            file.writelines(f'printf("%lld\\n", (long long)({item}));\n' for item in items)
            file.write("}\n")
        program = os.path.join(folder, "print")
        subprocess.run(["cc", f"-I{include}", source, "-o", program], check=True)
        return subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()


def main(header):
    with open(header, encoding="utf-8") as file:
        lines = list(assertions(without_comments(file.read())))
    include = os.path.dirname(os.path.dirname(os.path.abspath(header)))
    heading = HEADING.replace("HEADER", os.path.basename(header))
    found = iter(values([item for _, items in lines for item in items], include, heading))
    sys.stdout.write(heading)
    for line, items in lines:
        print(line % tuple(next(found) for _ in items))
    print("\nint main(void)\n{\n    return 0;\n}")


if __name__ == "__main__":
    main(sys.argv[1])
