"""A warm spare: a process of an elastic job's node that has imported what the ranks import, and becomes one of them
when it is ordered to. That saves a replacement the seconds that importing TensorFlow takes.

Both halves are here: :class:`Spare` is the agent's, :func:`main` the spare's own program. The spare waits for one
:class:`SpareOrder` on its stdin, and ends with its agent, or at the end of that pipe. Then it does what Python would do
with the arguments of a rank: it runs a script, a module (``-m``) or a text (``-c``) as ``__main__``.
"""

from __future__ import annotations

import builtins
import contextlib
import fcntl
import importlib
import importlib.machinery
import os
import re
import runpy
import signal
import subprocess
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfcollective._base.codec import decode, encode_line
from tfcollective._base.errors import ConfigError
from tfcollective._base.log import get_logger
from tfcollective._base.processes import program_of, signal_group, spawn
from tfcollective._base.settings import set_environment

_LOG = get_logger(__name__)
_PIPE_BYTES = 1 << 20
_PYTHON = re.compile(r"python(\d+(\.\d+)*)?")
_FLAGS = re.compile(r"-[bBdEIOPqRsSuvx]+")
_FLAGS_WITH_VALUE = ("-W", "-X")


@dataclass(frozen=True)
class SpareOrder:
    """The rank that a spare becomes: Python's arguments after its flags, and the whole environment."""

    arguments: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True)
class PythonCall:
    """A command that runs Python: the interpreter with its flags, and the program with its arguments."""

    interpreter: tuple[str, ...]
    arguments: tuple[str, ...]

    @classmethod
    def of(cls, argv: Sequence[str]) -> PythonCall | None:
        """The parts of a command; None when it does not run Python, or in a way that a spare does not know."""
        if not argv or not _PYTHON.fullmatch(Path(argv[0]).name):
            return None
        at = 1
        while at < len(argv) and argv[at].startswith("-") and argv[at] not in ("-m", "-c"):
            if argv[at] in _FLAGS_WITH_VALUE:
                at += 2
            elif argv[at][:2] in _FLAGS_WITH_VALUE or _FLAGS.fullmatch(argv[at]):
                at += 1
            else:
                return None
        rest = tuple(argv[at:])
        known = (rest[0] in ("-m", "-c") and len(rest) > 1) or rest[0].endswith(".py") if rest else False
        return cls(tuple(argv[:at]), rest) if known else None


class Spare:
    """A spare as its agent holds it; all methods are for the agent's main thread."""

    def __init__(self, interpreter: tuple[str, ...], process: subprocess.Popen[bytes]) -> None:
        self._interpreter = interpreter
        self._process = process

    @classmethod
    def start(
        cls, argv: Sequence[str], modules: Sequence[str], env: Mapping[str, str], cwd: str | None
    ) -> Spare | None:
        """Starts a spare for ranks with this command and, apart from variables of single ranks, this environment;
        returns None if the command does not run Python. Raises OSError if it cannot be started."""
        call = PythonCall.of(argv)
        if call is None:
            return None
        command = (*call.interpreter, *program_of(__name__), *modules)
        return cls(call.interpreter, spawn(command, env, cwd, stdin=subprocess.PIPE))

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def become(self, argv: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
        """Has it run this command; its process, or None when it cannot: it has ended, was made for another one, or does
        not take the order without waiting."""
        call = PythonCall.of(argv)
        if call is None or call.interpreter != self._interpreter or self._process.stdin is None:
            return None
        order = encode_line(SpareOrder(call.arguments, env))
        try:
            with self._process.stdin as pipe:
                with contextlib.suppress(OSError):  # a user's pipes may be limited; few environments are so large
                    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
                os.set_blocking(pipe.fileno(), False)  # the spare may be stopped, or still importing
                taken = pipe.write(order)
        except OSError as error:
            _LOG.info("agent: the spare process %d is gone: %s", self.pid, error)
            return None
        return self._process if taken == len(order) else None

    def close(self) -> None:
        """Ends it; the agent reaps it as its other children."""
        signal_group(self.pid, signal.SIGKILL)
        self.ended()

    def ended(self) -> None:
        """Releases what is held of a spare that the agent has reaped, or is about to."""
        self._process.returncode = -signal.SIGKILL  # none has to wait for it
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def main() -> int:
    """The spare's program: imports the modules that its arguments name, waits for its order and carries it out."""
    for name in sys.argv[1:]:
        try:
            importlib.import_module(name)  # noqa: TID251  modules of the user's program
        except Exception as error:  # noqa: BLE001  the rank that it becomes says what is wrong, if it is wrong there, too
            _LOG.info("spare: %s cannot be imported: %s", name, error)
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        os._exit(0)  # its agent needs it no longer; libraries need no orderly end before they were used
    _close_stdin()
    order = decode(line, SpareOrder, "the spare's order")
    set_environment(order.env)
    run_as_main(order.arguments)
    return 0


def _close_stdin() -> None:
    """Makes stdin empty, as it is for other ranks."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdin = open(0, encoding=sys.stdin.encoding, closefd=False)  # noqa: SIM115  for the rest of the process


def run_as_main(arguments: Sequence[str]) -> None:
    """Does what Python does with these arguments: ``SCRIPT ...``, ``-m MODULE ...`` or ``-c TEXT ...``.

    Raises what the program raises, and ConfigError when there is no such script.
    """
    sys.path[:] = [entry for entry in sys.path if entry]  # without the working directory, from which we were started
    if arguments[0] == "-m":
        sys.argv[:] = arguments[1:]
        _look_first_in(str(Path.cwd()))
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.argv[:] = ["-c", *arguments[2:]]
        _look_first_in("")
        _run_text(arguments[1], "<string>", None)
    else:
        sys.argv[:] = arguments
        script = Path(arguments[0]).absolute()
        _look_first_in(str(script.resolve().parent))
        try:
            text = script.read_bytes()
        except OSError as error:
            raise ConfigError(f"cannot open the script {script}: {error.strerror}") from error
        _run_text(text, str(script), importlib.machinery.SourceFileLoader("__main__", str(script)))


def _look_first_in(directory: str) -> None:
    if not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated:
        sys.path.insert(0, directory)


def _run_text(text: str | bytes, name: str, loader: importlib.machinery.SourceFileLoader | None) -> None:
    """Runs a program as the module ``__main__``, which stays: threads and functions that are pickled refer to it."""
    module = types.ModuleType("__main__")
    module.__dict__.update(__builtins__=builtins, __loader__=loader, __annotations__={})
    if loader is not None:
        module.__dict__.update(__file__=name, __cached__=None)
    sys.modules["__main__"] = module
    exec(compile(text, name, "exec", dont_inherit=True), module.__dict__)  # noqa: S102  it is the user's own program
