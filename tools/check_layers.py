"""Checks that every room of native/ includes only what the architecture allows.

Each room stands with the rooms it may use directly; what those may use, it may use, too. A room of RESERVED is for the
rooms that stand there alone: the concrete transports (`control` knows one: its connections come in at the same listener
as those for data), and the C header, whose types stop at the rooms that translate them. CMake has to name every source,
too.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NATIVE, TESTS = ROOT / "native", ROOT / "tests" / "native"
INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"|<(?=tfcollective/))([^">]+)[">]', re.MULTILINE)
BELOW: dict[str, tuple[str, ...]] = {
    "include": (),
    "base": (),
    "collectives/reduce": ("base",),
    "collectives/transport": ("base",),
    "collectives/transport/tcp": ("collectives/transport",),
    "collectives/shm": ("base",),
    "collectives/algorithms": ("collectives/transport", "collectives/shm", "collectives/reduce"),
    "control": ("base", "collectives/transport"),
    "communicator": ("collectives/algorithms", "control"),
    "agreement": ("control",),
    "device": ("agreement",),
    "executor": ("communicator", "device"),
    "device/nccl": ("executor",),
    "capi": ("device/nccl",),
    "simulator": ("capi",),
    "tf_common": ("base",),
    "tf_ops": ("tf_common",),
    "tf_xla": ("tf_common",),
    "tf_gpu": ("tf_common",),
}
RESERVED = {
    "collectives/transport/tcp": ("control", "capi"),
    "include": ("capi", "simulator", "tf_common", "tf_ops", "tf_xla", "tf_gpu"),
}
# Compiled for one version of TensorFlow, and by tools/baselines.sh.
BUILT_ELSEWHERE = ("tf_gpu/", "benchmarks/programs/")
UNCHECKED = ("testing", "benchmarks")


def below(room: str) -> set[str]:
    """Returns the room itself and all rooms below it."""
    return {room}.union(*(below(next_room) for next_room in BELOW[room]))


def allowed(room: str, target: str) -> bool:
    """Says whether a file of `room` may include a header of `target`."""
    return target in below(room) or room in RESERVED.get(target, ())


def room_of(path: str) -> str | None:
    """Returns the room of a path relative to native/, or None if it lies in no room."""
    parts = path.split("/")
    if parts[0] == "tfcollective":  # <tfcollective/tfcollective.h>, found through native/include
        return "include"
    folders = ("/".join(parts[:depth]) for depth in range(len(parts) - 1, 0, -1))
    return next((folder for folder in folders if folder in BELOW), None)


def violations() -> list[str]:
    """Returns one line for each include that points upwards or sideways."""
    found = []
    for source in sorted(p for p in NATIVE.rglob("*") if p.suffix in (".cc", ".h", ".c")):
        relative = source.relative_to(NATIVE)
        if relative.parts[0] in UNCHECKED:
            continue
        room = room_of(relative.as_posix())
        for include in INCLUDE.findall(source.read_text(encoding="utf-8")):
            target = room_of(include)
            if room is None or target is None or not allowed(room, target):
                found.append(f'native/{relative}: room {room} may not include "{include}"')
    return found


def unlisted() -> list[str]:
    """Returns one line for each source and test that no CMakeLists.txt names: it would not be missed."""
    sources = [
        path for path in NATIVE.rglob("*.cc") if not path.relative_to(NATIVE).as_posix().startswith(BUILT_ELSEWHERE)
    ]
    return [
        f"{path.relative_to(ROOT)}: no CMakeLists.txt names it"
        for path in sorted([*sources, *TESTS.rglob("*_test.cc")])
        if not any(name in _words(folder) for folder in path.parents for name in _names(path, folder))
    ]


def _names(source: Path, folder: Path) -> tuple[str, str]:
    """Returns what a CMakeLists.txt in `folder` may call a source: its path there, or a test by its short name."""
    return source.relative_to(folder).as_posix(), source.name.removesuffix("_test.cc")


@cache
def _words(folder: Path) -> frozenset[str]:
    listing = folder / "CMakeLists.txt"
    return frozenset(re.split(r"[\s()]+", listing.read_text(encoding="utf-8")) if listing.exists() else ())


if __name__ == "__main__":
    lines = violations() + unlisted()
    print("\n".join(lines) or "native layers: kept")
    sys.exit(bool(lines))
