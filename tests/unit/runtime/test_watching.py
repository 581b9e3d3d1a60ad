"""Crash hook, heartbeat and Ctrl-C watch, each on its own."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from time_limits import within

import tfcollective
from tfcollective._base.errors import ConfigError, CoordinatorError, PeerLostError
from tfcollective._base.failures import ErrorKind, member, read_exception
from tfcollective._runtime.communicator import CommunicatorInfo
from tfcollective._runtime.crash import CrashHook, came_through_collective, describe_cause, noted_if_permanent
from tfcollective._runtime.interrupt import InterruptWatch, is_stuck

INFO = CommunicatorInfo(0, 2, 0, 2, 0, 1, uses_shared_memory=True, broken=False, completed=5, pending=1)

# ---- crash -----------------------------------------------------------------------------------------------------------


def crash(hook: CrashHook, error: BaseException) -> None:
    try:
        raise error
    except BaseException as raised:
        hook._hook(type(raised), raised, raised.__traceback__)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    shown: list[BaseException] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: shown.append(error))
    return shown


def test_a_crash_is_recorded_reported_and_shown(tmp_path: Path, quiet: list[BaseException]) -> None:
    aborted: list[str] = []
    before = sys.excepthook
    hook = CrashHook(str(tmp_path / "record"), aborted.append, lambda: None)
    hook.install()
    assert member(str(tmp_path / "record")) == os.getpid()
    crash(hook, ValueError("rotten\nand more"))
    hook.remove()
    assert (sys.excepthook, member(str(tmp_path / "record"))) == (before, None)
    record = read_exception(str(tmp_path / "record"))
    assert record is not None
    assert (record.type, record.message, record.kind) == ("ValueError", "rotten\nand more", ErrorKind.OWN)
    assert "test_watching" in record.traceback
    assert aborted == ["ValueError: rotten"]
    assert isinstance(quiet[0], ValueError)


def test_others_get_the_cause_without_a_record() -> None:
    aborted: list[str] = []

    def fail() -> None:
        raise RuntimeError("in the record")

    hook = CrashHook("record", aborted.append, fail)
    with pytest.raises(RuntimeError, match="in the record"):
        crash(hook, PeerLostError("gone"))
    assert aborted == ["PeerLostError: gone"]


@pytest.mark.parametrize(
    ("error", "ended_by_peer", "consequence"),
    [
        (PeerLostError("gone"), True, True),
        (PeerLostError("gone"), False, True),
        (ValueError("own"), True, False),
        (type("InternalError", (Exception,), {"__module__": "tensorflow.python.framework"})("x"), True, True),
        (type("InternalError", (Exception,), {"__module__": "tensorflow.python.framework"})("x"), False, False),
    ],
)
def test_consequences(tmp_path: Path, error: Exception, ended_by_peer: bool, consequence: bool) -> None:
    failure = PeerLostError("rank 2 is gone", peer=2) if ended_by_peer else None
    hook = CrashHook(str(tmp_path / "record"), lambda cause: None, lambda: failure)
    crash(hook, error)
    record = read_exception(str(tmp_path / "record"))
    assert record is not None
    assert (record.kind is ErrorKind.PEER) is consequence
    assert record.blames == (2 if ended_by_peer and consequence else None)


def test_an_error_raised_because_of_a_collective_counts() -> None:
    error = RuntimeError("training failed")
    error.__cause__ = PeerLostError("gone")
    assert came_through_collective(error)
    assert not came_through_collective(RuntimeError("own"))


def test_an_unwritable_record_does_not_hide_errors(quiet: list[BaseException]) -> None:
    aborted: list[str] = []
    hook = CrashHook("/nonexistent/record", aborted.append, lambda: None)
    hook.install()
    crash(hook, ValueError("x"))
    assert aborted == ["ValueError: x"]
    assert len(quiet) == 1


def test_another_hook_put_over_ours_stays() -> None:
    hook = CrashHook(None, lambda cause: None, lambda: None)
    hook.install()

    def other(*_arguments: object) -> None:
        return None

    sys.excepthook = other
    hook.remove()
    assert sys.excepthook is other


@pytest.fixture
def record_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the agent of this process looks for its record."""
    monkeypatch.setenv("TFCOLLECTIVE_FAILURE_FILE", str(tmp_path / "record"))
    return tmp_path / "record"


def test_an_error_of_configuration_in_init_is_recorded(record_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFCOLLECTIVE_TRANSPORT", "pigeons")
    with pytest.raises(ConfigError):
        tfcollective.init()
    record = read_exception(str(record_file))
    assert record is not None
    assert (record.type, record.kind) == ("ConfigError", ErrorKind.PERMANENT)
    assert not record.final  # the program may catch it
    assert "pigeons" in record.message


def test_joining_removes_an_init_errors_record(record_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError):
        tfcollective.init(engine="pigeons")
    assert record_file.exists()
    tfcollective.init()
    tfcollective.shutdown()
    assert not record_file.exists()


def test_a_passing_init_error_leaves_no_record(record_file: Path) -> None:
    with pytest.raises(CoordinatorError), noted_if_permanent():
        raise CoordinatorError("no answer")
    assert not record_file.exists()


def test_a_nested_job_spares_the_outer_record(record_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFCOLLECTIVE_IDENTITY", "mpi")
    with pytest.raises(ConfigError):
        tfcollective.init()
    assert not record_file.exists()


def test_causes_are_one_short_line() -> None:
    assert describe_cause(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert len(describe_cause(ValueError("x" * 9999))) == 500
    graph = 'Graph execution error:\n\nDetected at node n\n  File "x.py", line 1\n\nthe real one\n\t [[{{node n}}]]'
    assert describe_cause(ValueError(graph)) == "ValueError: the real one"


# ---- Ctrl-C ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "stuck"),
    [
        (INFO, True),
        (replace(INFO, completed=6), False),
        (replace(INFO, pending=0), False),
        (replace(INFO, broken=True), False),
    ],
)
def test_stuck_is_a_pending_operation_without_progress(after: CommunicatorInfo, stuck: bool) -> None:
    assert is_stuck(INFO, after) is stuck


def test_a_stuck_operation_is_aborted_after_ctrl_c() -> None:
    aborted = threading.Event()
    watch = InterruptWatch(lambda: INFO, lambda cause: aborted.set(), stuck_after=0.05)
    assert watch.start()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        aborted.wait(within(20))
    assert aborted.wait(within(20))
    watch.stop()
    assert signal.set_wakeup_fd(-1) == -1


def test_a_program_handling_sigint_is_left_alone() -> None:
    aborted: list[str] = []
    watch = InterruptWatch(lambda: INFO, aborted.append, stuck_after=0.01)
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        assert watch.start()
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)  # longer than the grace: nothing must happen
    finally:
        watch.stop()
        signal.signal(signal.SIGINT, before)
    assert aborted == []


def test_signals_write_into_no_other_file(tmp_path: Path) -> None:
    """After a shutdown on another thread, which cannot take the wakeup descriptor back."""
    watch = InterruptWatch(lambda: INFO, lambda cause: None)
    assert watch.start()
    stopping = threading.Thread(target=watch.stop)
    stopping.start()
    stopping.join(within(20))
    before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    try:
        with (tmp_path / "checkpoint").open("wb") as first, (tmp_path / "log").open("wb") as second:
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0)  # the handler runs
            assert (os.fstat(first.fileno()).st_size, os.fstat(second.fileno()).st_size) == (0, 0)
        again = InterruptWatch(lambda: INFO, lambda cause: None)
        assert again.start()
        again.stop()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert signal.set_wakeup_fd(-1) == -1


def test_a_wakeup_descriptor_in_use_is_left_alone() -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end)
    try:
        watch = InterruptWatch(lambda: INFO, lambda cause: None)
        assert not watch.start()
        watch.stop()
        assert signal.set_wakeup_fd(-1) == write_end
    finally:
        os.close(read_end)
        os.close(write_end)


def test_only_the_main_thread_can_watch() -> None:
    started: list[bool] = []
    thread = threading.Thread(target=lambda: started.append(InterruptWatch(lambda: INFO, lambda cause: None).start()))
    thread.start()
    thread.join()
    assert started == [False]
