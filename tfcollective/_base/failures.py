"""Failure records: how a failed process tells what happened, and which failure came first. Values and pure rules.

A worker writes its exception to the file named by ``TFCOLLECTIVE_FAILURE_FILE``; the agent adds what the operating
system knows and sends the record to the coordinator.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
from tfcollective._base.exit_codes import SIGNAL_BASE, ExitCode, signal_name
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
#: What an agent notes of a process that it has not started.
NOT_STARTED = "was not started: its node is to be taken away"
# A shell's "cannot be run" and "not found", and what programs return that do not understand their arguments.
_HOPELESS_CODES = (2, ExitCode.USAGE, 126, 127)
_MAX_RECORD_BYTES = 1 << 20
# A character may need 12 bytes of JSON, so both together fit into a record.
_MAX_TRACEBACK = 1 << 16
_MAX_MESSAGE = 1 << 13
_MAX_CAUSE = 500


@dataclass(frozen=True)
class ExceptionRecord:
    """What a worker knows about its own failure.

    Attributes:
        type: the class name of the exception.
        message: its text.
        traceback: the formatted traceback.
        cause: the line of its text that says what was wrong.
        folded: the traceback without the frames of frameworks.
        time: when it was raised to the top, in seconds on the monotonic clock of its host.
        consequence: whether another rank's failure brought it about.
        permanent: whether it comes again however often the program is started.
        blames: the rank whose end brought it about, or that did not come to a collective in time, as far as the error
            says so; or None.
        interrupt: whether it is a KeyboardInterrupt: a signal has raised it, and no error of the program.
        final: whether it has ended the process; False: ``init()`` raised it, and the program may have caught it.
    """

    type: str
    message: str
    traceback: str
    time: float
    consequence: bool
    permanent: bool = False
    blames: int | None = None
    interrupt: bool = False
    final: bool = True
    cause: str = ""
    folded: str = ""

    @property
    def in_short(self) -> str:
        """In a line: the class and what was wrong."""
        cause = self.cause or self.message.partition("\n")[0]
        return f"{self.type}: {cause}" if cause else self.type


# A script for Horovod, on its engine, leaves no record: this is all that it says when another rank has ended.
_HOROVOD_ENDED = "Horovod has been shut down. This was caused by an exception on one of the ranks"


@dataclass(frozen=True)
class ExitRecord:
    """How one task's process ended.

    Attributes:
        task: its role, as text.
        rank: its rank, or -1 for a task without one.
        node: the name of its node.
        pid: its process id.
        exit_code: what it returned, or None when a signal ended it.
        signal: the signal that ended it, or None.
        time: when it failed, in seconds on the monotonic clock of its host: of its exception if known, else of its end;
            infinite where no agent has seen that.
        stopped: whether the agent ended it (because another task failed, or on request).
        note: why it was ended, if there is more to say than the signal; empty otherwise.
        stderr_tail: its last lines of stderr.
        exception: what it said itself, if it did.
        leaving: whether it was to leave, as when its node is to be taken away: what it did on its way out costs the job
            this task alone.
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
    stopped: bool = False
    note: str = ""
    stderr_tail: tuple[str, ...] = ()
    exception: ExceptionRecord | None = None
    seen: float = 0.0
    leaving: bool = False
    hint: str = ""

    @property
    def failed(self) -> bool:
        """Whether the process ended with anything but exit code 0."""
        return self.exit_code != 0

    @property
    def raised(self) -> bool:
        """Whether it raised an exception of its own, one that no other task and no Ctrl-C brought about."""
        return self.exception is not None and not self.exception.consequence and not self.exception.interrupt

    @property
    def consequence(self) -> bool:
        """Whether another task's failure, or a request to stop, brought this end about."""
        if self.stopped:
            return not self.raised  # its others may have ended first, and it was stopped on its own way out
        reported = self.exception is not None and self.exception.consequence
        return reported or any(_HOROVOD_ENDED in line for line in self.stderr_tail)

    @property
    def of_the_program(self) -> bool:
        """Whether it ended by an error of the program, which another process in its place would raise, too: not by a
        signal, by another rank's end or by an exit code alone. A program that is to leave may raise anything: no
        process takes its place there."""
        return self.failed and self.raised and not self.leaving

    @property
    def hopeless(self) -> bool:
        """Whether its exit code says that the command cannot be run, or is not understood."""
        return self.exit_code in _HOPELESS_CODES

    @property
    def gave_up(self) -> bool:
        """Whether it failed by an exit code of its own, and not on its way out."""
        return bool(self.exit_code) and not self.stopped and not self.leaving

    @property
    def blames(self) -> int | None:
        """The rank whose end brought this one about, as far as its exception says so."""
        return None if self.exception is None or not self.exception.consequence else self.exception.blames

    @property
    def awaited(self) -> int | None:
        """The rank that did not come to a collective in time, if that is how this one has failed."""
        return None if self.exception is None or self.exception.consequence else self.exception.blames

    @property
    def _was_ending(self) -> bool:
        """Whether a signal has ended a process that an exception had ended already, but for what it does at its end."""
        return self.signal is not None and self.exception is not None and not self.exception.interrupt

    @property
    def status(self) -> int:
        """The exit code that a shell would show: the code, or 128 + signal. 1 if it had raised an exception before the
        signal: the signal only cut short its end."""
        if self.signal is not None and not self._was_ending:
            return SIGNAL_BASE + self.signal
        return self.exit_code if self.exit_code is not None else 1

    @property
    def how(self) -> str:
        """In words: ``exited with code 3`` or ``was killed by SIGKILL``."""
        if self.note:
            return self.note
        if self.signal is None:
            return f"exited with code {self.exit_code}"
        killed = f"was killed by {signal_name(self.signal)}"
        return f"failed, and {killed} before its process had ended" if self._was_ending else killed


def first_cause(records: Iterable[ExitRecord]) -> ExitRecord | None:
    """The failure that brought about the others; None if nothing failed.

    A failure that is no consequence of another comes before those that are, and one that was stopped after those that
    were not. Of several such, one that other tasks blame comes before one that none of them has met. What is left is a
    matter of time: the clock of each host orders the failures of that host, and never those of two hosts, which are
    ordered as their first reports have arrived.
    """
    failed = [record for record in records if record.failed]
    candidates = [record for record in failed if not record.consequence]
    candidates = candidates or [record for record in failed if not record.stopped] or failed
    blamed = _blamed(failed)
    arrived: dict[str, float] = {}
    for record in candidates:
        arrived[record.node] = min(record.seen, arrived.get(record.node, record.seen))

    def place(record: ExitRecord) -> tuple[bool, float, str, float]:
        return record.rank not in blamed, arrived[record.node], record.node, record.time

    return min(candidates, key=place, default=None)


def first_to_leave(records: Sequence[ExitRecord]) -> ExitRecord | None:
    """The rank that brought about all failures and has none of its own: it ended well, or left the world and was
    stopped, while others needed it. None if there is none."""
    cause = first_cause(records)
    if cause is None or not cause.consequence:
        return None
    blamed = _blamed(record for record in records if record.failed)
    left = [record for record in records if record.rank in blamed and (record.stopped or not record.failed)]
    return min(left, key=lambda record: (record.seen, record.time), default=None)


def first_to_be_late(records: Sequence[ExitRecord]) -> ExitRecord | None:
    """The rank that did not come to a collective in which others waited until they failed, and that has no failure of
    its own. None if there is none."""
    cause = first_cause(records)
    late = None if cause is None else cause.awaited
    return next(
        (one for one in records if one.rank == late and not one.raised and (one.stopped or not one.failed)), None
    )


def in_order_of_arrival(records: Iterable[ExitRecord]) -> list[ExitRecord]:
    """The failures among the records, as the coordinator has heard of them."""
    return sorted((record for record in records if record.failed), key=lambda record: (record.seen, record.time))


def _blamed(failed: Iterable[ExitRecord]) -> set[int]:
    """The ranks at the ends of the chains of blame: one that itself only blames another is none of them."""
    by_rank = {record.rank: record for record in failed}
    ends: set[int] = set()
    for record in by_rank.values():
        met: set[int] = set()
        at: ExitRecord | None = record
        while at is not None and at.rank not in met and at.blames is not None:
            met.add(at.rank)
            end = at.blames
            at = by_rank.get(end)
            if at is None or at.blames is None:
                ends.add(end)
    return ends


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
    """It has returned, and left what it returned where it belongs."""
    _note_of_call(path).unlink(missing_ok=True)


def is_in_call(path: str) -> bool:
    """Whether the process that the record in ``path`` belongs to has ended within such a function."""
    return _note_of_call(path).exists()


def note_member(path: str) -> None:
    """Notes beside the record in ``path`` that this process takes part in the job; OSError if it cannot."""
    write_private(_note_of_member(path), str(os.getpid()).encode())


def forget_member(path: str) -> None:
    """It has left the job. Nothing if the note is another process's."""
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
        consequence=consequence or is_consequence(error),
        permanent=is_permanent(error),
        blames=_named_peer(error) if blames is None else blames,
        interrupt=isinstance(error, KeyboardInterrupt),
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
    """Both ends of a long text: a traceback begins with where, and ends with what."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def is_consequence(error: BaseException) -> bool:
    """Whether the type of an error says that another rank's failure brought it about."""
    if isinstance(error, CollectiveError):
        return error.code in _CONSEQUENCE_CODES
    return any(base.__name__ in _CONSEQUENCE_TYPES for base in type(error).__mro__)


def is_permanent(error: BaseException) -> bool:
    """Whether the type of an error says that it comes again however often the program is started."""
    return isinstance(error, _PERMANENT_TYPES)


def _named_peer(error: BaseException) -> int | None:
    """The rank that an error of a collective names as lost, as late, or as the one that asked all to stop."""
    codes = (*_CONSEQUENCE_CODES, Code.DEADLINE_EXCEEDED)
    return error.peer if isinstance(error, CollectiveError) and error.code in codes else None
