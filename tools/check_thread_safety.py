"""Checks by clang's thread-safety analysis that fields are touched only under the lock or on the thread that they name.

    python tools/check_thread_safety.py [FILE.cc ...]

Without files: every source of native/ that has annotations (native/base/mutex.h) in what it includes. Those of tf_gpu
are left out, as they need TensorFlow's headers. Says so, and succeeds, where there is no clang++: gcc has no such
analysis. What clang cannot see is looked for in the text: a lock of the standard library, which has no annotations, in
a room of ANNOTATED_ROOMS. One sleeps there in an EventCount, which alone has a condition variable.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

NATIVE = Path(__file__).resolve().parent.parent / "native"
ANNOTATIONS = NATIVE / "base" / "mutex.h"
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
LEFT_OUT = ("tf_gpu", "benchmarks/programs")
ANNOTATED_ROOMS = ("agreement", "device/nccl", "base", "capi", "communicator", "control", "executor")
HAVE_THEM = (ANNOTATIONS, NATIVE / "base" / "event_count.h")
UNANNOTATED = re.compile(
    r"\bstd::(?:\w*mutex|condition_variable\w*|lock_guard|unique_lock|scoped_lock|shared_lock)\b|\bCondVar\b"
)


@cache
def included(source: Path) -> frozenset[Path]:
    """Returns the files of native/ that a source includes, and those that they include."""
    direct = {NATIVE / name for name in INCLUDE.findall(source.read_text(encoding="utf-8")) if (NATIVE / name).exists()}
    return frozenset(direct.union(*(included(path) for path in direct)))


def annotated() -> list[Path]:
    """Returns the sources of native/ to check."""
    sources = (path for path in sorted(NATIVE.rglob("*.cc")) if ANNOTATIONS in included(path))
    return [path for path in sources if not path.relative_to(NATIVE).as_posix().startswith(LEFT_OUT)]


def unannotated(rooms: list[Path]) -> list[str]:
    """Returns the lines of these folders that use what the analysis knows nothing about."""
    sources = (path for room in rooms for path in sorted(room.rglob("*")) if path.suffix in {".h", ".cc"})
    return [
        f"{path}:{number}: {found[0]}: locks are those of base/mutex.h, waits are in an EventCount"
        for path in sources
        if path not in HAVE_THEM
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (found := UNANNOTATED.search(line.partition("//")[0]))
    ]


def problems(clang: str, source: Path) -> str:
    """Returns what clang finds in one source, or nothing."""
    folders = (NATIVE, NATIVE / "include", NATIVE.parent)
    options = ("-std=c++17", "-fsyntax-only", "-Wno-everything", "-Werror=thread-safety")
    command = [clang, *options, *(f"-I{folder}" for folder in folders), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    return done.stderr.strip() if done.returncode else ""


def main(arguments: list[str]) -> int:
    """Prints what is wrong; returns 1 if anything is."""
    if found := unannotated([NATIVE / room for room in ANNOTATED_ROOMS]):
        print("\n".join(found))
        return 1
    clang = shutil.which("clang++")
    if clang is None:
        print("thread safety: left out, there is no clang++ (apt-get install clang)")
        return 0
    sources = [Path(argument).resolve() for argument in arguments] or annotated()
    with ThreadPoolExecutor() as pool:
        found = [text for text in pool.map(lambda source: problems(clang, source), sources) if text]
    print("\n".join(found) or f"thread safety: {len(sources)} sources kept")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
