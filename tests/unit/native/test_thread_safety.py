"""The check of locks finds what it is for: see native/base/mutex.h."""

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
COUNTER = """
#include "base/mutex.h"

class Counter {
 public:
  void Add() { %s ++count_; }
  void Look() { %s ++looks_; }
  void Wait() {
    const tfc::MutexLock lock(mutex_);
    changed_.WaitUntil(mutex_, tfc::Deadline::After(1), [this]() %s { return count_ > 0; });
  }
  bool Refuses() {
    tfc::MutexLock lock(owned_);
    lock.unlock();
    const bool free = !owned_.HeldByThisThread();
    lock.lock();
    return free;
  }

 private:
  tfc::Mutex mutex_;
  tfc::OwnedMutex owned_;
  tfc::CondVar changed_;
  tfc::ThreadRole looker_;
  int count_ TFC_GUARDED_BY(mutex_) = 0;
  int looks_ TFC_GUARDED_BY(looker_) = 0;
};
"""
RIGHT = ("const tfc::MutexLock lock(mutex_);", "looker_.AssertHeld();", "TFC_REQUIRES(mutex_)")

needs_clang = pytest.mark.skipif(shutil.which("clang++") is None, reason="needs clang++")


def check(folder: Path, parts: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    source = folder / "counter.cc"
    source.write_text(COUNTER % parts)
    command = [sys.executable, str(ROOT / "tools" / "check_thread_safety.py"), str(source)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@needs_clang
def test_what_holds_its_lock_passes(tmp_path: Path) -> None:
    done = check(tmp_path, RIGHT)
    assert done.returncode == 0, done.stdout


@needs_clang
@pytest.mark.parametrize(
    ("left_out", "field"), [(0, "count_"), (1, "looks_"), (2, "count_")], ids=["lock", "thread", "condition"]
)
def test_what_does_not_is_named(tmp_path: Path, left_out: int, field: str) -> None:
    done = check(tmp_path, tuple("" if number == left_out else part for number, part in enumerate(RIGHT)))
    assert done.returncode == 1
    assert f"'{field}' requires holding" in done.stdout


@pytest.mark.parametrize("line", ["std::mutex lock_;", "std::lock_guard<std::mutex> held(lock_);", "CondVar changed_;"])
def test_locks_that_clang_knows_nothing_about_are_named(tmp_path: Path, line: str) -> None:
    unannotated = runpy.run_path(str(ROOT / "tools" / "check_thread_safety.py"))["unannotated"]
    (tmp_path / "counter.h").write_text(f"// std::mutex\nMutex lock_;\n{line}\n")
    (found,) = unannotated([tmp_path])
    assert found.startswith(f"{tmp_path / 'counter.h'}:3: ")
