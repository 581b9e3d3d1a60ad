"""The library with TensorFlow's kernels on GPUs: where it lies, and how it is compiled.

TensorFlow's C++ interface, which alone tells its CUDA stream, is another one in every version, so there is one such
library a version. Release wheels hold those of the versions that tfcollective is tested with; another one is compiled
when it is first needed, from the sources in the package. TensorFlow is not imported here, and CUDA is not needed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfcollective._base.errors import ConfigError

FOLDER = Path(__file__).resolve().parent / "tf_gpu"
SOURCES = FOLDER / "sources"
# What all packages of TensorFlow on PyPI are compiled with; wheels of releases hold kernels for those.
FLAGS = ("-D_GLIBCXX_USE_CXX11_ABI=1", "--std=c++17", "-DEIGEN_MAX_ALIGN_BYTES=64")
_UNITS = (Path("tf_gpu", "tf_gpu.cc"), Path("tf_gpu", "old_systems.cc"))
_COMPILERS = ("g++", "c++")
_TIMEOUT_S = 900.0
_REMEDY = (
    "Install g++ 9 or newer, or set TFCOLLECTIVE_GPU_KERNELS=0 on all ranks: then tensors travel through the host's "
    "memory, which is slow."
)


@dataclass(frozen=True)
class TensorflowFolder:
    """The folder of a TensorFlow, and how it was compiled.

    Attributes:
        version: "2.21.0".
        path: the folder of the package: with include/ and libtensorflow_framework.so.2.
        flags: the compiler's flags that it asks for, without paths.
    """

    version: str
    path: Path
    flags: tuple[str, ...] = FLAGS


def prebuilt(version: str, folder: Path = FOLDER) -> Path:
    """Returns the path at which a wheel has the kernels for this TensorFlow, if it has any."""
    return folder / f"tensorflow-{version}.so"


def command(
    compiler: str, tensorflow: TensorflowFolder, core: Path, output: Path, sources: Path, device: Path | None = None
) -> list[str]:
    """The compiler's command line. `device` is a folder with another tf_gpu/device.h, for tests."""
    include = tensorflow.path / "include"
    # A checkout has the C header in native/include, a package beside the other sources.
    ours = ([] if device is None else [device]) + [sources, sources / "include"]
    folders = [*ours, include, include / "external" / "local_xla"]
    return [
        compiler,
        # Warnings here are those of TensorFlow's headers.
        *("-w", "-O2", "-s", "-fPIC", "-shared", "-fvisibility=hidden", *tensorflow.flags),
        # TensorFlow's headers put the names of their files into messages.
        f"-ffile-prefix-map={tensorflow.path}=tensorflow",
        f"-ffile-prefix-map={sources}=.",
        *(f"-I{folder}" for folder in folders),
        *(str(sources / unit) for unit in _UNITS),
        *("-o", str(output)),
        *(f"-L{tensorflow.path}", "-l:libtensorflow_framework.so.2"),
        *(f"-L{core.parent}", f"-l:{core.name}", "-Wl,-z,defs", "-Wl,-rpath,$ORIGIN/.."),
    ]


def find_compiler(compilers: Sequence[str] = _COMPILERS) -> str | None:
    """The path of the first of these compilers that there is."""
    return next((path for path in map(shutil.which, compilers) if path), None)


def compile_kernels(
    tensorflow: TensorflowFolder,
    core: Path,
    output: Path,
    *,
    sources: Path = SOURCES,
    device: Path | None = None,
    compilers: Sequence[str] = _COMPILERS,
) -> None:
    """Makes `output`, whole or not at all, if no other process has made it meanwhile; takes 10 s or so.

    Args:
        tensorflow: for which version.
        core: libtfcollective.so, whose functions the kernels call.
        output: the library to make.
        sources: the folder of the sources.
        device: as for :func:`command`.
        compilers: the first one that there is compiles.

    Raises:
        ConfigError: no compiler is found, it fails, or the folder is not writable; says what to do.
    """
    compiler = find_compiler(compilers)
    what = f"tfcollective's GPU kernels for TensorFlow {tensorflow.version}"
    if compiler is None:
        raise ConfigError(
            f"{what} are not in this installation and must be compiled, but no compiler was found "
            f"({' or '.join(compilers)}). {_REMEDY}"
        )
    with _alone(output, what):
        if output.exists():
            return
        partial = output.with_name(f"{output.name}.{os.getpid()}.{secrets.token_hex(4)}")
        try:
            _compile(command(compiler, tensorflow, core, partial, sources, device), what)
            partial.replace(output)
        finally:
            partial.unlink(missing_ok=True)


@contextlib.contextmanager
def _alone(output: Path, what: str) -> Iterator[None]:
    """Keeps other processes from making `output` meanwhile: all ranks of a node come at once, and a compiler takes
    gigabytes.
    """
    try:
        output.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(output.with_name(f"{output.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"{what} have to be compiled, and cannot be written to {output.parent}: {error}; TFCOLLECTIVE_CACHE_DIR "
            "names another place"
        ) from error
    try:
        if _locked(lock, what):
            for left in output.parent.glob(f"{output.name}.*.*"):  # by processes that were killed
                left.unlink(missing_ok=True)
        yield
    finally:
        os.close(lock)  # also the end of a process releases it


def _locked(lock: int, what: str) -> bool:
    """Waits for the lock. False where the file system has none: then several may compile, each to a file of its own."""
    end = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > end:
                raise ConfigError(f"{what}: another process has not compiled them in {_TIMEOUT_S:g} s") from None
            time.sleep(0.1)  # flock waits without a deadline or not at all
        except OSError:
            return False


def _compile(line: Sequence[str], what: str) -> None:
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{what} could not be compiled: {error}. {_REMEDY}") from error
    if done.returncode != 0:
        said = "\n".join([text for text in done.stderr.splitlines() if "error" in text][:10])
        said = said or done.stderr[-2000:] or f"nothing; its exit code is {done.returncode}"
        raise ConfigError(f"{what} could not be compiled; {line[0]} says:\n{said}\n{_REMEDY}")


def compiled(tensorflow: TensorflowFolder, core: Path, cache: Path, sources: Path = SOURCES) -> Path:
    """Returns the path of the kernels for this TensorFlow in the folder `cache`, which others can use as well: another
    version of TensorFlow, of these sources or of the compiler's flags, and another processor, is another file.
    """
    digest = hashlib.sha256(repr((tensorflow, str(core), os.uname().machine)).encode())
    for source in sorted(path for path in sources.rglob("*") if path.is_file()):
        digest.update(source.read_bytes())
    return cache / f"tf_gpu-{tensorflow.version}-{digest.hexdigest()[:16]}.so"
