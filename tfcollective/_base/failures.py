"""Failure records: how a failed process tells what happened. :mod:`tfcollective._base.verdict` judges them.

A worker writes its exception to the file named by ``TFCOLLECTIVE_FAILURE_FILE``; the agent adds what the operating
system knows and sends the record to the coordinator.
"""

from __future__ import annotations

import os
import traceback
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tfcollective._base.codec import decode, encode
from tfcollective._base.errors import (
    Code,
    CollectiveError,
    CollectiveMismatchError,
    ConfigError,
    InvalidArgumentError,
    UnsupportedError,
)
from tfcollective._base.exit_codes import SIGNAL_BASE, signal_name
from tfcollective._base.private_directory import write_private
from tfcollective._base.tracebacks import cause_line, folded_traceback

# Errors that another rank's failure brings about, by class name, as a record must not need TensorFlow to be judged: its
# AbortedError stands for ABORTED and PEER_LOST, its UnavailableError for a server of another task.
_CONSEQUENCE_TYPES = frozenset(
    {"AbortedError", "CollectiveAbortedError", "PeerLostError", "RendezvousError", "UnavailableError"}
)
_CONSEQUENCE_CODES = frozenset({Code.ABORTED, Code.PEER_LOST})
# Errors of the program and its arguments: they are in the table of errors as what has to be fixed. (A StateError is not
# here: a world that broke may bring it about. Neither is ValueError: half a file of data may, too.)
_PERMANENT_TYPES = (
    *(AttributeError, ImportError, NameError, NotImplementedError, SyntaxError, TypeError),
    *(CollectiveMismatchError, ConfigError, InvalidArgumentError, UnsupportedError),
)
_MAX_RECORD_BYTES = 1 << 20
# A character may need 12 bytes of JSON, so both together fit into a record.
_MAX_TRACEBACK = 1 << 16
_MAX_MESSAGE = 1 << 13
_MAX_CAUSE = 500


class ErrorKind(str, Enum):
    """The origin of an exception."""

    OWN = "own"  # its program; another start may do without it
    PERMANENT = "permanent"  # its program, and it comes again however often that is started
    PEER = "peer"  # another rank's failure
    INTERRUPT = "interrupt"  # a signal, as a KeyboardInterrupt


@dataclass(frozen=True)
class ExceptionRecord:
    """A worker's own account of its failure.

    Attributes:
        type: the class name of the exception.
        message: its text.
        traceback: the formatted traceback.
        cause: the line of its text that says what was wrong.
        folded: the traceback without the frames of frameworks.
        time: when it was raised to the top, in seconds on the monotonic clock of its host.
        kind: its origin.
        blames: the rank whose end caused it, or that was late for a collective, if the error names one; or None.
        final: True if it ended the process; False: ``init()`` raised it, and the program may have caught it.
    """

    type: str
    message: str
    traceback: str
    time: float
    kind: ErrorKind = ErrorKind.OWN
    blames: int | None = None
    final: bool = True
    cause: str = ""
    folded: str = ""

    @property
    def in_short(self) -> str:
        """Returns one line: the class of the exception and what was wrong."""
        cause = self.cause or self.message.partition("\n")[0]
        return f"{self.type}: {cause}" if cause else self.type


class ExitReason(str, Enum):
    """The reason why a process ended, as its observers saw it. Its own account is in :attr:`ExitRecord.exception`."""

    ENDED = "ended"  # it ended by itself, or was killed for what it did or did not do
    PEER = "peer"  # another task's failure, as a program says that leaves no record of an exception
    STOPPED = "stopped"  # its agent, because another task failed, or on request
    DISMISSED = "dismissed"  # the launcher: training was over before it came to a world
    NOT_STARTED = "not started"  # its node was preempted, or gone
    LOST = "lost"  # its node is gone: its end was not observed


@dataclass(frozen=True)
class ExitRecord:
    """The end of one task's process.

    Attributes:
        task: its role, as text.
        rank: its rank, or -1 for a task without one.
        node: the name of its node.
        pid: its process id.
        exit_code: what it returned, or None when a signal ended it.
        signal: the signal that ended it, or None.
        time: when it failed, in seconds on the monotonic clock of its host: of its exception if known, else of its end;
            infinite where no agent has seen that.
        reason: why it ended.
        note: how it ended, if there is more to say than code and signal, or how its node was lost; empty otherwise.
        stderr_tail: its last lines of stderr.
        exception: its own account, if it gave one.
        leaving: True while draining before a preemption; a failure then does not fail the job.
        hint: what may explain the end, for people; empty otherwise.
        seen: when its report reached the coordinator, in seconds on the coordinator's monotonic clock; 0 before that.
    """

    task: str
    rank: int
    node: str
    pid: int
    exit_code: int | None
    signal: int | None
    time: float
    reason: ExitReason = ExitReason.ENDED
    note: str = ""
    stderr_tail: tuple[str, ...] = ()
    exception: ExceptionRecord | None = None
    seen: float = 0.0
    leaving: bool = False
    hint: str = ""

    @property
    def failed(self) -> bool:
        """True if the process ended with anything but exit code 0."""
        return self.exit_code != 0

    @property
    def stopped(self) -> bool:
        """True if its agent ended it."""
        return self.reason is ExitReason.STOPPED

    @property
    def raised(self) -> bool:
        """True if it failed by an error of its own program, one that no other task and no Ctrl-C brought about."""
        other = not self.failed or self.reason in (ExitReason.PEER, ExitReason.DISMISSED)
        return not other and self._kind in (ErrorKind.OWN, ErrorKind.PERMANENT)

    @property
    def _kind(self) -> ErrorKind | None:
        return None if self.exception is None else self.exception.kind

    @property
    def consequence(self) -> bool:
        """True if another task's failure, or a request to stop, brought this end about. One that raised an error of its
        own and was stopped on its way out is none: the others may have ended first."""
        if self.reason in (ExitReason.PEER, ExitReason.STOPPED):
            return not self.raised
        return self._kind is ErrorKind.PEER

    @property
    def blames(self) -> int | None:
        """The rank whose end brought this one about, as far as its exception says so."""
        return self.exception.blames if self.exception is not None and self._kind is ErrorKind.PEER else None

    @property
    def awaited(self) -> int | None:
        """The rank that did not come to a collective in time, if that is how this one has failed."""
        return self.exception.blames if self.exception is not None and self._kind is not ErrorKind.PEER else None

    @property
    def _was_ending(self) -> bool:
        """True if a signal ended the process during its shutdown, after an exception had already ended the program."""
        return self.signal is not None and self._kind not in (None, ErrorKind.INTERRUPT)

    @property
    def status(self) -> int:
        """The exit code that a shell would show: the code, or 128 + signal. 1 if it had raised an exception before the
        signal: the signal only cut short its end."""
        if self.signal is not None and not self._was_ending:
            return SIGNAL_BASE + self.signal
        return self.exit_code if self.exit_code is not None else 1

    @property
    def how(self) -> str:
        """Returns the end in words: ``exited with code 3`` or ``was killed by SIGKILL``."""
        if self.reason is ExitReason.NOT_STARTED:
            return "was not started: its node is being preempted"
        if self.reason is ExitReason.LOST:
            return f"was lost with its host: {self.note}" if self.note else "was lost with its host"
        if self.note:
            return self.note
        if self.signal is None:
            return f"exited with code {self.exit_code}"
        killed = f"was killed by {signal_name(self.signal)}"
        return f"failed, and {killed} before its process had ended" if self._was_ending else killed


def write_exception(
    path: str,
    error: BaseException,
    *,
    now: float,
    consequence: bool = False,
    blames: int | None = None,
    final: bool = True,
) -> None:
    """Leaves the record of ``error`` in the file ``path`` (mode 0600), whole or not at all; OSError if it cannot.

    ``consequence``, ``blames`` and ``final`` are as for :func:`describe_exception`. The first record stays: what comes
    after it is a consequence.
    """
    if Path(path).exists():
        return
    document = encode(describe_exception(error, now, consequence, blames, final))
    write_private(Path(path), document)


def read_exception(path: str) -> ExceptionRecord | None:
    """The record in ``path``, or None when there is none that can be read."""
    try:
        with Path(path).open("rb") as file:
            return decode(file.read(_MAX_RECORD_BYTES), ExceptionRecord, "the record of an exception")
    except (OSError, ConfigError):
        return None  # a worker that was killed leaves nothing, or half a file of an older job


def begin_call(path: str) -> None:
    """Notes beside the record in ``path`` that this process has to return from a function before it may end."""
    _note_of_call(path).touch(mode=0o600)


def end_call(path: str) -> None:
    """Records that the function has returned, and that its result is where it belongs."""
    _note_of_call(path).unlink(missing_ok=True)


def is_in_call(path: str) -> bool:
    """True if the process that the record in ``path`` belongs to has ended within such a function."""
    return _note_of_call(path).exists()


def note_member(path: str) -> None:
    """Notes beside the record in ``path`` that this process takes part in the job; OSError if it cannot."""
    write_private(_note_of_member(path), str(os.getpid()).encode())


def forget_member(path: str) -> None:
    """Removes the note of a process that has left the job. Does nothing if the note is another process's."""
    if member(path) == os.getpid():
        _note_of_member(path).unlink(missing_ok=True)


def member(path: str) -> int | None:
    """The process that takes part in the job as the one that the record in ``path`` belongs to, or has ended without a
    word; None if there is none."""
    try:
        return int(_note_of_member(path).read_bytes())
    except (OSError, ValueError):
        return None


def _note_of_member(path: str) -> Path:
    return Path(f"{path}.member")


def _note_of_call(path: str) -> Path:
    return Path(f"{path}.call")


def describe_exception(
    error: BaseException, now: float, consequence: bool = False, blames: int | None = None, final: bool = True
) -> ExceptionRecord:
    """The record of ``error``; ``consequence`` says that the caller knows it to be one, whatever its type, ``blames``
    of which rank's end; where that is None, the error's own word counts. ``final``: see :class:`ExceptionRecord`."""
    kind, message = type(error).__name__, message_of(error)
    return ExceptionRecord(
        type=kind,
        message=_shortened(message, _MAX_MESSAGE),
        traceback=_shortened(_traceback_of(error), _MAX_TRACEBACK),
        time=now,
        kind=ErrorKind.PEER if consequence else kind_of(error),
        blames=_named_peer(error) if blames is None else blames,
        final=final,
        cause=cause_line(kind, message)[:_MAX_CAUSE],
        folded=_folded(error),
    )


def message_of(error: BaseException) -> str:
    """The text of an exception, also of one whose own code fails to give it."""
    try:
        return str(error)
    except Exception as problem:  # noqa: BLE001  # the exception's own code, which may raise anything
        return f"(its text cannot be made: {type(problem).__name__})"


def _traceback_of(error: BaseException) -> str:
    """The formatted traceback; a word on why there is none where the memory does not suffice for it, for example."""
    try:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception as problem:  # noqa: BLE001  # of the exception's own code, too
        return f"{type(error).__name__} (its traceback cannot be made: {type(problem).__name__})"


def _folded(error: BaseException) -> str:
    try:
        return folded_traceback(error)
    except Exception:  # noqa: BLE001  # then the whole one is shown, or the reason why there is none
        return ""


def _shortened(text: str, limit: int) -> str:
    """Returns both ends of a long text: a traceback begins with the place and ends with the error."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def kind_of(error: BaseException) -> ErrorKind:
    """Returns the origin of an error, by its type."""
    if isinstance(error, KeyboardInterrupt):
        return ErrorKind.INTERRUPT
    if isinstance(error, CollectiveError):
        consequence = error.code in _CONSEQUENCE_CODES
    else:
        consequence = any(base.__name__ in _CONSEQUENCE_TYPES for base in type(error).__mro__)
    if consequence:
        return ErrorKind.PEER
    return ErrorKind.PERMANENT if isinstance(error, _PERMANENT_TYPES) else ErrorKind.OWN


def _named_peer(error: BaseException) -> int | None:
    """The rank that an error of a collective names as lost, as late, or as the one that asked all to stop."""
    codes = (*_CONSEQUENCE_CODES, Code.DEADLINE_EXCEEDED)
    return error.peer if isinstance(error, CollectiveError) and error.code in codes else None
