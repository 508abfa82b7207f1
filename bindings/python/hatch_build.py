"""In: a CMake build folder, LATENTKV_BUILD (default ../../build/release). Out: a wheel that carries
its liblatentkv.so.0, and liblatentkv_cuda.so where it was built, in latentkv/_lib.

The wheel's tag: any Python 3, this machine's glibc and processor; no compiled extension."""
from __future__ import annotations

import os
import pathlib
import platform
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CORE, CUDA = "liblatentkv.so.0", "liblatentkv_cuda.so"


class LibraryHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the shared libraries of the build folder to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # runs from the tree: LATENTKV_LIBRARY says where the library is
            return
        default = pathlib.Path(self.root, "..", "..", "build", "release")
        folder = pathlib.Path(os.environ.get("LATENTKV_BUILD", default)).resolve()
        if not (folder / CORE).exists():
            raise FileNotFoundError(f"no {CORE} in {folder}: build the target latentkv there, or "
                                    "set LATENTKV_BUILD to a build folder")
        for name in (CORE, CUDA):
            if (folder / name).exists():
                source = str((folder / name).resolve())
                build_data["force_include"][source] = f"latentkv/_lib/{name}"
        build_data["force_include"][str(pathlib.Path(self.root, "..", "..", "LICENSE"))] = (
            "latentkv/LICENSE")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform()}"


def _platform() -> str:
    """manylinux of the glibc that the library was linked against, which is this machine's."""
    _, glibc = platform.libc_ver()
    major, minor = (glibc or "2.36").split(".")[:2]
    return f"manylinux_{major}_{minor}_{platform.machine()}"
