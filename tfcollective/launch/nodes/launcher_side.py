"""The nodes of a job as the launcher holds them: enrolment, orders, and noticing that one is gone."""

from __future__ import annotations

import logging
import platform
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tfcollective._version import __version__
from tfcollective.agent.config import Command, Order, StopCommand
from tfcollective.codec import encode_line, from_document
from tfcollective.control.client import CoordinatorClient
from tfcollective.control.protocol import NODES
from tfcollective.errors import CoordinatorError, LaunchError
from tfcollective.launch.launcher import JobOutcome
from tfcollective.launch.nodes.protocol import Facts, beat_key, orders_key, refusal_line
from tfcollective.launch.plan.horovod_compat import PACKAGES, PYTHONPATH
from tfcollective.launch.plan.planner import Plan, WorkerPlan
from tfcollective.launch.running.agent_process import stop_limit
from tfcollective.launch.running.agents import AgentFailure, Agents
from tfcollective.launch.running.job import Job
from tfcollective.launch.system.signals import Gate, forward_signals
from tfcollective.log import get_logger
from tfcollective.settings import Settings
from tfcollective.tasks import NO_RANK
from tfcollective.timing import TIMING
from tfcollective.topology import Endpoint

__all__ = ["Facts", "Mailbox", "Node", "client_of", "enrolled", "gather", "run_on_nodes", "version_problem"]

_LOG = get_logger(__name__)
_GATHER_S = 0.5


def version_problem(facts: Facts) -> str | None:
    """Why this node cannot take part, or None."""
    python, ours = facts.python.rpartition(".")[0], platform.python_version().rpartition(".")[0]
    if python != ours:
        return f"{facts.name} has Python {facts.python}, the launcher {ours}: use Python {ours} on all hosts"
    if facts.version == __version__:
        return None
    return (
        f"{facts.name} has tfcollective {facts.version}, the launcher {__version__}: "
        f"install the same one there (pip install tfcollective=={__version__})"
    )


def client_of(job: Job, nodes: int) -> CoordinatorClient:
    """For the launcher's own waits: one for each node, and its orders."""
    return CoordinatorClient(
        Endpoint.parse(job.coordinator),
        job.key,
        job.job_id,
        encryption=Settings.load().encryption,
        connections=2 * nodes + 1,
    )


def enrolled(client: CoordinatorClient, timeout: float, have: int) -> tuple[Facts, ...]:
    """All nodes that have enrolled, once there are more than ``have``, or after ``timeout`` seconds."""
    entry = client.wait(NODES, timeout=timeout, newer_than=have)  # every enrolment makes one version
    if entry is None:
        entry = client.get(NODES)
    found = () if entry is None else from_document(entry.value, tuple[Facts, ...], "the list of nodes")
    return tuple(replace(facts, number=number) for number, facts in enumerate(found))


def gather(client: CoordinatorClient, count: int, timeout: float, check: Callable[[], None]) -> tuple[Facts, ...]:
    """Waits until ``count`` nodes have enrolled.

    ``check`` raises when no more can come. Raises LaunchError when the time is over.
    """
    deadline = time.monotonic() + timeout
    found: tuple[Facts, ...] = ()
    while len(found) < count:
        check()
        if time.monotonic() > deadline:
            here = ", ".join(sorted({one.host for one in found})) or "none"
            raise LaunchError(
                f"{len(found)} of {count} agents have come within {timeout:g} s (hosts: {here}). If the others cannot "
                "reach the coordinator, open the firewall for them, or choose a network with --network-interface"
            )
        found = enrolled(client, _GATHER_S, len(found))
    return found


class Node:
    """One enrolled node; an :class:`~tfcollective.launch.running.agents.AgentHandle`.

    Args:
        facts: what it has said of itself.
        client: for waiting.
        write: hands it a line of orders; may be called from a signal handler.
        close: cuts it off when it does not answer any more.
    """

    def __init__(
        self, facts: Facts, client: CoordinatorClient, write: Callable[[bytes], None], close: Callable[[], None]
    ) -> None:
        self._facts = facts
        self._client = client
        self._write = write
        self._close = close
        self._grace = TIMING.grace
        self._host_timeout = TIMING.host_timeout
        self._stop_limit = 0.0
        self._stop_by: float | None = None
        self._finished: Callable[[], bool] = lambda: False
        self.heard = time.monotonic()
        """When its last sign of life came, before the one that tells its end."""
        self.lost = False
        """Whether it does not answer any more."""
        self.ended_by: str | None = None
        """The signal with which somebody else than the launcher has ended it in the middle of its work."""

    def begin(self, job: Job, workers: Sequence[WorkerPlan], launcher_python: str) -> None:
        """Gives it its part of the job. Its ranks run under its own interpreter where ours would run here."""
        tasks = tuple(worker.task for worker in workers)
        self._finished = lambda: job.has_finished(tasks)
        self._grace, self._host_timeout = job.grace, job.host_timeout
        theirs = [self._localised(worker, launcher_python) for worker in workers]
        # It has the key already, and orders may pass where others can listen.
        config = replace(job.agent_config(theirs, scratch_dir=""), key="", lost_after=job.host_timeout)
        self._write(encode_line(config))
        job.watch(workers, self.send)

    def _localised(self, worker: WorkerPlan, launcher_python: str) -> WorkerPlan:
        argv = worker.argv
        if argv[0] == launcher_python:
            argv = (self._facts.executable, *argv[1:])
        path = worker.env.get(PYTHONPATH, "").replace(str(PACKAGES), self._facts.packages)
        return replace(worker, argv=argv, env={**worker.env, PYTHONPATH: path} if path else worker.env)

    def refuse(self, reason: str) -> None:
        """Tells it to go away."""
        self._write(refusal_line(reason))

    def send(self, command: Command) -> None:
        """See :class:`AgentHandle`."""
        self._write(encode_line(Order.of(command)))

    def stop(self, command: StopCommand) -> None:
        """See :class:`AgentHandle`. The first order's limit counts: a later one never gives more time."""
        self.send(command)
        if self._stop_by is None:
            self._stop_limit = stop_limit(command, self._grace) + TIMING.order
            self._stop_by = time.monotonic() + self._stop_limit

    def wait(self) -> AgentFailure | None:
        """See :class:`AgentHandle`."""
        version = 0
        while True:
            try:
                entry = self._client.wait(beat_key(self._facts.number), timeout=self._host_timeout, newer_than=version)
            except CoordinatorError as error:
                return AgentFailure(f"{self._facts.name}: {error}", time.monotonic())
            late = self._stop_by is not None and time.monotonic() > self._stop_by
            if entry is None and self._has_finished():  # its work was done before it fell silent
                self._close()
                return None
            if entry is None or late:
                self.lost = True
                self._close()
                late &= entry is not None
                return AgentFailure(self._describe_loss(late=late), time.monotonic() if late else self.heard)
            version = entry.version
            said = entry.value if isinstance(entry.value, dict) else {}
            if said.get("ended"):
                failure, name = said.get("failure"), said.get("signal")
                self.ended_by = None if name is None or self._has_finished() else str(name)
                return None if failure is None else AgentFailure(f"{self._facts.name}: {failure}", self.heard)
            self.heard = time.monotonic()

    def _has_finished(self) -> bool:
        """False also when the coordinator cannot be asked: then the loss is told."""
        try:
            return self._finished()
        except CoordinatorError:
            return False

    def _describe_loss(self, *, late: bool) -> str:
        where = f"the host {self._facts.name} ({self._facts.address})"
        if late:
            return f"{where} has not ended its ranks within {self._stop_limit:g} s of being asked to"
        return (
            f"{where} has not answered for {self._host_timeout:g} s: it is down, or the network between it and the "
            "launcher is; its ranks end by themselves"
        )


class Mailbox:
    """Orders for a node that the launcher has not started: kept with the coordinator, which the node asks for them.

    ``client`` is closed when the job has ended; until then, what could not be left there is tried again.
    """

    def __init__(self, client: CoordinatorClient, number: int) -> None:
        self._client = client
        self._key = orders_key(number)
        self._lines: list[str] = []
        self._queue: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._deliver, name="tfc-mailbox", daemon=True).start()

    def write(self, line: bytes) -> None:
        """Leaves a line; from any thread, and from signal handlers."""
        self._queue.put(line)

    def _deliver(self) -> None:
        level = logging.WARNING
        while not self._client.closed:
            try:
                line = self._queue.get(timeout=TIMING.idle)
            except queue.Empty:
                continue
            self._lines.append(line.decode().rstrip("\n"))
            while not self._client.closed:
                try:
                    self._client.put(self._key, self._lines)
                    break
                except CoordinatorError as error:
                    _LOG.log(level, "launcher: an order is left once more: %s", error)
                    level = logging.DEBUG
                time.sleep(TIMING.retry)


def run_on_nodes(
    job: Job,
    plan: Plan,
    nodes: Mapping[str, Node],
    python: str,
    stop_signals: Sequence[int],
    earlier: Sequence[int] = (),
) -> JobOutcome:
    """Gives every host of the plan its part, waits for all of them, and says how the job ended.

    ``python`` is the launcher's interpreter, for which each host takes its own; ``earlier`` are the signals that came
    before there was anybody to tell.
    """
    side = [host for host in plan.hosts if all(one.rank == NO_RANK for one in plan.on(host))]
    agents = Agents([nodes[host] for host in plan.hosts if host not in side], [nodes[host] for host in side])
    stop = Gate(agents.stop)  # nobody can be stopped who has not begun
    for number in earlier:
        stop(number)
    with forward_signals(stop_signals, stop) as received:
        for host in plan.hosts:
            nodes[host].begin(job, plan.on(host), python)
        stop.open()
        failure = agents.wait(lambda: job.failed)
    lost = any(nodes[host].lost for host in plan.hosts if host not in side)
    side_failures = {str(one.task): why for place, why in agents.side_failures.items() for one in plan.on(side[place])}
    return job.outcome([*earlier, *received], failure, host_lost=lost, side_failures=side_failures)
