"""The launcher's part of a job that runs on the platform; see :mod:`tfcollective.launch.hosted.messages`."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from tfcollective.codec import encode
from tfcollective.control.channel import FOREVER, Channel
from tfcollective.control.client import CoordinatorClient
from tfcollective.control.store import Entry
from tfcollective.errors import CoordinatorError
from tfcollective.launch.hosted.messages import (
    DONE,
    OUTCOME,
    STOP,
    SUBMITTER,
    ContainerRow,
    HostedJob,
    HostedOutcome,
)
from tfcollective.launch.hosted.output_relay import OutputRelay
from tfcollective.launch.launcher import JobOutcome, StartFailure
from tfcollective.launch.nodes.launcher_side import (
    Facts,
    Mailbox,
    Node,
    client_of,
    enrolled,
    run_on_nodes,
    version_problem,
)
from tfcollective.launch.nodes.node_side import serve
from tfcollective.launch.nodes.protocol import NodeSettings, refusal_line
from tfcollective.launch.running.agents import AgentFailure
from tfcollective.launch.running.job import Job
from tfcollective.launch.system.signals import forward_signals
from tfcollective.log import get_logger
from tfcollective.settings import Settings
from tfcollective.timing import TIMING
from tfcollective.topology import Endpoint

__all__ = ["HostedPlatform", "serve_container", "serve_job"]

_LOG = get_logger(__name__)
_POLL_S = 1.0
_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class HostedPlatform(Protocol):
    """What this side asks the platform that it runs on."""

    def announce(self, coordinator: str) -> None:
        """Lets the other containers and the submitter find the coordinator."""

    def problem(self, names: Sequence[str]) -> str | None:
        """Why one of these containers will never come, or None."""

    def describe_missing(self, names: Sequence[str]) -> str:
        """What is known of containers that have not come in time."""

    def explain(self, name: str) -> str | None:
        """Why this container has ended, as the platform tells it, or None."""

    def places(self) -> Mapping[str, tuple[str, str]]:
        """Host and address of the log of each container that was there, by name."""


def serve_container(settings: NodeSettings) -> int:
    """What runs in every other container: an agent, whose output the submitter sees."""
    client = CoordinatorClient(
        Endpoint.parse(settings.coordinator), bytes.fromhex(settings.key), encryption=Settings.load().encryption
    )
    with OutputRelay(client, settings.name):
        return serve(settings)


def serve_job(hosted: HostedJob, bind_host: str, platform: HostedPlatform) -> HostedOutcome:
    """Runs the job to its end and tells the submitter how it ended.

    Raises CoordinatorError or ConfigError when the job cannot even begin.
    """
    with (
        Job(hosted.spec, hosted.plan, bind_host=bind_host, job_id=hosted.job_id, key=hosted.key) as job,
        # From before the submitter can send one to the end of the report: no signal ends this process without it.
        forward_signals(_ENDS, lambda number: None) as received,
    ):
        platform.announce(job.coordinator)
        with client_of(job, len(hosted.plan.hosts) + 1) as client:
            _listen_to_submitter(client, followed=hosted.followed)
            ended = _run(hosted, job, client, platform, received)
            _tell(client, ended, followed=hosted.followed)
    return ended


def _run(
    hosted: HostedJob, job: Job, client: CoordinatorClient, platform: HostedPlatform, received: Sequence[int]
) -> HostedOutcome:
    nodes, problem = _gather(hosted, client, platform, received)
    if problem is not None or received:
        for node in nodes.values():
            node.refuse(problem.message if problem is not None else "the job was stopped before it began")
        return HostedOutcome(_not_begun(problem, received), _rows(hosted, nodes, platform))
    outcome = run_on_nodes(job, hosted.plan, nodes, hosted.python, _ENDS, received)
    began = min((node.began for node in nodes.values()), default=0.0)
    training = max((node.ended or node.began for node in nodes.values()), default=0.0) - began
    return HostedOutcome(outcome, _rows(hosted, nodes, platform), training)


def _not_begun(problem: StartFailure | None, received: Sequence[int]) -> JobOutcome:
    stopped_by = received[0] if received else None
    if problem is None or problem.timed_out:
        return JobOutcome((), initialised=True, start_failure=problem, stopped_by=stopped_by)
    return JobOutcome((), initialised=True, agent_failure=problem.message, stopped_by=stopped_by)


class _HostedNode(Node):
    """A node whose end the platform can explain, and that remembers its times."""

    def __init__(self, facts: Facts, client: CoordinatorClient, explain: Callable[[str], str | None]) -> None:
        super().__init__(facts, client, Mailbox(client, facts.number).write, lambda: None)
        self.facts = facts
        self.began = time.monotonic()
        self.ended: float | None = None
        self._explain = explain

    def wait(self) -> AgentFailure | None:
        """See :class:`AgentHandle`."""
        failure = super().wait()
        self.ended = time.monotonic()
        if self.ended_by is not None:  # a container that is taken away may have had the time to say good-bye
            self.lost = True
        if not self.lost:
            return failure
        why = self._explain(self.facts.name)
        if self.ended_by is not None and why in (None, "was ended"):  # the platform may know less than the agent
            why = f"was ended by {self.ended_by}"
        if not why:
            return failure
        message = f"the container of {self.facts.name} on {self.facts.host} {why}"
        return AgentFailure(message, self.heard if failure is None else failure.at)


def _gather(
    hosted: HostedJob, client: CoordinatorClient, platform: HostedPlatform, received: Sequence[int]
) -> tuple[dict[str, _HostedNode], StartFailure | None]:
    """The agents of all containers, by name, as far as they have come; and why they have not all come.

    Whoever has another name, or one that has come already, is told to go.
    """
    wanted = hosted.plan.hosts
    deadline = time.monotonic() + hosted.allocation_timeout
    nodes: dict[str, _HostedNode] = {}
    seen = 0
    while not received:
        found = enrolled(client, _POLL_S, seen)
        for facts in found[seen:]:
            if facts.name not in wanted or facts.name in nodes:
                _refuse(facts, client, "has come already" if facts.name in nodes else "is none of this job's")
                continue
            other = version_problem(facts)
            if other is not None:
                return nodes, StartFailure(other, timed_out=False)
            nodes[facts.name] = _HostedNode(facts, client, platform.explain)
        seen = len(found)
        missing = [name for name in wanted if name not in nodes]
        if not missing:
            return nodes, None
        problem = platform.problem(missing)
        if problem is not None:
            return nodes, StartFailure(problem, timed_out=False)
        if time.monotonic() > deadline:
            have = f"{len(wanted) - len(missing)} of {len(wanted)} containers came within"
            what = platform.describe_missing(missing)
            return nodes, StartFailure(f"{have} {hosted.allocation_timeout:g} s; missing: {what}", timed_out=True)
    return nodes, None


def _refuse(facts: Facts, client: CoordinatorClient, why: str) -> None:
    _LOG.warning("refused an agent on %s: a container called %s %s", facts.host, facts.name, why)
    Mailbox(client, facts.number).write(refusal_line(f"a container called {facts.name} {why}"))


def _rows(hosted: HostedJob, nodes: Mapping[str, _HostedNode], platform: HostedPlatform) -> tuple[ContainerRow, ...]:
    rows = []
    places = platform.places()
    for name in hosted.plan.hosts:
        tasks = tuple(str(worker.task) for worker in hosted.plan.on(name))
        host, log = places.get(name, ("", ""))
        node = nodes.get(name)
        duration = None if node is None or node.ended is None else round(node.ended - node.began, 3)
        rows.append(ContainerRow(name, tasks, host or (node.facts.host if node is not None else ""), log, duration))
    return tuple(rows)


# ---- the submitter ---------------------------------------------------------------------------------------------------


def _listen_to_submitter(client: CoordinatorClient, *, followed: bool) -> None:
    """Signals that it gets become ours, and its end ends the job if it is to. Until ``client`` is closed."""
    threading.Thread(target=_relay_signals, args=(client,), name="tfc-stop", daemon=True).start()
    if followed:
        threading.Thread(target=_watch_submitter, args=(client,), name="tfc-submitter", daemon=True).start()


def _relay_signals(client: CoordinatorClient) -> None:
    for number in Channel(client).receive(STOP):
        if number in _ENDS:
            os.kill(os.getpid(), number)


def _watch_submitter(client: CoordinatorClient) -> None:
    try:
        done = Channel(client).call(partial(_wait_for_submitter, first=TIMING.submitter_comes), FOREVER)
    except CoordinatorError:
        return  # the job has ended
    if done is None:
        _LOG.error("the submitter has given no sign of life for %.0f s: ending the job", TIMING.submitter_lost)
        os.kill(os.getpid(), signal.SIGHUP)


def _wait_for_submitter(client: CoordinatorClient, first: float | None = None) -> Entry | None:
    """Until it has seen how the job has ended; None when it is gone."""
    return client.wait_while(DONE, SUBMITTER, TIMING.submitter_lost, first=first)


def _tell(client: CoordinatorClient, ended: HostedOutcome, *, followed: bool) -> None:
    """Leaves the outcome, and waits until the submitter has seen it and fetched the results, for as long as it lives:
    the coordinator ends with us."""
    report = encode(ended)  # of a large job it is larger than a message may be
    channel = Channel(client)
    channel.call(lambda client: client.put_blob(OUTCOME, report))
    if followed and ended.outcome.stopped_by != signal.SIGHUP:
        channel.call(_wait_for_submitter)
