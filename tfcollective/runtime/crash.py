"""When an exception ends this process: leave the record of it, and let no other rank wait for us."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from types import TracebackType

from tfcollective.failures import write_exception
from tfcollective.log import get_logger

__all__ = ["CrashHook", "describe_cause"]

_LOG = get_logger(__name__)
_MAX_CAUSE = 500


def describe_cause(error: BaseException) -> str:
    """The text that the other ranks show: class and first line of the message."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text[:_MAX_CAUSE]


class CrashHook:
    """Wraps ``sys.excepthook``; the hook that was there before still runs, after ours.

    Args:
        failure_file: where the record goes; None for nowhere.
        abort: takes the cause; tells the other ranks.
    """

    def __init__(self, failure_file: str | None, abort: Callable[[str], None]) -> None:
        self._failure_file = failure_file
        self._abort = abort
        self._pid = os.getpid()
        self._previous: Callable[..., object] | None = None

    def install(self) -> None:
        """Puts the hook in place."""
        self._previous = sys.excepthook
        sys.excepthook = self._hook

    def remove(self) -> None:
        """Puts the previous hook back, unless somebody has put another one over ours."""
        if sys.excepthook == self._hook and self._previous is not None:
            sys.excepthook = self._previous

    def _hook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if os.getpid() == self._pid:
            self._record(error)
            self._abort(describe_cause(error))
        if self._previous is not None:
            self._previous(kind, error, trace)

    def _record(self, error: BaseException) -> None:
        if self._failure_file is None:
            return
        try:
            write_exception(self._failure_file, error, now=time.time())
        except OSError as problem:
            _LOG.warning("cannot leave the failure record in %s: %s", self._failure_file, problem)
