"""The exit codes of processes that were not started by a launcher, and SIGTERM to process 1."""

import os
import signal
import subprocess
import sys
import threading

import pytest
from time_limits import within

from tfcollective._base.errors import PeerLostError
from tfcollective._runtime import ends
from tfcollective._runtime.communicator import CommunicatorInfo
from tfcollective._runtime.ends import ExitCodeHook, end_on_sigterm, terminated
from tfcollective._runtime.interrupt import InterruptWatch

ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith("TFCOLLECTIVE_")}
WAITING = CommunicatorInfo(0, 2, 0, 2, 0, 1, uses_shared_memory=True, broken=False, completed=5, pending=1)
HOOKED = """
import tfcollective._runtime.ends as ends
from tfcollective._base import errors
ends.ExitCodeHook(lambda: None).install()
"""


def run(program, **environ):
    return subprocess.run(
        [sys.executable, "-c", program], env=ENVIRON | environ, capture_output=True, text=True, timeout=within(60)
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("errors.ConfigError('x')", 64),
        ("errors.UnsupportedError('x')", 64),
        ("errors.RendezvousError('x')", 69),
        ("errors.PeerLostError('x')", 75),
        ("errors.CollectiveAbortedError('x')", 75),
        ("errors.CoordinatorError('x')", 75),
        ("errors.CollectiveMismatchError('x')", 1),
        ("ValueError('x')", 1),
    ],
)
def test_an_uncaught_error_keeps_code_and_traceback(error, code):
    done = run(f"{HOOKED}\nimport atexit; atexit.register(print, 'at exit')\nraise {error}")
    assert done.returncode == code
    assert done.stdout == "at exit\n"
    assert done.stderr.count("Traceback") == 1
    assert "Error: x" in done.stderr


def test_without_a_launcher_init_installs_the_hook():
    program = "import tfcollective; tfcollective.init()"
    wrong = {"TFCOLLECTIVE_IDENTITY": "slurm"}
    assert run(program, **wrong).returncode == 64
    launched = {"TFCOLLECTIVE_COORDINATOR": "127.0.0.1:1", "TFCOLLECTIVE_TASK": "worker:0"}
    assert run(program, **launched).returncode == 1


def test_a_tensorflow_error_after_a_loss_counts(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", lambda *_: None)
    error = type("AbortedError", (Exception,), {"__module__": "tensorflow.errors"})("gone")
    hook = ExitCodeHook(lambda: PeerLostError("gone", peer=1))
    hook.install()
    with pytest.raises(SystemExit) as caught:
        sys.excepthook(type(error), error, None)
    assert caught.value.code == 75
    sys.excepthook(ValueError, ValueError("of the program"), None)  # keeps Python's code


def test_a_prompt_does_not_end(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", lambda *_: None)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    ExitCodeHook(lambda: None).install()
    error = PeerLostError("gone")
    sys.excepthook(PeerLostError, error, None)


@pytest.fixture
def process_1(monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(ends, "_FIRST_PROCESS", os.getpid())
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_sigterm_ends_process_1(process_1):
    end_on_sigterm()
    with pytest.raises(SystemExit) as caught:
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == 143


def test_sigterm_ends_an_operation_that_waits_for_others(process_1):
    aborted = threading.Event()
    causes = []
    watch = InterruptWatch(lambda: WAITING, lambda cause: (causes.append(cause), aborted.set()), stuck_after=0.05)
    end_on_sigterm()
    assert watch.start()
    os.write(watch._write_end, bytes([signal.SIGTERM]))  # what is written while the handler cannot run
    assert aborted.wait(within(5))
    watch.stop()
    assert causes == ["SIGTERM"]


def test_a_handler_of_the_program_stays(process_1):
    heard = []
    signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    end_on_sigterm()
    signal.raise_signal(signal.SIGTERM)
    assert heard == [1]


def test_other_processes_keep_the_default():
    before = signal.getsignal(signal.SIGTERM)
    end_on_sigterm()
    assert signal.getsignal(signal.SIGTERM) is before
    assert before is not terminated
