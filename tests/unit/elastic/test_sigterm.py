"""SIGTERM while a training function runs: to the rank, and to the processes that it forks."""

import os
import signal
from types import SimpleNamespace

import pytest

from tfcollective import _runtime as runtime
from tfcollective.elastic import _loop as loop

TRAINS = 0


@pytest.fixture
def left(monkeypatch):
    """Why the rank is to leave, once it is."""
    causes = []
    monkeypatch.setattr(runtime, "settings", lambda: SimpleNamespace(elastic=True))
    monkeypatch.setattr(runtime, "announce_leave", causes.append)
    monkeypatch.setattr(runtime, "is_between_worlds", lambda: False)
    return causes


def in_fork(function):
    """How a fork that calls the function ends: its exit code, or minus the signal that has ended it."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(function())
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_sigterm_ends_a_fork_but_ranks_leave(left):
    def terminated():
        signal.raise_signal(signal.SIGTERM)
        return TRAINS

    with loop._leaving_on_sigterm():
        assert in_fork(lambda: signal.getsignal(signal.SIGTERM) == signal.SIG_DFL) == 1
        assert in_fork(terminated) == -signal.SIGTERM
        assert left == []
        signal.raise_signal(signal.SIGTERM)
        assert left == ["SIGTERM"]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_fork_keeps_what_the_program_has_set(left):
    with loop._leaving_on_sigterm():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the program's own, which forks inherit as they do all of them
        assert in_fork(lambda: signal.getsignal(signal.SIGTERM) == signal.SIG_IGN) == 1


def test_an_early_sigterm_ends_a_fork_too(left):
    def terminated():
        heard(signal.SIGTERM, None)
        return TRAINS

    with loop._leaving_on_sigterm():
        heard = signal.getsignal(signal.SIGTERM)
        assert in_fork(terminated) == -signal.SIGTERM
