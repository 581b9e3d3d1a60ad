"""Looks at this machine and at what is installed."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import psutil

from tfcollective._base.machine.cores import available_cores
from tfcollective._base.version import __version__
from tfcollective_bench.model import Hardware, Versions

__all__ = ["probe_hardware", "probe_versions"]

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_CPU_INFO = Path("/proc/cpuinfo")
_PACKAGES = ("numpy", "tensorflow", "tensorflow-cpu", "keras", "mpi4py", "horovod")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_TIMEOUT_S = 20.0
_LIST_PACKAGES = """
import sys
from importlib import metadata
for name in sys.argv[1:]:
    try:
        print(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        pass
"""


def probe_hardware() -> Hardware:
    """Returns the facts of this machine at this moment."""
    return Hardware(
        cpu=_cpu_model(),
        cores=os.cpu_count() or 1,
        usable_cores=available_cores(),
        caches=_caches(_CACHES),
        memory=int(psutil.virtual_memory().total),
        kernel=platform.release(),
        load=os.getloadavg(),
    )


def probe_versions(external: dict[str, str] | None = None, commands: Sequence[Sequence[str]] = ()) -> Versions:
    """Returns the versions in use: this environment's packages, those of other Pythons, and programs.

    Args:
        external: label -> Python interpreter of another environment; its packages appear as "label/package".
        commands: programs that print their version, for example ["mpirun", "--version"].
    """
    found = {"tfcollective": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    for label, python in (external or {}).items():
        for line in _output([python, "-c", _LIST_PACKAGES, *_PACKAGES]):
            name, _, version = line.partition(" ")
            found[f"{label}/{name}"] = version
    for command in commands:
        lines = _output(command)
        if lines:
            found[command[0]] = lines[0]
    return Versions(found)


def _output(command: Sequence[str]) -> list[str]:
    """The lines that a command prints; none when it does not run."""
    try:
        done = subprocess.run(
            list(command), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


def _cpu_model() -> str:
    try:
        lines = _CPU_INFO.read_text("utf-8", "replace").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _caches(directory: Path) -> dict[str, int]:
    """Bytes by level; of level 1 only the data cache."""
    found: dict[str, int] = {}
    for index in sorted(directory.glob("index*")):
        try:
            level, kind, size = ((index / name).read_text("ascii").strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        if kind != "Instruction":
            found[f"L{level}{'d' if level == '1' else ''}"] = cache_bytes(size)
    return found


def cache_bytes(text: str) -> int:
    """The bytes of the kernel's notation, for example "32768K"."""
    unit = _UNITS.get(text[-1:], 1)
    digits = text.rstrip("KMG")
    return int(digits) * unit if digits.isdigit() else 0
