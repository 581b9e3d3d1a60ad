"""Starting processes so that they cannot outlive us, and ending them with all that they started. Linux."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from tfcollective._base.timing import TIMING

_T = TypeVar("_T")
_SHELL = "/bin/sh"
_FOR_A_SHELL = re.compile(r"[|&;<>()$`*?~\n]")
_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
#: Signals that mean what the user's program takes them for. A launcher and its agents pass them on to the ranks.
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
#: The signal at which a process of the job writes its stacks (:mod:`tfcollective._base.stacks`). Agents ignore it, and
#: what they start with them: it has no effect on a process that has not asked for it, or no longer.
STACKS_SIGNAL = signal.SIGRTMAX - 5
_TGKILL = {"x86_64": 234, "aarch64": 131}  # the system call, which old C libraries have no function for
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def program_of(module: str) -> tuple[str, str]:
    """The arguments with which Python runs ``main`` of a module of this package.

    ``python -m`` looks first into the directory where the user happens to be, where there may be a checkout that is not
    built, or a script with the name of a module that we need; here that directory comes last.
    """
    return "-c", f"import sys; sys.path.append(sys.path.pop(0)); from {module} import main; sys.exit(main())"


def command_words(text: str) -> tuple[str, ...]:
    """The words of a command that a user has given as one text. One that only a shell understands (a pipeline, a
    variable, a pattern) becomes words that run it by ``/bin/sh -c``. Raises ValueError when a quote is not closed."""
    words = tuple(shlex.split(text))
    return (_SHELL, "-c", text) if _FOR_A_SHELL.search(text) and not Path(text).exists() else words


def start_as_a_shell_does(argv: Sequence[str], start: Callable[[Sequence[str]], _T]) -> _T:
    """Starts a program; one that the kernel does not know how to run, a script without a ``#!`` line, by ``/bin/sh``.
    Raises what ``start`` raises otherwise."""
    try:
        return start(argv)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    return start((_SHELL, shutil.which(argv[0]) or argv[0], *argv[1:]))


def become_subreaper() -> None:
    """Makes orphans among our descendants our children, so that :func:`end_descendants` finds them."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def spawn(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str | None,
    *,
    stdin: int = subprocess.DEVNULL,
    output: int = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    """Starts a process in a session of its own; the kernel kills it when the calling thread ends.

    Its stdin is empty and its stdout and stderr are pipes, unless other things are given. Raises OSError when it cannot
    be started. Must be called from the main thread, while no other thread runs Python code that holds locks a child
    would need.
    """
    return subprocess.Popen(
        list(argv),
        stdin=stdin,
        stdout=output,
        stderr=output,
        env=dict(env),
        cwd=cwd,
        bufsize=0,
        start_new_session=True,
        preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509  it makes two system calls and takes no lock
    )


def _die_with(parent: int) -> Callable[[], None]:
    def arm() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the kernel knew
            os._exit(1)

    return arm


def answer_of(command: Sequence[str], seconds: float, text: str = "") -> subprocess.CompletedProcess[str] | None:
    """Returns the result of a command with ``text`` as its input; None when it cannot be run, or takes longer."""
    try:
        return subprocess.run(
            list(command), input=text, capture_output=True, text=True, errors="replace", timeout=seconds, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def signal_group(pid: int, number: int) -> None:
    """Sends a signal to the process group that ``pid`` leads; nothing if it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def pass_on(pid: int, number: int) -> None:
    """Sends a signal to a process if it has a handler for it, else to those of its children that have one, and so on: a
    signal that a wrapper or a program does not handle would end it. What such a process has started itself is its own
    concern. Nothing if it is gone."""
    with contextlib.suppress(psutil.Error, ProcessLookupError):
        if signals_of(pid).handles(number):
            os.kill(pid, number)
            return
        for child in psutil.Process(pid).children():
            pass_on(child.pid, number)


def signal_main_thread(pid: int, number: int) -> None:
    """Sends a signal to the main thread of a process, whichever others would take it. Raises OSError."""
    if _libc.syscall(_TGKILL[platform.machine()], pid, pid, number) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


@dataclass(frozen=True)
class Signals:
    """The kernel's account of signals: the masks of a process that handles them, and of its main thread.

    Attributes:
        caught: those for which the process has a handler.
        blocked: those that the main thread does not take now; a handler that runs blocks its own.
        pending: those that wait for the main thread.
    """

    caught: int = 0
    blocked: int = 0
    pending: int = 0

    def handles(self, number: int) -> bool:
        """True if the process has a handler for this signal."""
        return _has(self.caught, number)

    def blocks(self, number: int) -> bool:
        """True if the main thread does not take this signal now."""
        return _has(self.blocked, number)

    def awaits(self, number: int) -> bool:
        """True if this signal waits for the main thread to take it."""
        return _has(self.pending, number)


def _has(mask: int, number: int) -> bool:
    return bool(mask >> (number - 1) & 1)


def signals_of(pid: int) -> Signals:
    """The signals of a process; none if it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text("ascii", errors="replace")
    except OSError:
        return Signals()
    masks = dict(line.split(":", 1) for line in status.splitlines() if line.startswith("Sig"))
    caught, blocked, pending = (int(masks.get(name, "0"), 16) for name in ("SigCgt", "SigBlk", "SigPnd"))
    return Signals(caught, blocked, pending)


def end_process(process: subprocess.Popen[bytes], seconds: float, *, ask: bool = True) -> None:
    """Asks a child to end with SIGTERM, waits so long for it, and kills it if it is still there.

    Without ``ask`` it ends by itself, or has been asked in another way. Nothing if it has ended.
    """
    if ask:
        process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class ProcessState:
    """The kernel's account of a process and of all its descendants.

    Attributes:
        stopped: True if one of them is stopped, by a signal or by a debugger.
        name: the state of the process itself, in a word.
        cpu_seconds: the CPU time of all of them, threads included.
    """

    stopped: bool
    name: str
    cpu_seconds: float


def is_running_with(pid: int, name: str, value: str) -> bool:
    """True if this process runs, and was started with this value of an environment variable: another process may have
    its id by now.
    """
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(name) == value
    except (psutil.Error, OSError):
        return False


def state_of(pid: int) -> ProcessState:
    """The state of a process; of one that has ended, that it is gone."""
    stopped, name, cpu_seconds = False, "gone", 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        name = str(root.status())
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                stopped |= process.status() in _STOPPED
                times = process.cpu_times()
                cpu_seconds += times.user + times.system
    return ProcessState(stopped, name, cpu_seconds)


def not_ignored(numbers: Iterable[int]) -> tuple[int, ...]:
    """Returns the given signals without those that this process ignores. Its parent asked to ignore these, as ``nohup``
    does for SIGHUP and a shell script for the SIGINT of what it starts with ``&``: a handler would undo it.
    """
    return tuple(number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN)


def describe_status(status: int) -> tuple[int | None, int | None]:
    """(exit code, signal) of a status of ``waitpid``; one of them is None."""
    code = os.waitstatus_to_exitcode(status)
    return (code, None) if code >= 0 else (None, -code)


def end_descendants() -> None:
    """Ends every process below this one: SIGTERM, a moment, SIGKILL. Reaps them."""
    descendants = psutil.Process().children(recursive=True)
    _signal_all(descendants, signal.SIGTERM)
    _, alive = psutil.wait_procs(descendants, TIMING.sweep)
    # Again from the root: one of them may have started another meanwhile.
    for _ in range(2):
        alive = psutil.Process().children(recursive=True)
        _signal_all(alive, signal.SIGKILL)
        psutil.wait_procs(alive, TIMING.swept)


def signal_orphans(leader: int, mark: tuple[str, str], known: Collection[int], number: int) -> int:
    """Sends a signal to the processes that a child which has ended has left, and to all below them; returns how many.

    They have become our children (:func:`become_subreaper`). They are in the session that ``leader`` led, or have begun
    one of their own and have ``mark``, a variable and its value, in their environment.

    Args:
        leader: the process id that the child had.
        mark: what the children of no other child have.
        known: our own children.
        number: of the signal.
    """
    left = [one for one in psutil.Process().children() if one.pid not in known and _is_left_by(one, leader, mark)]
    for one in tuple(left):
        with contextlib.suppress(psutil.Error):
            left += one.children(recursive=True)
    _signal_all(left, number)
    return len(left)


def _is_left_by(process: psutil.Process, leader: int, mark: tuple[str, str]) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return os.getsid(process.pid) == leader or process.environ().get(mark[0]) == mark[1]
    except (psutil.Error, OSError):
        return False  # it has ended, or has become another user's


def _signal_all(processes: Sequence[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)
