"""How many cores this process may use. ``native/base/cpu_quota.h`` reads the same of a rank."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

# The variables by which numeric libraries and TensorFlow size their thread pools.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
_PROC = Path("/proc/self")


def available_cores() -> int:
    """The cores that the scheduler lets us run on, or fewer when the container has a quota; at least 1."""
    cores = len(os.sched_getaffinity(0))
    quota = quota_cores(_PROC)
    return max(1, cores if quota is None else min(cores, quota))


def thread_variables(share: int, environ: Mapping[str, str]) -> dict[str, str]:
    """What sizes the thread pools of a rank that has ``share`` cores; what ``environ`` says already stays."""
    return {name: str(share) for name in THREAD_VARIABLES if name not in environ}


def quota_cores(proc: Path) -> int | None:
    """The cores, rounded up, that the control groups of a process allow: the tightest of its own group and all groups
    above it, of version 1 and 2. None: no limit, or the kernel does not say.

    Args:
        proc: the process's folder below ``/proc``.
    """
    found = [cores for v2 in (True, False) for folder in _groups(proc, v2) if (cores := _limit(folder, v2)) is not None]
    return min(found, default=None)


def _groups(proc: Path, v2: bool) -> Iterator[Path]:
    """The folders of the process's group and of those above it, as far as they are mounted."""
    mount, group = _mount(proc, v2), _group(proc, v2)
    if mount is None or group is None:
        return
    root, point = mount
    # A container sees its own group as the root of what is mounted.
    below = group.relative_to(root) if group.is_relative_to(root) else PurePosixPath()
    folder = point / below
    yield folder
    for _ in below.parts:
        folder = folder.parent
        yield folder


def _mount(proc: Path, v2: bool) -> tuple[PurePosixPath, Path] | None:
    """The group that is mounted, and where: of version 2, or of version 1's hierarchy with the controller ``cpu``."""
    for line in _lines(proc / "mountinfo"):
        fields, _, kind = (part.split(" ") for part in line.partition(" - "))
        if len(fields) < 5 or len(kind) < 3:
            continue
        if kind[0] == "cgroup2" if v2 else kind[0] == "cgroup" and "cpu" in kind[2].split(","):
            return PurePosixPath(fields[3]), Path(fields[4])
    return None


def _group(proc: Path, v2: bool) -> PurePosixPath | None:
    """The process's group in that hierarchy, as the kernel calls it."""
    for line in _lines(proc / "cgroup"):
        _, _, rest = line.partition(":")
        controllers, mark, path = rest.partition(":")
        if mark and (not controllers if v2 else "cpu" in controllers.split(",")):
            return PurePosixPath(path)
    return None


def _limit(folder: Path, v2: bool) -> int | None:
    """The cores that one group allows."""
    if v2:
        words = " ".join(_lines(folder / "cpu.max")).split()
    else:
        words = [word for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us") for word in _lines(folder / name)]
    if len(words) != 2 or not all(word.isdigit() and int(word) for word in words):  # "max" and -1 are no limits
        return None
    quota, period = map(int, words)
    return -(-quota // period)


def _lines(path: Path) -> list[str]:
    """What a file of the kernel says; nothing if it is not there."""
    try:
        return path.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return []
