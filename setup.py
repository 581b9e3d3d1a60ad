"""Runs CMake for the two shared objects and tags the wheel; all that is declarative stands in pyproject.toml."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

ROOT = Path(__file__).resolve().parent
PACKAGE = Path("tfcollective", "_runtime", "native_library")


class BuildNative(Command):
    """Builds libtfcollective.so and _tf_ops.so and puts them into the package (in place for editable installs)."""

    description = "build the shared objects with CMake"
    user_options: ClassVar[list[tuple[str, str | None, str]]] = []
    editable_mode = False
    build_lib: str | None = None

    def initialize_options(self) -> None:
        self.build_lib = None

    def finalize_options(self) -> None:
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self) -> None:
        tree = ROOT / "build" / "native"
        cmake = _tool("cmake")
        configure = [cmake, "-S", str(ROOT), "-B", str(tree)]
        ninja = shutil.which("ninja")
        if ninja and not _uses_other_generator(tree):
            # The path is given each time: an isolated build has a ninja of its own that is gone afterwards.
            configure += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(len(os.sched_getaffinity(0)))
        prefix = ROOT if self.editable_mode else Path(self.build_lib or "build/lib").resolve()
        _check_call(configure)
        _check_call([cmake, "--build", str(tree), "--target", "wheel_libraries", "--parallel", jobs])
        _check_call([cmake, "--install", str(tree), "--component", "wheel", "--strip", "--prefix", str(prefix)])

    def get_source_files(self) -> list[str]:
        kinds = ("*.cc", "*.c", "*.h", "*.map")
        native = [str(p.relative_to(ROOT)) for kind in kinds for p in sorted((ROOT / "native").rglob(kind))]
        return ["CMakeLists.txt", *native]

    def get_outputs(self) -> list[str]:
        return [str(Path(self.build_lib or "", PACKAGE, name)) for name in ("libtfcollective.so", "_tf_ops.so")]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class NativeDistribution(Distribution):
    """Holds compiled code, so its wheel goes to platlib."""

    def has_ext_modules(self) -> bool:
        return True


class PlatformWheel(bdist_wheel):
    """One wheel for every Python 3 and every TensorFlow: it links with neither, only with this platform's C library."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


def _tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise SystemExit(f"building tfcollective needs {name}: install it with 'pip install {name}'")
    return path


def _uses_other_generator(tree: Path) -> bool:
    return (tree / "CMakeCache.txt").exists() and not (tree / "build.ninja").exists()


def _check_call(command: list[str]) -> None:
    print("+", " ".join(command), file=sys.stderr, flush=True)
    try:
        subprocess.run(command, check=True)
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{command[0]} failed with exit code {error.returncode}; its output is above") from error


build.sub_commands.append(("build_native", None))
setup(
    distclass=NativeDistribution,
    cmdclass={"build_native": BuildNative, "bdist_wheel": PlatformWheel},
)
