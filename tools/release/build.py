"""Builds the files of a release: wheels for two processors, the benchmarks' wheel, both sdists, and their hashes.

    make release

The wheels come from the sdist, compiled by Zig against the C library of manylinux_2_28, and hold a software bill of
materials (PEP 770). The one for x86-64 also holds the GPU kernels of the given TensorFlows, which g++ compiles: they
use TensorFlow's C++ interface and so libstdc++. Two builds of one commit give equal files: every date is the commit's,
and what builds them has fixed versions (pyproject.toml).
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import bill_of_materials

ROOT = Path(__file__).resolve().parents[2]
TOOLCHAIN = ROOT / "tools" / "release" / "zig.cmake"
MACHINES = ("x86_64", "aarch64")
PLATFORM = "manylinux_2_28_{machine}"
KERNELS = Path("tfcollective", "_runtime", "native_library", "tf_gpu")


def main(arguments: Sequence[str]) -> None:
    """Builds everything into --out, which holds nothing else afterwards."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for what is made on the way")
    parser.add_argument("--out", type=Path, required=True, help="folder for the release")
    parser.add_argument(
        "--kernels-for", type=Path, action="append", default=[], metavar="PYTHON", help="GPU kernels for its TensorFlow"
    )
    options = parser.parse_args(arguments)
    work, out = _empty(options.work), _empty(options.out)
    os.environ.setdefault("SOURCE_DATE_EPOCH", _git("log", "-1", "--format=%ct").strip())
    os.umask(0o022)
    if _git("status", "--porcelain", "--untracked-files=no"):
        print("warning: there are changes without a commit; this build cannot be repeated from one", file=sys.stderr)

    sources = _copy_of_tree(work / "tree")
    main_sdist, benchmarks_sdist = (_sdist(folder, out) for folder in (sources, sources / "benchmarks"))
    for machine in MACHINES:
        wheel = _native_wheel(_unpack(main_sdist, work / machine), machine, work / machine)
        kernels = options.kernels_for if machine == "x86_64" else ()
        print(_finish(wheel, machine, kernels, out), flush=True)
    _pip_wheel(_unpack(benchmarks_sdist, work / "benchmarks"), out, {})
    files = sorted(out.iterdir())
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (out / "SHA256SUMS").write_text("".join(lines), encoding="ascii")
    print("".join(lines), end="")


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder.resolve()


def _git(*arguments: str) -> str:
    return subprocess.check_output(["git", *arguments], cwd=ROOT, text=True)


def _copy_of_tree(folder: Path) -> Path:
    """Copies what git knows: an sdist of the tree itself would take in what older builds have left there."""
    for name in _git("ls-files", "-z").split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def _sdist(folder: Path, out: Path) -> Path:
    before = set(out.iterdir())
    _call([sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(out), str(folder)])
    (made,) = set(out.iterdir()) - before
    _repack(made)
    return made


def _repack(sdist: Path) -> None:
    """Writes an sdist again, sorted and without the dates, owners and permissions of the building machine."""
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    with tarfile.open(sdist) as old:
        members = [(member, old.extractfile(member)) for member in sorted(old.getmembers(), key=lambda m: m.name)]
        contents = [(member, stream.read() if stream else b"") for member, stream in members]
    plain = sdist.with_suffix("")
    with tarfile.open(plain, "w", format=tarfile.PAX_FORMAT) as new:
        for member, data in contents:
            clean = tarfile.TarInfo(member.name)
            clean.type, clean.size, clean.mtime = member.type, len(data), epoch
            clean.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            _add(new, clean, data)
    with sdist.open("wb") as file, gzip.GzipFile("", "wb", mtime=epoch, fileobj=file) as packed:
        packed.write(plain.read_bytes())
    plain.unlink()


def _add(archive: tarfile.TarFile, member: tarfile.TarInfo, data: bytes) -> None:
    archive.addfile(member, io.BytesIO(data))


def _unpack(sdist: Path, folder: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return folder / sdist.name.removesuffix(".tar.gz")


def _native_wheel(source: Path, machine: str, folder: Path) -> Path:
    if not os.environ.get("TFC_ZIG"):
        raise SystemExit("error: TFC_ZIG does not name the zig of the package ziglang; `make release` sets it")
    environment = {"CMAKE_TOOLCHAIN_FILE": str(TOOLCHAIN), "TFC_RELEASE_MACHINE": machine}
    platform = f"--config-settings=--build-option=--plat-name={PLATFORM.format(machine=machine)}"
    return _pip_wheel(source, folder / "wheel", environment, platform)


def _pip_wheel(source: Path, out: Path, environment: dict[str, str], *options: str) -> Path:
    before = set(out.glob("*.whl"))
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    _call([*pip, "--no-build-isolation", "--wheel-dir", str(out), *options, str(source)], environment)
    (made,) = set(out.glob("*.whl")) - before
    return made


def _finish(wheel: Path, machine: str, kernels_for: Sequence[Path], out: Path) -> Path:
    """Adds the GPU kernels and the bill of materials to a wheel."""
    folder = wheel.parent / "unpacked"
    _call([sys.executable, "-m", "wheel", "unpack", "--dest", str(folder), str(wheel)])
    (package,) = folder.iterdir()
    tensorflows = [_kernels(python, package) for python in kernels_for]
    (metadata,) = package.glob("*.dist-info")
    document = bill_of_materials.document(package.name.rpartition("-")[2], machine, tensorflows)
    (metadata / "sboms").mkdir()
    (metadata / "sboms" / "tfcollective.cdx.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    _call([sys.executable, "-m", "wheel", "pack", "--dest-dir", str(out), str(package)])
    return out / wheel.name


def _kernels(python: Path, package: Path) -> str:
    """Compiles the GPU kernels for the TensorFlow of an environment into the package, and returns its version."""
    core = package / "tfcollective" / "_runtime" / "native_library" / "libtfcollective.so"
    before = set((package / KERNELS).glob("*.so"))
    program = [str(python), str(ROOT / "tools" / "build_tf_gpu.py"), str(core), str(package / KERNELS)]
    _call(program, {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"})
    (made,) = set((package / KERNELS).glob("*.so")) - before
    for lock in (package / KERNELS).glob("*.lock"):
        lock.unlink()
    made.chmod(0o755)
    return made.stem.removeprefix("tensorflow-")


def _call(command: list[str], environment: dict[str, str] | None = None) -> None:
    print("+", *command, file=sys.stderr, flush=True)
    done = subprocess.run(command, env={**os.environ, **(environment or {})}, check=False)
    if done.returncode != 0:
        raise SystemExit(f"error: {command[0]} failed with exit code {done.returncode}; its output is above")


if __name__ == "__main__":
    main(sys.argv[1:])
