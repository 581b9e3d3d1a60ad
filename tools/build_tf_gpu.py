"""Makes the library with TensorFlow's kernels on GPUs for the TensorFlow of this environment, without importing it.

    PYTHONPATH=. python tools/build_tf_gpu.py build/native/libtfcollective.so FOLDER

TensorFlow's dependencies are not needed, nor is CUDA. Linking fails where this TensorFlow lacks a symbol.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tfcollective._runtime.native_library import tf_gpu

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("tensorflow-cpu", "tensorflow")


def installed() -> tf_gpu.TensorflowFolder:
    """The TensorFlow of this environment."""
    found = importlib.util.find_spec("tensorflow")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("error: there is no TensorFlow in this environment")
    for package in PACKAGES:
        try:
            return tf_gpu.TensorflowFolder(version(package), Path(found.submodule_search_locations[0]))
        except PackageNotFoundError:
            continue
    raise SystemExit(f"error: none of the packages {', '.join(PACKAGES)} is in this environment")


def main(core: str, folder: str) -> None:
    """Compiles the kernels against `core` into `folder`, under the name by which they are found there."""
    tensorflow = installed()
    output = tf_gpu.prebuilt(tensorflow.version, Path(folder).resolve())
    output.unlink(missing_ok=True)
    tf_gpu.compile_kernels(tensorflow, Path(core).resolve(), output, sources=ROOT / "native")
    print(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
