"""Handles an exception that ends this process: leaves a record of it, and lets no other rank wait for this one."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from tfcollective._base.errors import CollectiveError
from tfcollective._base.failures import (
    ErrorKind,
    forget_member,
    kind_of,
    message_of,
    note_member,
    write_exception,
)
from tfcollective._base.log import get_logger
from tfcollective._base.settings import environ_snapshot, variable
from tfcollective._base.tracebacks import cause_line

_LOG = get_logger(__name__)
_MAX_CAUSE = 500


def describe_cause(error: BaseException) -> str:
    """The text that the other ranks show: the class, and the line of the message that says what was wrong."""
    kind = type(error).__name__
    line = cause_line(kind, message_of(error))
    return (f"{kind}: {line}" if line else kind)[:_MAX_CAUSE]


def came_through_collective(error: BaseException) -> bool:
    """True if an error of a collective, ours or TensorFlow's, is `error` or led to it."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, CollectiveError) or type(seen).__module__.startswith("tensorflow."):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


@contextmanager
def noted_if_permanent() -> Iterator[None]:
    """Records permanent errors while a process joins its job, when the hook is not installed yet: an error that every
    restart would raise again leaves its record, as it does later. A transient one may concern this start only.

    The record is removed when the process joins after all: the program has caught the error and tried in another way. A
        later end of the process must not be attributed to it.
    """
    environ = environ_snapshot()
    launched = environ.get(variable("identity"), "auto") in ("auto", "launcher")
    path = environ.get(variable("failure_file")) if launched else None
    try:
        yield
    except Exception as error:
        if kind_of(error) is ErrorKind.PERMANENT:
            _leave_record(path, error, final=False)
        raise
    if path is not None:
        with suppress(OSError):
            Path(path).unlink(missing_ok=True)


def _leave_record(
    path: str | None, error: BaseException, ended_by: CollectiveError | None = None, *, final: bool = True
) -> None:
    """Writes the record of ``error``, which ``ended_by`` has brought about if there is one, to the file ``path``."""
    if path is None:
        return
    try:
        write_exception(
            path,
            error,
            now=time.monotonic(),
            consequence=_ends_all(ended_by),
            blames=None if ended_by is None else ended_by.peer,
            final=final,
        )
    except OSError as problem:
        _LOG.warning("cannot leave the failure record in %s: %s", path, problem)


def _ends_all(ended_by: CollectiveError | None) -> bool:
    """False also for a rank that was late: it is awaited, and lives."""
    return ended_by is not None and kind_of(ended_by) is ErrorKind.PEER


class CrashHook:
    """Wraps ``sys.excepthook``; the hook that was there before still runs, after ours. While it is there, a note tells
    the agent that this process takes part in the job: its command may be a wrapper that ends before.

    Args:
        failure_file: where the record goes; None for nowhere.
        abort: takes the cause; tells the other ranks.
        ended_by_peer: with which error another rank has ended the world, or None.
        report: called with the cause when it is none that another rank has brought about.
    """

    def __init__(
        self,
        failure_file: str | None,
        abort: Callable[[str], None],
        ended_by_peer: Callable[[], CollectiveError | None],
        report: Callable[[str], None] = lambda cause: None,
    ) -> None:
        self._report = report
        self._failure_file = failure_file
        self._abort = abort
        self._ended_by_peer = ended_by_peer
        self._pid = os.getpid()
        self._previous: Callable[..., object] | None = None

    def install(self) -> None:
        """Puts the hook in place."""
        self._previous = sys.excepthook
        sys.excepthook = self._hook
        if self._failure_file is not None:
            with suppress(OSError):  # what cannot be noted here cannot be recorded either, which is said then
                note_member(self._failure_file)

    def remove(self) -> None:
        """Puts the previous hook back, unless another one has been put over this one."""
        if self._failure_file is not None:
            with suppress(OSError):
                forget_member(self._failure_file)
        if sys.excepthook == self._hook and self._previous is not None:
            sys.excepthook = self._previous

    def _hook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if os.getpid() == self._pid:
            ended_by = None
            try:
                # TensorFlow's errors name no lost or late rank: the first failure of the communicator does.
                ended_by = self._ended_by_peer() if came_through_collective(error) else None
                _leave_record(self._failure_file, error, ended_by)
            finally:
                self._abort(describe_cause(error))
            own = kind_of(error) is not ErrorKind.PEER and not _ends_all(ended_by)
            if isinstance(error, Exception) and own:
                self._report(describe_cause(error))
        if self._previous is not None:
            self._previous(kind, error, trace)
