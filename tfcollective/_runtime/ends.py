"""Ends a process that our launchers did not start: with exit codes that its parent can tell apart, and, as process 1 of
a container, on SIGTERM.

A platform such as Kubernetes decides by exit codes whether to retry. Python exits with 1 for every error. And process 1
has no default action for signals: without a handler it would wait for SIGKILL.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

from tfcollective._base.errors import CollectiveError, TfCollectiveError
from tfcollective._base.exit_codes import SIGNAL_BASE, ExitCode, code_of
from tfcollective._base.log import get_logger
from tfcollective._runtime.crash import came_through_collective

_LOG = get_logger(__name__)
_FIRST_PROCESS = 1
_own_handler: Callable[[int, FrameType | None], object] | None = None  # the newest, of SIGTERM


class ExitCodeHook:
    """Wraps ``sys.excepthook``: an error of tfcollective that nothing catches ends the process with the code that
    :mod:`tfcollective._base.exit_codes` has for it. What is an error of the program keeps Python's 1.

    Args:
        ended_by_peer: with which error another rank has ended the world, or None.
    """

    def __init__(self, ended_by_peer: Callable[[], CollectiveError | None]) -> None:
        self._ended_by_peer = ended_by_peer
        self._pid = os.getpid()
        self._previous = sys.excepthook

    def install(self) -> None:
        """Puts the hook in place; the one that is there still runs, and shows the error."""
        self._previous = sys.excepthook
        sys.excepthook = self._hook

    def _hook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        ended_by = self._ended_by_peer() if os.getpid() == self._pid else None  # before anything is taken down
        self._previous(kind, error, trace)
        code = _code_for(error, ended_by)
        prompt = hasattr(sys, "ps1") or bool(sys.flags.interactive)  # where an error ends no program
        if code is not None and not prompt:
            raise SystemExit(int(code))


def _code_for(error: BaseException, ended_by: CollectiveError | None) -> ExitCode | None:
    if isinstance(error, TfCollectiveError):
        code = code_of(error)
        return None if code is ExitCode.INTERNAL else code
    # TensorFlow's errors do not say that a rank was lost: the first failure of the communicator does.
    return ExitCode.LOST if ended_by is not None and came_through_collective(error) else None


def end_on_sigterm() -> None:
    """Lets SIGTERM end this process, if it is process 1 and nothing handles the signal: with SystemExit(143) in the
    main thread, so that ``finally`` and ``atexit`` run and the rank leaves the world gracefully. A handler that the
    program sets, now or later, stays.
    """
    first = os.getpid() == _FIRST_PROCESS and threading.current_thread() is threading.main_thread()
    if first and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        handle_sigterm(terminated)


def handle_sigterm(handler: Callable[[int, FrameType | None], object]) -> None:
    """Sets the handler of SIGTERM for this process alone. Processes that it forks get the default action back: those of
    a ``multiprocessing.Pool``, for example, are ended by SIGTERM, and a handler would keep them."""
    global _own_handler
    if _own_handler is None:
        os.register_at_fork(after_in_child=_give_up_sigterm)
    _own_handler = handler
    signal.signal(signal.SIGTERM, handler)


def _give_up_sigterm() -> None:
    if signal.getsignal(signal.SIGTERM) is _own_handler:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def end_if_forked(number: int, pid: int) -> None:
    """Ends this process by the signal if it is not the one that has this id: a fork that was sent it too early."""
    if os.getpid() != pid:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


def terminated(number: int, frame: object) -> None:
    """The handler of :func:`end_on_sigterm`. A second signal finds the process on its way out already."""
    del frame
    end_if_forked(number, _FIRST_PROCESS)
    signal.signal(number, signal.SIG_IGN)
    _LOG.warning("%s: this process ends", signal.Signals(number).name)
    raise SystemExit(SIGNAL_BASE + number)
