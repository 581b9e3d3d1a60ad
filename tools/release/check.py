"""Checks the files of a release: names, metadata, contents, platform, licences, changes, and that they install.

make release-check                 # every Python 3.10 to 3.13 that is here installs the wheel
make release-check CHECK_ARGS=--unreleased    # between releases: the changelog need not have the version yet
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from elftools.elf.elffile import ELFFile

ROOT = Path(__file__).resolve().parents[2]
MACHINES = ("x86_64", "aarch64")
MAX_BYTES = 3 * 1000 * 1000
MAX_GLIBC = (2, 28)
NATIVE = "tfcollective/_runtime/native_library/"
TENSORFLOW = "libtensorflow_framework.so.2"  # the process has loaded it
BIN = Path(sys.executable).parent
# Run by the Python of one environment, with that of another: it finds the other's packages, too.
_SEE_PACKAGES_OF = """
import pathlib, subprocess, sys
where = "import sysconfig; print(sysconfig.get_path('purelib'))"
mine, others = (subprocess.check_output([one, "-c", where], text=True) for one in (sys.executable, sys.argv[1]))
pathlib.Path(mine.strip(), "others.pth").write_text(others)
"""


class Release:
    """The folder with the files of a release, all of one version."""

    def __init__(self, folder: Path, pythons: Sequence[str], tensorflows: Sequence[str], unreleased: bool) -> None:
        self.folder = folder
        self.pythons = pythons
        self.tensorflows = tensorflows
        self.unreleased = unreleased
        self.version = _version_in(ROOT / "tfcollective" / "_base" / "version.py")

    def wheel(self, machine: str) -> Path:
        """The wheel for a processor."""
        return self.folder / f"tfcollective-{self.version}-py3-none-manylinux_2_28_{machine}.whl"

    @property
    def benchmarks(self) -> Path:
        """The wheel of the benchmarks."""
        return self.folder / f"tfcollective_bench-{self.version}-py3-none-any.whl"

    @property
    def distributions(self) -> list[Path]:
        """All files that are published."""
        sdists = [self.folder / f"{name}-{self.version}.tar.gz" for name in ("tfcollective", "tfcollective_bench")]
        return [*map(self.wheel, MACHINES), self.benchmarks, *sdists]


def files(release: Release) -> Iterator[str]:
    """The folder holds the files of this version, with their hashes, and nothing else."""
    expected = {path.name for path in release.distributions}
    there = {path.name for path in release.folder.iterdir()} - {"SHA256SUMS", "made"}
    if there != expected:
        yield f"missing: {sorted(expected - there)}, not expected: {sorted(there - expected)}"
    for line in (release.folder / "SHA256SUMS").read_text(encoding="ascii").splitlines():
        digest, name = line.split("  ")
        if hashlib.sha256((release.folder / name).read_bytes()).hexdigest() != digest:
            yield f"{name} has another hash than SHA256SUMS says"


def versions(release: Release) -> Iterator[str]:
    """Every place that has the version has the same, and the changelog has a section for it."""
    others = {"benchmarks/tfcollective_bench/__init__.py": "__version__ = ", "CITATION.cff": "version: "}
    for name, before in others.items():
        found = _version_in(ROOT / name, before)
        if found != release.version:
            yield f"{name} has version {found}, tfcollective/_base/version.py {release.version}"
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if f"## [{release.version}]" not in changes and not release.unreleased:
        yield f"CHANGELOG.md has no section '## [{release.version}]'"


def metadata(release: Release) -> Iterator[str]:
    """What a package index and its readers are shown (twine check --strict)."""
    yield from _output_if_failed("twine", "check", "--strict", *map(str, release.distributions))


def contents(release: Release) -> Iterator[str]:
    """No wheel lacks what it names, nor holds what belongs elsewhere (check-wheel-contents)."""
    wheels = [*map(release.wheel, MACHINES), release.benchmarks]
    yield from _output_if_failed("check-wheel-contents", *map(str, wheels))


def platforms(release: Release) -> Iterator[str]:
    """The shared objects ask for no more of a system than the wheel's tag says (auditwheel)."""
    for machine in MACHINES:
        command = [str(BIN / "auditwheel"), "show", "--json", str(release.wheel(machine))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            yield f"{machine}: auditwheel: {done.stderr.strip()}"
            continue
        shown = json.loads(done.stdout)
        found = re.fullmatch(rf"manylinux_(\d+)_(\d+)_{machine}", shown["sym_tag"])
        if found is None or (int(found[1]), int(found[2])) > MAX_GLIBC:
            yield f"{machine}: its symbols are those of {shown['sym_tag']}"
        libraries = set(shown["external_libs"]) - {TENSORFLOW}
        if libraries or shown["unsupported_isa"]:
            yield f"{machine}: it needs {sorted(libraries)} or instructions that not all processors have"


def shared_objects(release: Release) -> Iterator[str]:
    """They are stripped and export nothing but the C interface."""
    for machine in MACHINES:
        with zipfile.ZipFile(release.wheel(machine)) as wheel:
            names = [name for name in wheel.namelist() if name.endswith(".so")]
            if not {f"{NATIVE}libtfcollective.so", f"{NATIVE}_tf_ops.so"} <= set(names):
                yield f"{machine}: it holds only {names}"
            for name in names:
                with wheel.open(name) as file:
                    yield from (
                        f"{machine}: {name}: {problem}" for problem in _problems_of(ELFFile(file), machine, name)
                    )
        kernels = [name for name in names if "/tf_gpu/" in name]
        if bool(kernels) != (machine == "x86_64"):
            yield f"{machine}: GPU kernels: {kernels}"


def _problems_of(elf: ELFFile, machine: str, name: str) -> Iterator[str]:
    if elf.get_machine_arch() != {"x86_64": "x64", "aarch64": "AArch64"}[machine]:
        yield f"compiled for {elf.get_machine_arch()}"
    if elf.get_section_by_name(".symtab") or elf.has_dwarf_info(strict=True):
        yield "not stripped"
    if "/tf_gpu/" in name:
        return  # TensorFlow's templates are weak symbols, which are exported
    exported = [
        symbol.name
        for symbol in elf.get_section_by_name(".dynsym").iter_symbols()
        if symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["bind"] in ("STB_GLOBAL", "STB_WEAK") and symbol.name
    ]
    others = [symbol for symbol in exported if not symbol.startswith("tfc_")]
    if others:
        yield f"exports {others[:5]}"


def sizes(release: Release) -> Iterator[str]:
    """The wheels are small."""
    for path in [*map(release.wheel, MACHINES), release.benchmarks]:
        if path.stat().st_size > MAX_BYTES:
            yield f"{path.name} has {path.stat().st_size} bytes, more than {MAX_BYTES}"


def licences(release: Release) -> Iterator[str]:
    """Licence, notices and a valid bill of materials are in the wheels."""
    for path in [*map(release.wheel, MACHINES), release.benchmarks]:
        with zipfile.ZipFile(path) as wheel:
            names = wheel.namelist()
            wanted = ["licenses/LICENSE"] if path == release.benchmarks else ["licenses/LICENSE", "licenses/NOTICE"]
            for name in wanted:
                if not any(entry.endswith(f".dist-info/{name}") for entry in names):
                    yield f"{path.name} lacks {name}"
            if path != release.benchmarks:
                bills = [entry for entry in names if ".dist-info/sboms/" in entry]
                problem = _bill_problem(wheel.read(bills[0]).decode(), release.version) if bills else "none"
                if problem:
                    yield f"{path.name}: bill of materials: {problem}"


def _bill_problem(text: str, version: str) -> str | None:
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if error is not None:
        return str(error)
    document = json.loads(text)
    if document["metadata"]["component"]["version"] != version:
        return f"it is that of {document['metadata']['component']['version']}"
    names = {part["name"] for part in document["components"]}
    return None if {"libc++", "libc++abi", "libunwind", "compiler-rt"} <= names else f"it lists only {sorted(names)}"


def installs(release: Release) -> Iterator[str]:
    """Every Python that is here installs the wheel into an empty environment, and `tfcollective check` is content."""
    if not release.pythons:
        yield "no Python was given to install the wheel with"
    for python in release.pythons:
        folder = Path(tempfile.mkdtemp(prefix="tfcollective-smoke-"))
        try:
            yield from (f"{python}: {problem}" for problem in _smoke(python, folder, release))
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def tensorflow_ops(release: Release) -> Iterator[str]:
    """In front of every TensorFlow that is here, the wheel's op runs between two processes: `tfcollective check`."""
    if not release.tensorflows:
        yield "no environment with TensorFlow was given"
    for python in release.tensorflows:
        folder = Path(tempfile.mkdtemp(prefix="tfcollective-smoke-"))
        try:
            yield from (f"{python}: {problem}" for problem in _smoke(python, folder, release, with_its_packages=True))
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _smoke(python: str, folder: Path, release: Release, *, with_its_packages: bool = False) -> Iterator[str]:
    bin_ = folder / "bin"
    # What is installed there must stay, and must not count as what is to be installed here.
    alone = ["--no-deps", "--force-reinstall"] if with_its_packages else []
    wheel = str(release.wheel("x86_64"))
    steps = (
        [python, "-m", "venv", str(folder)],
        *([[str(bin_ / "python"), "-c", _SEE_PACKAGES_OF, python]] if with_its_packages else []),
        [str(bin_ / "pip"), "install", "--quiet", "--disable-pip-version-check", *alone, wheel],
        [str(bin_ / "tfcollective"), "check"],
        [str(bin_ / "tfcollective"), "--version"],
    )
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, cwd=folder, check=False, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            yield f"{' '.join(step)} exits with {done.returncode}: {(done.stdout + done.stderr).strip()}"
            return
    if release.version not in done.stdout:
        yield f"tfcollective --version says {done.stdout.strip()}"


def _version_in(path: Path, before: str = "__version__ = ") -> str:
    found = re.search(rf'^{before}"?([0-9][^"\s]*)', path.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise SystemExit(f"error: {path} has no line '{before}...'")
    return found[1]


def _output_if_failed(program: str, *arguments: str) -> Iterator[str]:
    done = subprocess.run([str(BIN / program), *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        yield (done.stdout + done.stderr).strip()


CHECKS: tuple[Callable[[Release], Iterator[str]], ...] = (
    files,
    versions,
    metadata,
    contents,
    platforms,
    shared_objects,
    sizes,
    licences,
    installs,
    tensorflow_ops,
)


def main(arguments: Sequence[str]) -> int:
    """Runs all checks, and returns 1 if one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="the release, as `make release` leaves it")
    parser.add_argument("--python", action="append", default=[], help="install the wheel with it; may be repeated")
    parser.add_argument(
        "--tensorflow", action="append", default=[], help="a Python that has TensorFlow; may be repeated"
    )
    parser.add_argument("--unreleased", action="store_true", help="the changelog need not have the version yet")
    options = parser.parse_args(arguments)
    release = Release(options.folder.resolve(), options.python, options.tensorflow, options.unreleased)
    failed = False
    for check in CHECKS:
        problems = list(check(release))
        failed = failed or bool(problems)
        print(f"{'FAILED' if problems else 'ok    '} {check.__name__}: {check.__doc__}", flush=True)
        for problem in problems:
            print(f"       {problem}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
