"""``python -m tfcollective_bench.training.job CASE SITE``: runs one job and prints what it measured as one JSON line.

Both arguments are JSON; the site's ``results`` is a directory of the caller's, in which this job makes its own. Exit
code 1 when a process failed; the last line on stderr then says what it said last.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from tfcollective._base.clock import Deadline
from tfcollective._base.codec import decode, encode_line
from tfcollective._base.exit_codes import signal_name
from tfcollective._base.processes import end_descendants, signal_group, spawn
from tfcollective._base.settings import environ_snapshot
from tfcollective_bench.interleave import last_word
from tfcollective_bench.ranks import clean
from tfcollective_bench.training.counters import Meter, Reading, watched_interfaces
from tfcollective_bench.training.job_plan import (
    Case,
    JobPlan,
    PlannedProcess,
    Site,
    plan_job,
    ports_needed,
    trace_path,
)
from tfcollective_bench.training.step_timeline import StepTimeline, read_trace
from tfcollective_bench.training.task import ProcessResult, parse_mark

__all__ = ["JobError", "main", "run_job"]

_READ_BYTES = 1 << 16
_TAIL_LINES = 20
_READY_S = 60.0
_TEARDOWN_S = 20.0
_TESTBED_PORT = 41_000


class JobError(Exception):
    """A process of the job failed; the text names it and ends with its last line."""


def main() -> int:
    """Runs the job that the arguments describe; returns the exit code."""
    case, site = decode(sys.argv[1], Case, "CASE"), decode(sys.argv[2], Site, "SITE")
    with tempfile.TemporaryDirectory(dir=site.results or None) as directory, _ended_by_sigterm() as check:
        try:
            complete = _complete(site, case, directory)
            results, reading = run_job(case, complete, check)
            timeline = _timeline(complete) if case.timeline else None
        except JobError as error:
            sys.stderr.write(f"{error}\n")
            return 1
    document: dict[str, object] = {"results": results, "reading": reading}
    if timeline is not None:
        document["timeline"] = timeline
    sys.stdout.write(encode_line(document).decode())
    return 0


def run_job(case: Case, site: Site, check: Callable[[], None] = lambda: None) -> tuple[list[ProcessResult], Reading]:
    """Starts the processes of ``case``, waits for their end and leaves none; JobError when one failed.

    What ``check`` raises, which is called at least once a second, ends them.
    """
    plan = plan_job(case, site)
    job = _Job(plan, Path(site.results), Meter(watched_interfaces(site.interfaces)), check)
    try:
        job.start()
        job.wait(Deadline.never())
    finally:
        job.end()
    return job.results(), job.meter.reading


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[Callable[[], None]]:
    """Yields what ends this process, with processes and files cleared away, once SIGTERM has come.

    The handler only notes the signal: what it raised in a hook of os.fork would be lost.
    """
    came: list[int] = []

    def end() -> None:
        if came:
            raise SystemExit(128 + came[0])

    earlier = signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    try:
        yield end
    finally:
        signal.signal(signal.SIGTERM, earlier)


def _complete(site: Site, case: Case, directory: str) -> Site:
    """The site with a place for results and with ports. On the hosts of a test bed, which run nothing else, any port is
    free; on loopback a port that is free now can be taken before it is used: then the job fails and says so."""
    count = ports_needed(case)
    ports = tuple(range(_TESTBED_PORT, _TESTBED_PORT + count)) if site.hosts else _free_ports(count)
    return replace(site, results=directory, ports=ports)


def _timeline(site: Site) -> StepTimeline:
    """Some steps of what the job recorded."""
    try:
        found = read_trace(json.loads(Path(trace_path(site)).read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise JobError(f"the job left no timeline: {error}") from error
    if found is None:
        raise JobError("the job's timeline has too few steps")
    return found


def _free_ports(count: int) -> tuple[int, ...]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return tuple(one.getsockname()[1] for one in sockets)


@dataclass
class _Running:
    planned: PlannedProcess
    process: subprocess.Popen[bytes]
    rest: bytes = b""
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))
    ready: bool = False
    ended: bool = False


class _Job:
    """The processes of one job, watched by one thread."""

    def __init__(self, plan: JobPlan, results: Path, meter: Meter, check: Callable[[], None]) -> None:
        self._plan = plan
        self._check = check
        self._results = results
        self.meter = meter
        self._selector = selectors.DefaultSelector()
        self._running: list[_Running] = []

    def start(self) -> None:
        """Starts all processes, each after those before it that announce themselves."""
        environ = clean(environ_snapshot())
        for planned in self._plan.processes:
            one = _Running(planned, spawn(planned.argv, {**environ, **planned.env}, None))
            self._running.append(one)
            for stream in (one.process.stdout, one.process.stderr):
                assert stream is not None
                self._selector.register(stream, selectors.EVENT_READ, one)
            self._selector.register(os.pidfd_open(one.process.pid), selectors.EVENT_READ, one)
            if planned.announces:
                self._wait_ready(one)

    def wait(self, deadline: Deadline) -> None:
        """Waits until every process that trains has ended; raises JobError if any process ends early."""
        while any(one.planned.trains and not one.ended for one in self._running):
            self._step(deadline)
            if self._have_results():
                deadline = min(deadline, Deadline.after(_TEARDOWN_S), key=lambda one: one.at)
                if deadline.expired():
                    return  # measured; what hangs in its teardown is ended

    def end(self) -> None:
        """Ends whatever runs."""
        for one in self._running:
            if not one.ended:
                signal_group(one.process.pid, signal.SIGKILL)
        for one in self._running:
            one.process.wait()
            for stream in (one.process.stdout, one.process.stderr):
                assert stream is not None
                stream.close()
        end_descendants()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, int):
                os.close(key.fileobj)
        self._selector.close()

    def results(self) -> list[ProcessResult]:
        """The results of the processes, in rank order; JobError when one is missing."""
        files = self._results.glob("*.json")
        found = [decode(path.read_bytes(), ProcessResult, f"the result {path.name}") for path in files]
        if len(found) != self._plan.results:
            raise JobError(f"{len(found)} of {self._plan.results} processes left a result")
        return sorted(found, key=lambda result: result.rank)

    def _have_results(self) -> bool:
        return len(list(self._results.glob("*.json"))) == self._plan.results

    def _wait_ready(self, one: _Running) -> None:
        deadline = Deadline.after(_READY_S)
        while not one.ready:
            self._step(deadline)
            if deadline.expired():
                raise JobError(f"the {one.planned.name} was not ready after {_READY_S:g} s{_last_line(one)}")

    def _step(self, deadline: Deadline) -> None:
        self._check()
        for key, _ in self._selector.select(min(deadline.remaining(), 1.0)):
            one: _Running = key.data
            if isinstance(key.fileobj, int):
                self._note_end(one, key.fileobj)
                continue
            data = os.read(key.fd, _READ_BYTES)
            if not data:
                self._selector.unregister(key.fileobj)
            self._take(one, data)

    def _take(self, one: _Running, data: bytes) -> None:
        *lines, one.rest = (one.rest + data).split(b"\n")
        for line in lines:
            text = line.decode("utf-8", "replace").rstrip()
            mark = parse_mark(text)
            if mark == "ready":
                one.ready = True
            elif mark is not None:
                self.meter.mark(mark)
            elif text:
                one.tail.append(text)

    def _note_end(self, one: _Running, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)
        one.ended = True
        status = one.process.wait()
        self._drain(one)
        if (status != 0 or not one.planned.trains) and not self._have_results():
            raise JobError(f"{one.planned.name} {_how(status)}{_last_line(one)}")

    def _drain(self, one: _Running) -> None:
        """Takes what it wrote before it ended; its children may hold the pipes open, so nothing is waited for."""
        for stream in (one.process.stdout, one.process.stderr):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            with contextlib.suppress(BlockingIOError):
                while data := os.read(stream.fileno(), _READ_BYTES):
                    self._take(one, data)
        self._take(one, b"\n")


def _how(status: int) -> str:
    return f"ended with code {status}" if status >= 0 else f"was ended by {signal_name(-status)}"


def _last_line(one: _Running) -> str:
    said = last_word(list(one.tail))
    return f": {said}" if said else ""


if __name__ == "__main__":
    sys.exit(main())
