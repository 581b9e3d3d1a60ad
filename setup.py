"""Builds the two shared objects with CMake and tags the wheel; pyproject.toml has everything else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
NO_COMPILER = """\
tfcollective: no C++17 compiler was found (c++, g++ or clang++ on the PATH, or CXX): the native library is not built.
Everything that moves data between ranks needs it: install a compiler (apt-get install g++), then tfcollective again.
"""


class BuildNative(build_ext):
    """Has CMake build libtfcollective.so and _tf_ops.so and put them into the package, in place if it is editable."""

    def run(self) -> None:
        if not any(map(shutil.which, filter(None, (os.environ.get("CXX"), "c++", "g++", "clang++")))):
            if not self.editable_mode:
                raise SystemExit(NO_COMPILER)
            print(NO_COMPILER, file=sys.stderr)
            return
        tree, prefix = ROOT / "build" / "native", ROOT if self.editable_mode else Path(self.build_lib).resolve()
        # The ninja of an isolated build is gone afterwards, so its path is given each time.
        _cmake("-S", ROOT, "-B", tree, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={shutil.which('ninja')}")
        _cmake("--build", tree, "--target", "wheel_libraries")
        _cmake("--install", tree, "--component", "wheel", "--strip", "--prefix", prefix)

    def get_outputs(self) -> list[str]:
        return []

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class PlatformWheel(bdist_wheel):
    """One wheel for every Python 3 and every TensorFlow: it links with neither, only with this platform's C library."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


def _cmake(*arguments: str | Path) -> None:
    print("+ cmake", *arguments, file=sys.stderr, flush=True)
    try:
        subprocess.run(["cmake", *arguments], check=True)
    except FileNotFoundError:
        raise SystemExit("building tfcollective needs cmake and ninja: pip install cmake ninja") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"cmake failed with exit code {error.returncode}; its output is above") from None


setup(
    ext_modules=[Extension("tfcollective._runtime.native_library", sources=[])],  # the wheel holds compiled code
    cmdclass={"build_ext": BuildNative, "bdist_wheel": PlatformWheel},
)
