"""In: the include folder and compilers. Out: exit 0 if every public header compiles alone, twice in
one file, as C11 and as C++17, without a warning and without padding in any struct."""
import pathlib
import subprocess
import sys

FLAGS = "-Wall -Wextra -Wpedantic -Wpadded -Werror -fsyntax-only".split()


def compile_header(compiler, header, include):
    cxx = "++" in pathlib.Path(compiler).name
    language, standard = ("c++", "c++17") if cxx else ("c", "c11")
    line = f'#include "{header}"\n'
    command = [compiler, f"-std={standard}", *FLAGS, f"-I{include}", "-x", language, "-"]
    done = subprocess.run(command, input=line * 2, text=True, capture_output=True, check=False)
    print(f"{'ok  ' if done.returncode == 0 else 'FAIL'} {compiler} {standard} {header}")
    sys.stdout.write(done.stderr)
    return done.returncode == 0


def main(include, *compilers):
    headers = sorted(p.relative_to(include) for p in pathlib.Path(include).rglob("*.h"))
    results = [compile_header(c, h, include) for c in compilers if c for h in headers]
    sys.exit(not results or not all(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
