"""Host discovery: runs a script of the user's again and again, which prints the hosts of the job."""

from __future__ import annotations

import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from types import TracebackType

from tfcollective._base.errors import ConfigError, LaunchError, RendezvousError
from tfcollective._base.log import get_logger
from tfcollective._base.processes import signal_group, start_as_a_shell_does
from tfcollective._base.timing import TIMING, Timing
from tfcollective._launch.plan.hosts import Host, parse_discovered, without
from tfcollective._launch.plan.placement import in_order_of_arrival

_LOG = get_logger(__name__)
_NONE_FOUND = 1


class _NoHostsError(LaunchError):
    """The command ended as ``grep`` does that finds nothing: there may be no hosts yet, or something is wrong."""


def _started(command: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )


class HostDiscovery:
    """The hosts that a command prints, one a line: ``host:4``, or ``host`` with ``slots``.

    Args:
        command: the words of the command. It runs with this process's directory and environment.
        slots: of a host whose line says none.
        never: names of hosts that are left out.
        limits: how often it runs, and how long it may take.
    """

    def __init__(
        self,
        command: Sequence[str],
        slots: int | None = None,
        never: Collection[str] = (),
        limits: Timing = TIMING,
    ) -> None:
        self._command = tuple(command)
        self._slots = slots
        self._never = frozenset(never)
        self._limits = limits
        self._name = f"discovery script {shlex.join(command)}"
        self._failing = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.hosts: tuple[Host, ...] = ()
        """Those that it has named last, in the order in which they came."""

    def ask(self) -> tuple[Host, ...]:
        """Runs it once; the hosts that are there now. Raises LaunchError when it cannot be run, fails, takes too long,
        or prints anything else than hosts."""
        text = self._run()
        try:
            found = parse_discovered(text, self._slots, self._name)
        except ConfigError as error:
            raise LaunchError(str(error)) from error
        self.hosts = in_order_of_arrival(self.hosts, without(found, self._never))
        return self.hosts

    def wait_for(self, slots: int, timeout: float) -> tuple[Host, ...]:
        """Asks until there are so many slots, and says that it waits; the hosts. Raises LaunchError when the first call
        fails for a reason, and RendezvousError when there are too few after ``timeout`` seconds."""
        end = time.monotonic() + timeout
        with suppress(_NoHostsError):
            self.ask()
        named: tuple[Host, ...] | None = None
        while sum(host.slots for host in self.hosts) < slots:
            there = ", ".join(map(str, self.hosts)) or "no hosts"
            if time.monotonic() >= end:
                raise RendezvousError(
                    f"the job needs {slots} slots to start, and the {self._name} named {there} within {timeout:g} s: "
                    "start fewer ranks with -np, or wait longer with --elastic-timeout"
                )
            if self.hosts != named:  # nothing has been started yet that would say anything
                named = self.hosts
                _LOG.warning(
                    "the job needs %d slots to start, and the %s names %s: waiting for more, for at most %.0f s "
                    "(--elastic-timeout)",
                    slots,
                    self._name,
                    there,
                    max(0.0, end - time.monotonic()),
                )
            time.sleep(self._limits.discovery)
            self._ask_again()
        return self.hosts

    def follow(self, changed: Callable[[tuple[Host, ...]], None]) -> HostDiscovery:
        """Runs the script repeatedly on its own thread until :meth:`close`; calls ``changed`` with each new list."""
        self._thread = threading.Thread(target=self._follow, args=(changed,), name="tfc-discovery", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Stops asking."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(self._limits.discovery_call + self._limits.event_loop)

    def __enter__(self) -> HostDiscovery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _follow(self, changed: Callable[[tuple[Host, ...]], None]) -> None:
        while not self._stopped.wait(self._limits.discovery):
            before = self.hosts
            if self._ask_again() != before and not self._stopped.is_set():
                changed(self.hosts)

    def _ask_again(self) -> tuple[Host, ...]:
        """A later call: when it fails, the list stays as it is. Says so once, and once when it works again."""
        try:
            self.ask()
        except LaunchError as error:
            if not self._failing and not self._stopped.is_set():
                _LOG.warning("%s; the hosts stay as they are: %s", error, ", ".join(map(str, self.hosts)) or "none")
            self._failing = True
        else:
            if self._failing:
                _LOG.warning("the %s works again", self._name)
            self._failing = False
        return self.hosts

    def _run(self) -> str:
        try:
            process = start_as_a_shell_does(self._command, _started)
        except OSError as error:
            raise LaunchError(f"the {self._name} cannot be run: {error.strerror}") from error
        out, err = self._answer(process)
        if process.returncode == _NONE_FOUND and not out.strip() and not err.strip():
            raise _NoHostsError(f"the {self._name} failed with exit code {_NONE_FOUND} and named no host")
        if process.returncode != 0:
            said = "".join(f"\n  {line}" for line in err.strip().splitlines()[-5:])
            raise LaunchError(f"the {self._name} failed with exit code {process.returncode}{said}")
        return out

    def _answer(self, process: subprocess.Popen[str]) -> tuple[str, str]:
        """Returns the script's output; if it takes too long, kills it and all its children and raises LaunchError."""
        end = time.monotonic() + self._limits.discovery_call
        with process:
            while True:
                try:
                    return process.communicate(timeout=min(self._limits.discovery, max(0.0, end - time.monotonic())))
                except subprocess.TimeoutExpired:
                    if time.monotonic() < end and not self._stopped.is_set():
                        continue
                signal_group(process.pid, signal.SIGKILL)
                for stream in (process.stdout, process.stderr):
                    if stream is not None:
                        stream.close()  # a process that has left its group may hold the other end
                break
        raise LaunchError(f"the {self._name} took more than {self._limits.discovery_call:g} s and was killed")
