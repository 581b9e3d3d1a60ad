"""The control groups of a process, of version 1 and 2: their folders, and what they allow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

PROC = Path("/proc/self")
# Version 1 has no word for "no limit": it shows the largest number of pages.
_UNLIMITED = 1 << 60


@dataclass(frozen=True)
class MemoryLimit:
    """The memory that one group may use and uses, in bytes; `used` counts the page cache, too."""

    limit: int
    used: int


@dataclass(frozen=True)
class MemoryKills:
    """The number of processes that the kernel has killed for lack of memory, and `where`, for people: in the control
    group, or on the whole host, which runs other programs, too.
    """

    where: str
    count: int


def quota_cores(proc: Path) -> int | None:
    """The cores, rounded up, that the control groups of a process allow: the tightest of its own group and all groups
    above it, of version 1 and 2. None: no limit, or the kernel does not say.

    Args:
        proc: the process's folder below ``/proc``.
    """
    found = [cores for v2, folder in _groups(proc, "cpu") if (cores := _cores(folder, v2)) is not None]
    return min(found, default=None)


def memory_limit(proc: Path = PROC) -> MemoryLimit | None:
    """The group with the least memory left, of those that :func:`quota_cores` looks at. None: no limit."""
    found = [limit for v2, folder in _groups(proc, "memory") if (limit := _memory(folder, v2)) is not None]
    return min(found, key=lambda one: one.limit - one.used, default=None)


def memory_kills(proc: Path = PROC) -> MemoryKills | None:
    """Returns the kernel's count for the nearest group that has a counter, or for the host where none has. None: the
    kernel does not say.
    """
    counters = [folder / ("memory.events" if v2 else "memory.oom_control") for v2, folder in _groups(proc, "memory")]
    places = [("control group", counter) for counter in counters] + [("host", proc.parent / "vmstat")]
    for where, counter in places:
        for line in _lines(counter):
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.isdigit():
                return MemoryKills(where, int(count))
    return None


def _groups(proc: Path, controller: str) -> Iterator[tuple[bool, Path]]:
    """(version 2?, folder) of the process's groups and of those above them, as far as they are mounted."""
    for v2 in (True, False):
        mount, group = _mount(proc, v2, controller), _group(proc, v2, controller)
        if mount is None or group is None:
            continue
        root, point = mount
        # A container sees its own group as the root of what is mounted.
        below = group.relative_to(root) if group.is_relative_to(root) else PurePosixPath()
        folder = point / below
        yield v2, folder
        for _ in below.parts:
            folder = folder.parent
            yield v2, folder


def _mount(proc: Path, v2: bool, controller: str) -> tuple[PurePosixPath, Path] | None:
    """The group that is mounted, and where: of version 2, or of version 1's hierarchy with the controller."""
    for line in _lines(proc / "mountinfo"):
        fields, _, kind = (part.split(" ") for part in line.partition(" - "))
        if len(fields) < 5 or len(kind) < 3:
            continue
        if kind[0] == "cgroup2" if v2 else kind[0] == "cgroup" and controller in kind[2].split(","):
            return PurePosixPath(fields[3]), Path(fields[4])
    return None


def _group(proc: Path, v2: bool, controller: str) -> PurePosixPath | None:
    """The process's group in that hierarchy, as the kernel calls it."""
    for line in _lines(proc / "cgroup"):
        _, _, rest = line.partition(":")
        controllers, mark, path = rest.partition(":")
        if mark and (not controllers if v2 else controller in controllers.split(",")):
            return PurePosixPath(path)
    return None


def _cores(folder: Path, v2: bool) -> int | None:
    """The cores that one group allows."""
    if v2:
        words = " ".join(_lines(folder / "cpu.max")).split()
    else:
        words = [word for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us") for word in _lines(folder / name)]
    if len(words) != 2 or not all(word.isdigit() and int(word) for word in words):  # "max" and -1 are no limits
        return None
    quota, period = map(int, words)
    return -(-quota // period)


def _memory(folder: Path, v2: bool) -> MemoryLimit | None:
    """Returns the limit of one group and its use; None where it has no limit."""
    names = ("memory.max", "memory.current") if v2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    words = [word for name in names for word in _lines(folder / name)]
    if len(words) != 2 or not all(word.isdigit() for word in words) or int(words[0]) >= _UNLIMITED:
        return None
    return MemoryLimit(*map(int, words))


def _lines(path: Path) -> list[str]:
    """Returns the lines of a file of the kernel; none if it does not exist."""
    try:
        return path.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return []
