"""SIGTERM while a training function runs: to the rank, and to the processes that it forks."""

import os
import signal
from types import SimpleNamespace

import pytest

from tfcollective import _runtime as runtime
from tfcollective.elastic import _loop as loop

TRAINS = 0


@pytest.fixture
def session(monkeypatch):
    """The session of a rank of an elastic job that trains."""
    monkeypatch.setattr(runtime, "settings", lambda: SimpleNamespace(elastic=True))
    session = SimpleNamespace(leaving="", between_worlds=False)
    monkeypatch.setattr(runtime, "current", lambda: session)
    return session


def in_fork(function):
    """How a fork that calls the function ends: its exit code, or minus the signal that has ended it."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(function())
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_sigterm_ends_a_fork_but_ranks_leave(session):
    def terminated():
        signal.raise_signal(signal.SIGTERM)
        return TRAINS

    with loop._leaving_on_sigterm():
        assert in_fork(lambda: signal.getsignal(signal.SIGTERM) == signal.SIG_DFL) == 1
        assert in_fork(terminated) == -signal.SIGTERM
        assert session.leaving == ""
        signal.raise_signal(signal.SIGTERM)
        assert session.leaving == "SIGTERM"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_fork_keeps_what_the_program_has_set(session):
    with loop._leaving_on_sigterm():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the program's own, which forks inherit as they do all of them
        assert in_fork(lambda: signal.getsignal(signal.SIGTERM) == signal.SIG_IGN) == 1


def test_an_early_sigterm_ends_a_fork_too(session):
    def terminated():
        heard(signal.SIGTERM, None)
        return TRAINS

    with loop._leaving_on_sigterm():
        heard = signal.getsignal(signal.SIGTERM)
        assert in_fork(terminated) == -signal.SIGTERM
