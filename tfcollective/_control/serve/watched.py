"""A coordinator in a process of its own, which is started again when it ends unasked: docs/adr/0040.

Its owner holds the socket that it listens on. While there is no coordinator, connections wait there for the next one:
no client is refused, and no other program can take the port.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from tfcollective._base.errors import CoordinatorError
from tfcollective._base.exit_codes import signal_name
from tfcollective._base.failures import ExitRecord
from tfcollective._base.log import get_logger
from tfcollective._base.processes import end_process, is_stopped
from tfcollective._base.tasks import TaskKey
from tfcollective._base.timing import TIMING
from tfcollective._base.topology import Endpoint
from tfcollective._control.client.channel import FOREVER, Channel
from tfcollective._control.client.client import CoordinatorClient
from tfcollective._control.serve.job import JobView
from tfcollective._control.serve.job_copy import JobCopy
from tfcollective._control.serve.journal import Journal
from tfcollective._control.serve.process import CannotServeError, Child, CoordinatorConfig, introduce, spawn
from tfcollective._control.state.membership import RendezvousFailure
from tfcollective._control.wire.messages import JobEvent
from tfcollective._control.wire.protocol import ServerOptions

_LOG = get_logger(__name__)
_T = TypeVar("_T")
_MOST_RESTARTS = 5
_MOST_MISSES = 4
_MOST_MISSES_STOPPED = 2  # before it listens: the ranks have waited for an answer since the last one ended
_TAIL_LINES = 20
_CONNECTIONS = 8
_END = b"end\n"
_PAUSE_S = 1.0  # where the kernel cannot start a process: it may be able to soon


class RestartLimit:
    """How often something may be started again: ``most`` times ``within`` so many seconds. Pure."""

    def __init__(self, most: int = _MOST_RESTARTS, within: float = TIMING.coordinator_restarts) -> None:
        self.most = most
        self.within = within
        self._times: deque[float] = deque()

    def allows(self, now: float) -> bool:
        """Whether it may be now; if so, it counts."""
        while self._times and now - self._times[0] >= self.within:
            self._times.popleft()
        if len(self._times) >= self.most:
            return False
        self._times.append(now)
        return True


class WatchedCoordinator:
    """A :class:`~tfcollective._control.serve.owner.Coordinator`. A context manager: it serves the job while it is open.

    Args:
        options: the coordinator's.
        journal: where it writes what has changed; there must be no such file.
        environ: its environment.
        log_level: what it logs.
        on_event: called with each :class:`JobEvent`, once and in order, on a thread of its own; must not block.
        on_start: called when one has begun to listen, on a thread.
        on_failure: called with why none is started again, once, on a thread.
        limit: how often one is started again.
    """

    def __init__(
        self,
        options: ServerOptions,
        journal: Path,
        environ: Mapping[str, str],
        log_level: str,
        on_event: Callable[[JobEvent], None],
        on_start: Callable[[], None] = lambda: None,
        on_failure: Callable[[str], None] = lambda why: None,
        limit: RestartLimit | None = None,
    ) -> None:
        self._options = options
        self._journal = journal
        self._environ = environ
        self._log_level = log_level
        self._on_event = on_event
        self._on_start = on_start
        self._on_failure = on_failure
        self._limit = limit or RestartLimit()
        self._listener: socket.socket | None = None
        self._endpoint: Endpoint | None = None
        self._clients: list[CoordinatorClient] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._life = 0
        self._pid = 0
        self._misses = 0  # answers, one after the other
        self._closing = False
        self._closed = threading.Event()
        self._failure: str | None = None
        self._copy = JobCopy(options)
        self._lock = threading.Lock()  # over the copy
        self._starting = threading.Lock()  # over the process
        self._settled = threading.Event()  # it has listened once, or never will
        self._threads = [
            threading.Thread(target=run, name=name, daemon=True)
            for run, name in ((self._watch, "tfc-coordinator"), (self._follow, "tfc-coordinator-news"))
        ]

    def __enter__(self) -> WatchedCoordinator:
        Journal.create(self._journal).close()
        self._listener = self._options.listen()
        at = self._listener.getsockname()
        self._endpoint = Endpoint(str(at[0]), int(at[1]))
        self._channel = self._open(TIMING.reply)
        self._news = self._open(TIMING.short_reply)  # so that a process that hangs is noticed before ranks give up
        for thread in self._threads:
            thread.start()
        return self

    def _open(self, reply_timeout: float) -> Channel:
        assert self._endpoint is not None
        options = self._options
        client = CoordinatorClient(
            *(self._endpoint, options.key, options.job_id),
            encryption=options.encryption,
            reply_timeout=reply_timeout,
            connections=_CONNECTIONS,
        )
        self._clients.append(client)
        return Channel(client, cancelled=lambda: self._failure is not None)

    def __exit__(self, *unused: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process, and removes the journal. A second call does nothing."""
        with self._starting:
            if self._closing:
                return
            self._closing = True
            process = self._process
        self._closed.set()
        if process is not None and process.poll() is None:
            _end(process, ask=process.pid == self._pid)  # else it has yet to hear what it is to do
        for client in self._clients:
            client.close()
        if self._listener is not None:
            self._listener.close()
        for thread in self._threads:
            thread.join(TIMING.event_loop)
        self._journal.unlink(missing_ok=True)

    def wait(self) -> None:
        """See :class:`Coordinator`."""
        self._settled.wait()
        if self._failure is not None:
            raise CoordinatorError(self._failure)

    @property
    def endpoint(self) -> Endpoint:
        """See :class:`Coordinator`."""
        if self._endpoint is None:
            raise CoordinatorError("the coordinator has not been started")
        return self._endpoint

    @property
    def pid(self) -> int:
        """See :class:`Coordinator`."""
        return self._pid

    @property
    def failure(self) -> str | None:
        """See :class:`Coordinator`."""
        return self._failure

    @property
    def restarts(self) -> int:
        """See :class:`Coordinator`."""
        return self._life

    def view(self) -> JobView:
        """See :class:`Coordinator`."""
        with self._lock:
            view = self._copy.view()
        if self._failure is None or view.failure is not None:
            return view
        return replace(view, failure=RendezvousFailure(self._failure, (), timed_out=False))

    def look(self) -> JobView:
        """See :class:`Coordinator`."""
        self._ask_if_served(lambda client: self._read(client, position=None))
        return self.view()

    def exited(self, record: ExitRecord) -> None:
        """See :class:`Coordinator`."""
        self._ask_if_served(lambda client: client.exited(record))

    def admit(self, task: TaskKey, change: int = 0) -> None:
        """See :class:`Coordinator`."""
        self._ask_if_served(lambda client: client.admit(task, change))

    def admit_no_more(self) -> None:
        """See :class:`Coordinator`."""
        self._ask_if_served(lambda client: client.admit_no_more())

    def put_blob(self, name: str, data: bytes) -> None:
        """See :class:`Coordinator`."""
        self._ask(lambda client: client.put_blob(name, data))

    def get_blob(self, name: str) -> bytes | None:
        """See :class:`Coordinator`."""
        return self._ask_if_served(lambda client: client.get_blob(name, timeout=0.0))

    def _ask_if_served(self, ask: Callable[[CoordinatorClient], _T]) -> _T | None:
        """None when the job is served no longer: nothing that could be asked or said changes it then."""
        try:
            return self._ask(ask)
        except CoordinatorError:
            if self._failure is None:
                raise
            return None

    def _ask(self, ask: Callable[[CoordinatorClient], _T]) -> _T:
        try:
            return self._channel.call(ask)
        except CoordinatorError as error:
            if self._failure is not None:
                raise CoordinatorError(self._failure) from error
            raise

    # ---- what it says ----------------------------------------------------------------------------------------------

    def _read(self, client: CoordinatorClient, position: int | None, timeout: float = 0.0) -> list[JobEvent]:
        """Brings the copy up to date; the events from ``position`` on. None: they are for another thread."""
        events: list[JobEvent] = []
        while True:
            with self._lock:
                request = self._copy.request(sys.maxsize if position is None else position + len(events), timeout)
            news = client.follow(request)
            with self._lock:
                self._copy.take(news)
            events += news.events
            if not news.more:
                return events
            timeout = 0.0

    def _follow(self) -> None:
        position = 0

        def read(client: CoordinatorClient) -> list[JobEvent]:
            return self._read(client, position, TIMING.heartbeat)

        retry = replace(FOREVER, note=self._missed)
        while not self._news.ended:
            try:
                events = self._news.call(read, retry)
            except CoordinatorError:
                continue  # it has ended
            self._misses = 0
            position += len(events)
            for event in events:
                self._on_event(event)

    def _missed(self, error: CoordinatorError) -> None:
        """No answer has come. A process that listens and gives none again and again hangs. One that has yet to listen
        may be slow, but not if it is stopped, and then nothing is lost with it."""
        self._misses += 1
        with self._starting:
            process = self._process
            if process is None or self._closing or not self._hangs(process):
                return
            self._misses = 0
            _LOG.warning("the coordinator (pid %d) is killed, since it does not answer: %s", process.pid, error)
            process.kill()

    def _hangs(self, process: subprocess.Popen[bytes]) -> bool:
        if process.pid == self._pid:
            return self._misses >= _MOST_MISSES
        return self._misses >= _MOST_MISSES_STOPPED and is_stopped(process.pid)

    # ---- its processes ---------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Runs one process after the other."""
        try:
            while True:
                end = self._serve()
                if self._closing:
                    return
                if not self._limit.allows(time.monotonic()):
                    limit = f"{self._limit.most + 1} times within {self._limit.within:g} s"
                    self._give_up(f"the coordinator's process has ended {limit}, at last so: it {end}")
                    return
                self._life += 1
                _LOG.warning("the coordinator %s: it is started again, and training goes on", end)
        except CannotServeError as error:
            self._give_up(str(error))
        except Exception as error:
            self._give_up(f"the coordinator cannot be started: {error!r}")
            raise
        finally:
            self._settled.set()

    def _serve(self) -> str:
        """One process, to its end; how it ended, or why it could not be started. Raises CannotServeError."""
        assert self._listener is not None
        config = CoordinatorConfig(
            self._options,
            os.getpid(),
            self._log_level,
            journal=str(self._journal),
            life=self._life,
            listener=self._listener.fileno(),
        )
        with self._starting:
            if self._closing:
                return "was no longer needed"
            child, why = self._spawn(config)
        if child is None:
            self._closed.wait(_PAUSE_S)
            return why
        process = child.process
        tail: deque[str] = deque(maxlen=_TAIL_LINES)
        reader = threading.Thread(target=_hand_on, args=(process, tail), name="tfc-coordinator-stderr", daemon=True)
        reader.start()
        try:
            self._await(child, config)
            code = process.wait()
        finally:
            reader.join(TIMING.coordinator)
            child.close()
        how = f"was ended by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        said = "".join(f"\n    {line}" for line in tail)
        return f"(pid {process.pid}) {how}" + (f"; the last lines of its stderr:{said}" if said else "")

    def _spawn(self, config: CoordinatorConfig) -> tuple[Child | None, str]:
        """None, and why, where it cannot be started."""
        try:
            child = spawn(config, self._environ, stderr=subprocess.PIPE)
        except CoordinatorError as error:
            return None, f"was not started: {error}"
        self._process = child.process
        return child, ""

    def _await(self, child: Child, config: CoordinatorConfig) -> None:
        """Until it listens or has ended. Raises CannotServeError."""
        process = child.process
        try:
            introduce(child, config)
        except CannotServeError:
            process.wait()
            raise
        except CoordinatorError as error:
            if process.poll() is None:  # it does not listen
                _LOG.warning("the coordinator is killed: %s", error)
                process.kill()
            return
        self._misses = 0
        self._pid = process.pid
        try:
            self._on_start()
        except OSError as error:  # it serves the job all the same
            _LOG.warning("what is to be known of the coordinator cannot be written down: %s", error)
        self._settled.set()

    def _give_up(self, why: str) -> None:
        """No process is started again: what waits for one learns so by the end of the socket."""
        self._failure = why
        _LOG.error("%s", why)
        if self._listener is not None:
            self._listener.close()
        self._on_failure(why)


def _end(process: subprocess.Popen[bytes], *, ask: bool) -> None:
    if not ask or process.stdin is None:
        process.kill()
        return
    with suppress(OSError, ValueError):  # it has ended
        process.stdin.write(_END)
    end_process(process, TIMING.coordinator, ask=False)


def _hand_on(process: subprocess.Popen[bytes], tail: deque[str]) -> None:
    """What it writes to stderr goes to ours; the last lines are kept."""
    assert process.stderr is not None
    with process.stderr as lines:
        for line in lines:
            text = line.decode(errors="replace")
            tail.append(text.rstrip("\n"))
            with suppress(OSError, ValueError):  # ours is closed
                sys.stderr.write(text)
                sys.stderr.flush()
